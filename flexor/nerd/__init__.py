"""NeRD: a learned solver for a robot. Sample transitions, train a network on them, and step it like any other physics."""

from flexor.nerd.artefact import Nerd, load
from flexor.nerd.base import AbstractBase, CoarseContact, FineContact, FreeFlight, NoBase
from flexor.nerd.calibration import calibrate, evaluate_warning
from flexor.nerd.data import Data, read, sample
from flexor.nerd.evaluation import Contribution, Passive, base_alone, evaluate_contribution, evaluate_passive
from flexor.nerd.finetune import Finetuning, finetune
from flexor.nerd.frames import Frames
from flexor.nerd.fresh import Fresh
from flexor.nerd.losses import AbstractLoss, AnchorLoss, OneStepLoss, PositionLoss, RolloutLoss
from flexor.nerd.network import AbstractNetwork, AbstractSizes, Norms, Sizes, Transformer
from flexor.nerd.ranges import Planes, Ranges
from flexor.nerd.recipe import Recipe
from flexor.nerd.solver import NerdSolver, disagreement, doubt
from flexor.nerd.sweep import sweep, with_seeds
from flexor.nerd.tokens import ContactTokens, TokenSizes
from flexor.nerd.training import Training, train
from flexor.nerd.warning import Doubt, Warnings
from flexor.nerd.windows import AbstractStarts, RegularStarts, SteadyStarts

__all__ = [
    "AbstractBase",
    "AbstractLoss",
    "AbstractNetwork",
    "AbstractSizes",
    "AbstractStarts",
    "AnchorLoss",
    "CoarseContact",
    "ContactTokens",
    "Contribution",
    "Data",
    "Doubt",
    "FineContact",
    "Finetuning",
    "Frames",
    "FreeFlight",
    "Fresh",
    "Nerd",
    "NerdSolver",
    "NoBase",
    "Norms",
    "OneStepLoss",
    "Passive",
    "Planes",
    "PositionLoss",
    "Ranges",
    "Recipe",
    "RegularStarts",
    "RolloutLoss",
    "Sizes",
    "SteadyStarts",
    "TokenSizes",
    "Training",
    "Transformer",
    "Warnings",
    "base_alone",
    "calibrate",
    "disagreement",
    "doubt",
    "evaluate_contribution",
    "evaluate_passive",
    "evaluate_warning",
    "finetune",
    "load",
    "read",
    "sample",
    "sweep",
    "train",
    "with_seeds",
]
