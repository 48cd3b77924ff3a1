"""Both of JAX's precisions in one process, as users have them: single by default, double inside `identify` and `certify`."""

import os
import re
import subprocess
import sys
from pathlib import Path

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import flexor as fx

ROOT = Path(__file__).parent.parent

IDENTIFY = """
log = fx.Log.of(arm.rollout(start, jnp.zeros((40, 2))))
wrong = fx.Simulator(fx.replace(arm.model, {"joint.*.damping": 0.0}), arm.solver, dt=arm.dt)
fit = fx.identify(wrong, log, free=["joint.*.damping"])
assert fit.sim.model.dtype == jnp.float32
"""
ROLLOUT = """
end = jax.vmap(lambda q: arm.rollout(arm.reset(q), steps=20).final)(jnp.zeros((3, 2)))
assert end.q.dtype == jnp.float32 and bool(jnp.isfinite(end.q).all())
assert arm.step(start).q.dtype == jnp.float32
"""
CERTIFY = """
assert fx.certify(fx.load("pendulum"), steps=2).ok
"""
SETTING = """
import jax
import jax.numpy as jnp
import flexor as fx
arm = fx.Simulator(fx.load("double_pendulum"), fx.RigidSolver(contact=None), dt=0.005)
start = arm.reset("level")
"""


def run(text, folder):
    """Runs a program in a process of its own: default precision, kernels on."""
    unset = ("JAX_ENABLE_X64", "FLEXOR_SIMD", "JAX_NUMPY_RANK_PROMOTION", "JAX_NUMPY_DTYPE_PROMOTION")
    environment = {k: v for k, v in os.environ.items() if k not in unset}
    environment["PYTHONPATH"] = os.pathsep.join([str(ROOT), environment.get("PYTHONPATH", "")])
    done = subprocess.run([sys.executable, "-c", text], cwd=folder, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]


def test_readme_runs_in_one_process_in_the_default_precision(tmp_path):
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    assert len(blocks) >= 3
    run("\n".join(blocks), tmp_path)


@pytest.mark.parametrize("order", [(IDENTIFY, ROLLOUT), (ROLLOUT, IDENTIFY, ROLLOUT), (CERTIFY, ROLLOUT)])
def test_identify_certify_and_rollouts_share_a_process(order, tmp_path):
    run("".join((SETTING, *order)), tmp_path)


def blueprint():
    made = fx.Blueprint()
    made.add("joint.passive_force", inputs=["joint.q", "joint.qd"], net=fx.nets.Dissipative(width=4))
    return made


SIMULATORS = {
    "hinges": lambda: fx.Simulator(fx.load("double_pendulum"), dt=0.005),
    "ncp": lambda: fx.Simulator(fx.load("quadruped")),
    "penalty": lambda: fx.Simulator(fx.load("cube"), fx.RigidSolver(contact=fx.Penalty())),
    "rk4": lambda: fx.Simulator(fx.load("cube"), fx.RigidSolver(contact=None, integrator=fx.RK4())),
    "hybrid": lambda: fx.Simulator(fx.load("double_pendulum"), dt=0.005).augment(blueprint()),
    "learned": lambda: fx.Simulator(fx.nerd.load("cartpole").model, fx.nerd.load("cartpole").solver(), dt=1 / 60),
}


@pytest.mark.parametrize("name", SIMULATORS)
def test_a_step_has_one_precision_whatever_was_traced_before(name):
    """Numbers of the other precision in the program would come from arrays that outlived its trace: it is traced in both
    precisions in turn, all programs kept."""

    def trace(dtype):
        sim = jax.tree.map(lambda x: jnp.asarray(np.asarray(x), dtype) if eqx.is_inexact_array(x) else x, SIMULATORS[name]())
        state = sim.solver.init(
            sim.model, fx.State(sim.model.reference, jnp.zeros(sim.model.nv, dtype), jnp.zeros((), dtype))
        )
        arrays, static = eqx.partition((sim, state), eqx.is_array)

        def step(arrays):
            sim, state = eqx.combine(arrays, static)
            return sim.solver.step(sim.model, state, fx.Control(*(jnp.zeros(s, dtype) for s in shapes(sim.model))), sim.dt)

        return jax.make_jaxpr(step)(arrays)

    def shapes(model):
        return (model.nu,), (model.nv,), (len(model.topology.bodies), 6)

    kept = []
    for wide in (False, True, False):
        with jax.enable_x64(wide):
            kept.append(trace(np.float64 if wide else np.float32))
    single, double, again = (str(jaxpr) for jaxpr in kept)
    assert "f64[" not in single
    assert "i64[" not in single
    assert "f32[" not in double
    assert single == again
