"""Adaptation against batch least squares, the textbook's Kalman filter, and robots that change on the way."""

import jax
import numpy as np
import pytest

import flexor as fx
from flexor import adapt
from flexor.adapt.linear import Free, window_program
from flexor.adapt.stream import Sample
from flexor.identify.torque import motors_of

LINK = """<mujoco model="link"><option timestep="0.002"/><worldbody><body name="arm">
<joint name="a" axis="0 1 0" damping="0.3" armature="0.02"/>
<inertial pos="0.2 0 0.02" mass="2" fullinertia="0.02 0.05 0.06 0.001 0.002 0"/></body></worldbody>
<actuator><motor name="m" joint="a" gear="2"/></actuator></mujoco>"""
LOADED = {"body.arm.mass": 3.0}
DT = 0.002
NOISE = np.array([1e-4, 1e-3])
FREE = ["body.arm.*"]
MASS = ["body.arm.mass"]


@pytest.fixture(scope="module")
def sim():
    return fx.Simulator(fx.load(LINK), fx.RigidSolver(contact=None), dt=DT)


@pytest.fixture(scope="module")
def recorded(sim):
    """Seconds, readings and inputs: at 5 s the arm takes a kilogram, at its centre of mass."""
    stepper = sim.compile(parameters=list(LOADED))
    rng, rows = np.random.default_rng(0), []
    for k in range(4500):
        t = DT * k
        if k == 2500:
            for name, x in LOADED.items():
                stepper.parameters[name][...] = x
        goal, speed = 0.7 * np.sin(2.3 * t) + 0.4 * np.sin(5.1 * t), 1.6 * np.cos(2.3 * t) + 2.0 * np.cos(5.1 * t)
        u = 60 * (goal - stepper.q) + 6 * (speed - stepper.qd) - 3.0
        rows.append((t, np.concatenate([stepper.q, stepper.qd]) + NOISE * rng.normal(size=2), u))
        stepper.step(u)
    return rows


def replayed(adapter, rows):
    for row in rows:
        estimate = adapter.update(*row)
    return estimate


@pytest.fixture(scope="module")
def adapter(sim):
    return lambda **options: adapt.Adapter(sim, MASS, **options)


def closed_form(program, free, model, order, count=200, span=0.1):
    """A window along q = sin 3t of the exact robot, whose input is its own inverse dynamics; what is left of W theta - y."""
    step = span / (count * order)
    t = step * np.arange(count * order + 1) + 0.2
    q, qd, qdd = np.sin(3 * t), 3 * np.cos(3 * t), -9 * np.sin(3 * t)
    inertia, gravity = 0.05 + 2 * (0.2**2 + 0.02**2) + 0.02, 9.81 * 2
    # the centre of mass (0.2, 0.02) turned about y by q: x = 0.2 cos q + 0.02 sin q is its lever
    torque = inertia * qdd + 0.3 * qd - gravity * (0.2 * np.cos(q) + 0.02 * np.sin(q))
    W, y = np.zeros((1, 1, free.size)), np.zeros((1, 1))
    for k in range(len(t) - 1):
        s = (k + 0.5) / (len(t) - 1)
        area, rise = step * np.sin(np.pi * s) ** 2, step * np.pi / span * np.sin(2 * np.pi * s)
        u = (torque[k : k + 1] + torque[k + 1 : k + 2]) / 4
        W, y = (x.copy() for x in program(W, y, area, rise, q[k : k + 1], q[k + 1 : k + 2], qd[k : k + 1], qd[k + 1 : k + 2],
                                         u, step, 1.0))  # fmt: skip
    error = float(np.abs(W[0] @ np.asarray(free.theta(model)) - y[0])[0])
    return error / float(np.sum(np.abs(W[0]) * np.abs(np.asarray(free.theta(model)))))


