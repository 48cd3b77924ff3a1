"""What changed, in a sentence: "payload on 'hand' changed at 12.3 s: +1.90 ± 0.05 kg"."""

from collections.abc import Collection
from dataclasses import dataclass

import numpy as np

from flexor.adapt.change import Alarm

UNITS = {"mass": "kg", "com": "m", "inertia": "kg m²", "damping": "N m s/rad", "frictionloss": "N m", "armature": "kg m²"}
OF_SLIDES = {"damping": "N s/m", "frictionloss": "N", "armature": "kg"}
SURE = 3.0  # deviations from which a change is told as one
Known = tuple[dict[str, np.ndarray], dict[str, np.ndarray]]
"""Values and deviations by name."""


@dataclass(frozen=True)
class Event:
    """A change at `time`: of the parameter `name`, by `change` with the deviation `deviation`; `name` is empty where the alarm is
    explained by no free parameter. `slides` says that it is of a joint that slides."""

    time: float
    name: str
    change: float
    deviation: float
    alarm: Alarm
    slides: bool = False

    def __str__(self) -> str:
        if not self.name:
            return f"something changed at {self.time:.1f} s that no free parameter explains"
        group, rest = self.name.split(".", 1)
        owner, field = rest.split("[")[0].rsplit(".", 1)
        unit = (UNITS | OF_SLIDES if self.slides else UNITS).get(field, "")
        what = f"payload on '{owner}'" if (group, field) == ("body", "mass") else self.name
        return f"{what} changed at {self.time:.1f} s: {_with(self.change, self.deviation)}{unit and ' ' + unit}"


def _with(change: float, deviation: float) -> str:
    """+1.90 ± 0.05: as many digits as the deviation has two of."""
    digits = 3 if not 0 < deviation < np.inf else int(np.clip(1 - np.floor(np.log10(deviation)), 0, 6))
    return f"{change:+.{digits}f} ± {deviation:.{digits}f}"


def event_of(alarm: Alarm, before: Known, after: Known, slides: Collection[str] = ()) -> Event:
    """The change that is told. Of a body it is the mass, where that changed at all, for other numbers of the same body follow
    from it; else the number that changed by most of its deviations. `slides` are joints ("joint.<name>")."""
    found: list[tuple[float, str, float, float]] = []
    for name, new in after[0].items():
        change, deviation = new - before[0][name], np.sqrt(after[1][name] ** 2 + before[1][name] ** 2)
        for i, (c, s) in enumerate(zip(np.ravel(change), np.ravel(deviation), strict=True)):
            label = name if np.size(new) == 1 else f"{name}[{i}]"
            found.append((abs(c) / max(s, 1e-300), label, float(c), float(s)))
    sure = [x for x in found if x[0] > SURE]
    masses = [x for x in sure if x[1].endswith(".mass")]
    if not sure:
        return Event(alarm.since, "", 0.0, 0.0, alarm)
    _, name, by, within = max(masses or sure)
    return Event(alarm.since, name, by, within, alarm, name.split("[")[0].rsplit(".", 1)[0] in slides)
