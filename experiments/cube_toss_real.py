"""Real tosses of a cube: a learned solver, pretrained on simulated tosses, is fine-tuned on 50, 100 and 300 real ones.

Errors of position and rotation along whole tosses that no model has seen, for

    nominal      the rigid cube with the reported friction and restitution
    identified   the rigid cube with friction, restitution, table height and compliance fitted to the 300 tosses
    with body    the same with gravity, centre of mass, inertia and half widths fitted too (`_cube_body`)
    pretrained   the package's learned solver, which has seen simulated tosses alone
    base         the rigid cube with all these parameters fitted to single impacts of the 300 tosses: what fine-tuning goes beyond
    fine-tuned   the pretrained network after 50, 100 and 300 real tosses, over a base step that is identified from these alone:
                 the mean of three members, which begin as mixtures of its weights with random ones
    scratch      the same ensemble over the same base step from random weights alone, on the 300 tosses

from their first recorded states, and once more from first states by all of the flight before the first impact (`from_flight`).
Recorded velocities are noisy, and what this alone does to a model is printed as `noise`: first states by the flight tell models
apart better.

How far `fine-tuned` is below `base` and below `with body` is what the network adds. Fine-tuning learns from short windows that
begin at steady instants, and from the eight copies of each toss by the symmetries of a cube whose centre of mass lies on an axis.
It learns from all tosses it is given, five steps for each, and keeps the last weights. A run that was interrupted goes on from
the solvers it left in `--out`.

`--evaluate FILE` scores a saved model on a file of this layout, beside the rigid cubes that were identified with it.
"""

import argparse
import dataclasses
import hashlib
import math
import time
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from _cube_body import flight_gravity, identify_body, identify_impacts, impacts, with_body
from _data import recording
from _experiment import Check, Missing, Result, at_most, run
from _tosses import (
    FILE,
    HALF,
    START,
    SUBSTEPS,
    Tosses,
    analytic,
    copies,
    errors,
    from_flight,
    identify,
    predict,
    read,
)
from matplotlib.figure import Figure
from rich.console import Console

import flexor as fx
from flexor.cli.console import progress
from flexor.nerd import FineContact, Finetuning, Frames, Nerd, PositionLoss, SteadyStarts, Transformer, finetune
from flexor.nerd.network import trainable

TRAINING = 300
COUNTS = (50, 100, 300)
MEMBERS = 3
KEEP = 0.4  # of the pretrained weights
SHORT = Finetuning(
    losses=(PositionLoss(limit=3e3),), starts=SteadyStarts(3), window=15, batch=96, rate=1.5e-3, last_rate=1.5e-5
)
LONG = Finetuning(losses=(PositionLoss(limit=3e2),), starts=SteadyStarts(3), window=60, batch=48, rate=3e-4, last_rate=1e-5)
BEYOND = np.repeat([0.05, 0.5], 3)  # m/s and rad/s for every m/s of closing speed: what a network's output of one stands for
MODEL = "cube.safetensors"
Score = list[tuple[np.ndarray, np.ndarray]]  # from recorded first states, and from those by the flight
Scores = dict[str, Score]


def divided(tosses: Tosses) -> tuple[Tosses, Tosses]:
    """Tosses to learn from and tosses to be judged by."""
    order = np.random.default_rng(0).permutation(len(tosses))
    return tosses.take(order[:TRAINING]), tosses.take(order[TRAINING:])


def row(label: str, score: Score, identified: Score) -> dict[str, Any]:
    """A line of the printed table."""
    cells: dict[str, Any] = {"model": label}
    for name, unit, symbol, k in (("position", 1e3, "mm", 0), ("rotation", 1.0, "rad", 1)):
        e, base = score[0][k], identified[0][k]
        cells[f"{name} mean, {symbol}"] = round(unit * float(e.mean()), 3)
        cells[f"{name} median, {symbol}"] = round(unit * float(np.median(e)), 3)
        cells[f"{name} over identified"] = round(float(e.mean() / base.mean()), 3)
        cells[f"{name} from flight, {symbol}"] = round(unit * float(score[1][k].mean()), 3)
    return cells


