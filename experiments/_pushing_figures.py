"""Figures of the pushes: errors by table, an object with its grid and end poses, a whole push; and the effect of the step."""

from pathlib import Path
from typing import Any

import jax.numpy as jnp
import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np
from _pushing import CENTRE, RADIUS, Shape, Table, calibrate, grid, starts, turned, wrapped
from _pushing_file import Learned
from _pushing_model import Batch, Object, batch, path, predict

COLOURS = {"published": "#7a8793", "tuned": "#e4792b", "augmented": "#2f7ed8", "true": "#222222"}


def _outline(axes: Any, shape: Shape, pose: np.ndarray, colour: str, label: str | None = None, **style: Any) -> None:
    """An outline at a pose, in mm."""
    points = 1e3 * (pose[:2] + turned(pose[2], shape.outline))
    axes.fill(*points.T, facecolor=style.pop("face", "none"), edgecolor=colour, label=label, **style)


def errors(file: Path, names: list[str], rows: list[dict[str, tuple[float, float]]]) -> None:
    """Position and angle error of three models, for each table."""
    figure, both = plt.subplots(2, 1, figsize=(max(5.0, 0.4 * len(names) + 2), 6.4), sharex=True, layout="constrained")
    for k, (axes, scale, unit) in enumerate(
        zip(both, (1e3, 1.0), ("position error in mm", "angle error in rad"), strict=True)
    ):
        for i, model in enumerate(("published", "tuned", "augmented")):
            values = [scale * r[model][k] for r in rows]
            at = np.arange(len(names)) + 0.27 * (i - 1)
            axes.bar(at, values, width=0.25, color=COLOURS[model], label=f"{model}, mean {np.mean(values):.3g}")
        axes.set_ylabel(unit)
        axes.spines[["top", "right"]].set_visible(False)
        axes.legend(frameon=False, ncols=3, loc="upper left", fontsize=9)
        axes.set_ylim(0, 1.25 * axes.get_ylim()[1])
    both[1].set_xticks(range(len(names)), names, rotation=90, fontsize=8)
    both[0].set_title("Pushes left out of the training: mean error of the predicted end pose", fontsize=11)
    figure.savefig(file, dpi=150)
    plt.close(figure)


def _example(table: Table, shape: Shape, learned: Learned, bodies: dict[str, Object]) -> tuple[int, dict[str, np.ndarray]]:
    """A push for which the tuned simulator's error is at the upper quartile, and the end poses by model."""
    own, net = learned.parameters_of(table.surface, shape), learned.network_of(table.surface, table.shape)
    surface = learned.parameters.get(table.surface, learned.parameters[""])
    ends = {
        "true": table.after,
        "tuned": predict(table, learned.frames, bodies, surface, None),
        "augmented": predict(table, learned.frames, bodies, own, net),
    }
    wrong = np.linalg.norm(ends["tuned"][:, :2] - table.after[:, :2], axis=1) / 4e-3
    wrong = wrong + np.abs(wrapped(ends["tuned"][:, 2] - table.after[:, 2])) / 0.08
    return int(np.argsort(wrong)[int(0.75 * len(wrong))]), ends


def ends(file: Path, shapes: dict[str, Shape], tables: list[Table], learned: Learned, bodies: dict[str, Object]) -> None:
    """Left: an object with its points on the ground. Others: pushes left out of the training, with true and predicted ends."""
    wanted = [t for t in tables if t.shape in ("hex", "ellip2", "tri3")]
    chosen = list({t.shape: t for t in reversed(wanted)}.values()) or tables[:1]
    figure, panels = plt.subplots(1, 1 + len(chosen), figsize=(4.0 * (1 + len(chosen)), 4.4), layout="constrained")
    shape = shapes[chosen[0].shape]
    _outline(panels[0], shape, np.zeros(3), COLOURS["true"], face="#e8eaed")
    panels[0].plot(*(1e3 * grid(shape.outline)).T, "o", color="#c0392b", markersize=5)
    panels[0].set_title(f"{shape.name}: points on the ground, 2 cm apart", fontsize=10)
    for axes, table in zip(panels[1:], chosen, strict=True):
        k, poses = _example(table, shapes[table.shape], learned, bodies)
        _outline(axes, shapes[table.shape], table.before[k], "#b8bec5", "start", face="#f3f4f5")
        for name, pose in poses.items():
            style = {"linewidth": 2.2} if name == "true" else {"linewidth": 1.6, "linestyle": "--"}
            _outline(axes, shapes[table.shape], pose[k], COLOURS[name], name, **style)
        way = 1e3 * np.stack([table.tip_before[k], table.tip_after[k]])
        axes.annotate("", way[1], way[0], arrowprops={"arrowstyle": "->", "color": "black", "linewidth": 1.2})
        axes.add_patch(plt.Circle(tuple(way[1]), 1e3 * RADIUS, color="black", fill=True, alpha=0.8))
        axes.set_title(f"{table.name}", fontsize=10)
        axes.legend(frameon=False, fontsize=8, loc="best")
    for axes in panels:
        axes.set_aspect("equal")
        axes.set_xlabel("mm")
        axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(file, dpi=150)
    plt.close(figure)


