"""How long does a quadruped's convex MPC take? OSQP, DAQP, ProxQP, flexor's own solver and a network, on problems from one walk.

Each begins with the data of the problem (`ForceProblem`) and ends with forces: building the QP is part of it. Peers build the
dense QP in NumPy, swing legs dropped, and are called as their documentation has it.
"""

import os
import time
import warnings
from collections.abc import Callable
from typing import Any

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # threads cost more than they bring where matrices are so small
os.environ.setdefault("OMP_NUM_THREADS", "1")

import jax
import jax.numpy as jnp
import numpy as np
from _form import Check, Result, at_least, at_most, run, tell

import flexor as fx
from flexor.control import GAITS, DenseQP, ForceProblem, InteriorPoint, Quadruped, Twin, Walker, dense, on_its_feet
from flexor.control.osqp_forces import osqp_forces

warnings.simplefilter("ignore")
DT = 0.002
KINDS = {"trot": "trot", "stance": "stand"}  # problems, and the gaits that they come from
ACCURACY = 1e-3  # of the weight
BATCH = 1024
LIMITS = {"trot": 20, "stance": 80}  # microseconds for each problem of a batch
STEPS = 130  # of the walk before a problem is taken


def problems(gait: str, count: int) -> tuple[ForceProblem, Any]:
    """Problems of a robot that follows random commands, at random instants of its gait, and the forces of its last plans."""
    robot = Quadruped.of(on_its_feet(fx.load("quadruped", dtype=jnp.float32)))
    sim = fx.Simulator(robot.model, dt=DT)
    rng = np.random.default_rng(0)
    reach = 0.0 if gait == "stand" else 1.0
    commands = rng.uniform(-1, 1, (count, 3)) * [0.6, 0.2, 0.8] * reach
    starts = rng.uniform(0, GAITS[gait].period, (count, 1))
    bumps = rng.normal(size=(count, robot.model.nv)) * np.repeat([0.2, 0.0], [6, robot.model.nv - 6])

    def problem(command: Any, start: Any, bump: Any) -> tuple[ForceProblem, Any]:
        walker = Walker(robot, command, DT, gait=GAITS[gait], start=start[0])
        made = sim.rollout(sim.reset(jnp.asarray(robot.stand), bump), walker, steps=STEPS)
        memory = made.policy_memory
        assert made.final is not None
        stands = walker.gait.stands(walker.gait.phases(memory.time))
        return walker.problem(walker.look(made.final), memory.time, stands), memory.forces

    return fx.simd.vmap(problem)(*(jnp.asarray(x, jnp.float32) for x in (commands, starts, bumps)))


def daqp(qp: DenseQP) -> np.ndarray:
    import daqp

    high = np.where(np.isinf(qp.high), 1e30, qp.high)
    return daqp.solve(qp.H, qp.g, qp.C, high, qp.low, np.zeros(len(high), np.int32))[0]


def proxqp(qp: DenseQP, tolerance: float = 1e-4) -> np.ndarray:
    import proxsuite

    solver = proxsuite.proxqp.dense.QP(len(qp.g), 0, len(qp.low))
    solver.settings.eps_abs = tolerance
    solver.init(qp.H, qp.g, None, None, qp.C, qp.low, qp.high)
    solver.solve()
    return solver.results.x


def full(solve: Callable[[DenseQP], np.ndarray], p: ForceProblem) -> np.ndarray:
    """All forces by a solver of dense QPs, from the problem's data."""
    qp = dense(p)
    forces = np.zeros(p.arms.size)
    forces[qp.columns] = solve(qp)
    return forces.reshape(p.arms.shape)


def alone(f: Callable[..., Any], example: tuple[ForceProblem, Any]) -> Callable[..., np.ndarray]:
    """A kernel for one problem, called on NumPy arrays."""
    shapes = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), example)
    program = fx.simd.Direct(lambda p, start: f(p, start).forces, *shapes)

    def call(p: ForceProblem, start: np.ndarray) -> np.ndarray:
        for mine, x in zip(program.inputs, jax.tree.leaves((p, start)), strict=True):
            mine[...] = x
        program.run()
        return program.outputs[0]

    return call


