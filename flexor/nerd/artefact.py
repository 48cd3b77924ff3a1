"""`Nerd`: a trained solver with the robot and the physics that it was trained for, in two files: a card, .json, and all arrays,
.safetensors, beside it."""

import dataclasses
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import metadata, resources
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from flexor.files import array_bytes, digest, json_bytes, read_arrays, write_whole
from flexor.model.model import Model
from flexor.nerd.base import base_named
from flexor.nerd.data import model_hash
from flexor.nerd.frames import Frames
from flexor.nerd.network import AbstractNetwork, AbstractSizes, Norms, Sizes
from flexor.nerd.ranges import Ranges
from flexor.nerd.solver import NerdSolver
from flexor.nerd.tokens import TokenSizes
from flexor.nerd.warning import Doubt
from flexor.robots import load as load_robot
from flexor.solvers import AbstractSolver, Simulator
from flexor.solvers.artefact import CLASSES
from flexor.solvers.encoding import decode, encode
from flexor.solvers.table import solver

FORMAT, VERSION = "flexor nerd", 2
Origin = tuple[Model, AbstractSolver | None, Ranges | None]
SWITCHES = ("centric", "contacts", "relative", "proportional", "jacobians")
NETWORKS: dict[str, type[AbstractSizes]] = {kind.name: kind for kind in (Sizes, TokenSizes)}


@dataclass(frozen=True, eq=False)
class Nerd:
    """A network trained for `model` with the layout and the step of `frames`. `truth` is the solver whose steps it learned, and
    `ranges` the states and controls that these covered; None if unknown. `doubt` is its warning; None in files from before there
    were any (`fx.nerd.calibrate` adds one). `card` holds the rest: recipe, data, seed, metrics, versions."""

    model: Model
    network: AbstractNetwork
    frames: Frames
    card: dict[str, Any] = field(default_factory=dict)
    truth: AbstractSolver | None = None
    ranges: Ranges | None = None
    doubt: Doubt | None = None

    @property
    def dt(self) -> float:
        """The step, in s."""
        return self.frames.dt

    def solver(self) -> NerdSolver:
        """The learned physics, for `Simulator.with_solver`."""
        return NerdSolver(self.network, self.frames, self.doubt)

    def simulator(self) -> Simulator:
        """A simulator of the robot under the learned physics."""
        return Simulator(self.model, self.solver(), dt=self.dt)

    def true_simulator(self) -> Simulator:
        """A simulator of the robot under the physics that was learned."""
        if self.truth is None:
            raise ValueError(
                f"the physics that this solver of '{self.model.topology.name}' was trained on is unknown: its card has "
                "neither a solver nor a recipe."
            )
        return Simulator(self.model, self.truth, dt=self.dt)

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Writes all arrays to `path`, which ends in .safetensors, and the card to a .json beside it."""
        path = _checked(path)
        model, model_arrays = encode(self.model, CLASSES, "model")
        truth, truth_arrays = encode(self.truth, CLASSES, "truth")
        doubt = {f"doubt.{name}": x for name, x in _named(self.doubt).items()}
        arrays = array_bytes({**_named(self.network), **doubt, **model_arrays, **truth_arrays})
        frames, sizes = self.frames, self.network.sizes
        card = {
            **self.card,
            "format": FORMAT,
            "version": VERSION,
            "robot": self.model.topology.name,
            "model": model,
            "model hash": model_hash(self.model),
            "truth": truth,
            "ranges": None if self.ranges is None else dataclasses.asdict(self.ranges),
            "members": self.network.members,
            "network": sizes.name,
            "sizes": dataclasses.asdict(sizes),
            "frames": _frames_table(frames),
            "inputs": list(frames.labels),
            "weights": {"file": path.name, "sha256": digest(arrays)},
            "versions": {name: metadata.version(name) for name in ("jax", "equinox", "numpy")},
        }
        write_whole({path: arrays, path.with_suffix(".json"): json_bytes(card)})
        return path

    @staticmethod
    def load(path: str | os.PathLike[str], model: Model | None = None) -> "Nerd":
        """Reads what `save` wrote. `model` is another robot of the same joints and contacts, in place of the one in the file.
        Files of version 1 name the robot and do not hold it: `model` is needed if that robot no longer exists there."""
        path = _checked(path)
        card = _read_card(path)
        raw, beside = path.read_bytes(), path.with_suffix(".json").name
        if digest(raw) != card["weights"]["sha256"]:
            raise ValueError(f"'{path}' is corrupt, or not the file that '{beside}' describes: its digest differs.")
        arrays = read_arrays(raw)
        try:
            own, truth, ranges = (_opened_first if card["version"] == 1 else _opened)(card, arrays, model)
            frames = _frames_of(card["frames"], own)
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(f"'{path.with_suffix('.json')}' cannot be opened: {_reason(error)}.") from error
        if list(frames.labels) != card["inputs"]:
            raise ValueError(
                f"'{path.name}' was trained for '{card['robot']}', whose joints or contacts are not those of "
                f"'{own.topology.name}'."
            )
        network = _filled(sizes_named(card.get("network", "transformer"))(**card["sizes"]), frames, card["members"], arrays)
        return Nerd(own, network, frames, card, truth, ranges, _doubt_of(arrays))


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


def _read_card(path: Path) -> dict[str, Any]:
    """The card beside a file of weights, of a version that this flexor reads."""
    beside = path.with_suffix(".json")
    for file in (path, beside):
        if not file.is_file():
            raise FileNotFoundError(
                f"there is no file '{file}'; a learned solver is a .safetensors and the .json beside it."
            )
    try:
        card = json.loads(beside.read_text(encoding="utf-8"))
        if not isinstance(card, dict) or card.get("format") != FORMAT:
            raise ValueError("it does not describe a learned solver")
        missing = [k for k in ("version", "robot", "members", "sizes", "frames", "inputs", "weights") if k not in card]
        if missing:
            raise ValueError(f"it lacks '{missing[0]}'")
    except ValueError as error:
        raise ValueError(f"'{beside}' is corrupt: {_reason(error)}.") from error
    if card["version"] > VERSION:
        raise ValueError(
            f"'{beside}' was written by a newer flexor: its format has version {card['version']}, and this flexor reads up to "
            f"{VERSION}. Update flexor to open it."
        )
    return card


def _frames_table(frames: Frames) -> dict[str, Any]:
    """The layout as JSON, without the topology, which is the model's."""
    table = {name: getattr(frames, name) for name in ("dt", "reach", *SWITCHES)}
    return {**table, "base": frames.base.name, "substeps": getattr(frames.base, "substeps", 1)}


