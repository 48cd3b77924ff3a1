"""A real double pendulum with motors, in two builds (DFKI Underactuated Lab 2022): prediction half a second ahead.

Every run but those of the feedback controllers is unseen once: the runs of a design are dealt into folds, and each fold is
predicted by models trained on the others, of which half of all samples were dropped at random.

1. The makers' published parameters (`_links.Links.published`), started from the measured angles and speeds.
2. The same structure fitted again, and how to estimate the speed at a start from the samples just before it.
3. A network of eight neurons for the torques that are left, read from angles, speeds, directions of motion and motor torques.
4. The network of one design, its links fitted to 5 s of motion of the other design, judged on the other runs of that design.

The last 15 % of the training runs choose the weights (the best step). Error: root mean square over angles and starts (every
0.25 s) of a simulation under the measured torques after 0.25 s and 0.5 s, mean over runs. `--evaluate FILE` scores the saved
models, which saw all runs of this recording, on any file of the same layout.
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
from _links import PAST, Estimate, Links
from matplotlib.figure import Figure
from rich.progress import Progress

import flexor as fx
from flexor.ode.artefact import outputs
from flexor.ode.series import Pieces

jax.config.update("jax_enable_x64", True)

FILE, RATIO = "double_pendulum_dfki.h5", 0.7
DESIGNS = ("A.0", "C.0")
HORIZON, EVERY = 0.5, 0.25  # s: how far ahead, and how far apart the starts are
ADAPTED = 5.0  # s of motion of the other design
CLASSES = [Links, Estimate]


class Plan(NamedTuple):
    """How much is done: steps of Levenberg-Marquardt on stretches of about 0.25 and 0.4 s."""

    designs: tuple[str, ...] = DESIGNS
    folds: int = 2
    runs: int = 0  # 0: all
    links: int = 8
    network: int = 8
    adapt: int = 10


QUICK = Plan(designs=("C.0",), folds=2, runs=2, links=2, network=2, adapt=2)


class Design(NamedTuple):
    """A build: the makers' model, and its runs."""

    published: Links
    runs: list[fx.ode.Series]


def read(path: Path, plan: Plan) -> dict[str, Design]:
    """The designs of a file. A run whose name is unknown is as good as any."""
    with h5py.File(path) as file:
        found = {}
        for name in (n for n in plan.designs if n in file):
            tables = [(k, x[:].astype(float)) for k, x in file[name].items() if x.attrs["kind"] != "feedback controller"]
            runs = [fx.ode.Series(d[:, 0], d[:, 1:5], d[:, 5:7], held=False, name=k) for k, d in tables]
            found[name] = Design(Links.published(dict(file[name].attrs)), runs[: plan.runs] if plan.runs else runs)
    if not found:
        raise Missing(f"'{path}' has none of the designs {', '.join(plan.designs)}.")
    return found


def thinned(one: fx.ode.Series, seed: int) -> fx.ode.Series:
    """Half of the samples, at random."""
    keep = np.random.default_rng(seed).uniform(size=len(one.time)) < 0.5
    return fx.ode.Series(one.time[keep], one.values[keep], one.inputs[keep], held=False, name=one.name)


class Starts(NamedTuple):
    """Stretches of a run from starts `EVERY` apart, and the rows that are half and all of `HORIZON` later."""

    pieces: Pieces
    rows: tuple[np.ndarray, np.ndarray]

    @staticmethod
    def of(one: fx.ode.Series) -> "Starts":
        grid = one.grid()
        t = grid.t
        first = np.maximum(np.searchsorted(t, np.arange(t[0], t[-1] - HORIZON, EVERY)), PAST - 1)
        ahead = [np.searchsorted(t, t[first] + h) - first for h in (HORIZON / 2, HORIZON)]
        length = int(ahead[1].max()) + 1
        fits = first + length < len(t)
        cut = [slice(i - PAST + 1, i + length + 1) for i in first[fits]]
        rows = [np.stack([x[c] for c in cut]) for x in grid[:3]]
        rows += [np.stack([x[c.start : c.stop - 1] for c in cut]) for x in grid[3:]]
        return Starts(Pieces(*rows), (ahead[0][fits], ahead[1][fits]))

    def errors(self, parts: fx.ode.Parts) -> list[float]:
        """Root mean square angle errors at the two times."""
        y, k = outputs(parts, self.pieces), np.arange(len(self.rows[0]))
        wrong = (y[k, r, :2] - self.pieces.y[k, PAST - 1 + r, :2] for r in self.rows)
        return [float(np.sqrt(np.mean(e**2))) for e in wrong]


