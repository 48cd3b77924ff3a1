"""Passive motion under the learned solvers of the package, beside the physics they were trained on (Xu et al. 2025, section 4.1).

Cartpole, a double pendulum on seven ground planes that its training did not know, and the ant: from random states, without
controls. Then an ablation: the pendulum's network trained for less time, with parts of the method switched off, judged on the
planes and once more with the whole scene moved and turned about gravity. Then two networks that learn the pendulum's contact
without any base step, from the same fresh data: flat inputs against contacts as tokens. `--only NAME` runs one part, `--steps N`
says how long these two are trained, which resumes from the folder `--out`; `--quick` leaves the ant out, whose kernels take a
minute to compile.
"""

import argparse
import dataclasses
import tempfile
import time
from pathlib import Path
from typing import Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from _experiment import Check, Result, at_most, equals, run
from rich.console import Console

import flexor as fx
from flexor.nerd import (
    FreeFlight,
    Nerd,
    NoBase,
    Passive,
    Recipe,
    Sizes,
    TokenSizes,
    Training,
    base_alone,
    evaluate_passive,
    train,
)
from flexor.spatial import quat_mul, quat_to_matrix
from flexor.viz.learned import growth

PIVOT = np.array([0.0, 2.0, 1.0])  # of the original's pendulum, y up
PLANES = {  # the original's: a point and a normal, y up
    0: ((0, -15.5, 0), (0, 1, 0)),
    1: ((0, 0, 0), (0, 1, 0)),
    2: ((0, 0.2, 0), (-0.107, 0.921, 0.375)),
    3: ((0, 0.5, 0), (0, 1, 0)),
    4: ((0, -0.5, 0), (0, 1, 0)),
    5: ((0, -0.3, 0), (0, 1, 0)),
    6: ((0, 0, 0), (0, 0.924, 0.383)),
}
ABLATIONS: dict[str, dict[str, Any]] = {
    "complete": {},
    "without robot-centric frames": {"centric": False},
    "without relative prediction": {"relative": False},
    "without contact inputs": {"contacts": False},
    "without history": {"history": 1},
    "without coarse contact": {"base": FreeFlight(substeps=5)},
    "without any base step": {"base": NoBase()},
}
NETWORKS = {
    "flat inputs": Sizes(layers=2, width=96, heads=4, history=1),
    "contacts as tokens": TokenSizes(layers=3, width=128, contact_width=48, rounds=3),
}
PARTS = ("cartpole", "pendulum", "ant", "ablation", "tokens")


def upright(v: Any) -> np.ndarray:
    """A vector of the original, whose y points up, with z up."""
    x, y, z = np.asarray(v, float)
    return np.array([x, -z, y])


def with_plane(model: fx.Model, point: np.ndarray, normal: np.ndarray) -> fx.Model:
    """The model with its ground through a point, seen from the pivot as in the original."""
    normal = normal / np.linalg.norm(normal)
    axis, angle = np.cross([0.0, 0, 1], normal), np.arccos(normal[2])
    size = np.linalg.norm(axis)
    turn = np.array([1.0, 0, 0, 0]) if size < 1e-9 else np.array([np.cos(angle / 2), *(np.sin(angle / 2) * axis / size)])
    at = next(i for i, g in enumerate(model.topology.geoms) if g.shape == "plane")
    pos, quat = model.geoms.pos.at[at].set(jnp.asarray(point)), model.geoms.quat.at[at].set(jnp.asarray(turn))
    return eqx.tree_at(lambda m: (m.geoms.pos, m.geoms.quat), model, (pos, quat))


def on_planes(model: fx.Model) -> dict[int, fx.Model]:
    """The pendulum over each of the test planes."""
    shift = np.asarray(model.bodies.pos[1], float) - upright(PIVOT)
    return {name: with_plane(model, upright(p) + shift, upright(n)) for name, (p, n) in PLANES.items()}


def moved(model: fx.Model, angle: float = 2.0, shift: tuple[float, ...] = (3.0, -2.0, 0.0)) -> fx.Model:
    """The whole scene turned about gravity and moved: base and ground."""
    turn = jnp.array([np.cos(angle / 2), 0.0, 0.0, np.sin(angle / 2)])
    R = quat_to_matrix(turn)
    ground = next(i for i, g in enumerate(model.topology.geoms) if g.shape == "plane")
    new = []
    for part, i in ((model.bodies, 1), (model.geoms, ground)):
        new += [part.pos.at[i].set(R @ part.pos[i] + jnp.array(shift)), part.quat.at[i].set(quat_mul(turn, part.quat[i]))]
    return eqx.tree_at(lambda m: (m.bodies.pos, m.bodies.quat, m.geoms.pos, m.geoms.quat), model, new)


def judged(nerd: Nerd, model: fx.Model, steps: int, rollouts: int) -> Passive:
    """Errors with another ground or base."""
    return evaluate_passive(dataclasses.replace(nerd, model=model), steps=steps, rollouts=rollouts)


