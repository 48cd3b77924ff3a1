"""Simulators on SIMD kernels beside the same on XLA: trajectories, derivatives, batches, policies, taps."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import flexor as fx
from flexor.simd import compiler


def pair(model, solver=None, dt=0.002):
    return tuple(fx.Simulator(model, solver, dt=dt, simd=s) for s in (True, False))


SCENES = {
    "double_pendulum": ("double_pendulum", fx.RigidSolver(contact=None), None),
    "rk4": ("double_pendulum", fx.RigidSolver(contact=fx.Penalty(), integrator=fx.RK4()), None),
    "implicit damping": ("cartpole", fx.RigidSolver(integrator=fx.ImplicitDamping()), None),
    "cube, NCP": ("cube", fx.RigidSolver(), "tossed"),
    "cube, penalty": ("cube", fx.RigidSolver(contact=fx.Penalty()), "tossed"),
    "swimmer": ("swimmer2", fx.RigidSolver(contact=None), None),
}


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.float64])
@pytest.mark.parametrize("scene", SCENES)
def test_rollouts_agree_with_xla(scene, dtype):
    name, solver, start = SCENES[scene]
    model = fx.load(name, dtype=dtype)
    simd, xla = pair(model, solver, 0.001)
    state = simd.reset(start, np.random.default_rng(0).normal(size=model.nv) * 0.3)
    u = jnp.asarray(np.random.default_rng(1).normal(size=(60, model.nu)) * 0.1, dtype)
    a, b = simd.rollout(state, u), xla.rollout(state, u)
    # 60 steps of a smooth motion, or of a few impacts, amplify rounding by less than a thousand
    tolerance = 1e3 * float(jnp.finfo(dtype).eps)
    for found, exact in zip(
        jax.tree.leaves((a.q, a.qd, a.time, a.u)), jax.tree.leaves((b.q, b.qd, b.time, b.u)), strict=True
    ):
        assert found.dtype == exact.dtype
        np.testing.assert_allclose(found, exact, rtol=tolerance, atol=tolerance * (1 + float(jnp.abs(exact).max(initial=0))))


def test_step_and_taps_agree():
    simd, xla = pair(fx.load("cube"))
    state = simd.reset("tossed")
    np.testing.assert_allclose(simd.step(state).qd, xla.step(state).qd, atol=1e-13)
    record = ["contact.depth", "joint.acceleration"]
    a, b = (s.rollout(state, steps=5, record=record).taps for s in (simd, xla))
    for name in record:
        np.testing.assert_allclose(a[name], b[name], atol=1e-11)


BALL = """<mujoco model="ball"><worldbody><geom name="floor" type="plane" size="1 1 1" friction="0.3"/>
<body name="ball" pos="0 0 0.12"><freejoint name="root"/><geom name="ball" size="0.1" mass="0.4"/></body></worldbody></mujoco>"""


def test_derivatives_agree():
    """Of a rollout through impacts, to state, parameters and the time step: forward and reverse."""
    model = fx.load(BALL)
    start = fx.Simulator(model).reset(qd=np.array([0.5, 0.1, -1.0, 0.3, 2.0, 1.0]))

    def end(simd, qd, friction, dt):
        changed = fx.replace(model, {"pair.*.friction": friction})
        sim = fx.Simulator(changed, dt=dt, simd=simd)
        return jnp.sin(sim.rollout(eqx.tree_at(lambda s: s.qd, start, qd), steps=40).q[-1]).sum()

    args = start.qd, jnp.asarray(0.3), jnp.asarray(0.004)
    exact = jax.jit(jax.grad(lambda *a: end(False, *a), argnums=(0, 1, 2)))(*args)
    found = jax.jit(jax.grad(lambda *a: end(True, *a), argnums=(0, 1, 2)))(*args)
    for a, b in zip(found, exact, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-10)
    tangent = jax.jit(lambda f: jax.jvp(lambda f: end(True, args[0], f, args[2]), (f,), (jnp.ones(()),))[1])(args[1])
    np.testing.assert_allclose(tangent, exact[1], rtol=1e-9, atol=1e-10)


def test_batches_have_the_bits_of_single_rollouts():
    model = fx.load("double_pendulum")
    sim = fx.Simulator(model, simd=True)
    states = jax.vmap(lambda q: sim.reset(q))(jnp.asarray(np.random.default_rng(0).normal(size=(11, model.nq))))
    batch = jax.vmap(lambda s: sim.rollout(s, steps=30).q)(states)
    other = fx.simd.vmap(lambda s: sim.rollout(s, steps=30).q)(states)
    single = np.stack([sim.rollout(jax.tree.map(lambda x, k=k: x[k], states), steps=30).q for k in range(11)])
    np.testing.assert_array_equal(batch, single)
    np.testing.assert_array_equal(other, single)


def test_policies_are_arguments_not_constants():
    """A network's weights may change without a new compilation; their gradients arrive."""
    model = fx.load("cartpole")
    simd, xla = pair(model)

    class Policy(eqx.Module):
        net: eqx.nn.MLP

        def __call__(self, state):
            return self.net(jnp.concatenate([state.q, state.qd]))

    policies = [Policy(eqx.nn.MLP(4, model.nu, 8, 1, key=jax.random.key(k))) for k in range(2)]
    start = simd.reset(jnp.array([0.0, 0.3]))
    before = None
    for policy in policies:
        a, b = simd.rollout(start, policy, steps=20), xla.rollout(start, policy, steps=20)
        np.testing.assert_allclose(a.q, b.q, atol=1e-12)
        assert before in (None, len(compiler._kernels))
        before = len(compiler._kernels)
    gradients = [eqx.filter_grad(lambda p, s=s: s.rollout(start, p, steps=20).q[-1].sum())(policies[0]) for s in (simd, xla)]
    for g, h in zip(*(jax.tree.leaves(g) for g in gradients), strict=True):
        np.testing.assert_allclose(g, h, atol=1e-12)


