"""`identify` on a pendulum, from logs to files. Kernels, since they compile faster than XLA does here."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import flexor as fx
from flexor.augment import input_weights

DT, STEPS = 0.02, 40
SIGMA = {"q.hinge": 1e-3, "qd.hinge": 1e-2}
PENDULUM = fx.load("pendulum")
HEAVY = """
<mujoco model="heavy"><worldbody><body name="arm">
  <joint name="hinge" axis="0 1 0" armature="5"/><inertial pos="0 0 -0.1" mass="5" diaginertia="1e-4 1e-4 1e-4"/>
</body></worldbody></mujoco>
"""
TRAINING = {"body.link.mass": 0.6, "joint.hinge.damping": 0.0}
FREE = ("body.link.mass", "joint.hinge.damping")


def simulator(changes=None, model=PENDULUM, dt=DT):
    return fx.Simulator(fx.replace(model, changes or {}), fx.RigidSolver(contact=None), dt=dt, simd=True)


def measure(sim, runs=3, steps=STEPS, seed=0, every=1, columns=None, sigma=SIGMA, **others):
    """Logs of a simulator with random starts and torques, and noise; `every` keeps that row and drops those between."""
    rng = np.random.default_rng(seed)
    logs = []
    for i in range(runs):
        u = np.repeat(rng.normal(size=(steps // (4 * every), sim.model.nu)), 4 * every, axis=0)
        trajectory = sim.rollout(sim.reset(rng.normal(size=sim.model.nq)), u)
        log = fx.Log.of(trajectory)
        noise = np.array([sigma[c] for c in log.columns])
        values = log.values + noise * rng.normal(size=log.values.shape)
        keep = [log.columns.index(c) for c in columns or log.columns]
        start = others.get("start", log.start)
        logs.append(
            fx.Log(
                log.time[::every], values[::every, keep], tuple(log.columns[k] for k in keep),
                np.asarray(u)[::every] if sim.model.nu else None, {log.columns[k]: noise[k] for k in keep}, start,
                name=f"run {i}",
            )
        )  # fmt: skip
    return logs


@pytest.fixture(scope="module")
def logs():
    return measure(simulator())


@pytest.fixture(scope="module")
def fit(logs):
    return fx.identify(simulator(TRAINING), logs, FREE)


def truth(name):
    return float(fx.parameters(PENDULUM)[name])


def covered(fit, level=0.999):
    """Whether every estimate's interval holds the truth; at this level chance fails once in a thousand."""
    return all(low <= truth(name) <= high for name, (low, high) in fit.posterior.intervals(level).items())


def test_parameters_come_back(fit):
    assert fit.ok
    assert "converged" in fit.message
    assert covered(fit)
    assert float(fit.values["body.link.mass"]) == pytest.approx(1.0, rel=5e-3)
    assert float(fit.values["joint.hinge.damping"]) == pytest.approx(0.02, rel=0.05)
    assert float(fit.model.bodies.mass[1]) == float(fit.values["body.link.mass"])
    assert fit.start["body.link.mass"] == pytest.approx(0.6)
    assert fit.raise_if_bad() is fit


def test_errors_are_those_of_the_noise(fit):
    assert (fit.training.segments, fit.held_out.segments) == (2, 1)
    assert fit.training.weighted == pytest.approx(1.0, abs=0.15)  # of 164 numbers, deviation 1 / sqrt(2 * 164)
    assert fit.held_out.weighted == pytest.approx(1.0, abs=0.3)
    assert fit.held_out_before.weighted > 20
    assert fit.training.columns["q.hinge"] == pytest.approx(1e-3, rel=0.3)
    assert fit.posterior.scale == pytest.approx(1.0, abs=0.2)
    assert fit.posterior.unidentifiable == ()
    assert fit.remarks == []


def test_history_falls_from_the_start_to_the_minimum(fit):
    assert fit.history == sorted(fit.history, reverse=True)
    assert 2 * fit.history[-1] / 164 == pytest.approx(fit.training.weighted**2)
    assert 2 * fit.history[0] / 164 == pytest.approx(fit.before.weighted**2)


