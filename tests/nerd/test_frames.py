"""Encode and decode of a step, and that a network cannot know where the robot stands."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import flexor as fx
from flexor.contact import contact_jacobian, detect
from flexor.dynamics import forward_kinematics
from flexor.model.model import as_control
from flexor.nerd.base import CoarseContact, FreeFlight, NoBase, acting_share
from flexor.nerd.frames import Frames
from flexor.nerd.network import Norms, Sizes, Transformer
from flexor.nerd.ranges import Ranges
from flexor.nerd.solver import NerdSolver
from flexor.spatial import quat_mul, quat_to_matrix

BALL = """<mujoco model="ball"><worldbody><geom name="floor" type="plane" size="1 1 1"/><body name="a" pos="0 0 1">
<joint name="swivel" type="ball"/><inertial pos="0 0 -.2" mass="1" diaginertia=".1 .1 .1"/>
<geom name="tip" size=".1" pos="0 0 -.4"/>
<body name="b" pos="0 0 -.4"><joint name="rail" type="slide" axis="1 0 0" range="-.2 .2"/><joint name="spin" axis="0 1 0"/>
<inertial pos="0 0 -.1" mass=".5" diaginertia=".01 .01 .01"/></body></body></worldbody></mujoco>"""
ROBOTS = {
    "cartpole": "cartpole",
    "cube": "cube",
    "pusher": "pusher",
    "ball, slide and hinge": BALL,
}


@pytest.fixture(params=ROBOTS, ids=lambda name: name)
def model(request):
    return fx.load(ROBOTS[request.param]).astype(jnp.float64)


def states(model, count, seed=0):
    ranges = Ranges(tilt=2.0)
    return jax.jit(jax.vmap(lambda k: ranges.draw(model, k)))(jax.random.split(jax.random.key(seed), count))


def test_decode_undoes_target(model):
    frames = Frames(model.topology, 1 / 60, reach=100.0)  # something is always in reach
    (q, new_q), (qd, new_qd) = (np.asarray(x).reshape(2, 20, -1) for x in states(model, 40))

    def there_and_back(q, qd, new_q, new_qd):
        scene = frames.observe(model, q, qd, as_control(model, None))
        ahead = frames.foresee(model, scene)
        return frames.decode(model, scene, ahead, frames.target(scene, ahead, new_q, new_qd))

    back_q, back_qd = fx.simd.vmap(there_and_back)(q, qd, new_q, new_qd)
    apart = jax.jit(jax.vmap(frames.difference))(
        jnp.asarray(new_q), back_q
    )  # a turn by 2 pi, or a quaternion's sign, is no difference
    assert np.abs(apart).max() < 1e-12
    assert np.abs(back_qd - new_qd).max() < 1e-12


@pytest.mark.parametrize(("base", "dtype"), [(FreeFlight(8), jnp.float32), (CoarseContact(8), jnp.float64)])
def test_flight_is_exact_whatever_the_weights(base, dtype):
    model = fx.load("cube").astype(dtype)
    q, qd = model.reference.at[2].set(5.0), jnp.linspace(-1.0, 1.0, model.nv, dtype=dtype)
    frames = Frames(model.topology, 1 / 60, base=base)
    n, m = len(frames.labels), frames.outputs
    norms = Norms(jnp.zeros(n), jnp.ones(n), jnp.ones(m), jnp.ones(m))
    keys = jax.random.split(jax.random.key(0), 1)
    network = eqx.filter_vmap(lambda k: Transformer.build(Sizes(1, 16, 2), norms, k))(keys)
    learned = fx.Simulator(model, NerdSolver(network, frames), dt=1 / 60)
    true = learned.with_solver(fx.Substeps(fx.RigidSolver(), 8))
    found, wanted = (sim.rollout(sim.reset(q, qd), steps=5) for sim in (learned, true))
    tight = 1e-5 if dtype == jnp.float32 else 1e-13
    assert np.abs(found.q - wanted.q).max() < tight
    assert np.abs(found.qd - wanted.qd).max() < tight


def test_contacts_are_foreseen_exactly_over_a_plane():
    """A capsule's ends and a box's corners after a step, found from the step before, as detection finds them there."""
    for name in ("double_pendulum_contact", "cube"):
        model = fx.load(name).astype(jnp.float64)
        frames = Frames(model.topology, 1 / 60, base=FreeFlight(4))
        q, qd = states(model, 20)

        @fx.simd.vmap
        def apart(q, qd, model=model, frames=frames):
            scene = frames.observe(model, q, qd, as_control(model, None))
            ahead = frames.foresee(model, scene)
            kin = forward_kinematics(model, ahead.q)
            found = detect(model, kin)
            speed = jnp.einsum("ckd,d->ck", contact_jacobian(model, kin, found), ahead.qd)[:, 0]
            return found.distance - ahead.distance, speed - jnp.sum(scene.normal * ahead.velocity, axis=1)

        distance, speed = apart(q, qd)
        assert np.abs(distance).max() < 1e-12
        assert np.abs(speed).max() < 1e-12


BALLS = """<mujoco model="ball"><worldbody><geom name="floor" type="plane" size="1 1 1"/><body name="a" pos="0 0 1"><freejoint/>
<geom name="ball" size=".1" mass="1"/></body></worldbody></mujoco>"""


@pytest.mark.parametrize("height", [0.1, 0.11, 0.12, 0.139])
def test_a_coarse_step_stops_a_ball_on_the_floor_and_only_one_that_reaches_it(height):
    """At 2 m/s a ball falls 33 mm and a little in a step: from 39 mm above the floor it flies on, else it comes to lie on it."""
    model = fx.load(BALLS).astype(jnp.float64)
    frames = Frames(model.topology, 1 / 60, base=CoarseContact(8))
    q, qd = model.reference.at[2].set(height), jnp.zeros(6).at[2].set(-2.0)
    ahead = fx.simd.jit(lambda q, qd: frames.foresee(model, frames.observe(model, q, qd, as_control(model, None))))(q, qd)
    falls = 2.0 / 60 + 9.81 / 2 / 60**2 * (1 + 1 / 8)  # semi-implicit Euler falls by g dt h / 2 more
    assert float(ahead.distance[0]) == pytest.approx(height - 0.1 - falls, abs=1e-12)
    if height - 0.1 > falls:
        assert float(ahead.qd[2]) == pytest.approx(-2.0 - 9.81 / 60, abs=1e-12)
        assert float(ahead.q[2]) == pytest.approx(height - falls, abs=1e-12)
    else:
        assert float(ahead.qd[2]) == pytest.approx(0.0, abs=2e-3)  # what the contact's compliance leaves
        assert float(ahead.q[2]) == pytest.approx(0.1, abs=1e-4)


def test_contact_acts_at_the_impact_or_all_the_time():
    def share(now, later):
        return float(acting_share(jnp.asarray(now), jnp.asarray(later), 0.01, 9.81))

    assert share([0.2], [0.1]) == 0.5  # nothing touches
    assert share([0.0], [-1e-9]) == pytest.approx(0.5, rel=1e-4)  # it rests
    assert share([0.25], [-0.75]) == pytest.approx(0.25, rel=1e-2)  # it hits at 100 m/s
    assert share([0.25, 0.0], [-0.75, -1e-9]) == pytest.approx(share([0.25], [-0.75]), rel=1e-6)  # the faster one counts


def test_every_input_has_its_name(model):
    frames = Frames(model.topology, 1 / 60)
    assert set(Frames(model.topology, 1 / 60, base=NoBase()).labels) < set(frames.labels)
    x = eqx.filter_eval_shape(lambda m: frames.encode(m, m.reference, jnp.zeros(m.nv), as_control(m, None)), model)
    assert x.shape == (len(frames.labels),) == (len(set(frames.labels)),)


def moved(model, frames, q, qd, angle, shift):
    """The whole scene turned about gravity and shifted: robot, planes, and velocities."""
    turn = jnp.stack([jnp.cos(angle / 2), 0.0, 0.0, jnp.sin(angle / 2)])
    R = quat_to_matrix(turn)
    t = model.topology
    fixed = [i for i, g in enumerate(t.geoms) if g.body == 0]
    pos, quat = model.geoms.pos, model.geoms.quat
    for i in fixed:
        pos, quat = pos.at[i].set(R @ pos[i] + shift), quat.at[i].set(quat_mul(turn, quat[i]))
    model = eqx.tree_at(lambda m: (m.geoms.pos, m.geoms.quat), model, (pos, quat))
    free = t.joints_of("free")
    for j in free:
        at, v = int(t.q_start[j]), int(t.v_start[j])
        q = q.at[at : at + 3].set(R @ q[at : at + 3] + shift)
        q = q.at[at + 3 : at + 7].set(quat_mul(turn, q[at + 3 : at + 7]))
        qd = qd.at[v : v + 3].set(R @ qd[v : v + 3])
    if not len(free):
        base = [b for b, parent in enumerate(t.parents) if parent == 0 and b > 0]
        pos, quat = model.bodies.pos, model.bodies.quat
        for b in base:
            pos, quat = pos.at[b].set(R @ pos[b] + shift), quat.at[b].set(quat_mul(turn, quat[b]))
        model = eqx.tree_at(lambda m: (m.bodies.pos, m.bodies.quat), model, (pos, quat))
    return model, q, qd


def test_inputs_do_not_change_when_the_scene_is_moved(model):
    if model.topology.name == "pusher":
        pytest.skip("two trees on the world: its first body's frame is the root of both")
    frames = Frames(model.topology, 1 / 60, reach=10.0)

    def change(q, qd, angle):
        other = moved(model, frames, q, qd, angle, shift=jnp.array([0.4, -1.3, 0.6]))
        control = as_control(model, None)
        return frames.encode(model, q, qd, control) - frames.encode(*other, control)

    assert np.abs(fx.simd.vmap(change)(*states(model, 5, seed=1), 0.7 + jnp.arange(5.0))).max() < 1e-12


def test_far_candidates_are_not_seen():
    model = fx.load("cube").astype(jnp.float64)
    frames = Frames(model.topology, 1 / 60, reach=0.05)
    control = as_control(model, None)
    encode = jax.jit(lambda z: frames.encode(model, model.reference.at[2].set(z), jnp.zeros(6), control))
    high, low = encode(3.0), encode(0.0524)
    contacts = np.array([label.startswith("contact") for label in frames.labels])
    assert not np.any(high[contacts])
    assert np.any(low[contacts])


def test_ablations_see_the_world_and_no_contacts():
    model = fx.load("cube").astype(jnp.float64)
    world, blind = Frames(model.topology, 1 / 60, centric=False), Frames(model.topology, 1 / 60, contacts=False)
    control = as_control(model, None)
    encode = jax.jit(lambda x: world.encode(model, model.reference.at[0].set(x), jnp.zeros(6), control))
    here, there = encode(0.0), encode(1.0)
    assert np.abs(here - there).max() == pytest.approx(1.0)
    assert not any(label.startswith("contact") for label in blind.labels)
    shape = jax.eval_shape(lambda: blind.encode(model, model.reference, jnp.zeros(6), control)).shape
    assert shape == (len(blind.labels),)
