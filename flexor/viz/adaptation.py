"""The page of an adaptation: estimates with their bands, innovations, alarms, and what became of the samples."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure as Drawing

from flexor.adapt.adapter import Adapter
from flexor.adapt.history import History
from flexor.viz.colours import SERIES
from flexor.viz.plots import styled
from flexor.viz.report import AbstractBlock, Figure, Interval, Report, Section, Table

PANELS, WIDTH = 8, 8.6
NINETY = 1.645  # deviations on either side that hold 90 % of a normal distribution


def adaptation_report(adapter: Adapter, history: History, facts: Sequence[tuple[str, str]] = ()) -> Report:
    """The page."""
    robot = adapter.sim.model.topology.name
    own = [
        ("robot", robot),
        ("estimator", type(adapter.estimator).__name__),
        ("lasted", f"{adapter.time:.1f} s"),
        ("samples", f"{adapter.stream.counts['accepted']} used"),
    ]
    lead = "; ".join(f"{e}" for e in adapter.events) or "No change was noticed"
    return Report(
        f"Adaptation of {robot}",
        f"{lead[:1].upper()}{lead[1:]}.",
        [*own, *facts],
        [_estimates(adapter, history), _innovations(adapter, history), _samples(adapter)],
    )


def _estimates(adapter: Adapter, history: History) -> Section:
    rows: list[list[Any]] = []
    for label in history.labels:
        value, deviation = (float(x[-1]) for x in history.series(label))
        low, high = value - NINETY * deviation, value + NINETY * deviation
        start = float(history.series(label)[0][0])
        rows.append([label, start, value, f"{low:.4g} to {high:.4g}", Interval(start, low, value, high)])
    shown = _most_certain(history)
    marks = {e.time: str(e) for e in adapter.events}
    text = "Bands hold the true value with a probability of 90 %, if the model is correct. Dotted lines: changes that were told."
    blocks: list[AbstractBlock] = [Figure(bands(history, shown, marks))]
    blocks.append(Table(["parameter", "start", "at the end", "90 % interval", ""], rows))
    return Section("Estimates", text, blocks)


def _most_certain(history: History) -> list[str]:
    """The numbers that the stream says most about: the deviation fell by the largest factor."""
    gain = {}
    for label in history.labels:
        deviation = history.series(label)[1]
        gain[label] = float(deviation[-1] / max(deviation[0], 1e-300))
    return sorted(sorted(gain, key=lambda n: gain[n])[:PANELS], key=history.labels.index)


def bands(
    history: History, labels: Sequence[str], marks: Mapping[float, str], truth: Mapping[str, Any] | None = None
) -> Drawing:
    """A panel for each number: the estimate, its band of 90 %, the times in `marks`, and the `truth` where it is known."""
    time, columns = history.time, 1 if len(labels) == 1 else 2
    rows = -(-len(labels) // columns)
    with styled():
        figure = Drawing(figsize=(WIDTH, 0.5 + 2.0 * rows), layout="constrained")
        panels = figure.subplots(rows, columns, squeeze=False, sharex=True)
        for axes, label in zip(panels.ravel(), labels, strict=False):
            value, deviation = history.series(label)
            low, high = value - NINETY * deviation, value + NINETY * deviation
            axes.fill_between(time, low, high, color=SERIES[0], alpha=0.2, linewidth=0)
            axes.plot(time, value, color=SERIES[0], label="estimate")
            if truth is not None and label in truth:
                axes.plot(*truth[label], color=SERIES[1], linestyle=(0, (4, 2)), label="truth")
                axes.legend(fontsize=8)
            for at in marks:
                axes.axvline(at, color="#7a8793", linestyle=":", linewidth=1)
            axes.set_title(label)
            axes.set_ylim(*_limits(value, deviation))
        for axes in panels.ravel()[len(labels) :]:
            axes.set_visible(False)
        for axes in panels[-1]:
            axes.set_xlabel("time (s)")
    return figure


def _limits(value: np.ndarray, deviation: np.ndarray) -> tuple[float, float]:
    """The estimates and most of their bands; those of the first guess and after a change may leave the panel."""
    band = float(np.median(deviation)) * 3
    low, high = float(value.min()) - band, float(value.max()) + band
    pad = 0.1 * (high - low) or 1.0
    return low - pad, high + pad


def _innovations(adapter: Adapter, history: History) -> Section:
    with styled():
        figure = Drawing(figsize=(WIDTH, 2.4), layout="constrained")
        axes = figure.add_subplot()
        axes.semilogy(history.time, np.maximum(history.surprise, 1e-3), color=SERIES[0], linewidth=1)
        axes.axhline(1.0, color="#7a8793", linewidth=1)
        for alarm in adapter.alarms:
            axes.axvline(alarm.time, color=SERIES[1], linestyle=":", linewidth=1)
        axes.set_xlabel("time (s)")
        axes.set_ylabel("mean square")
    rows = [[a.time, a.since, str(a).split(", ", 1)[1]] for a in adapter.alarms]
    text = "What was measured, less what was predicted, in the deviations that were expected: about one while the model is right."
    blocks: list[AbstractBlock] = [Figure(figure, "Dotted lines are alarms.")]
    if rows:
        blocks.append(Table(["alarm at (s)", "off since (s)", "predictions were"], rows))
    return Section("Innovations", text, blocks)


def _samples(adapter: Adapter) -> Section:
    rows = [[kind, count] for kind, count in adapter.stream.counts.items()]
    return Section("Samples", "What was used, and what was left out or bridged.", [Table(["kind", "number"], rows)])
