"""An animation drawn in the page: robots as data, drawn by three.js, which the page carries. No external resource."""

import base64
import json
import os
from collections.abc import Sequence
from html import escape
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np

from flexor.files import write_text
from flexor.model.model import Model
from flexor.model.visuals import Surface
from flexor.solvers.trajectory import Trajectory
from flexor.viz.colours import SERIES
from flexor.viz.framing import AZIMUTH, ELEVATION, MARGIN, boxes, floor_height, frame_motion
from flexor.viz.looks import TRIANGLES, looks
from flexor.viz.scene import Actor, body_motion, checked, contact_forces, frame_indices

_STEPS = 65535  # into which the extent of a mesh is divided along each axis


def animate(actors: Actor | Sequence[Actor], *, frames_per_second: float = 50.0, title: str = "") -> str:
    """An HTML element with the moving robots, play and pause, a time slider and a camera that follows the mouse.

    One robot has the colours of its description; several have one colour each, as has an actor with a colour of its own.
    The element needs `script()` and `style()` once in the same page; `save_animation` writes a whole page.
    """
    actors = [actors] if isinstance(actors, Actor) else list(actors)
    if not actors:
        raise ValueError("an animation needs at least one Actor.")
    payload = json.dumps(scene(actors, frames_per_second), separators=(",", ":"), allow_nan=False)
    # a name may contain "</script>" or "<!--", which end or change a script element wherever they occur
    data = payload.replace("<", "\\u003c")
    label = escape(title or "Animation of " + ", ".join(a.label or a.model.topology.name for a in actors))
    return (
        f'<div class="flexor-animation" role="group" aria-label="{label}">'
        f'<script type="application/json">{data}</script></div>'
    )


def scene(actors: Sequence[Actor], frames_per_second: float) -> dict[str, Any]:
    """The payload of the page: time of every frame in s, meshes, actors with shapes and poses, what the camera looks at."""
    if not frames_per_second > 0:
        raise ValueError(f"`frames_per_second` must be positive, got {frames_per_second}.")
    times = [np.asarray(checked(a.trajectory).time, float) for a in actors]
    longest = max(times, key=lambda t: t[-1])
    rows = frame_indices(longest, frames_per_second)
    surfaces: dict[Surface, int] = {}
    drawn = [_actor(a, longest[rows], i, len(actors) > 1, surfaces) for i, a in enumerate(actors)]
    space = [a.pop("box") for a in drawn]
    floors = [floor_height(a.model, *box) for a, box in zip(actors, space, strict=True)]
    framing = frame_motion(space, None if None in floors else min(z for z in floors if z is not None))
    still = not np.ptp(framing.centre, axis=0).any()
    return {
        "time": np.round(longest[rows], 5).tolist(),
        "camera": {"azimuth": AZIMUTH, "elevation": ELEVATION, "margin": MARGIN},
        "centre": np.round(framing.centre[:1] if still else framing.centre, 3).tolist(),
        "half": np.round(framing.half, 4).tolist(),
        "floor": framing.floor,
        "square": framing.square,
        "meshes": [packed_mesh(s) for s in surfaces],
        "actors": drawn,
    }


def _actor(actor: Actor, frames: np.ndarray, index: int, beside: bool, surfaces: dict[Surface, int]) -> dict[str, Any]:
    """One actor at the frames' times; a shorter trajectory stays at its last state. New surfaces get their numbers."""
    model, trajectory = actor.model, actor.trajectory
    time = np.asarray(trajectory.time, float)
    rows = np.clip(np.searchsorted(time, frames - 1e-9), 0, len(time) - 1)
    pos, quat = body_motion(model, trajectory.q[rows])
    parts = looks(model, triangles=TRIANGLES)
    low, high = boxes(parts, pos, quat)
    forces = contact_forces(model, trajectory, rows)
    mass = float(np.asarray(model.bodies.mass).sum())
    painted = actor.colour is None and not beside
    return {
        "label": actor.label,
        "colour": actor.colour or SERIES[index % len(SERIES)],
        "painted": painted,
        "offset": list(actor.offset),
        "shapes": [_shape(part, painted, surfaces) for part in parts],
        "bodies": pos.shape[1],
        "poses": packed(np.concatenate([pos, quat], -1), "<f4"),
        "forces": None if forces is None else [_acting(f) for f in forces],
        "weight": mass * float(np.linalg.norm(np.asarray(model.gravity))),
        "box": (low + actor.offset, high + actor.offset),
    }


