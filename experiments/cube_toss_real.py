"""Real tosses of a cube: a learned solver, pretrained on simulated tosses, is fine-tuned on 50, 100 and 300 real ones.

Errors of position and rotation along whole tosses that no model has seen, from their first states, for

    nominal      the rigid cube with the reported friction and restitution
    identified   the rigid cube with friction, restitution, table height and compliance fitted to the 300 tosses
    with body    the same with gravity, centre of mass, inertia and half widths fitted too (`_cube_body`)
    pretrained   the package's learned solver, which has seen simulated tosses alone
    fine-tuned   the same after 50, 100 and 300 real tosses: its base step becomes the rigid cube with all the parameters that
                 these identify, its last layer begins at zero, and the network learns from them what goes beyond
    scratch      a network of the same size over the same base step, trained on the 300 tosses alone

How far `fine-tuned` is below `with body` is what the network adds; the rest is what its base step knows of mass and shape.

`--evaluate FILE` scores a saved model on a file of this layout.
"""

import argparse
import dataclasses
import time
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from _cube_body import identify_body, with_body
from _data import recording
from _form import Result, at_most, run
from _tosses import (
    FILE,
    HALF,
    START,
    SUBSTEPS,
    Tosses,
    analytic,
    errors,
    identify,
    predict,
    read,
)
from matplotlib.figure import Figure
from rich.console import Console

import flexor as fx
from flexor.nerd import Finetuning, Nerd, Transformer, finetune
from flexor.nerd.examples import norms_of
from flexor.nerd.finetune import windows

TRAINING = 300
COUNTS = (50, 100, 300)
HOW: dict[str, Any] = {"window": 72, "rate": 1e-3, "last_rate": 1e-5, "pull": 0.0, "held_out": 0.2, "every": 20}
LOSS: dict[str, float] = {"single": 0.0, "share": 0.0, "path": 1.0, "first": 0.6}
MODEL = "cube.safetensors"
Scores = dict[str, tuple[np.ndarray, np.ndarray]]


def divided(tosses: Tosses) -> tuple[Tosses, Tosses]:
    """Tosses to learn from and tosses to be judged by."""
    order = np.random.default_rng(0).permutation(len(tosses))
    return tosses.take(order[:TRAINING]), tosses.take(order[TRAINING:])


def row(label: str, score: tuple[np.ndarray, np.ndarray], identified: tuple[np.ndarray, np.ndarray]) -> dict[str, Any]:
    """A line of the printed table."""
    cells: dict[str, Any] = {"model": label}
    for name, unit, symbol, e, base in zip(
        ("position", "rotation"), (1e3, 1.0), ("mm", "rad"), score, identified, strict=True
    ):
        cells[f"{name} mean, {symbol}"] = round(unit * float(e.mean()), 3)
        cells[f"{name} median, {symbol}"] = round(unit * float(np.median(e)), 3)
        cells[f"{name} over identified"] = round(float(e.mean() / base.mean()), 3)
    return cells


def scratch(nerd: Nerd, logs: list[fx.Trajectory], how: Finetuning) -> Nerd:
    """Fresh weights of the same size, normalised by the recordings and trained as fine-tuning is, but without its pull."""
    data = windows(nerd, logs, how.window)
    norms = norms_of(data.x, data.y)
    sizes = nerd.network.sizes
    fresh = eqx.filter_vmap(lambda k: Transformer.build(sizes, norms, k))(jax.random.split(jax.random.key(0), 1))
    return finetune(dataclasses.replace(nerd, network=fresh), logs, dataclasses.replace(how, pull=0.0, rate=4 * how.rate))


def bodied(nerd: Nerd, values: dict[str, float]) -> Nerd:
    """The solver over the rigid cube with given parameters, which its card keeps. Its network learned what goes beyond another
    base step, so that its last layer begins at zero."""
    frames = dataclasses.replace(nerd.frames, base="fine", substeps=SUBSTEPS)
    network = eqx.tree_at(lambda n: (n.head2, n.norms.y_mean), nerd.network, replace_fn=jnp.zeros_like)
    card = {**nerd.card, "parameters": values}
    return Nerd(with_body(nerd.model, values), network, frames, card)


def rigid(model: fx.Model, values: dict[str, float], dt: float) -> fx.Simulator:
    """The rigid cube with given parameters, those of mass and shape among them."""
    return fx.Simulator(with_body(model, values), fx.Substeps(fx.RigidSolver(), SUBSTEPS), dt=dt)


def draw(test: Tosses, scores: Scores) -> Figure:
    """How the errors are spread over the tosses."""
    from flexor.viz.colours import SERIES
    from flexor.viz.plots import styled

    with styled():
        figure = Figure(figsize=(8, 3), layout="constrained")
        for axes, k, unit, label in zip(
            figure.subplots(1, 2), (0, 1), (1e3, 1.0), ("position (mm)", "rotation (rad)"), strict=True
        ):
            for i, (name, score) in enumerate(scores.items()):
                axes.plot(np.sort(unit * score[k]), np.linspace(0, 1, len(test)), label=name, color=SERIES[i % len(SERIES)])
            axes.set(xlabel=f"mean error of {label}", ylabel="share of tosses", xscale="log")
        axes.legend(fontsize=7)
    return figure


