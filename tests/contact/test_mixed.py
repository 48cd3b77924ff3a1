"""Both contact models at once: each side alone is the pure model; taps, derivative, and long steps."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import flexor as fx
from flexor.taps import collect, listen
from tests.contact.scenes import BALL

# A puck that slides on two soft points and is pushed from the side by a heavy ball.
PUSH = """<mujoco model="push"><default><geom contype="0" conaffinity="0"/></default><worldbody>
  <geom name="floor" type="plane" size="1 1 1"/>
  <body name="tip" pos="0 0 0.02"><joint name="tip_x" type="slide" axis="1 0 0"/><joint name="tip_y" type="slide" axis="0 1 0"/>
    <inertial pos="0 0 0" mass="1e4" diaginertia="1 1 1"/><geom name="tip" size="0.01"/></body>
  <body name="puck" pos="0.1 0.01 0.02"><joint name="x" type="slide" axis="1 0 0"/><joint name="y" type="slide" axis="0 1 0"/>
    <joint name="yaw" axis="0 0 1"/><inertial pos="0 0 0" mass="0.8" diaginertia="0.001 0.001 0.001"/>
    <geom name="puck" type="box" size="0.05 0.04 0.01"/>
    <geom name="left" size="0.01" pos="0.02 0.03 -0.011"/><geom name="right" size="0.01" pos="-0.01 -0.03 -0.011"/></body>
</worldbody><contact>
  <pair geom1="tip" geom2="puck" friction="0.3 0.3"/>
  <pair geom1="floor" geom2="left" friction="0.4 0.4"/><pair geom1="floor" geom2="right" friction="0.4 0.4"/>
</contact></mujoco>"""
LAW = fx.Penalty(friction=fx.BrownMcPhee(velocity=2e-3))
SPEED = 0.02


def _push(dt=1e-3, *, contact=None, friction=0.4):
    contact = fx.Mixed(ncp=fx.NCP(tolerance=1e-12), penalty=LAW) if contact is None else contact
    model = fx.replace(fx.load(PUSH), {"pair.floor~*.friction": friction, "pair.floor~*.damping": 0.0})
    return fx.Simulator(model, fx.RigidSolver(contact), dt=dt)


def _start(sim):
    return sim.reset(jnp.array([0.038, 0.015, 0.0, 0.0, 0.1]), jnp.array([SPEED, 0.0, 0.0, 0.0, 0.0]))


def test_all_pairs_soft_is_penalty():
    mixed = fx.Simulator(fx.load(BALL), fx.RigidSolver(fx.Mixed(penalty=LAW, soft="*", implicit=False)), dt=2e-4)
    pure = fx.Simulator(fx.load(BALL), fx.RigidSolver(LAW), dt=2e-4)
    q, qd = pure.model.reference.at[2].add(-2e-3), jnp.array([0.3, -0.1, 0.0, 0.4, 0.0, 1.0])
    a, b = (s.rollout(s.reset(q, qd), steps=50) for s in (mixed, pure))
    # the same forces through M^-1 and through ABA: rounding alone
    assert np.abs(np.asarray(a.qd - b.qd)).max() < 1e-11


def test_soft_pairs_out_of_reach_leave_the_ncp():
    mixed = _push(contact=fx.Mixed(soft="floor~*"))
    pure = _push(contact=fx.NCP())
    high = jnp.zeros(3).at[2].set(0.5)
    a, b = (
        s.rollout(_start(s), steps=300)
        for s in (
            eqx.tree_at(lambda s: s.model.geoms.pos, s, s.model.geoms.pos.at[s.model.geom("left") :].add(high))
            for s in (mixed, pure)
        )
    )
    assert np.abs(np.asarray(a.q - b.q)).max() < 1e-13
    assert float(a.qd[-1, 2]) > 0.005  # the tip did push


def test_taps_keep_all_rows_and_soft_friction_is_changed_before_the_ncp():
    sim = _push()
    state = sim.rollout(_start(sim), steps=300).final
    free, recorded_taps = jax.jit(collect(sim.step))(state)
    names = [sim.model.topology.pairs[p].name for p in fx.contact.detect(
        sim.model, fx.dynamics.forward_kinematics(sim.model, state.q)).pair]  # fmt: skip
    tip = names.index("tip~puck")
    assert recorded_taps["contact.friction_force"].shape == (3, 2)
    assert recorded_taps["contact.normal_force"].shape == (3,)
    assert (np.asarray(recorded_taps["contact.normal_force"]) > 0).all()

    def slippery(name, value):
        if name != "contact.friction_force":
            return value
        return jnp.where((np.arange(3) == tip)[:, None], value, 0.5 * value)

    def step(state):
        with listen(slippery):
            return sim.step(state)

    changed, after = jax.jit(collect(step))(state)
    half = np.asarray(recorded_taps["contact.friction_force"]) * np.where(np.arange(3) == tip, 1.0, 0.5)[:, None]
    soft = np.arange(3) != tip
    assert np.asarray(after["contact.friction_force"])[soft] == pytest.approx(half[soft])
    # half the drag asks for about half the push
    ratio = float(after["contact.normal_force"][tip] / recorded_taps["contact.normal_force"][tip])
    assert 0.4 < ratio < 0.7
    assert not np.allclose(changed.qd, free.qd, rtol=0, atol=1e-9)


def test_gradient_is_that_of_finite_differences():
    """Of the puck's pose after a push, by the friction of floor and tip; central differences are good to eps^(2/3)."""

    def end(friction):
        sim = _push(5e-3)
        values = {"pair.floor~left.friction": friction[0], "pair.tip~*.friction": friction[1]}
        sim = eqx.tree_at(lambda s: s.model, sim, fx.replace(sim.model, values))
        return sim.rollout(_start(sim), steps=60).q[-1, 2:]

    run = jax.jit(end)
    at, h = jnp.array([0.5, 0.1]), 1e-5
    J = np.asarray(jax.jit(jax.jacrev(end))(at))
    fd = np.stack([np.asarray(run(at.at[i].add(h)) - run(at.at[i].add(-h))) / (2 * h) for i in range(2)], axis=1)
    assert np.abs(J).max() > 1e-3
    assert np.abs(J - fd).max() < 1e-6 * np.abs(J).max() + 1e-9


