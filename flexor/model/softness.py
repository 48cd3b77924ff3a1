"""MuJoCo's `solref` and `solimp` as compliance and restitution.

`solref` is (T, zeta), a time constant and a damping ratio, or, where both are negative, (-k, -b), stiffness and damping. With D,
the impedance of `solimp` from its width on, the numbers of `Compliances` are

    stiffness = 1 / (D T zeta)^2  or  k / D^2,      damping = 2 / (D T)  or  b / D.

A constraint then swings, undisturbed, with the frequency w = d sqrt(stiffness), d the impedance where it is, and the damping
ratio zeta; a force F on it pushes it in by F response (1 - d) / w^2.

**What is hard stays hard.** MuJoCo's constraints are never hard; its defaults (T = 20 ms, d from 0.9 to 0.95) stand for
constraints that are meant to hold. So a constraint that yields to a force no more than one with these defaults, at first touch
and from the width on, has no compliance here: contacts, limits and equalities are then those of the NCP itself. Of a hard
contact with zeta < 1 the restitution is exp(-pi zeta / sqrt(1 - zeta^2)), that of a linear spring and damper; limits and
equalities with zeta < 1 are soft.

Source: MuJoCo's documentation, "Computation", sections "Constraint model" and "Solver parameters".
"""

import numpy as np
from numpy.typing import ArrayLike

from flexor.model.description import SOLIMP, SOLREF, ComplianceSpec, GeomSpec, PairSpec

LOWEST, HIGHEST = 1e-4, 0.9999  # MuJoCo's bounds of an impedance
SLACK = 1e-6  # relative: what differs from a default by rounding is the default


def compliance(
    solref: ArrayLike, solimp: ArrayLike, response: float, *, turning: float = 0.0, bounces: bool = False
) -> ComplianceSpec | None:
    """That of a constraint with these numbers, None where it counts as hard. `response` is J M^-1 J^T of its rows, in 1/kg, and
    `turning` that of rows that hold an orientation; `bounces` says that it has a restitution."""
    spec = _spec(solref, solimp, response, turning)
    reference = _spec(SOLREF, SOLIMP, response, turning)
    underdamped = damping_ratio(solref) < 1 - SLACK and not bounces
    if response <= 0 or not (underdamped or any(_yielding(spec) > (1 + SLACK) * _yielding(reference))):
        return None
    return spec


def _spec(solref: ArrayLike, solimp: ArrayLike, response: float, turning: float) -> ComplianceSpec:
    low, high, width, middle, power = np.asarray(solimp, float).tolist()
    low, high, middle = (float(np.clip(x, LOWEST, HIGHEST)) for x in (low, high, middle))
    if width <= 1e-15:
        low = high = (low + high) / 2
        width = SOLIMP[2]
    first, second = _signed(solref)
    if first > 0:
        stiffness, damping = 1 / (high * first * second) ** 2, 2 / (high * first)
    else:
        stiffness, damping = max(-first, 0.0) / high**2, max(-second, 0.0) / high
    return ComplianceSpec(stiffness, damping, (low, high, width, middle, max(power, 1.0)), response, turning)


def _signed(solref: ArrayLike) -> tuple[float, float]:
    """Both numbers; MuJoCo's defaults, as MuJoCo takes them, where one is positive and the other is not."""
    first, second = np.asarray(solref, float).tolist()
    return SOLREF if (first > 0) != (second > 0) else (first, second)


def _yielding(spec: ComplianceSpec) -> np.ndarray:
    """(1 - d) / w^2 at first touch and from the width on: how far a force pushes the constraint in."""
    d = np.asarray(spec.impedance, float)[:2]
    return (1 - d) / np.maximum(d**2 * spec.stiffness, 1e-12)


def damping_ratio(solref: ArrayLike) -> float:
    """zeta; one or more without oscillation."""
    first, second = _signed(solref)
    if first > 0:
        return second
    return max(-second, 0.0) / (2 * np.sqrt(-first)) if first < 0 else 1.0


def restitution(solref: ArrayLike) -> float:
    """That of a linear spring and damper with the damping ratio zeta; zero from zeta = 1 on."""
    zeta = damping_ratio(solref)
    return 0.0 if zeta >= 1 - SLACK else float(np.exp(-np.pi * zeta / np.sqrt(1 - zeta**2)))


def soften(pair: PairSpec, solref: ArrayLike, solimp: ArrayLike, response: float) -> PairSpec:
    """Gives a pair the compliance of these numbers, or, where it is hard, the restitution."""
    pair.compliance = compliance(solref, solimp, response, bounces=True)
    pair.restitution = 0.0 if pair.compliance is not None else restitution(solref)
    return pair


def written(spec: ComplianceSpec) -> tuple[list[float], list[float]]:
    """`solref`, as stiffness and damping, and `solimp` that say the same."""
    impedance = np.asarray(spec.impedance, float)
    return [-spec.stiffness * impedance[1] ** 2, -spec.damping * impedance[1]], impedance.tolist()


def mixed(a: GeomSpec, b: GeomSpec) -> tuple[np.ndarray, np.ndarray]:
    """`solref` and `solimp` of two geoms by MuJoCo's rule: those of the higher priority, else their means, weighted by `solmix`;
    of stiffnesses and dampings the smaller numbers, which are the larger magnitudes."""
    numbers = [(np.asarray(g.solref, float), np.asarray(g.solimp, float)) for g in (a, b)]
    if a.priority != b.priority:
        return numbers[0] if a.priority > b.priority else numbers[1]
    share = _share(a.solmix, b.solmix)
    (ref_a, imp_a), (ref_b, imp_b) = numbers
    times = ref_a[0] > 0 and ref_b[0] > 0
    solref = share * ref_a + (1 - share) * ref_b if times else np.minimum(ref_a, ref_b)
    return solref, share * imp_a + (1 - share) * imp_b


def _share(a: float, b: float) -> float:
    if a >= 1e-15 and b >= 1e-15:
        return a / (a + b)
    return 0.5 if a < 1e-15 and b < 1e-15 else float(a >= 1e-15)


def force_law(spec: ComplianceSpec, response: float) -> tuple[float, float]:
    """Stiffness and damping from the width on as forces, in N/m and N s/m: for the penalty model, whose limits and equalities are
    springs and dampers."""
    d = float(np.asarray(spec.impedance, float)[1])
    return spec.stiffness * d**2 / ((1 - d) * response), spec.damping * d / ((1 - d) * response)
