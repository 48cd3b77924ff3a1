"""Identification: logs in; parameters, networks, and what the data say about them out."""

from flexor.identify.base_parameters import BaseParameters, base_parameters
from flexor.identify.discover import Candidate, Discovery, discover
from flexor.identify.excite import Excitation, excite
from flexor.identify.filters import AbstractFilter, Butterworth, SavitzkyGolay, Unfiltered
from flexor.identify.fit import Curves, Errors, Fit
from flexor.identify.gradient import LBFGS, Adam, SparseGroupLasso
from flexor.identify.identify import identify
from flexor.identify.log import Log
from flexor.identify.pagmo import Pagmo
from flexor.identify.posterior import Combination, Posterior
from flexor.identify.search import AbstractSearch, BasinHopping, LevenbergMarquardt, Outcome
from flexor.identify.segments import Shooting
from flexor.identify.torque import Load, Torque
from flexor.identify.torque_rows import AbstractEquations, InverseDynamics, Momentum

__all__ = [
    "LBFGS",
    "AbstractEquations",
    "AbstractFilter",
    "AbstractSearch",
    "Adam",
    "BaseParameters",
    "BasinHopping",
    "Butterworth",
    "Candidate",
    "Combination",
    "Curves",
    "Discovery",
    "Errors",
    "Excitation",
    "Fit",
    "InverseDynamics",
    "LevenbergMarquardt",
    "Load",
    "Log",
    "Momentum",
    "Outcome",
    "Pagmo",
    "Posterior",
    "SavitzkyGolay",
    "Shooting",
    "SparseGroupLasso",
    "Torque",
    "Unfiltered",
    "base_parameters",
    "discover",
    "excite",
    "identify",
]

# `flexor.identify` is the function, so what is called beside it is reached through it: `fx.identify.excite(model)`
identify.excite = excite  # type: ignore[attr-defined]
identify.base_parameters = base_parameters  # type: ignore[attr-defined]
