"""Plots with matplotlib, without pyplot and its global state: every function returns a Figure."""

import io
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import matplotlib
import matplotlib.rcsetup
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from flexor.model.topology import Topology
from flexor.solvers.trajectory import Trajectory
from flexor.taps import TAPS
from flexor.viz.colours import SERIES

# Placeholders that `inline_svg` turns into the page's own colours, so that a figure follows light and dark.
_INK, _GRID = "#1d2732", "#c4cbd3"
_STYLE: Any = {
    "font.size": 9,
    "axes.edgecolor": _INK,
    "axes.labelcolor": _INK,
    "axes.titlesize": 10,
    "axes.titlecolor": _INK,
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.linewidth": 0.8,
    "axes.prop_cycle": matplotlib.rcsetup.cycler(color=SERIES),
    "grid.color": _GRID,
    "grid.linewidth": 0.6,
    "lines.linewidth": 1.5,
    "legend.frameon": False,
    "legend.labelcolor": _INK,
    "text.color": _INK,
    "xtick.color": _INK,
    "ytick.color": _INK,
    "svg.fonttype": "none",
}
_CURVES = len(SERIES)  # of one panel: a colour for each


@contextmanager
def styled() -> Iterator[None]:
    """Within this context figures are made in the style of the pages."""
    with matplotlib.rc_context(_STYLE):
        yield


def lines(
    time: Any,
    series: Mapping[str, Any],
    *,
    ylabel: str,
    title: str = "",
    log: bool = False,
    colours: Mapping[str, str] | None = None,
    size: tuple[float, float] = (6.4, 2.6),
) -> Figure:
    """Curves over time in s, by label; each may bring its own time as a pair (time, values), and have its own colour."""
    with styled():
        figure = Figure(figsize=size, layout="constrained")
        axes = figure.add_subplot()
        for i, (label, values) in enumerate(series.items()):
            t, y = values if isinstance(values, tuple) else (time, values)
            # later curves are dashed, so that those that lie on one another are all seen
            dash = (0, (1, 0)) if i == 0 else (0, (5 - min(i, 3), 2))
            colour = (colours or {}).get(label, SERIES[i % len(SERIES)])
            axes.plot(np.asarray(t), np.asarray(y), label=label, color=colour, linestyle=dash)
        _finish(axes, ylabel, title, log)
        axes.set_xlabel("time (s)")
        if len(series) > 1:
            axes.legend(ncols=min(len(series), 4), fontsize=8)
    return figure


def trajectory_figure(trajectory: Trajectory) -> Figure:
    """Coordinates, velocities, controls and the recorded quantities over time, with a legend beside every panel.

    A kind with more curves than there are colours is spread over several panels.
    """
    time = np.asarray(trajectory.time, float)
    panels = [panel for kind in _panels(trajectory) for panel in _spread(*kind)]
    longest = max(len(label) for _, _, labels, _ in panels for label in labels)
    with styled():
        figure = Figure(figsize=(6.8 + 0.075 * longest, 0.5 + 1.75 * len(panels)), layout="constrained")
        all_axes = np.atleast_1d(figure.subplots(len(panels), 1, sharex=True))
        for axes, (title, unit, labels, values) in zip(all_axes, panels, strict=True):
            t = time if len(values) == len(time) else time[1:]
            for i, label in enumerate(labels):
                axes.plot(t, values[:, i], label=label, color=SERIES[i % len(SERIES)], linewidth=1.2)
            _finish(axes, unit, title, log=False)
            axes.legend(loc="center left", bbox_to_anchor=(1.0, 0.5), fontsize=8)
        all_axes[-1].set_xlabel("time (s)")
    return figure


Panel = tuple[str, str, Sequence[str], np.ndarray]
"""Title, unit, labels and values (time, n)."""


