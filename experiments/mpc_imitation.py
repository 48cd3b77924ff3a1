"""Quadrupeds walk by convex MPC, and by a network that learned from its QP (NeuralSim, Heiden et al. 2021, section IV-D).

Walks forwards, sideways and turning from random starts, on flat ground and under pushes, in flexor and in MuJoCo; then ten
thousand states under random commands, a 41-192-192-192-12 network, rounds of DAgger (states that the network visits,
forces of the QP; Ross et al. 2011), and the same walks with the network in the place of the QP.
"""

import argparse
from typing import Any

import jax
import jax.numpy as jnp
import matplotlib.figure
import numpy as np
from _experiment import Check, Result, at_most, equals, run
from _walks import COMMANDS, DT, PUSH, Starts, Walks, in_mujoco, random_starts, robot_named

import flexor as fx
from flexor.control import ForceSolution, InteriorPoint, Twin, Walked, Walker
from flexor.control.twin import features
from flexor.viz.plots import styled

MARGIN = {"QP": 0.10, "network": 0.15}  # of the commanded speed


def episodes(robot: Any, period: float, count: int, seed: int) -> tuple[Starts, np.ndarray, np.ndarray, list[str]]:
    """`count` starts for each command, on flat ground and under pushes."""
    kinds = [(name, push) for name in COMMANDS for push in (0.0, PUSH)]
    starts = random_starts(robot, count * len(kinds), period, seed)
    commands = np.repeat([COMMANDS[name] for name, _ in kinds], count, axis=0)
    forces = np.repeat([push for _, push in kinds], count)
    return starts, commands, forces, [f"{name}{', pushed' if push else ''}" for name, push in kinds]


def judged(
    walks: list[Walked], commands: np.ndarray, labels: list[str], who: str, robot: str, where: str
) -> tuple[list[Any], list[Check]]:
    """Rows and checks of walks in equal groups."""
    rows, checks = [], []
    groups = np.array_split(np.arange(len(walks)), len(labels))
    for label, group in zip(labels, groups, strict=True):
        asked = commands[group[0]]
        falls = sum(walks[k].fell for k in group)
        wanted = int(np.argmax(np.abs(asked)))
        speed = np.array([walks[k].velocity[wanted] for k in group if not walks[k].fell])
        off = float(np.max(np.abs(speed / asked[wanted] - 1))) if len(speed) else float("nan")
        mean = float(speed.mean()) if len(speed) else float("nan")
        rows.append({"robot": robot, "by": who, "in": where, "walk": label, "falls": f"{falls} of {len(group)}",
                     "asked": asked[wanted], "walked": mean, "worst": off})  # fmt: skip
        checks.append(equals(f"{robot}, {who}, {where}, {label}: falls", falls, 0))
        checks.append(at_most(f"{robot}, {who}, {where}, {label}: speed off by", off, MARGIN[who]))
    return rows, checks


def in_flexor(walks: Walks, case: Any, weights: Any) -> list[Walked]:
    """Walks of `episodes`, a group at a time."""
    starts, commands, forces, labels = case
    found = []
    for group in np.array_split(np.arange(len(commands)), len(labels)):
        time, q, qd, _ = walks(Starts(*(x[group] for x in starts)), commands[group], forces[group], weights)
        found += [Walked.of(walks.walker.robot, *rows) for rows in zip(time, q, qd, strict=True)]
    return found


class Labels:
    """What the QP would do in states along walks: inputs of the network, forces as shares of the weight, and who stands."""

    def __init__(self, walker: Walker):
        def one(q: Any, qd: Any, time: Any, command: Any) -> tuple[Any, ...]:
            w = Walker(walker.robot, command, DT, gait=walker.gait)
            stands = w.gait.stands(w.gait.phases(time))
            problem = w.problem(w.look(fx.State(q, qd, time)), time, stands)
            found: ForceSolution = InteriorPoint()(problem)
            weight = problem.mass * problem.gravity
            return features(problem), found.forces[0] / weight, problem.contact[0], found.converged

        self._all = fx.simd.vmap(one)

    def __call__(self, *rows: np.ndarray) -> list[np.ndarray]:
        seen, shares, stands, good = (np.asarray(x) for x in self._all(*(jnp.asarray(x, jnp.float32) for x in rows)))
        return [x[good] for x in (seen, shares, stands)]


