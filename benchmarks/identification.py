"""All inertial parameters, damping and dry friction of a 7-dof arm from noisy encoders and torques, beginning at the bounds.

MuJoCo plays the robot for 40 s. `fx.identify`, `mujoco.sysid` and CMA-ES minimise the same loss over the same segments:
squared errors of the positions, each segment simulated from its measured start. Success: the error on held-out runs is at most
`WITHIN` times that of the true parameters in MuJoCo itself.

What is counted, for all of them: from the call until the iterate whose error on the held-out runs, simulated by MuJoCo, is for
the first time that of success; judging it is not counted. flexor's iterates are judged after its fit, which runs to its own end
(that is printed too, and success is that of its end). Its first fit begins with empty caches, so it traces and compiles
everything; further fits of the same robot, whatever the logs and the start, reuse that. Both are compared. What compiling takes
is the first fit, the median of `FIRST` fresh processes, less the same fit again. The kernels that CMA-ES borrows from flexor are
compiled before. A peer that needs more than `PATIENCE` times flexor's first fit is stopped, and its time is that at which it was.
"""

import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

os.environ.setdefault("FLEXOR_CACHE", tempfile.mkdtemp(prefix="flexor-identification-"))

import jax
import numpy as np
from _arm import DT, STEPS, Case, arm, case, named_bounds, prepared, simulate
from _form import Check, Result, run, tell
from _peers import Evolution, Reached, by_sysid

import flexor as fx
from flexor.solvers.mujoco import mujoco_model

jax.config.update("jax_enable_x64", True)
WITHIN = 1.1
FASTER = 10.0
PATIENCE = 11.0
FIRST = 3
FREE = ("body.*.mass", "body.*.com", "body.*.inertia", "joint.*.damping", "joint.*.frictionloss")
SOLVER = fx.RigidSolver(contact=fx.NCP(), integrator=fx.ImplicitDamping())


class Watched(fx.LevenbergMarquardt):
    """The search, with the time and place of every iterate kept in `seen`."""

    seen: ClassVar[list[tuple[float, Any, Any]]] = []

    def outcome(self, problem: Any, state: Any) -> Any:
        self.seen.append((time.perf_counter(), problem, state.z))
        return super().outcome(problem, state)


SEARCH = Watched(iterations=60, tolerance=1e-3)


@dataclass(frozen=True)
class Fitted(Reached):
    """`reached` and `error` are those of the end, which came after `whole` seconds."""

    whole: float
    unknown: tuple[str, ...]


def by_flexor(nominal: fx.Model, x: Case) -> Fitted:
    sim, logs, apart = fx.Simulator(x.start, SOLVER, dt=DT), x.training.logs(nominal), x.held_out.logs(nominal)
    Watched.seen.clear()
    begun = time.perf_counter()
    fit = fx.identify(sim, logs, FREE, bounds=named_bounds(nominal), search=SEARCH, held_out=apart)
    error, target = x.held_out.error(fit.curves.after[fit.curves.held_out][:, 1:]), WITHIN * x.true_error
    times = [at - begun for at, _, _ in Watched.seen]
    first = next((i for i, (_, p, z) in enumerate(Watched.seen) if _judged(p, z, x) <= target), len(times) - 1)
    unknown = () if fit.posterior is None else tuple(str(c) for c in fit.posterior.unidentifiable[:2])
    return Fitted(times[first], 0.0, error <= target, error, first, times[-1], unknown)


def _judged(problem: Any, z: Any, x: Case) -> float:
    """The held-out error of an iterate, by MuJoCo as for the peers."""
    model = problem.coordinates.apply(problem.sim.model, z)[0]
    return x.held_out.error(simulate(prepared(mujoco_model(model)), x.held_out))


FRESH = """
import sys
sys.path.insert(0, {here!r})
import identification as i
nominal = i.arm({joints})
print("seconds", i.by_flexor(nominal, i.case(nominal, 0, {segments})).seconds)
"""


def first_seconds(joints: int, segments: int) -> float:
    """Seconds that a first fit takes to the error of success, in a process of its own with empty caches."""
    code = FRESH.format(here=os.path.dirname(os.path.abspath(__file__)), joints=joints, segments=segments)
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(
            [sys.executable, "-c", code],
            capture_output=True,
            text=True,
            check=True,
            env={**os.environ, "FLEXOR_CACHE": folder},
        )
    return float(done.stdout.split("seconds")[-1])


