"""Tendons of a `Description` as topology and table."""

from collections.abc import Mapping

import numpy as np

from flexor.model.description import Description, TendonSpec, WrapSpec
from flexor.model.topology import Tendon, Wrap

PARTS = {"joint": "joint", "site": "site", "sphere": "geom", "cylinder": "geom"}
"""What the steps of a path refer to."""


def tendon_topology(d: Description, index: Mapping[str, Mapping[str, int]]) -> tuple[Tendon, ...]:
    """The tendons; `index` numbers joints, sites and geoms by name."""

    def number(t: TendonSpec, kind: str, name: str) -> int:
        if name not in index[kind]:
            d.fail(f"tendon '{t.name}' names the {kind} '{name}', which the robot does not have")
        return index[kind][name]

    def wrap(t: TendonSpec, w: WrapSpec) -> Wrap:
        side = None if w.side is None else number(t, "site", w.side)
        return Wrap(w.kind) if w.kind == "pulley" else Wrap(w.kind, number(t, PARTS[w.kind], w.target), side)

    return tuple(
        Tendon(
            t.name,
            tuple(wrap(t, w) for w in t.path),
            t.range is not None,
            t.dry_friction or t.frictionloss > 0,
            t.inertial or t.armature > 0,
        )
        for t in d.tendons
    )


def check_tendon(d: Description, t: TendonSpec) -> None:
    """Raises for a path that is neither a sum over hinges and slides nor a route from site to site."""
    kinds, steps = {j.name: j.kind for j in d.joints}, [w.kind for w in t.path]
    if not steps:
        d.fail(f"tendon '{t.name}' has an empty path")
    for w in t.path:
        if w.kind == "joint" and kinds.get(w.target, "hinge") not in ("hinge", "slide"):
            d.fail(
                f"tendon '{t.name}' names the {kinds[w.target]} joint '{w.target}'; it can sum hinge and slide joints only"
            )
        if w.kind == "pulley" and not w.value > 0:
            d.fail(f"a pulley of tendon '{t.name}' has the divisor {w.value}; it must be positive")
    if "joint" in steps and set(steps) != {"joint"}:
        d.fail(f"the path of tendon '{t.name}' mixes joints with sites, geoms or pulleys")
    around = [k for k, s in enumerate(steps) if s in ("sphere", "cylinder")]
    if any(k == 0 or k + 1 == len(steps) or steps[k - 1] != "site" or steps[k + 1] != "site" for k in around):
        d.fail(f"tendon '{t.name}' passes a geom that has no site before and after it")


def tendon_table(d: Description, limit_time: float) -> dict[str, np.ndarray]:
    """All columns of `Tendons`; the parameters of limits as those of joints, with the inertia 1 / response."""
    n = len(d.tendons)
    numbers = [[w.value for w in t.path if w.kind in ("joint", "pulley")] for t in d.tendons]
    most = max((len(x) for x in numbers), default=0)
    fields = ("stiffness", "damping", "armature", "frictionloss", "reference")
    table: dict[str, np.ndarray] = {
        "coefficients": np.array([x + [0.0] * (most - len(x)) for x in numbers], float).reshape(n, most)
    }
    table |= {f: np.array([getattr(t, f) for t in d.tendons], float) for f in fields}
    table |= {f: np.array([getattr(t, f) for t in d.tendons], float).reshape(n, 2) for f in ("spring_range", "force_range")}
    ranges = [(-np.inf, np.inf) if t.range is None else t.range for t in d.tendons]
    table["range"] = np.array(ranges, float).reshape(n, 2)
    response = np.array([t.response for t in d.tendons], float)
    inertia = 1 / np.where(response > 0, response, np.inf)
    table["limit_stiffness"], table["limit_damping"] = inertia / limit_time**2, 2 * inertia / limit_time
    table["limit_cfm"], table["limit_baumgarte"] = 1e-6 * response, np.full(n, 0.2)
    return table
