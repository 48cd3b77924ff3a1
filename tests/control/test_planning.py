"""Planners and feedback against closed forms and SciPy, on a mass on a rail, whose motion is linear; and their sentences."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.linalg
import scipy.optimize

import flexor as fx
from flexor.control import ILQR, MPPI, CrossEntropy, Objective, PredictiveSampling, Receding, Spline, lqr, lqr_along
from flexor.control.box_qp import box_qp
from flexor.control.expansion import expand
from flexor.control.riccati import riccati_along

DT, STEPS, MASS = 0.1, 12, 2.0
XML = """<mujoco model="sledge"><worldbody><body name="sledge"><joint name="x" type="slide" axis="1 0 0" damping="0.5"/>
<inertial pos="0 0 0" mass="2" diaginertia="1 1 1"/></body></worldbody>
<actuator><motor name="push" joint="x" {bounds}/></actuator></mujoco>"""
PENDULUM = """<mujoco><worldbody><body><joint name="swing" type="hinge" axis="0 1 0" damping="0.3"/>
<inertial pos="0 0 -0.5" mass="1" diaginertia="0.1 0.1 0.1"/></body></worldbody>
<actuator><motor joint="swing"/></actuator></mujoco>"""
Q, R, F = np.array([1.0, 0.1]), np.array([0.05]), np.array([10.0, 1.0])


def sledge(bounds="", **options):
    return fx.Simulator(fx.load(XML.format(bounds=bounds)), dt=DT, **options)


def running(state, u):
    x = jnp.concatenate([state.q, state.qd])
    return (jnp.sum(jnp.asarray(Q) * x**2) + jnp.sum(jnp.asarray(R) * u**2)) / 2


def residuals(state, u):
    return jnp.sqrt(jnp.asarray(np.concatenate([Q, R]))) * jnp.concatenate([state.q, state.qd, u])


def final(state):
    return jnp.sqrt(jnp.asarray(F)) * jnp.concatenate([state.q, state.qd])


def matrices(sim):
    at = fx.linearize(sim, sim.reset([1.0], [0.0]), [0.0])
    return np.asarray(at.A), np.asarray(at.B)


@pytest.fixture(scope="module")
def free():
    return sledge()


@pytest.fixture(scope="module")
def bounded():
    return sledge('ctrlrange="-1 1"')


def test_riccati_far_from_its_end_is_that_of_scipy():
    rng = np.random.default_rng(0)
    A, B = rng.normal(size=(4, 4)), rng.normal(size=(4, 2))
    weights, effort = np.eye(4), np.diag([1.0, 2.0])
    P = scipy.linalg.solve_discrete_are(A, B, weights, effort)
    K, found = riccati_along(*(np.repeat(x[None], 200, axis=0) for x in (A, B)), weights, effort, 0 * weights)
    np.testing.assert_allclose(found[0], P, rtol=1e-8)
    np.testing.assert_allclose(K[0], -np.linalg.solve(effort + B.T @ P @ B, B.T @ P @ A), rtol=1e-8)


def test_lqr_s_cost_to_go_is_what_the_motion_costs(free):
    feedback = lqr(free, free.reset(), [0.0], Q, R)
    A, B = matrices(free)
    np.testing.assert_allclose(
        feedback.cost_to_go[0], scipy.linalg.solve_discrete_are(A, B, np.diag(Q), np.diag(R)), rtol=1e-6
    )
    x = np.array([0.4, -0.3])
    made = free.rollout(free.reset(x[:1], x[1:]), feedback, steps=300)
    states = np.concatenate([made.q, made.qd], axis=1)[:-1]
    cost = (states**2 @ Q + np.asarray(made.u) ** 2 @ R).sum() / 2
    np.testing.assert_allclose(cost, x @ np.asarray(feedback.cost_to_go[0]) @ x / 2, rtol=1e-6)


def test_ilqr_on_a_linear_robot_is_lqr_after_one_iteration(free):
    plan = ILQR().plan(free, Objective(running, final, steps=STEPS), free.reset([0.7], [0.2]))
    A, B = matrices(free)
    many = (np.repeat(x[None], STEPS, axis=0) for x in (A, B))
    K, P = riccati_along(*many, np.diag(Q), np.diag(R), np.diag(F))
    x = np.array([0.7, 0.2])
    least = x @ P[0] @ x / 2
    np.testing.assert_allclose(plan.history[1:], least, rtol=1e-9)
    np.testing.assert_allclose(plan.gains, K, rtol=1e-6, atol=1e-9)
    assert plan.status.message == "converged"
    along = lqr_along(free, plan.trajectory, Q, R, F)
    np.testing.assert_allclose(along.gains, K, rtol=1e-8)
    # from another start, the plan's feedback is the best there is
    y = np.array([0.5, 0.0])
    made = free.rollout(free.reset(y[:1], y[1:]), plan.policy(free), steps=STEPS)
    states = np.concatenate([made.q, made.qd], axis=1)
    cost = ((states[:-1] ** 2 @ Q + np.asarray(made.u) ** 2 @ R).sum() + states[-1] ** 2 @ F) / 2
    np.testing.assert_allclose(cost, y @ P[0] @ y / 2, rtol=1e-9)


def test_ilqr_within_bounds_is_the_bounded_least_squares_solution(bounded):
    plan = ILQR(tolerance=1e-12).plan(bounded, Objective(residuals, final, steps=STEPS), bounded.reset([2.0], [0.5]))
    A, B = matrices(bounded)
    # states are linear in the controls: x = S u + s
    rows, s = [np.zeros((2, STEPS))], [np.array([2.0, 0.5])]
    for t in range(STEPS):
        step = np.zeros((2, STEPS))
        step[:, t] = B[:, 0]
        rows.append(A @ rows[-1] + step)
        s.append(A @ s[-1])
    scale = [*[np.sqrt(Q)] * STEPS, np.sqrt(F)]
    M = np.concatenate([*(w[:, None] * r for w, r in zip(scale, rows, strict=True)), np.sqrt(R[0]) * np.eye(STEPS)])
    b = np.concatenate([*(w * r for w, r in zip(scale, s, strict=True)), np.zeros(STEPS)])
    best = scipy.optimize.lsq_linear(M, -b, (-1, 1), method="bvls", tol=1e-14)
    u = np.asarray(plan.controls)[:, 0]
    assert np.abs(u).max() <= 1
    assert (np.abs(best.x) > 0.999).sum() >= 3  # bounds matter
    np.testing.assert_allclose(u, best.x, atol=1e-4)  # plans stay 2e-5 inside of the bounds
    np.testing.assert_allclose(plan.cost, best.cost, rtol=1e-4)
    assert np.abs(np.asarray(plan.gains)[np.abs(best.x) > 0.999]).max() == 0  # no feedback at a bound


def test_box_qp_is_scipy_s():
    rng = np.random.default_rng(1)
    solve = jax.jit(jax.vmap(lambda H, g, low, high: box_qp(H, g, low, high).x))
    M, c = rng.normal(size=(20, 6, 4)), rng.normal(size=(20, 6))
    low, high = -rng.uniform(0.05, 0.5, (20, 4)), rng.uniform(0.05, 0.5, (20, 4))
    found = solve(np.einsum("nki,nkj->nij", M, M), np.einsum("nki,nk->ni", M, c), low, high)
    for k in range(20):
        best = scipy.optimize.lsq_linear(M[k], -c[k], (low[k], high[k]), method="bvls", tol=1e-14).x
        np.testing.assert_allclose(found[k], best, atol=1e-9)


def test_the_expansion_is_the_derivatives_of_motion_and_cost():
    """Of a pendulum, whose motion is not linear; with residuals of a quantity of the step."""
    sim = fx.Simulator(fx.load(PENDULUM), dt=0.02)
    record = ("joint.passive_force",)

    def own(state, u, recorded=None):
        some = jnp.zeros(1) if recorded is None else recorded[record[0]]
        return jnp.concatenate([jnp.sin(state.q), state.qd * jnp.cos(state.q), u * state.q[0], some])

    state, u = sim.reset([0.7], [-0.4]), jnp.array([0.2])
    states = jax.tree.map(lambda x: jnp.stack([x, x]), state)
    about = expand(sim, Objective(own, steps=1, record=record), states, u[None])
    at = fx.linearize(sim, state, u)
    np.testing.assert_allclose(about.A[0], at.A, atol=1e-12)
    np.testing.assert_allclose(about.B[0], at.B, atol=1e-12)

    def residual(q, qd, v):  # dry damping of 0.3 N m s / rad
        return np.array([np.sin(q), qd * np.cos(q), v * q, -0.3 * qd])

    z, h = np.array([0.7, -0.4, 0.2]), 1e-6
    J = np.stack([residual(*(z + d)) - residual(*(z - d)) for d in h * np.eye(3)], axis=1) / (2 * h)
    np.testing.assert_allclose(jnp.concatenate([about.lx[0], about.lu[0]]), J.T @ residual(*z), atol=1e-8)
    np.testing.assert_allclose(about.lux[0], (J.T @ J)[2:, :2], atol=1e-8)
    np.testing.assert_allclose(about.luu[0], (J.T @ J)[2:, 2:], atol=1e-8)
    whole = Objective(lambda s, v: s.q[0] ** 3 * v[0] + v[0] ** 2, lambda s: s.q[0] * s.qd[0] ** 2, steps=1)
    exact = expand(sim, whole, states, u[None])
    np.testing.assert_allclose(exact.lxx[0], [[6 * 0.7 * 0.2, 0], [0, 0]], atol=1e-12)
    np.testing.assert_allclose(exact.lux[0], [[3 * 0.7**2, 0]], atol=1e-12)
    np.testing.assert_allclose(exact.lu[0], [0.7**3 + 2 * 0.2], atol=1e-12)
    np.testing.assert_allclose(exact.Vx, [0.16, -2 * 0.7 * 0.4], atol=1e-12)
    np.testing.assert_allclose(exact.Vxx, [[0, -0.8], [-0.8, 1.4]], atol=1e-12)


def test_mppi_s_mean_is_that_of_a_normal_distribution(bounded):
    """One step, cost a (u - c)^2 / 2, noise s: exp(-cost / temperature) times the noise's density is normal again."""
    a, c, s, temperature = 3.0, 0.15, 0.1, 0.05
    goal = Objective(lambda state, u: a * (u[0] - c) ** 2 / 2 + 0 * state.q[0], steps=2)
    planner = MPPI(samples=40_000, noise=s, temperature=temperature, spline=Spline(2, 0), iterations=1)
    memory = planner.improve(
        bounded, goal, bounded.reset(), planner.begin(bounded, goal, jnp.zeros((2, 1))), jax.random.key(0)
    )
    mean = a * c / temperature / (1 / s**2 + a / temperature)
    np.testing.assert_allclose(memory.knots, mean, atol=4 * s / 40_000**0.5 * 2)