def made_of(nerd: Nerd) -> str:
    """What a solver was made of."""
    count, minutes = nerd.card["data"]["total_transitions"], nerd.card["minutes of training"]
    steps = nerd.card["recipe"]["training"]["steps"]
    return f"{count / 1e6:g} million transitions, {steps} steps in {minutes:g} minutes of training"


def lines(label: str, result: Passive, horizons: tuple[int, ...]) -> list[dict[str, Any]]:
    """Rows of the printed table."""
    rows = []
    for r in result.rows(horizons):
        cells = {"scene": label, "steps": r["steps"]}
        for name, unit in (("position", "m"), ("rotation", "rad"), ("slides", "m"), ("hinges", "rad")):
            if f"{name} mean, {unit}" in r:
                values = (r[f"{name} {what}, {unit}"] for what in ("mean", "median", "deviation"))
                cells[f"{name}, {unit}"] = " ".join(f"{v:.4f}" for v in values)
        rows.append({**cells, "diverged": f"{r['diverged']} of {r['rollouts']}"})
    return rows


def cartpole(options: argparse.Namespace) -> Result:
    """The claims about the cartpole."""
    nerd = fx.nerd.load("cartpole")
    result = evaluate_passive(nerd, steps=1000, rollouts=64 if options.quick else 2048)
    growth(result, nerd.dt).savefig(options.out / "cartpole.png", dpi=150)
    short, long = result.rows((100, 1000))
    checks = [
        at_most("cartpole, 100 steps: mean error of the cart", short["slides mean, m"], 0.01, "m"),
        at_most("cartpole, 100 steps: mean error of the pole", short["hinges mean, rad"], 0.01, "rad"),
        at_most("cartpole, 1,000 steps: median error of the cart", long["slides median, m"], 0.1, "m"),
        at_most("cartpole, 1,000 steps: median error of the pole", long["hinges median, rad"], 0.1, "rad"),
        equals("cartpole, 1,000 steps: diverged", long["diverged"], 0),
    ]
    return Result(lines("cartpole", result, (100, 500, 1000)), checks, [f"cartpole: {made_of(nerd)}."])


def pendulum(options: argparse.Namespace) -> Result:
    """One network on the seven planes."""
    nerd = fx.nerd.load("double_pendulum_contact")
    rows: list[dict[str, Any]] = []
    checks: list[Check] = []
    planes = on_planes(nerd.model)
    for name, model in list(planes.items())[slice(1, 2) if options.quick else slice(None)]:
        steps = 1000 if name == 1 and not options.quick else 100
        result = judged(nerd, model, steps, 64 if options.quick else 2048)
        rows += lines(f"pendulum, plane {name}", result, (100, 500, 1000))
        error = result.rows((100,))[0]["hinges mean, rad"]
        checks.append(at_most(f"pendulum on plane {name}, 100 steps: mean error of the joints", error, 0.05, "rad"))
        if name == 1:
            growth(result, nerd.dt).savefig(options.out / "pendulum.png", dpi=150)
        if not options.quick:
            base = judged(base_alone(nerd), model, 100, 2048)
            rows += lines(f"pendulum, plane {name}, base step alone", base, (100,))
    return Result(rows, checks, [f"pendulum: {made_of(nerd)}."])


def ant(options: argparse.Namespace) -> Result:
    """The claims about the ant."""
    nerd = fx.nerd.load("ant")
    result = evaluate_passive(nerd, steps=100 if options.quick else 1000, rollouts=64 if options.quick else 2048)
    growth(result, nerd.dt).savefig(options.out / "ant.png", dpi=150)
    row = result.rows((100,))[0]
    checks = [
        at_most("ant, 100 steps: mean error of the base's position", row["position mean, m"], 0.06, "m"),
        at_most("ant, 100 steps: mean error of the base's rotation", row["rotation mean, rad"], 0.1, "rad"),
        at_most("ant, 100 steps: mean error of the joints", row["hinges mean, rad"], 0.08, "rad"),
    ]
    rows = lines("ant", result, (100, 500, 1000))
    if not options.quick:
        rows += lines("ant, base step alone", evaluate_passive(base_alone(nerd), steps=100), (100,))
    return Result(rows, checks, [f"ant: {made_of(nerd)}."])


