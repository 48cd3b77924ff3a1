"""`Twin`: a network in the place of the QP, with the inputs of NeuralSim's controller (Heiden et al. 2021, section IV-D)."""

import itertools
from collections.abc import Mapping
from importlib import resources
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from flexor.control.force_problem import ForceProblem
from flexor.control.forces import AbstractForces, ForceSolution
from flexor.files import array_bytes, read_arrays, read_sealed, sealed, write_folder

INPUTS = 41


def features(p: ForceProblem) -> Float[Array, "41"]:
    """What the network sees: velocity, angles and rates of the trunk; of the feet contacts, places and friction; wanted height,
    velocity, angles and rates."""
    x, wanted = p.start, p.target[0]
    friction = p.friction * jnp.ones_like(p.contact[0])
    now = [x[9:12], x[:3], x[6:9], p.contact[0], p.arms[0].ravel(), friction]
    return jnp.concatenate([*now, wanted[3:6], wanted[9:12], wanted[:3], wanted[6:9]])


class Twin(AbstractForces):
    """Three hidden layers with ELU from `features` to the forces of this instant, as shares of the weight; `mean` and `deviation`
    scale the inputs. Forces are put into their pyramids, and feet in the air push nothing."""

    weights: tuple[Float[Array, "out in"], ...]
    biases: tuple[Float[Array, " out"], ...]
    mean: Float[Array, "41"]
    deviation: Float[Array, "41"]

    @staticmethod
    def fresh(key: PRNGKeyArray, *, width: int = 192, layers: int = 3, dtype: np.dtype | type = np.float32) -> "Twin":
        """Random weights (He et al. 2015)."""
        sizes = [INPUTS, *[width] * layers, 12]
        keys = jax.random.split(key, len(sizes) - 1)
        pairs = list(itertools.pairwise(sizes))
        weights = tuple(jax.random.normal(k, (b, a), dtype) * (2 / a) ** 0.5 for k, (a, b) in zip(keys, pairs, strict=True))
        biases = tuple(jnp.zeros(b, dtype) for _, b in pairs)
        return Twin(weights, biases, jnp.zeros(INPUTS, dtype), jnp.ones(INPUTS, dtype))

    def save(self, folder: str | Path, card: Mapping[str, Any] | None = None) -> Path:
        """Writes a folder: the weights as safetensors, and a card beside them that says what they are for."""
        arrays = {f"{kind}.{k}": x for kind in ("weights", "biases") for k, x in enumerate(getattr(self, kind))}
        content = {"weights.safetensors": array_bytes({**arrays, "mean": self.mean, "deviation": self.deviation})}
        path = Path(folder)
        write_folder(path, {**content, "twin.json": sealed("walking network", 1, {"card": dict(card or {})}, content)})
        return path

    @staticmethod
    def load(folder: str | Path) -> "Twin":
        """What `save` wrote; raises, with a sentence, where that is missing or altered."""
        _, files = read_sealed(Path(folder) / "twin.json", "walking network", 1)
        arrays = {name: jnp.asarray(x) for name, x in read_arrays(files["weights.safetensors"]).items()}
        count = sum(name.startswith("biases") for name in arrays)
        parts = [tuple(arrays[f"{kind}.{k}"] for k in range(count)) for kind in ("weights", "biases")]
        return Twin(parts[0], parts[1], arrays["mean"], arrays["deviation"])

    @staticmethod
    def pretrained() -> "Twin":
        """The network that comes with flexor: for the bundled quadruped at a trot, as `experiments/mpc_imitation.py` makes it."""
        with resources.as_file(resources.files("flexor.control").joinpath("pretrained", "quadruped")) as folder:
            return Twin.load(folder)

    def shares(self, inputs: Float[Array, "41"]) -> Float[Array, "4 3"]:
        """The network alone: forces over the weight."""
        h = (inputs - self.mean) / self.deviation
        for W, b in zip(self.weights[:-1], self.biases[:-1], strict=True):
            h = jax.nn.elu(W @ h + b)
        return (self.weights[-1] @ h + self.biases[-1]).reshape(4, 3)

    def __call__(self, problem: ForceProblem, start: Float[Array, "horizon foot 3"] | None = None) -> ForceSolution:
        f = problem.mass * problem.gravity * self.shares(features(problem))
        z = jnp.clip(f[:, 2], problem.low, problem.high)
        side = problem.friction * z
        f = jnp.stack([jnp.clip(f[:, 0], -side, side), jnp.clip(f[:, 1], -side, side), z], axis=-1)
        f = jnp.where(problem.contact[0][:, None] > 0, f, 0.0)
        return ForceSolution(jnp.broadcast_to(f, problem.arms.shape), jnp.all(jnp.isfinite(f)), jnp.zeros((), int))