def trajectory(
    file: Path, recorded: Path, shapes: dict[str, Shape], learned: Learned, bodies: dict[str, Object], speed: float = 0.02
) -> None:
    """One push in full: the recorded path of an object, and those of the tuned and the augmented simulator.

    The surface's network has not met this object there. The push was faster; slow sliding depends on the way alone, so it is
    simulated at a speed of the training.
    """
    import h5py

    with h5py.File(recorded) as data:
        surface, shape = str(data.attrs["surface"]), str(data.attrs["shape"])
        pose, tip = (np.asarray(data[name], float)[:, 1:] for name in ("object_pose", "tip_pose"))
    pose = np.column_stack([pose[:, :2] - CENTRE, pose[:, 2]])
    tip = tip[:, :2] - CENTRE
    table = Table(surface, shape, speed, pose[:1], pose[-1:], tip[:1], tip[-1:], pose[-1:])
    frames = calibrate(shapes, [table], learned.frames)
    surfaces, own = learned.parameters[surface], learned.parameters_of(surface, shapes[shape])
    models = {"tuned": (surfaces, None), "augmented": (own, learned.network_of(surface, shape))}
    some = batch(table, frames)
    figure, axes = plt.subplots(figsize=(6.4, 6.0), layout="constrained")
    _outline(axes, shapes[shape], pose[0], "#b8bec5", "start")
    paths = {"true": pose}
    for name, (parameters, net) in models.items():
        q = np.asarray(path(bodies[shape], parameters, net, some.q, some.qd, some.dt), float)[0, :, 2:]
        paths[name] = frames.measured(table, q)
    for name, way in paths.items():
        label = "recorded" if name == "true" else name
        axes.plot(*(1e3 * way[:, :2]).T, color=COLOURS[name], linewidth=2)
        axes.plot(*(1e3 * way[-1, :2]), "o", color=COLOURS[name])
        _outline(axes, shapes[shape], way[-1], COLOURS[name], f"{label}, turned by {way[-1, 2] - way[0, 2]:.2f} rad",
                 face=COLOURS[name] + "18", linewidth=1.6)  # fmt: skip
    axes.annotate("", 1e3 * tip[-1], 1e3 * tip[0], arrowprops={"arrowstyle": "->", "color": "black", "linewidth": 1.2})
    axes.text(*(1e3 * tip[0]), " tip", fontsize=9)
    axes.set_aspect("equal")
    axes.set_xlabel("x in mm")
    axes.set_ylabel("y in mm")
    axes.spines[["top", "right"]].set_visible(False)
    axes.set_title(f"A push of '{shape}' on {surface}, a pair left out of all training", fontsize=11)
    axes.legend(frameon=False, fontsize=9)
    figure.savefig(file, dpi=150)
    plt.close(figure)


def convergence(table: Table, learned: Learned, bodies: dict[str, Object], counts: tuple[int, ...] = (20, 40, 80)) -> str:
    """How far end poses are from those of many steps, as a sentence; the tuned simulator."""
    table = table.take(np.arange(min(len(table), 128)))
    q, qd = starts(table, learned.frames)
    duration = float(np.linalg.norm(table.tip_after - table.tip_before, axis=1).mean() / table.speed)
    parameters = learned.parameters[table.surface]

    def end(steps: int) -> np.ndarray:
        dt = jnp.asarray(duration / steps, jnp.float32)
        some = Batch(jnp.asarray(q), jnp.asarray(qd), jnp.asarray(q[:, 2:]), dt)
        return np.asarray(path(bodies[table.shape], parameters, None, some.q, some.qd, some.dt, steps), float)[:, -1, 2:]

    fine, parts = end(320), []
    for steps in counts:
        away = end(steps) - fine
        parts.append(
            f"{steps}: {1e3 * np.linalg.norm(away[:, :2], axis=1).mean():.2f} mm {np.abs(away[:, 2]).mean():.4f} rad"
        )
    return (
        f"Steps in a push, mean distance of the end poses from those of 320 steps ({table.name}): " + ", ".join(parts) + "."
    )
