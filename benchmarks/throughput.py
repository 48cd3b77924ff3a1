"""How many robots per second? Rollouts by SIMD kernels, MuJoCo C, XLA and MJX, all in one run, on all cores and on one."""

import argparse
import contextlib
import os
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from importlib import resources
from typing import Any, NamedTuple

os.environ.setdefault("FLEXOR_CACHE", tempfile.mkdtemp(prefix="flexor-throughput-"))

import equinox as eqx
import jax
import jax.numpy as jnp
import mujoco
import numpy as np
from _form import Check, Result, at_least, at_most, run, tell
from _scenes import LEG, g1_on_its_feet, heap, panda_grasping
from mujoco import rollout as mujoco_rollout

import flexor as fx
from flexor.dynamics import aba, forward_kinematics
from flexor.solvers.mujoco import mujoco_model

jax.config.update("jax_enable_x64", True)
warnings.simplefilter("ignore")
DT, STEPS = 0.002, 50
CORES = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
SPAN = 0.5  # seconds that something is repeated for, at least
FREE = ("limit", "frictionloss", "equality")  # what robots in the air go without
SPREAD = 0.1  # standard deviation of the initial velocities, rad/s and m/s


def four_feet() -> str:
    """The bundled quadruped (Laikago's figures) with its trunk lifted out of collision: four feet on the ground."""
    text = (resources.files("flexor.robots") / "descriptions" / "quadruped.xml").read_text()
    return text.replace('size="0.22 0.09 0.055" conaffinity="1"', 'size="0.22 0.09 0.055"')


class Case(NamedTuple):
    """A robot, what it touches, and its keyframe. A scene of many contacts is measured in single precision, in
    batches of its own (`scene`)."""

    name: str
    load: Callable[..., fx.Model]
    contact: Any
    start: str | None
    touching: bool
    scene: tuple[int, ...] = ()


def scene(text: Callable[[], str], dtype: Any) -> fx.Model:
    """The model of a text that is made when it is asked for."""
    return fx.load(text(), dtype=dtype)


def cases(quick: bool) -> list[Case]:
    small = [
        Case("cartpole", partial(fx.load, "cartpole", ignore=FREE), None, None, False),
        Case("double_pendulum", partial(fx.load, "double_pendulum"), None, None, False),
    ]
    if quick:
        return small
    return [
        *small,
        Case("panda", partial(fx.load, "panda", ignore=FREE), None, None, False),
        Case("laikago, in the air", partial(fx.load, "laikago", floating=True, ignore=FREE), None, None, False),
        Case("g1, in the air", partial(fx.load, "g1", floating=True, ignore=FREE), None, None, False),
        Case("laikago, four feet, penalty", partial(fx.load, four_feet()), fx.Penalty(), "stand", True),
        Case("laikago, four feet, NCP", partial(fx.load, four_feet()), fx.NCP(), "stand", True),
        Case("ant, NCP", partial(fx.load, "ant"), fx.NCP(), "stand", True),
        Case("g1 on its feet, NCP", partial(scene, g1_on_its_feet), fx.NCP(), "stand", True, (64, 1024)),
        Case("panda grasps a box, NCP", partial(scene, panda_grasping), fx.NCP(), "grasp", True, (64, 1024)),
        Case("20 boxes in a heap, NCP", partial(scene, heap), fx.NCP(), "heap", True, (64,)),
        Case("leg with closed loops, NCP", partial(scene, lambda: LEG), fx.NCP(), "stand", True, (64, 1024)),
    ]


def best(*fs: Callable[[], Any], repeats: int = 3, span: float = 0.0) -> list[float]:
    """Seconds of the fastest of a few runs of each, of more where they are short: for each they last for `span`. They take turns,
    so that all of them meet the same disturbances."""
    for f in fs:
        f()
    times: list[list[float]] = [[] for _ in fs]
    while True:
        waiting = [k for k, t in enumerate(times) if len(t) < repeats or sum(t) < span]
        if not waiting:
            return [min(t) for t in times]
        for k in waiting:
            start = time.perf_counter()
            fs[k]()
            times[k].append(time.perf_counter() - start)


def ready(f: Callable[..., Any], *args: Any) -> Callable[[], Any]:
    """A call of a compiled function that waits for its results."""
    return lambda: jax.block_until_ready(f(*args))


def seconds(f: Callable[..., Any], *args: Any, repeats: int = 3) -> float:
    """Seconds of a call of a compiled function."""
    return best(ready(f, *args), repeats=repeats)[0]


def initial(model: fx.Model, start: str | None, batch: int) -> tuple[np.ndarray, np.ndarray]:
    q = np.asarray(model.reference if start is None else model.keyframe(start))
    qd = np.random.default_rng(0).normal(size=(batch, model.nv)) * SPREAD
    return np.broadcast_to(q, (batch, model.nq)).copy(), qd