def test_windows_hold_the_equation_of_motion_exactly():
    # the midpoint rule is of second order: half the step, a quarter of the error
    model = fx.load(LINK)
    free = Free.of(model, ["body.arm.mass", "joint.a.damping", "actuator.m.gain"])
    program = window_program(model, free, 0.02, windows=1)
    coarse, fine = (closed_form(program, free, model, order) for order in (1, 2))
    assert fine < 1e-5
    assert 3.0 < coarse / fine < 5.0


def test_rls_is_batch_least_squares(sim, recorded, monkeypatch):
    """Without forgetting, and with the deviations that it has found, the recursion is the weighted fit of all windows."""
    a = adapt.Adapter(sim, FREE, estimator=adapt.MomentumRLS(memory=1e12))
    run, rows = a.running, []
    learn, forgotten = run._learn, run._forgotten

    def keep(W, y):
        out = learn(W.copy(), y.copy())
        if out is None:
            rows[:] = [(run._information.copy(), run._information @ run._x)]
        else:
            rows[-1] = (rows[-1], (y - W @ run._centre) * np.linalg.norm(rows[-1]) / np.linalg.norm(W @ basis))
        return out

    basis = run._basis[0][:, None] * run._basis[1]
    monkeypatch.setattr(run, "_learn", keep)
    monkeypatch.setattr(run, "_forgotten", lambda A: rows.append(A.copy()) or forgotten(A))
    replayed(a, recorded[:600])
    (L, h), late = rows[0], rows[1:]
    assert len(late) > 5
    L = L + sum(A.T @ A for A, _ in late)
    h = h + sum(A.T @ b for A, b in late)
    np.testing.assert_allclose(run._information, L, rtol=1e-9, atol=1e-9 * np.abs(L).max())
    np.testing.assert_allclose(run._x, np.linalg.solve(L, h), rtol=1e-6, atol=1e-8)


def test_windows_need_not_end_where_samples_lie(sim, recorded):
    a = adapt.Adapter(sim, MASS, estimator=adapt.MomentumRLS(window=0.0607))
    found = np.array([a.update(*row).values["body.arm.mass"] for row in recorded[:2400]])
    assert np.abs(found[600:] - 2.0).max() < 1e-3
    assert not a.alarms


def test_a_payload_is_found_and_told(adapter, recorded):
    a = adapter()
    before = replayed(a, recorded[:2450])
    assert not a.alarms
    assert abs(before.values["body.arm.mass"] - 2.0) < 3 * before.deviations["body.arm.mass"]
    after = replayed(a, recorded[2450:])
    assert abs(after.values["body.arm.mass"] - 3.0) < 3 * after.deviations["body.arm.mass"]
    assert after.deviations["body.arm.mass"] < 0.02
    (event,) = a.events
    assert str(event).startswith("payload on 'arm' changed at 5.0 s: +")
    assert abs(event.change - 1.0) < 3 * event.deviation
    assert 5.0 < event.alarm.time < 5.3
    assert abs(event.time - 5.0) < 0.05  # half a window


def test_every_estimate_is_a_robot_that_can_exist(sim, recorded):
    """One joint feels two combinations of ten numbers; what it does not feel stays possible."""
    a = adapt.Adapter(sim, FREE)
    after = replayed(a, recorded)
    values = after.values
    np.testing.assert_allclose(values["body.arm.mass"] * values["body.arm.com"][0], 0.6, rtol=0.02)
    inertia = np.linalg.eigvalsh(np.asarray(fx.spatial.inertia_matrix(values["body.arm.inertia"])))
    assert values["body.arm.mass"] > 0
    assert inertia[0] > 0
    assert inertia[0] + inertia[1] > inertia[2]
    np.testing.assert_allclose(a.robot().bodies.com[1], values["body.arm.com"])


