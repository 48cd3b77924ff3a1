"""Contact against closed forms. Semi-implicit Euler makes an error of order dt, which gives the tolerances."""

import jax.numpy as jnp
import numpy as np
import pytest

import flexor as fx
from tests.contact.scenes import BALL, BLOCK, WHEEL, simulator

G = 9.81


@pytest.mark.parametrize("contact", [fx.NCP(), fx.Penalty()], ids=["NCP", "Penalty"])
def test_stopping_distance_of_a_sliding_block(contact):
    sim = simulator(BLOCK, contact, dt=5e-4)
    v, mu = 1.5, 0.3
    trajectory = sim.rollout(sim.reset(qd=jnp.array([v, 0, 0, 0, 0, 0])), steps=1400)
    way = v**2 / (2 * mu * G)
    # NCP: a sum over steps of v dt is off by v dt / 2. Penalty: the block also settles by 1 mm, and its friction fades
    # below the transition velocity of 1 cm/s.
    tolerance = v * 5e-4 if isinstance(contact, fx.NCP) else 0.02 * way
    assert abs(trajectory.q[-1, 0] - way) < tolerance
    assert abs(trajectory.q[-1, 1]) < 1e-9


def test_apex_heights_of_a_bouncing_ball():
    restitution, height, dt = 0.7, 0.5, 2e-4
    sim = simulator(BALL, dt=dt, **{"pair.*.restitution": restitution})
    start = sim.reset(q=sim.model.reference.at[2].add(height))
    z = np.asarray(sim.rollout(start, steps=8000).q[:, 2]) - 0.1
    peaks = z[1:-1][(z[1:-1] > z[:-2]) & (z[1:-1] >= z[2:])]
    for k, peak in enumerate(peaks[:3], start=1):
        # each flight is off by about v dt / 2, and errors of earlier bounces go on
        assert peak == pytest.approx(height * restitution ** (2 * k), abs=2 * k * dt * np.sqrt(2 * G * height))
    assert len(peaks) >= 3


def test_ball_without_restitution_lands_and_stays():
    sim = simulator(BALL)
    z = np.asarray(sim.rollout(sim.reset(q=sim.model.reference.at[2].add(0.3)), steps=1000).q[:, 2]) - 0.1
    assert np.abs(z[400:]).max() < 1e-6
    assert z.min() > -1e-6


@pytest.mark.parametrize("contact", [fx.NCP(), fx.Penalty()], ids=["NCP", "Penalty"])
def test_sphere_rolls_down_an_incline(contact):
    slope, dt, steps = 0.3, 5e-4, 1000
    gravity = G * np.array([np.sin(slope), 0, -np.cos(slope)])
    sim = simulator(BALL, contact, dt=dt, gravity=gravity)
    down = 0.0 if isinstance(contact, fx.NCP) else 9e-4
    q = np.asarray(sim.rollout(sim.reset(q=sim.model.reference.at[2].add(-down)), steps=steps).q[:, 0])
    time = steps * dt
    way = 5 / 7 * G * np.sin(slope) * time**2 / 2
    assert q[-1] == pytest.approx(way, rel=0.02 if down else 2 * dt / time)


def test_rolling_is_rolling_and_sliding_is_sliding():
    """mu < 2/7 tan(slope) slides: a = g (sin - mu cos); the spin is driven by friction alone."""
    slope, dt, steps, mu = 0.9, 5e-4, 600, 0.2
    gravity = G * np.array([np.sin(slope), 0, -np.cos(slope)])
    sim = simulator(BALL, dt=dt, gravity=gravity, **{"pair.*.friction": mu})
    end = sim.rollout(sim.reset(), steps=steps)
    assert mu < 2 / 7 * np.tan(slope)
    time = steps * dt
    assert end.qd[-1, 0] == pytest.approx(G * (np.sin(slope) - mu * np.cos(slope)) * time, rel=1e-6)
    assert end.qd[-1, 4] == pytest.approx(mu * G * np.cos(slope) * time * 0.1 / (0.4 * 0.1**2), rel=1e-6)


def test_box_at_rest_stays_for_ten_seconds():
    sim = simulator(BLOCK, dt=2e-3)
    trajectory = sim.rollout(sim.reset(), steps=5000, record=["contact.normal_force"])
    drift = np.abs(np.asarray(trajectory.q - trajectory.q[:1]))
    pairs = sim.model.pairs
    weight = 1.5 * G
    compliance = float(pairs.cfm[0] * weight / 4 * 2e-3 * 2e-3 / pairs.baumgarte[0])
    assert drift[:, 2].max() <= compliance * 1.01
    assert drift[:, [0, 1, 3, 4, 5, 6]].max() < 1e-9
    # four corners carry the weight, shared evenly by symmetry
    force = np.asarray(trajectory.taps["contact.normal_force"][-1])
    # the solver's tolerance of 1e-10 m/s, as a force
    assert force.sum() == pytest.approx(weight, abs=4 * 1e-10 * 1.5 / 2e-3)
    assert np.sort(force)[-4:] == pytest.approx(np.full(4, weight / 4), rel=1e-6)


