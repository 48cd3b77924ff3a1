"""Systems from recordings: grids of irregular times, training against closed forms, files, checkpoints, recipes."""

import dataclasses
import itertools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jaxtyping import Array, Float
from scipy.signal import cont2discrete
from typer.testing import CliRunner

import flexor as fx
from flexor.cli.app import app
from flexor.ode.artefact import on_device
from flexor.ode.series import pieces
from flexor.ode.training import _Loss


class Decay(fx.ode.AbstractSystem):
    """dx/dt = a x + b u, y = x."""

    ab: Float[Array, "2"]

    def rate(self, t, x, u):
        return self.ab[0] * x + self.ab[1] * u

    def output(self, x, u):
        return x


def recording(seed, rows=60, a=-0.8, b=0.5):
    """The exact motion under a held input that changes at times of its own, at irregular times; a third is not measured."""
    rng = np.random.default_rng(seed)
    clock = np.arange(30) * 0.31
    u = rng.normal(size=(30, 1))
    fine = np.union1d(clock, np.sort(rng.uniform(0, 8.9, rows)))
    x, xs = 1.0, [1.0]
    for t0, t1 in itertools.pairwise(fine):
        A, B, *_ = cont2discrete(tuple(np.array([[v]]) for v in (a, b, 1.0, 0.0)), t1 - t0)
        x = float(A[0, 0]) * x + float(B[0, 0]) * u[np.searchsorted(clock, t0, side="right") - 1, 0]
        xs.append(x)
    keep = ~np.isin(fine, clock)
    keep[0] = True
    values = np.array(xs)[keep, None]
    values[rng.uniform(size=len(values)) < 0.3] = np.nan
    values[0] = 1.0
    return fx.ode.Series(fine[keep], values, u, clock, name=f"decay{seed}")


LM = fx.ode.Training(length=30, stride=200, steps=8, method="levenberg-marquardt", every=2)


def test_a_known_structure_is_found_from_irregular_samples_with_gaps():
    """Inputs that change between samples are exact in the grid, so that what is left is RK4: (0.8 x 0.3)^5 / 120 a step."""
    start = fx.ode.Parts(Decay(jnp.array([-0.2, 0.1])), fx.ode.Measured())
    found = fx.ode.fit(start, [recording(0), recording(1)], LM, validation=[recording(2)])
    np.testing.assert_allclose(found.system.ab, [-0.8, 0.5], rtol=1e-4)
    history = found.card["stages"][0]["history"]
    assert history[-1]["validation"] < 1e-4
    seen = recording(2)
    error = (found.simulate(seen) - seen.values)[1:]
    assert np.nanmax(np.abs(error)) < 1e-4


def test_missing_values_do_not_count_and_linear_inputs_go_linearly():
    time = np.array([0.0, 1.0, 2.0])
    series = fx.ode.Series(time, [[0.0], [np.nan], [5.0]], [[0.0], [2.0]], [0.0, 1.5], held=False)
    whole = series.grid()
    np.testing.assert_array_equal(whole.t, [0, 1, 1.5, 2])
    np.testing.assert_array_equal(whole.seen[:, 0], [1, 0, 0, 1])
    np.testing.assert_allclose(whole.u0[:, 0], [0, 4 / 3, 2])
    np.testing.assert_allclose(whole.u1[:, 0], [4 / 3, 2, 2])
    sums = fx.ode.Ode(fx.ode.Parts(Decay(jnp.array([0.0, 1.0])), fx.ode.Measured()))
    np.testing.assert_allclose(sums.simulate(series)[:, 0], [0, 2 / 3, 1.5 + 1.0], atol=1e-12)  # RK4 is exact for lines