def test_curves_hold_measurement_and_both_predictions(fit, logs):
    curves = fit.curves
    assert curves.columns == ("q.hinge", "qd.hinge")
    assert curves.logs == ("run 0", "run 1", "run 2")
    np.testing.assert_allclose(curves.measured[0], logs[0].values)
    np.testing.assert_allclose(curves.time[0], logs[0].time)
    run = fit.sim.rollout(fit.sim.reset(*logs[1].start), logs[1].controls[:STEPS])
    np.testing.assert_allclose(curves.after[1, :, 0], run.q[:, 0], atol=1e-9)
    before = simulator({**TRAINING, "joint.hinge.damping": fit.start["joint.hinge.damping"]})
    run = before.rollout(before.reset(*logs[1].start), logs[1].controls[:STEPS])
    np.testing.assert_allclose(curves.before[1, :, 1], run.qd[:, 0], atol=1e-9)


def test_rows_and_words(fit):
    row = fit.rows()[0]
    assert row["parameter"] == "body.link.mass"
    assert row["low"] < row["estimate"] < row["high"]
    text = str(fit)
    assert "pendulum: converged" in text
    assert "body.link.mass: 0.6 -> " in text
    assert "held-out error" in text


@pytest.mark.parametrize("ending", ["xml", "urdf"])
def test_saved_files_load_again_to_the_same_trajectory(fit, tmp_path, ending):
    written = fit.save(tmp_path / "out", formats=(ending,))
    assert [p.name for p in written] == ["simulator", "fit.json", "fit.safetensors", f"pendulum.{ending}"]
    again = simulator(model=fx.load(written[-1]))
    u = jnp.full((STEPS, 1), 0.5)
    old, new = (s.rollout(s.reset([0.5]), u) for s in (fit.sim, again))
    # files hold 17 digits, but MuJoCo turns inertias to their principal axes and back
    np.testing.assert_allclose(old.q, new.q, atol=1e-9)
    summary = json.loads(written[1].read_text())
    assert summary["parameters"][0]["estimate"] == float(fit.values["body.link.mass"])
    assert summary["errors"]["held_out"]["segments"] == 1


def test_a_run_that_was_killed_goes_on_to_the_same_bits(fit, logs, tmp_path):
    def kill(done, total, cost):
        if done == 3:
            raise KeyboardInterrupt

    kept = tmp_path / "kept.npz"
    with pytest.raises(KeyboardInterrupt):
        fx.identify(simulator(TRAINING), logs, FREE, checkpoint=kept, progress=kill)
    told = []
    resumed = fx.identify(simulator(TRAINING), logs, FREE, checkpoint=kept, progress=lambda *x: told.append(x))
    assert told[0][0] == 4
    assert resumed.history == fit.history
    for name, value in fit.values.items():
        np.testing.assert_array_equal(resumed.values[name], value)
    np.testing.assert_array_equal(resumed.posterior.covariance, fit.posterior.covariance)
    with pytest.raises(ValueError, match="belongs to another run"):  # other physics under the same names
        fx.identify(simulator({**TRAINING, "gravity": [0, 0, -9.0]}), logs, FREE, checkpoint=kept)


def test_single_precision(fit, logs):
    single = fx.Simulator(fx.replace(PENDULUM.astype(jnp.float32), TRAINING), fx.RigidSolver(contact=None), dt=DT, simd=True)
    found = fx.identify(single, logs, FREE)
    assert found.model.dtype == found.sim.dt.dtype == jnp.float32
    # the same numbers but for the rounding of inertia and axis to single precision
    for name, value in fit.values.items():
        np.testing.assert_allclose(found.values[name], value, rtol=1e-5)
    assert not found.curves.time[0][-1] % DT > 1e-9


def test_own_sampling_times_few_columns_and_starts_to_estimate():
    """Angles alone at 50 Hz against steps of 3 ms, in segments of 0.4 s whose starts are estimated."""
    logs = measure(simulator(dt=0.004), columns=("q.hinge",), steps=300, every=5, start=None)
    found = fx.identify(simulator(TRAINING, dt=0.003), logs, FREE, shooting=fx.Shooting(horizon=0.4, free_start=True))
    assert found.ok
    assert found.posterior.scale == pytest.approx(1.0, abs=0.15)
    # steps of 4 and 3 ms differ by 0.5 ms |qdd| in velocity, and |qdd| is about 10 where |qd| is 3: parts in a thousand
    assert float(found.values["body.link.mass"]) == pytest.approx(1.0, rel=0.02)
    assert covered(found)


