"""Gymnasium's tasks by name, with Gymnasium's numbers."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from flexor.envs.gymnasium import PREFIX, AbstractGymnasium, InvertedDoublePendulum, InvertedPendulum, Locomotion
from flexor.envs.gymnasium_full import FullDoublePendulum, FullLocomotion


class Entry(NamedTuple):
    """A task: its class, description and numbers; and, where Gymnasium's observations are more than the state, the class and
    further numbers of the task that shows all of them."""

    kind: type[AbstractGymnasium]
    file: str
    numbers: Mapping[str, Any]
    full: type[AbstractGymnasium] | None = None
    further: Mapping[str, Any] = {}


_BIPED = {"skip": 4, "timestep": 0.002, "noise": 5e-3, "alive": 1.0, "fastest": 10.0}
_HOPPER = {"heights": (0.7, np.inf), "angles": (-0.2, 0.2), "states": 100.0}
_WALKER = {"heights": (0.8, 2.0), "angles": (-1.0, 1.0)}
_CHEETAH = {"skip": 5, "timestep": 0.01, "integrator": "implicit", "effort": 0.1, "normal": True}
_SWIMMER = {"skip": 4, "timestep": 0.01, "effort": 1e-4, "hidden": 2}
_ANT = {
    "skip": 5,
    "timestep": 0.01,
    "effort": 0.5,
    "alive": 1.0,
    "normal": True,
    "hidden": 2,
    "height": 2,
    "heights": (0.2, 1.0),
}
_HUMANOID = {
    "skip": 5,
    "timestep": 0.003,
    "noise": 1e-2,
    "forward": 1.25,
    "effort": 0.1,
    "alive": 5.0,
    "hidden": 2,
}
_TALL = {"whole": True, "height": 2, "heights": (1.0, 2.0)}
_POLES = {"skip": 5, "timestep": 0.01, "normal": True}

TABLE: Mapping[str, Entry] = {
    "hopper": Entry(Locomotion, "hopper.xml", _BIPED | _HOPPER),
    "walker2d": Entry(Locomotion, "walker2d_v5.xml", _BIPED | _WALKER),
    "half-cheetah": Entry(Locomotion, "half_cheetah.xml", _CHEETAH),
    "swimmer": Entry(Locomotion, "swimmer.xml", _SWIMMER),
    "ant": Entry(Locomotion, "ant.xml", _ANT, FullLocomotion, {"strongest": 1.0, "contact_share": 5e-4}),
    "humanoid": Entry(
        Locomotion,
        "humanoid.xml",
        _HUMANOID | _TALL,
        FullLocomotion,
        {"contact_share": 5e-7, "dearest": 10.0, "inner": True},
    ),
    "inverted-pendulum": Entry(InvertedPendulum, "inverted_pendulum.xml", {"skip": 2, "timestep": 0.02, "noise": 0.01}),
    "inverted-double-pendulum": Entry(InvertedDoublePendulum, "inverted_double_pendulum.xml", _POLES, FullDoublePendulum),
}
"""Gymnasium's tasks by their titles."""


def build(title: str, *, full: bool = False, **options: Any) -> AbstractGymnasium:
    """A task of Gymnasium; with `full`, all that Gymnasium's environment shows and rewards, contact forces included."""
    kind, file, numbers, complete, further = TABLE[title]
    if full and complete is not None:
        kind, numbers = complete, {**numbers, **further}
    return kind.build(title, file, **{**numbers, **options})


BUILDERS: Mapping[str, Callable[..., AbstractGymnasium]] = {PREFIX + title: partial(build, title) for title in TABLE}
"""What makes each task; `full`, `noise`, `length` and weights of its reward are options."""
