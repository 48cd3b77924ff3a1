"""The NCP: its laws, its derivative, and no NaN anywhere."""

import itertools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.extend.core import jaxprs_in_params

import flexor as fx
from flexor.contact import FreeStep, Instant, Loads, implicit, laws, rows, sweep
from flexor.contact.contacts import contact_velocity
from flexor.contact.detect import candidates
from flexor.contact.problem import Bounded, Cones, Problem
from flexor.dynamics import integrate
from flexor.dynamics.crba import factor_inertia, solve_inertia
from tests.contact.scenes import BLOCK, simulator

DT = 2e-3


def _random_states(model, count, mode, seed=0):
    """States of a floating robot over the floor whose lowest point is in the given contact mode."""
    rng = np.random.default_rng(seed)
    nv = model.nv
    turn = np.zeros((count, nv))
    turn[:, 3:] = rng.normal(size=(count, nv - 3)) * (1.5 if nv == 6 else 0.2)
    q, lowest = _turned(model, turn)
    speed = rng.uniform(0.1, 3.0, count)
    gap, normal, tangent = {
        "airborne": (0.1 + rng.random(count), rng.normal(size=count), 1.0),
        "touching": (rng.random(count) * DT * speed, -speed, 1.0),
        "sliding": (-rng.random(count) * 1e-4, 0 * speed, 1.0),
        "sticking": (-rng.random(count) * 1e-4, 0 * speed, 0.0),
        "lifting off": (-rng.random(count) * 1e-4, speed, 1.0),
    }[mode]
    q = q.at[:, 2].add(jnp.asarray(gap, q.dtype) - lowest)
    qd = rng.normal(size=(count, nv)) * 0.5 * tangent
    qd[:, 2] = normal
    return q, jnp.asarray(qd, q.dtype)


@eqx.filter_jit
def _turned(model, turn):
    """Coordinates after displacements from the first keyframe, and how far the robot is above the floor there."""
    base = model.keyframes[0] if len(model.topology.keyframes) else model.reference
    q = jax.vmap(lambda d: integrate(model, base, d))(jnp.asarray(turn, model.dtype))
    lowest = jax.vmap(lambda q: fx.contact.detect(model, fx.dynamics.forward_kinematics(model, q)).distance.min())(q)
    return q, lowest


@pytest.fixture(scope="module")
def cube():
    return fx.replace(fx.load("cube"), {"pair.*.restitution": 0.2})


@pytest.mark.parametrize("contact", [fx.NCP(), fx.Penalty()], ids=["NCP", "Penalty"])
def test_no_nan_over_ten_thousand_states_in_each_mode(cube, contact):
    sim = fx.Simulator(cube, fx.RigidSolver(contact), dt=DT)

    def value(model, q, qd):
        own = eqx.tree_at(lambda s: s.model, sim, model)
        end = own.step(own.solver.init(model, fx.State(q, qd, jnp.zeros(()))))
        return jnp.sum(end.q) + jnp.sum(end.qd)

    def check(q, qd):
        v, g = jax.value_and_grad(value, argnums=(0, 1, 2))(cube, q, qd)
        return jnp.isfinite(v) & jnp.all(jnp.stack([jnp.all(jnp.isfinite(x)) for x in jax.tree.leaves(g)]))

    run = fx.simd.vmap(check)
    for mode in ("airborne", "touching", "sliding", "sticking", "lifting off"):
        ok = np.asarray(run(*_random_states(cube, 10_000, mode)))
        assert ok.all(), f"{mode}: {(~ok).sum()} of 10,000 states give a NaN"


