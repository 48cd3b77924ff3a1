"""Any of flexor's solvers behind Newton's (extra `newton`): worlds are lanes of one kernel.

`FlexorSolver(model)` stands where an example has `newton.solvers.SolverFeatherstone(model)`.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from flexor.model.model import Model
from flexor.plugins.guest import Guest, simulator
from flexor.plugins.newton_layout import Layout, gains
from flexor.plugins.newton_model import description, newton
from flexor.robots import load
from flexor.solvers import AbstractSolver


class FlexorSolver(newton.solvers.SolverBase):
    """Moves the joints of a Newton model by a solver of flexor's, all worlds in one kernel, on the CPU.

    The robot is what Newton's model says, or `robot`: a flexor model, or what `fx.load` takes, with joints and bodies of the same
    names (the last parts of Newton's labels). Contacts are flexor's own; those that Newton finds are not read. Forces come from
    `Control.joint_f`, from position and velocity targets with Newton's gains, from `State.body_f`, and, where the robot has as
    many actuators, from MuJoCo's `ctrl`.
    """

    def __init__(
        self,
        model: newton.Model,
        solver: AbstractSolver | str | Mapping[str, Any] = "ncp",
        *,
        robot: Any = None,
        threads: int | None = None,
    ):
        super().__init__(model)
        if not model.device.is_cpu:
            raise ValueError(
                f'flexor\'s kernels run on the CPU, and this model is on {model.device}: finalize(device="cpu").'
            )
        given = description(model) if robot is None else robot
        self.robot: Model = given if isinstance(given, Model) else load(given)
        self.layout = Layout.of(model, self.robot)
        self._solver, self._threads = solver, threads
        self._guest: Guest | None = None

    def step(
        self, state_in: Any, state_out: Any, control: Any, contacts: Any, dt: float, *, observables: Any = None
    ) -> None:
        """Writes the state a time dt later; `contacts` are not read."""
        if observables is not None:
            raise NotImplementedError("flexor's solvers compute none of Newton's observables.")
        guest, layout = self._compiled(float(dt)), self.layout
        control = self.model.control() if control is None else control
        joint_q, joint_qd = state_in.joint_q.numpy(), state_in.joint_qd.numpy()
        q, qd = layout.from_newton(joint_q, joint_qd)
        pushed = control.joint_f.numpy() + gains(self.model, control, joint_q, joint_qd)
        inputs: dict[str, Any] = {
            "tau": layout.forces(pushed, q),
            "wrench": layout.wrenches(state_in.body_f.numpy(), state_in.body_q.numpy()),
        }
        ctrl = getattr(getattr(control, "mujoco", None), "ctrl", None)
        if ctrl is not None and self.robot.nu and ctrl.size == layout.worlds * self.robot.nu:
            inputs["u"] = ctrl.numpy().reshape(layout.worlds, -1)
        guest.advance(q, qd, **inputs)
        new_q, new_qd = joint_q.copy(), joint_qd.copy()
        layout.to_newton(q, qd, new_q, new_qd)
        state_out.joint_q.assign(new_q)
        state_out.joint_qd.assign(new_qd)
        newton.eval_fk(self.model, state_out.joint_q, state_out.joint_qd, state_out)

    def reset(self, state: Any, world_mask: Any = None, flags: Any = None) -> None:
        """Forgets what the solver remembers of all worlds. A world whose state the program has changed begins anew by itself."""
        super().reset(state, world_mask, flags)
        if self._guest is not None:
            self._guest.restart()

    def notify_model_changed(self, flags: int) -> None:
        """Raises: the model is compiled in. Poses and velocities (`BODY_PROPERTIES`) are read at every step and may change."""
        known = [flag.name for flag in newton.ModelFlags if int(flags) & int(flag) == int(flag)]
        changed = [name for name in known if name not in ("BODY_PROPERTIES", "ALL")]
        if changed:
            raise NotImplementedError(
                f"{', '.join(changed)} of the Newton model changed, and flexor has compiled it in: make a new FlexorSolver."
            )

    def _compiled(self, dt: float) -> Guest:
        """The solver, compiled for this time step."""
        if self._guest is None or not np.isclose(float(self._guest.sim.dt), dt, rtol=1e-6):
            sim = simulator(self.robot, self._solver, dt)
            self._guest = Guest(sim, self.layout.worlds, threads=self._threads, rounding=1e-6)
        return self._guest