def ablation(options: argparse.Namespace) -> Result:
    """The pendulum's network with parts of the method switched off, all trained alike."""
    recipe = Recipe.read("double_pendulum_contact")
    few = 20_000 if options.quick else 300_000
    how = dataclasses.replace(
        recipe.training, steps=4 if options.quick else 1000, batch=16 if options.quick else 128, every=500
    )
    recipe = dataclasses.replace(recipe, transitions=few, training=how)
    sizes = dataclasses.replace(recipe.sizes, layers=1 if options.quick else 2, width=16 if options.quick else 64)
    console, begun, rows = Console(stderr=True, highlight=False), time.perf_counter(), []
    with tempfile.TemporaryDirectory() as folder:
        data = recipe.sample(Path(folder) / "pendulum.h5")
        sim = recipe.simulator()
        for label, change in list(ABLATIONS.items())[: 1 if options.quick else None]:
            own = dataclasses.replace(sizes, history=change.get("history", sizes.history))
            flags = {k: v for k, v in change.items() if k != "history"}
            frames = dataclasses.replace(recipe.frames(sim.model), **flags)
            nerd = train(sim, data, sizes=own, options=how, frames=frames)
            console.print(f"{time.perf_counter() - begun:6.0f} s  {label}")
            rows.append({"scene": label, **_judge(nerd, options.quick)})
            rows[-1]["held-out loss"] = f"{nerd.card['metrics']['held_out']:.2e}"
    worse = sum(float(r["hinges, rad"].split()[0]) <= float(rows[0]["hinges, rad"].split()[0]) for r in rows[1:])
    moved_scene = float(rows[0]["moved scene, rad"]) / float(rows[0]["hinges, rad"].split()[0])
    checks = [
        at_most(
            "ablation: error of the complete method in the moved scene over that where it was trained", moved_scene, 1.05
        ),
        at_most(
            "ablation: variants without a part that do no worse (robot-centric frames matter in the moved scene)", worse, 1
        ),
    ]
    return Result(
        rows, checks, [f"Ablation: {few / 1e6:g} million transitions, {how.steps} steps each; 100 steps, planes 1 and 6."]
    )


def tokens(options: argparse.Namespace) -> Result:
    """The pendulum without any base step: flat inputs against contacts as tokens, both from the same fresh data."""
    steps = 4 if options.quick else options.steps
    how = Training(steps=steps, batch=64 if options.quick else 2048, window=1, rate=options.rate, last_rate=1e-5, huber=0.1,
                   every=max(1, steps // 5))  # fmt: skip
    recipe = dataclasses.replace(Recipe.read("double_pendulum_contact"), base="none", fresh=10, training=how)
    console, rows = Console(stderr=True, highlight=False), []
    for label, sizes in list(NETWORKS.items())[1 if options.quick else 0 :]:
        own = dataclasses.replace(recipe, network=sizes.name, sizes=sizes)
        folder = options.out / f"{sizes.name}-{steps}-{options.rate:g}"

        def tell(done: int, total: int, loss: float, label: str = label) -> None:
            if done % how.every == 0:
                console.print(f"{label}: step {done} of {total}, loss on held-out data {loss:.3g}")

        nerd = own.train(out=folder, progress=tell)
        nerd.save(folder / "solver.safetensors")
        curve = " ".join(f"{row['held_out']:.3g}" for row in nerd.card["history"])
        minutes = nerd.card["minutes of training"]
        rows.append(
            {"scene": f"no base step, {label}", **_judge(nerd, options.quick), "held-out loss": curve, "minutes": minutes}
        )
    worst = float(rows[-1]["hinges, rad"].split()[0])
    checks = [
        at_most(
            "pendulum without any base step, contacts as tokens, 100 steps: mean error of the joints", worst, 0.05, "rad"
        )
    ]
    remark = (
        f"Without a base step: {steps} steps of {how.batch} fresh transitions; 100 steps of passive motion, planes 1 and 6."
    )
    return Result(rows, checks, [remark])


def _judge(nerd: Nerd, quick: bool) -> dict[str, str]:
    """Mean errors over two of the planes, there and with the scene moved."""
    found: list[list[np.ndarray]] = [[], []]
    for name, model in on_planes(nerd.model).items():
        if name in ((1,) if quick else (1, 6)):
            for kept, where in zip(found, (model, moved(model)), strict=True):
                result = judged(nerd, where, 100, 16 if quick else 256)
                assert result.hinges is not None
                kept.append(np.where(result.diverged[:, -1], np.pi, result.hinges[:, -1]))
    here, there = (np.concatenate(x) for x in found)
    cells = " ".join(f"{v:.4f}" for v in (here.mean(), np.median(here), here.std()))
    return {"hinges, rad": cells, "moved scene, rad": f"{there.mean():.4f}"}


def measure(options: argparse.Namespace) -> Result:
    """All parts, or the one that is asked for."""
    asked = [
        name for name in PARTS if options.only == name or (options.only is None and not (options.quick and name == "ant"))
    ]
    parts = [globals()[name](options) for name in asked]
    remarks = [x for p in parts for x in p.remarks] + ["Cells are mean, median and deviation over the rollouts."]
    return Result([r for p in parts for r in p.rows], [c for p in parts for c in p.checks], remarks)


def _add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--only", choices=PARTS, help="one part")
    parser.add_argument("--steps", type=int, default=20_000, metavar="N", help="of training without a base step (20000)")
    parser.add_argument("--rate", type=float, default=0.02, help="of training without a base step, at first (0.02)")


if __name__ == "__main__":
    run("Does a learned solver keep to the true physics over a thousand steps?", measure, _add)