def test_implicit_friction_takes_long_steps():
    """Quasi-static: the path depends on the way of the tip alone. Steps of 50 ms (the explicit bound is 2 ms / 8 = 0.25 ms)
    end near those of 1 ms, the error falling with the step, and near explicit friction at 0.1 ms."""
    explicit = fx.Mixed(ncp=fx.NCP(tolerance=1e-12), penalty=LAW, implicit=False)
    duration = 1.0
    reference, fine, coarse = (
        np.asarray(sim.rollout(_start(sim), steps=round(duration / float(sim.dt))).q[-1])
        for sim in (_push(1e-4, contact=explicit), _push(1e-3), _push(5e-2))
    )
    moved = np.abs(reference[2:4]).max()
    assert moved > 0.01
    assert np.abs(fine - reference)[2:].max() < 0.01
    assert np.abs(coarse - reference)[2:4].max() < 0.05 * moved
    assert np.abs(fine - reference)[2:].max() < np.abs(coarse - reference)[2:].max()


def test_kernels_agree_with_xla():
    model = _push().model
    ends = []
    for simd in (False, True):
        sim = fx.Simulator(model, fx.RigidSolver(fx.Mixed(penalty=LAW)), dt=1e-2, simd=simd)
        ends.append(np.asarray(sim.rollout(_start(sim), steps=40).q[-1]))
    assert np.abs(ends[0] - ends[1]).max() < 1e-9


def test_a_pattern_without_pairs_is_refused():
    with pytest.raises(ValueError, match=r"Mixed\(soft='ground~\*'\) matches no pair of 'push'; it has floor~left"):
        _push(contact=fx.Mixed(soft="ground~*"))


def test_impulses_need_an_integrator_with_a_place_for_them():
    with pytest.raises(ValueError, match="Mixed works with impulses over a step, which RK4 does not support"):
        fx.Simulator(fx.load(PUSH), fx.RigidSolver(fx.Mixed(), integrator=fx.RK4()))