@pytest.mark.parametrize("planner", [PredictiveSampling(samples=64, noise=0.3), CrossEntropy(samples=64)])
def test_sampling_comes_near_the_best_plan_and_never_leaves_the_bounds(bounded, planner):
    goal, start = Objective(residuals, final, steps=STEPS), bounded.reset([1.0], [0.0])
    plan = planner.plan(bounded, goal, start)
    assert all(b <= a for a, b in zip(plan.history, plan.history[1:], strict=False))
    least = ILQR().plan(bounded, goal, start).cost
    assert plan.cost < least + 0.05 * (plan.history[0] - least)
    assert np.abs(np.asarray(plan.controls)).max() <= 1
    with pytest.raises(ValueError, match="planner has no gains"):
        plan.policy(bounded)


@pytest.mark.parametrize("degree", [0, 1, 3])
def test_splines_are_theirs(degree):
    spline = Spline(5, degree)
    W = spline.values(41)
    np.testing.assert_allclose(W.sum(axis=1), 1, atol=1e-12)
    x = np.linspace(0, 1, 5)
    if degree == 0:
        np.testing.assert_array_equal(W @ x, np.floor(np.linspace(0, 4, 41) + 1e-9) / 4)
    else:
        np.testing.assert_allclose(W @ x, np.linspace(0, 1, 41), atol=1e-12)
    np.testing.assert_allclose(spline.later(41, 10) @ x, np.minimum(x + 0.25, 1), atol=1e-12)
    np.testing.assert_allclose(spline.fitted(41) @ W, np.eye(5), atol=1e-9)