def damaged(rows, share, seed=1):
    """A fifth of the samples lost, doubled or late."""
    rng, out, held = np.random.default_rng(seed), [], []
    for row in rows:
        fate = rng.choice(["good", "lost", "double", "late"], p=[1 - share, *[share / 3] * 3])
        out += [row] * {"good": 1, "lost": 0, "double": 2, "late": 0}[fate]
        out += held
        held = [row] if fate == "late" else []
    return out


def test_a_damaged_stream_gives_the_same_estimate_within_its_interval(sim, recorded):
    found = []
    for rows in (recorded[:2400], damaged(recorded[:2400], 0.2)):
        a = adapt.Adapter(sim, MASS)
        found.append(replayed(a, rows))
        assert not a.alarms
    counts = a.stream.counts
    assert min(counts[kind] for kind in ("duplicate", "late", "lost")) > 80
    whole, broken = (e.values["body.arm.mass"] for e in found)
    assert abs(broken - whole) < 1.65 * found[1].deviations["body.arm.mass"]
    np.testing.assert_allclose(broken, 2.0, atol=1.65 * found[1].deviations["body.arm.mass"])


def test_kalman_is_the_textbooks_on_a_linear_system():
    """A mass on a slide under unknown gravity: step and readings are linear, so both filters are the same recursion."""
    slide = """<mujoco><worldbody><body name="b"><joint name="z" type="slide" axis="0 0 1"/>
    <inertial pos="0 0 0" mass="2" diaginertia="1 1 1"/></body></worldbody>
    <actuator><motor name="m" joint="z"/></actuator></mujoco>"""
    sim = fx.Simulator(fx.load(slide), fx.RigidSolver(contact=None), dt=0.01)
    rule = adapt.Kalman(disturbance=0.3, wander=0.1, iterations=2)
    a = adapt.Adapter(sim, ["gravity[2]"], estimator=rule, noise={"q.*": 0.01, "qd.*": 0.1}, limit=1e9)
    rng, h, size = np.random.default_rng(2), 0.01, 9.81
    F = np.array([[1, h, h * h * size], [0, 1, h * size], [0, 0, 1]])
    Q = np.diag([0.09 * h**3 / 3, 0.09 * h, 0.01 * h])
    Q[0, 1] = Q[1, 0] = 0.09 * h**2 / 2
    H, R = np.eye(2, 3), np.diag([1e-4, 1e-2])
    x, P, u = np.zeros(3), np.diag([1.0, 1.0, 1.0]), 0.0
    for k in range(60):
        y, new = rng.normal(size=2), float(rng.normal())
        y[0] = np.nan if k % 7 == 3 else y[0]
        if k:
            push = u / 2 - 9.81
            x = F @ x + [h * h * push, h * push, 0.0]
            P = F @ P @ F.T + Q
        rows = np.flatnonzero(np.isfinite(y))
        K = P @ H[rows].T @ np.linalg.inv(H[rows] @ P @ H[rows].T + R[np.ix_(rows, rows)])
        x, P = x + K @ (y - x[:2])[rows], P - K @ H[rows] @ P
        a.update(h * k, y, np.array([new]))
        u = new
    np.testing.assert_allclose([a.running.q[0], a.running.qd[0], a.z[0]], x, rtol=1e-7, atol=1e-9)
    np.testing.assert_allclose(a.running.P, P, rtol=1e-6, atol=1e-10)


def test_kalman_finds_what_momentum_cannot(sim, recorded):
    """With angles alone, and damping beside the mass."""
    free = ["body.arm.mass", "joint.a.damping"]
    rule = adapt.Kalman(disturbance=0.02)
    wrong = fx.Simulator(fx.replace(sim.model, {"body.arm.mass": 1.4, "joint.a.damping": 0.1}), sim.solver, dt=DT)
    a = adapt.Adapter(wrong, free, estimator=rule, columns=["q.a"], noise={"q.a": 1e-4})
    for t, y, u in recorded[:1200]:
        estimate = a.update(t, y[:1], u)
    for name, true in zip(free, (2.0, 0.3), strict=True):
        assert abs(estimate.values[name] - true) < 3 * estimate.deviations[name] + 0.01 * true
        assert estimate.deviations[name] < 0.1 * true