def visited(walks: Walks, weights: Any, states: int, seed: int, labels: Labels) -> list[np.ndarray]:
    """States of walks at random commands, half of them pushed, with the QP's forces; what came after a fall is left out."""
    robot, gait, robots = walks.walker.robot, walks.walker.gait, 64
    rng = np.random.default_rng(seed)
    starts = random_starts(robot, robots, gait.period, seed)
    commands = rng.uniform(-1, 1, (robots, 3)) * [0.7, 0.3, 1.0]
    forces = PUSH * (np.arange(robots) % 2)
    _, q, qd, _ = walks(starts, commands, forces, weights)
    alive = np.cumsum(q[..., 2] < robot.stand[2] / 2, axis=1) == 0
    rows, steps = np.nonzero(alive & (np.arange(q.shape[1]) % 7 == 0))
    chosen = rng.choice(len(rows), min(states, len(rows)), replace=False)
    rows, steps = rows[chosen], steps[chosen]
    phase = (starts.time[rows] + DT * steps) % gait.period
    return labels(q[rows, steps], qd[rows, steps], phase, commands[rows])


def fitted(twin: Twin, data: list[np.ndarray], updates: int, seed: int) -> Twin:
    """The network after Adam on the squared error of the forces of standing feet."""
    import optax

    optimiser = optax.adam(optax.cosine_decay_schedule(1e-3, updates, 0.02))
    seen, shares, stands = (jnp.asarray(x, jnp.float32) for x in data)
    scale, wanted = (twin.mean, twin.deviation), (twin.weights, twin.biases)

    def loss(parts: Any, picked: Any) -> Any:
        net = Twin(*parts, *scale)
        error = (jax.vmap(net.shares)(seen[picked]) - shares[picked]) * stands[picked][..., None]
        return jnp.mean(jnp.sum(error**2, axis=(1, 2)))

    @jax.jit
    def train(parts: Any, key: Any) -> Any:
        def update(carry: Any, key: Any) -> Any:
            parts, state = carry
            picked = jax.random.randint(key, (256,), 0, len(seen))
            value, slope = jax.value_and_grad(loss)(parts, picked)
            moves, state = optimiser.update(slope, state, parts)
            return (optax.apply_updates(parts, moves), state), value

        return jax.lax.scan(update, (parts, optimiser.init(parts)), jax.random.split(key, updates))

    (parts, _), _ = train(wanted, jax.random.key(seed))
    return Twin(*parts, *scale)


def imitated(walker: Walker, walks: Walks, options: argparse.Namespace, robot: str) -> tuple[Twin, Walks, list[str]]:
    """The network, its walks, and what the rounds brought."""
    labels, told = Labels(walker), []
    seconds, updates = (1.0, 200) if options.quick else (8.0, 4000)
    teacher = Walks(walker, seconds)
    data = visited(teacher, walker.forces, options.states, 1, labels)
    fresh = Twin.fresh(jax.random.key(0))
    twin = Twin(fresh.weights, fresh.biases, jnp.asarray(data[0].mean(0)), jnp.asarray(np.maximum(data[0].std(0), 1e-2)))
    twin = fitted(twin, data, updates, 0)
    pupil = Walker(walker.robot, walker.command, DT, gait=walker.gait, forces=twin)
    own = Walks(pupil, seconds)
    for turn in range(options.rounds):
        more = visited(own, twin, options.states, 10 + turn, labels)
        data = [np.concatenate(x) for x in zip(data, more, strict=True)]
        twin = fitted(twin, data, updates, 1 + turn)
        told.append(f"{robot}: round {turn + 1} of DAgger adds {len(more[0])} states; {len(data[0])} in all.")
    card = {"robot": robot, "states": len(data[0]), "rounds": options.rounds, "network": "41-192-192-192-12, ELU"}
    folder = twin.save(options.out / f"{robot}_twin", card)
    return twin, Walks(pupil, walks.steps * DT), [*told, f"{robot}: the network is in {folder}."]


