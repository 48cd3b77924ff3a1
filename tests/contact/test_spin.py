"""Torsional and rolling friction: closed forms, the laws at the solution, derivatives, files."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import flexor as fx

RADIUS, TORSION, ROLLING, G, DT = 0.1, 0.02, 0.004, 9.81, 1e-3
BALL = f"""<mujoco><option gravity="0 0 -{G}"/><worldbody><geom name="floor" type="plane" size="5 5 1"/>
  <body name="ball" pos="0 0 {RADIUS}"><freejoint/><geom name="ball" size="{RADIUS}" mass="2" condim="%d"
  friction="0.8 {TORSION} {ROLLING}"/></body></worldbody></mujoco>"""


def ball(condim=6, **options):
    return fx.Simulator(fx.load(BALL % condim), fx.RigidSolver(contact=fx.NCP(tolerance=1e-13, **options)), dt=DT)


@pytest.mark.parametrize("condim", [4, 6])
@pytest.mark.parametrize("simd", [True, False])
def test_a_top_stops_after_the_time_that_the_law_says(condim, simd):
    """I w' = -mu m g with I = 2/5 m r^2: it stops after w I / (mu m g), to a step."""
    sim = eqx.tree_at(lambda s: s.dt, ball(condim), DT)
    sim = fx.Simulator(sim.model, sim.solver, dt=DT, simd=simd)
    spin = 5.0
    stops = spin * 0.4 * RADIUS**2 / (TORSION * G)
    run = sim.rollout(sim.reset(qd=jnp.zeros(6).at[5].set(spin)), steps=int(1.5 * stops / DT))
    turning = np.asarray(run.qd[:, 5])
    np.testing.assert_allclose(turning[50], spin * (1 - 50 * DT / stops), rtol=1e-9)
    assert abs(np.argmax(np.abs(turning) < 1e-9) * DT - stops) <= DT
    assert np.abs(turning[-1]) < 1e-9
    assert np.abs(run.q[-1, :2]).max() < 1e-9


@pytest.mark.parametrize("heading", [0.0, 0.6, 2.0])
def test_a_ball_rolls_to_the_right_distance_whatever_its_heading(heading):
    """A moment mu m g against the rolling: v' = -mu g / (1.4 r), and it stands after v^2 / 2 v'; Euler's steps add v h / 2."""
    sim = ball()
    speed, ahead = 0.5, np.array([np.cos(heading), np.sin(heading)])
    qd = jnp.asarray([*(speed * ahead), 0, -speed / RADIUS * ahead[1], speed / RADIUS * ahead[0], 0])
    slowing = ROLLING * G / (1.4 * RADIUS)
    run = sim.rollout(sim.reset(qd=qd), steps=int(1.2 * speed / slowing / DT))
    np.testing.assert_allclose(np.asarray(run.qd[100, :2]), ahead * (speed - 100 * DT * slowing), atol=1e-6)
    assert np.abs(run.qd[-1]).max() < 1e-8
    np.testing.assert_allclose(np.asarray(run.q[-1, :2]), ahead * speed**2 / (2 * slowing), atol=speed * DT)


def test_a_cylinder_rolls_to_the_right_distance():
    """I = m r^2 / 2: v' = -mu g / (1.5 r). The moments of its two lines of support add up to that of its weight."""
    shape = f'type="cylinder" size="{RADIUS} 0.15" quat="1 1 0 0" mass="2"'
    model = fx.load(BALL.replace(f'size="{RADIUS}" mass="2"', shape) % 6)
    sim = fx.Simulator(model, fx.RigidSolver(contact=fx.NCP(tolerance=1e-13)), dt=DT)
    speed = 0.5
    slowing = ROLLING * G / (1.5 * RADIUS)
    run = sim.rollout(sim.reset(qd=jnp.asarray([speed, 0, 0, 0, speed / RADIUS, 0])), steps=int(1.2 * speed / slowing / DT))
    np.testing.assert_allclose(run.qd[100, 0], speed - 100 * DT * slowing, rtol=1e-6)
    assert np.abs(run.qd[-1]).max() < 1e-8
    np.testing.assert_allclose(run.q[-1, :2], [speed**2 / (2 * slowing), 0], atol=speed * DT)


