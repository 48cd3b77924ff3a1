"""`Nerd`: a trained solver and its card, in files: weights as safetensors, everything else as JSON beside them."""

import hashlib
import json
import os
from dataclasses import dataclass, field
from importlib import metadata, resources
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from flexor.model.files import write_whole
from flexor.model.model import Model
from flexor.nerd.data import model_hash
from flexor.nerd.frames import Frames
from flexor.nerd.network import Norms, Sizes, Transformer
from flexor.nerd.solver import NerdSolver
from flexor.robots import load as load_robot
from flexor.solvers import Simulator

FORMAT = "flexor nerd"
FRAMES = ("dt", "reach", "base", "substeps", "centric", "contacts", "relative", "proportional")
SIZES = ("layers", "width", "heads", "history", "head_width")


@dataclass(frozen=True, eq=False)
class Nerd:
    """A network trained for `model` with the layout and the step of `frames`. `card` says from what: robot, recipe, data, seed,
    metrics, versions."""

    model: Model
    network: Transformer
    frames: Frames
    card: dict[str, Any] = field(default_factory=dict)

    @property
    def dt(self) -> float:
        """The step, in s."""
        return self.frames.dt

    def solver(self) -> NerdSolver:
        """The learned physics, for `Simulator.with_solver`."""
        return NerdSolver(self.network, self.frames)

    def simulator(self) -> Simulator:
        """A simulator of the robot under the learned physics."""
        return Simulator(self.model, self.solver(), dt=self.dt)

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Writes the weights to `path`, which ends in .safetensors, and the card to a .json beside it."""
        from safetensors.numpy import save as serialise

        path = _checked(path)
        weights = serialise({name: np.asarray(x) for name, x in _named(self.network).items()})
        frames, sizes = self.frames, self.network.sizes
        card = {
            **self.card,
            "format": FORMAT,
            "version": 1,
            "robot": self.model.topology.name,
            "model": model_hash(self.model),
            "members": int(self.network.embed.shape[0]),
            "sizes": {name: getattr(sizes, name) for name in SIZES},
            "frames": {name: getattr(frames, name) for name in FRAMES},
            "inputs": list(frames.labels),
            "weights": {"file": path.name, "sha256": hashlib.sha256(weights).hexdigest()},
            "versions": {name: metadata.version(name) for name in ("jax", "equinox", "numpy")},
        }
        write_whole({path: weights, path.with_suffix(".json"): json.dumps(card, indent=1).encode()})
        return path

    @staticmethod
    def load(path: str | os.PathLike[str], model: Model | None = None) -> "Nerd":
        """Reads what `save` wrote. `model` is the robot it was trained for; by default the one that the card names."""
        path = _checked(path)
        beside = path.with_suffix(".json")
        for file in (path, beside):
            if not file.is_file():
                raise FileNotFoundError(
                    f"there is no file '{file}'; a learned solver is a .safetensors and the .json beside it."
                )
        try:
            card = json.loads(beside.read_text(encoding="utf-8"))
            if card.get("format") != FORMAT:
                raise ValueError("it does not describe a learned solver")
            sizes, options, digest = Sizes(**card["sizes"]), card["frames"], card["weights"]["sha256"]
        except (ValueError, KeyError, TypeError) as error:
            raise ValueError(f"'{beside}' is not whole: {error}.") from error
        model = load_robot(card["robot"]) if model is None else model
        frames = Frames(model.topology, **options)
        if list(frames.labels) != card["inputs"]:
            raise ValueError(
                f"'{path.name}' was trained for '{card['robot']}', whose joints or contacts are not those of "
                f"'{model.topology.name}'."
            )
        raw = path.read_bytes()
        if hashlib.sha256(raw).hexdigest() != digest:
            raise ValueError(f"'{path}' is not the file of weights that '{beside.name}' describes: truncated or changed.")
        return Nerd(model, _filled(sizes, frames, card["members"], raw), frames, card)


def load(name: str | os.PathLike[str], model: Model | None = None) -> Nerd:
    """A pretrained solver by the name of its robot, or one of your own by its path."""
    bundled = resources.files("flexor.nerd").joinpath("pretrained", f"{name}.safetensors")
    if isinstance(name, str) and not name.endswith(".safetensors"):
        if not bundled.is_file():
            folder = resources.files("flexor.nerd").joinpath("pretrained")
            files = [p.name for p in folder.iterdir()] if folder.is_dir() else []
            names = ", ".join(sorted(n.removesuffix(".safetensors") for n in files if n.endswith(".safetensors"))) or "none"
            raise KeyError(f"there is no pretrained solver '{name}' (there are {names}); a path ends in .safetensors.")
        with resources.as_file(bundled) as path:
            return Nerd.load(path, model)
    return Nerd.load(name, model)


def _checked(path: str | os.PathLike[str]) -> Path:
    path = Path(path)
    if path.suffix != ".safetensors":
        raise ValueError(f"'{path.name}' must end in .safetensors; the card is written to a .json beside it.")
    return path


def _named(network: Transformer) -> dict[str, Any]:
    leaves = jax.tree_util.tree_leaves_with_path(eqx.filter(network, _is_array))
    return {jax.tree_util.keystr(path, simple=True, separator="."): leaf for path, leaf in leaves}


def _filled(sizes: Sizes, frames: Frames, members: int, raw: bytes) -> Transformer:
    from safetensors.numpy import load as parse

    n, m = len(frames.labels), frames.outputs
    norms = Norms(jnp.zeros(n), jnp.ones(n), jnp.zeros(m), jnp.ones(m))
    keys = jax.random.split(jax.random.key(0), members)
    fresh = eqx.filter_eval_shape(eqx.filter_vmap(lambda k: Transformer.build(sizes, norms, k)), keys)
    stored, wanted = parse(raw), _named(fresh)
    bad = [n for n in {**wanted, **stored} if n not in stored or n not in wanted or stored[n].shape != wanted[n].shape]
    if bad:
        raise ValueError(f"the weights '{bad[0]}' do not fit the card beside them.")
    arrays, fixed = eqx.partition(fresh, _is_array)
    return eqx.combine(jax.tree.unflatten(jax.tree.structure(arrays), [jnp.asarray(stored[n]) for n in wanted]), fixed)


def _is_array(x: Any) -> bool:
    """An array, or the shape of one."""
    return eqx.is_array(x) or isinstance(x, jax.ShapeDtypeStruct)