def bodied(nerd: Nerd, values: dict[str, float]) -> Nerd:
    """The solver over the rigid cube with given parameters, which its card keeps, predicting in units of the closing speed. What
    its network knows goes beyond another base step: `several` lets last layers begin at zero."""
    frames = dataclasses.replace(nerd.frames, base=FineContact(SUBSTEPS), proportional=True)
    network = eqx.tree_at(lambda n: n.norms.y_mean, nerd.network, replace_fn=jnp.zeros_like)
    unit = jnp.asarray(np.concatenate([nerd.dt / 4 * BEYOND, BEYOND]), network.embed.dtype)[None]
    # inputs that did not change in the simulated tosses (turning of a cube whose inertia is the same about all axes) do here
    wide = jnp.where(network.norms.x_std < 1e-6, 1.0, network.norms.x_std)
    network = eqx.tree_at(lambda n: (n.norms.y_std, n.norms.x_std), network, (unit, wide))
    return Nerd(with_body(nerd.model, values), network, frames, {**nerd.card, "parameters": values})


def several(nerd: Nerd, keep: float) -> Nerd:
    """The solver as an ensemble that reads one step, for the state says all: a share `keep` of the pretrained weights, and random
    ones (shrink and perturb, Ash & Adams 2020: pretrained weights as they are learn worse). Last layers are zero: it begins as
    the base step."""
    norms, sizes = jax.tree.map(lambda x: x[0], nerd.network.norms), dataclasses.replace(nerd.network.sizes, history=1)
    drawn = eqx.filter_vmap(lambda k: Transformer.build(sizes, norms, k))(jax.random.split(jax.random.key(0), MEMBERS))

    def mixed(new: Any, known: Any) -> Any:  # matrices keep their size, gains their mean
        return keep * known + (math.sqrt(1 - keep**2) if new.ndim == 3 else 1 - keep) * new

    known = dataclasses.replace(nerd.network, sizes=sizes)
    weights = jax.tree.map(mixed, trainable(drawn), trainable(known))
    network = eqx.tree_at(lambda n: n.head2, eqx.combine(weights, drawn), replace_fn=jnp.zeros_like)
    return dataclasses.replace(nerd, network=network)


def rigid(model: fx.Model, values: dict[str, float], dt: float) -> fx.Simulator:
    """The rigid cube with given parameters, those of mass and shape among them."""
    return fx.Simulator(with_body(model, values), fx.Substeps(fx.RigidSolver(), SUBSTEPS), dt=dt)


def tuned(nerd: Nerd, keep: float, tosses: Tosses, rounds: list[Finetuning], path: Path) -> Nerd:
    """An ensemble fine-tuned on the copies of the tosses; the file `path`, where an interrupted run has left the same."""
    recipe = {
        "parameters": nerd.card["parameters"],
        "pretrained": nerd.card["weights"]["sha256"],
        "tosses": hashlib.sha256(np.ascontiguousarray(tosses.q).tobytes()).hexdigest(),
        "keep": keep,
        "members": MEMBERS,
        "beyond": BEYOND.tolist(),
        "rounds": [r.table() for r in rounds],
    }
    if path.is_file() and path.with_suffix(".json").is_file():
        try:
            known = fx.nerd.load(path)
        except ValueError as sentence:
            raise Missing(f"{sentence} Remove it, and it is made again.") from sentence
        if known.card.get("made") == recipe:
            Console(stderr=True, highlight=False).print(f"'{path}' is there already: made by the same recipe.")
            return identified(known)
    nerd, logs = several(nerd, keep), copies(tosses).trajectories(nerd.model)
    for how in rounds:
        with progress(f"{path.stem}, windows of {how.window}", how.steps) as advance:
            nerd = finetune(nerd, logs, how, progress=lambda done, total, value: advance(done))
    nerd = dataclasses.replace(nerd, card={**nerd.card, "made": recipe})
    nerd.save(path)
    return nerd


