"""The report of an identification: what was fitted, how well it predicts, how sure it is, and what the data do not
determine."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure as Drawing

from flexor.identify import Fit
from flexor.viz.colours import SERIES
from flexor.viz.plots import styled
from flexor.viz.report import AbstractBlock, Code, Figure, Interval, Report, Section, Table

BEFORE, AFTER = SERIES[1], SERIES[0]
DOT: dict[str, Any] = {"markerfacecolor": "none", "markeredgecolor": "#7a8793", "markeredgewidth": 0.9, "zorder": 3}
DOTS = 14  # measured points that a panel shows
WIDTH = 8.6
SHOWN_COLUMNS, SHOWN_SEGMENTS, SHOWN_CORRELATIONS = 6, 3, 40


def identification_report(fit: Fit, facts: Sequence[tuple[str, str]] = (), files: Sequence[str] = ()) -> Report:
    """The page for a fit. `facts` are further pairs under the title, `files` the names of what was written beside it."""
    own = [
        ("robot", fit.model.topology.name),
        ("segments", f"{fit.training.segments} to train, {fit.held_out.segments if fit.held_out else 0} held out"),
        ("free numbers", str(sum(v.size for v in fit.values.values()))),
        ("took", f"{fit.seconds:.0f} s"),
    ]
    return Report(
        f"Identification of {fit.model.topology.name}",
        _lead(fit),
        [*own, *facts],
        [
            _errors(fit),
            _prediction(fit),
            *_parameters(fit),
            *_networks(fit),
            _unknown(fit),
            _search(fit),
            *_files(fit, files),
        ],
    )


def _lead(fit: Fit) -> str:
    state = "The search" if fit.ok else "The search failed: it"
    text = f"{state} {_verb(fit.message)}."
    judged, first = (fit.held_out, fit.held_out_before) if fit.held_out is not None else (fit.training, fit.before)
    assert judged is not None
    assert first is not None
    on = "On held-out segments" if fit.held_out is not None else "On the segments it was trained on (none were held out)"
    change = f"the error of the prediction went from {first.weighted:.3g} to {judged.weighted:.3g}"
    return f"{text} {on}, {change} in units of the {fit.unit}."


def _verb(message: str) -> str:
    return message if message.startswith(("converged", "stopped")) else f"ended: {message}"


def _errors(fit: Fit) -> Section:
    """Errors of every column in its own unit, and the remarks."""
    rows, judged = [], fit.held_out is not None and fit.held_out_before is not None
    for column in fit.curves.columns:
        row: list[Any] = [column, fit.before.columns[column], fit.training.columns[column]]
        if fit.held_out is not None and fit.held_out_before is not None:
            row += [fit.held_out_before.columns[column], fit.held_out.columns[column]]
        rows.append(row)
    heads = ["column", "training, before", "after", *(("held out, before", "after") if judged else ())]
    text = "Root mean square of prediction less measurement, in the unit of the column (rad, m, per second; N m or A)."
    remarks = "\n\n".join(f"Note: {r}." for r in fit.remarks)
    return Section("How well it predicts", f"{text}\n\n{remarks}", [Table(heads, rows)])


def _prediction(fit: Fit) -> Section:
    c = fit.curves
    pool = np.flatnonzero(c.held_out) if c.held_out.any() else np.arange(len(c.held_out))
    error = np.array(
        [np.nanmean((c.after[s] - c.measured[s]) ** 2) if np.isfinite(c.measured[s]).any() else 0.0 for s in pool]
    )
    order = np.argsort(error)
    chosen = pool[order[np.unique(np.linspace(0, len(pool) - 1, min(SHOWN_SEGMENTS, len(pool))).round().astype(int))]]
    what = "held out" if c.held_out.any() else "of the training data, since none were held out"
    picked = "the best, the median and the worst predicted" if len(chosen) == SHOWN_SEGMENTS else "all there are"
    text = f"Segments {what}: {picked}. {_how(fit)}"
    return Section("Prediction and measurement", text, [Figure(comparison(fit, chosen))])


def _how(fit: Fit) -> str:
    if any(column.startswith(("u.", "force.")) for column in fit.curves.columns):
        return "At every instant the motors' readings are predicted from the measured motion; nothing is simulated."
    return "Each is simulated from its start to its end, without correction."


def comparison(fit: Fit, segments: Sequence[int] | np.ndarray) -> Drawing:
    """Measured, predicted before and predicted after: a column of panels for each segment, a row for each measured column."""
    c = fit.curves
    rows, titles = min(len(c.columns), SHOWN_COLUMNS), ("best", "middling", "worst")
    with styled():
        figure = Drawing(figsize=(WIDTH, 0.7 + 1.75 * rows), layout="constrained")
        panels = figure.subplots(rows, len(segments), squeeze=False, sharex="col")
        for i in range(rows):
            for j, s in enumerate(segments):
                axes, seen = panels[i, j], np.isfinite(c.measured[s, :, i])
                time = c.time[s, seen]
                axes.plot(time, c.before[s, seen, i], color=BEFORE, linestyle=(0, (4, 2)), label="before")
                axes.plot(time, c.after[s, seen, i], color=AFTER, label="after")
                some = slice(None, None, max(1, len(time) // DOTS))
                axes.plot(time[some], c.measured[s, seen, i][some], "o", markersize=3.2, label="measured", **DOT)
                axes.set_ylim(*_limits(c.measured[s, :, i], c.after[s, :, i]))
                if i == 0:
                    axes.set_title(c.logs[s] if len(titles) != len(segments) else f"{titles[j]}: {c.logs[s]}")
                if j == 0:
                    axes.set_ylabel(c.columns[i])
        for axes in panels[-1]:
            axes.set_xlabel("time (s)")
        figure.legend(*panels[0, 0].get_legend_handles_labels(), loc="outside upper right", ncols=3, fontsize=8)
    return figure


def _limits(*values: np.ndarray) -> tuple[float, float]:
    """The measurements and the final prediction fill the panel; a first prediction far off may leave it."""
    together = np.concatenate([v[np.isfinite(v)] for v in values])
    low, high = float(together.min()), float(together.max())
    pad = 0.12 * (high - low) or 1.0
    return low - pad, high + pad


def _parameters(fit: Fit) -> list[Section]:
    if not fit.values:
        return []
    rows = [
        [r["parameter"], r["start"], r["estimate"], *between(r["start"], r["low"], r["estimate"], r["high"])]
        for r in fit.rows()
    ]
    text = (
        "Intervals hold the true value with a probability of 90 %, if the model is correct. In the drawings the dot is the "
        "estimate, the bar its interval, the line across the value at the start; each has its own scale. SI units."
    )
    return [Section("Parameters", text, [Table(["parameter", "start", "estimate", "90 % interval", ""], rows)])]


def between(start: float, low: float | None, estimate: float, high: float | None) -> tuple[str, Interval | str]:
    """The interval in words and as a drawing."""
    if low is None or high is None:
        return "none", ""
    return f"{low:.4g} to {high:.4g}", Interval(start, low, estimate, high)


def _networks(fit: Fit) -> list[Section]:
    augmentation = fit.sim.augmentation
    if augmentation is None:
        return []
    rows = [
        [e.output, ", ".join(e.inputs), f"{type(e.net).__name__}", type(e.mode).__name__, type(e.over).__name__]
        for e in augmentation.entries
    ]
    text = "Networks among the quantities of a step: what they write, what they read."
    return [Section("Augmentation", text, [Table(["output", "inputs", "network", "mode", "over"], rows)])]


def _unknown(fit: Fit) -> Section:
    blocks: list[AbstractBlock] = []
    if fit.posterior is None:
        text = "This needs intervals; the notes above say why there are none."
    elif fit.posterior.unidentifiable:
        found = [f"{s[0].upper()}{s[1:]}." for s in fit.posterior.sentences()]
        text = (
            "Combinations of parameters that could change by more than their own size without the logs noticing. Other motions, "
            "a prior, or fewer free parameters would settle them.\n\n" + "\n\n".join(found)
        )
    else:
        text = "Every combination of the free parameters is determined to better than its own size."
    if fit.posterior is not None and 1 < len(fit.posterior.labels) <= SHOWN_CORRELATIONS:
        caption = "Correlation of the estimates: parameters with a deep colour vary together and are hard to distinguish."
        figure = correlations(fit)
        blocks.append(Figure(figure, caption, width=round(100 * figure.get_figwidth())))
    return Section("What the data do not determine", text, blocks)


def correlations(fit: Fit) -> Drawing:
    """Correlation matrix of the estimates."""
    assert fit.posterior is not None
    deviation = np.sqrt(np.diag(fit.posterior.covariance))
    matrix = fit.posterior.covariance / np.outer(deviation, deviation)
    labels, n = fit.posterior.labels, len(matrix)
    with styled():
        side = min(6.0, max(0.36 * n, 1.2))
        figure = Drawing(figsize=(side + 3.0, side + 0.5), layout="constrained")
        axes = figure.add_subplot()
        image = axes.imshow(matrix, cmap="RdBu_r", vmin=-1, vmax=1)
        axes.set_xticks(range(n), [str(i + 1) for i in range(n)])
        axes.set_yticks(range(n), [f"{label}  {i + 1}" for i, label in enumerate(labels)], fontsize=7)
        axes.grid(False)
        axes.tick_params(length=0)
        for spine in axes.spines.values():
            spine.set_visible(False)
        if n <= 8:
            for i, row in enumerate(matrix):
                for j, x in enumerate(row):
                    colour = "#ffffff" if abs(x) > 0.6 else "#20262d"
                    axes.text(j, i, f"{x:.2f}", ha="center", va="center", fontsize=7, color=colour)
        figure.colorbar(image, ax=axes, shrink=0.8).outline.set_visible(False)  # type: ignore[operator]
    return figure


def _search(fit: Fit) -> Section:
    blocks = [Figure(history(fit))] if len(fit.history) > 1 else []
    return Section("The search", f"{fit.message[:1].upper()}{fit.message[1:]}.", blocks)


def history(fit: Fit) -> Drawing:
    """Cost after every step."""
    cost = np.asarray(fit.history)
    with styled():
        figure = Drawing(figsize=(WIDTH, 2.2), layout="constrained")
        axes = figure.add_subplot()
        axes.plot(np.arange(1, len(cost) + 1), np.where(np.isfinite(cost), cost, np.nan), "o-", markersize=3, color=AFTER)
        axes.set_yscale("log")
        axes.set_xlabel("step of the search")
        axes.set_ylabel("cost")
    return figure


def _files(fit: Fit, files: Sequence[str]) -> list[Section]:
    if "simulator" not in files:
        return []
    precise = fit.sim.dt.dtype == np.float64
    lines = ["import jax", 'jax.config.update("jax_enable_x64", True)', ""] if precise else []
    lines += ["import flexor as fx", "", 'sim = fx.open("simulator")', "trajectory = sim.rollout(sim.reset(), steps=100)"]
    text = f"Beside this page: {', '.join(files)}. In its folder:"
    return [Section("Use it", text, [Code("\n".join(lines))])]
