"""Derivatives by the chain of the steps against JAX's forward mode through the rollout; sums over groups; limits of steps."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import flexor as fx
from flexor.identify import chain, problem
from flexor.identify.levenberg import FENCE, Proposal, _limits, _step_within, choose
from flexor.identify.problem import Problem, observe_columns, program
from flexor.identify.segments import Shooting, cut
from flexor.model.charts import coordinates
from tests.identify.curves import Curve, decay

STEPS = 6
FREE = ("body.*.mass", "body.*.com", "joint.*.damping", "joint.*.frictionloss")
PENDULUM = fx.replace(fx.load("double_pendulum"), {"joint.*.damping": 0.1, "joint.*.frictionloss": 0.05})
SOLVER = fx.RigidSolver(contact=fx.NCP(), integrator=fx.ImplicitDamping())


def two_links(free=FREE, solver=SOLVER, model=PENDULUM):
    """Two training segments and a held-out one of a double pendulum with dry friction, starts to be estimated."""
    sim = fx.Simulator(model, solver, dt=0.01, simd=True)
    rng = np.random.default_rng(0)
    columns = ("q.shoulder", "qd.elbow")
    logs = [
        fx.Log(0.01 * np.arange(STEPS + 1), rng.normal(size=(STEPS + 1, 2)), columns, rng.normal(size=(STEPS, 2)),
               dict.fromkeys(columns, 0.1), (rng.normal(size=2), rng.normal(size=2))) for _ in range(3)
    ]  # fmt: skip
    segments, _ = cut(sim, logs, Shooting(free_start=True), np.full(2, 0.1))
    return Problem(
        sim, coordinates(sim.model, free), segments, observe_columns(sim.model, columns), None,
        held_out=np.array([False, True, False]), networks=False, free_start=True,
    )  # fmt: skip


@pytest.fixture(scope="module")
def links():
    return two_links()


def test_chain_is_forward_mode_and_groups_are_the_whole(links, monkeypatch):
    z, d = jnp.asarray(links.start), 0.1 * jnp.asarray(np.random.default_rng(1).normal(size=(3, 4)))
    assert chain.applies(links.sim, links.p)
    by_chain = jax.jit(links.normal)(z, d)
    monkeypatch.setattr(problem, "MOST", 1)
    monkeypatch.setattr(chain, "WORTH", 1000)
    assert not chain.applies(links.sim, links.p)
    by_forward = jax.jit(lambda z, d: links.normal(z, d))(z, d)
    for a, b in zip(by_chain, by_forward, strict=True):  # other orders of sums of about a hundred products
        np.testing.assert_allclose(a, b, rtol=0, atol=1e-11 * np.abs(b).max())
    assert not np.asarray(by_chain.B)[1].any()


def test_errors_by_the_chain_are_those_of_rollouts(links, monkeypatch):
    rng = np.random.default_rng(2)
    z = jnp.asarray(links.start + 0.1 * rng.normal(size=(2, links.p)))
    d = jnp.asarray(0.1 * rng.normal(size=(2, 3, 4)))
    by_chain = jax.jit(lambda z, d: (links.errors(z, d, links.segments), links.costs(z, d, most=9)))(z, d)
    monkeypatch.setattr(chain, "WORTH", 1000)
    by_rollouts = jax.jit(lambda z, d: (links.errors(z, d, links.segments), links.costs(z, d, most=9)))(z, d)
    for a, b in zip(by_chain, by_rollouts, strict=True):  # the same six steps, rounded a few times differently
        np.testing.assert_allclose(a, b, rtol=1e-13)
    each = [float(links.cost(*point)) for point in zip(z, d, strict=True)]
    np.testing.assert_allclose(by_chain[1], each, rtol=1e-13)


def test_some_segments_tell_the_cost_of_all():
    """Four segments in pairs of equals: of each pair one is enough."""
    t = np.linspace(0, 1, 5)
    four = Curve(
        decay, {"a": (1.0, None), "b": (2.0, None), "c": (0.5, None)}, {"a": 2.0, "b": 1.0, "c": 0.0}, time=t, runs=4
    )
    four.training = four.training._replace(measured=four.training.measured[np.array([0, 0, 3, 3])])
    z, d = jnp.asarray(four.start)[None], jnp.zeros((1, 4, 0))
    whole, half = (four.costs(z, d, most=most) for most in (4, 2))
    np.testing.assert_allclose(half, whole, rtol=1e-14)
    np.testing.assert_allclose(whole, four.cost(z[0]), rtol=1e-14)


def test_programs_share_the_kernel_of_the_chain(links, monkeypatch):
    """Errors at many points and derivatives are two programs; the step is traced for one of them."""
    traced = []
    row = chain._row
    monkeypatch.setattr(chain, "_row", lambda *args: traced.append(1) or row(*args))
    fresh = two_links()
    z, d = np.asarray(fresh.start), np.zeros((3, 4))
    with jax.enable_x64(True):
        program(fresh, choose)(Proposal(z[None], d[None], np.ones(1)))
        program(fresh, Problem.normal)(z, d)
    assert len(traced) == 1


def test_where_the_chain_does_not_apply(links):
    many = 100
    assert not chain.applies(links.sim, 1)
    assert not chain.applies(links.sim.with_solver(fx.RigidSolver(fx.Penalty(), fx.RK4())), many)
    assert not chain.applies(fx.Simulator(fx.load("cube"), simd=False), many)


def test_inertias_do_not_become_degenerate():
    bodies = two_links(free=("body.*.inertia",))
    low, high = _limits(bodies, jnp.asarray(bodies.start - FENCE))
    assert np.all(np.asarray(low) == 0)
    assert np.all(np.asarray(high) > 0)


def test_steps_stop_at_limits_and_the_rest_is_solved_again():
    """The minimum of a quadratic form in a box, with one number at its bound, in closed form."""
    S, g = jnp.asarray([[2.0, 1.0], [1.0, 2.0]]), jnp.asarray([-4.0, -1.0])
    step = _step_within(S, g, jnp.full(2, -0.5), jnp.full(2, 0.5))
    # free: (7/3, -2/3); both leave the box, and stop at its edges
    np.testing.assert_allclose(step, [0.5, -0.5], atol=1e-12)
    step = _step_within(S, g, jnp.full(2, -2.0), jnp.full(2, 0.5))
    np.testing.assert_allclose(step, [0.5, (1 - 0.5) / 2], atol=1e-12)
