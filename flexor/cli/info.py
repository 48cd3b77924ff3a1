"""`flexor info FILE`: what is in a robot description."""

from collections import Counter
from typing import Annotated

import numpy as np
import typer

from flexor.cli import console
from flexor.cli.loading import Robot, takes_robot, use_float64
from flexor.dynamics import total_mass
from flexor.model.model import Model
from flexor.model.parameters import parameters
from flexor.model.topology import Actuator, Topology


@takes_robot
def info(
    robot: Robot,
    pattern: Annotated[str, typer.Option("--parameters", help="List the parameters that match, such as `*.mass`.")] = "",
) -> None:
    """Show bodies, joints, actuators and contact pairs of a robot."""
    use_float64()
    model = robot.load()
    out = console.out()
    if pattern:
        found = parameters(model, pattern)
        if not found:
            raise KeyError(f"no parameter of '{model.topology.name}' matches '{pattern}'.")
        out.print(console.table("", ["parameter", "value"], [[name, _numbers(value)] for name, value in found.items()]))
        return
    out.print(_summary(model) + "\n")
    out.print(_bodies(model), "")
    if model.topology.joints:
        out.print(_joints(model), "")
    if model.topology.actuators:
        out.print(_actuators(model), "")
    if model.topology.pairs:
        out.print(_pairs(model))


def _numbers(x: object) -> str:
    return " ".join(console.number(float(v)) for v in np.atleast_1d(np.asarray(x, float)))


def _summary(model: Model) -> str:
    t = model.topology
    lines = [
        f"[bold]{t.name}[/]: {len(t.bodies) - 1} bodies, {len(t.joints)} joints, {t.nq} coordinates, "
        f"{t.nv} degrees of freedom, {t.nu} actuators, {len(t.pairs)} contact pairs",
        f"moving mass {float(total_mass(model)):.4g} kg, gravity {_numbers(model.gravity)} m/s²",
    ]
    if t.keyframes:
        lines.append(f"keyframes: {', '.join(t.keyframes)}")
    return "\n".join(lines)


def _bodies(model: Model) -> object:
    t, b = model.topology, model.bodies
    shapes = [Counter(g.shape for g in t.geoms if g.body == i) for i in range(len(t.bodies))]
    rows = [
        [name, t.bodies[t.parents[i]], float(b.mass[i]), _numbers(b.com[i]), _numbers(b.inertia[i][:3]), _counted(shapes[i])]
        for i, name in enumerate(t.bodies)
        if i > 0
    ]
    return console.table("Bodies", ["body", "parent", ">mass (kg)", "centre (m)", "Ixx Iyy Izz (kg m²)", "shapes"], rows)


def _counted(kinds: Counter[str]) -> str:
    return ", ".join(kind if n == 1 else f"{n} {kind}" for kind, n in kinds.items())


def _joints(model: Model) -> object:
    t, j = model.topology, model.joints
    rows = []
    for i, joint in enumerate(t.joints):
        limits = _numbers(j.range[i]) if joint.limited else "free"
        axis = _numbers(j.axis[i]) if joint.kind in ("hinge", "slide") else ""
        values = [float(x[i]) for x in (j.damping, j.stiffness, j.armature, j.frictionloss)]
        rows.append([joint.name, joint.kind, t.bodies[joint.body], axis, limits, *values])
    heads = ["joint", "kind", "moves", "axis", "range", ">damping", ">stiffness", ">armature", ">friction loss"]
    return console.table("Joints", heads, rows)


def _target(t: Topology, a: Actuator) -> str:
    """What an actuator pushes on, in words."""
    if a.joint is not None:
        return t.joints[a.joint].name
    if a.body is not None:
        return t.bodies[a.body]
    if a.tendon is not None:
        return f"tendon {t.tendons[a.tendon].name}"
    assert a.site is not None
    return f"site {t.sites[a.site].name}" if a.slider is None else f"crank {t.sites[a.site].name}"


def _actuators(model: Model) -> object:
    t, a = model.topology, model.actuators
    rows = [
        [x.name, _target(t, x), float(a.gear[i]), float(a.gain[i]), _numbers(a.bias[i]), _numbers(a.ctrl_range[i])]
        for i, x in enumerate(t.actuators)
    ]
    heads = ["actuator", "acts on", ">gear", ">gain", "bias", "control range"]
    if t.samples:
        heads.append(">delay (s)")
        rows = [[*row, float(delay)] for row, delay in zip(rows, a.delay, strict=True)]
    return console.table("Actuators", heads, rows)


def _pairs(model: Model) -> object:
    t, p = model.topology, model.pairs
    rows = []
    for i, pair in enumerate(t.pairs):
        kinds = f"{t.geoms[pair.a].shape}-{t.geoms[pair.b].shape}"
        friction = float(p.friction[i]) if pair.condim > 1 else "none"
        rows.append([pair.name, kinds, friction, *(float(x[i]) for x in (p.restitution, p.stiffness, p.cfm, p.baumgarte))])
    heads = ["pair", "shapes", ">friction", ">restitution", ">stiffness", ">cfm", ">Baumgarte"]
    return console.table("Contact pairs", heads, rows)