def test_observe_extra_and_build():
    """A camera sees the tip at an unknown scale and the link hangs lower by an unknown length: both are found."""
    sim = simulator(model=fx.replace(PENDULUM, {"body.link.com": [0, 0, -0.6]}))
    run = sim.rollout(sim.reset([1.0]), jnp.zeros((STEPS, 1)))
    rng = np.random.default_rng(0)
    tip = 3.0 * np.stack([-np.sin(run.q[:, 0]), -np.cos(run.q[:, 0])], axis=1) + 1e-3 * rng.normal(size=(STEPS + 1, 2))
    log = fx.Log(run.time, tip, ("x", "y"), np.zeros((STEPS, 1)), {"x": 1e-3, "y": 1e-3}, ([1.0], [0.0]))
    found = fx.identify(
        simulator(), log, ["camera.scale", "length"], extra={"camera.scale": 1.0, "length": 0.5},
        observe=lambda model, state, extra: extra["camera.scale"] * -jnp.stack([jnp.sin(state.q[0]), jnp.cos(state.q[0])]),
        build=lambda model, extra: fx.replace(model, {"body.link.com": jnp.stack([0.0, 0.0, -extra["length"]])}),
    )  # fmt: skip
    assert found.extra["camera.scale"] == pytest.approx(3.0, rel=1e-3)
    assert found.extra["length"] == pytest.approx(0.6, rel=5e-3)
    assert float(found.model.bodies.com[1, 2]) == -found.extra["length"]
    assert any("nothing was held out" in r for r in found.remarks)


def test_mass_and_lever_that_only_appear_as_a_product_are_named():
    """The rotor holds nearly all of the inertia: gravity's torque m g l is all that the motion tells."""
    sim = simulator(model=fx.load(HEAVY), dt=0.05)
    logs = measure(sim, runs=2, steps=60, seed=3)
    found = fx.identify(
        fx.Simulator(fx.replace(sim.model, {"body.arm.mass": 3.0}), sim.solver, dt=0.05, simd=True), logs,
        ["body.arm.mass", "body.arm.com[2]"],
    )  # fmt: skip
    (pair,) = found.posterior.unidentifiable
    assert set(pair.coefficients) == {"body.arm.mass", "body.arm.com[2]"}
    product = float(found.values["body.arm.mass"]) * float(found.values["body.arm.com[2]"])
    assert product == pytest.approx(-0.5, rel=0.02)
    assert any("the data do not determine" in line for line in str(found).splitlines())


@pytest.fixture(scope="module")
def hybrid():
    blueprint = fx.Blueprint().add(
        "joint.passive_force", inputs=["joint.q", "joint.qd"], net=fx.nets.MLP(width=4, depth=1), scales={"joint.qd": 3.0}
    )
    return simulator({"joint.hinge.damping": 0.0}).augment(blueprint, key=jax.random.key(0))


def test_networks_are_fitted_and_saved(hybrid, tmp_path):
    """Strong damping that the model does not know; half of the error goes within fifty steps."""
    logs = measure(simulator({"joint.hinge.damping": 0.5}))
    found = fx.identify(hybrid, logs, ["augment"], search=fx.Adam(steps=50, rate=0.05))
    assert found.held_out.weighted < 0.5 * found.held_out_before.weighted
    assert (found.posterior, found.values) == (None, {})
    found.save(tmp_path)
    u = jnp.full((STEPS, 1), 0.5)
    old, new = (s.rollout(s.reset([0.5]), u).q for s in (found.sim, fx.open(tmp_path / "simulator")))
    np.testing.assert_array_equal(old, new)
    assert fx.Fit.load(tmp_path).posterior is None


