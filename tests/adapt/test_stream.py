"""What a stream leaves out, bridges and counts."""

import numpy as np
import pytest

from flexor.adapt.stream import Stream

DT = 0.01


def stream(**options):
    return Stream(("q.a", "qd.a"), 1, **options)


def feed(s, times, u=0.0):
    return [s.take(t, np.array([1.0, 2.0]), np.array([u])) for t in times]


def counted(s):
    return {k: n for k, n in s.counts.items() if n and k != "accepted"}


def test_time_counts_from_the_first_sample():
    made = feed(stream(), 100.0 + DT * np.arange(3))
    np.testing.assert_allclose([m.time for m in made], DT * np.arange(3), atol=1e-12)
    assert [m.new for m in made] == [True, False, False]
    np.testing.assert_allclose(made[1].step, DT, rtol=1e-9)


@pytest.mark.parametrize(
    ("times", "kind", "number", "used"),
    [
        ((0, DT, DT, 2 * DT), "duplicate", 1, 3),
        ((0, DT, 3 * DT, 2 * DT, 4 * DT), "late", 1, 4),
        ((0, DT, 2 * DT, 5 * DT), "lost", 2, 4),
        ((0, DT, 2 * DT, 3.0), "gap", 1, 4),
        ((0, float("nan"), DT), "bad time", 1, 2),
    ],
)
def test_times_that_are_wrong_are_named(times, kind, number, used):
    s = stream()
    made = feed(s, times)
    assert s.counts[kind] == number
    assert sum(m is not None for m in made) == used == s.counts["accepted"]
    assert str(number) + " " + kind in s.told()


def test_a_gap_begins_a_new_stretch():
    assert feed(stream(), (0, DT, 3.0, 3.0 + DT))[2].new


def test_a_clock_that_goes_back_is_believed_after_some_samples():
    s = stream(patience=3)
    made = feed(s, (50.0, 50.01, 50.02, 7.00, 7.01, 7.02, 7.03))
    assert [m is None for m in made] == [False, False, False, True, True, False, False]
    assert made[5].new
    np.testing.assert_allclose([made[5].time, made[6].time], [0.02, 0.03], atol=1e-12)  # our own time goes on
    assert counted(s) == {"late": 2, "clock jump": 1}


def test_samples_a_little_late_never_move_the_clock():
    s = stream(patience=3)
    feed(s, (0.0, 0.05, 0.01, 0.02, 0.03, 0.04, 0.06))
    assert counted(s)["late"] == 4
    assert s.counts["clock jump"] == 0


def test_readings_that_are_wrong_are_left_out():
    s = stream(limits={"q.*": (-3.0, 3.0)})
    a = s.take(0.0, np.array([3.0, np.nan]), np.zeros(1))
    assert np.isnan(a.y).all()
    assert counted(s) == {"not measured": 1, "saturated": 1}


def test_inputs_are_held_and_holes_take_them_from_both_ends():
    s = stream()
    feed(s, (0, DT), u=1.0)
    assert s.take(2 * DT, np.ones(2), np.array([np.nan])).u == 1.0
    assert counted(s) == {"bad input": 1}
    assert s.take(3 * DT, np.ones(2), np.array([3.0])).before == 1.0
    assert s.take(6 * DT, np.ones(2), np.array([5.0])).before == 4.0


def test_sentences():
    with pytest.raises(KeyError, match=r"`limits` names 'x', but the columns are q.a, qd.a"):
        stream(limits={"x": (0, 1)})
    with pytest.raises(ValueError, match=r"2 columns q.a, qd.a; got shape"):
        stream().take(0.0, np.zeros(3), np.zeros(1))
    with pytest.raises(ValueError, match=r"each of the 1 actuators"):
        stream().take(0.0, np.zeros(2), np.zeros(2))