@pytest.mark.parametrize("robot", ["cube", "ant"])
@pytest.mark.parametrize("dtype", [jnp.float64, jnp.float32])
def test_laws_hold_when_converged(robot, dtype):
    """Signorini's and Coulomb's conditions, checked from forces and velocities alone, not from the solver's residual."""
    model = fx.load(robot, dtype=dtype)
    # float64 converges to rounding; float32 to about 1e-6 of velocities of a few m/s
    tolerance = 1e-8 if dtype == jnp.float64 else 3e-5
    contact = fx.NCP(iterations=50, tolerance=1e-12)
    count = 200 if robot == "cube" else 20
    states = [_random_states(model, count, mode, seed=3) for mode in ("touching", "sliding", "sticking")]
    q, qd = (jnp.concatenate([s[i] for s in states]).astype(dtype) for i in (0, 1))

    def laws(q, qd):
        kin = fx.dynamics.forward_kinematics(model, q)
        contacts = fx.contact.detect(model, kin)
        M = fx.dynamics.crba(model, kin)
        free = qd - DT * solve_inertia(M, factor_inertia(M), fx.dynamics.bias_force(model, kin, qd))
        dt = jnp.asarray(DT, dtype)
        step = FreeStep(Instant(model, kin, q, qd), free, M, dt)
        u, _, out = contact.resolve(step, Loads(contacts=contacts), contact.init(model))
        J = fx.contact.contact_jacobian(model, kin, contacts)
        v = J @ u + contacts.pairs.cfm[:, None] * out.contact
        c = contacts.pairs
        _, wanted = rows.impact(contacts.distance, J[:, 0] @ qd, J[:, 0] @ free, dt, c.restitution, c.baumgarte, 1.0)
        return out.contact, v[:, 0] - wanted, v[:, 1:], contacts.friction, out.residual

    batched = jax.jit(lambda q, qd: jax.lax.map(lambda s: laws(*s), (q, qd), batch_size=100))
    x, gap, slip, mu, residual = (np.asarray(a, float) for a in batched(q, qd))
    done = residual < tolerance
    assert done.mean() > 0.995
    x, gap, slip, mu = x[done], gap[done], slip[done], mu[done]
    assert (x[..., 0] >= -tolerance).all()
    assert (gap >= -tolerance).all()
    assert np.abs(np.minimum(x[..., 0], gap)).max() < tolerance
    tangential = np.linalg.norm(x[..., 1:], axis=-1)
    assert (tangential <= mu * x[..., 0] + tolerance).all()
    speed = np.linalg.norm(slip, axis=-1)
    inside = tangential < mu * x[..., 0] - 1e-3 * x[..., 0]
    assert speed[inside & (x[..., 0] > 1e-4)].max(initial=0) < 100 * tolerance
    opposed = np.sum(slip * x[..., 1:], axis=-1) + speed * mu * x[..., 0]
    assert np.abs(opposed).max() < 10 * tolerance
    assert (x[..., 0] > 0).sum() > count


def test_gradient_does_not_depend_on_the_number_of_iterations():
    model = fx.load("cube")
    q, qd = model.keyframe("rest"), jnp.asarray(0.3 * np.random.default_rng(0).normal(size=model.nv))

    def gradient(iterations):
        sim = fx.Simulator(model, fx.RigidSolver(fx.NCP(iterations=iterations, tolerance=1e-12)), dt=DT)

        def value(q, qd):
            end = sim.rollout(sim.solver.init(model, fx.State(q, qd, jnp.zeros(()))), steps=25)
            return jnp.sum(end.q[-1] * jnp.arange(7.0)), end.final.memory.residual

        grad, residual = jax.jit(jax.grad(value, argnums=(0, 1), has_aux=True))(q, qd)
        assert residual < 1e-10
        return jnp.concatenate(grad)

    few, many = gradient(20), gradient(200)
    assert float(jnp.max(jnp.abs(few - many)) / jnp.max(jnp.abs(many))) < 1e-6


def test_derivative_by_friction_matches_finite_differences():
    sim = simulator(BLOCK)
    state = sim.reset(qd=jnp.array([1.0, 0.2, 0, 0, 0, 0.1]))

    def end(mu, iterations):
        model = fx.replace(sim.model, {"pair.*.friction": mu})
        own = fx.Simulator(model, fx.RigidSolver(fx.NCP(iterations=iterations, tolerance=1e-13)), dt=1e-3)
        return own.rollout(state, steps=10).qd[-1, 0]

    slope, step = jax.jit(jax.grad(lambda mu: end(mu, 30)))(0.3), 1e-6
    at = jax.jit(lambda mu: end(mu, 30))
    numeric = (at(0.3 + step) - at(0.3 - step)) / (2 * step)
    assert slope == pytest.approx(float(numeric), rel=1e-6)


