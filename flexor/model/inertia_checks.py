"""Doubtful inertias: loaded, since real files have them, but always with a warning."""

import numpy as np

from flexor.model.description import BodySpec, Description
from flexor.model.frames import six_matrix

# Files carry four to six digits: a principal moment may miss the triangle inequality by this share and count as rounded.
_ROUNDING = 1e-3


def inertia_doubt(body: BodySpec) -> str | None:
    """What is wrong with a body's inertia about its centre of mass; None if it can belong to a real body."""
    if body.mass == 0:
        return "has an inertia but no mass" if np.any(body.inertia) else None
    moments = np.linalg.eigvalsh(six_matrix(body.inertia))
    if not moments[0] > 0:
        listed = ", ".join(f"{m:.3g}" for m in moments)
        return (
            f"has mass {body.mass:.4g} kg but an inertia that is not positive definite (principal moments {listed} kg m^2)"
        )
    if moments[2] > (moments[0] + moments[1]) * (1 + _ROUNDING):
        listed = ", ".join(f"{m:.3g}" for m in moments)
        return f"has principal moments of inertia that miss the triangle inequality ({listed} kg m^2)"
    return None


def warn_doubtful_inertia(d: Description) -> None:
    """Warns by name about links whose inertia no real body has, and about moving links without mass."""
    moving = {j.body for j in d.joints}
    for b in d.bodies[1:]:
        doubt = inertia_doubt(b)
        if doubt is None and b.mass == 0 and b.name in moving:
            doubt = "moves but has no mass"
        if doubt is not None:
            d.warn(f"link '{b.name}' {doubt}")