def speeds(rows: list[dict[str, Any]]) -> matplotlib.figure.Figure:
    """Mean speed of the walks that did not fall over the commanded one, and the worst; a panel for each robot."""
    robots = list(dict.fromkeys(row["robot"] for row in rows))
    with styled():
        figure = matplotlib.figure.Figure(figsize=(4.6 * len(robots), 3.4), layout="constrained")
        panels = np.atleast_1d(np.asarray(figure.subplots(1, len(robots), sharey=True)))
        for axes, robot in zip(panels, robots, strict=True):
            walks = list(dict.fromkeys(row["walk"] for row in rows if row["robot"] == robot))
            series = list(dict.fromkeys((row["by"], row["in"]) for row in rows if row["robot"] == robot))
            for k, (who, where) in enumerate(series):
                mine = [row for row in rows if (row["robot"], row["by"], row["in"]) == (robot, who, where)]
                share = np.array([row["walked"] / row["asked"] for row in mine])
                at = np.arange(len(walks)) + 0.15 * (k - (len(series) - 1) / 2)
                worst = np.array([row["worst"] for row in mine])
                axes.errorbar(at, share, yerr=np.maximum(worst - np.abs(share - 1), 0), fmt="o", label=f"{who}, {where}")
            for margin in MARGIN.values():
                axes.axhspan(1 - margin, 1 + margin, color="#7a8793", alpha=0.1, linewidth=0)
            axes.set_xticks(range(len(walks)), walks, rotation=30, ha="right")
            axes.set(title=robot, ylim=(0, 1.4))
        panels[0].set_ylabel("speed over commanded speed")
        panels[0].legend(fontsize=8, loc="lower right")
    return figure


def measure(options: argparse.Namespace) -> Result:
    rows: list[Any] = []
    checks: list[Check] = []
    remarks: list[str] = []
    seconds = 3.0 if options.quick else options.seconds
    starts, few = (4, 1) if options.quick else (options.starts, max(1, options.starts // 6))
    for name in ["quadruped"] if options.quick else options.robots:
        robot = robot_named(name)
        walker = Walker(robot, jnp.zeros(3, jnp.float32), DT, start=jnp.zeros((), jnp.float32))
        case, small = (episodes(robot, walker.gait.period, n, 0) for n in (starts, few))

        def judge(walker: Walker, walks: Walks, who: str, name: str = name, case: Any = case, small: Any = small) -> None:
            found = [
                (in_flexor(walks, case, walker.forces), case, "flexor"),
                (in_mujoco(walker, *small[:3], seconds), small, "MuJoCo"),
            ]
            for walked, (_, commands, _, labels), where in found:
                more, verdicts = judged(walked, commands, labels, who, name, where)
                rows.extend(more)
                checks.extend(verdicts)

        walks = Walks(walker, seconds)
        judge(walker, walks, "QP")
        if options.network:
            twin, own, told = imitated(walker, walks, options, name)
            judge(Walker(robot, walker.command, DT, gait=walker.gait, forces=twin, start=walker.start), own, "network")
            remarks += told
    remarks.append(
        f"Walks of {seconds:g} s from random starts; pushed: {PUSH:g} N for 0.2 s every 4 s; worst: of all that did not fall."
    )
    speeds(rows).savefig(options.out / "speeds.png", dpi=150)
    return Result(rows, checks, remarks)


def add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--robots", nargs="+", default=["laikago", "a1"], help="which robots walk")
    parser.add_argument("--starts", type=int, default=64, help="random starts for each command, with and without pushes")
    parser.add_argument("--seconds", type=float, default=20.0, help="how long each walks")
    parser.add_argument("--states", type=int, default=10_000, help="states to learn from, and those that each round adds")
    parser.add_argument("--rounds", type=int, default=3, help="rounds of DAgger")
    parser.add_argument(
        "--network", action=argparse.BooleanOptionalAction, default=True, help="whether the network is trained"
    )


if __name__ == "__main__":
    run("Do quadrupeds walk by convex MPC, and by a network that learned from its QP?", measure, add)