def flexor_rollout(case: Case, model: fx.Model, *, simd: bool, threads: int | None = None) -> Callable[..., Any]:
    """A function of batches of q and qd to batches of trajectories."""
    sim = fx.Simulator(model, fx.RigidSolver(contact=case.contact), dt=DT, simd=False)

    def one(q: Any, qd: Any) -> Any:
        trajectory = sim.rollout(sim.solver.init(model, fx.State(q, qd, jnp.zeros((), model.dtype))), steps=STEPS)
        return trajectory.q, trajectory.qd

    return fx.simd.vmap(one, threads=threads) if simd else jax.jit(jax.vmap(one))


@contextlib.contextmanager
def mujoco_rollouts(
    case: Case, model: fx.Model, q: np.ndarray, qd: np.ndarray, threads: int
) -> Iterator[Callable[[], np.ndarray]]:
    """States along the rollouts by `mujoco.rollout` with semi-implicit Euler, as a function to be called. Where flexor's robots
    have nothing to constrain them, MuJoCo's have not either."""
    compiled = mujoco_model(model)
    compiled.opt.timestep = DT
    compiled.opt.disableflags |= int(mujoco.mjtDisableBit.mjDSBL_EULERDAMP)
    if case.contact is None:
        compiled.opt.disableflags |= int(mujoco.mjtDisableBit.mjDSBL_CONSTRAINT)
    state = np.concatenate([np.zeros((len(q), 1)), q, qd], axis=1)
    assert state.shape[1] == mujoco.mj_stateSize(compiled, mujoco.mjtState.mjSTATE_FULLPHYSICS)
    data = [mujoco.MjData(compiled) for _ in range(threads)]
    with mujoco_rollout.Rollout(nthread=threads) as pool:
        yield lambda: pool.rollout([compiled] * len(q), data, state, nstep=STEPS)[0]


MJX = """
import sys, time, warnings
sys.path.insert(0, {here!r})
warnings.simplefilter("ignore")
import jax, jax.numpy as jnp
import throughput as t
from mujoco import mjx
jax.config.update("jax_enable_x64", False)
case = [c for c in t.cases(False) if c.name == {name!r}][0]
model = case.load(dtype=jnp.float32)
compiled = t.mujoco_model(model)
compiled.opt.timestep = t.DT
if case.contact is None:
    compiled.opt.disableflags |= int(t.mujoco.mjtDisableBit.mjDSBL_CONSTRAINT)
on_device = mjx.put_model(compiled)
data = mjx.make_data(on_device)
def one(q, qd):
    return jax.lax.scan(lambda d, _: (mjx.step(on_device, d), None), data.replace(qpos=q, qvel=qd), None, length=5)[0].qpos
q, qd = (jnp.asarray(x, jnp.float32) for x in t.initial(model, case.start, {batch}))
print("ns", t.seconds(jax.jit(jax.vmap(one)), q, qd, repeats=1) * 1e9 / {batch} / 5)
"""


def mjx_ns(name: str, batch: int = 256, patience: float = 180.0) -> float | str:
    """Nanoseconds of a step of MJX, in a process of its own: its XLA program has been seen to hang on two cores."""
    code = MJX.format(here=os.path.dirname(os.path.abspath(__file__)), name=name, batch=batch)
    try:
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=patience)
    except subprocess.TimeoutExpired:
        return "hangs"
    return float(done.stdout.split("ns")[-1])


def measure_case(case: Case, quick: bool) -> Iterator[dict[str, Any]]:
    batches = (1, 64) if quick else case.scene if case.scene else (1, 64, 1024, 8192)
    dtypes = (jnp.float32,) if quick or case.scene else (jnp.float32, jnp.float64)
    span = 0.0 if quick else SPAN
    reference = case.load(dtype=jnp.float64)
    for dtype in dtypes:
        model = case.load(dtype=dtype)
        simd, alone, xla = (
            flexor_rollout(case, model, simd=s, threads=t) for s, t in ((True, None), (True, 1), (False, None))
        )
        for batch in batches:
            q, qd = initial(reference, case.start, batch)
            args = jnp.asarray(q, dtype), jnp.asarray(qd, dtype)
            ns = 1e9 / batch / STEPS
            found = jax.block_until_ready(simd(*args))
            with mujoco_rollouts(case, reference, q, qd, min(CORES, batch)) as peer:
                end = peer()[:, -1, 1 : 1 + model.nq]
                runs = [ready(simd, *args), peer, *([ready(alone, *args)] if batch >= 1024 else [])]
                ours, theirs, *one = (t * ns for t in best(*runs, span=span))
            with_xla: float | str = ""
            if not case.scene and batch in (64, 1024) and dtype == jnp.float32 and (batch == 64 or not case.touching):
                with_xla = seconds(xla, *args, repeats=1) * ns
            with_mjx: float | str = ""
            if batch == 1024 and dtype == jnp.float32 and case.name in ("ant, NCP", "laikago, in the air"):
                with_mjx = mjx_ns(case.name)
            yield {
                "robot": case.name, "nv": model.nv, "dtype": jnp.dtype(dtype).name, "batch": batch, "simd ns": ours,
                "one thread ns": one[0] if one else "", "MuJoCo ns": theirs, "XLA ns": with_xla, "MJX ns": with_mjx,
                "times MuJoCo": theirs / ours,
                "distance to MuJoCo": float(np.abs(np.asarray(found[0][:, -1], float) - end).max()),
            }  # fmt: skip