def stage(length: int, steps: int, ridge: float = 1e-6) -> fx.ode.Training:
    return fx.ode.Training(
        length=length, stride=200, steps=steps, decay=ridge, method="levenberg-marquardt", every=1, huber=0.3, judged=250
    )  # fmt: skip


class Fitting:
    """Trains on half of the samples of some runs, with check points."""

    def __init__(self, out: Path, plan: Plan):
        self.out, self.plan = out, plan

    def __call__(self, start: fx.ode.Parts, runs: list[fx.ode.Series], name: str, how: fx.ode.Training) -> fx.ode.Parts:
        cut = [round(0.85 * len(r.time)) for r in runs]
        seen = [thinned(r.between(0, c), k) for k, (r, c) in enumerate(zip(runs, cut, strict=True))]
        judge = [r.between(c, len(r.time)) for r, c in zip(runs, cut, strict=True)]
        with Progress(transient=True, disable=not sys.stderr.isatty()) as bar:
            task = bar.add_task(name, total=how.steps)
            return fx.ode.train(
                seen, fx.ode.Recipe(stages=(how,)), start=start, validation=judge, out=self.out / "checkpoints" / name,
                progress=lambda done, total, error: bar.update(task, completed=done),
            ).parts  # fmt: skip

    def both(self, design: Design, runs: list[fx.ode.Series], name: str) -> tuple[fx.ode.Parts, fx.ode.Parts]:
        """The links fitted, and with a network."""
        links = self(fx.ode.Parts(design.published, Estimate.guess()), runs, f"{name}-links", stage(60, self.plan.links))
        assert isinstance(links.system, Links)
        fresh = fx.ode.Parts(links.system.settled().with_network(8, jax.random.key(0)), links.encoder)
        return links, self(fresh, runs, f"{name}-network", stage(100, self.plan.network, 3e-6))

    def adapted(self, network: fx.ode.Parts, design: Design, source: fx.ode.Series, name: str) -> fx.ode.Parts:
        """The network of the other design on the published links of this one, fitted to the first seconds of one run."""
        assert isinstance(network.system, Links)
        own = design.published
        system = Links(own.base, own.z, network.system.offset, network.system.net)
        part = source.between(0, int(np.searchsorted(source.time, source.time[0] + ADAPTED)))
        return self(fx.ode.Parts(system, network.encoder), [part], name, stage(60, self.plan.adapt, 1e-4))


def measure(options: Any) -> Result:
    if options.evaluate is not None:
        return evaluate(options)
    plan = QUICK if options.quick else Plan()
    plan = plan if options.design is None else plan._replace(designs=(options.design,))
    designs = read(recording(FILE), plan)
    fitting = Fitting(options.out / ("quick" if options.quick else "full"), plan)
    errors: dict[str, dict[str, list[list[float]]]] = {}
    models = {}
    for name, design in designs.items():
        errors[name] = crossed(design, fitting, name)
        models[name] = fitting.both(design, design.runs, f"{name}-all")[1]
        fx.ode.Ode(models[name]).save(_folder(options, name), classes=CLASSES)
    rows = [_row(f"{name}: {how}", e, by["published"]) for name, by in errors.items() for how, e in by.items()]
    checks = [
        at_most(
            f"{name}: unseen runs, 0.5 s ahead, error / published", _ratio(by["links and network"], by["published"]), RATIO
        )
        for name, by in errors.items()
    ]
    if len(designs) == 2:
        rows += [carried_over(a, b, designs[b], models[a], fitting) for a, b in (DESIGNS, DESIGNS[::-1])]
    figure(errors).savefig(options.out / "double_pendulum_dfki.png", dpi=150)
    return Result(rows, checks, ("errors are means over runs; every run is predicted by models that have not seen it",))


