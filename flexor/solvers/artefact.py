"""A simulator in a folder: `Simulator.save` and `fx.open`, to the same bits, for every solver.

    simulator.json         format, version, model, solver, time step; digests of all files
    arrays.safetensors     every array of the model and the solver
    robot.xml the model as MJCF, for people; it is not read back

Nothing in the folder is code: classes are made by name from the table below, or from those that the caller passes.
"""

import os
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax

from flexor.files import array_bytes, read_arrays, read_sealed, sealed, write_folder
from flexor.model.model import Model
from flexor.model.save import description
from flexor.solvers.encoding import Table, decode, encode, lookup
from flexor.solvers.solver import AbstractSolver

if TYPE_CHECKING:
    from flexor.solvers.simulator import Simulator

KIND, VERSION = "simulator", 1
HEAD, ARRAYS, ROBOT = "simulator.json", "arrays.safetensors", "robot.xml"

_MODULES = {
    "flexor.model.model": (
        *(
            "Activations",
            "Actuators",
            "Bodies",
            "Equalities",
            "Geoms",
            "Joints",
            "Loops",
            "Model",
            "Muscles",
            "Pairs",
            "Sites",
        ),
        *("Compliances", "FluidShapes", "Media", "SensorFrames", "Tendons", "Transmissions"),
    ),
    "flexor.model.topology": (
        *(
            "Actuator",
            "Compliance",
            "Equality",
            "FluidShape",
            "Geom",
            "Joint",
            "Loop",
            "Pair",
            "Sensor",
            "SensorFrame",
            "Site",
        ),
        *("Tendon", "Topology", "Wrap"),
    ),
    "flexor.contact.friction": ("Andersson", "BrownMcPhee", "Hollars", "SmoothedCoulomb"),
    "flexor.contact.mixed": ("Mixed",),
    "flexor.contact.ncp": ("NCP", "NoContact"),
    "flexor.contact.penalty": ("Penalty",),
    "flexor.augment.augmentation": ("Augmentation",),
    "flexor.augment.blueprint": ("Add", "Each", "Entry", "Replace", "Scale", "Shared", "Whole"),
    "flexor.augment.layout": ("Layout",),
    "flexor.augment.networks": (
        *("Conservative", "Damper", "Dissipative", "Layer", "MLP", "Perceptron", "Potential", "Symmetric"),
    ),
    "flexor.solvers.hybrid": ("HybridSolver",),
    "flexor.solvers.integrators": ("ImplicitDamping", "RK4", "SemiImplicitEuler", "SplitRK4"),
    "flexor.solvers.mujoco": ("MujocoSolver",),
    "flexor.solvers.rigid": ("RigidSolver",),
    "flexor.solvers.substeps": ("Substeps",),
    "flexor.nerd.base": ("CoarseContact", "FineContact", "FreeFlight", "NoBase"),
    "flexor.nerd.frames": ("Frames",),
    "flexor.nerd.network": ("Block", "Norms", "Sizes", "Transformer"),
    "flexor.nerd.solver": ("NerdSolver",),
    "flexor.nerd.tokens": ("ContactTokens", "TokenLayout", "TokenSizes"),
    "flexor.nerd.warning": ("Doubt",),
    "flexor.ode.artefact": ("Parts",),
    "flexor.ode.encoder": ("Measured", "Past"),
    "flexor.ode.field": ("BlackBoxField", "RigidField"),
    "flexor.ode.mechanics": ("HamiltonianField", "LagrangianField"),
    "flexor.ode.solver": ("OdeSolver",),
    "flexor.ode.stepping": ("Adaptive", "RungeKutta4"),
    "flexor.ode.system": ("Corrected", "Robot", "StateSpace"),
}
CLASSES: Table = {name: f"{module}:{name}" for module, names in _MODULES.items() for name in names}
"""Every class that a simulator's file may contain, by address: some live in packages that import this one."""

OTHERS = {"ode.json": "flexor.ode.artefact:open_ode"}
"""Other artefacts that are folders: the file that each is known by, and the address of what opens it."""


