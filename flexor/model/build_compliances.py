"""Soft constraints of a `Description` as topology and table."""

from typing import Any

import numpy as np

from flexor.model.description import ComplianceSpec, Description, PairSpec
from flexor.model.softness import force_law
from flexor.model.topology import Compliance

FIELDS = {"stiffness": (), "damping": (), "impedance": (5,), "response": (), "rotation_response": ()}


def drop_compliances(d: Description, pairs: list[PairSpec]) -> None:
    """Removes compliances that are ignored, and those of limits that do not exist."""
    everything: tuple[Any, ...] = (*pairs, *d.joints, *d.tendons, *d.equalities, *d.loops)
    for x in everything:
        if "solref" in d.ignore or getattr(x, "range", x) is None:
            x.compliance = None
        if "solref" in d.ignore and isinstance(x, PairSpec):
            x.restitution = 0.0


def compliant(d: Description, pairs: list[PairSpec]) -> list[tuple[Compliance, ComplianceSpec]]:
    """All soft constraints: pairs, limits of joints and tendons, equalities, loops."""
    kinds: dict[str, list[Any]] = {
        "pair": pairs, "joint": d.joints, "tendon": d.tendons, "equality": d.equalities, "loop": d.loops,
    }  # fmt: skip
    return [
        (Compliance(kind, f"{x.a}~{x.b}" if kind == "pair" else x.name, i), x.compliance)
        for kind, rows in kinds.items()
        for i, x in enumerate(rows)
        if x.compliance is not None
    ]


def compliance_table(d: Description, pairs: list[PairSpec]) -> dict[str, np.ndarray]:
    """All columns of `Compliances`."""
    specs = [spec for _, spec in compliant(d, pairs)]
    return {f: np.array([getattr(s, f) for s in specs], float).reshape(len(specs), *shape) for f, shape in FIELDS.items()}


def soften_penalties(d: Description, tables: dict[str, dict[str, np.ndarray]]) -> None:
    """Sets, in place, the springs and dampers that stand for soft limits, equalities and loops in the penalty model."""
    groups: list[tuple[str, str, list[Any]]] = [
        ("joints", "limit_", d.joints), ("tendons", "limit_", d.tendons), ("equalities", "", d.equalities), ("loops", "", d.loops)
    ]  # fmt: skip
    for group, prefix, rows in groups:
        for i, x in enumerate(rows):
            if x.compliance is None or not x.compliance.response > 0:
                continue
            law = force_law(x.compliance, x.compliance.response)
            tables[group][f"{prefix}stiffness"][i], tables[group][f"{prefix}damping"][i] = law
            if group == "loops" and x.compliance.rotation_response > 0:
                law = force_law(x.compliance, x.compliance.rotation_response)
                tables[group]["rotation_stiffness"][i], tables[group]["rotation_damping"][i] = law
