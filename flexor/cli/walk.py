"""`flexor walk ROBOT`: a quadruped walks at a command by convex MPC."""

import dataclasses
import time
from collections.abc import Callable
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import jax
import jax.numpy as jnp
import numpy as np
import typer
from rich.markup import escape

from flexor.cli import console
from flexor.cli.loading import Robot, takes_robot
from flexor.cli.simulate import check_endings, step_count, write_results
from flexor.model.model import Model
from flexor.solvers import Simulator
from flexor.solvers.table import solver as solver_by_name

GaitName = StrEnum("GaitName", ["trot", "pace", "bound", "walk", "stand"])
PhysicsName = StrEnum("PhysicsName", ["ncp", "mujoco"])
ForcesName = StrEnum("ForcesName", ["qp", "osqp", "network"])


@takes_robot
def walk(
    robot: Robot,
    command: Annotated[
        tuple[float, float, float],
        typer.Option(help="Velocity forwards and to the left in m/s, rate of turning in rad/s.", metavar="VX VY RATE"),
    ] = (0.6, 0.0, 0.0),
    seconds: Annotated[float, typer.Option(help="Duration.")] = 5.0,
    gait: Annotated[GaitName, typer.Option(help="Which feet stand when.")] = GaitName.trot,
    solver: Annotated[PhysicsName, typer.Option(help="Physics.")] = PhysicsName.ncp,
    forces: Annotated[
        ForcesName, typer.Option(help="What solves the plan: flexor's own solver, OSQP on the host, or a network.")
    ] = ForcesName.qp,
    dt: Annotated[float, typer.Option(help="Time step in s.")] = 0.002,
    output: Annotated[Path | None, typer.Option(help="Write the trajectory: .h5, .csv or .npz.")] = None,
    plot: Annotated[Path | None, typer.Option(help="Draw it: .png, .svg or .pdf.")] = None,
    html: Annotated[Path | None, typer.Option(help="Write an animation as one HTML page.")] = None,
    video: Annotated[Path | None, typer.Option(help="Render a video: .gif or .mp4.")] = None,
) -> None:
    """Let a quadruped walk at a command, by convex MPC, and write what happened."""
    from flexor.control import GAITS, AbstractForces, InteriorPoint, Osqp, Quadruped, Twin, Walked, Walker, on_its_feet

    check_endings({output: (".h5", ".hdf5", ".csv", ".npz"), plot: (".png", ".svg", ".pdf"), video: (".gif", ".mp4"),
                   html: (".html",)})  # fmt: skip
    steps = step_count(seconds, dt)
    model = on_its_feet(_floating(robot))
    legged = Quadruped.of(model)
    if forces is ForcesName.network and (model.topology.name != "quadruped" or gait is not GaitName.trot):
        raise ValueError("the network of the package is for the bundled quadruped at a trot; others walk with --forces qp.")
    ways: dict[ForcesName, Callable[[], AbstractForces]] = {
        ForcesName.qp: InteriorPoint,
        ForcesName.osqp: Osqp,
        ForcesName.network: Twin.pretrained,
    }
    chosen = ways[forces]()
    walker = Walker(legged, jnp.asarray(command, model.dtype), dt, gait=GAITS[str(gait)], forces=chosen)
    kernels = forces is not ForcesName.osqp and solver is PhysicsName.ncp
    sim = Simulator(model, solver_by_name(str(solver)), dt=dt, simd=None if kernels else False)
    start = sim.reset(jnp.asarray(legged.stand))
    with console.spinner(f"compiling a walk of {model.topology.name}"):
        jax.block_until_ready(sim.rollout(start, walker, steps=steps).q)
    begun = time.perf_counter()
    with console.spinner(f"walking for {seconds:g} s"):
        made = jax.block_until_ready(sim.rollout(start, walker, steps=steps))
    taken = time.perf_counter() - begun
    found = Walked.of(legged, np.asarray(made.time), np.asarray(made.q), np.asarray(made.qd))
    out = console.out()
    out.print(f"[bold]{escape(model.topology.name)}[/]: {gait} for {seconds:g} s, {seconds / taken:.3g} times real time")
    names = ("forwards, m/s", "to the left, m/s", "turning, rad/s")
    rows = [[name, float(a), float(b)] for name, a, b in zip(names, command, found.velocity, strict=True)]
    out.print(console.table("", ["", ">asked", ">walked"], rows))
    if found.fell:
        out.print(f"it fell after {found.when:.2f} s.")
    refused = int(made.policy_memory.refused)
    if refused:
        out.print(f"{refused} times it kept its last plan or torques, for there were no new ones.")
    write_results(model, made, output, plot, html, video)


def _floating(robot: Robot) -> Model:
    """The robot as it walks: with a free root and a ground, which URDFs do not have."""
    model = robot.load()
    floats = bool(model.topology.joints) and model.topology.joints[0].kind == "free"
    grounded = any(g.shape == "plane" for g in model.topology.geoms)
    if floats and grounded:
        return model
    return dataclasses.replace(robot, floating=robot.floating or not floats, ground=robot.ground or not grounded).load()
