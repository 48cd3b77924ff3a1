"""`MujocoSolver`: MuJoCo's C code behind the interface of all solvers. Not differentiable, and it says so."""

import dataclasses
import threading
from collections import OrderedDict
from functools import partial
from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from flexor.dynamics.activation import no_activation
from flexor.model.delay import check_delays, delayed, empty_history
from flexor.model.model import Control, Model, State
from flexor.model.save_mjcf import mjcf_text
from flexor.solvers.solver import AbstractSolver


class MujocoSolver(AbstractSolver):
    """MuJoCo's step, with its own contact solver and default contact softness, for the same model and parameters.

    A step is `substeps` of MuJoCo's steps under one control, in one call of its code. `State.memory` is MuJoCo's warm start. The
    parameters may change from call to call: MuJoCo's model is then built anew.
    """

    passive: ClassVar[bool] = True
    integrator: str = eqx.field(static=True, default="Euler")
    substeps: int = eqx.field(static=True, default=1)
    differentiable: ClassVar[bool] = False
    compilable: ClassVar[bool] = False

    def __check_init__(self) -> None:
        if self.substeps < 1:
            raise ValueError(f"the number of substeps must be positive, got {self.substeps}.")

    def check(self, model: Model, dt: float | None) -> None:
        if self.integrator not in ("Euler", "RK4", "implicit", "implicitfast"):
            raise ValueError(f"MuJoCo has no integrator '{self.integrator}'; it has Euler, RK4, implicit, implicitfast.")
        check_delays(model, None if dt is None else dt / self.substeps)
        leaves, tree = jax.tree.flatten(model)
        if not any(isinstance(x, jax.core.Tracer) for x in leaves):
            with _cache.lock:
                _cache.get(tree, [np.asarray(x) for x in leaves])

    def init(self, model: Model, state: State) -> State:
        memory, history, act = jnp.zeros(model.nv, model.dtype), empty_history(model), no_activation(model)
        return dataclasses.replace(state, memory=memory, history=history, act=act)

    def shortest_step(self, dt: float) -> float:
        return dt / self.substeps

    def step(self, model: Model, state: State, control: Control, dt: Float[Array, ""]) -> State:
        short = dt / self.substeps
        us, history = [], state.history
        for _ in range(self.substeps):  # what acts in each substep: inputs on their way arrive in the middle of a step
            acting, history = delayed(model, history, control, short)
            assert acting.u is not None
            us.append(acting.u)
        leaves, tree = jax.tree.flatten(model)
        rows = np.array(model.topology.mocap, int)
        pos = model.bodies.pos[rows] if control.mocap_pos is None else control.mocap_pos
        quat = model.bodies.quat[rows] if control.mocap_quat is None else control.mocap_quat
        act = jnp.zeros(0, state.q.dtype) if state.act is None else state.act
        inputs = (state.q, state.qd, state.memory, act, jnp.stack(us), control.tau, control.wrench, pos, quat, short)
        q, qd, warm, act = _step(tree, self.integrator, leaves, inputs)
        return State(q, qd, state.time + dt, warm, history, None if state.act is None else act)


@partial(jax.custom_jvp, nondiff_argnums=(0, 1))
def _step(tree: Any, integrator: str, leaves: list[Array], inputs: tuple[Array, ...]) -> tuple[Array, ...]:
    q, qd, act = inputs[0], inputs[1], inputs[3]
    shapes = tuple(jax.ShapeDtypeStruct(x.shape, x.dtype) for x in (q, qd, qd, act))
    return jax.pure_callback(partial(_host_step, tree, integrator), shapes, leaves, inputs, vmap_method="sequential")


@_step.defjvp
def _step_jvp(tree: Any, integrator: str, primals: Any, tangents: Any) -> Any:
    raise NotImplementedError(
        "MujocoSolver cannot be differentiated: MuJoCo's C code has no derivatives for JAX. "
        "Use RigidSolver for gradients, or finite differences (mujoco.mjd_transitionFD)."
    )


class _Cache:
    """The last few MuJoCo models, by the bytes of the parameters. A user of one holds `lock`. It is not thread-local: JAX's
    callback threads keep no Python state, so locals would be lost after every call.
    """

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.built: OrderedDict[tuple[Any, ...], tuple[Any, Any]] = OrderedDict()

    def get(self, tree: Any, leaves: list[np.ndarray]) -> tuple[Any, Any]:
        key = (tree, *(x.tobytes() for x in leaves))
        if key not in self.built:
            import mujoco

            compiled = mujoco_model(jax.tree.unflatten(tree, leaves))
            # a diverged state stays in the trajectory, so that its status reports it; MuJoCo would silently reset
            compiled.opt.disableflags |= int(mujoco.mjtDisableBit.mjDSBL_AUTORESET)
            compiled.actuator_delay[:] = 0  # inputs arrive already delayed, as in every solver
            self.built[key] = compiled, mujoco.MjData(compiled)
            while len(self.built) > 8:
                self.built.popitem(last=False)
        self.built.move_to_end(key)
        return self.built[key]


_cache = _Cache()


def _host_step(tree: Any, integrator: str, leaves: Any, inputs: Any) -> tuple[np.ndarray, ...]:
    arrays = [np.asarray(x) for x in leaves]
    q, qd, warm, act, us, tau, wrench, pos, quat, dt = (np.asarray(x) for x in inputs)
    with _cache.lock:
        m, d = _cache.get(tree, arrays)
        d.qpos[:], d.qvel[:], d.qacc_warmstart[:] = q, qd, warm
        d.mocap_pos[:], d.mocap_quat[:], d.act[:] = pos, quat, act
        for u in us:
            _advance(m, d, integrator, float(dt), u, tau, wrench)
        return tuple(np.array(x, q.dtype) for x in (d.qpos, d.qvel, d.qacc_warmstart, d.act))


def _advance(m: Any, d: Any, integrator: str, dt: float, u: Any, tau: Any, wrench: Any) -> None:
    """`mj_step` from the state in `d`, in place."""
    import mujoco

    m.opt.timestep = dt
    m.opt.integrator = getattr(mujoco.mjtIntegrator, f"mjINT_{integrator.upper()}")
    d.ctrl[:], d.qfrc_applied[:] = u, tau
    d.xfrc_applied[:] = 0
    if wrench.any():
        mujoco.mj_kinematics(m, d)
        # ours: moment about the body's origin, then force; MuJoCo's: force, then moment about the centre of mass
        d.xfrc_applied[:, :3] = wrench[:, 3:]
        d.xfrc_applied[:, 3:] = wrench[:, :3] - np.cross(d.xipos - d.xpos, wrench[:, 3:])
    mujoco.mj_step(m, d)


def mujoco_model(model: Model) -> Any:
    """The `mujoco.MjModel` of a flexor model: what `MujocoSolver` steps and what renders it."""
    import mujoco

    try:
        compiled = mujoco.MjModel.from_xml_string(mjcf_text(model, {}))
    except ValueError as error:
        raise ValueError(f"MuJoCo refuses '{model.topology.name}': {' '.join(str(error).split())}") from error
    # MuJoCo's compiler derives these, where the model has numbers of its own
    compiled.tendon_length0[:], compiled.tendon_lengthspring[:] = model.tendons.reference, model.tendons.spring_range
    for i, loop in enumerate(model.topology.loops):
        a, b = np.asarray(model.loops.anchor_a[i]), np.asarray(model.loops.anchor_b[i])
        compiled.eq_data[len(model.topology.equalities) + i, :6] = np.concatenate([b, a] if loop.weld else [a, b])
    return compiled
