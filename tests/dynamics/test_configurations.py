"""`difference` and `random_state`: round trips, Pinocchio, limits, distributions."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import flexor as fx
from tests.dynamics.robots import NASTY

FREE = """<mujoco><worldbody><body name="b"><freejoint name="root"/><inertial pos="0 0 0" mass="1" diaginertia="1 1 1"/>
<body name="c"><joint name="j" axis="0 1 0"/><inertial pos="0 0 0" mass="1" diaginertia="1 1 1"/></body></body></worldbody>
</mujoco>"""
LIMITED = """<mujoco model="limited"><compiler angle="radian"/><worldbody><body name="a">
<joint name="h" axis="0 1 0" range="0.2 0.5" limited="true"/>
<joint name="s" type="slide" axis="1 0 0" range="-3 -2.5" limited="true"/><joint name="w" axis="1 0 0" ref="0.4"/>
<joint name="r" type="slide" axis="0 0 1" ref="-0.6"/><inertial pos="0 0 0" mass="1" diaginertia="1 1 1"/></body>
<body name="f" pos="1 2 3"><freejoint name="root"/><inertial pos="0 0 0" mass="1" diaginertia="1 1 1"/></body>
</worldbody></mujoco>"""


@pytest.fixture(scope="module")
def nasty():
    return fx.load(NASTY)


def states(model, count, dtype=jnp.float64, **options):
    keys = jax.random.split(jax.random.key(0), count)
    return jax.jit(jax.vmap(lambda k: fx.random_state(model.astype(dtype), k, **options)))(keys)


def same_rotations(model, a, b, tolerance):
    """Coordinates are equal, quaternions up to their sign."""
    t = model.topology
    for j, start in zip(t.joints, t.q_start, strict=True):
        if j.kind in ("ball", "free"):
            at = start + (3 if j.kind == "free" else 0) + np.arange(4)
            sign = np.sign(np.sum(a[:, at] * b[:, at], axis=-1, keepdims=True))
            b = b.at[:, at].multiply(sign)
    np.testing.assert_allclose(a, b, atol=tolerance)


@pytest.mark.parametrize("dtype", [jnp.float64, jnp.float32])
def test_difference_is_the_inverse_of_integrate(nasty, dtype):
    """Both ways, for lengths and angles below 10: some ten roundings of numbers of that size. Displacements of rotations shorter
    than pi come back."""
    model = nasty.astype(dtype)
    a, b = (states(nasty, 2 * 64, dtype, distance=3.0).q[i::2] for i in range(2))
    tolerance = 100 * float(jnp.finfo(dtype).eps)
    moved = jax.vmap(lambda a, b: fx.integrate(model, a, fx.difference(model, a, b)))(a, b)
    assert moved.dtype == dtype
    same_rotations(model, moved, b, tolerance)
    step = 1.5 * jnp.tanh(jax.random.normal(jax.random.key(1), (64, model.nv), dtype))  # no rotation beyond 1.5 sqrt(3) < pi
    back = jax.vmap(lambda a, x: fx.difference(model, a, fx.integrate(model, a, x)))(a, step)
    np.testing.assert_allclose(back, step, atol=tolerance)
    small = 1e-6 * step
    back = jax.vmap(lambda a, x: fx.difference(model, a, fx.integrate(model, a, x)))(
        jnp.broadcast_to(model.reference, a.shape), small
    )
    # positions near one lose all but eps; rotations and offsets do not depend on where they start
    np.testing.assert_allclose(
        back, small, atol=4 * float(jnp.finfo(dtype).eps) * (1 + float(jnp.abs(model.reference).max()))
    )


def test_in_kernels(nasty):
    a, b = (states(nasty, 34).q[i::2] for i in range(2))
    found = fx.simd.vmap(lambda a, b: fx.difference(nasty, a, b))(a, b)
    np.testing.assert_allclose(found, jax.vmap(lambda a, b: fx.difference(nasty, a, b))(a, b), atol=1e-13)


def test_derivatives_at_equal_configurations_and_half_a_turn(nasty):
    """d difference(q, q (+) x) / dx = 1 at x = 0. Near half a turn derivatives stay finite and those of the inverse of
    `integrate`'s; across it the vector jumps to the other side."""
    q = states(nasty, 1).q[0]

    def back(x):
        return fx.difference(nasty, q, fx.integrate(nasty, q, x))

    zero = jnp.zeros(nasty.nv)
    np.testing.assert_allclose(jax.jit(jax.jacfwd(back))(zero), np.eye(nasty.nv), atol=1e-13)
    assert jnp.isfinite(jax.jit(jax.jacrev(back))(zero)).all()
    np.testing.assert_allclose(jax.jit(jax.jacfwd(jax.jacfwd(back)))(zero), 0, atol=1e-12)  # the identity nearby
    model = fx.load(FREE)

    @jax.jit
    def turned(angle):
        x = jnp.zeros(7).at[3].set(angle)
        return fx.difference(model, model.reference, fx.integrate(model, model.reference, x))[3]

    for angle, turns in ((np.pi - 1e-7, 0), (np.pi + 1e-7, 1)):
        np.testing.assert_allclose(turned(angle), angle - turns * 2 * np.pi, atol=1e-12)
        np.testing.assert_allclose(jax.grad(turned)(angle), 1, atol=1e-6)
    half = jnp.array([0.0, 0, 0, 0, 1, 0, 0, 0])  # exactly half a turn about x
    assert jnp.isfinite(jax.jit(jax.jacfwd(lambda q: fx.difference(model, model.reference, q)))(half)).all()


