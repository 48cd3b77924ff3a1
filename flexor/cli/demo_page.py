"""The demo's report: what agreed with what, how it looked, and whether the gradients hold."""

import os
import platform
from collections.abc import Sequence
from importlib import metadata
from typing import Any

import matplotlib.figure
import numpy as np

from flexor.cli.certify import COLUMNS, tables
from flexor.cli.demo_pendulum import Chapter
from flexor.cli.demo_pick_up import HAND, PickUp
from flexor.cli.demo_runs import DT, PENALTY_DT, Check, Run, support
from flexor.cli.demo_swing_up import SwingUp
from flexor.cli.demo_walk import COMMAND, Walks
from flexor.viz import Actor, Animation, Code, Figure, Report, Section, Table
from flexor.viz.adaptation import bands
from flexor.viz.identification import between
from flexor.viz.plots import lines, styled

STAGES = {"measured": "#7a8793", "as described": "#e4792b", "identified": "#2f7ed8", "identified and augmented": "#3f9b6c"}
COLOURS = {"MuJoCo": "#7a8793", "NCP": "#2f7ed8", "Penalty": "#e4792b", "true": "#7a8793", "learned": "#3f9b6c",
           "before": "#7a8793", "after": "#2f7ed8",
           "frozen model": "#e4792b", "adapting model": "#2f7ed8", "QP": "#2f7ed8", "network": "#3f9b6c"}  # fmt: skip

_NEXT = """
flexor info quadruped                                      # what a robot consists of
flexor simulate quadruped --keyframe stand --html q.html   # simulate it and watch it
flexor simulate robot.urdf --floating --ground             # your own robot
flexor certify cube                                        # are its gradients right?
flexor identify config.toml                                # your logs in, an identified robot out
flexor nerd evaluate cartpole                              # compare a learned solver with the true one
flexor train ant-run --until 2400                          # a policy for a task
flexor play ant-run --html ant.html                        # one that comes with flexor
"""


def page(
    swings: Sequence[Run],
    drops: Sequence[Run],
    checks: Sequence[Check],
    identified: Chapter,
    picked_up: PickUp,
    learned: Sequence[Run],
    swing_up: SwingUp,
    walks: Walks,
    certificate: Any,
    seconds: float,
) -> Report:
    """The complete report."""
    return Report(
        "flexor: a first run",
        "Two robots simulated side by side, with flexor's two contact models and with MuJoCo; a double pendulum identified "
        "from a recording; an arm that finds out what it picked up; "
        "a cartpole with a learned solver; another that learns to swing its pole up; a quadruped that walks; "
        "and derivatives compared with finite differences and closed forms. flexor demo computed every number on this page, on "
        "the machine named below.",
        facts(seconds),
        [
            _agreement(checks),
            _pendulum(swings),
            _quadruped(drops),
            _identified(identified),
            _picked_up(picked_up),
            _learned(learned),
            _swing_up(swing_up),
            _walks(walks),
            *_gradients(certificate),
            _next(),
        ],
    )