def test_warm_start_changes_the_work_not_the_answer():
    rollouts = []
    for warm in (True, False):
        sim = simulator(BLOCK, fx.NCP(warm_start=warm, tolerance=1e-13))
        rollouts.append(sim.rollout(sim.reset(qd=jnp.array([0.5, 0.1, 0, 0.3, 0, 1.0])), steps=300))
    warm, cold = rollouts
    assert np.abs(warm.q - cold.q).max() < 1e-9


def test_work_grows_linearly_with_contacts():
    """The sizes of the factors that the sweep and the implicit derivative keep: no array has an axis of contacts squared."""

    def largest(spheres):
        bodies = "".join(
            f'<body pos="{i} 0 0.1"><joint type="slide" axis="0 0 1"/><geom size="0.1" mass="1"/></body>' for i in range(2)
        )
        extra = "".join(f'<geom size="0.1" mass="0.01" pos="0 {i} 0"/>' for i in range(spheres))
        text = f"""<mujoco><worldbody><geom type="plane" size="1 1 1" contype="1" conaffinity="0"/>
          {bodies.replace("</body>", extra + "</body>")}</worldbody>
          <default><geom contype="0" conaffinity="1"/></default></mujoco>"""
        sim = fx.Simulator(fx.load(text), dt=DT)
        jaxpr = jax.make_jaxpr(jax.grad(lambda q: jnp.sum(sim.step(sim.reset(q)).qd)))(sim.model.reference)
        sizes = list(_sizes(jaxpr.jaxpr))
        return len(sizes), max(sizes), len(candidates(sim.model.topology))

    small, large = largest(4), largest(12)
    ratio = large[2] / small[2]
    assert small[0] == large[0]
    assert large[1] <= 1.2 * ratio * small[1]


def _sizes(jaxpr):
    """Sizes of all arrays that a program computes, its inner programs included."""
    for eqn in jaxpr.eqns:
        yield from (v.aval.size for v in eqn.outvars)
        for inner in jaxprs_in_params(eqn.params):
            yield from _sizes(inner)


def effort(iterations, tolerance):
    """What `NCP` asks for, but for these two."""
    usual = fx.NCP()
    return implicit.Effort(iterations, tolerance, usual.sweeps, usual.newton_steps, usual.patience)


def _no_rows(nv, dtype=jnp.float64, batch=()):
    none, J = jnp.zeros((*batch, 0), dtype), jnp.zeros((*batch, 0, nv), dtype)
    return Bounded(J, J, none, none, none, none, none.astype(bool))


def test_problem_without_contacts_or_rows_has_no_impulses():
    cones = Cones(jnp.zeros((0, 3, 2)), jnp.zeros((0, 2, 3)), *(jnp.zeros(0),) * 3, jnp.zeros(0, bool))
    empty = Problem(jnp.ones(2), jnp.eye(2), jnp.eye(2), cones, _no_rows(2))
    u, x, y, residual, count = implicit.solve_implicitly(effort(5, 1e-9), empty, (jnp.zeros((0, 3)), jnp.zeros(0)))
    np.testing.assert_array_equal(u, empty.free)
    assert x.shape == (0, 3)
    assert y.shape == (0,)
    assert residual == 0
    assert count == 0


def test_the_deepest_candidates_take_part_and_the_rest_is_counted():
    """A block on its lower face has four corners that matter: four of eight give the same motion, and three leave one out."""
    start = {"qd": jnp.array([0.5, 0.1, 0, 0, 0, 1.0])}
    ends = {}
    for most in (8, 4):
        sim = simulator(BLOCK, fx.NCP(most=most, tolerance=1e-13))
        ends[most] = sim.rollout(
            sim.reset(sim.model.reference.at[2].add(-1e-5), **start), steps=50, record=["contact.normal_force"]
        )
    assert np.abs(ends[4].q - ends[8].q).max() < 1e-10
    assert ends[4].taps["contact.normal_force"].shape == (50, 4)
    assert ends[8].final.memory.left_out == 0
    sim = simulator(BLOCK, fx.NCP(most=3))
    assert sim.step(sim.reset(sim.model.reference.at[2].add(-1e-5))).memory.left_out == 1