def peak_flops(dtype: Any) -> float:
    """Flops per second of one thread in a kernel of nothing but fused multiply-adds."""
    x = jnp.linspace(0.1, 0.9, 24).astype(dtype)
    rows = jnp.broadcast_to(x, (256, 24))

    def f(x: Any) -> Any:
        def body(c: Any, _: Any) -> Any:
            for _ in range(8):
                c = c * 0.999 + 0.001
            return c, None

        return jax.lax.scan(body, x, None, length=20_000)[0]

    g = fx.simd.vmap(f, threads=1)
    return 2 * 8 * 24 * 20_000 * 256 / seconds(g, rows)


def aba_share(dtype: Any) -> tuple[float, float]:
    """Flops per second of forward dynamics of Laikago on one thread, and nanoseconds."""
    model = fx.load("laikago", floating=True, dtype=dtype)
    sources = initial(model, None, 1024)
    q, qd = (jnp.asarray(x, dtype) for x in sources)

    def f(q: Any, qd: Any) -> Any:
        return aba(model, forward_kinematics(model, q), qd, jnp.zeros_like(qd))

    about = fx.simd.inspect(f, q[0], qd[0])
    g = fx.simd.vmap(f, threads=1)
    taken = seconds(g, q, qd) / 1024
    return about.flops / taken, taken * 1e9


COMPILE = """
import sys, time, warnings
sys.path.insert(0, {here!r})
warnings.simplefilter("ignore")
import jax, jax.numpy as jnp
import throughput as t, flexor as fx
from flexor.simd.compiler import Signature, compile_kernel
case = [c for c in t.cases(False) if c.name == {name!r}][0]
model = case.load(dtype=jnp.float32)
sim = fx.Simulator(model, fx.RigidSolver(contact=case.contact), dt=t.DT, simd=False)
def one(q, qd):
    return sim.rollout(sim.solver.init(model, fx.State(q, qd, jnp.zeros((), model.dtype))), steps=100).q[-1].sum()
for f in (one, jax.grad(one, (0, 1))):
    begun = time.perf_counter()
    jaxpr = jax.make_jaxpr(f)(model.reference, jnp.zeros(model.nv, jnp.float32))
    traced = time.perf_counter() - begun
    kernel = compile_kernel(jaxpr, Signature((False, False), (False,) * len(jaxpr.out_avals), False))
    print(kernel.warm, kernel.seconds["total"], traced)
"""


def compile_seconds(name: str) -> tuple[dict[str, float], list[float]]:
    """Seconds to compile a rollout and its gradient, cold and, in a second process, from disk; and those that JAX took to trace
    them in the second process."""
    here = os.path.dirname(os.path.abspath(__file__))
    found: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as folder:
        for kind in ("cold", "warm"):
            done = subprocess.run([sys.executable, "-c", COMPILE.format(here=here, name=name)], capture_output=True, text=True,
                                  check=True, env={**os.environ, "FLEXOR_CACHE": folder})  # fmt: skip
            forward, gradient = (line.split() for line in done.stdout.splitlines())
            assert (forward[0], gradient[0]) == (str(kind == "warm"),) * 2
            found |= {f"forward, {kind}": float(forward[1]), f"gradient, {kind}": float(gradient[1])}
    return found, [float(forward[2]), float(gradient[2])]


