"""How long does an update of an adapter take, and does its memory grow? Samples of a consistent motion at a kilohertz, replayed.

The Panda for ten minutes of samples under recursive least squares, a minute under the Kalman filter; G1, hung up by its pelvis,
adapts ten numbers of its torso. The motion is periodic, its torques are inverse dynamics with the true payload, which the
adapter is not told.
"""

import os
import resource
import sys
import tempfile
import time
import warnings
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import mujoco
import numpy as np
from _form import Check, Result, at_most, run, tell

import flexor as fx
from flexor import adapt, control
from flexor.control.tracking import inverse

warnings.simplefilter("ignore")
RATE, PERIOD = 1000, 4.0  # samples a second; s, after which the motion begins again
EXTRA = 2.0  # kg on the body, more than the adapter believes
WARM = 1000  # updates before times and memory count
CASES: tuple[tuple[str, str, str, float], ...] = (
    ("panda", "MomentumRLS", "panda_hand", 600.0),
    ("panda", "Kalman", "panda_hand", 60.0),
    ("g1", "MomentumRLS", "torso_link", 60.0),
    ("g1", "Kalman", "torso_link", 5.0),
)


def robot(name: str) -> fx.Model:
    """The arm with seven motors, its fingers fixed; G1 as it is described, its pelvis fixed."""
    if name != "panda":
        return fx.load(name)
    with tempfile.TemporaryDirectory() as folder:
        fx.save(fx.load(name), Path(folder) / "panda.xml")
        spec = mujoco.MjSpec.from_file(str(Path(folder) / "panda.xml"))
    others = [*spec.equalities, *spec.actuators, *spec.geoms, *spec.numerics, *spec.texts]
    for x in [*others, *(j for j in spec.joints if "finger" in j.name)]:
        spec.delete(x)
    for x in spec.joints:
        spec.add_actuator(name=x.name, target=x.name, trntype=mujoco.mjtTrn.mjTRN_JOINT)
    return fx.load(spec.compile())


def motion(model: fx.Model, body: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Coordinates, velocities and inputs over a period."""
    rng = np.random.default_rng(0)
    turns = rng.integers(1, 4, model.nv) / PERIOD
    zeros, phase = np.zeros(model.nv), rng.uniform(0, 6, model.nv)
    parts = [jnp.asarray(x, model.dtype) for x in (zeros, zeros + 0.4, turns, phase)]
    sines = control.Sines(parts[0], parts[1], parts[2], parts[3], rise=1e-9)
    truth = fx.replace(model, {f"body.{body}.mass": fx.parameters(model, f"body.{body}.mass")[f"body.{body}.mass"] + EXTRA})
    policy = control.ComputedTorque(truth, sines)

    @jax.jit
    @jax.vmap
    def at(t: Any) -> Any:
        q, qd, qdd = sines(t)
        return q, qd, policy.inputs(inverse(truth, q, qd, qdd, qd, 0.02))

    t = jnp.asarray(np.arange(round(PERIOD * RATE)) / RATE, model.dtype)
    q, qd, _ = (np.asarray(x, float) for x in at(t))
    _, _, u = (np.asarray(x, float) for x in at(t + 0.5 / RATE))  # inputs are held until the next sample
    return q, qd, u


def resident() -> float:
    """Memory of this process in MB."""
    if sys.platform == "linux":
        with open("/proc/self/statm", encoding="ascii") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6


def case(name: str, estimator: str, body: str, seconds: float) -> dict[str, Any]:
    model = robot(name)
    sim = fx.Simulator(model, fx.RigidSolver(contact=None), dt=1 / RATE)
    begun = time.perf_counter()
    rule = adapt.MomentumRLS() if estimator == "MomentumRLS" else adapt.Kalman(iterations=1)
    adapter = adapt.Adapter(sim, [f"body.{body}.*"], estimator=rule, noise={"q.*": 1e-4, "qd.*": 1e-3})
    compiled = time.perf_counter() - begun
    q, qd, u = motion(model, body)
    rng, count = np.random.default_rng(1), round(seconds * RATE)
    taken, busy, noise = np.zeros(count), np.zeros(count), 1e-4 * rng.normal(size=(5003, 2 * model.nv))
    noise[:, model.nv :] *= 10
    y, clock, before = np.concatenate([q, qd], axis=1), time.perf_counter_ns, 0.0
    for k in range(count):
        row, measured = k % len(q), y[k % len(q)] + noise[k % 5003]
        start, work = clock(), time.thread_time_ns()
        adapter.update(k / RATE, measured, u[row])
        busy[k], taken[k] = time.thread_time_ns() - work, clock() - start
        if k == WARM:
            before = resident()
    true = float(fx.parameters(model, f"body.{body}.mass")[f"body.{body}.mass"]) + EXTRA
    found = float(fx.parameters(adapter.robot(), f"body.{body}.mass")[f"body.{body}.mass"])
    late, busy = taken[WARM:] / 1e3, busy[WARM:] / 1e3
    return {"robot": name, "estimator": estimator, "updates": count, "median µs": float(np.median(late)),
            "99th percentile µs": float(np.percentile(late, 99)),
            "of processor time µs": float(np.percentile(busy, 99)), "memory grew by MB": round(resident() - before, 2),
            "mass off, %": 100 * abs(found / true - 1), "alarms": len(adapter.alarms), "compiled in s": round(compiled, 1),
            }  # fmt: skip


def measure(quick: bool) -> Result:
    rows, checks = [], []
    for name, estimator, body, seconds in CASES[:1] if quick else CASES:
        tell(f"{name}: {estimator}")
        row = case(name, estimator, body, 4.0 if quick else seconds)
        rows.append(row)
        tell(f"{row}")  # a full run is long
        what = f"{name}, {estimator}"
        checks.append(at_most(f"{what}: memory grew by", row["memory grew by MB"], 1.0, "MB"))
        if (name, estimator) == ("panda", "MomentumRLS"):
            checks += timed(what, row)
            checks.append(at_most(f"{what}: mass off", row["mass off, %"], 2.0, "%"))
    return Result(
        rows, checks, ["one core; every update is timed by itself; memory from the thousandth update to the last."]
    )


def timed(what: str, row: dict[str, Any]) -> list[Check]:
    return [
        at_most(f"{what}: median update", row["median µs"], 300, "µs", timed=True),
        at_most(f"{what}: 99th percentile", row["99th percentile µs"], 1000, "µs", timed=True),
    ]


if __name__ == "__main__":
    run("How long does an update of an adapter take, and does its memory grow?", measure)
