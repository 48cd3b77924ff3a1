"""Segments: where they start, how rows between steps are met, how unlike lengths are padded."""

import numpy as np
import pytest

import flexor as fx
from flexor.identify.segments import cut, start_state

DT = 0.02
COLUMNS = ("q.hinge", "qd.hinge")


@pytest.fixture(scope="module")
def sim():
    return fx.Simulator(fx.load("pendulum"), fx.RigidSolver(contact=None), dt=DT)


def log(time, columns=COLUMNS, **others):
    time = np.asarray(time, float)
    values = np.stack([np.sin(3 * time), 3 * np.cos(3 * time)], axis=1)[:, : len(columns)]
    return fx.Log(time, values, columns, others.pop("controls", np.arange(len(time) - 1.0)[:, None]), **others)


def test_rows_on_steps_need_no_interpolation(sim):
    segments, owner = cut(sim, [log(np.arange(11) * DT)], fx.Shooting(), np.ones(2))
    np.testing.assert_array_equal(segments.at[0], np.arange(11))
    np.testing.assert_array_equal(segments.ahead, 0)
    np.testing.assert_array_equal(segments.u[0, :, 0], np.arange(10))
    np.testing.assert_array_equal(owner, [0])


def test_times_of_their_own_lie_between_steps(sim):
    """Rows every 33 ms from 5 s on, against steps of 20 ms: where each lies, and which control is held at each step."""
    time = 5.0 + 0.033 * np.arange(7)
    segments, _ = cut(sim, [log(time)], fx.Shooting(), np.ones(2))
    np.testing.assert_allclose((np.asarray(segments.at[0]) + np.asarray(segments.ahead[0])) * DT, time - 5.0, atol=1e-12)
    assert segments.u.shape == (1, 10, 1)  # 198 ms
    held = np.floor(np.arange(10) * DT / 0.033 + 1e-9)
    np.testing.assert_array_equal(segments.u[0, :, 0], np.minimum(held, 5))


def test_logs_of_unlike_length_are_padded_without_weight(sim):
    noise = np.array([[0.1, 0.5], [0.2, 1.0]])
    segments, owner = cut(sim, [log(np.arange(11) * DT), log(np.arange(6) * DT)], fx.Shooting(), noise)
    assert segments.measured.shape == (2, 11, 2)
    np.testing.assert_array_equal(segments.weight[1, 6:], 0)
    np.testing.assert_allclose(segments.weight[:, 0], [[10.0, 2.0], [5.0, 1.0]])  # each log its own noise
    np.testing.assert_array_equal(owner, [0, 1])


def test_missing_numbers_have_no_weight(sim):
    whole = log(np.arange(11) * DT)
    values = whole.values.copy()
    values[3, 1] = np.nan
    segments, _ = cut(sim, [fx.Log(whole.time, values, COLUMNS, whole.controls, missing=True)], fx.Shooting(), np.ones(2))
    assert float(segments.weight[0, 3, 1]) == 0
    assert np.isfinite(segments.measured).all()
    assert int((np.asarray(segments.weight) > 0).sum()) == 21


def test_horizons_follow_one_another_or_overlap(sim):
    run = log(np.arange(21) * DT)
    segments, _ = cut(sim, [run], fx.Shooting(horizon=0.1), np.ones(2))
    np.testing.assert_allclose(segments.q[:, 0], run.values[[0, 5, 10, 15], 0])
    np.testing.assert_array_equal(segments.u[1, :, 0], np.arange(5, 10))
    assert segments.at.shape == (4, 6)
    segments, _ = cut(sim, [run], fx.Shooting(horizon=0.1, stride=0.04), np.ones(2))
    np.testing.assert_allclose(segments.q[:, 0], run.values[[0, 2, 4, 6, 8, 10, 12, 14], 0])


def test_a_velocity_that_was_not_measured_is_the_slope(sim):
    """A cubic through seven rows of sin(3t): its error is of the order (3 dt)^3 / 6, times the slope 3."""
    run = log(np.arange(41) * DT, columns=("q.hinge",))
    for row in (0, 10, 40):
        q, qd = start_state(run, sim.model, row)
        assert q[0] == pytest.approx(np.sin(3 * row * DT), abs=1e-4)
        assert qd[0] == pytest.approx(3 * np.cos(3 * row * DT), abs=3e-3)


def test_a_given_start_counts_for_the_first_segment(sim):
    run = log(np.arange(21) * DT, start=([7.0], [8.0]))
    segments, _ = cut(sim, [run], fx.Shooting(horizon=0.2), np.ones(2))
    assert segments.q[:, 0].tolist() == [7.0, pytest.approx(run.values[10, 0])]


@pytest.mark.parametrize(
    ("make", "shooting", "text"),
    [
        (lambda: log(np.arange(11) * DT), fx.Shooting(horizon=1.0), "1.0 s does not fit into 'log', which lasts 0.2 s"),
        (lambda: log(np.arange(11) * DT), fx.Shooting(horizon=0.1, stride=-1.0), "positive number of seconds, got -1.0"),
        (lambda: log(np.arange(11) * DT), fx.Shooting(horizon=0.01), "is shorter than the time between the rows of 'log'"),
        (lambda: log(np.arange(11) * DT, controls=None), fx.Shooting(), "'log' has no controls, but 'pendulum' has 1 actuators"),
        (lambda: log(np.arange(11) * DT, controls=np.zeros((10, 2))), fx.Shooting(), "has 2 controls; 'pendulum' has 1"),
        (lambda: log(np.arange(11) * DT, start=([1.0, 2.0], [0.0])), fx.Shooting(), "must be (q, qd) of 1 and 1 numbers"),
        (lambda: fx.Log(np.arange(11) * DT, np.ones((11, 1)), ("qd.hinge",), np.zeros((10, 1))), fx.Shooting(),
         "'log' does not measure 'q.hinge', so its first state is unknown: give `Log.start`"),
        (lambda: fx.Log(np.arange(11) * DT, np.full((11, 1), np.nan), ("q.hinge",), np.zeros((10, 1)), missing=True),
         fx.Shooting(), "no row near 0 s measures all coordinates"),
    ],
)  # fmt: skip
def test_sentences(sim, make, shooting, text):
    with pytest.raises(ValueError) as error:
        cut(sim, [make()], shooting, np.ones(2 if len(make().columns) == 2 else 1))
    assert text in str(error.value)


def test_a_free_joint_needs_its_velocities():
    cube = fx.Simulator(fx.load("cube"))
    t = cube.model.topology
    columns = tuple(f"q.{t.q_name(i)}" for i in range(t.nq))
    run = fx.Log(np.arange(5) * DT, np.arange(35.0).reshape(5, 7), columns)
    with pytest.raises(ValueError, match="does not measure all velocities, and 'cube' has ball or free joints"):
        cut(cube, [run], fx.Shooting(), np.ones(7))
