"""All inertial parameters, damping and dry friction of a 7-dof arm from noisy encoders and torques, beginning at the bounds.

MuJoCo plays the robot. `fx.identify`, `mujoco.sysid` and CMA-ES minimise the same loss over the same segments: squared errors of
the positions, each segment simulated from its measured start. Success: the error on held-out runs is at most `WITHIN` times that
of the true parameters in MuJoCo itself. flexor's time is that of whole calls, which end by themselves and include the held-out
error and the posterior; the peers' until they first reach the error of success. Everything compiles within the measured time.
"""

import os
import tempfile

os.environ.setdefault("FLEXOR_CACHE", tempfile.mkdtemp(prefix="flexor-identification-"))

import jax
import numpy as np
from _arm import DT, Case, arm, case, named_bounds
from _form import Check, Result, run
from _peers import Evolution, Reached, by_sysid

import flexor as fx

jax.config.update("jax_enable_x64", True)
WITHIN = 1.1
FASTER = 10.0
FREE = ("body.*.mass", "body.*.com", "body.*.inertia", "joint.*.damping", "joint.*.frictionloss")
SOLVER = fx.RigidSolver(contact=fx.NCP(), integrator=fx.ImplicitDamping())
SEARCH = fx.LevenbergMarquardt(iterations=60, tolerance=5e-3)


def by_flexor(nominal: fx.Model, x: Case) -> tuple[Reached, list[str]]:
    sim = fx.Simulator(x.start, SOLVER, dt=DT)
    fit = fx.identify(
        sim, x.training.logs(nominal), FREE, bounds=named_bounds(nominal), search=SEARCH, held_out=x.held_out.logs(nominal)
    )
    assert fit.held_out is not None
    q = fit.curves.after[fit.curves.held_out][:, 1:]
    error = x.held_out.error(q)
    unknown = [] if fit.posterior is None else [str(c) for c in fit.posterior.unidentifiable[:2]]
    return Reached(fit.seconds, 0.0, error <= WITHIN * x.true_error, error, len(fit.history)), unknown


def measure(quick: bool) -> Result:
    joints, seeds, segments, peers = (1, 2, 16, 1) if quick else (7, 50, 40, 2)
    nominal = arm(joints)
    cases = [case(nominal, seed, segments) for seed in range(seeds)]
    own: list[Reached] = []
    for x in cases:
        reached, unknown = by_flexor(nominal, x)
        own.append(reached)
    later = float(np.mean([r.seconds for r in own[1:]]))
    first = own[0].seconds
    mean = float(np.mean([r.seconds for r in own]))
    limit = 5.0 if quick else 2.5 * FASTER * mean
    sysid = [by_sysid(nominal, x, WITHIN * x.true_error, limit) for x in cases[:peers]]
    evolution = Evolution(nominal, SOLVER, DT)
    cma = [evolution.run(x, WITHIN * x.true_error, limit) for x in cases[:peers]]
    named = {"flexor": own, "mujoco.sysid": sysid, "CMA-ES": cma}
    rows = [
        _row(name, r, cases, mean, first - later if name == "flexor" else r[0].compile_seconds) for name, r in named.items()
    ]
    success = float(np.mean([r.reached for r in own]))
    checks = [Check(f"{joints} joints: share of {seeds} seeds that succeed", success, ">= 0.95", success >= 0.95)]
    for name, runs in (("mujoco.sysid", sysid), ("CMA-ES", cma)):
        ratio = float(np.mean([r.seconds + r.compile_seconds for r in runs])) / mean
        checks.append(Check(f"times faster than {name}, compilation included", ratio, f">= {FASTER:g}", ratio >= FASTER))
    cold = float(np.mean([r.seconds for r in sysid])) / first
    remarks = [
        f"{12 * joints} free numbers, {segments} segments; success: held-out error at most {WITHIN} times that of the truth.",
        f"flexor's compilation is spread over its {seeds} fits, as it happened; the first fit, with all of it, took "
        f"{first:.1f} s: mujoco.sysid takes {cold:.1f} times that.",
        f"A peer that was stopped after {limit:.0f} s would take longer.",
        *unknown,
    ]
    return Result(rows, checks if not quick else checks[:1], remarks)


def _row(name: str, runs: list[Reached], cases: list[Case], mean: float, compiling: float) -> dict[str, object]:
    ratios = [r.error / x.true_error for r, x in zip(runs, cases, strict=False)]
    seconds = float(np.mean([r.seconds + r.compile_seconds for r in runs]))
    return {
        "method": name,
        "runs": len(runs),
        "reached": sum(r.reached for r in runs),
        "held-out error / truth's, median": float(np.median(ratios)),
        "worst": float(np.max(ratios)),
        "iterations": float(np.mean([r.iterations for r in runs])),
        "s a run, with compilation": seconds,
        "compilation s, once": float(compiling),
        "times flexor's": seconds / mean,
    }


if __name__ == "__main__":
    run("How fast are all inertial parameters of an arm found, and how often?", measure)