def test_pinocchio_agrees():
    """Its quaternions are x y z w and its free joint's displacement is that of SE(3), log6; rotations and hinges agree."""
    pin = pytest.importorskip("pinocchio")
    p = pin.Model()
    joint = p.addJoint(0, pin.JointModelSpherical(), pin.SE3.Identity(), "ball")
    p.addJoint(joint, pin.JointModelRY(), pin.SE3.Identity(), "hinge")
    text = FREE.replace('<freejoint name="root"/>', '<joint name="ball" type="ball"/>')
    model = fx.load(text)
    a, b = (np.asarray(states(model, 40).q[i::2]) for i in range(2))
    order = [1, 2, 3, 0, 4]
    for q1, q2 in zip(a, b, strict=True):
        wanted = pin.difference(p, q1[order], q2[order])
        np.testing.assert_allclose(fx.difference(model, jnp.asarray(q1), jnp.asarray(q2)), wanted, atol=1e-12)


def test_random_states_are_admissible():
    """Within limits; rotations of unit length and uniform; velocities of the standard deviation that was asked for. Means of
    n = 4000 draws lie within 5 deviations / sqrt(n)."""
    model, n = fx.load(LIMITED), 4000
    found = states(model, n, velocity=2.0, distance=0.5)
    q, qd = np.asarray(found.q), np.asarray(found.qd)
    assert found.time.shape == (n,)
    assert found.memory is None
    bounds = [(0.2, 0.5), (-3, -2.5), (0.4 - np.pi, 0.4 + np.pi), (-1.1, -0.1), (0.5, 1.5), (1.5, 2.5), (2.5, 3.5)]
    for i, (low, high) in enumerate(bounds):
        assert low <= q[:, i].min() < low + 0.01 * (high - low)
        assert high - 0.01 * (high - low) < q[:, i].max() <= high
        assert abs(q[:, i].mean() - (low + high) / 2) < 5 * (high - low) / np.sqrt(12 * n)
    quat = q[:, 7:]
    np.testing.assert_allclose(np.linalg.norm(quat, axis=1), 1, atol=1e-14)
    np.testing.assert_allclose(quat.T @ quat / n, np.eye(4) / 4, atol=5 * 0.25 / np.sqrt(n))
    np.testing.assert_allclose(qd.std(0), 2.0, rtol=5 / np.sqrt(2 * n))
    assert len(np.unique(q[:, 0])) == n


def test_random_states_start_simulators_in_both_precisions():
    for dtype in (jnp.float32, jnp.float64):
        model = fx.load(LIMITED).astype(dtype)
        sim, state = fx.Simulator(model), fx.random_state(model, jax.random.key(3))
        assert state.q.dtype == state.qd.dtype == dtype
        low, high = np.asarray(model.joints.range[:2].T)
        assert ((low <= state.q[:2]) & (state.q[:2] <= high)).all()
        assert jnp.isfinite(sim.step(sim.reset(state.q, state.qd)).q).all()
    other = fx.random_state(model, jax.random.key(4), velocity=jnp.zeros(model.nv).at[2].set(1.0))
    assert np.flatnonzero(other.qd).tolist() == [2]