def test_a_moving_horizon_finds_mass_and_damping_and_notices_a_change(sim, recorded):
    free = ["body.arm.mass", "joint.a.damping"]
    wrong = fx.Simulator(fx.replace(sim.model, {"body.arm.mass": 1.4, "joint.a.damping": 0.1}), sim.solver, dt=DT)
    a = adapt.Adapter(wrong, free, estimator=adapt.MovingHorizon(), noise={"q.*": NOISE[0], "qd.*": NOISE[1]})
    before = replayed(a, recorded[:2400])
    for name, true in zip(free, (2.0, 0.3), strict=True):
        assert abs(before.values[name] - true) < 3 * before.deviations[name]
        assert before.deviations[name] < 0.02 * true
    assert not a.alarms
    after = replayed(a, recorded[2400:3700])
    assert abs(after.values["body.arm.mass"] - 3.0) < 3 * after.deviations["body.arm.mass"]
    assert str(a.events[0]).startswith("payload on 'arm' changed at 5.")


def test_horizons_are_rolled_out_with_derivatives(sim):
    """The kernel against the simulator's own steps, and finite differences."""
    a = adapt.Adapter(sim, MASS, estimator=adapt.MovingHorizon(horizon=4, hop=2))
    run, rng = a.running, np.random.default_rng(0)
    run._u[:], run._steps[:] = rng.normal(size=run._u.shape), DT
    x, z = np.array([0.3, -0.5]), run.z + 0.2
    path, J = (part.copy() for part in run._rolled(x, z))
    stepper = fx.Simulator(a.place.apply(a.model, z)[0], sim.solver, dt=DT).compile()
    stepper.reset(x[:1], x[1:])
    for k in range(4):
        stepper.step(run._u[k])
        np.testing.assert_allclose(path[k + 1], [stepper.q[0], stepper.qd[0]], rtol=1e-9)
    h = 1e-6
    for i, d in enumerate(np.eye(3) * h):
        ahead, behind = (run._rolled(x + s * d[:2], z + s * d[2:])[0] for s in (1, -1))
        np.testing.assert_allclose((ahead - behind) / (2 * h), J[..., i], rtol=1e-6, atol=1e-8)


def test_updates_compile_nothing(adapter, recorded):
    a = adapter()
    replayed(a, recorded[:60])
    with jax.log_compiles(), pytest.MonkeyPatch.context() as patch:
        patch.setattr(jax, "make_jaxpr", None)
        patch.setattr("jax._src.interpreters.mlir.lower_jaxpr_to_module", None)
        assert np.isfinite(float(replayed(a, recorded[60:300]).values["body.arm.mass"]))


def test_sentences(sim, adapter):
    with pytest.raises(KeyError, match=r"that can be adapted matches 'body.leg.mass'"):
        adapt.Adapter(sim, ["body.leg.mass"])
    with pytest.raises(ValueError, match=r"MomentumRLS cannot estimate 'body.arm.pos'.*fx.adapt.Kalman can"):
        adapt.Adapter(sim, ["body.arm.pos"])
    with pytest.raises(ValueError, match=r"'q.a' is not measured, and momentum needs all coordinates"):
        adapter(columns=["qd.a"])
    with pytest.raises(ValueError, match=r"'link' has no column 'q.b'; it has q.a, qd.a"):
        adapter(columns=["q.b"])
    with pytest.raises(KeyError, match=r"`noise` names 'tau'"):
        adapter(noise={"tau": 1.0})
    with pytest.raises(ValueError, match=r"`window` .* shorter than `memory`"):
        adapter(estimator=adapt.MomentumRLS(window=30.0))
    assert motors_of(sim.model).of_dof == (0,)
    assert Sample._fields[0] == "time"
