"""All inertial parameters, damping and dry friction of a 7-dof arm from noisy encoders and torques, beginning at the bounds.

MuJoCo plays the robot for 40 s. `fx.identify`, `mujoco.sysid` and CMA-ES minimise the same loss over the same segments:
squared errors of the positions, each segment simulated from its measured start. Success: the error on held-out runs is at most
`WITHIN` times that of the true parameters in MuJoCo itself.

What is counted. flexor: from the call to the end of its search, which ends by itself and often some iterations after the error
of success was reached; judging it and the posterior that follow are not counted, as with the peers. Its first fit begins with
empty caches, so it traces and compiles everything; further fits of the same robot, whatever the logs and the start, reuse that.
Both are compared. What compiling takes is the first fit less the same fit again. The peers: until they first reach the error
of success; the kernels that CMA-ES borrows from flexor are compiled before. A peer that needs more than
`PATIENCE` times flexor's first fit is stopped, and its time is that at which it was.
"""

import os
import tempfile
import time

os.environ.setdefault("FLEXOR_CACHE", tempfile.mkdtemp(prefix="flexor-identification-"))

import jax
import numpy as np
from _arm import DT, STEPS, Case, arm, case, named_bounds
from _form import Check, Result, run, tell
from _peers import Evolution, Reached, by_sysid

import flexor as fx

jax.config.update("jax_enable_x64", True)
WITHIN = 1.1
FASTER = 10.0
PATIENCE = 11.0
FREE = ("body.*.mass", "body.*.com", "body.*.inertia", "joint.*.damping", "joint.*.frictionloss")
SOLVER = fx.RigidSolver(contact=fx.NCP(), integrator=fx.ImplicitDamping())
SEARCH = fx.LevenbergMarquardt(iterations=60, tolerance=1e-3)


def by_flexor(nominal: fx.Model, x: Case) -> tuple[Reached, list[str]]:
    sim, logs, apart = fx.Simulator(x.start, SOLVER, dt=DT), x.training.logs(nominal), x.held_out.logs(nominal)
    begun, ends = time.perf_counter(), []
    fit = fx.identify(
        sim, logs, FREE, bounds=named_bounds(nominal), search=SEARCH, held_out=apart,
        progress=lambda *_: ends.append(time.perf_counter()),
    )  # fmt: skip
    assert fit.held_out is not None
    q = fit.curves.after[fit.curves.held_out][:, 1:]
    error = x.held_out.error(q)
    unknown = [] if fit.posterior is None else [str(c) for c in fit.posterior.unidentifiable[:2]]
    return Reached(ends[-1] - begun, 0.0, error <= WITHIN * x.true_error, error, len(fit.history)), unknown


def measure(quick: bool) -> Result:
    joints, seeds, segments, peers = (1, 2, 16, 1) if quick else (7, 50, 200, 2)
    nominal = arm(joints)
    first_case = case(nominal, 0, segments)
    first = by_flexor(nominal, first_case)[0].seconds
    tell(f"first fit: {first:.1f} s")
    own: list[Reached] = []
    ratios: list[float] = []
    for seed in range(seeds):
        x = case(nominal, seed, segments)
        reached, unknown = by_flexor(nominal, x)
        own.append(reached)
        ratios.append(reached.error / x.true_error)
        tell(
            f"seed {seed}: {reached.seconds:.1f} s, {reached.iterations} iterations, {ratios[-1]:.3f} times the truth's error"
        )
    compiling = first - own[0].seconds
    limit = 3.0 if quick else PATIENCE * first
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
    remarks = [
        f"{12 * joints} free numbers; {segments} segments of {STEPS * DT:g} s at {1 / DT:.0f} Hz; success: held-out error at "
        f"most {WITHIN} times that of the truth.",
        f"flexor's first fit took {first:.1f} s, the same fit again {own[0].seconds:.1f} s. Peers: the first {peers} of {seeds} "
        f"seeds, each stopped after the iteration in which {limit:.0f} s were over; '>': stopped before the error was reached.",
        *unknown,
    ]
    return Result(rows, checks if not quick else checks[:1], remarks)


def _succeeds(joints: int, own: list[Reached]) -> Check:
    share = float(np.mean([r.reached for r in own]))
    return Check(f"{joints} joints: share of {len(own)} seeds that succeed", share, ">= 0.95", share >= 0.95)


def _faster(peer: str, runs: list[Reached], seconds: float, what: str) -> Check:
    ratio = float(np.mean([r.seconds for r in runs])) / seconds
    return Check(f"times faster than {peer}: {what}", _at_least(runs, ratio), f">= {FASTER:g}", ratio >= FASTER)


def _at_least(runs: list[Reached], x: float) -> str:
    return f"{x:.1f}" if all(r.reached for r in runs) else f"> {x:.1f}"


def _row(name: str, runs: list[Reached], ratios: list[float], later: float) -> dict[str, object]:
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
