"""Networks anywhere in the physics: a `Blueprint` says where, `Simulator.augment` puts them there."""

from flexor.augment.augmentation import Augmentation, input_groups, input_weights, map_input_weights
from flexor.augment.blueprint import Add, Blueprint, Each, Replace, Scale, Shared, Whole
from flexor.augment.layout import Layout

__all__ = [
    "Add",
    "Augmentation",
    "Blueprint",
    "Each",
    "Layout",
    "Replace",
    "Scale",
    "Shared",
    "Whole",
    "input_groups",
    "input_weights",
    "map_input_weights",
]