@pytest.mark.parametrize("mode", ["open", "sticking", "sliding", "at the edge of the cone"])
@pytest.mark.parametrize("dtype", [jnp.float64, jnp.float32])
def test_slopes_are_those_of_the_laws(mode, dtype):
    """dx = -(z + K dv) in closed form against E dx + Rv dv + R = 0 with R differentiated by JAX."""
    rng = np.random.default_rng(0)
    nv, cfm, mu = 5, 1e-3, 0.4
    J, u = rng.normal(size=(3, nv)), rng.normal(size=nv)
    inverse = np.diag(rng.uniform(0.5, 2, nv))
    A = J @ inverse @ J.T + cfm * np.eye(3)
    rate = 1 / np.linalg.eigvalsh(A[1:, 1:])[-1]
    x = np.array([1.0, 0.1, 0.05]) if mode != "open" else np.array([0.2, 0.01, 0.03])
    v = J @ u + cfm * x
    wanted = v[0] - 10 if mode == "open" else v[0] + 0.3
    # chosen so that the impulse aimed at lies inside, outside, or on the cone
    wish = {"open": 0.01, "sticking": 0.5, "sliding": 3.0, "at the edge of the cone": 1.0}[mode] * mu * x[0]
    aim = x[1:] - rate * v[1:]
    x[1:] += (wish * aim / np.linalg.norm(aim) - aim) / (1 - rate * cfm)
    block = laws.Block(*(jnp.asarray(z, dtype) for z in (J, wanted, cfm, mu, rate)))
    A, u, x = (jnp.asarray(z, dtype) for z in (A, u, x))
    k = laws.slope(block, A, 1 / laws.softened(block.cfm, A), None, u, x)
    du = jnp.asarray(rng.normal(size=nv), dtype)
    dv, (disc,) = block.J @ du, k.discs
    da, dc = laws.turned(disc.aim, dv[1:])
    pushed = k.normal * dv[0]
    a, c = disc.z[0] + disc.along * da + disc.cone * pushed, disc.z[1] + disc.across * dc
    dx = -jnp.concatenate([(k.z + pushed)[None], laws.turned_back(disc.aim, a, c)])
    here = block.J @ u + block.cfm * x
    R, Rv, Rx = laws.linearised(laws.contact_law, implicit._mode(u, x, block, A), here, x, block)
    left = Rx @ dx + block.cfm * Rv @ dx + Rv @ block.J @ du + R
    size = jnp.abs(R).max() + jnp.abs(Rv @ block.J @ du).max()
    # a few roundings, times the slope that a compliance of 1e-3 allows
    assert float(jnp.abs(left).max() / size) < 1e4 * float(jnp.finfo(dtype).eps)


def _one_contact(friction, dtype, cfm=1e-3, seed=0):
    """Five masses, one contact with random rows; the data of its laws, and its own compliance."""
    rng = np.random.default_rng(seed)
    J, M = rng.normal(size=(3, 5)), np.diag(rng.uniform(0.5, 2, 5))
    J, M, free = (jnp.asarray(z, dtype) for z in (J, M, rng.normal(size=5)))
    own = (jnp.asarray([z], dtype) for z in (0.3 + (J @ free)[0], cfm, friction))
    Y = jnp.linalg.solve(M, J.T)[None]
    cones = Cones(J[None], Y, *own, jnp.ones(1, bool))
    return Problem(free, M, jnp.linalg.cholesky(M), cones, _no_rows(5, dtype))


