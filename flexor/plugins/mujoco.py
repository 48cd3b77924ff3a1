"""flexor's physics for MuJoCo's data: `step(m, d, solver)` in place of `mujoco.mj_step(m, d)`, and for a `mujoco.batch.Batch`.

A step reads state and inputs from the data, moves the state by any of flexor's solvers, writes it back and calls MuJoCo's
forward computation, so that sensors, the viewer and whatever else reads the data find everything at the new state. Contact
forces in the data are then those that MuJoCo would have there.
"""

from collections import OrderedDict
from collections.abc import Mapping
from typing import Any

import mujoco
import numpy as np

from flexor.plugins.guest import Guest, simulator
from flexor.robots import load
from flexor.solvers import AbstractSolver

_PHYSICAL = ("actuator_", "body_", "dof_", "eq_", "geom_", "hfield_", "jnt_", "pair_", "qpos", "site_", "tendon_")
_DERIVED = ("rgba", "user", "aabb", "invweight0", "subtreemass", "rbound", "length0", "acc0", "_M0")


class Physics:
    """One solver for the robot of an `MjModel` and its data: an `MjData`, or a `mujoco.batch.Batch` of many.

    `dt` is the time of a step; without it, the model's own, which learned solvers were hardly trained for. What the solver
    remembers between steps begins anew where a program changes coordinates or velocities. The `MjModel` is compiled in, and a
    step raises when a number of it has changed since; make a new `Physics` then.
    """

    def __init__(
        self,
        m: mujoco.MjModel,
        d: Any,
        solver: AbstractSolver | str | Mapping[str, Any] = "ncp",
        *,
        dt: float | None = None,
        threads: int | None = None,
    ):
        self.m, self.d = m, d
        self.dt = float(m.opt.timestep if dt is None else dt)
        model = load(m)
        sizes = {
            "bodies": (len(model.topology.bodies), m.nbody),
            "coordinates": (model.nq, m.nq),
            "inputs": (model.nu, m.nu),
        }
        for what, (ours, theirs) in sizes.items():
            if ours != theirs:
                raise ValueError(f"flexor's '{model.topology.name}' has {ours} {what}, and the MjModel {theirs}.")
        self._many = not isinstance(d, mujoco.MjData)
        n = d.nsim if self._many else 1
        self.guest = Guest(simulator(model, solver, self.dt), n, threads=threads)
        self._data = {name: self._rows(name) for name in ("qpos", "qvel", "ctrl", "qfrc_applied", "xfrc_applied")}
        self._data |= {name: self._rows(name) for name in ("act", "mocap_pos", "mocap_quat", "xpos", "xipos")}
        self._numbers = {name: getattr(m, name).tobytes() for name in _physical(m)}
        self._gravity = m.opt.gravity.tobytes()

    def step(self, steps: int = 1) -> None:
        """Moves the data by so many time steps under the inputs that it holds."""
        self._check_unchanged()
        data = self._data
        wrench = np.zeros_like(data["xfrc_applied"])
        if data["xfrc_applied"].any():
            wrench = self._wrench()
        inputs = {"u": data["ctrl"], "tau": data["qfrc_applied"], "wrench": wrench}
        inputs |= {name: data[name] for name in ("mocap_pos", "mocap_quat") if name in self.guest.inputs}
        self.guest.advance(data["qpos"], data["qvel"], steps=steps, act=data["act"], **inputs)
        if self._many:
            self.d.bind("time")[...] += steps * self.dt
            self.d.forward()
        else:
            self.d.time += steps * self.dt
            mujoco.mj_forward(self.m, self.d)

    def _rows(self, name: str) -> np.ndarray:
        """A field of the data as an array with a row for every robot; writing to it changes the data."""
        rows: np.ndarray = self.d.bind(name) if self._many else getattr(self.d, name)[None]
        return rows

    def _wrench(self) -> np.ndarray:
        """Wrenches on the bodies: ours are the moment about the body's origin and the force, MuJoCo's the force and the moment
        about the centre of mass."""
        if not self._many:
            mujoco.mj_kinematics(self.m, self.d)
        force, moment = np.split(self._data["xfrc_applied"], 2, axis=-1)
        arm = self._data["xipos"] - self._data["xpos"]
        return np.concatenate([moment + np.cross(arm, force), force], axis=-1)

    def _check_unchanged(self) -> None:
        changed = [name for name, before in self._numbers.items() if getattr(self.m, name).tobytes() != before]
        if self.m.opt.gravity.tobytes() != self._gravity:
            changed.append("opt.gravity")
        if self._many:
            changed += [name for name in self._numbers if self.d.expanded(name) is not None]
        if changed:
            names = ", ".join(f"`{name}`" for name in changed)
            raise RuntimeError(f"{names} of the MjModel changed after this physics was made: make a new one.")


class _Made:
    """The last few `Physics` of `step`, by the identity of model, data and solver."""

    def __init__(self, size: int) -> None:
        self._size, self._physics = size, OrderedDict[tuple[int, int, int, float | None], tuple[Any, Physics]]()

    def get(self, m: Any, d: Any, solver: Any, dt: float | None) -> Physics:
        key = (id(m), id(d), hash(solver) if isinstance(solver, str) else id(solver), dt)
        if key not in self._physics:
            self._physics[key] = (solver, Physics(m, d, solver, dt=dt))  # holds m, d and solver, so that no id is used again
            while len(self._physics) > self._size:
                self._physics.popitem(last=False)
        self._physics.move_to_end(key)
        return self._physics[key][1]


_made = _Made(8)


def step(
    m: mujoco.MjModel,
    d: Any,
    solver: AbstractSolver | str | Mapping[str, Any] = "ncp",
    *,
    steps: int = 1,
    dt: float | None = None,
) -> None:
    """Moves an `MjData`, or a `mujoco.batch.Batch`, by a solver: `mujoco.mj_step(m, d, nstep=steps)` with other physics.

    The first call for a model, its data and a solver compiles; the last eight are kept. In a loop a `Physics` of one's own is
    faster by the look-up.
    """
    _made.get(m, d, solver, dt).step(steps)


def _physical(m: mujoco.MjModel) -> list[str]:
    """Fields of the model with numbers that physics reads."""
    names = [name for name in dir(m) if name.startswith(_PHYSICAL) and not any(word in name for word in _DERIVED)]
    arrays = {name: getattr(m, name) for name in names}
    return [name for name, x in arrays.items() if isinstance(x, np.ndarray) and x.dtype == np.float64 and x.size]