def _shape(part: dict[str, Any], painted: bool, surfaces: dict[Surface, int]) -> dict[str, Any]:
    """A part of a robot as JSON: its pose, and its size or the number of its mesh."""
    shape = {
        "shape": part["shape"],
        "body": part["body"],
        **{k: np.round(part[k], 5).tolist() for k in ("pos", "quat", "size")},
    }
    if part["rgba"] is not None:
        r, g, b, opacity = part["rgba"]
        shape["opacity"] = opacity
        if painted:
            shape["colour"] = "#" + "".join(f"{round(255 * min(max(x, 0), 1)):02x}" for x in (r, g, b))
    if part["shape"] == "mesh":
        surface = part.get("surface") or _hull(part)
        shape["mesh"] = surfaces.setdefault(surface, len(surfaces))
    return shape


def _hull(part: dict[str, Any]) -> Surface:
    faces = np.array(part["faces"], np.int32).reshape(-1, 3)
    return Surface(np.array(part["vertices"], np.float32).reshape(-1, 3), faces)


def packed(numbers: np.ndarray, kind: str) -> str:
    """Numbers of a NumPy type in base64, row by row."""
    return base64.b64encode(np.ascontiguousarray(numbers, kind).tobytes()).decode()


def packed_mesh(surface: Surface) -> dict[str, Any]:
    """A surface as JSON: vertices as 16-bit steps from the lowest corner, faces as 16-bit or 32-bit indices."""
    vertices = np.asarray(surface.vertices, float)
    low = vertices.min(0) if len(vertices) else np.zeros(3)
    step = np.maximum(np.ptp(vertices, axis=0) if len(vertices) else np.ones(3), 1e-9) / _STEPS
    wide = len(vertices) > _STEPS
    return {
        "low": low.tolist(),
        "step": step.tolist(),
        "vertices": packed(np.round((vertices - low) / step), "<u2"),
        "faces": packed(surface.faces, "<u4" if wide else "<u2"),
        "wide": wide,
        "colours": None if surface.colours is None else packed(surface.colours, "u1"),
    }


def _acting(forces: np.ndarray) -> list[list[float]]:
    """Point and force of the contacts that push."""
    push = forces[np.linalg.norm(forces[:, 3:], axis=-1) > 1e-6]
    rows: list[list[float]] = np.round(push, 3).tolist()
    return rows


def script() -> str:
    """The script elements that bring every `animate` of a page to life: three.js and flexor's use of it."""
    return f"<script>\n{_asset('three.min.js')}</script><script>\n{_asset('animation.js')}</script>"


def style() -> str:
    """The style element that an `animate` needs."""
    return f"<style>\n{_asset('animation.css')}</style>"


def page(title: str, body: str) -> str:
    """A whole page around one `animate`."""
    head = f'<meta charset="utf-8"><meta name="viewport" content="width=device-width"><title>{escape(title)}</title>'
    head += f'<link rel="icon" href="data:,">{style()}'  # an empty icon, or the browser asks for one
    return f'<!doctype html><html lang="en"><head>{head}</head><body class="alone">{body}{script()}</body></html>'


def save_animation(path: str | os.PathLike[str], model: Model, trajectory: Trajectory, *, label: str = "") -> Path:
    """Writes one self-contained page with the robot's motion; returns the path."""
    body = animate(Actor(model, trajectory, label or model.topology.name))
    write_text(Path(path), page(model.topology.name, body))
    return Path(path)


def _asset(name: str) -> str:
    return resources.files("flexor.viz").joinpath("pages", name).read_text(encoding="utf-8")
