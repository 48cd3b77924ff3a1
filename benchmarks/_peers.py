"""The peers of `identification.py`: `mujoco.sysid` and CMA-ES, until they reach an error, or a time is over."""

import contextlib
import copy
import io
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import mujoco
import numpy as np
from _arm import ENCODER, STEPS, Case, Runs, bounds, prepared, simulate, theta, with_theta
from mujoco import sysid
from mujoco.sysid import ParameterDict

import flexor as fx
from flexor.model.save_mjcf import mjcf_text


@dataclass(frozen=True)
class Reached:
    """Seconds until the error was reached, or until the search was stopped or ended; and what it took."""

    seconds: float
    compile_seconds: float
    reached: bool
    error: float
    iterations: int


class Stop(Exception):
    """The error is reached, or the time is over."""


def by_sysid(nominal: fx.Model, case: Case, target: float, limit: float) -> Reached:
    """`mujoco.sysid` with its own optimiser, its pseudo-inertia parameters, moved off the bounds as it recommends.

    The parameters are written into a copy of the compiled model, which is much faster than its own way of compiling the
    description anew for every column; all segments are simulated in one call, in as many threads as there are cores. Time
    for judging the held-out error is not counted.
    """
    base, parameters = _sysid_parameters(nominal, case.start)
    measured = _sysid_trajectories(base, case.training)

    def residual(x: np.ndarray, params: ParameterDict, **_: Any) -> Any:
        columns = 1 if x.ndim == 1 else x.shape[1]
        r = sysid.model_residual(
            x.reshape(len(x), columns),
            params,
            lambda p: _sysid_model(base, p),
            measured,
            _plain_residual,
            resample_true=False,
        )[0]
        r = r.reshape(len(r), columns, len(measured)).transpose(2, 0, 1).reshape(-1, columns)
        return [r[:, 0] if x.ndim == 1 else r], None, None

    begun, apart, best, count = time.perf_counter(), 0.0, np.inf, 0

    def judge(trace: list[Any]) -> None:
        nonlocal apart, best, count
        now = time.perf_counter()
        params = parameters.copy()
        params.update_from_vector(trace[-1].candidate.ravel())
        best, count = min(best, case.held_out.error(simulate(_sysid_model(base, params), case.held_out))), len(trace)
        apart += time.perf_counter() - now
        if best <= target or now - begun - apart > limit:
            raise Stop

    with contextlib.suppress(Stop):
        sysid.optimize(
            parameters, residual, verbose=False, output=io.StringIO(), iter_callback=judge, x_scale="jac", max_iters=1000
        )
    return Reached(time.perf_counter() - begun - apart, 0.0, best <= target, best, count)


def _sysid_parameters(nominal: fx.Model, start: fx.Model) -> tuple[mujoco.MjModel, ParameterDict]:
    """The model to write into, with sensors of the joints, and the parameters at the start."""
    spec = mujoco.MjSpec.from_string(mjcf_text(nominal, {}))
    for joint in spec.joints:
        spec.add_sensor(
            name=joint.name, type=mujoco.mjtSensor.mjSENS_JOINTPOS, objtype=mujoco.mjtObj.mjOBJ_JOINT, objname=joint.name
        )
    parameters = ParameterDict()
    rows = zip(nominal.topology.bodies[1:], theta(nominal), *bounds(nominal), theta(start), strict=True)
    for name, x, low, high, first in rows:
        parameters.add(sysid.Parameter(name, x, low, high))
        parameters[name].update_from_vector(np.clip(first, low, high))
    return prepared(spec.compile()), parameters.move_off_bounds()