def crossed(design: Design, fitting: Fitting, name: str) -> dict[str, list[list[float]]]:
    """Errors at the two times of every run, predicted by models that have not seen it."""
    starts = [Starts.of(one) for one in design.runs]
    blank = [[0.0, 0.0]] * len(starts)
    found: dict[str, list[list[float]]] = {"published": list(blank), "links": list(blank), "links and network": list(blank)}
    for fold in range(fitting.plan.folds):
        unseen = range(fold, len(starts), fitting.plan.folds)
        seen = [one for k, one in enumerate(design.runs) if k not in unseen]
        links, network = fitting.both(design, seen, f"{name}-fold{fold}")
        known = fx.ode.Parts(design.published, Estimate.guess())
        for how, parts in (("published", known), ("links", links), ("links and network", network)):
            for k in unseen:
                found[how][k] = starts[k].errors(parts)
    return found


def carried_over(a: str, b: str, design: Design, network: fx.ode.Parts, fitting: Fitting) -> dict[str, Any]:
    """The model of design a adapted to b from the beginning of its first run, judged on the other runs of b."""
    source, others = design.runs[0], [Starts.of(one) for one in design.runs[1:]]
    made = fitting.adapted(network, design, source, f"{a}-to-{b}")
    known = fx.ode.Parts(design.published, Estimate.guess())
    return _row(f"{b}: {a} adapted on 5 s", [s.errors(made) for s in others], [s.errors(known) for s in others])


def _row(name: str, errors: list[list[float]], published: list[list[float]]) -> dict[str, Any]:
    half, whole = np.mean(errors, axis=0)
    return {
        "model": name, "runs": len(errors), "0.25 s, rad": float(half), "0.5 s, rad": float(whole),
        "0.5 s, median, rad": float(np.median(np.asarray(errors)[:, 1])), "0.5 s / published": _ratio(errors, published),
    }  # fmt: skip


def _ratio(errors: list[list[float]], published: list[list[float]]) -> float:
    return float(np.mean(errors, axis=0)[1] / np.mean(published, axis=0)[1])


def _folder(options: Any, name: str) -> Path:
    folder = options.out / ("quick_models" if options.quick else "models")
    folder.mkdir(parents=True, exist_ok=True)
    return folder / name


def evaluate(options: Any) -> Result:
    """The saved models on another file."""
    if not options.evaluate.is_file():
        raise Missing(f"there is no file '{options.evaluate}'.")
    rows, checks = [], []
    for name, design in read(options.evaluate, Plan()).items():
        if not (options.model / name).is_dir():
            raise Missing(
                f"there is no model '{options.model / name}': run the experiment first, or name the folder by --model."
            )
        made, starts = fx.open(options.model / name, classes=CLASSES).parts, [Starts.of(one) for one in design.runs]
        known = [s.errors(fx.ode.Parts(design.published, Estimate.guess())) for s in starts]
        rows.append(_row(f"{name}: links and network", [s.errors(made) for s in starts], known))
        checks.append(at_most(f"{name}: 0.5 s ahead, error / published", rows[-1]["0.5 s / published"], RATIO))
    return Result(rows, checks, ())


def figure(errors: dict[str, dict[str, list[list[float]]]]) -> Figure:
    """Errors after 0.5 s, run by run."""
    page = Figure(figsize=(9, 4), layout="constrained")
    axes = np.atleast_1d(page.subplots(1, len(errors), sharey=True))
    for axis, (name, by) in zip(axes, errors.items(), strict=True):
        for k, (how, e) in enumerate(by.items()):
            axis.bar(np.arange(len(e)) + 0.25 * k, np.asarray(e)[:, 1], width=0.25, label=how)
        axis.set(title=f"design {name}", xlabel="run", yscale="log")
    axes[0].set_ylabel("angle error after 0.5 s (rad)")
    axes[0].legend(fontsize=8)
    return page


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--evaluate", type=Path, metavar="FILE", help="score the saved models on this file")
    parser.add_argument("--design", choices=DESIGNS, help="this design alone; a run of both goes on from its check points")
    folder = Path("out/double_pendulum_dfki/models")
    parser.add_argument("--model", type=Path, default=folder, metavar="FOLDER", help="folder of the saved models")


if __name__ == "__main__":
    run("How well is a real double pendulum with motors predicted, and one build of it from the other?", measure, options)