def test_a_loop_over_parameters_compiles_a_few_times_only():
    """The first few robots are compiled in; from then on the parameters are arguments, with the same results."""
    model = fx.load("pendulum")
    start = fx.Simulator(model).reset(jnp.full(model.nq, 0.4))
    made = []
    for damping in np.linspace(0.0, 0.5, 7):
        simd, xla = pair(fx.replace(model, {"joint.*.damping": damping}))
        np.testing.assert_allclose(simd.rollout(start, steps=9).qd, xla.rollout(start, steps=9).qd, atol=1e-13)
        made.append(len(compiler._kernels))
    assert made[2] == made[0] + 2
    assert made[3:] == [made[0] + 3] * 4


def test_a_policy_that_cannot_be_compiled_says_so():
    sim = fx.Simulator(fx.load("cartpole"), simd=True)
    with pytest.raises(fx.simd.UnsupportedError, match=r"'lgamma'.*test_kernels\.py"):
        sim.rollout(sim.reset(), lambda s: jax.lax.lgamma(s.q[:1]), steps=3)
    plain = fx.Simulator(fx.load("cartpole"), simd=False)
    assert jnp.isfinite(plain.rollout(plain.reset(), lambda s: 0 * jax.lax.lgamma(1 + s.q[:1]), steps=3).q).all()


def test_a_solver_outside_jax_goes_its_own_way():
    sim = fx.Simulator(fx.load("cartpole"), fx.MujocoSolver(), simd=True)
    assert jnp.isfinite(sim.rollout(sim.reset(), steps=3).q).all()


def test_the_default_is_chosen_by_the_environment(monkeypatch):
    model = fx.load("cartpole")
    monkeypatch.setenv("FLEXOR_SIMD", "on")
    assert fx.Simulator(model).simd
    assert fx.Simulator(model).with_solver(fx.RigidSolver(contact=None)).simd
    monkeypatch.setenv("FLEXOR_SIMD", "off")
    assert not fx.Simulator(model).simd
    monkeypatch.setenv("FLEXOR_SIMD", "maybe")
    with pytest.raises(ValueError, match="FLEXOR_SIMD must be 'on' or 'off', got 'maybe'"):
        fx.Simulator(model)