def test_a_receding_horizon_drives_any_simulator(bounded):
    goal = Objective(residuals, final, steps=STEPS)
    policy = Receding(ILQR(), bounded, goal, every=2)
    made = bounded.rollout(bounded.reset([1.0], [0.0]), policy, steps=60)
    assert np.abs(np.asarray(made.q[-1])).max() < 1e-2
    assert int(made.policy_memory.refused) == 0
    # between two plans the controls are those of the first plan, to which the robot keeps without a disturbance
    first = ILQR().plan(bounded, goal, bounded.reset([1.0], [0.0]))
    np.testing.assert_allclose(made.u[:2], first.controls[:2], atol=1e-3)
    # where it begins next time: the rest of the plan
    plan = made.policy_memory.plan
    later = policy.planner.shifted(bounded, goal, plan, 2)
    np.testing.assert_array_equal(later.motion.controls[:-2], plan.motion.controls[2:])
    np.testing.assert_array_equal(later.gains[:-2], plan.gains[2:])
    elsewhere = fx.Simulator(bounded.model, fx.MujocoSolver(), dt=DT)
    other = elsewhere.rollout(elsewhere.reset([1.0], [0.0]), policy, steps=60)
    np.testing.assert_allclose(other.q, made.q, atol=1e-2)


def test_a_plan_that_diverges_is_a_sentence_and_the_best_so_far(bounded):
    def steep(state, u):
        return jnp.where(jnp.abs(state.q[0]) > 0.1, jnp.nan, jnp.sum(u**2))

    plan = ILQR().plan(bounded, Objective(steep, steps=STEPS), bounded.reset([1.0]))
    assert not plan.status.ok
    assert "its cost is not finite, although its states are" in plan.status.message
    with pytest.raises(FloatingPointError, match="the plan for 'sledge' is not usable"):
        plan.raise_if_bad()
    plan = MPPI(samples=8, spline=Spline(2)).plan(bounded, Objective(steep, steps=STEPS), bounded.reset([1.0]))
    assert plan.status.message.startswith("none of 8 samples has a finite cost")
    assert np.isfinite(np.asarray(plan.controls)).all()


