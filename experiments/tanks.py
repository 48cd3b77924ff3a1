"""Two tanks in cascade that run over (Schoukens & Noel's public benchmark): a free run on the test record.

1. The structure (`_tanks.Tanks`: Bernoulli's law, overflow, a sensor that saturates), its eleven numbers and the state's encoder
   fitted to the first three quarters of the estimation record by multiple shooting and Levenberg-Marquardt.
2. A network of six neurons on its rates, from ten seeds, trained likewise with a ridge.
3. A black box in state space from six seeds, for comparison.

The last quarter of the estimation record chooses the weights of every training (the best step). The test record is only scored;
its first 5 outputs find the start and do not count. `--evaluate FILE` scores the saved models on any file of the same layout.
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
from _tanks import PAST, STEP, Levels, Tanks
from matplotlib.figure import Figure
from rich.progress import Progress

import flexor as fx

jax.config.update("jax_enable_x64", True)

FILE, TARGET = "tanks.h5", 0.30
CUT = 768  # samples to fit; the others of the estimation record choose
CLASSES = [Tanks, Levels]
PUBLISHED = {"GRU (Champneys et al. 2024)": 0.396, "CT-SUBNET, median of 17, chosen on half of the test": 0.2985}


class Plan(NamedTuple):
    """How much is done: steps on stretches of 100, 400 and, with the network, 200 samples."""

    seeds: int = 10
    boxes: int = 6
    first: int = 40
    second: int = 30
    network: int = 30
    box: int = 60
    stride: int = 10


QUICK = Plan(seeds=1, boxes=1, first=4, second=2, network=2, box=2, stride=60)


def series(path: Path, part: str) -> fx.ode.Series:
    """The record "est" or "val"."""
    with h5py.File(path) as file:
        u, y = (np.asarray(file[f"{name}_{part}"][:], float) for name in ("u", "y"))
    return fx.ode.Series(np.arange(len(y)) * STEP, y[:, None], u[:, None], name=part)


def volts(ode: fx.ode.Ode, record: fx.ode.Series) -> float:
    """Root mean square error of a free run, without the first samples."""
    return float(np.sqrt(np.mean((ode.simulate(record) - record.values)[PAST:] ** 2)))


def stage(length: int, steps: int, stride: int, decay: float) -> fx.ode.Training:
    return fx.ode.Training(
        length=length, steps=steps, stride=stride, decay=decay, method="levenberg-marquardt", every=1
    )  # fmt: skip


class Fitting:
    """Trains on the first part of the record, chooses on the last, and keeps check points."""

    def __init__(self, record: fx.ode.Series, out: Path, plan: Plan):
        self.plan, self.out = plan, out
        self.train, self.judge = [record.between(0, CUT)], [record.between(CUT, len(record.time))]

    def __call__(self, start: Any, name: str, *stages: fx.ode.Training) -> fx.ode.Ode:
        made, recipe = start, fx.ode.Recipe(stages=stages)
        with Progress(transient=True, disable=not sys.stderr.isatty()) as bar:
            task = bar.add_task(name, total=sum(s.steps for s in stages))
            made = fx.ode.train(
                self.train, recipe, start=start, validation=self.judge, out=self.out / "checkpoints" / name,
                progress=lambda done, total, error: bar.update(task, completed=done),
            )  # fmt: skip
        return made

    def structure(self) -> fx.ode.Ode:
        """The tanks without a network."""
        p = self.plan
        stages = stage(100, p.first, p.stride, 1e-6), stage(400, p.second, p.stride, 1e-6)
        return self(fx.ode.Parts(Tanks.guess(), Levels.guess()), "structure", *stages)

    def network(self, known: fx.ode.Ode, seed: int) -> fx.ode.Ode:
        """A network on the rates of the tanks."""
        system = fx.ode.Corrected.build(
            known.system, (10.0, 10.0), (6.0,), (0.03, 0.03), width=6, key=jax.random.key(seed)
        )  # fmt: skip
        parts = fx.ode.Parts(system, known.parts.encoder)
        return self(parts, f"network{seed}", stage(200, self.plan.network, self.plan.stride, 1e-5))

    def black_box(self, seed: int) -> fx.ode.Ode:
        """Two states and a network, no structure."""
        start = fx.ode.Recipe(states=2, width=6, past=PAST, time=100.0, seed=seed).build(self.train)
        return self(start, f"black_box{seed}", stage(200, self.plan.box, self.plan.stride, 1e-5))


def measure(options: Any) -> Result:
    if options.evaluate is not None:
        return evaluate(options)
    plan = QUICK if options.quick else Plan()
    path = recording(FILE)
    fitting = Fitting(series(path, "est"), options.out / ("quick" if options.quick else "full"), plan)
    known = fitting.structure()
    networks = [fitting.network(known, seed) for seed in range(plan.seeds)]
    boxes = [fitting.black_box(seed) for seed in range(plan.boxes)]
    folder = options.out / ("quick_models" if options.quick else "models")
    folder.mkdir(parents=True, exist_ok=True)
    for seed, made in enumerate(networks):
        made.save(folder / f"seed{seed}", classes=CLASSES)
    test, judge = series(path, "val"), fitting.judge[0]
    rows = [
        _row("structure, no network", [known], judge, test),
        _row("structure and network", networks, judge, test),
        _row("black box", boxes, judge, test),
    ]
    best = networks[int(np.argmin([volts(m, judge) for m in networks]))]
    figure(known, best, test).savefig(options.out / "tanks.png", dpi=150)
    remarks = [f"published: {name} {value} V" for name, value in PUBLISHED.items()]
    remarks.append(f"the seed that is best on validation has {volts(best, test):.3f} V on the test")
    return Result(
        rows, [at_most("test error of structure and network, V, median", rows[1]["test median, V"], TARGET)], remarks
    )


def _row(name: str, made: list[fx.ode.Ode], judge: fx.ode.Series, test: fx.ode.Series) -> dict[str, Any]:
    chosen, error = ([volts(m, s) for m in made] for s in (judge, test))
    return {
        "model": name, "seeds": len(made), "validation median, V": float(np.median(chosen)),
        "test median, V": float(np.median(error)), "test best, V": min(error), "test worst, V": max(error),
    }  # fmt: skip


def evaluate(options: Any) -> Result:
    """The saved models on another file."""
    folders = sorted(options.model.glob("seed*")) if options.model.is_dir() else []
    if not folders:
        raise Missing(
            f"there are no models in '{options.model}': run the experiment first, or name their folder by --model."
        )
    if not options.evaluate.is_file():
        raise Missing(f"there is no file '{options.evaluate}'.")
    test = series(options.evaluate, "val")
    errors = [volts(fx.open(folder, classes=CLASSES), test) for folder in folders]
    rows = [{"model": folder.name, "test, V": error} for folder, error in zip(folders, errors, strict=True)]
    return Result(rows, [at_most("test error, V, median", float(np.median(errors)), TARGET)], ())


def figure(known: fx.ode.Ode, best: fx.ode.Ode, test: fx.ode.Series) -> Figure:
    """Measured and simulated level."""
    page = Figure(figsize=(10, 5), layout="constrained")
    upper, lower = page.subplots(2, 1, sharex=True)
    upper.plot(test.time, test.values[:, 0], "k", lw=1.2, label="measured")
    for name, made, colour in (("structure", known, "C0"), ("structure and network", best, "C3")):
        y = made.simulate(test)
        upper.plot(test.time, y[:, 0], colour, lw=0.9, label=name)
        lower.plot(test.time, (y - test.values)[:, 0], colour, lw=0.9)
    upper.set_ylabel("lower tank (V)")
    upper.legend(fontsize=8)
    lower.set(ylabel="error (V)", xlabel="time (s)")
    return page


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--evaluate", type=Path, metavar="FILE", help="score the saved models on this file")
    parser.add_argument("--model", type=Path, default=Path("out/tanks/models"), metavar="FOLDER", help="saved models")


if __name__ == "__main__":
    run(
        "How well are two tanks that run over simulated, by a neural ODE on a known structure and by a black box?",
        measure,
        options,
    )
