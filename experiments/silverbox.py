"""Silverbox, an electronic Duffing oscillator (Wigren & Schoukens 2013, public benchmark): free runs on the three test records.

1. The structure (`_silverbox.Oscillator`: a spring that hardens, damping, weights of the input), fitted to the first 85 % of the
   training record by multiple shooting and Levenberg-Marquardt.
2. A network of twelve neurons on its acceleration, trained likewise.
3. A black box in state space by Adam, for comparison.

The rest of the training record chooses the weights (the best step). The test records are only scored; their first 50 samples
find the start and do not count. The full arrow swings further than anything in training. `--evaluate FILE` scores the saved
model on any file of the same layout.
"""

import argparse
import sys
from pathlib import Path
from typing import Any, NamedTuple

import h5py
import jax
import numpy as np
from _data import recording
from _experiment import Missing, Result, at_most, run
from _silverbox import FORCE, INPUTS, PAST, RATE, Oscillator, Swing, inputs
from matplotlib.figure import Figure
from rich.progress import Progress

import flexor as fx

jax.config.update("jax_enable_x64", True)

FILE, SKIPPED = "silverbox.h5", 50
TARGETS = {"multisine": 0.5, "arrow_full": 2.0, "arrow_no_extrapolation": 0.5}  # mV
CLASSES = [Oscillator, Swing]
PUBLISHED = {"GRU (Champneys et al. 2024)": (1.49, 2.80, 0.95), "SUBNET (the benchmark's table)": (0.36, 1.4, 0.32)}


class Plan(NamedTuple):
    """How much is done: steps on stretches of 20 and 250 samples, with the network, and of Adam."""

    first: int = 12
    second: int = 10
    network: int = 15
    box: int = 1000
    rows: int = 0  # of the training record; 0: all
    test: int = 0


QUICK = Plan(first=5, second=3, network=2, box=10, rows=9000, test=3000)


def series(path: Path, part: str, rows: int = 0) -> fx.ode.Series:
    """A record by its name in the file's attributes; `rows` > 0: its beginning."""
    with h5py.File(path) as file:
        a, b = (int(i) for i in file.attrs[part])
        u, y = (np.asarray(file[name][:], float) for name in ("u", "y"))
    b = min(a + rows, b) if rows else b
    return fx.ode.Series(np.arange(a, b) / RATE, y[a:b, None], inputs(u)[a:b], held=False, name=part)


def millivolts(ode: fx.ode.Ode, record: fx.ode.Series) -> float:
    """Root mean square error of a free run, without the first samples."""
    return 1e3 * float(np.sqrt(np.mean((ode.simulate(record) - record.values)[SKIPPED:] ** 2)))


def levenberg(length: int, stride: int, steps: int, decay: float = 0.0) -> fx.ode.Training:
    return fx.ode.Training(
        length=length, stride=stride, steps=steps, decay=decay, method="levenberg-marquardt", every=1
    )  # fmt: skip


def fitted(start: Any, record: fx.ode.Series, name: str, out: Path, *stages: fx.ode.Training) -> fx.ode.Ode:
    """Trained on the first 85 %, chosen on the rest, with check points."""
    cut = round(0.85 * len(record.time))
    judge = [record.between(cut, len(record.time))]
    with Progress(transient=True, disable=not sys.stderr.isatty()) as bar:
        task = bar.add_task(name, total=sum(s.steps for s in stages))
        return fx.ode.train(
            [record.between(0, cut)], fx.ode.Recipe(stages=stages), start=start, validation=judge,
            out=out / "checkpoints" / name, progress=lambda done, total, error: bar.update(task, completed=done),
        )  # fmt: skip


def measure(options: Any) -> Result:
    if options.evaluate is not None:
        return evaluate(options)
    plan, path = QUICK if options.quick else Plan(), recording(FILE)
    record, out = series(path, "train", plan.rows), options.out / ("quick" if options.quick else "full")
    method = fx.ode.RungeKutta4(2)
    known = fitted(
        fx.ode.Parts(Oscillator.guess(), Swing.guess(), method), record, "structure", out,
        levenberg(20, 300, plan.first), levenberg(250, 1000, plan.second),
    )  # fmt: skip
    system = fx.ode.Corrected.build(
        known.system, (1.0, 0.7), (FORCE,) * INPUTS, (0.0, 30.0), width=12, key=jax.random.key(0)
    )
    network = fitted(
        fx.ode.Parts(system, known.parts.encoder, method), record, "network", out, levenberg(250, 1000, plan.network, 1e-9)
    )
    blank = fx.ode.Recipe(states=2, width=16, past=PAST, time=2 / RATE, substeps=2).build([record])
    adam = fx.ode.Training(length=60, stride=20, steps=plan.box, batch=64, rate=5e-3, every=max(plan.box // 20, 1))
    box = fitted(blank, record, "black_box", out, adam)
    models = {"structure, no network": known, "structure and network": network, "black box": box}
    network.save(options.out / ("quick_model" if options.quick else "model"), classes=CLASSES)
    tests = {name: series(path, f"test_{name}", plan.test) for name in TARGETS}
    rows = [{"model": name, **_errors(made, tests)} for name, made in models.items()]
    figure(models, tests["arrow_full"]).savefig(options.out / "silverbox.png", dpi=150)
    remarks = [f"published, mV: {name} {', '.join(map(str, values))}" for name, values in PUBLISHED.items()]
    return Result(rows, _checks(rows[1]), remarks)


def _errors(made: fx.ode.Ode, tests: dict[str, fx.ode.Series]) -> dict[str, float]:
    return {f"{name}, mV": millivolts(made, test) for name, test in tests.items()}


def _checks(row: dict[str, Any]) -> list[Any]:
    return [at_most(f"structure and network, {name}, mV", row[f"{name}, mV"], target) for name, target in TARGETS.items()]


def evaluate(options: Any) -> Result:
    """The saved model on another file."""
    if not options.model.is_dir():
        raise Missing(f"there is no model '{options.model}': run the experiment first, or name it by --model.")
    if not options.evaluate.is_file():
        raise Missing(f"there is no file '{options.evaluate}'.")
    made = fx.open(options.model, classes=CLASSES)
    row = {"model": options.model.name, **_errors(made, {n: series(options.evaluate, f"test_{n}") for n in TARGETS})}
    return Result([row], _checks(row), ())


def figure(models: dict[str, fx.ode.Ode], test: fx.ode.Series) -> Figure:
    """The growing test record, and the errors on it."""
    page = Figure(figsize=(10, 5), layout="constrained")
    upper, lower = page.subplots(2, 1, sharex=True)
    time = test.time - test.time[0]
    upper.plot(time, test.values[:, 0], "k", lw=0.3)
    for name, made in models.items():
        lower.plot(time, 1e3 * (made.simulate(test) - test.values)[:, 0], lw=0.3, label=name)
    upper.set_ylabel("output (V)")
    lower.set(ylabel="error (mV)", xlabel="time (s)", ylim=(-10, 10))
    lower.legend(fontsize=8)
    return page


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--evaluate", type=Path, metavar="FILE", help="score the saved model on this file")
    parser.add_argument("--model", type=Path, default=Path("out/silverbox/model"), metavar="FOLDER", help="a saved model")


if __name__ == "__main__":
    run(
        "How well is an electronic Duffing oscillator simulated, by a neural ODE on a known structure and by a black box?",
        measure,
        options,
    )
