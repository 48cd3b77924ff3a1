"""Does the gradient of a long rollout fit in memory? Peak memory of a process that differentiates quadruped steps."""

import json
import subprocess
import sys
from typing import Any

from _form import Result, at_most, run

STEPS, QUICK_STEPS = 10_000, 500
LIMIT = 2.0  # GB
CONTACTS = ("NCP", "Penalty")


def differentiate(contact: str, steps: int) -> dict[str, Any]:
    """Runs in its own process: a gradient, its length, and the process' peak memory before and after."""
    import resource
    import time

    import jax
    import jax.numpy as jnp

    import flexor as fx

    model = fx.load("quadruped")
    # a light foot on a stiff spring needs short steps
    dt = 0.002 if contact == "NCP" else 0.00025
    sim = fx.Simulator(model, fx.RigidSolver(contact=getattr(fx, contact)()), dt=dt)
    state = sim.reset("stand")
    hold = 200.0 * (model.keyframe("stand")[7:])

    def policy(state: fx.State) -> jax.Array:
        return hold - 200.0 * state.q[7:] - 8.0 * state.qd[6:]

    def height(mass: jax.Array) -> jax.Array:
        moved = fx.Simulator(fx.replace(model, {"body.trunk.mass": mass}), sim.solver, dt=dt)
        return moved.rollout(state, policy, steps=steps).q[-1, 2]

    def peak() -> float:
        scale = 1 if sys.platform == "darwin" else 1024
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * scale / 1e9

    before, start = peak(), time.perf_counter()
    gradient = jax.jit(jax.grad(height))(jnp.asarray(13.7))
    value = float(gradient)
    return {"gradient": value, "before": before, "peak": peak(), "seconds": time.perf_counter() - start}


def measure(quick: bool) -> Result:
    steps = QUICK_STEPS if quick else STEPS
    rows, checks = [], []
    for contact in CONTACTS:
        command = [sys.executable, __file__, "--child", contact, str(steps)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise RuntimeError(f"the process that differentiates failed: {done.stderr.strip()[-800:]}")
        found = json.loads(done.stdout.splitlines()[-1])
        rows.append(
            {
                "contact": contact,
                "steps": steps,
                "peak memory (GB)": round(found["peak"], 3),
                "before (GB)": round(found["before"], 3),
                "seconds, compilation included": round(found["seconds"], 2),
                "d height / d trunk mass (m/kg)": found["gradient"],
            }
        )
        what = f"{contact}: peak memory of the gradient of {steps} quadruped steps"
        checks.append(at_most(what, round(found["peak"], 3), LIMIT, "GB"))
    return Result(rows, checks)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--child"]:
        print(json.dumps(differentiate(sys.argv[2], int(sys.argv[3]))))
    else:
        run("does the gradient of 10,000 quadruped steps fit in 2 GB?", measure)