def gradient_ratio(case: Case) -> float:
    """Time of the gradient of 100 steps to initial state, controls and masses over that of the rollout."""
    model = case.load(dtype=jnp.float32)
    sim = fx.Simulator(model, fx.RigidSolver(contact=case.contact), dt=DT, simd=False)
    q, qd = (jnp.asarray(x, jnp.float32) for x in initial(model, case.start, 1024))
    u = jnp.zeros((1024, 100, model.nu), jnp.float32)

    def end(q: Any, qd: Any, u: Any, masses: Any) -> Any:
        robot = eqx.tree_at(lambda m: m.bodies.mass, model, masses)
        moved = fx.Simulator(robot, sim.solver, dt=DT, simd=False)
        return moved.rollout(moved.solver.init(robot, fx.State(q, qd, jnp.zeros((), jnp.float32))), u).q[-1].sum()

    masses = model.bodies.mass
    axes = (0, 0, 0, None)
    value = fx.simd.vmap(end, axes)
    gradient = fx.simd.vmap(jax.grad(end, (0, 1, 2, 3)), axes)
    times = best(*(ready(f, q, qd, u, masses) for f in (value, gradient)), span=SPAN)
    return times[1] / times[0]


def measure(quick: bool, *, only: list[str]) -> Result:
    """All cases and what else is asked of kernels; with `only`, cases alone whose name has one of these texts in it."""
    chosen = [c for c in cases(quick) if not only or any(text in c.name for text in only)]
    if not chosen:
        raise SystemExit(
            f"no case has {' or '.join(map(repr, only))} in its name; there are {', '.join(c.name for c in cases(quick))}."
        )
    rows = []
    for case in chosen:
        for row in measure_case(case, quick):
            rows.append(row)
            tell(
                f"{row['robot']}, {row['dtype']}, {row['batch']}: {row['simd ns']:.0f} ns, {row['times MuJoCo']:.1f} x MuJoCo"
            )
    checks: list[Check] = []
    remarks: list[str] = []
    for row in rows:
        half = 1.0 if row["dtype"] == "float32" else 0.5
        touching = any(c.touching for c in cases(quick) if c.name == row["robot"])
        label = f"{row['robot']}, {row['dtype']}, {row['batch']}"
        scenes = {c.name: max(c.scene) for c in cases(quick) if c.scene}
        if row["batch"] >= scenes.get(row["robot"], 1024) and (touching or row["nv"] >= 18):
            times = (10 if touching else 20) * half
            checks.append(at_least(f"times MuJoCo: {label}", row["times MuJoCo"], times, timed=True))
        if not touching and row["dtype"] == "float64":  # positions after fifty steps, of the size of one
            checks.append(at_most(f"distance to MuJoCo: {label}", row["distance to MuJoCo"], 1e-12))
        if row["batch"] == 1:
            checks.append(at_most(f"one robot, times MuJoCo's time: {label}", 1 / row["times MuJoCo"], 1.0, timed=True))
        if row["batch"] == 8192:
            ratio = row["one thread ns"] / row["simd ns"]
            checks.append(at_least(f"two threads over one: {label}", ratio, 1.6, timed=True))
    if only:
        return Result(rows, checks, remarks)
    for dtype in (jnp.float32, jnp.float64) if not quick else ():
        peak, (rate, ns) = peak_flops(dtype), aba_share(dtype)
        remarks.append(
            f"{jnp.dtype(dtype).name}: peak {peak / 1e9:.0f} Gflop/s on one thread, ABA {rate / 1e9:.0f} ({ns:.0f} ns)"
        )
        checks.append(at_least(f"share of the peak FMA rate in ABA, {jnp.dtype(dtype).name}", rate / peak, 0.25, timed=True))
    if not quick:
        for name, forward, gradient in (("laikago, four feet, NCP", 5.0, 15.0), ("g1, in the air", 10.0, 40.0)):
            taken, traced = compile_seconds(name)
            remarks.append(
                f"{name}: before compiling, JAX traces for {traced[0]:.2f} s (rollout), {traced[1]:.2f} s (gradient)"
            )
            limits = {k: 0.5 if "warm" in k else forward if "forward" in k else gradient for k in taken}
            checks += [at_most(f"compile {k}: {name}", s, limits[k], "s", timed=True) for k, s in taken.items()]
        for case in cases(False):
            if case.name.startswith("laikago"):
                what = f"gradient of 100 steps, times the rollout: {case.name}"
                checks.append(at_most(what, gradient_ratio(case), 5.0, timed=True))
        remarks.append(f"Pinocchio's ABA of Laikago, called from Python: {pinocchio_ns():.0f} ns")
    return Result(rows, checks, remarks)


def pinocchio_ns() -> float:
    import pinocchio as pin

    from flexor.robots.find import find

    model = pin.buildModelFromUrdf(str(find("laikago")), pin.JointModelFreeFlyer())
    data, q, v = model.createData(), pin.neutral(model), np.zeros(model.nv)
    return best(lambda: [pin.aba(model, data, q, v, v) for _ in range(1000)])[0] * 1e6


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--only", action="append", default=[], metavar="TEXT", help="cases with this in their name; may be repeated"
    )


if __name__ == "__main__":
    run("How many robots per second, compared with MuJoCo, XLA and MJX?", measure, add_options)