def judged(nerd: Nerd, tosses: Tosses) -> tuple[np.ndarray, np.ndarray]:
    return errors(tosses, predict(nerd.simulator(), tosses), nerd.frames)


def evaluate(options: argparse.Namespace) -> Result:
    """Scores a saved model on a file of this layout, beside the nominal cube."""
    path = options.model or options.out / MODEL
    nerd, tosses = fx.nerd.load(path), read(options.evaluate)
    base = errors(tosses, predict(analytic(nerd.model, START, tosses.dt), tosses), nerd.frames)
    if "parameters" in nerd.card:
        nerd = dataclasses.replace(nerd, model=with_body(nerd.model, nerd.card["parameters"]))
    rows = [row("nominal", base, base), row(path.name, judged(nerd, tosses), base)]
    rows = [{k.replace("identified", "nominal"): v for k, v in r.items()} for r in rows]
    return Result(rows, [], [f"{len(tosses)} tosses of '{options.evaluate.name}'."])


def measure(options: argparse.Namespace) -> Result:
    """Identifies, fine-tunes, scores, draws."""
    if options.evaluate is not None:
        return evaluate(options)
    begun, console = time.perf_counter(), Console(stderr=True, highlight=False)
    train, test = divided(read(recording(FILE)))
    if options.quick:
        train, test = train.take(np.flatnonzero(train.steps < 100)[:6]), test.take(np.flatnonzero(test.steps < 100)[:4])
    nerd = fx.nerd.load("cube")
    small = {"steps": 3, "batch": 4, "window": 6, "held_out": 0.0} if options.quick else {"steps": options.steps}
    how = Finetuning(**HOW | LOSS | small)

    def logs(count: int) -> list[fx.Trajectory]:
        return train.take(np.arange(count)).trajectories(nerd.model)

    def body(count: int, given: dict[str, float]) -> dict[str, float]:
        tosses, turns = train.take(np.arange(count)), (1, 1) if options.quick else (8, 10)
        return identify_body(lambda v: rigid(nerd.model, v, train.dt), nerd.frames, tosses, given, turns)

    def say(text: str) -> None:
        console.print(f"{time.perf_counter() - begun:6.0f} s  {text}")

    evaluations = 6 if options.quick else 250
    values = identify(nerd.model, train, evaluations)
    say("identified")
    scores: Scores = {}
    for label, given in (("nominal", START), ("identified", values)):
        scores[label] = errors(test, predict(analytic(nerd.model, given, test.dt), test), nerd.frames)
    scores["pretrained"] = judged(nerd, test)
    for count in (4,) if options.quick else COUNTS:
        fitted = values if count == len(train) else identify(nerd.model, train.take(np.arange(count)), evaluations)
        found = body(count, fitted)
        tuned = finetune(bodied(nerd, found), logs(count), how)
        scores[f"fine-tuned, {count}"] = judged(tuned, test)
        say(f"fine-tuned on {count}")
    tuned.save(options.out / MODEL)
    last = list(scores)[-1]
    scores["with body"] = errors(test, predict(rigid(nerd.model, found, test.dt), test), nerd.frames)
    if not options.quick:
        scores[f"scratch, {len(train)}"] = judged(scratch(bodied(nerd, found), logs(len(train)), how), test)
        say("from scratch")
    draw(test, scores).savefig(options.out / "cube_toss_real.png", dpi=150)
    rows = [row(label, score, scores["identified"]) for label, score in scores.items()]
    ratio = [float(a.mean() / b.mean()) for a, b in zip(scores[last], scores["identified"], strict=True)]
    beyond = [float(a.mean() / b.mean()) for a, b in zip(scores[last], scores["with body"], strict=True)]
    checks = [
        at_most(f"{name} error, {last} tosses, over the cube with {what} identified", r, 0.8)
        for what, each in (("contact", ratio), ("contact, mass and shape", beyond))
        for name, r in zip(("position", "rotation"), each, strict=True)
    ]
    told = [", ".join(f"{k} {v:.4g}" for k, v in each.items()) for each in (values, found)]
    lines = [f"{len(test)} unseen tosses, half width {1e3 * HALF:.1f} mm. Identified: {told[0]}.", f"With body: {told[1]}."]
    return Result(rows, checks, lines)


def _add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--evaluate", type=Path, metavar="FILE", help="score a saved model on a file of this layout")
    parser.add_argument("--model", type=Path, metavar="FILE", help=f"the saved model (default: {MODEL} in --out)")
    parser.add_argument("--steps", type=int, default=200, help="steps of fine-tuning")


if __name__ == "__main__":
    run("Does a learned solver, fine-tuned on real tosses, beat the identified cube?", measure, _add)
