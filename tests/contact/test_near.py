"""The list of near contacts against all candidates; it does not depend on their number."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import flexor as fx
from flexor.contact.contact import Instant
from flexor.contact.near import near_contacts
from flexor.dynamics import forward_kinematics

SHAPES = {
    "ball": '<geom size="0.12"/>',
    "pill": '<geom type="capsule" size="0.06 0.12"/>',
}


def crowd(*names, extra=""):
    bodies = "".join(
        f'<body name="{n}{i}" pos="{0.3 * i} 0 0.5"><freejoint/>{SHAPES[n]}</body>' for i, n in enumerate(names)
    )
    return fx.load(f"""<mujoco><worldbody><geom name="floor" type="plane" size="5 5 1"/>{bodies}{extra}</worldbody>
      <default><geom density="500"/></default></mujoco>""")


def thrown(model, key, low=0.0, high=0.3):
    """Bodies anywhere, turned anyhow, so that some touch the floor and each other."""
    q = np.array(model.reference).reshape(-1, 7)
    rng = np.random.default_rng(key)
    q[:, :2] = rng.uniform(-0.25, 0.25, (len(q), 2))
    q[:, 2] = rng.uniform(low, high, len(q))
    turn = rng.normal(size=(len(q), 4))
    q[:, 3:] = turn / np.linalg.norm(turn, axis=1, keepdims=True)
    return jnp.asarray(q.ravel())


@pytest.fixture(scope="module")
def mixture():
    return crowd("ball", "pill", "ball", "pill", "pill")


@pytest.mark.parametrize("margin", [0.0, 0.05])
@pytest.mark.parametrize("key", range(4))
def test_touching_candidates_are_those_of_all(mixture, key, margin):
    """Of pairs with at most four candidates none is dropped: every candidate that overlaps is in the list, with the same
    geometry, and the list has no other that does."""
    mixture = fx.replace(mixture, {"pair.*ball*.margin": margin})
    q = thrown(mixture, key)
    kin = forward_kinematics(mixture, q)
    everything = fx.contact.detect(mixture, kin)
    found = near_contacts(Instant(mixture, kin, q, jnp.zeros(mixture.nv)), jnp.zeros(mixture.nv), jnp.asarray(1e-3), 24)
    here, listed = np.asarray(everything.distance) < 0, np.asarray(found.contacts.distance) < 0
    assert here.sum() == listed.sum() > 2
    assert int(found.left_out) == 0

    def table(c, rows):
        parts = (
            np.asarray(c.pair)[:, None],
            np.asarray(c.bodies),
            c.distance[:, None],
            c.normal,
            c.point,
            c.friction[:, None],
        )
        rows = np.concatenate([np.asarray(x)[rows] for x in parts], axis=1)
        return rows[np.lexsort(np.round(rows.T[::-1], 9))]

    np.testing.assert_allclose(table(found.contacts, listed), table(everything, here), atol=1e-12)


def test_a_fast_body_is_near_before_it_touches(mixture):
    """The reach of a pair: a ball 2 cm above the floor is listed when a step at its velocity brings it there, else not."""
    q = np.array(mixture.reference).reshape(-1, 7)
    q[:, 2] = 2.0
    q[0, 2] = 0.14
    q = jnp.asarray(q.ravel())
    now = Instant(mixture, forward_kinematics(mixture, q), q, jnp.zeros(mixture.nv))
    for speed, near in ((5.0, 0), (15.0, 1)):
        found = near_contacts(now, jnp.zeros(mixture.nv).at[2].set(-speed), jnp.asarray(1e-3), 24)
        assert int((found.key >= 0).sum()) == near  # reach 1 ms * (1 + 2 speed) = 11 or 31 mm


def test_too_many_are_counted_and_those_that_touch_stay(mixture):
    q = thrown(mixture, 1, 0.0, 0.1)
    kin = forward_kinematics(mixture, q)
    now, still = Instant(mixture, kin, q, jnp.zeros(mixture.nv)), jnp.zeros(mixture.nv)
    touching = int((fx.contact.detect(mixture, kin).distance < 0).sum())
    assert touching > 4
    found = near_contacts(now, still, jnp.asarray(0.01), 4)
    assert int(found.left_out) == touching - 4
    assert (np.asarray(found.contacts.distance) < 0).all()
    roomy = near_contacts(now, still, jnp.asarray(0.5), touching + 1)  # all but everything is near within half a second
    assert (np.asarray(roomy.contacts.distance) < 0).sum() == touching


@pytest.mark.parametrize("simd", [True, False])
def test_the_same_motion_as_with_all_candidates(simd):
    """Balls have one contact with each other, so that the list and all candidates pose the same problem."""
    model = crowd("ball", "ball", "ball", "ball")
    ends = []
    for most in (9, 10):
        sim = fx.Simulator(model, fx.RigidSolver(contact=fx.NCP(most=most, tolerance=1e-13)), dt=0.002, simd=simd)
        ends.append(sim.rollout(sim.reset(thrown(model, 3, 0.13, 0.6)), steps=100).final)
    listed, everything = ends
    assert listed.memory.key is not None
    assert everything.memory.key is None
    assert float(jnp.abs(listed.memory.contact).max()) > 0
    # contacts are visited in another order, and each step is solved to 1e-13 m/s; impacts double a difference now and then
    assert np.abs(listed.q - everything.q).max() < 1e-9


def test_gradients_are_those_of_all_candidates():
    model = crowd("ball", "ball", "pill")
    q = thrown(model, 5, 0.1195, 0.13).at[2].set(0.1198)
    found = []
    for most in (5, 50):
        sim = fx.Simulator(model, fx.RigidSolver(contact=fx.NCP(most=most, tolerance=1e-13)), dt=0.002)

        def end(q, radius, sim=sim):
            changed = eqx.tree_at(lambda s: s.model.geoms.size, sim, sim.model.geoms.size.at[1, 0].set(radius))
            return jnp.sum(jnp.sin(changed.step(changed.reset(q)).qd))

        found.append(jax.jit(jax.grad(end, (0, 1)))(q, jnp.asarray(0.12)))
    for listed, everything in zip(*found, strict=True):
        assert np.abs(everything).max() > 1e-3
        np.testing.assert_allclose(listed, everything, rtol=1e-7, atol=1e-9)


def test_the_program_does_not_grow_with_the_number_of_pairs():
    sizes = []
    for extra in (40, 80):
        wall = "".join(f'<geom size="0.1" pos="{0.3 * i} 2 0.5"/>' for i in range(extra))
        sim = fx.Simulator(crowd("ball", extra=wall), dt=0.002)
        state = sim.reset()

        def step(q, sim=sim, state=state):
            return sim.solver.step(sim.model, eqx.tree_at(lambda s: s.q, state, q), fx.Control(), jnp.asarray(0.002)).q

        sizes.append(sum(fx.simd.inspect(step, state.q).operations.values()))
    assert sizes[1] < 1.02 * sizes[0]  # frames of the fixed shapes are constants, and tables are memory


def test_penalty_finds_the_same_forces():
    model = crowd("ball", "pill", "ball")
    q = thrown(model, 2, 0.08, 0.12)
    ends = []
    for most in (6, 60):
        sim = fx.Simulator(model, fx.RigidSolver(contact=fx.Penalty(most=most)), dt=1e-4)
        ends.append(sim.rollout(sim.reset(q), steps=20).qd[-1])
    assert np.abs(ends[1]).max() > 0.01
    np.testing.assert_allclose(*ends, rtol=1e-9, atol=1e-12)


def test_a_stack_of_ten_boxes_stands_in_single_precision():
    """For 10 s. Gaps are some roundings of the coordinates, 2 m times 1e-7, and none of them may have a time of impact."""
    box = '<body pos="0 0 {}"><freejoint/><geom type="box" size="0.1 0.1 0.1" density="500"/></body>'
    boxes = "".join(box.format(0.1 + 0.2 * i) for i in range(10))
    text = f'<mujoco><worldbody><geom type="plane" size="5 5 1"/>{boxes}</worldbody></mujoco>'
    sim = fx.Simulator(fx.load(text, dtype=jnp.float32), dt=jnp.asarray(0.004, jnp.float32), simd=True)
    run = sim.rollout(sim.reset(), steps=2500)
    assert int(run.final.memory.left_out) == 0
    assert run.final.memory.contact.shape == (80, 3)
    assert np.abs(np.asarray(run.q - run.q[:1])).max() < 1e-4  # their compliance lets them sink by micrometres