def _spread(title: str, unit: str, labels: Sequence[str], values: np.ndarray) -> Iterator[Panel]:
    """The same curves in panels of about equal size, none with more than `_CURVES`."""
    count = -(-len(labels) // _CURVES)
    for i, rows in enumerate(np.array_split(np.arange(len(labels)), count)):
        number = f" ({i + 1} of {count})" if count > 1 else ""
        yield title + number, unit, [labels[r] for r in rows], values[:, rows]


def _panels(trajectory: Trajectory) -> Iterator[Panel]:
    """One panel for each kind of quantity, however many curves it has."""
    t = trajectory.topology
    q, qd, u = (np.asarray(x, float) for x in (trajectory.q, trajectory.qd, trajectory.u))
    for names, values, starts, kinds in (
        ([t.q_name(i) for i in range(t.nq)], q, t.q_start, _COORDINATES),
        ([t.dof_name(i) for i in range(t.nv)], qd, t.v_start, _VELOCITIES),
    ):
        for (title, unit), rows in _groups(t, starts, kinds).items():
            yield title, unit, [names[i] for i in rows], values[:, rows]
    if t.nu and np.any(u):
        yield "controls", "", [a.name for a in t.actuators], u
    for name, tapped in trajectory.taps.items():
        flat = np.asarray(tapped, float).reshape(len(tapped), -1)
        if flat.shape[1]:
            yield name, TAPS[name].unit, [f"[{i}]" for i in range(flat.shape[1])], flat


_Kinds = Mapping[str, Sequence[tuple[str, str, int]]]
_COORDINATES: _Kinds = {
    "free": [("position", "m", 3), ("orientation (quaternion)", "", 4)],
    "ball": [("orientation (quaternion)", "", 4)],
    "hinge": [("joint angles", "rad", 1)],
    "slide": [("joint positions", "m", 1)],
}
_VELOCITIES: _Kinds = {
    "free": [("velocity", "m/s", 3), ("angular velocity", "rad/s", 3)],
    "ball": [("angular velocity", "rad/s", 3)],
    "hinge": [("joint velocities", "rad/s", 1)],
    "slide": [("joint velocities, slides", "m/s", 1)],
}
"""For each kind of joint: title and unit of the panels its numbers go to, and how many."""


def _groups(t: Topology, starts: Iterable[int], kinds: _Kinds) -> dict[tuple[str, str], list[int]]:
    """Columns of q or qd by title and unit of their panel."""
    groups: dict[tuple[str, str], list[int]] = {}
    for joint, first in zip(t.joints, starts, strict=True):
        for title, unit, count in kinds[joint.kind]:
            groups.setdefault((title, unit), []).extend(range(int(first), int(first) + count))
            first += count
    return groups


def _finish(axes: Axes, ylabel: str, title: str, log: bool) -> None:
    axes.set_ylabel(ylabel)
    axes.set_title(title)
    axes.margins(x=0.01)
    if log:
        axes.set_yscale("log")


def inline_svg(figure: Figure) -> str:
    """The figure as an SVG element for an HTML page: transparent, in the page's colours, without external references."""
    buffer = io.StringIO()
    with matplotlib.rc_context({**_STYLE, "svg.hashsalt": str(id(figure))}):
        figure.savefig(buffer, format="svg", transparent=True, metadata=dict.fromkeys(("Date", "Creator", "Format", "Type")))
    text = buffer.getvalue()
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
    text = re.sub(r'\s+xmlns(:\w+)?="[^"]*"', "", text).replace("xlink:href", "href")
    text = re.sub(r'<svg\s[^>]*?(viewBox="[^"]*")[^>]*>', r'<svg class="plot" role="img" \1>', text, count=1)
    used = set(re.findall(r"#([\w-]+)[\")]", text))
    text = re.sub(r'\s+id="([\w-]+)"', lambda m: m.group(0) if m.group(1) in used else "", text)
    return text.replace(_INK, "currentColor").replace(_GRID, "var(--line)")