def measure(quick: bool) -> Result:
    joints, seeds, segments, peers = (1, 2, 16, 1) if quick else (7, 50, 200, 2)
    nominal = arm(joints)
    first = by_flexor(nominal, case(nominal, 0, segments))
    firsts = [first.seconds, *(first_seconds(joints, segments) for _ in range(0 if quick else FIRST - 1))]
    told = ", ".join(f"{s:.1f}" for s in firsts)
    tell(f"first fits: {told} s to the error of success, the first of them {first.whole:.1f} s to its end")
    own: list[Fitted] = []
    ratios: list[float] = []
    for seed in range(seeds):
        x = case(nominal, seed, segments)
        own.append(by_flexor(nominal, x))
        ratios.append(own[-1].error / x.true_error)
        tell(
            f"seed {seed}: {own[-1].seconds:.1f} s in {own[-1].iterations} iterations, {own[-1].whole:.1f} s to its end at "
            f"{ratios[-1]:.3f} times the truth's error"
        )
    compiling = statistics.median(firsts) - own[0].seconds
    limit = 3.0 if quick else PATIENCE * first.whole
    cases = [case(nominal, seed, segments) for seed in range(peers)]
    tell(f"peers, each at most {limit:.0f} s for each of {peers} seeds")
    sysid = [by_sysid(nominal, x, WITHIN * x.true_error, limit) for x in cases]
    evolution = Evolution(nominal, SOLVER, DT)
    cma = [evolution.run(x, WITHIN * x.true_error, limit) for x in cases]
    later = float(np.mean([r.seconds for r in own[:peers]]))
    rows = [_row("flexor", own, ratios, later)]
    checks = [_succeeds(joints, own)]
    for name, runs in (("mujoco.sysid", sysid), ("CMA-ES", cma)):
        rows.append(_row(name, runs, [r.error / x.true_error for r, x in zip(runs, cases, strict=True)], later))
        checks += [_faster(name, runs, later + compiling, "first fit, all compilation counted")]
        checks += [_faster(name, runs, later, "later fits, compiled programs reused")]
    ends = float(np.mean([r.whole for r in own[:peers]]))
    remarks = [
        f"{12 * joints} free numbers; {segments} segments of {STEPS * DT:g} s at {1 / DT:.0f} Hz; success: held-out error at "
        f"most {WITHIN} times that of the truth.",
        f"flexor's first fits reached it after {told} s, and one ended after {first.whole:.1f} s; the same fit again "
        f"{own[0].seconds:.1f} and {own[0].whole:.1f} s. Peers: the first {peers} of {seeds} seeds, for which flexor's later "
        f"fits ended after {ends:.1f} s; each stopped after the iteration in which {limit:.0f} s were over; '>': stopped before "
        "the error was reached.",
        *own[-1].unknown,
    ]
    return Result(rows, checks, remarks)


def _succeeds(joints: int, own: Sequence[Reached]) -> Check:
    share = float(np.mean([r.reached for r in own]))
    return Check(f"{joints} joints: share of {len(own)} seeds that succeed", share, ">= 0.95", share >= 0.95)


def _faster(peer: str, runs: Sequence[Reached], seconds: float, what: str) -> Check:
    ratio = float(np.mean([r.seconds for r in runs])) / seconds
    return Check(f"times faster than {peer}: {what}", _at_least(runs, ratio), f">= {FASTER:g}", ratio >= FASTER, timed=True)


def _at_least(runs: Sequence[Reached], x: float) -> str:
    return f"{x:.1f}" if all(r.reached for r in runs) else f"> {x:.1f}"


def _row(name: str, runs: Sequence[Reached], ratios: list[float], later: float) -> dict[str, object]:
    seconds = float(np.mean([r.seconds for r in runs]))
    return {
        "method": name,
        "runs": len(runs),
        "reached": sum(r.reached for r in runs),
        "held-out error / truth's, median": float(np.median(ratios)),
        "worst": float(np.max(ratios)),
        "iterations": float(np.mean([r.iterations for r in runs])),
        "s a run, compilation apart": _at_least(runs, seconds) if name != "flexor" else f"{seconds:.1f}",
        "times flexor's later fits": _at_least(runs, seconds / later) if name != "flexor" else "1",
    }


if __name__ == "__main__":
    run("How fast are all inertial parameters of an arm found, and how often?", measure)