def test_numbers_that_cannot_be_used_are_named():
    time = np.arange(3.0)
    with pytest.raises(ValueError, match="'series': `time` must increase"):
        fx.ode.Series([0.0, 0.0, 1.0], np.zeros((3, 1)))
    with pytest.raises(ValueError, match="'series': the input of row 1 is not finite"):
        fx.ode.Series(time, np.zeros((3, 1)), [[0.0], [np.nan], [0.0]])
    with pytest.raises(ValueError, match="its inputs begin 1 s after its values"):
        fx.ode.Series(time, np.zeros((3, 1)), np.zeros((2, 1)), [1.0, 2.0])
    with pytest.raises(ValueError, match="'series' has 3 rows, too few for 2 of the past and 5 more"):
        pieces([fx.ode.Series(time, np.zeros((3, 1)))], 2, 5, 1)
    with pytest.raises(ValueError, match="a stage has no 'lenght'; it has length"):
        fx.ode.Recipe.of({"stages": [{"lenght": 3}]})
    with pytest.raises(ValueError, match="there is no method 'sgd'"):
        fx.ode.Training(method="sgd")


def oscillation(seed, rows=200):
    """A damped oscillator of which only the position is measured."""
    rng = np.random.default_rng(seed)
    A, B, C, _D, _ = cont2discrete(tuple(map(np.array, ([[0.0, 1], [-4, -0.4]], [[0.0], [1]], [[1.0, 0]], [[0.0]]))), 0.2)
    u, x, y = np.repeat(rng.normal(size=(rows // 5, 1)), 5, axis=0), np.zeros(2), []
    for k in range(rows):
        y.append(C @ x)
        x = A @ x + B @ u[k]
    return fx.ode.Series(np.arange(rows) * 0.2, np.array(y), u, name=f"oscillation{seed}")


RECIPE = fx.ode.Recipe(
    states=2, width=4, past=4, time=0.5, seed=1,
    stages=(fx.ode.Training(length=20, stride=4, steps=400, batch=16, rate=2e-2, continuity=0.1, every=200),),
)  # fmt: skip


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("ode")
    return fx.ode.train([oscillation(0)], RECIPE, out=folder), folder


def test_unmeasured_states_come_from_the_past(trained):
    """Training lowers the error of free runs on a recording that it has not seen to a third of the fresh network's."""
    made, _ = trained
    unseen = oscillation(7)

    def error(ode):
        return float(np.sqrt(np.nanmean((ode.simulate(unseen) - unseen.values) ** 2)))

    fresh = fx.ode.Ode(RECIPE.build([fx.ode.Series.of(oscillation(0)).between(0, 160)]))
    assert error(made) < error(fresh) / 3
    assert np.isnan(made.simulate(unseen)[:3]).all()
    assert made.card["recipe"]["past"] == 4
    assert [row["step"] for row in made.card["stages"][0]["history"]] == [200, 400]


def test_interrupted_training_resumes_to_the_same_bits(trained, tmp_path):
    """Ctrl-C after 30 steps, then the same call again."""
    made, folder = trained

    def stop(done, total, error):
        if done == 30:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fx.ode.train([oscillation(0)], RECIPE, out=tmp_path, progress=stop)
    steps = []
    again = fx.ode.train([oscillation(0)], RECIPE, out=tmp_path, progress=lambda done, total, error: steps.append(done))
    assert steps[0] == 30 or steps[0] == 31
    for x, y in zip(jax.tree.leaves(made.parts), jax.tree.leaves(again.parts), strict=True):
        np.testing.assert_array_equal(x, y)
    with pytest.raises(ValueError, match="belongs to another run"):
        fx.ode.train([oscillation(1)], RECIPE, out=folder)


def test_artefacts_open_to_the_same_bits_and_are_checked(trained, tmp_path):
    made, _ = trained
    again = fx.open(made.save(tmp_path / "ode"))
    np.testing.assert_array_equal(again.simulate(oscillation(3)), made.simulate(oscillation(3)))
    assert again.card["recipe"]["states"] == 2
    (tmp_path / "ode" / "arrays.safetensors").write_bytes(b"x")
    with pytest.raises(ValueError, match="was altered after it was written"):
        fx.open(tmp_path / "ode")
    own = fx.ode.Ode(fx.ode.Parts(Decay(jnp.array([-1.0, 1.0])), fx.ode.Measured()))
    with pytest.raises(TypeError, match="Name classes of your own"):
        own.save(tmp_path / "own")
    kept = fx.open(own.save(tmp_path / "own", classes=[Decay]), classes=[Decay])
    np.testing.assert_array_equal(kept.system.ab, own.system.ab)


def test_a_fresh_correction_changes_nothing_and_a_robot_is_a_system():
    known = Decay(jnp.array([-0.8, 0.5]))
    both = [fx.ode.Parts(s, fx.ode.Measured()) for s in (known, fx.ode.Corrected.build(known, (1.0,), (1.0,), (1.0,)))]
    runs = [fx.ode.Ode(p).simulate(recording(4)) for p in both]
    np.testing.assert_array_equal(*runs)
    model = fx.load("double_pendulum")
    sim = fx.Simulator(model, fx.ode.OdeSolver(), dt=0.02)
    run = sim.rollout(sim.reset(jnp.array([0.4, -0.2])), steps=5)
    values = np.concatenate([run.q, run.qd], axis=1)
    robot = fx.ode.Robot(model, fx.ode.OdeSolver(fx.ode.lagrangian(model, width=2)))
    series = fx.ode.Series(np.asarray(run.time), values, np.zeros((6, model.nu)))
    rigid = fx.ode.Ode(fx.ode.Parts(fx.ode.Robot(model, fx.ode.OdeSolver()), fx.ode.Measured()))
    np.testing.assert_allclose(rigid.simulate(series), values, atol=1e-12)
    marks = robot.trainable()
    assert not any(jax.tree.leaves(marks.model))
    assert len(jax.tree.leaves(eqx.filter(robot, marks))) == len(jax.tree.leaves(robot.solver))


def test_a_start_that_diverges_is_trained_and_what_stays_divergent_raises():
    """A start whose free run overflows has no error to compare with: any finite one is better, and none at all is said."""
    time = 0.5 * np.arange(600)
    values = np.exp(-0.8 * time)[:, None]
    values[-1] = np.nan  # an overflow there is NaN in the error, and not infinite
    long = fx.ode.Series(time, values, np.zeros((600, 1)))
    start = fx.ode.Parts(Decay(jnp.array([5.0, 0.0])), fx.ode.Measured())
    options = fx.ode.Training(length=2, stride=1, steps=30, method="levenberg-marquardt", every=1)
    with np.errstate(all="ignore"):
        found = fx.ode.fit(start, [long.between(0, 30)], options, validation=[long])
        np.testing.assert_allclose(found.system.ab[0], -0.8, rtol=1e-2)
        stage = found.card["stages"][0]
        assert stage["history"][0]["validation"] is None
        assert stage["error"] == min(row["validation"] for row in stage["history"] if row["validation"] is not None)
        with pytest.raises(FloatingPointError, match="no weights had a finite error on the validation"):
            fx.ode.fit(start, [long.between(0, 30)], dataclasses.replace(options, steps=1), validation=[long])
    blind = fx.ode.Series(time[:30], np.where(time[:30, None] > 0, np.nan, 1.0), np.zeros((30, 1)))
    with pytest.raises(ValueError, match="nothing is measured in the validation after the start"):
        fx.ode.fit(start, [long.between(0, 30)], options, validation=[blind])


def test_a_checkpoint_of_another_start_or_validation_is_not_resumed(tmp_path):
    """Of the start count its arrays and what is no array; of the validation its values."""
    options = fx.ode.Training(length=5, stride=5, steps=1, method="levenberg-marquardt")
    time = 0.1 * np.arange(20)
    one, other = (fx.ode.Series(time, x * np.exp(-0.8 * time)[:, None], np.zeros((20, 1))) for x in (1.0, 2.0))

    def run(a, judged=one, substeps=1):
        parts = fx.ode.Parts(Decay(jnp.array([a, 0.1])), fx.ode.Measured(), fx.ode.RungeKutta4(substeps))
        return fx.ode.fit(parts, [one], options, validation=[judged], out=tmp_path)

    first = run(-0.2)
    np.testing.assert_array_equal(run(-0.2).system.ab, first.system.ab)
    for change in ({"a": -0.3}, {"judged": other}, {"substeps": 2}):
        with pytest.raises(ValueError, match="belongs to another run"):
            run(**{"a": -0.2, **change})


def test_times_that_single_precision_cannot_hold_are_refused():
    """A clock of 1e6 s has steps of 1/16 s in single precision."""
    late = fx.ode.Series(1e6 + 0.01 * np.arange(20), np.ones((20, 1)), np.zeros((20, 1)))
    ode = fx.ode.Ode(fx.ode.Parts(Decay(jnp.array([-0.8, 0.0])), fx.ode.Measured()))
    assert on_device(pieces([late], 1, 5, 1)).t.dtype == jnp.float64
    with jax.enable_x64(False):
        with pytest.raises(ValueError, match="too large or too close for single precision"):
            ode.simulate(late)
        early = dataclasses.replace(late, time=late.time - 1e6, input_time=None)
        assert on_device(pieces([early], 1, 5, 1)).t.dtype == jnp.float32


class Late(fx.ode.AbstractEncoder):
    """By how much the last input lags behind the clock."""

    past: int = eqx.field(static=True, default=2)

    def start(self, t, y, seen, u):
        return t[-1:] - u[-1]


def test_continuity_reads_the_inputs_at_the_end_as_the_start_does():
    """Of an input that is the time itself nothing lags, neither at the start nor at the end of a stretch."""
    time = np.arange(10.0)
    ramp = fx.ode.Series(time, np.zeros((10, 1)), time[:, None], held=False)
    parts = fx.ode.Parts(Decay(jnp.zeros(2)), Late())
    data = on_device(pieces([ramp], 2, 4, 4))
    gaps = _Loss(parts, data, jnp.ones(1), 1.0, None).residuals(None, data)[-len(data.t) :]
    np.testing.assert_array_equal(gaps, 0.0)


def test_recordings_without_anything_to_learn_from_are_named():
    with pytest.raises(ValueError, match="'series': `time` is empty"):
        fx.ode.Series(np.zeros(0), np.zeros((0, 1)), np.zeros((0, 1)))
    with pytest.raises(ValueError, match="'series': `input_time` is empty"):
        fx.ode.Series(np.arange(3.0), np.zeros((3, 1)), np.zeros((0, 1)), [])
    short = fx.ode.Series(np.arange(3.0), np.zeros((3, 1)), np.zeros((3, 1)))
    with pytest.raises(ValueError, match="'series' has 3 rows, and none between 3 and 3"):
        short.between(3, 3)
    with pytest.raises(ValueError, match=r"3 rows: with `held_out` = 0\.1 none is left to choose by"):
        fx.ode.train([short], fx.ode.Recipe(held_out=0.1))
    with pytest.raises(ValueError, match=r"3 rows: with `held_out` = 0\.9 none is left to train on"):
        fx.ode.train([short], fx.ode.Recipe(held_out=0.9))
    half = fx.ode.Series(np.arange(3.0), np.array([[0.0, np.nan]] * 3), np.zeros((3, 1)))
    with pytest.raises(ValueError, match="output 'level' was never measured"):
        fx.ode.Recipe(outputs=("speed", "level")).build([half])


def test_the_command_line_names_an_ode_without_columns_and_is_precise(tmp_path, monkeypatch):
    switched = []
    monkeypatch.setattr("flexor.cli.ode.use_float64", lambda: switched.append(True))
    bare = fx.ode.Ode(fx.ode.Recipe(states=1, width=2).build([oscillation(0)])).save(tmp_path / "bare")
    failed = CliRunner().invoke(app, ["ode", "evaluate", str(bare), "one.csv"])
    assert failed.exit_code == 2
    assert "has no recipe that names its columns" in " ".join(failed.output.split())
    assert switched
