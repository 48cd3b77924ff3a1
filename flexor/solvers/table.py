"""The solvers by name, for command lines, recipes and configuration files: `solver("penalty", integrator="rk4", substeps=4)`."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from flexor.contact import NCP, Andersson, BrownMcPhee, Hollars, Mixed, NoContact, Penalty, SmoothedCoulomb
from flexor.solvers.integrators import RK4, ImplicitDamping, SemiImplicitEuler, SplitRK4
from flexor.solvers.mujoco import MujocoSolver
from flexor.solvers.rigid import RigidSolver
from flexor.solvers.solver import AbstractSolver
from flexor.solvers.substeps import Substeps

CONTACTS: Mapping[str, type] = {"ncp": NCP, "penalty": Penalty, "mixed": Mixed, "none": NoContact}
"""Contact models of `RigidSolver`; each is the name of a solver, too."""
INTEGRATORS: Mapping[str, type] = {
    "euler": SemiImplicitEuler,
    "implicit": ImplicitDamping,
    "rk4": RK4,
    "split-rk4": SplitRK4,
}
"""Integrators of `RigidSolver`."""
MUJOCO_INTEGRATORS = {"euler": "Euler", "implicit": "implicit", "implicitfast": "implicitfast", "rk4": "RK4"}
"""Integrators of `MujocoSolver`, by MuJoCo's names for them."""
FRICTIONS = {"andersson": Andersson, "brown_mcphee": BrownMcPhee, "hollars": Hollars, "smoothed_coulomb": SmoothedCoulomb}
"""Friction laws of `Penalty`."""
COMMON = ("integrator", "substeps")
"""Options of every solver."""
SOLVERS = ("rigid", *CONTACTS, "mujoco")
"""Names that `solver` takes; "rigid" is "ncp"."""


def solver(name: str | Mapping[str, Any], **options: Any) -> AbstractSolver:
    """The solver of this name, or of a table with a `name`, with options.

    `ncp` (or `rigid`), `penalty`, `mixed` and `none` are `RigidSolver` with that contact model, whose fields are options:
    `solver("ncp", iterations=100)`. `integrator` is `euler`, `implicit`, `rk4` or `split-rk4`; of `mujoco`: MuJoCo's, in lower
    case. `friction` of the penalty model is the name of a law, or a table with a `name`. `substeps` takes several steps of
    dt / substeps as one.
    """
    given = {"name": name} if isinstance(name, str) else dict(name)
    given.update(options)
    what = given.pop("name", None)
    if what not in SOLVERS:
        raise ValueError(f"there is no solver {what!r}; there are {', '.join(SOLVERS)}.")
    substeps, integrator = given.pop("substeps", 1), given.pop("integrator", "euler")
    if not isinstance(substeps, int) or isinstance(substeps, bool) or substeps < 1:
        raise ValueError(f"`substeps` must be a positive number of steps, got {substeps!r}.")
    if what == "mujoco":
        _check_options(given, (), "the solver 'mujoco'", COMMON)
        return MujocoSolver(_choice(integrator, MUJOCO_INTEGRATORS, "integrator of mujoco"), substeps)
    contact = _contact("ncp" if what == "rigid" else what, given)
    made = RigidSolver(contact, _choice(integrator, INTEGRATORS, "integrator")())
    return made if substeps == 1 else Substeps(made, substeps)


def _contact(name: str, options: Mapping[str, Any]) -> Any:
    """A contact model with its options, those of its parts in tables of their own."""
    kind = CONTACTS[name]
    if kind is NoContact and not options:
        return None
    parts: Mapping[str, Callable[[Any], Any]] = {
        "friction": _friction,
        "ncp": lambda table: _contact("ncp", table),
        "penalty": lambda table: _contact("penalty", table),
    }
    fields = {f.name for f in dataclasses.fields(kind) if f.init}
    _check_options(options, sorted(fields), f"the solver '{name}'", COMMON)
    return kind(**{key: parts[key](x) if key in parts else x for key, x in options.items()})


def _friction(given: Any) -> Any:
    options = {"name": given} if isinstance(given, str) else dict(given)
    law = _choice(options.pop("name", None), FRICTIONS, "friction law")
    _check_options(options, sorted(f.name for f in dataclasses.fields(law)), f"the friction law {law.__name__}")
    return law(**options)


def _choice(name: Any, table: Mapping[str, Any], what: str) -> Any:
    if name not in table:
        raise ValueError(f"there is no {what} {name!r}; there are {', '.join(table)}.")
    return table[name]


def _check_options(options: Mapping[str, Any], names: Sequence[str], what: str, taken: Sequence[str] = ()) -> None:
    """Raises for the first option that is not among the names; `taken` are further ones that were read before."""
    unknown = [key for key in options if key not in names]
    if unknown:
        raise ValueError(f"{what} has no option '{unknown[0]}'; it has {', '.join((*names, *taken))}.")