def identified(nerd: Nerd) -> Nerd:
    """A loaded solver over its rigid cube, whose parameters files of version 1 have in their cards alone."""
    known = nerd.card.get("parameters") if nerd.card["version"] == 1 else None
    return nerd if known is None else dataclasses.replace(nerd, model=with_body(nerd.model, known))


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
                style = {"color": SERIES[i % len(SERIES)], "linestyle": "-" if i < len(SERIES) else "--"}
                axes.plot(np.sort(unit * score[0][k]), np.linspace(0, 1, len(test)), label=name, **style)
            axes.set(xlabel=f"mean error of {label}", ylabel="share of tosses", xscale="log")
        axes.legend(fontsize=7)
    return figure


def judged(sim: fx.Simulator, tosses: Tosses, gravity: float) -> Score:
    """Errors along tosses from both kinds of first states."""
    frames = Frames(sim.model.topology, tosses.dt)
    return [errors(tosses, predict(sim, begin), frames) for begin in (tosses, from_flight(tosses, gravity))]


def evaluate(options: argparse.Namespace) -> Result:
    """Scores a saved model on a file of this layout, beside the rigid cubes that its card knows."""
    path = options.model or options.out / MODEL
    try:
        nerd, tosses = fx.nerd.load(path), read(options.evaluate)
        _fits(nerd, path, tosses)
    except (FileNotFoundError, ValueError) as sentence:
        raise Missing(str(sentence)) from sentence
    gravity, cube = flight_gravity(tosses), fx.load("cube")
    scores: Scores = {"nominal": judged(analytic(cube, START, tosses.dt), tosses, gravity)}
    if "identified" in nerd.card:
        scores["identified"] = judged(analytic(cube, nerd.card["identified"], tosses.dt), tosses, gravity)
        scores["with body"] = judged(rigid(cube, nerd.card["with body"], tosses.dt), tosses, gravity)
    scores[path.name] = judged(identified(nerd).simulator(), tosses, gravity)
    base = "identified" if "identified" in scores else "nominal"
    rows = [row(label, score, scores[base]) for label, score in scores.items()]
    rows = [{k.replace("identified", base): v for k, v in r.items()} for r in rows]
    return Result(rows, [], [f"{len(tosses)} tosses of '{options.evaluate.name}'."])


def _fits(nerd: Nerd, path: Path, tosses: Tosses) -> None:
    if nerd.model.topology != fx.load("cube").topology:
        raise ValueError(f"'{path}' is a solver of '{nerd.model.topology.name}', and tosses are of the package's 'cube'.")
    if not np.isclose(nerd.dt, tosses.dt, rtol=1e-3):
        raise ValueError(
            f"'{path}' was trained for steps of {nerd.dt:g} s, and the tosses were recorded every {tosses.dt:g} s."
        )


def noise(sim: fx.Simulator, tosses: Tosses, gravity: float) -> str:
    """How far one and the same model parts from itself between the two kinds of first states."""
    begun = from_flight(tosses, gravity)
    same = Tosses(predict(sim, begun), tosses.qd, tosses.steps, tosses.dt)
    p, r = errors(same, predict(sim, tosses), Frames(sim.model.topology, tosses.dt))
    return f"Noise of recorded first states alone: {1e3 * p.mean():.2f} mm, {r.mean():.3f} rad."


