"""Real planar pushes: how well does a simulator predict where an object ends up, untuned, tuned, and augmented?

Data: about 9,700 pushes of 11 steel shapes on two surfaces (Yu, Bauza, Fazeli & Rodriguez 2016). After Heiden et al. 2021,
section IV-A (Figures 6 and 7): the tip's contact is an NCP, the ground a penalty contact on a grid of 2 cm, and a network changes
the lateral friction of every point from the object's pose and velocity and from normal and depth of the tip's contact.

    untuned         textbook numbers: friction of the tip 0.25, weight spread evenly
    tuned           friction of the tip and spread of the weight fitted, one pair for each surface
    tuned, object   the same for each object on a surface, and the load of each of its points
    augmented       the latter with a network for each object on a surface, at 0.6 of its fitted strength

An object that has not been learned on a surface is predicted with the surface's friction of the tip, with the spread of weight
that objects of its kind (smooth or cornered outline) have on all surfaces, and with a network that all objects on the surface
share.

Training is by gradient through the simulator, from the end poses of the training pushes alone. Four more trainings leave out
some of the shapes, each shape once, and predict those. `--evaluate FILE` scores a saved model on a file of this layout.

An object has 200 to 550 training pushes, and its network fits a part of their scatter. Its result is therefore scaled by one
number for all objects, the one with the least sum of position and angle error (over the tuned simulator's, mean over tables) on
a third of the training pushes that is left aside; `--validate` shows it. The left-out pushes have no part in that choice.
"""

import argparse
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import _pushing_figures as figures
import _pushing_validation as validation
import numpy as np
from _data import recording
from _experiment import Check, Result, at_most, equals, run
from _pushing import FILE, GRID, TRAJECTORY, Frames, Shape, Table, calibrate, divide, errors, grid, kind, read
from _pushing_file import Learned, fresh
from _pushing_model import Object, Parameters, Trainer, Training, objects, predict, weakened
from rich.console import Console

# Shapes that are left out of a training together; each is left out once.
FOLDS = (("ellip1", "rect2", "tri3"), ("ellip2", "rect3", "tri1"), ("ellip3", "rect1", "tri2"), ("butter", "hex"))
ALIKE = ("tip", "spread")  # parameters that several objects have in common
NETWORK = (16, 2)  # neurons, hidden layers
STRENGTH = 0.6  # of an object's own network; chosen on training pushes alone, see `--validate`
Scores = dict[str, tuple[float, float]]


class Plan:
    """How long to train; the quick plan has one object on a coarse grid, few pushes and a small network."""

    def __init__(self, quick: bool):
        self.quick = quick
        self.network = (4, 1) if quick else NETWORK
        size = 16 if quick else 128
        self.surface = Training(2 if quick else 150, 0.05, size, even=True)
        self.object = Training(2 if quick else 300, 0.1, size, pull=0.003)
        self.shared = Training(2 if quick else 150, 0.01, size, pull=0.03)
        self.own = Training(2 if quick else 250, 0.01, size, pull=0.001)


def _say(console: Console, text: str, start: float) -> None:
    console.print(f"[dim]{time.perf_counter() - start:6.0f} s  {text}[/]")


def train(
    plan: Plan,
    tables: list[Table],
    shapes: dict[str, Shape],
    frames: Frames,
    bodies: dict[str, Object],
    *,
    own: bool,
    say: Any,
) -> Learned:
    """Parameters and networks from training pushes: of surfaces, and with `own` of each object on a surface."""
    learned = Learned(*plan.network, frames, {"": Parameters.untuned(bodies)})
    empty = fresh(bodies, *plan.network)
    net = empty if plan.quick else None  # a fresh network changes nothing: in quick runs one compiled program is enough

    def trainer(which: Callable[[Table], bool]) -> Trainer:
        return Trainer([t for t in tables if which(t)], frames, bodies, net)

    def parameters(table: Table) -> Parameters:
        return learned.parameters_of(table.surface, shapes[table.shape])

    surfaces = sorted({t.surface for t in tables})
    base = {s: trainer(lambda t, s=s: t.surface == s).tune(learned.parameters[""], plan.surface, ALIKE) for s in surfaces}
    learned.parameters.update(base)
    for sort in sorted({kind(shapes[t.shape].outline) for t in tables}):
        spread = trainer(lambda t, sort=sort: kind(shapes[t.shape].outline) == sort).tune_spread(base, plan.surface)
        learned.parameters.update({f"{s}/{sort}": base[s]._replace(spread=spread) for s in surfaces})
    say("parameters of surfaces and kinds")
    for surface in surfaces:
        learned.networks[surface] = trainer(lambda t, s=surface: t.surface == s).learn(empty, parameters, plan.shared)
        say(f"{surface}: network")
    for surface, shape in sorted({(t.surface, t.shape) for t in tables}) if own else ():
        here = trainer(lambda t, o=(surface, shape): (t.surface, t.shape) == o)
        key = f"{surface}/{shape}"
        learned.parameters[key] = here.tune(base[surface], plan.object, Parameters._fields)
        learned.networks[key] = weakened(here.learn(empty, parameters, plan.own), STRENGTH)
        say(f"{key}: parameters and network")
    return learned