def _sysid_model(base: mujoco.MjModel, params: ParameterDict) -> mujoco.MjModel:
    """A copy of the model with the parameters in it: what its `apply_body_theta_inertia` and the compiler would do."""
    m = copy.copy(base)
    for i, p in enumerate(params.values()):
        pi = sysid.model_modifier.pi_from_theta(p.value[:10])
        body = m.body(p.name)
        body.mass, body.ipos = pi[0], pi[1:4] / pi[0]
        skew = sysid.model_modifier.skew(body.ipos)
        sizes, axes = np.linalg.eigh(pi[4:].reshape(3, 3) + pi[0] * skew @ skew)
        axes = axes[:, ::-1] * [1, 1, np.linalg.det(axes[:, ::-1])]
        body.inertia = sizes[::-1]
        mujoco.mju_mat2Quat(m.body_iquat[body.id], axes.ravel())
        m.dof_damping[i], m.dof_frictionloss[i] = p.value[10:]
    mujoco.mj_setConst(m, mujoco.MjData(m))
    return m


def _sysid_trajectories(m: mujoco.MjModel, runs: Runs) -> list[Any]:
    t = m.opt.timestep * np.arange(STEPS + 1)
    made = []
    for q, qd, u, y in zip(runs.q, runs.qd, runs.torque, runs.encoder, strict=True):
        control = sysid.TimeSeries(t, np.concatenate([u, u[-1:]]))
        start = sysid.create_initial_state(m, q, qd)
        made.append(sysid.SystemTrajectory(m, control, sysid.TimeSeries.from_names(t, y, m), start, None))
    return made


def _plain_residual(params: Any, predicted: Any, measured: Any, m: Any, everything: bool, *, state: np.ndarray) -> Any:
    """Predicted minus measured positions in units of the noise: the loss of all methods."""
    return (state[:, 1 : 1 + m.nq] - measured.data[1:]) / ENCODER, measured, measured


class Evolution:
    """CMA-ES on the same loss, a member in every lane of flexor's kernels; compiled once."""

    def __init__(self, nominal: fx.Model, solver: Any, dt: float):
        self.low, self.high = bounds(nominal)

        def predict(share: Any, runs: tuple[Any, ...]) -> Any:
            model = with_theta(nominal, self.low + (self.high - self.low) * share.reshape(self.low.shape))
            sim = fx.Simulator(model, solver, dt=dt)

            def one(q: Any, qd: Any, u: Any) -> Any:
                return sim.rollout(sim.reset(q, qd), u).q[1:]

            return jax.vmap(one)(*runs[:3])

        def loss(share: Any, runs: tuple[Any, ...]) -> Any:
            return jnp.mean((predict(share, runs) - runs[3][:, 1:]) ** 2) / ENCODER**2

        self.losses: Callable[..., Any] = jax.jit(jax.vmap(loss, (0, None)))

    def run(self, case: Case, target: float, limit: float) -> Reached:
        import cma

        at = np.where(theta(case.start) > (self.low + self.high) / 2, 0.95, 0.05).ravel()
        options = {"bounds": [0, 1], "verbose": -9, "seed": 1, "popsize": 32}
        search = cma.CMAEvolutionStrategy(at, 0.3, options)
        training, apart = (_arrays(x) for x in (case.training, case.held_out))
        now = time.perf_counter()
        jax.block_until_ready([self.losses(np.tile(at, (n, 1)), x) for n, x in ((32, training), (1, apart))])
        compiling = time.perf_counter() - now
        spent, best, count = 0.0, np.inf, 0
        while spent < limit and best > target and not search.stop():
            now = time.perf_counter()
            members = search.ask()
            losses = np.asarray(self.losses(np.array(members), training))
            search.tell(members, np.where(np.isfinite(losses), losses, 1e12).tolist())
            spent, count = spent + time.perf_counter() - now, count + 1
            if count % 10 == 0:
                best = min(best, float(np.sqrt(self.losses(search.result.xfavorite[None], apart)[0])))
        return Reached(spent, compiling, best <= target, best, count)


def _arrays(runs: Runs) -> tuple[Any, ...]:
    return tuple(jnp.asarray(x) for x in (runs.q, runs.qd, runs.torque, runs.encoder))