def together(f: Callable[..., Any], batch: Any, runs: int) -> float:
    """Microseconds for each of `BATCH` problems at once."""
    copies = -(-BATCH // len(batch[1]))
    rows = jax.tree.map(lambda x: jnp.concatenate([x] * copies)[:BATCH], batch)
    solve = fx.simd.vmap(lambda p, start: f(p, start).forces)
    solve(*rows).block_until_ready()
    times = []
    for _ in range(runs):
        before = time.perf_counter()
        solve(*rows).block_until_ready()
        times.append(time.perf_counter() - before)
    return float(np.median(times)) / BATCH * 1e6


def walking(robots: int, steps: int) -> float:
    """Robot-seconds of walking in a minute: the whole loop of robot and controller in one kernel, once it is compiled."""
    robot = Quadruped.of(on_its_feet(fx.load("quadruped", dtype=jnp.float32)))
    sim = fx.Simulator(robot.model, dt=DT)

    def end(command: Any) -> Any:
        made = sim.rollout(sim.reset(jnp.asarray(robot.stand)), Walker(robot, command, DT), steps=steps)
        return made.q[-1], made.policy_memory.refused

    rng = np.random.default_rng(0)
    commands = jnp.asarray(rng.uniform(-1, 1, (robots, 3)) * [0.6, 0.2, 0.8], jnp.float32)
    walk = fx.simd.vmap(end)
    jax.block_until_ready(walk(commands))
    before = time.perf_counter()
    q, _ = jax.block_until_ready(walk(commands))
    seconds = time.perf_counter() - before
    standing = np.asarray(q)[:, 2] > robot.stand[2] / 2
    return float(standing.sum()) * steps * DT / seconds * 60


def errors(flexor: Callable[..., np.ndarray], each: list[tuple[ForceProblem, Any]]) -> np.ndarray:
    """Largest differences of our forces from those of DAQP, ProxQP and OSQP at tight tolerances, over the weight."""
    found = []
    for p, start in each:
        weight, own = float(p.mass * p.gravity), np.array(flexor(p, start))
        others = (full(daqp, p), full(lambda qp: proxqp(qp, 1e-9), p), osqp_forces(p, start, 1e-7)[0])
        found.append([np.abs(own - x).max() / weight for x in others])
    return np.max(found, axis=0)


def measure(quick: bool) -> Result:
    rows: list[dict[str, Any]] = []
    checks: list[Check] = []
    count, runs = (8, 2) if quick else (64, 20)
    own, twin = InteriorPoint(), Twin.fresh(jax.random.key(0))
    for kind, gait in KINDS.items():
        tell(f"{kind}: problems")
        batch = problems(gait, count)
        each = [jax.tree.map(lambda x, k=k: np.asarray(x[k]), batch) for k in range(count)]
        ways: dict[str, Callable[..., Any]] = {
            "OSQP": lambda p, start: osqp_forces(p, start, 1e-3)[0],
            "DAQP": lambda p, start: full(daqp, p),
            "ProxQP": lambda p, start: full(proxqp, p),
            "flexor": alone(own, each[0]),
            "network": alone(twin, each[0]),
            "building alone": lambda p, start: dense(p),
        }
        tell(f"{kind}: one at a time")
        times: dict[str, list[float]] = {way: [] for way in ways}
        for _ in range(runs):
            for p, start in each:
                for way, solve in ways.items():
                    before = time.perf_counter()
                    solve(p, start)
                    times[way].append(time.perf_counter() - before)
        middle = {way: float(np.median(t)) * 1e6 for way, t in times.items()}
        tell(f"{kind}: {BATCH} at once")
        batched = {"flexor": together(own, batch, runs), "network": together(twin, batch, runs)}
        rows += [
            {"problems": kind, "by": way, "alone µs": middle[way], f"µs each of {BATCH}": batched.get(way, ""),
             "of OSQP": middle[way] / middle["OSQP"]}
            for way in ways
        ]  # fmt: skip
        own_forces = errors(ways["flexor"], each)
        checks += [
            at_most(f"{kind}: flexor's forces from DAQP's, over the weight", float(own_forces[0]), ACCURACY),
            at_most(f"{kind}: flexor's forces from ProxQP's, over the weight", float(own_forces[1]), ACCURACY),
            at_most(f"{kind}: flexor's forces from OSQP's, over the weight", float(own_forces[2]), ACCURACY),
            at_most(f"{kind}: alone, of OSQP with its building", middle["flexor"] / middle["OSQP"], 0.2, timed=True),
            at_most(f"{kind}: in a batch", batched["flexor"], LIMITS[kind], "µs", timed=True),
            at_least(f"{kind}: network, times as fast as OSQP", middle["OSQP"] / middle["network"], 10, timed=True),
        ]
    tell("the whole loop")
    rate = walking(128 if quick else BATCH, 500)
    checks.append(at_least("robot-seconds of walking in a minute, of robots that stand at the end", rate, 5000, timed=True))
    remarks = [
        "Single precision for flexor and the network (random weights: times do not depend on them), double for the others.",
        "OSQP: tolerance 1e-3 with polishing, as in the paper; set up anew for each problem, whose size changes with the gait.",
        "OSQP and flexor start from the last plan's forces. One thread alone, all cores in the batch.",
    ]
    return Result(rows, checks, remarks)


if __name__ == "__main__":
    run("How long does a quadruped's convex MPC take, alone and in batches?", measure)
