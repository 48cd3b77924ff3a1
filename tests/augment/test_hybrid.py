"""Simulators with networks: no change while untrained, and then the change that was meant; jit, vmap, grad, kernels."""

import dataclasses

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.interpreters import partial_eval

import flexor as fx
from flexor.augment import Augmentation
from flexor.augment.blueprint import READ_ONLY
from flexor.taps import listen
from tests.augment.scenes import BIPED, FREE, LIMITED, augmented, numbers, randomised, simulator

NET = fx.nets.MLP(width=4, depth=1)
INPUTS = ["joint.q", "joint.qd"]


def same_bits(a, b):
    np.testing.assert_array_equal(a.q, b.q)
    np.testing.assert_array_equal(a.qd, b.qd)


def every_kind(sim):
    """A fresh network at every quantity that can have one, and one with each guarantee."""
    blueprint = fx.Blueprint()
    for name in fx.taps(sim):
        if name not in READ_ONLY and name not in ("joint.passive_force", "joint.applied_force"):
            blueprint.add(name, inputs=INPUTS if name != "joint.qd" else ["joint.q"], net=NET)
    blueprint.add("joint.passive_force", inputs=["joint.q"], net=fx.nets.Conservative(width=4, depth=1))
    return blueprint.add("joint.applied_force", inputs=INPUTS, net=fx.nets.Dissipative(width=4, depth=1))


@pytest.mark.parametrize(
    ("robot", "simd"), [("double_pendulum", True), ("double_pendulum", False), ("cube", True), ("quadruped", True)]
)
def test_fresh_networks_change_no_bit(robot, simd):
    """Networks that are known to return zero are left out of the program, so it is exactly the same."""
    model = fx.replace(fx.load(robot), {"joint.*.damping": 0.1})
    sim = fx.Simulator(model, dt=0.002, simd=simd)
    hybrid = sim.augment(every_kind(sim))
    assert jax.tree.structure(hybrid.solver.simplified()) == jax.tree.structure(sim.solver)
    start = sim.reset("tossed" if robot == "cube" else None, numbers(0, model.nv))
    if robot == "double_pendulum":
        same_bits(hybrid.rollout(start, steps=100), sim.rollout(start, steps=100))
    elif robot == "cube":
        same_bits(hybrid.step(start), sim.step(start))
    spoken = randomised(hybrid, 0)
    assert spoken.solver.simplified() is not None
    assert len(spoken.solver.simplified().augmentation.entries) >= len(hybrid.solver.augmentation.entries) - 1


@pytest.mark.parametrize("simd", [True, False])
def test_fresh_networks_with_unknown_weights_add_zero(simd):
    """Inside jit the weights are arguments and the networks are computed: the zeros that they add may cost the fusion of a
    product into a sum, which is a rounding, and here costs nothing."""
    model = fx.replace(fx.load("double_pendulum"), {"joint.*.damping": 0.1})
    sim = fx.Simulator(model, FREE, dt=0.002, simd=simd)
    start = sim.reset([0.4, -0.2], [1.0, 2.0])
    roll = eqx.filter_jit(lambda s: s.rollout(start, steps=100))
    same_bits(roll(augmented(sim, "joint.passive_force", INPUTS, NET)), roll(sim))


@pytest.mark.parametrize("contact", [fx.NCP(), fx.Penalty(), None])
def test_a_listener_that_changes_nothing_leaves_the_very_program(contact):
    sim = fx.Simulator(fx.load("cube"), fx.RigidSolver(contact=contact))
    state = sim.reset("tossed")

    def program(with_listener):
        def step(state):
            if not with_listener:
                return sim.solver.step(sim.model, state, fx.Control(), sim.dt)
            with listen(lambda name, value: value):
                return sim.solver.step(sim.model, state, fx.Control(), sim.dt)

        jaxpr = jax.make_jaxpr(step)(state).jaxpr
        return [e.primitive.name for e in partial_eval.dce_jaxpr(jaxpr, [True] * len(jaxpr.outvars))[0].eqns]

    assert program(True) == program(False)


@pytest.mark.parametrize("integrator", [fx.SemiImplicitEuler(), fx.RK4()])
def test_a_linear_network_is_a_damper(integrator):
    """-d qd learned or given: the same motion. With RK4 only if every stage sees its own velocities."""
    solver = fx.RigidSolver(contact=None, integrator=integrator)
    model = fx.load("pendulum")
    sim, damped = (fx.Simulator(fx.replace(model, {"joint.*.damping": d}), solver, dt=0.005, simd=True) for d in (0.0, 0.3))
    hybrid = augmented(sim, "joint.passive_force", ["joint.qd"], fx.nets.MLP(depth=0))
    weights = lambda h: h.solver.augmentation.networks[0][0].layers[0].weight  # noqa: E731
    hybrid = eqx.tree_at(weights, hybrid, jnp.full((1, 1, 1), -0.3))
    start = sim.reset([0.5], [2.0])
    a, b = hybrid.rollout(start, steps=100, record=["joint.qd", "joint.passive_force"]), damped.rollout(start, steps=100)
    np.testing.assert_allclose(a.qd, b.qd, atol=1e-12)  # 100 steps of a few hundred roundings each
    np.testing.assert_allclose(a.taps["joint.passive_force"], -0.3 * b.qd[:-1], atol=1e-12)
    np.testing.assert_array_equal(a.taps["joint.qd"], a.qd[:-1])  # kept are the values of the first stage