def _frames_of(table: Mapping[str, Any], model: Model) -> Frames:
    """The layout of a card, for a robot."""
    given = dict(table)
    return Frames(model.topology, base=base_named(given.pop("base"), given.pop("substeps")), **given)


def _opened(card: Mapping[str, Any], arrays: Mapping[str, np.ndarray], model: Model | None) -> Origin:
    """What a card holds beside the network."""
    model = decode(card["model"], CLASSES, arrays) if model is None else model
    ranges = card["ranges"]
    return model, decode(card["truth"], CLASSES, arrays), None if ranges is None else Ranges.of(ranges)


def _opened_first(card: Mapping[str, Any], arrays: Mapping[str, np.ndarray], model: Model | None) -> Origin:
    """The same of a card of version 1, which names the robot but does not hold it, and has the true physics in its recipe."""
    recipe, data = card.get("recipe"), card.get("data", {})
    robot = str((recipe or card)["robot"])
    try:
        model = load_robot(robot) if model is None else model
    except FileNotFoundError as error:
        raise FileNotFoundError(
            f"this solver was trained for the robot '{robot}', which is not there, and its files are of an old version that does "
            "not hold the robot itself: give its description, `--robot FILE` or `fx.nerd.load(path, fx.load(FILE))`."
        ) from error
    truth = None if recipe is None else solver(recipe["contact"], substeps=recipe["substeps"])
    return model, truth, Ranges.of(json.loads(data["ranges"])) if "ranges" in data else None


def _doubt_of(arrays: Mapping[str, np.ndarray]) -> Doubt | None:
    """The warning in a file, where there is one."""
    names = [f"doubt.{f.name}" for f in dataclasses.fields(Doubt)]
    return Doubt(*(jnp.asarray(arrays[n]) for n in names)) if all(n in arrays for n in names) else None


def _named(network: Any) -> dict[str, Any]:
    leaves = jax.tree_util.tree_leaves_with_path(eqx.filter(network, _is_array))
    return {jax.tree_util.keystr(path, simple=True, separator="."): leaf for path, leaf in leaves}


def sizes_named(name: str) -> type[AbstractSizes]:
    """The kind of network that recipes and files call `name`."""
    if name not in NETWORKS:
        raise ValueError(f"there is no network '{name}'; use one of {', '.join(NETWORKS)}.")
    return NETWORKS[name]


def _filled(sizes: AbstractSizes, frames: Frames, members: int, stored: Mapping[str, np.ndarray]) -> AbstractNetwork:
    """A network of the stored weights."""
    n, m = len(frames.labels), frames.outputs
    norms = Norms(jnp.zeros(n), jnp.ones(n), jnp.zeros(m), jnp.ones(m))
    keys = jax.random.split(jax.random.key(0), members)
    fresh = eqx.filter_eval_shape(eqx.filter_vmap(lambda k: sizes.build(frames, norms, k)), keys)
    wanted = _named(fresh)
    bad = [name for name, x in wanted.items() if name not in stored or stored[name].shape != x.shape]
    if bad:
        raise ValueError(f"the weights '{bad[0]}' do not fit the card beside them.")
    arrays, static = eqx.partition(fresh, _is_array)
    leaves = [jnp.asarray(stored[name]) for name in wanted]
    return eqx.combine(jax.tree.unflatten(jax.tree.structure(arrays), leaves), static)


def _is_array(x: Any) -> bool:
    """An array, or the shape of one."""
    return eqx.is_array(x) or isinstance(x, jax.ShapeDtypeStruct)


def _reason(error: Exception) -> str:
    return f"it lacks {error}" if isinstance(error, KeyError) else str(error).rstrip(".")
