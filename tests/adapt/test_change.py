"""Alarms and intervals, on numbers whose distribution is known."""

import numpy as np
import pytest

from flexor.adapt.change import Alarm, Conformal, Detector
from flexor.adapt.event import Event, event_of

RNG = np.random.default_rng(0)


def first_alarm(rows, **options):
    found = Detector(rows.shape[1], **options)
    return next((a for k, v in enumerate(rows) if (a := found.update(0.1 * k, v)) is not None), None)


def test_noise_raises_no_alarm_and_outliers_neither():
    rows = RNG.normal(size=(20_000, 3))  # for drift 1 and limit 10 of one sum, exp(20) samples pass between alarms
    rows[::500] = 50.0
    assert first_alarm(rows) is None


def test_a_bias_and_a_larger_spread_are_found_where_they_began():
    rows = RNG.normal(size=(600, 3))
    biased = rows + np.where(np.arange(600) >= 300, 2.5, 0.0)[:, None] * [1.0, 0.0, 0.0]
    found = first_alarm(biased)
    assert found.kind == "shift"
    assert 29.0 < found.since <= found.time < 33.0
    spread = rows * np.where(np.arange(600) >= 300, 4.0, 1.0)[:, None]
    found = first_alarm(spread)
    assert found.kind == "spread"
    assert 29.0 < found.since <= found.time < 31.0
    assert "larger than their noise" in str(found)


def test_what_is_not_measured_says_nothing():
    rows = np.full((100, 2), np.nan)
    rows[:, 0] = RNG.normal(size=100)
    assert first_alarm(rows) is None


@pytest.mark.parametrize("draw", [RNG.standard_normal, RNG.standard_cauchy], ids=["normal", "cauchy"])
def test_conformal_intervals_cover_whatever_the_distribution(draw):
    widths, found = [], Conformal(1, share=0.9)
    errors = draw(20_000)
    for e in errors:
        widths.append(found.width[0])
        found.update(np.array([e]))
    covered = np.mean(np.abs(errors[500:]) <= np.array(widths)[500:])
    assert abs(covered - 0.9) < 0.02  # deviation of the mean of 20,000: 0.002; the rest is the rate


def known(mass, com, s=0.01):
    return {"body.hand.mass": np.array(mass), "body.hand.com": np.array(com)}, {
        "body.hand.mass": np.array(s),
        "body.hand.com": np.full(2, s),
    }


def test_events_are_sentences():
    alarm = Alarm(12.5, 12.3, "spread", np.zeros(1))
    told = event_of(alarm, known(1.0, [0.0, 0.0], 0.07), known(2.9, [5.0, 0.0], 0.07))
    assert str(told) == "payload on 'hand' changed at 12.3 s: +1.900 ± 0.099 kg"
    told = event_of(alarm, known(1.0, [0.0, 0.0]), known(1.0, [0.0, -0.2]))
    assert str(told) == "body.hand.com[1] changed at 12.3 s: -0.200 ± 0.014 m"
    told = event_of(alarm, known(1.0, [0.0, 0.0]), known(1.001, [0.0, 0.0]))
    assert str(told) == "something changed at 12.3 s that no free parameter explains"
    assert (
        str(Event(1.0, "joint.a.damping", 0.1, 0.01, alarm)) == "joint.a.damping changed at 1.0 s: +0.100 ± 0.010 N m s/rad"
    )


def test_units_are_those_of_the_joint():
    alarm = Alarm(1.5, 1.3, "spread", np.zeros(1))
    for field, unit in (("damping", "N s/m"), ("frictionloss", "N"), ("armature", "kg")):
        before, after = (({f"joint.{j}.{field}": np.array(x) for j in "ab"}, {f"joint.{j}.{field}": np.array(0.01) for j in "ab"})
                         for x in (0.0, 1.0))  # fmt: skip
        after[0]["joint.b." + field] = np.array(2.0)
        assert str(event_of(alarm, before, after, {"joint.b"})).endswith(f"± 0.014 {unit}")
        assert not str(event_of(alarm, before, after, {"joint.a"})).endswith(f" {unit}")


def test_sentences():
    with pytest.raises(ValueError, match="0 < drift < clip and limit > 0"):
        Detector(1, drift=9.0)
    with pytest.raises(ValueError, match="between 0 and 1"):
        Conformal(1, share=1.0)
