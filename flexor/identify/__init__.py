"""Identification: logs in; parameters, networks, and what the data say about them out."""

from flexor.identify.discover import Candidate, Discovery, discover
from flexor.identify.fit import Curves, Errors, Fit
from flexor.identify.gradient import LBFGS, Adam, SparseGroupLasso
from flexor.identify.identify import identify
from flexor.identify.log import Log
from flexor.identify.pagmo import Pagmo
from flexor.identify.posterior import Combination, Posterior
from flexor.identify.search import AbstractSearch, BasinHopping, LevenbergMarquardt, Outcome
from flexor.identify.segments import Shooting

__all__ = [
    "LBFGS",
    "AbstractSearch",
    "Adam",
    "BasinHopping",
    "Candidate",
    "Combination",
    "Curves",
    "Discovery",
    "Errors",
    "Fit",
    "LevenbergMarquardt",
    "Log",
    "Outcome",
    "Pagmo",
    "Posterior",
    "Shooting",
    "SparseGroupLasso",
    "discover",
    "identify",
]
