"""Soft constraints as attributes of MJCF elements."""

from flexor.model.description import ComplianceSpec
from flexor.model.extension import number_text
from flexor.model.model import Model
from flexor.model.softness import written


def softness(m: Model, kind: str, index: int, suffix: str = "") -> dict[str, str]:
    """`solref` and `solimp`, their names with a suffix, of an element that is soft; nothing for any other."""
    row = next((i for i, c in enumerate(m.topology.compliances) if (c.kind, c.index) == (kind, index)), None)
    if row is None:
        return {}
    table = m.compliances
    spec = ComplianceSpec(float(table.stiffness[row]), float(table.damping[row]), table.impedance[row], 0.0)
    return {f"{name}{suffix}": number_text(value) for name, value in zip(("solref", "solimp"), written(spec), strict=True)}
