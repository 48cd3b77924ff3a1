"""Equalities and loops of a `Description` as topology and tables."""

from collections.abc import Mapping

import numpy as np

from flexor.model.description import Description, EqualitySpec, LoopSpec
from flexor.model.topology import Equality, Loop

SOFTNESS = 1e-6  # CFM of a constraint on joints, as a share of its response


def equality_topology(d: Description, index: Mapping[str, Mapping[str, int]]) -> tuple[Equality, ...]:
    """The equalities; `index` numbers joints and tendons by name."""
    return tuple(
        Equality(e.name, index[e.kind][e.first], None if e.second is None else index[e.kind][e.second], e.kind)
        for e in d.equalities
    )


def loop_topology(d: Description) -> tuple[Loop, ...]:
    body = {b.name: i for i, b in enumerate(d.bodies)}
    return tuple(Loop(x.name, body[x.first], body[x.second], x.weld) for x in d.loops)


def check_equality(d: Description, e: EqualitySpec) -> None:
    """Raises for an equality between elements that do not exist, joints other than hinges and slides, or an element and
    itself."""
    rows = [j.name for j in d.joints] if e.kind == "joint" else [t.name for t in d.tendons]
    kinds, where = {j.name: j.kind for j in d.joints}, f"equality '{e.name}'"
    for name in [e.first] if e.second is None else [e.first, e.second]:
        if name not in rows:
            d.fail(f"{where} names the {e.kind} '{name}', which the robot does not have")
        if e.kind == "joint" and kinds[name] not in ("hinge", "slide"):
            d.fail(f"{where} names the {kinds[name]} joint '{name}'; it can tie hinge and slide joints only")
    if e.first == e.second:
        d.fail(f"{where} ties {e.kind} '{e.first}' to itself; leave out the second {e.kind} to hold it at a constant")
    if np.shape(e.coefficients) != (5,) or not np.isfinite(e.coefficients).all():
        d.fail(f"{where} needs five finite coefficients, got {e.coefficients}")


def check_loop(d: Description, x: LoopSpec) -> None:
    """Raises for a loop between bodies that do not exist, or a body and itself, or with numbers that are not finite."""
    bodies = {b.name for b in d.bodies}
    for name in (x.first, x.second):
        if name not in bodies:
            d.fail(f"loop '{x.name}' names the body '{name}', which the robot does not have")
    if x.first == x.second:
        d.fail(f"loop '{x.name}' holds body '{x.first}' to itself")
    if not all(np.isfinite(v).all() for v in (x.anchor_a, x.anchor_b, x.quat)) or not np.any(x.quat):
        d.fail(f"the anchors or the rotation of loop '{x.name}' are not finite, or the rotation is zero")


def equality_table(d: Description, inertia: Mapping[str, float], limit_time: float) -> dict[str, np.ndarray]:
    """All columns of `Equalities`; `inertia` is that of the joints by name. Massless joints are reported elsewhere."""
    inverse = {name: 1 / i if i > 0 else 0.0 for name, i in inertia.items()}

    def response(e: EqualitySpec) -> float:
        if e.kind == "tendon":
            return 1.0 if e.response is None else e.response
        return inverse[e.first] + (np.asarray(e.coefficients)[1] ** 2 * inverse[e.second] if e.second else 0.0)

    numbers = np.array([e.coefficients for e in d.equalities], float).reshape(len(d.equalities), 5)
    responses = np.array([response(e) for e in d.equalities], float)
    return {"coefficients": numbers, **_row_parameters(responses, limit_time), "baumgarte": np.full(len(numbers), 0.2)}


def loop_table(d: Description, limit_time: float) -> dict[str, np.ndarray]:
    """All columns of `Loops`."""
    n = len(d.loops)
    widths = {"anchor_a": 3, "anchor_b": 3, "quat": 4}
    table: dict[str, np.ndarray] = {
        f: np.array([getattr(x, f) for x in d.loops], float).reshape(n, w) for f, w in widths.items()
    }
    table["torquescale"] = np.array([x.torquescale for x in d.loops], float)
    table |= _row_parameters(np.array([x.response for x in d.loops], float), limit_time)
    turning = _row_parameters(np.array([x.rotation_response for x in d.loops], float), limit_time)
    table |= {f"rotation_{name}": value for name, value in turning.items()}
    table["baumgarte"] = np.full(n, 0.2)
    return table


def _row_parameters(response: np.ndarray, limit_time: float) -> dict[str, np.ndarray]:
    """Stiffness and damping that are critically damped with the time constant, and the compliance, for rows of this response."""
    inertia = 1 / np.where(response > 0, response, np.inf)
    return {"stiffness": inertia / limit_time**2, "damping": 2 * inertia / limit_time, "cfm": SOFTNESS * response}
