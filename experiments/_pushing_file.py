"""What was learned about the pushes, and its file: weights as safetensors, all else as JSON beside them."""

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from _pushing import Frames, Shape, Table, kind
from _pushing_model import Object, Parameters, blueprint, simulator

import flexor as fx

FORMAT = "flexor pushing model"


def fresh(bodies: dict[str, Object], width: int, depth: int, seed: int = 0) -> fx.Augmentation:
    """Untrained networks for the scene."""
    sim = simulator(next(iter(bodies.values())), Parameters.untuned(bodies), None, jnp.asarray(0.1, jnp.float32))
    return sim.augment(blueprint(width, depth), key=jax.random.key(seed)).solver.augmentation


@dataclass
class Learned:
    """Parameters untuned (""), by surface ("abs"), by kind of outline on it ("abs/smooth") and by object on it ("abs/rect1");
    networks by surface and by object on it; and the frames of the recordings.

    An object that was not learned has the parameters of its kind and the network of its surface.
    """

    width: int
    depth: int
    frames: Frames
    parameters: dict[str, Parameters] = field(default_factory=dict)
    networks: dict[str, fx.Augmentation] = field(default_factory=dict)

    def parameters_of(self, surface: str, shape: Shape) -> Parameters:
        """Of the object, else of its kind, else of the surface, else untuned."""
        keys = (f"{surface}/{shape.name}", f"{surface}/{kind(shape.outline)}", surface, "")
        return next(self.parameters[k] for k in keys if k in self.parameters)

    def network_of(self, surface: str, shape: str) -> fx.Augmentation | None:
        return self.networks.get(f"{surface}/{shape}", self.networks.get(surface))

    def known(self, table: Table) -> bool:
        """Whether the object was learned on this surface."""
        return f"{table.surface}/{table.shape}" in self.networks

    def save(self, path: Path) -> Path:
        """Writes both files; returns the path of the weights."""
        from safetensors.numpy import save_file

        weights = {f"{key}|{i}": np.asarray(x) for key, net in self.networks.items() for i, x in enumerate(_leaves(net))}
        save_file(weights, path)
        data = {
            "format": FORMAT,
            "network": {"width": self.width, "depth": self.depth},
            "parameters": {key: [np.asarray(x).tolist() for x in p] for key, p in self.parameters.items()},
            "session": {key: o.tolist() for key, o in self.frames.session.items()},
            "body": {key: o.tolist() for key, o in self.frames.body.items()},
        }
        path.with_suffix(".json").write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")
        return path

    @staticmethod
    def load(path: Path, bodies: dict[str, Object]) -> "Learned":
        """Reads what `save` wrote, for the scene of the given objects."""
        from safetensors.numpy import load_file

        data = json.loads(path.with_suffix(".json").read_text(encoding="utf-8"))
        if data.get("format") != FORMAT:
            raise ValueError(f"'{path.with_suffix('.json')}' is not the description of a pushing model.")
        frames = Frames(*({k: np.array(o) for k, o in data[part].items()} for part in ("session", "body")))
        size = data["network"]["width"], data["network"]["depth"]
        one = next(iter(bodies.values()))
        learned = Learned(*size, frames, {key: Parameters.of(*p, one) for key, p in data["parameters"].items()})
        stored, empty = load_file(path), fresh(bodies, *size)
        for key in dict.fromkeys(name.split("|")[0] for name in stored):
            leaves = [jnp.asarray(stored[f"{key}|{i}"]) for i in range(len(_leaves(empty)))]
            learned.networks[key] = _filled(empty, leaves)
        return learned


def _leaves(net: fx.Augmentation) -> list[Any]:
    return jax.tree.leaves(eqx.filter(net, eqx.is_array))


def _filled(empty: fx.Augmentation, leaves: list[Any]) -> fx.Augmentation:
    arrays, rest = eqx.partition(empty, eqx.is_array)
    return eqx.combine(jax.tree.unflatten(jax.tree.structure(arrays), leaves), rest)
