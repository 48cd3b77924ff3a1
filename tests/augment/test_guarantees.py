"""The laws that networks keep for any weights: power, closed loops, mirrors. Weights are drawn at random, and far from small."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import flexor as fx
from tests.augment.scenes import BALLS, BIPED, ask, augmented, numbers, randomised, simulator

SEEDS = 40
DISSIPATIVE = {  # scene, output, inputs, velocity on which it works, its numbers, sense, scope
    "joints": (BIPED, "joint.passive_force", ["joint.q", "joint.qd"], "joint.qd", slice(None), 1, fx.Whole()),
    "each joint": (BIPED, "joint.friction_force", ["joint.q", "joint.qd"], "joint.qd", slice(None), 1, fx.Each()),
    "bias": (BIPED, "joint.bias_force", ["joint.qd"], "joint.qd", slice(None), -1, fx.Shared()),
    "bodies": (BALLS, "link.external_force", ["link.velocity", "link.rotation"], "link.velocity", slice(None), 1, fx.Each()),
    "friction": (
        "cube",
        "contact.friction_force",
        ["contact.depth"],
        "contact.relative_velocity",
        slice(1, 3),
        1,
        fx.Shared(),
    ),
    "normal": ("cube", "contact.normal_force", ["contact.depth"], "contact.relative_velocity", slice(0, 1), 1, fx.Each()),
}


def scene(robot, dtype):
    return simulator(robot, fx.RigidSolver(contact=fx.Penalty()), dtype)


SINGLE = ("joints", "friction")  # also in float32
CASES = [(c, jnp.float64) for c in DISSIPATIVE] + [(c, jnp.float32) for c in SINGLE]


@pytest.mark.parametrize(("case", "dtype"), CASES)
def test_dissipative_forces_never_bring_power(case, dtype):
    robot, output, inputs, velocity, part, sense, over = DISSIPATIVE[case]
    hybrid = augmented(scene(robot, dtype), output, inputs, fx.nets.Dissipative(width=4, depth=1), over=over)
    shapes = dict(hybrid.solver.augmentation.layout.taps)
    needed = [
        n for n in list(shapes)[: list(shapes).index(output) + 1] if n in {*inputs, velocity, output} or "contact." in n
    ]

    @jax.jit
    def power(seed):
        keys = jax.random.split(jax.random.key(seed), len(needed))
        values = {n: jax.random.normal(k, shapes[n], dtype) for n, k in zip(needed, keys, strict=True)}
        values[output] = jnp.zeros(shapes[output], dtype)
        named = {n.replace(".", "_"): x for n, x in values.items()}
        force = sense * ask(randomised(hybrid, seed, 2.0), **named)
        v = values[velocity].reshape(len(values[velocity]), -1)[:, part]
        return jnp.sum(force.reshape(v.shape) * v), jnp.sum(jnp.abs(force.reshape(v.shape) * v))

    found, size = jax.vmap(power)(jnp.arange(SEEDS))
    # the sum of n products is exact to n eps of the sum of their sizes; A^T (g A v) itself to some tens of eps
    assert (np.asarray(found) <= 100 * jnp.finfo(dtype).eps * np.asarray(size)).all()
    assert (np.asarray(found) < 0).sum() > SEEDS / 3  # and it does say something


def test_a_fresh_dissipative_network_is_silent_and_can_learn():
    hybrid = augmented(
        simulator("double_pendulum"), "joint.passive_force", ["joint.q"], fx.nets.Dissipative(width=4, depth=1)
    )
    values = {"joint_q": [0.3, 0.2], "joint_qd": [1.0, -2.0], "joint_passive_force": [0.5, 0.7]}
    np.testing.assert_array_equal(ask(hybrid, **values), values["joint_passive_force"])
    gradient = eqx.filter_grad(lambda h: ask(h, **values).sum())(hybrid).solver.augmentation.networks[0][0].gain
    assert (np.asarray(gradient) != 0).all()


def test_power_is_never_positive_along_rollouts():
    sim = simulator("double_pendulum")
    hybrid = augmented(sim, "joint.passive_force", ["joint.q", "joint.qd"], fx.nets.Dissipative(width=4, depth=1))
    start = sim.reset([0.5, 0.3], [2.0, -3.0])

    @jax.jit
    @jax.vmap
    def power(seed):
        damped = randomised(hybrid, seed, 0.3)
        taps = damped.rollout(start, steps=50, record=["joint.passive_force", "joint.qd"]).taps
        return jnp.sum(taps["joint.passive_force"] * taps["joint.qd"], axis=-1)

    found = np.asarray(power(jnp.arange(20)))
    assert np.isfinite(found).all()
    assert (found <= 1e-14).all()
    assert (found.min(axis=1) < -1e-6).sum() > 10


@pytest.mark.parametrize("over", [fx.Whole(), fx.Each()])
def test_conservative_forces_have_a_symmetric_jacobian(over):
    hybrid = augmented(
        simulator(BIPED), "joint.passive_force", ["joint.q"], fx.nets.Conservative(width=4, depth=1), over=over
    )

    @jax.jit
    @jax.vmap
    def jacobian(seed):
        q = jax.random.normal(jax.random.key(seed), (6,))
        return jax.jacfwd(lambda q: ask(randomised(hybrid, seed), joint_q=q, joint_passive_force=np.zeros(6)))(q)

    J = np.asarray(jacobian(jnp.arange(SEEDS)))
    np.testing.assert_allclose(J, J.swapaxes(1, 2), atol=1e-12 * np.abs(J).max())
    assert (np.abs(J[:, 1, 3]) > 1e-4).any() == isinstance(over, fx.Whole)


def test_conservative_forces_do_no_work_around_a_loop():
    """Through rotations, positions and lengths."""
    net = fx.nets.Conservative(width=4, depth=1)
    hybrid, other = (augmented(simulator(BALLS), f"joint.{name}_force", ["joint.q"], net) for name in ("passive", "gravity"))
    a, b, c = (jnp.asarray(numbers(k, 3)) for k in range(3))
    identity = jnp.array([1.0, 0, 0, 0])

    def path(t):
        """A closed curve through all coordinates."""
        exp, mul = fx.spatial.quat_exp, fx.spatial.quat_mul
        turn = [mul(exp(x * jnp.sin(t)), exp(y * (jnp.cos(2 * t) - 1))) for x, y in ((a, b), (b, c))]
        return jnp.concatenate([a * jnp.cos(t), mul(identity, turn[0]), turn[1], jnp.sin(t)[None]])

    def velocity(t):
        q, rate = jax.jvp(path, (t,), (jnp.ones(()),))

        def body(q, rate):
            return 2 * fx.spatial.quat_mul(q * jnp.array([1.0, -1, -1, -1]), rate)[1:]

        return jnp.concatenate([rate[:3], body(q[3:7], rate[3:7]), body(q[7:11], rate[7:11]), rate[11:]])

    @jax.jit
    @jax.vmap
    def powers(seed):
        net = randomised(hybrid, seed, 0.4)
        t = jnp.arange(96.0) * (2 * jnp.pi / 96)
        return jax.vmap(lambda t: ask(net, joint_q=path(t), joint_passive_force=np.zeros(10)) @ velocity(t))(t)

    # the trapezoidal rule of a smooth periodic function converges faster than any power of the number of points
    found = np.asarray(powers(jnp.arange(10)))
    assert (np.abs(found.mean(axis=1)) < 1e-8 * np.abs(found).max(axis=1)).all()
    assert (np.abs(found).max(axis=1) > 1e-3).all()
    # gravity_force is subtracted from the forces, so there the network adds the gradient itself
    q, zero = numbers(4, 12), np.zeros(10)
    force = ask(randomised(hybrid, 0), joint_q=q, joint_passive_force=zero)
    np.testing.assert_array_equal(ask(randomised(other, 0), joint_q=q, joint_gravity_force=zero), -force)


MIRROR = {"pairs": [("hip_l", "hip_r"), ("knee_l", "knee_r")], "flip": ["hip_l", "tail"]}
SWAP = [0, 3, 4, 1, 2, 5]  # lift, hip_l, knee_l, hip_r, knee_r, tail
SIGN = np.array([1.0, -1, 1, -1, 1, -1])


@pytest.mark.parametrize("over", [fx.Whole(), fx.Each()])
@pytest.mark.parametrize("of", [fx.nets.MLP(width=4, depth=1), fx.nets.Dissipative(width=4, depth=1)])
def test_symmetric_networks_commute_with_the_mirror(of, over):
    sim = simulator(BIPED)
    assert [j.name for j in sim.model.topology.joints] == ["lift", "hip_l", "knee_l", "hip_r", "knee_r", "tail"]
    inputs = ["joint.q", "joint.qd", "joint.qd[knee_l]"]
    hybrid = augmented(sim, "joint.passive_force", inputs, fx.nets.Symmetric(of=of, **MIRROR), over=over)

    @jax.jit
    @jax.vmap
    def forces(seed):
        q, qd = jax.random.normal(jax.random.key(seed), (2, 6))
        net, swap = randomised(hybrid, seed), np.array(SWAP)
        plain = ask(net, joint_q=q, joint_qd=qd, joint_passive_force=np.zeros(6))
        mirrored = ask(net, joint_q=SIGN * q[swap], joint_qd=SIGN * qd[swap], joint_passive_force=np.zeros(6))
        return plain, mirrored, plain @ qd

    plain, mirrored, power = (np.asarray(x) for x in forces(jnp.arange(SEEDS)))
    np.testing.assert_allclose(mirrored, SIGN * plain[:, SWAP], atol=1e-12 * np.abs(plain).max())
    assert np.abs(plain).max(axis=0).min() > 0
    if isinstance(of, fx.nets.Dissipative):
        assert (power <= 1e-12).all()
    labels = [label for group in hybrid.solver.augmentation.wires[0].groups for label in group.labels]
    assert len(labels) == (1 if isinstance(over, fx.Whole) else 4)  # mirrored joints share their weights