def test_without_it_a_ball_goes_on():
    """condim 3: it neither stops to spin nor to roll; condim 4: it rolls on."""
    qd = jnp.asarray([0.5, 0, 0, 0, 0.5 / RADIUS, 3.0])
    for condim, spins in ((3, 3.0), (4, 0.0)):
        sim = ball(condim)
        end = sim.rollout(sim.reset(qd=qd), steps=700).final
        np.testing.assert_allclose(end.qd[0], 0.5, rtol=1e-6)
        turn = fx.spatial.quat_to_matrix(end.q[3:]) @ end.qd[3:]
        assert abs(float(turn[2]) - spins) < 1e-6


def test_a_still_ball_on_a_slope_stays_below_the_angle_of_rolling_friction():
    """A slope of less than mu / r does not set it rolling, a steeper one does."""
    for share, moves in ((0.8, False), (1.2, True)):
        sim = ball()
        tilt = share * ROLLING / RADIUS
        gravity = G * jnp.asarray([np.sin(tilt), 0, -np.cos(tilt)])
        sim = eqx.tree_at(lambda s, g=gravity: s.model.gravity, sim, gravity)
        end = sim.rollout(sim.reset(), steps=300).final
        assert (float(end.qd[0]) > 1e-3) == moves
        if not moves:
            assert np.abs(end.qd).max() < 1e-6  # what the compliance of the contact lets it creep


def test_derivatives_are_those_of_finite_differences():
    """By state and by all coefficients, while it slides, spins and rolls at once."""
    sim = ball()
    qd = jnp.asarray([0.7, 0.2, 0, 1.0, 2.0, 4.0])

    def end(z):
        pairs = {"friction": z[0], "torsion": z[1], "rolling": z[2]}
        model = fx.replace(sim.model, {f"pair.*.{k}": v for k, v in pairs.items()})
        state = fx.Simulator(model, sim.solver, dt=DT, simd=False).rollout(sim.reset(qd=z[3:]), steps=4).final
        return jnp.concatenate([state.q, state.qd])

    z = jnp.asarray([0.3, TORSION, ROLLING, *qd])
    exact = jax.jit(jax.jacfwd(end))(z)
    step = 1e-6
    found = jax.jit(jax.vmap(end))(z[None] + step * jnp.concatenate([jnp.eye(9), -jnp.eye(9)]))
    central = (found[:9] - found[9:]).T / (2 * step)
    assert np.abs(exact[:, 1:3]).max() > 1e-2
    np.testing.assert_allclose(exact, central, atol=3e-6 * np.abs(exact).max())


def test_laws_hold_for_thrown_boxes_with_spins():
    """Friction moments stay within their discs, and the solution is one to rounding, in kernels, for many at once."""
    text = BALL.replace(f'size="{RADIUS}" mass="2"', 'type="box" size="0.1 0.07 0.05" mass="2"') % 6
    model = fx.load(text)
    sim = fx.Simulator(model, dt=2e-3)
    rng = np.random.default_rng(0)
    qd = jnp.asarray(rng.normal(size=(64, 6)))
    run = jax.jit(jax.vmap(lambda v: sim.rollout(sim.reset(qd=v), steps=150).final))(qd)
    x = np.asarray(run.memory.contact)
    assert x.shape == (64, 8, 6)
    assert (np.abs(x[..., 3]) <= TORSION * x[..., 0] + 1e-12).all()
    assert (np.linalg.norm(x[..., 4:], axis=-1) <= ROLLING * x[..., 0] + 1e-12).all()
    assert (np.asarray(run.memory.residual) < 1e-6).mean() > 0.97
    assert np.isfinite(np.asarray(run.q)).all()


def test_files_keep_it_and_what_lacks_it_says_so(tmp_path):
    model = fx.load(BALL % 6)
    assert [p.condim for p in model.topology.pairs] == [6]
    for name in ("ball.xml", "ball.urdf"):
        fx.save(model, tmp_path / name)
        again = fx.load(tmp_path / name)
        assert again.topology.pairs[0].condim == 6
        np.testing.assert_allclose(again.pairs.torsion, [TORSION])
        np.testing.assert_allclose(again.pairs.rolling, [ROLLING])
    assert fx.load(BALL % 6, ignore=["condim"]).topology.contact_rows == 3
    with pytest.raises(ValueError, match="Penalty\\(\\) has no torsional or rolling friction, which pair 'floor~ball' of"):
        fx.Simulator(model, fx.RigidSolver(contact=fx.Penalty()))