@pytest.mark.parametrize(("kappa", "group"), [(0.5, 0.0), (0.0, 0.2), (0.5, 0.2)])
def test_proximal_step_is_the_minimum_of_its_definition(hybrid, kappa, group):
    """argmin_w |w - v|^2 / (2 rate) + kappa |w|_1 + group sqrt(n) |w|_2, by a search that knows nothing of soft thresholds."""
    rate = 0.5
    fresh = hybrid.solver.augmentation
    stepped = fx.SparseGroupLasso(kappa=kappa, group=group).proximal(fresh, jnp.asarray(rate))
    old, new = (next(iter(input_weights(a).values())) for a in (fresh, stepped))
    rng = np.random.default_rng(0)
    for name in old:
        v, w = np.asarray(old[name]), np.asarray(new[name])

        def objective(w, v=v):
            norm = np.sqrt(np.sum(w**2, axis=(-2, -1)))
            l1 = np.sum(np.abs(w), axis=(-2, -1))
            return np.sum((w - v) ** 2, axis=(-2, -1)) / (2 * rate) + kappa * l1 + group * np.sqrt(v.size) * norm

        # the definition is convex, so a point that no small or large step improves is the minimum
        steps = rng.normal(size=(2000, *v.shape)) * np.logspace(-6, 0, 2000)[:, None, None]
        assert (objective(w + steps) >= objective(w) - 1e-12).all()
        assert (objective(w * np.linspace(0, 2, 101)[:, None, None]) >= objective(w) - 1e-12).all()
    assert not kappa or any((np.asarray(w) == 0).any() for w in new.values())  # exactly
    untouched = jax.tree.map(
        lambda a, b: np.array_equal(a, b), fresh.networks[0][0].layers[1], stepped.networks[0][0].layers[1]
    )
    assert all(jax.tree.leaves(untouched))


def test_inputs_die_exactly(hybrid):
    strong = fx.SparseGroupLasso(group=10.0).proximal(hybrid.solver.augmentation, jnp.asarray(1.0))
    for columns in next(iter(input_weights(strong).values())).values():
        np.testing.assert_array_equal(columns, 0)


def test_proximal_step_in_single_precision_of_zeros(hybrid):
    single = jax.tree.map(lambda x: jnp.zeros_like(x, jnp.float32), hybrid.solver.augmentation)
    stepped = fx.SparseGroupLasso(kappa=0.1).proximal(single, jnp.asarray(0.1, jnp.float32))
    assert all(np.isfinite(x).all() for x in jax.tree.leaves(stepped))


def short(logs, rows=3):
    return [log.between(0, rows - 1) for log in logs[:1]]


@pytest.mark.parametrize(
    ("call", "error", "text"),
    [
        (lambda logs: fx.identify(simulator(), [], FREE), ValueError, "there are no logs to identify from"),
        (lambda logs: fx.identify(simulator(), logs, []), ValueError, "nothing is free: name parameters by patterns"),
        (lambda logs: fx.identify(simulator(), logs, ["augment"]), ValueError, "the simulator has no networks"),
        (lambda logs: fx.identify(simulator(), logs, ["*.weight"]), KeyError, "no parameter of 'pendulum' matches '*.weight'"),
        (lambda logs: fx.identify(simulator(), short(logs), ["*.mass", "*.damping", "*.com", "*.pos"]), ValueError,
         "6 measurements cannot determine 14 parameters: give more data or free fewer"),
        (lambda logs: fx.identify(simulator(), logs, FREE, held_out=1.5), ValueError, "`held_out` must be a share below 1"),
        (lambda logs: fx.identify(simulator(), logs, FREE, prior={"*.com": 1.0}), KeyError, "the prior for '*.com' matches none"),
        (lambda logs: fx.identify(simulator(), logs, FREE, prior={"*.mass": 0.0}), ValueError, "a positive standard deviation"),
        (lambda logs: fx.identify(simulator(), [fx.Log(g.time, g.values, g.columns, g.controls) for g in logs], FREE,
                                  prior={"*.mass": 0.1}), ValueError, "a prior is weighed against the noise"),
        (lambda logs: fx.identify(simulator(), logs, FREE, shooting=fx.Shooting(free_start=True), search=fx.Adam()), ValueError,
         "Adam cannot estimate starts; use LevenbergMarquardt"),
        (lambda logs: fx.identify(simulator(), [logs[0], fx.Log(logs[1].time, logs[1].values[:, :1], ("q.hinge",),
                                  logs[1].controls)], FREE), ValueError, "'log' measures ('q.hinge',), but 'run 0'"),
        (lambda logs: fx.identify(simulator(), [logs[0], fx.Log(logs[1].time, logs[1].values, logs[1].columns, logs[1].controls,
                                  {"q.hinge": 1.0})], FREE), ValueError, "not for 'qd.hinge' in every log"),
    ],
)  # fmt: skip
def test_sentences(logs, call, error, text):
    with pytest.raises(error) as raised:
        call(logs)
    assert text in str(raised.value.args[0])


def test_a_failed_search_can_be_raised(fit):
    from dataclasses import replace

    with pytest.raises(RuntimeError, match="the identification of 'pendulum' failed: stopped early"):
        replace(fit, ok=False, message="stopped early").raise_if_bad()