def score(table: Table, shape: Shape, learned: Learned, bodies: dict[str, Object]) -> Scores:
    """Mean position and angle error of every model on the pushes of a table."""
    surface = learned.parameters.get(table.surface, learned.parameters[""])
    own, net = learned.parameters_of(table.surface, shape), learned.network_of(table.surface, table.shape)
    ends = {
        "published": table.published,
        "untuned": predict(table, learned.frames, bodies, learned.parameters[""], None),
        "tuned": predict(table, learned.frames, bodies, surface, None),
        "tuned, object": predict(table, learned.frames, bodies, own, None),
        "augmented": predict(table, learned.frames, bodies, own, net),
    }
    means = {}
    for name, end in ends.items():
        distance, angle = errors(end, table.after)
        means[name] = (float(distance.mean()), float(angle.mean()))
    return means


def row(table: Table, scores: Scores, note: str = "") -> dict[str, Any]:
    """A line of the printed table: millimetres and radians."""
    cells = {name: f"{1e3 * d:.2f} {a:.3f}" for name, (d, a) in scores.items()}
    return {"table": table.name + note, "pushes": len(table), **cells}


def mean(rows: list[Scores], name: str) -> np.ndarray:
    """Position and angle error averaged over tables."""
    return np.mean([r[name] for r in rows], axis=0)


def ratios(rows: list[Scores]) -> np.ndarray:
    """Error of the augmented simulator over that of the published model, position and angle, averaged over tables."""
    return mean(rows, "augmented") / mean(rows, "published")


def _total(rows: list[Scores], label: str, count: int) -> dict[str, Any]:
    cells = {name: "{:.2f} {:.3f}".format(*(mean(rows, name) * [1e3, 1])) for name in rows[0]}
    return {"table": label, "pushes": count, **cells}


def check_held_out(rows: list[Scores]) -> list[Check]:
    """The claims about pushes left out of the training."""
    ratio = ratios(rows)
    worse = [sum(r["augmented"][k] >= r["tuned"][k] for r in rows) for k in (0, 1)]
    return [
        at_most("left-out pushes: position error, augmented over published", float(ratio[0]), 0.75),
        at_most("left-out pushes: angle error, augmented over published", float(ratio[1]), 0.75),
        equals("tables where augmentation does not lower the tuned simulator's position error", worse[0], 0),
        equals("tables where augmentation does not lower the tuned simulator's angle error", worse[1], 0),
    ]


def check_others(rows: list[Scores]) -> list[Check]:
    """The claims about shapes left out of the training."""
    ratio = ratios(rows)
    return [
        at_most("left-out shapes: position error, augmented over published", float(ratio[0]), 1.0),
        at_most("left-out shapes: angle error, augmented over published", float(ratio[1]), 1.0),
    ]


def _small(shapes: dict[str, Shape], tables: list[Table]) -> tuple[dict[str, Shape], list[Table]]:
    """One object and few of its pushes, for a quick run."""
    table = min(tables, key=lambda t: len(shapes[t.shape].outline) * len(grid(shapes[t.shape].outline)))
    return {table.shape: shapes[table.shape]}, [table.take(np.arange(min(40, len(table))))]


def evaluate(options: argparse.Namespace) -> Result:
    """Scores a saved model on a file of this layout. Sessions that the model has not seen are calibrated from where the tip
    stands at the start of their pushes, never from an outcome."""
    shapes, tables = read(options.evaluate)
    bodies = objects(shapes)
    learned = Learned.load(options.model or options.out / "model.safetensors", bodies)
    new = [t for t in tables if t.name not in learned.frames.session]
    if new:
        learned.frames = calibrate(shapes, new, learned.frames)
    rows = [score(t, shapes[t.shape], learned, bodies) for t in tables]
    lines = [row(t, r, "" if learned.known(t) else " (new)") for t, r in zip(tables, rows, strict=True)]
    ratio = ratios(rows)
    remark = f"Augmented over published: position {ratio[0]:.3f}, angle {ratio[1]:.3f}. '(new)': the surface's own network."
    return Result([*lines, _total(rows, "mean", sum(map(len, tables)))], [], [remark])


