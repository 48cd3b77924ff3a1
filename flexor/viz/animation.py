"""An animation drawn in the page: robots as data in JSON, drawn by a small script on a canvas. No external resource."""

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
from flexor.solvers.trajectory import Trajectory
from flexor.viz.colours import SERIES
from flexor.viz.framing import AZIMUTH, ELEVATION, MARGIN, boxes, floor_height, frame_motion
from flexor.viz.scene import Actor, body_motion, checked, contact_forces, frame_indices, shapes

_DIGITS = 4  # of a metre and of a unit quaternion: a tenth of a millimetre


def animate(actors: Actor | Sequence[Actor], *, frames_per_second: float = 50.0, title: str = "") -> str:
    """An HTML element with the moving robots, play and pause, a time slider and a camera that follows the mouse.

    It needs `script()` and `style()` once in the same page; `save_animation` writes a whole page.
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
    """The payload of the page: time of every frame in s, actors with shapes and poses, and what the camera looks at."""
    if not frames_per_second > 0:
        raise ValueError(f"`frames_per_second` must be positive, got {frames_per_second}.")
    times = [np.asarray(checked(a.trajectory).time, float) for a in actors]
    longest = max(times, key=lambda t: t[-1])
    rows = frame_indices(longest, frames_per_second)
    drawn = [_actor(a, longest[rows], i) for i, a in enumerate(actors)]
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
        "actors": drawn,
    }


def _actor(actor: Actor, frames: np.ndarray, index: int) -> dict[str, Any]:
    """One actor at the frames' times; a shorter trajectory stays at its last state."""
    model, trajectory = actor.model, actor.trajectory
    time = np.asarray(trajectory.time, float)
    rows = np.clip(np.searchsorted(time, frames - 1e-9), 0, len(time) - 1)
    pos, quat = body_motion(model, trajectory.q[rows])
    drawn = shapes(model)
    low, high = boxes(drawn, pos, quat)
    forces = contact_forces(model, trajectory, rows)
    mass = float(np.asarray(model.bodies.mass).sum())
    return {
        "label": actor.label,
        "colour": actor.colour or SERIES[index % len(SERIES)],
        "offset": list(actor.offset),
        "shapes": drawn,
        "poses": np.round(np.concatenate([pos, quat], -1), _DIGITS).reshape(len(rows), -1).tolist(),
        "forces": None if forces is None else [_acting(f) for f in forces],
        "weight": mass * float(np.linalg.norm(np.asarray(model.gravity))),
        "box": (low + actor.offset, high + actor.offset),
    }


def _acting(forces: np.ndarray) -> list[list[float]]:
    """Point and force of the contacts that push."""
    push = forces[np.linalg.norm(forces[:, 3:], axis=-1) > 1e-6]
    return np.round(push, 3).tolist()


def script() -> str:
    """The script element that brings every `animate` of a page to life."""
    return f"<script>\n{_asset('animation.js')}</script>"


def style() -> str:
    """The style element that an `animate` needs."""
    return f"<style>\n{_asset('animation.css')}</style>"


def save_animation(path: str | os.PathLike[str], model: Model, trajectory: Trajectory, *, label: str = "") -> Path:
    """Writes one self-contained page with the robot's motion; returns the path."""
    body = animate(Actor(model, trajectory, label or model.topology.name))
    name = escape(model.topology.name)
    head = f'<meta charset="utf-8"><meta name="viewport" content="width=device-width"><title>{name}</title>'
    page = f'<!doctype html><html lang="en"><head>{head}{style()}</head><body class="alone">{body}{script()}</body></html>'
    write_text(Path(path), page)
    return Path(path)


def _asset(name: str) -> str:
    return resources.files("flexor.viz").joinpath("pages", name).read_text(encoding="utf-8")