@pytest.mark.parametrize("dtype", [jnp.float64, jnp.float32])
@pytest.mark.parametrize("seed", [1, 2, 3])  # all three slide
def test_a_visit_without_over_relaxation_solves_the_normal_law_of_a_sliding_contact(monkeypatch, seed, dtype):
    """On the cone's edge, and exactly the wanted normal velocity, with what friction adds to it."""
    monkeypatch.setattr(sweep, "SLIDE", 1.0)
    p = _one_contact(0.1, dtype, seed=seed)
    x = jnp.asarray([[0.05, 0.004, -0.003]], dtype)
    u, new, _ = sweep.sweep(p, sweep.scales_of(p), implicit.velocity(p, x, jnp.zeros(0, dtype)), x, jnp.zeros(0, dtype))
    n, t = new[0, 0], new[0, 1:]
    tolerance = 100 * float(jnp.finfo(dtype).eps)  # some dozens of sums of numbers of size one
    assert n > 0
    assert abs(float(jnp.linalg.norm(t) - 0.1 * n)) < tolerance
    c = p.cones
    assert abs(float(c.J[0, 0] @ u + c.cfm[0] * n - c.wanted[0])) < tolerance


@pytest.mark.parametrize("friction", [0.0, 0.1, 5.0], ids=["smooth", "sliding", "sticking"])
def test_sweeps_alone_reach_the_laws_and_stay_there(friction):
    p = _one_contact(friction, jnp.float64)
    scales, y = sweep.scales_of(p), jnp.zeros(0)
    u, x, _ = jax.lax.fori_loop(0, 60, lambda _, z: sweep.sweep(p, scales, *z), (p.free, jnp.zeros((1, 3)), y))
    assert x[0, 0] > 0
    assert float(implicit.residual(p, scales, u, x, y)) < 1e-12
    # 0.35 of the error is left by a visit: sixty of them leave nothing but rounding
    np.testing.assert_allclose(sweep.sweep(p, scales, u, x, y)[1], x, atol=1e-13)


@pytest.mark.parametrize("robot", ["ant", "cube"])
def test_contact_velocity_is_the_jacobian_times_the_velocity(robot):
    model = fx.load(robot, dtype=jnp.float64)

    @jax.jit
    def both(q, qd):
        kin = fx.dynamics.forward_kinematics(model, q)
        contacts = fx.contact.detect(model, kin)
        return contact_velocity(model, kin, contacts, qd), fx.contact.contact_jacobian(model, kin, contacts) @ qd

    for q, qd in zip(*_random_states(model, 3, "sliding"), strict=True):
        found, wanted = both(q, qd)
        assert np.abs(wanted).max() > 0.1
        # two orders of summing some dozens of terms of the size of the velocities, arms of about a metre
        assert np.abs(found - wanted).max() < 1e3 * np.finfo(float).eps * (1 + np.abs(qd).max())


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.float64])
def test_a_pivot_that_vanishes_is_survived(dtype):
    """A regular matrix whose first pivot is zero, as friction can make it: one correction brings the solution."""
    H = jnp.asarray([[1.0, 0.5, 2.0], [0.3, 2.0, 1.0], [3.0, -1.0, 0.0]], dtype)
    wanted = jnp.asarray([1.0, -2.0, 0.5], dtype)
    factors = implicit._eliminate(H)
    x = implicit._substitute(factors, H @ wanted)
    x = x + implicit._substitute(factors, H @ (wanted - x))
    np.testing.assert_allclose(x, wanted, rtol=50 * float(jnp.finfo(dtype).eps) ** 0.5)


def _wedged(count, dtype, seed=0):
    """Elbows of double pendulums between pivot and ground: the ends of both links touch at one place, that of the upper link
    moves one way only, and that way lies within the cone of friction. M, J, cfm and the wanted velocities are as in rollouts."""
    rng = np.random.default_rng(seed)
    tilt = rng.choice([-1, 1], count) * rng.uniform(0.5, 0.57, count)
    coupling = rng.uniform(-0.55, 0.5, count)
    M = np.stack([[3.375 + 2 * coupling, coupling], [coupling, 0 * coupling + 1.136]]).transpose(2, 0, 1)
    J = np.zeros((count, 2, 3, 2))
    J[:, :, 0, 0], J[:, :, 1, 0], J[:, 1, 1, 1] = tilt[:, None], -1.5, -0.1
    free = rng.normal(size=(count, 2)) * [4.0, 5.0]
    free[:, 0] = -np.sign(tilt) * np.abs(free[:, 0])  # into the wedge
    wanted = np.repeat(rng.choice([0.0, 0.005], (count, 1)), 2, axis=1)
    J, M, free, wanted = (jnp.asarray(z, dtype) for z in (J, M, free, wanted))
    Y = jnp.linalg.solve(M[:, None], J.swapaxes(2, 3))
    own = jnp.ones((count, 2), dtype)
    cones = Cones(J, Y, wanted, 6.67e-5 * own, 0.5 * own, own.astype(bool))
    return Problem(free, M, jax.vmap(factor_inertia)(M), cones, _no_rows(2, dtype, (count,)))