def test_forces_after_the_impulses_reach_every_joint():
    """joint.limit_force and joint.friction_force of the NCP: a network acts also where there is neither limit nor friction."""
    sim = simulator(LIMITED, fx.RigidSolver(), simd=True)
    tau = numbers(1, 2)
    start = sim.reset([0.1, 0.2], numbers(2, 2, size=0.1))
    pushed = sim.step(start, fx.Control(tau=jnp.asarray(tau)))
    for output in ("joint.limit_force", "joint.friction_force"):
        hybrid = augmented(sim, output, ["joint.qd"], fx.nets.MLP(depth=0))
        bias = lambda h: h.solver.augmentation.networks[0][0].layers[0].bias  # noqa: E731
        hybrid = eqx.tree_at(bias, hybrid, jnp.asarray(tau)[None])
        np.testing.assert_allclose(hybrid.step(start).qd, pushed.qd, atol=1e-13)


@pytest.fixture(scope="module")
def trained():
    """A pendulum with two networks that say something, through XLA and as a kernel."""
    blueprint = fx.Blueprint().add("joint.passive_force", inputs=INPUTS, net=NET, over=fx.Each())
    blueprint.add("joint.applied_force", inputs=["joint.qd"], net=fx.nets.Dissipative(width=2, depth=1))
    return [randomised(simulator("pendulum", simd=simd).augment(blueprint), 3, 0.5) for simd in (False, True)]


def end(hybrid, q):
    return jnp.sin(hybrid.rollout(hybrid.reset(q), steps=100).q[-1]).sum()


def test_kernels_agree_with_xla_and_gradients_with_differences(trained):
    """Values, and derivatives to weights and parameters of the model together."""
    q = jnp.array([0.5])
    (value, gradient), (found, other) = (eqx.filter_value_and_grad(end)(h, q) for h in trained)
    np.testing.assert_allclose(found, value, rtol=1e-11)  # 100 steps of a smooth motion amplify rounding by some thousands
    for a, b in zip(jax.tree.leaves(gradient), jax.tree.leaves(other), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-8, atol=1e-10 * (1 + np.abs(b).max(initial=0)))
    assert all(np.abs(x).max() > 0 for x in jax.tree.leaves(gradient.solver.augmentation))
    assert np.abs(gradient.model.bodies.mass).max() > 0
    leaves, tree = jax.tree.flatten(trained[1].solver)
    direction = jax.tree.unflatten(tree, [jnp.asarray(numbers(k, *x.shape)) for k, x in enumerate(leaves)])
    run = eqx.filter_jit(lambda h: end(h, q))

    def moved(step):
        solver = jax.tree.map(lambda x, d: x + step * d, trained[1].solver, direction)
        return float(run(eqx.tree_at(lambda h: h.solver, trained[1], solver)))

    h = 1e-5  # central differences: h^2 of truncation beside eps / h of rounding, both about 1e-10
    slope = sum(
        float(jnp.vdot(d, g)) for d, g in zip(jax.tree.leaves(direction), jax.tree.leaves(other.solver), strict=True)
    )
    assert (moved(h) - moved(-h)) / (2 * h) == pytest.approx(slope, rel=1e-6)


def test_batches_of_states_and_of_weights(trained):
    """`vmap` over starts, and over hybrids: each member as alone."""
    hybrid = trained[1]
    starts = jnp.asarray(numbers(5, 3, 1))
    alone = eqx.filter_jit(end)
    batch = jax.vmap(lambda q: end(hybrid, q))(starts)
    np.testing.assert_allclose(batch, [alone(hybrid, q) for q in starts], rtol=1e-11)
    other = randomised(hybrid, 9, 0.5)
    both = jax.tree.map(lambda *x: jnp.stack(x), hybrid.solver.augmentation, other.solver.augmentation)

    def with_weights(augmentation):
        return end(eqx.tree_at(lambda h: h.solver.augmentation, hybrid, augmentation), starts[0])

    found = eqx.filter_vmap(with_weights)(both)
    np.testing.assert_allclose(found, [alone(hybrid, starts[0]), alone(other, starts[0])], rtol=1e-11)


def test_augmentations_stack_and_move(trained):
    """A hybrid can be augmented again; weights can be put onto another simulator of the same robot, in its precision."""
    hybrid = trained[0]
    twice = augmented(hybrid, "joint.bias_force", ["joint.passive_force"], NET)
    assert isinstance(twice.solver.base, fx.HybridSolver)
    assert jax.tree.structure(twice.solver.simplified()) == jax.tree.structure(hybrid.solver)
    plain = simulator("pendulum", dtype=jnp.float32)
    again = plain.augment(hybrid.solver.augmentation)
    assert again.solver.augmentation.networks[0][0].layers[0].weight.dtype == jnp.float32
    same = simulator("pendulum", simd=False).augment(hybrid.solver.augmentation)
    q = jnp.array([0.5])
    assert float(end(same, q)) == float(end(hybrid, q))
    with pytest.raises(
        ValueError, match=r"was made for 'pendulum' and does not fit 'biped': its joints are lift \(slide\), .*"
    ):
        simulator(BIPED).augment(hybrid.solver.augmentation)
    with pytest.raises(ValueError, match=r"does not fit 'cartpole'"):
        fx.Simulator(fx.load("cartpole"), hybrid.solver)
    wrong = dataclasses.replace(hybrid.solver.augmentation.layout, taps=hybrid.solver.augmentation.layout.taps[:1])
    with pytest.raises(ValueError, match=r"'joint.passive_force' is not computed by this solver"):
        hybrid.solver.augmentation.on(wrong)
    assert isinstance(same.solver.augmentation, Augmentation)
