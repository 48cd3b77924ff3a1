"""`Policy`: a trained policy as an artefact: its arrays, .safetensors, and a card, .json, beside them."""

import json
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from importlib import metadata, resources
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from flexor.envs import AbstractTask
from flexor.files import array_bytes, digest, json_bytes, read_arrays, write_whole
from flexor.learn.actor import Actor, Norm, Perceptron

FORMAT, VERSION = "flexor policy", 1
NUMPY: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "relu": lambda x: np.maximum(x, 0),
    "tanh": np.tanh,
    "elu": lambda x: np.where(x > 0, x, np.expm1(np.minimum(x, 0))),
}


@dataclass(frozen=True, eq=False)
class Policy:
    """What was learned for the task of name `task`. Called with an observation in NumPy it gives the mean of the action, without
    JAX. `card` tells the rest: physics, seed, returns, versions."""

    actor: Actor
    task: str
    card: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        net, norm = self.actor.net, self.actor.norm
        layers = [(np.asarray(W), np.asarray(b)) for W, b in zip(net.weights, net.biases, strict=True)]
        object.__setattr__(self, "_layers", layers)
        object.__setattr__(self, "_norm", (np.asarray(norm.mean), np.asarray(norm.deviation), norm.bound))

    def __call__(self, observation: np.ndarray) -> np.ndarray:
        """The action at an observation, or at a batch of them."""
        layers: list[tuple[np.ndarray, np.ndarray]] = self._layers  # type: ignore[attr-defined]
        mean, deviation, bound = self._norm  # type: ignore[attr-defined]
        if observation.shape[-1] != len(mean):
            raise ValueError(f"a policy of '{self.task}' sees {len(mean)} numbers, got {observation.shape[-1]}.")
        f = NUMPY[self.actor.net.activation]
        x = np.clip((observation - mean) / deviation, -bound, bound)
        for W, b in layers[:-1]:
            x = f(x @ W + b)
        return np.asarray(x @ layers[-1][0] + layers[-1][1])

    def check(self, task: AbstractTask) -> None:
        """Raises where this is no policy for a task."""
        sizes = (len(self.actor.norm.mean), len(self.actor.log_deviation))
        if self.task != task.name or sizes != (task.observations, task.actions):
            raise ValueError(
                f"this policy was trained for '{self.task}' ({sizes[0]} observations, {sizes[1]} actions), not for '{task.name}' "
                f"({task.observations}, {task.actions})."
            )

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Writes all arrays to `path`, which ends in .safetensors, and the card to a .json beside it."""
        path = _checked(path)
        net, norm = self.actor.net, self.actor.norm
        arrays = {f"weights.{k}": x for k, x in enumerate(net.weights)} | {
            f"biases.{k}": x for k, x in enumerate(net.biases)
        }
        arrays |= {"mean": norm.mean, "square": norm.square, "count": norm.count, "log_deviation": self.actor.log_deviation}
        content = array_bytes(arrays)
        card = {
            **self.card, "format": FORMAT, "version": VERSION, "task": self.task, "layers": len(net.weights),
            "activation": net.activation, "bound": norm.bound, "weights": {"file": path.name, "sha256": digest(content)},
            "versions": {name: metadata.version(name) for name in ("flexor", "jax", "numpy")},
        }  # fmt: skip
        write_whole({path: content, path.with_suffix(".json"): json_bytes(card)})
        return path

    def export(self, path: str | os.PathLike[str]) -> Path:
        """Writes the policy, its normalisation included, as an ONNX model (extra `onnx`); see `flexor.learn.export`."""
        from flexor.learn.export import export

        return export(self, path)

    @staticmethod
    def load(path: str | os.PathLike[str]) -> "Policy":
        """Reads what `save` wrote."""
        path = _checked(path)
        beside = path.with_suffix(".json")
        for file in (path, beside):
            if not file.is_file():
                raise FileNotFoundError(f"there is no file '{file}'; a policy is a .safetensors and the .json beside it.")
        try:
            card = json.loads(beside.read_text(encoding="utf-8"))
        except ValueError as error:
            raise ValueError(f"'{beside}' is corrupt: {error}.") from error
        if not isinstance(card, dict) or card.get("format") != FORMAT:
            raise ValueError(f"'{beside}' does not describe a policy.")
        if card["version"] > VERSION:
            raise ValueError(f"'{beside}' was written by a newer flexor: update flexor to open it.")
        raw = path.read_bytes()
        if digest(raw) != card["weights"]["sha256"]:
            raise ValueError(f"'{path}' is corrupt, or not the file that '{beside.name}' describes: its digest differs.")
        z = {name: jnp.asarray(x) for name, x in read_arrays(raw).items()}
        layers = range(card["layers"])
        weights, biases = tuple(z[f"weights.{k}"] for k in layers), tuple(z[f"biases.{k}"] for k in layers)
        norm = Norm(z["mean"], z["square"], z["count"], card["bound"])
        return Policy(Actor(norm, Perceptron(weights, biases, card["activation"]), z["log_deviation"]), card["task"], card)


def pretrained() -> list[str]:
    """Names of the policies in the package, which are those of their tasks."""
    files = resources.files("flexor.learn").joinpath("pretrained").iterdir()
    return sorted(f.name.removesuffix(".safetensors") for f in files if f.name.endswith(".safetensors"))


def load(name: str | os.PathLike[str]) -> Policy:
    """A policy of the package by the name of its task, or one of your own by its path, which ends in .safetensors."""
    if not isinstance(name, str) or name.endswith(".safetensors"):
        return Policy.load(name)
    if name not in pretrained():
        raise KeyError(f"there is no policy '{name}' in the package (there are {', '.join(pretrained())}); a path ends in "
                       ".safetensors.")  # fmt: skip
    with resources.as_file(resources.files("flexor.learn").joinpath("pretrained", f"{name}.safetensors")) as path:
        return Policy.load(path)


def policy_of(actor: Actor, task: AbstractTask, **card: Any) -> Policy:
    """The policy of an actor, whose card names the physics that it learned in."""
    solver = type(task.sim.solver).__name__
    physics = {"robot": task.sim.model.topology.name, "solver": solver, "dt": float(task.sim.dt)}
    return Policy(jax.device_get(actor), task.name, {"physics": physics, **card})


def _checked(path: str | os.PathLike[str]) -> Path:
    path = Path(path)
    if path.suffix != ".safetensors":
        raise ValueError(f"'{path.name}' must end in .safetensors; the card is written to a .json beside it.")
    return path