def _every_solution(p, k):
    """All solutions u of a planar problem: each contact open, sticking or sliding either way, kept where its laws hold."""
    c = p.cones
    M, free, J, w, E, mu = (np.asarray(z[k], float) for z in (p.M, p.free, c.J[:, :, :2], c.wanted, c.cfm, c.friction))
    J = J.reshape(4, 2)
    response, at_rest = np.linalg.solve(M, J.T), J @ free
    found = []
    for modes in itertools.product(("open", "stick", 1, -1), repeat=2):
        A, b = np.eye(4), np.zeros(4)
        for i, mode in enumerate(modes):
            n, t = 2 * i, 2 * i + 1
            laws = {"open": [], "stick": [n, t]}.get(mode, [n])
            for row in laws:
                A[row] = J[row] @ response + E[i] * np.eye(4)[row]
                b[row] = (w[i] if row == n else 0.0) - at_rest[row]
            if laws == [n]:
                A[t, n] = -mode * mu[i]
        x = np.linalg.solve(A, b)
        u, tiny = free + response @ x, 1e-9
        v = J @ u + np.repeat(E, 2) * x - np.stack([w, 0 * w], 1).ravel()
        right = [
            v[n] > -tiny
            if mode == "open"
            else x[n] > -tiny and (abs(x[n + 1]) < mu[i] * x[n] + tiny if mode == "stick" else mode * v[n + 1] < tiny)
            for i, (n, mode) in enumerate(zip((0, 2), modes, strict=True))
        ]
        if all(right) and not any(np.allclose(u, other, atol=1e-6) for other in found):
            found.append(u)
    return found


@pytest.mark.parametrize("dtype", [jnp.float64, jnp.float32])
def test_jams_are_solved_from_any_start(dtype):
    """Wedged elbows against all their solutions by enumeration: there is one, and neither a cold start nor impulses of another
    jam keep the NCP from it."""
    count = 300
    p = _wedged(count, dtype)
    solve = jax.jit(jax.vmap(lambda p, x: implicit.solve_implicitly(effort(30, 1e-10), p, (x, jnp.zeros(0, dtype)))))
    cold = solve(p, jnp.zeros((count, 2, 3), dtype))
    warm = solve(p, jnp.roll(cold[1], 1, axis=0))
    truth = [_every_solution(p, k) for k in range(count)]
    assert all(len(found) == 1 for found in truth)
    # float64 to the solver's tolerance, times what rows that are parallel but for a fifteenth make of it. float32 ends at
    # 16 eps (1 + |u0|), some 2e-5 m/s, which is a slip of up to 1e-2; in one or two of a hundred it misses the modes
    tolerance, share = (1e-7, 1.0) if dtype == jnp.float64 else (1e-2, 0.98)
    for u, *_ in (cold, warm):
        assert (np.abs(np.asarray(u) - np.concatenate(truth)).max(1) < tolerance).mean() >= share


def test_derivatives_of_jams_match_finite_differences():
    p = _wedged(50, jnp.float64)

    def end(free, p):
        return implicit.solve_implicitly(effort(30, 1e-13), p._replace(free=free), (jnp.zeros((2, 3)), jnp.zeros(0)))[0]

    slope, at = jax.jit(jax.vmap(jax.jacfwd(end)))(p.free, p), jax.jit(jax.vmap(end))
    step = 1e-6
    numeric = [(at(p.free + step * e, p) - at(p.free - step * e, p)) / (2 * step) for e in jnp.eye(2)[:, None]]
    # within their modes these solutions are linear in the free velocity: what is left is 1e-13 of residual over the step, times
    # a hundred for rows that are nearly parallel
    np.testing.assert_allclose(slope, jnp.stack(numeric, axis=-1), atol=1e-5)
