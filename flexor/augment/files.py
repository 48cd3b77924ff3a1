"""Augmentations in files: weights as safetensors, everything else as JSON beside them."""

import json
import os
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

from flexor.augment.augmentation import Augmentation
from flexor.augment.blueprint import MODES, SCOPES, Blueprint, Entry
from flexor.augment.layout import Layout
from flexor.augment.networks import from_json, to_json
from flexor.files import array_bytes, digest, json_bytes, read_arrays, write_whole

FORMAT = "flexor augmentation"
VERSION = 1


def save(augmentation: Augmentation, path: str | os.PathLike[str]) -> Path:
    """Writes both files atomically; the JSON carries a digest of the weights, which ties the two together."""
    path = _checked(path)
    weights = array_bytes(_named(augmentation))
    data = {
        "format": FORMAT,
        "version": VERSION,
        "weights": {"file": path.name, "sha256": digest(weights)},
        "blueprint": [_entry_to_json(e) for e in augmentation.entries],
        "robot": _layout_to_json(augmentation.layout),
    }
    write_whole({path: weights, path.with_suffix(".json"): json_bytes(data)})
    return path


def load(path: str | os.PathLike[str]) -> Augmentation:
    """Reads what `save` wrote; says what is missing or broken."""
    path = _checked(path)
    beside = path.with_suffix(".json")
    for file in (path, beside):
        if not file.is_file():
            raise FileNotFoundError(f"there is no file '{file}'; an augmentation is a .safetensors and the .json beside it.")
    try:
        data = json.loads(beside.read_text(encoding="utf-8"))
        if data.get("format") != FORMAT:
            raise ValueError("it does not describe an augmentation")
        if data["version"] > VERSION:
            raise ValueError(f"it has version {data['version']}, and this flexor reads up to {VERSION}")
        entries = tuple(_entry_from_json(e) for e in data["blueprint"])
        layout, wanted = _layout_from_json(data["robot"]), data["weights"]["sha256"]
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"'{beside}' is corrupt: {error}.") from error
    raw = path.read_bytes()
    if digest(raw) != wanted:
        raise ValueError(
            f"'{path}' is not the file of weights that '{beside.name}' describes: truncated, changed or from another run."
        )
    return _filled(Augmentation.build(Blueprint(list(entries)), layout, jax.random.key(0), jnp.float32), raw)


def _checked(path: str | os.PathLike[str]) -> Path:
    path = Path(path)
    if path.suffix != ".safetensors":
        raise ValueError(f"'{path.name}' must end in .safetensors; the rest is written to a .json beside it.")
    return path


def _named(augmentation: Augmentation) -> dict[str, Any]:
    """Weights by their place: "0.0.layers.0.weight" is entry 0, group 0, first layer."""
    leaves = jax.tree_util.tree_leaves_with_path(augmentation.networks)
    return {jax.tree_util.keystr(path, simple=True, separator="."): leaf for path, leaf in leaves}


def _filled(fresh: Augmentation, raw: bytes) -> Augmentation:
    """The augmentation with the weights of a file."""
    stored, wanted = read_arrays(raw), _named(fresh)
    bad = [n for n in {**wanted, **stored} if n not in stored or n not in wanted or stored[n].shape != wanted[n].shape]
    if bad:
        raise ValueError(f"the weights '{bad[0]}' do not fit the blueprint beside them.")
    tree = jax.tree.structure(fresh.networks)
    networks = jax.tree.unflatten(tree, [jnp.asarray(stored[name]) for name in wanted])
    return Augmentation(networks, fresh.entries, fresh.layout)


def _entry_to_json(entry: Entry) -> dict[str, Any]:
    return {
        "output": entry.output, "inputs": list(entry.inputs), "net": to_json(entry.net), "mode": type(entry.mode).__name__,
        "over": type(entry.over).__name__, "scales": dict(entry.scales),
    }  # fmt: skip


def _entry_from_json(data: dict[str, Any]) -> Entry:
    mode, over = MODES[data["mode"]](), SCOPES[data["over"]]()
    return Entry(data["output"], tuple(data["inputs"]), from_json(data["net"]), mode, over, tuple(data["scales"].items()))


def _layout_to_json(layout: Layout) -> dict[str, Any]:
    return {
        "name": layout.robot,
        "joints": layout.joints,
        "bodies": layout.bodies,
        "contacts": layout.contacts,
        "taps": layout.taps,
        "tendons": layout.tendons,
    }


def _layout_from_json(data: dict[str, Any]) -> Layout:
    joints = tuple((str(n), str(k), bool(limited)) for n, k, limited in data["joints"])
    taps = tuple((str(n), tuple(shape)) for n, shape in data["taps"])
    tendons = tuple(data.get("tendons", ()))
    return Layout(data["name"], joints, tuple(data["bodies"]), tuple(data["contacts"]), taps, tendons)
