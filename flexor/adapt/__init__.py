"""Adaptation: the parameters of a robot while it runs, with intervals, alarms and what changed when."""

from flexor.adapt.adapter import Adapter, Estimate
from flexor.adapt.change import Alarm, Conformal, Detector
from flexor.adapt.estimator import AbstractEstimator, AbstractRunning, Innovation
from flexor.adapt.event import Event
from flexor.adapt.history import History
from flexor.adapt.horizon import MovingHorizon
from flexor.adapt.kalman import Kalman
from flexor.adapt.rls import MomentumRLS
from flexor.adapt.stream import Sample, Stream

ESTIMATORS: dict[str, type[AbstractEstimator]] = {c.__name__: c for c in (MomentumRLS, Kalman, MovingHorizon)}
"""By name, for configurations."""

__all__ = [
    "ESTIMATORS",
    "AbstractEstimator",
    "AbstractRunning",
    "Adapter",
    "Alarm",
    "Conformal",
    "Detector",
    "Estimate",
    "Event",
    "History",
    "Innovation",
    "Kalman",
    "MomentumRLS",
    "MovingHorizon",
    "Sample",
    "Stream",
]