def test_box_on_an_incline_below_the_friction_angle_stays():
    slope = 0.28  # tan = 0.287 < 0.3
    sim = simulator(BLOCK, dt=2e-3, gravity=G * np.array([np.sin(slope), 0, -np.cos(slope)]))
    trajectory = sim.rollout(sim.reset(), steps=2500)
    # compliance lets a loaded contact creep at cfm times the friction impulse of a step, no faster
    creep = float(sim.model.pairs.cfm[0]) * 1.5 * G * np.sin(slope) / 4 * 2e-3 * 5.0
    assert 0 < float(trajectory.q[-1, 0]) < 1.5 * creep


def test_dry_friction_stops_a_wheel_and_holds_it():
    sim = simulator(WHEEL, dt=1e-3)
    speed, loss, inertia = 2.0, 0.2, 0.1
    trajectory = sim.rollout(sim.reset(qd=jnp.array([speed])), steps=1500)
    stop = speed**2 * inertia / (2 * loss)
    assert trajectory.q[-1, 0] == pytest.approx(stop, abs=speed * 1e-3)
    assert abs(trajectory.qd[-1, 0]) < 1e-10
    held = sim.rollout(sim.reset(), fx.Control(tau=jnp.full((500, 1), 0.19)))
    assert np.abs(held.q).max() < 1e-12
    slips = sim.rollout(sim.reset(), fx.Control(tau=jnp.full((500, 1), 0.25)))
    assert slips.qd[-1, 0] == pytest.approx(0.05 / inertia * 0.5, rel=1e-9)


@pytest.mark.parametrize("contact", [fx.NCP(), fx.Penalty()], ids=["NCP", "Penalty"])
def test_joint_limit_holds_a_pushed_wheel(contact):
    sim = simulator(WHEEL, contact, **{"joint.*.frictionloss": 0.0})
    trajectory = sim.rollout(
        sim.reset(q=[2.9], qd=jnp.array([1.0])), fx.Control(tau=jnp.full((2000, 1), 1.0)), record=["joint.limit_force"]
    )
    k = float(sim.model.joints.limit_stiffness[0])
    over = 1e-6 if isinstance(contact, fx.NCP) else 1.05 * (1.0 / k + 1.0 * 0.02)
    assert trajectory.q[:, 0].max() < 3 + over
    assert trajectory.taps["joint.limit_force"][-1, 0] == pytest.approx(-1.0, rel=1e-3)


@pytest.mark.parametrize("contact", [fx.NCP(), fx.Penalty()], ids=["NCP", "Penalty"])
def test_a_five_link_chain_falls_on_the_ground(contact):
    """Energy never grows, the floor holds, and the chain comes to rest on it."""
    model = fx.load("pendulum5")
    sim = fx.Simulator(model, fx.RigidSolver(contact), dt=1e-3)
    trajectory = sim.rollout(sim.reset("bent"), steps=3000, record=["contact.depth", "contact.normal_force"])
    assert trajectory.status.ok
    depth = np.asarray(trajectory.taps["contact.depth"])
    limit = 2e-3 if isinstance(contact, fx.NCP) else 2e-2
    assert depth.max() < limit
    assert (np.asarray(trajectory.taps["contact.normal_force"]) >= 0).all()
    kin = [fx.dynamics.forward_kinematics(model, q) for q in trajectory.q[::500]]
    energy = np.array(
        [
            fx.dynamics.kinetic_energy(model, k, qd) + fx.dynamics.potential_energy(model, k, q)
            for k, q, qd in zip(kin, trajectory.q[::500], trajectory.qd[::500], strict=True)
        ]
    )
    assert (np.diff(energy) < 1e-2).all()
    assert energy[-1] < energy[0] - 1.0


def test_colliding_balls_exchange_momentum_exactly():
    from flexor.certify.closed_forms import _BALLS

    sim = simulator(_BALLS, dt=1e-2, **{"pair.*.restitution": 0.7, "pair.*.cfm": 0.0})
    end = sim.rollout(sim.reset([0.0, 0.323], qd=jnp.array([1.5, 0.0])), steps=50)
    v2 = (1 + 0.7) * 2.0 * 1.5 / 2.5
    assert end.qd[-1, 1] == pytest.approx(v2, rel=1e-12)
    assert end.qd[-1, 0] == pytest.approx((2.0 * 1.5 - 0.5 * v2) / 2.0, rel=1e-12)
    assert end.q[-1, 1] == pytest.approx(0.323 + v2 * (0.5 - 0.123 / 1.5), rel=1e-12)
