"""Adaptation: the parameters of a robot while it runs, with intervals, alarms and what changed when."""

from flexor.adapt.adapter import Adapter, Estimate
from flexor.adapt.change import Alarm, Conformal, Detector
from flexor.adapt.estimator import AbstractEstimator, AbstractRunning, Innovation
from flexor.adapt.event import Event
from flexor.adapt.kalman import Kalman
from flexor.adapt.rls import MomentumRLS
from flexor.adapt.stream import Sample, Stream

__all__ = [
    "AbstractEstimator",
    "AbstractRunning",
    "Adapter",
    "Alarm",
    "Conformal",
    "Detector",
    "Estimate",
    "Event",
    "Innovation",
    "Kalman",
    "MomentumRLS",
    "Sample",
    "Stream",
]