def test_what_cannot_be_planned_is_a_sentence(free, bounded):
    goal, start = Objective(residuals, steps=STEPS), bounded.reset()
    with pytest.raises(ValueError, match="positive number of steps, got 0"):
        Objective(residuals, steps=0)
    with pytest.raises(ValueError, match=r"must have shape \(12, 1\) or \(1,\), got \(5, 1\)"):
        ILQR().plan(bounded, goal, start, np.zeros((5, 1)))
    with pytest.raises(ValueError, match="not finite at step 3"):
        ILQR().plan(bounded, goal, start, np.where(np.arange(STEPS) == 3, np.nan, 0)[:, None])
    with pytest.raises(ValueError, match=r"running cost must be a number or a vector of residuals, got shape \(2, 1\)"):
        ILQR().plan(bounded, Objective(lambda s, u: jnp.stack([s.q, u]), steps=2), start)
    with pytest.raises(ValueError, match="MujocoSolver cannot be differentiated; plan by sampling"):
        ILQR().plan(bounded.with_solver(fx.MujocoSolver()), goal, start)
    with pytest.raises(ValueError, match="actuator 'push' has no bounds"):
        MPPI().plan(free, goal, start)
    with pytest.raises(ValueError, match="needs a horizon of as many steps, got 3"):
        MPPI().plan(bounded, Objective(residuals, steps=3), start)
    with pytest.raises(ValueError, match="cannot be planned again every 13 steps"):
        Receding(ILQR(), bounded, goal, every=13)
    with pytest.raises(ValueError, match="'cube' has no actuators"):
        ILQR().plan(fx.Simulator(fx.load("cube")), goal, start)
    with pytest.raises(ValueError, match=r"does not stay where `lqr` is to hold it: 'x' changes by 0.975 per second"):
        lqr(free, free.reset([0.0], [1.0]), [0.0], Q, R)
    with pytest.raises(ValueError, match="`R` must be symmetric and positive definite"):
        lqr(free, free.reset(), [0.0], Q, [0.0])
    with pytest.raises(ValueError, match=r"`Q` must have shape \(2, 2\) or \(2,\), got \(3,\)"):
        lqr(free, free.reset(), [0.0], np.ones(3), R)
    loose = fx.load(XML.format(bounds="").replace("</body>", '<body name="b"><joint name="free" type="slide" axis="0 1 0"/>'
                    '<inertial pos="0 0 0" mass="1" diaginertia="1 1 1"/></body></body>'))  # fmt: skip
    sim = fx.Simulator(fx.replace(loose, {"gravity": jnp.zeros(3)}), dt=DT)
    with pytest.raises(ValueError, match=r"no linear feedback holds 'sledge' there: .* motion of .*'free'"):
        lqr(sim, sim.reset(), [0.0], np.ones(4), R)