def validate(options: argparse.Namespace) -> Result:
    """The strengths of the objects' own networks on training pushes left aside."""
    begun, console = time.perf_counter(), Console(highlight=False, stderr=True)
    shapes, tables = read(recording(FILE))
    shapes, tables = _small(shapes, tables) if options.quick else (shapes, tables)
    tables = [divide(t)[0] for t in tables]
    frames, plan = calibrate(shapes, tables), Plan(options.quick)
    bodies = objects(shapes, 2 * GRID if options.quick else GRID)
    start, surfaces = Parameters.untuned(bodies), sorted({t.surface for t in tables})
    chosen = {s: [validation.aside(t)[0] for t in tables if t.surface == s] for s in surfaces}
    base = {s: Trainer(chosen[s], frames, bodies).tune(start, plan.surface, ALIKE) for s in surfaces}
    empty, how = fresh(bodies, *plan.network), (plan.object, plan.own)
    found = validation.strengths(tables, frames, bodies, base, empty, how, lambda text: _say(console, text, begun))
    found["mean"] = np.mean(list(found.values()), axis=0)
    names = [f"strength {s:g}" for s in validation.STRENGTHS]
    lines = [{"table": t, **{n: f"{d:.3f} {a:.3f}" for n, (d, a) in zip(names, r, strict=True)}} for t, r in found.items()]
    return Result(
        lines, [], ["Position and angle error over those of the surface's parameters, on training pushes left aside."]
    )


def measure(options: argparse.Namespace) -> Result:
    """Trains, scores, draws."""
    if options.evaluate is not None:
        return evaluate(options)
    if options.validate:
        return validate(options)
    begun, console = time.perf_counter(), Console(highlight=False, stderr=True)
    shapes, tables = read(recording(FILE))
    shapes, tables = _small(shapes, tables) if options.quick else (shapes, tables)
    parts = [divide(t) for t in tables]
    frames = calibrate(shapes, [t for t, _ in parts])
    bodies, plan = objects(shapes, 2 * GRID if options.quick else GRID), Plan(options.quick)

    def say(text: str) -> None:
        _say(console, text, begun)

    learned = train(plan, [t for t, _ in parts], shapes, frames, bodies, own=True, say=say)
    learned.save(options.out / "model.safetensors")
    rows = [score(t, shapes[t.shape], learned, bodies) for _, t in parts]
    lines = [row(t, r) for (_, t), r in zip(parts, rows, strict=True)] + [
        _total(rows, "mean", sum(len(t) for _, t in parts))
    ]
    checks = check_held_out(rows)
    if not options.quick:
        unseen, more = [], []
        for fold in FOLDS:
            known = train(plan, [t for t, _ in parts if t.shape not in fold], shapes, frames, bodies, own=False, say=say)
            tested = [t for t in tables if t.shape in fold]
            unseen += tested
            more += [score(t, shapes[t.shape], known, bodies) for t in tested]
        lines += [row(t, r, " (new shape)") for t, r in zip(unseen, more, strict=True)]
        lines.append(_total(more, "mean of new shapes", sum(map(len, unseen))))
        checks += check_others(more)
    figures.errors(options.out / "errors.png", [t.name for _, t in parts], rows)
    figures.ends(options.out / "pushes.png", shapes, [t for _, t in parts], learned, bodies)
    if not options.quick:
        figures.trajectory(options.out / "trajectory.png", recording(TRAJECTORY), shapes, learned, bodies)
    return Result(lines, checks, _remarks(rows, learned, tables, bodies, options.quick))


def _remarks(rows: list[Scores], learned: Learned, tables: list[Table], bodies: dict[str, Object], quick: bool) -> list[str]:
    better = [sum(r["augmented"][k] < r["tuned, object"][k] for r in rows) for k in (0, 1)]
    sentences = [
        "Cells are mean position error in mm and mean angle error in rad; means are over tables.",
        f"Augmentation lowers the error of the simulator tuned for each object in {better[0]} (position) and {better[1]} (angle) "
        f"of {len(rows)} tables.",
    ]
    if not quick:
        table = next(t for t in tables if t.name == "abs/rect1/v10")
        sentences.append(figures.convergence(table, learned, bodies))
    return sentences


def _options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--evaluate", type=Path, metavar="FILE", help="score a saved model on this file instead of training")
    parser.add_argument(
        "--validate", action="store_true", help="show the strengths of the networks on training pushes left aside"
    )
    parser.add_argument("--model", type=Path, metavar="FILE", help="the saved model, by default model.safetensors in --out")


if __name__ == "__main__":
    run("Real planar pushes: untuned, tuned and augmented simulator against the published model", measure, _options)