def with_own(classes: Iterable[type]) -> Table:
    """The table, extended by the caller's own classes."""
    own = {c.__name__: c for c in classes}
    taken = [name for name in own if name in CLASSES]
    if taken:
        raise ValueError(f"flexor has a class '{taken[0]}' of its own; a class in `classes` needs another name.")
    return {**CLASSES, **own}


def save(sim: "Simulator", folder: str | os.PathLike[str], *, classes: Iterable[type] = ()) -> Path:
    """Writes the simulator; see `Simulator.save`."""
    path = Path(folder)
    _check_replaceable(path)
    contents = simulator_files(sim, classes=classes)
    write_folder(path, contents)
    return path


def simulator_files(sim: "Simulator", *, classes: Iterable[type] = ()) -> dict[str, bytes]:
    """The files of a simulator's folder, by name."""
    parts = {"model": sim.model, "solver": sim.solver, "dt": sim.dt, "simd": sim.simd}
    table, data, arrays = with_own(classes), {}, {}
    for name, value in parts.items():
        data[name], own = encode(value, table, name)
        arrays.update(own)
    beside, why = {ARRAYS: array_bytes(arrays)}, None
    try:
        beside[ROBOT] = description(sim.model, ".xml").encode("utf-8")
    except Exception as error:  # it is only for people: the other files also hold what MJCF cannot
        why = " ".join(str(error).split())
    facts = {"robot": sim.model.topology.name, "description": {"file": ROBOT if why is None else None, "why_not": why}}
    return {HEAD: sealed(KIND, VERSION, {**facts, "simulator": data}, beside), **beside}


def open(folder: str | os.PathLike[str], *, simd: bool | None = None, classes: Iterable[type] = ()) -> Any:
    """The simulator that `Simulator.save` wrote into a folder: the same model, solver and time step, to the last bit; or what
    else was kept in a folder of its own: the `fx.ode.Ode` of `Ode.save`.

    `simd` chooses kernels or XLA anew; by default it is as it was saved, and XLA where there is no CPU to run kernels on.
    `classes` are those of your own that it was saved with. A file that is missing, altered or too new raises, and is named.
    """
    from flexor.solvers.simulator import Simulator

    path = Path(folder)
    if not path.is_dir():
        raise FileNotFoundError(f"there is no folder '{path}' to open a simulator from.")
    for head, address in OTHERS.items():
        if (path / head).is_file():
            return lookup(head, {head: address})(path, classes=classes)
    if not (path / HEAD).is_file() and (path / "fit.json").is_file():
        raise FileNotFoundError(f"'{path}' is a fit: open '{path / 'simulator'}', or load all of it with `Fit.load`.")
    data, beside = read_sealed(path / HEAD, KIND, VERSION)
    table, arrays = with_own(classes), read_arrays(beside[ARRAYS])
    try:
        made: dict[str, Any] = {name: decode(part, table, arrays) for name, part in data["simulator"].items()}
    except (ValueError, KeyError) as error:
        raise ValueError(f"the simulator in '{path}' cannot be opened: {str(error).rstrip('.')}.") from error
    if not isinstance(made["model"], Model) or not isinstance(made["solver"], AbstractSolver):
        raise ValueError(f"the simulator in '{path}' cannot be opened: it lacks a model or a solver.")
    kernels = made["simd"] and jax.default_backend() == "cpu" if simd is None else simd
    return Simulator(made["model"], made["solver"], dt=made["dt"], simd=kernels)


def _check_replaceable(path: Path) -> None:
    """Raises if a folder contains anything but a saved simulator."""
    if not path.exists():
        return
    if not path.is_dir():
        raise FileExistsError(f"cannot write a simulator to '{path}': there is a file of that name.")
    others = sorted(p.name for p in path.iterdir() if p.name not in (HEAD, ARRAYS, ROBOT))
    if others:
        raise FileExistsError(
            f"'{path}' holds '{others[0]}', which is not part of a simulator and would be lost: choose another folder."
        )
    if any(path.iterdir()) and not (path / HEAD).is_file():
        raise FileExistsError(f"'{path}' is not a simulator's folder, so it is not overwritten: choose another one.")