def measure(options: argparse.Namespace) -> Result:
    """Identifies, fine-tunes, scores, draws."""
    if options.evaluate is not None:
        return evaluate(options)
    begun, console = time.perf_counter(), Console(stderr=True, highlight=False)
    train, test = divided(read(recording(FILE)))
    quick = options.quick
    if quick:
        train, test = train.take(np.arange(6)).until(60), test.take(np.arange(4)).until(60)  # of one length: fewer programs
    nerd = fx.nerd.load("cube")
    gravity = flight_gravity(train)

    def rounds(count: int) -> list[Finetuning]:
        if quick:
            return [dataclasses.replace(SHORT, batch=4, window=6, steps=2)]
        steps = options.steps * count
        return [dataclasses.replace(SHORT, steps=steps), dataclasses.replace(LONG, steps=steps // 5)]

    def simulate(values: dict[str, float]) -> fx.Simulator:
        return rigid(nerd.model, values, train.dt)

    def say(text: str) -> None:
        console.print(f"{time.perf_counter() - begun:6.0f} s  {text}")

    values = identify(nerd.model, train, 6 if quick else 250)
    body = identify_body(simulate, nerd.frames, train, values, (1, 1) if quick else (8, 10))
    say("identified")
    scores: Scores = {
        "nominal": judged(analytic(nerd.model, START, test.dt), test, gravity),
        "identified": judged(analytic(nerd.model, values, test.dt), test, gravity),
        "with body": judged(simulate(body), test, gravity),
        "pretrained": judged(nerd.simulator(), test, gravity),
    }
    for count in (4,) if quick else COUNTS:
        some = train.take(np.arange(count))
        hits, fall = impacts(some, nerd.frames, nerd.model), flight_gravity(some)
        found = identify_impacts(simulate, nerd.frames, hits, fall, 1 if quick else 20)
        best = tuned(bodied(nerd, found), KEEP, some, rounds(count), options.out / f"tuned-{count}.safetensors")
        scores[f"fine-tuned, {count}"] = judged(best.simulator(), test, gravity)
        say(f"fine-tuned on {count}")
    best = dataclasses.replace(best, card={**best.card, "identified": values, "with body": body})
    best.save(options.out / MODEL)
    last = list(scores)[-1]
    scores["base"] = judged(simulate(found), test, gravity)
    if not quick:
        path = options.out / f"scratch-{len(train)}.safetensors"
        scratch = tuned(bodied(nerd, found), 0.0, train, rounds(len(train)), path)
        scores[f"scratch, {len(train)}"] = judged(scratch.simulator(), test, gravity)
        say("from scratch")
    draw(test, scores).savefig(options.out / "cube_toss_real.png", dpi=150)
    rows = [row(label, score, scores["identified"]) for label, score in scores.items()]
    told = [", ".join(f"{k} {v:.4g}" for k, v in each.items()) for each in (values, body, found)]
    lines = [f"{len(test)} unseen tosses, half width {1e3 * HALF:.1f} mm. Identified: {told[0]}."]
    lines += [f"With body: {told[1]}.", f"Base: {told[2]}.", noise(simulate(body), test, gravity)]
    checks, told = _checks(scores, last)
    return Result(rows, checks, lines + told)


def ratio(errors: np.ndarray, others: np.ndarray) -> np.ndarray:
    """A model's mean error over another's on the same tosses, and the ends of its interval of 95 % (bootstrap over tosses)."""
    drawn = np.random.default_rng(0).integers(0, len(errors), (4000, len(errors)))
    ends = np.percentile(errors[drawn].mean(axis=1) / others[drawn].mean(axis=1), [2.5, 97.5])
    return np.array([errors.mean() / others.mean(), *ends])


def _checks(scores: Scores, last: str) -> tuple[list[Check], list[str]]:
    """The claim, from recorded first states; the same against the cube with mass and shape identified too, from the flight, where
    noise does not blur it; and how sure the latter is."""
    made, told = [], []
    for what, base, begin in (
        ("identified cube", "identified", 0),
        ("cube with mass and shape identified too, from the flight", "with body", 1),
    ):
        for k, name in enumerate(("position", "rotation")):
            value = float(scores[last][begin][k].mean() / scores[base][begin][k].mean())
            made.append(at_most(f"{name} error, {last} tosses, over the {what}", value, 0.8))
    for i, begin in enumerate(("from recorded first states", "from the flight")):
        for k, name in enumerate(("position", "rotation")):
            value, low, high = ratio(scores[last][i][k], scores["with body"][i][k])
            told.append(f"{name} {begin} {value:.3f} ({low:.3f} to {high:.3f})")
    return made, [f"{last} tosses over with body, and intervals of 95 %: {'; '.join(told)}."]


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"'{text}' is not a positive number")
    return int(text)


def _add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--evaluate", type=Path, metavar="FILE", help="score a saved model on a file of this layout")
    parser.add_argument("--model", type=Path, metavar="FILE", help=f"the saved model (default: {MODEL} in --out)")
    parser.add_argument(
        "--steps",
        type=_positive,
        default=5,
        help="steps on short windows for every toss; a fifth as many follow on long windows",
    )


if __name__ == "__main__":
    run("Does a learned solver, fine-tuned on real tosses, beat the identified cube?", measure, _add)