def facts(seconds: float) -> list[tuple[str, str]]:
    """Versions and machine."""
    versions = [(name, metadata.version(name)) for name in ("flexor", "jax", "mujoco")]
    return [
        *versions,
        ("Python", platform.python_version()),
        ("machine", f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores"),
        ("run time", f"{seconds:.0f} s"),
    ]


def _agreement(checks: Sequence[Check]) -> Section:
    rows = [[c.what, c.value, c.target, c.holds] for c in checks]
    text = (
        "Without contact, flexor and MuJoCo solve the same equations with the same integrator, so they agree to rounding. With "
        "contact, the models differ by design: MuJoCo's contacts are soft, NCP's are rigid up to a small compliance, "
        "Penalty's are stiff springs."
    )
    return Section("Agreement", text, [Table(["difference from MuJoCo", "value", "at most", ""], rows)])


def _pendulum(runs: Sequence[Run]) -> Section:
    time, peer = np.asarray(runs[0].trajectory.time), np.asarray(runs[0].trajectory.q)
    elbow = {r.label: (r.trajectory.time, r.trajectory.q[:, 1]) for r in runs}
    # a logarithmic axis cannot show zero
    off = {r.label: (time, np.maximum(np.abs(r.trajectory.q - peer).max(1), 1e-17)) for r in runs[1:]}
    return Section(
        "Double pendulum",
        "Released from the horizontal position, without contact.",
        [
            Animation(_row(runs, 0.35), "Drag to rotate, scroll to zoom, shift-drag to pan, double-click to reset."),
            Figure(_lines(elbow, "elbow (rad)", "Elbow angle")),
            Figure(_lines(off, "difference (rad)", "Largest difference between an angle and MuJoCo's", log=True)),
        ],
    )


def _quadruped(runs: Sequence[Run]) -> Section:
    height = {r.label: (r.trajectory.time, r.trajectory.q[:, 2]) for r in runs}
    forces = {r.label: (r.trajectory.time[1:], _smooth(support(r), r)) for r in runs[1:]}
    speed = [[r.label, float(r.trajectory.time[1]), len(r.trajectory), r.seconds] for r in runs]
    return Section(
        "Quadruped, dropped",
        "Dropped while rotating, with a servo that drives the legs towards a stance. The arrows are contact forces; MuJoCo's "
        f"are not drawn. NCP uses MuJoCo's time step of {DT * 1e3:g} ms, Penalty needs {PENALTY_DT * 1e3:g} ms.",
        [
            Animation(_row(runs, 0.75)),
            Figure(_lines(height, "height (m)", "Height of the trunk")),
            Figure(
                _lines(forces, "force / weight", "Sum of the normal forces over the weight"),
                "Moving average over 20 ms. At rest the floor carries the whole weight, so the ratio is 1.",
            ),
            Table(["simulated by", "time step (s)", "steps", "seconds, including compilation"], speed),
        ],
    )


def _identified(chapter: Chapter) -> Section:
    """Before and after, in one picture."""
    rows = [
        [r["parameter"], r["start"], r["estimate"], *between(r["start"], r["low"], r["estimate"], r["high"])[1:]]
        for r in chapter.fit.rows()
    ]
    kind = "Recorded" if chapter.real else "Synthetic"
    text = (
        f"{kind}: {chapter.source}. Only the angles are used. A model of two uniform bars of the stated lengths is fitted "
        "to short segments of some runs (lengths, masses, centres of mass, inertias, damping), then a small network is added "
        "to the joint forces and learns the remaining error. All three simulators are evaluated on a run that none of them was "
        "fitted to."
    )
    caption = (
        f"Left: of {chapter.stretches} held-out segments, the one with the median error at its end. The frames before the dotted "
        "line determine the initial state; everything after it is predicted. Right: the median error over all segments."
    )
    blocks = [
        Figure(before_and_after(chapter), caption),
        Table(["parameter", "start", "estimate", "90 % interval"], rows, folded="Identified parameters"),
    ]
    return Section("From a recording to a simulator", text, blocks)


def _picked_up(found: PickUp) -> Section:
    """The estimate and its band as the arm picks something up, and what it is good for."""
    told = "; ".join(str(e) for e in found.events) or "It noticed nothing"
    text = (
        f"Two arms follow the same motion, from noisy sensors. At {found.taken:.2f} s a ball of {found.mass - HAND:.1f} kg is "
        "put into their hands, and nobody tells them. One keeps its model; the other adapts the ten inertial numbers of its hand "
        f"at every sample, and computes its torques with them. What it said: {told}."
    )
    mass, end = "body.hand.mass", float(found.history.time[-1])
    truth = {mass: ([0.0, found.taken, found.taken, end], [HAND, HAND, found.mass, found.mass])}
    time = found.runs[0].trajectory.time
    errors = {label: (time[::10], 1e3 * np.maximum(x[::10], 1e-5)) for label, x in found.errors.items()}
    code = (
        "adapter = fx.adapt.Adapter(sim, free=['body.hand.*'])\n"
        "estimate = adapter.update(time, measured, control)  # at every sample\n"
    )
    blocks = [
        Figure(bands(found.history, [mass], {found.taken: ""}, truth), "Mass in the hand in kg, with its band of 90 %."),
        Animation(_row(found.runs, 0.4)),
        Figure(_lines(errors, "error (mrad)", "Distance from the wanted angles", log=True)),
        Code(code),
    ]
    return Section("An arm picks something up", text, blocks)


def _learned(runs: Sequence[Run]) -> Section:
    """The true cartpole and the learned one."""
    pole = {r.label: (r.trajectory.time, r.trajectory.q[:, 1]) for r in runs}
    cart = {r.label: (r.trajectory.time, r.trajectory.q[:, 0]) for r in runs}
    code = (
        "nerd = fx.nerd.load('cartpole')\nlearned = sim.with_solver(nerd.solver())\n"
        "learned.rollout(learned.reset(q, qd), steps=300)\n"
    )
    text = (
        "A transformer trained on simulated transitions replaces the dynamics behind the same interface. Each step is predicted "
        "from the previous predictions, without correction."
    )
    blocks = [
        Animation(_row(runs, 0.5)),
        Figure(_lines(pole, "pole (rad)", "Angle of the pole")),
        Figure(_lines(cart, "cart (m)", "Position of the cart")),
        Code(code),
    ]
    return Section("Same code, learned physics", text, blocks)


def _swing_up(found: SwingUp) -> Section:
    """The return while the cartpole learned, and what it did before and after."""
    last = found.history[-1]
    text = (
        f"A policy, a network of two layers, is trained from nothing on {last['steps'] / 1e6:.2g} million steps of simulated "
        f"carts, in {found.seconds:.0f} s including compilation. Physics, policy, rewards and resets of all carts run in one "
        "kernel; proximal policy optimisation learns from what they lived through."
    )
    angles = {r.label: (r.trajectory.time, np.unwrap(r.trajectory.q[:, 1])) for r in found.episodes}
    labels = (f"{r.label} training, return {x:.0f}" for r, x in zip(found.episodes, found.returns, strict=True))
    blocks = [
        Figure(_lines({"mean return": found.curve}, "return", "Return of the latest episodes, over the time of training")),
        Animation(_row(found.episodes, 0.6), f"One episode each: {'; '.join(labels)}."),
        Figure(_lines(angles, "pole (rad)", "Angle of the pole; upright is a multiple of 2π")),
        Code("task = fx.envs.make('cartpole')\npolicy = fx.learn.train(task)\nfx.learn.evaluate(policy, task)\n"),
    ]
    return Section("A robot learns", text, blocks)


def _walks(found: Walks) -> Section:
    """The quadruped by its QP and by the network."""
    speed = {r.label: (r.trajectory.time, np.hypot(r.trajectory.qd[:, 0], r.trajectory.qd[:, 1])) for r in found.runs}
    rows = [
        [r.label, *(float(v) for v in w.velocity), "fell" if w.fell else "walked", micro]
        for r, w, micro in zip(found.runs, found.walked, found.planning, strict=True)
    ]
    text = (
        "A controller looks a quarter of a second ahead, and a quadratic program finds the forces of the feet every 20 ms. A "
        "network that learned from the program's solutions takes its place: the same controller, the same command "
        f"({COMMAND[0]:g} m/s forwards, turning at {COMMAND[2]:g} rad/s)."
    )
    columns = ["forces by", "forwards, m/s", "to the left, m/s", "turning, rad/s", "", "time of a control that plans (µs)"]
    return Section(
        "A quadruped walks",
        text,
        [
            Animation(_row(found.runs, 0.9)),
            Figure(_lines(speed, "speed (m/s)", "Horizontal speed of the trunk")),
            Table(columns, rows, "One robot, one thread, called from Python."),
            Code("flexor walk quadruped --command 0.5 0 0.2 --html walk.html\n"),
        ],
    )


def before_and_after(chapter: Chapter) -> matplotlib.figure.Figure:
    """The elbow's angle along a held-out segment, and the error as a function of the time predicted."""
    with styled():
        figure = matplotlib.figure.Figure(figsize=(8.6, 3.0), layout="constrained")
        left, right = figure.subplots(1, 2)
        some, seen = slice(None, None, 4), chapter.time[chapter.seen]
        left.plot(chapter.time[some], chapter.measured[some], "o", markersize=3, color=STAGES["measured"], label="recording")
        for label, q in chapter.stretch.items():
            left.plot(chapter.time, q, color=STAGES[label], label=label)
        low, high = chapter.measured.min(), chapter.measured.max()
        left.set_ylim(low - 0.3 * (high - low) - 0.1, high + 0.3 * (high - low) + 0.1)
        left.axvline(seen, color=STAGES["measured"], linestyle=":", linewidth=1)
        left.set(xlabel="time (s)", ylabel="elbow (rad)", title="A held-out segment")
        for label, error in chapter.errors.items():
            right.plot(chapter.time[chapter.seen :] - seen, error[chapter.seen :], color=STAGES[label], label=label)
        right.set(xlabel="time predicted (s)", ylabel="error (rad)", yscale="log", title="Median error")
        figure.legend(*left.get_legend_handles_labels(), loc="outside lower center", ncols=4, fontsize=8)
    return figure


def _lines(series: dict[str, Any], ylabel: str, title: str, log: bool = False) -> matplotlib.figure.Figure:
    return lines(None, series, ylabel=ylabel, title=title, log=log, colours=COLOURS)


def _row(runs: Sequence[Run], gap: float) -> list[Actor]:
    """The runs side by side along y, the middle one at the origin."""
    middle = (len(runs) - 1) / 2
    return [
        Actor(r.model, r.trajectory, r.label, COLOURS.get(r.label), (0.0, gap * (middle - i), 0.0))
        for i, r in enumerate(runs)
    ]


def _smooth(values: np.ndarray, run: Run) -> np.ndarray:
    """Running mean over 20 ms."""
    window = max(1, round(0.02 / float(run.trajectory.time[1])))
    kernel = np.ones(window)
    return np.convolve(values, kernel, mode="same") / np.convolve(np.ones(len(values)), kernel, mode="same")


def _gradients(certificate: Any) -> list[Section]:
    if certificate is None:
        return []
    groups: dict[tuple[str, str], list[Any]] = {}
    for row in certificate.rows:
        if row.influence or not row.holds:
            groups.setdefault((row.contact, row.mode), []).append(row)
    worst = [
        [contact, mode, len(group), max(float(row.error) for row in group), all(bool(row.holds) for row in group)]
        for (contact, mode), group in groups.items()
    ]
    rows = [[*key, *row] for key, group in tables(certificate).items() for row in group]
    blocks = [
        Table(["contact", "mode", "derivatives", "largest relative error", ""], worst, "; ".join(certificate.remarks)),
        Table(["contact", "mode", *(c.removeprefix(">") for c in COLUMNS)], rows, folded=f"All {len(rows)} derivatives"),
    ]
    text = (
        "Derivatives of rollouts with respect to state, control and every kind of parameter, in each contact mode, against "
        "high-order finite differences in double precision and against closed forms. The robot is the cube."
    )
    return [Section("Gradients", text, blocks)]


def _next() -> Section:
    code = (
        "import jax\nimport flexor as fx\n\nmodel = fx.load('cube')\n\n\ndef slid(friction):\n"
        "    sim = fx.Simulator(fx.replace(model, {'pair.*.friction': friction}))\n"
        "    start = sim.reset('rest', [1.0, 0, 0, 0, 0, 0])\n    return sim.rollout(start, steps=100).q[-1, 0]\n\n\n"
        "print(jax.grad(slid)(0.18))  # metres per unit of friction\n"
    )
    return Section("Next steps", "", [Code(_NEXT), Code(code)])
