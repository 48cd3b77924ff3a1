"""`identify`: parameters and networks of a simulator from logs."""

import copy
import dataclasses
import hashlib
import os
import time
from collections.abc import Callable, Mapping, Sequence
from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from flexor.cluster import AbstractExecutor
from flexor.files import checkpoint_bytes, read_checkpoint, write_whole
from flexor.identify.fit import Curves, Errors, Fit, relative_error
from flexor.identify.levenberg import FENCE, Point, begin, settle
from flexor.identify.log import Log, check_against, check_excitation
from flexor.identify.pieces import spread
from flexor.identify.posterior import Posterior, posterior
from flexor.identify.problem import Build, Normal, Observe, Problem, observe_columns, program
from flexor.identify.search import AbstractSearch, BasinHopping, LevenbergMarquardt, Outcome
from flexor.identify.segments import Shooting, cut
from flexor.identify.torque import Torque
from flexor.identify.units import suspected_units
from flexor.model.charts import Coordinates, coordinates
from flexor.model.model import Model
from flexor.solvers import Simulator
from flexor.solvers.trajectory import Trajectory

WORSE = 1.5  # errors above this many times the noise get a remark
EDGE = 5.0  # of a bounded number in z: within 0.7 per cent of the range
MOST_COLUMNS = 400  # numbers in z up to which the posterior is computed jointly with the networks' weights
Progress = Callable[[int, int, float], None]


def identify(
    sim: Simulator,
    logs: Sequence[Log | Trajectory] | Log | Trajectory,
    free: Sequence[str],
    *,
    observe: Observe | None = None,
    build: Build | None = None,
    extra: Mapping[str, Any] | None = None,
    bounds: Mapping[str, Any] | None = None,
    prior: Mapping[str, float] | None = None,
    shooting: Shooting = Shooting(),
    method: Torque | None = None,
    search: AbstractSearch | None = None,
    held_out: float | Sequence[Log] = 0.2,
    seed: int = 0,
    check_units: bool = True,
    checkpoint: str | os.PathLike[str] | None = None,
    executor: AbstractExecutor | None = None,
    progress: Progress | None = None,
) -> Fit:
    """Fits the parameters that match `free` (and the networks, with "augment") to the logs; see docs/identify.md.

    `observe(model, state, extra)` returns what the log's columns hold, where these are not coordinates; `extra` are numbers of
    your own that may be free too, and `build(model, extra)` puts them into the model. `method=fx.Torque()` fits the equation of
    motion to measured torques instead of simulating. `prior` maps patterns to standard deviations around the start, in units of
    the parameter's size. `held_out` is a share of the segments, or further logs, on which the result is judged. With `checkpoint`
    an interrupted run resumes. An `executor` shares out a population. `check_units=False` accepts units that look wrong, such as
    angles far beyond limits. Everything is computed in float64; the result has the simulator's precision.
    """
    begun = time.perf_counter()
    dtype = sim.model.dtype
    with jax.enable_x64(True):
        sim = astype(sim, np.float64)
        runs = as_logs(logs)
        further = [] if isinstance(held_out, float | int) else as_logs(held_out)
        if method is not None:
            _refuse(observe=observe, build=build, executor=executor, shooting=None if shooting == Shooting() else shooting)
            others: Any = {"prior": prior, "extra": extra, "checkpoint": checkpoint, "progress": progress, "dtype": dtype}
            others["share"] = held_out if isinstance(held_out, float | int) else None
            return method.identify(sim, runs, further, free, bounds=bounds, search=search, seed=seed, **others)
        networks, patterns = _split_free(sim, free)
        place = coordinates(sim.model, patterns, bounds=_bounds(sim, patterns, bounds), extra=extra)
        sim = eqx.tree_at(lambda s: s.model, sim, place.at_start(sim.model))
        _check_logs(runs, further, sim.model, observe is None, check_units)
        noise, noise_known = _noise(runs + further)
        look = observe_columns(sim.model, runs[0].columns) if observe is None else observe
        segments = cut(sim, runs + further, shooting, noise)
        apart = hold_out(segments[1], len(runs), held_out if isinstance(held_out, float | int) else None, seed)
        search = _choose(search, shooting, bounds, executor)
        believed = prior_precision(place, prior, noise_known)
        settings: Any = {"held_out": apart, "networks": networks, "free_start": shooting.free_start, "prior": believed}
        problem = Problem(sim, place, segments[0], look, build, noise_known=noise_known, **settings)
        if believed is None and not networks:
            check_count(problem)
        found = run_search(problem, search, seed, checkpoint, progress, executor)
        names = tuple((runs + further)[i].name for i in segments[1])
        fit = result_of(problem, search, *found, runs[0].columns, names, dtype)
        if fit.unexplained >= 1 or not np.isfinite(fit.unexplained):
            fit = _unexplained(fit, _units_hint(problem, runs + further, shooting, observe is None and check_units))
        return dataclasses.replace(fit, seconds=time.perf_counter() - begun)


def check_count(problem: Problem) -> None:
    """Raises when there are fewer measurements than parameters."""
    if problem.count <= problem.p:
        raise ValueError(
            f"{problem.count} measurements cannot determine {problem.p} parameters: give more data or free fewer."
        )


def _refuse(**given: Any) -> None:
    for name, value in given.items():
        if value is not None:
            raise ValueError(f"`{name}` belongs to the simulation of logs; with `method` nothing is simulated.")


def astype(sim: Simulator, dtype: Any) -> Simulator:
    """The simulator in another precision. The time step is taken by its shortest decimal, so that a float32 0.002 becomes
    0.002."""
    dt = float(str(np.asarray(sim.dt)))
    sim = jax.tree.map(lambda x: jax.device_put(np.asarray(x, dtype)) if eqx.is_inexact_array(x) else x, sim)
    return eqx.tree_at(lambda s: s.dt, sim, jax.device_put(np.asarray(dt, dtype)))


def as_logs(logs: Any) -> list[Log]:
    """Logs and trajectories, one or many, as a list of logs."""
    given = [logs] if isinstance(logs, Log | Trajectory) else list(logs)
    if not given:
        raise ValueError("there are no logs to identify from.")
    return [Log.of(x, name=f"trajectory {i}") if isinstance(x, Trajectory) else x for i, x in enumerate(given)]


def _split_free(sim: Simulator, free: Sequence[str]) -> tuple[bool, list[str]]:
    patterns = [p for p in ([free] if isinstance(free, str) else free) if p != "augment"]
    networks = len(patterns) < len([free] if isinstance(free, str) else free)
    if networks and sim.augmentation is None:
        raise ValueError("'augment' is free, but the simulator has no networks: call `sim.augment(blueprint)` first.")
    if not patterns and not networks:
        raise ValueError("nothing is free: name parameters by patterns such as '*.mass', or 'augment'.")
    return networks, patterns


def _bounds(sim: Simulator, free: Sequence[str], bounds: Mapping[str, Any] | None) -> dict[str, Any]:
    """The given bounds, and those of free delays: from zero to the longest for which the model keeps past inputs."""
    found = dict(bounds or {})
    for a in sim.model.topology.actuators:
        name, longest = f"actuator.{a.name}.delay", a.samples * sim.solver.shortest_step(float(sim.dt))
        if not a.samples or not any(fnmatchcase(name, pattern) for pattern in free):
            continue
        given = next((pattern for pattern in found if fnmatchcase(name, pattern)), None)
        if given is None:
            found[name] = (0.0, longest)
        elif np.ndim(found[given]) == 1 and found[given][-1] > longest * (1 + 1e-9):
            raise ValueError(
                f"the bounds of '{name}' reach {found[given][-1]:.6g} s, but past inputs are kept for {longest:.6g} s: "
                f"`fx.with_delay(model, ..., dt=..., longest={found[given][-1]:.6g})` keeps more."
            )
    return found


def _check_logs(runs: Sequence[Log], further: Sequence[Log], model: Model, of_coordinates: bool, units: bool) -> None:
    logs = [*runs, *further]
    for log in logs if of_coordinates else ():
        check_against(log, model, units=units)
    check_excitation(runs, model)
    for log in logs[1:]:
        if log.columns != logs[0].columns:
            raise ValueError(f"'{log.name}' measures {log.columns}, but '{logs[0].name}' {logs[0].columns}.")


def _noise(logs: Sequence[Log]) -> tuple[np.ndarray, bool]:
    """Standard deviation of each column of each log, and whether it was given; if not, it is the spread of the column."""
    columns = logs[0].columns
    given = [log.noise for log in logs]
    if all(n is not None and all(c in n for c in columns) for n in given):
        return np.array([[n[c] for c in columns] for n in given if n is not None]), True
    if any(n for n in given):
        lacking = next(c for n in given for c in columns if not n or c not in n)
        raise ValueError(f"noise is given for some columns, but not for '{lacking}' in every log.")
    together = np.concatenate([log.values for log in logs])
    spread = np.array([np.std(x[np.isfinite(x)]) if np.isfinite(x).any() else 0.0 for x in together.T])
    return np.where(spread > 0, spread, 1.0), False


def _choose(
    search: AbstractSearch | None, shooting: Shooting, bounds: Any, executor: AbstractExecutor | None
) -> AbstractSearch:
    """The given search; by default a global one if there are bounds, else a local one."""
    if search is None:
        search = BasinHopping() if bounds and not shooting.free_start else LevenbergMarquardt()
    if executor is not None and not search.shared:
        raise ValueError(f"{type(search).__name__} has no population that an executor could share out; use BasinHopping.")
    if shooting.free_start and not search.free_starts:
        raise ValueError(f"{type(search).__name__} cannot estimate starts; use LevenbergMarquardt, or free_start=False.")
    return search


def prior_precision(place: Coordinates, prior: Mapping[str, float] | None, noise_known: bool) -> np.ndarray | None:
    if not prior:
        return None
    if not noise_known:
        raise ValueError("a prior is weighed against the noise of the measurements: give `noise` with the logs.")
    precision = np.zeros(place.size)
    names = [c.name for c in place.charts for _ in range(c.size)]
    for pattern, deviation in prior.items():
        hits = [
            i for i, pair in enumerate(zip(place.labels, names, strict=True)) if any(fnmatchcase(n, pattern) for n in pair)
        ]
        if not hits:
            raise KeyError(f"the prior for '{pattern}' matches none of the free parameters.")
        if not deviation > 0:
            raise ValueError(f"the prior for '{pattern}' must be a positive standard deviation, got {deviation}.")
        precision[hits] = 1 / deviation**2
    return precision


def hold_out(owner: np.ndarray, runs: int, share: float | None, seed: int) -> np.ndarray:
    """Which segments are held out of the training: a random share, or all of the logs beyond the first `runs`."""
    if share is None:
        return owner >= runs
    if not 0 <= share < 1:
        raise ValueError(f"`held_out` must be a share below 1, or logs, got {share}.")
    apart = np.zeros(len(owner), bool)
    apart[np.random.default_rng(seed).permutation(len(owner))[: min(round(len(owner) * share), len(owner) - 1)]] = True
    return apart


def run_search(
    problem: Problem, search: AbstractSearch, seed: int, checkpoint: Any, progress: Progress | None,
    executor: AbstractExecutor | None = None,
) -> tuple[Any, list[float], Outcome]:  # fmt: skip
    """Runs the search to its end, from the checkpoint if there is one: its state, the costs on the way, the outcome."""
    key = jax.random.key_data(jax.random.key(seed))
    state = _strong(jax.device_put(search.init(problem, jax.device_put(problem.start), key)))
    history: list[float] = []
    path = None if checkpoint is None else Path(checkpoint)
    if path is not None and not path.parent.is_dir():
        raise FileNotFoundError(f"cannot write the checkpoint '{path}': the folder '{path.parent}' does not exist.")
    if path is not None and path.is_file():
        state, history = read_checkpoint(path, _signature(problem, search), state)
    share = None
    if executor is not None:
        folder = None if path is None else path.with_name(path.name + ".pieces")
        share = partial(spread, executor, problem, search, folder, _signature(problem, search))
    step = _stepper(problem, search, share)
    outcome = search.outcome(problem, state)
    while not outcome.done:
        state = step(state)
        history.append(float(search.best(problem, state)[2]))
        if path is not None:
            write_whole({path: checkpoint_bytes(_signature(problem, search), state, history)})
        if progress is not None:
            progress(len(history), search.total(), history[-1])
        outcome = search.outcome(problem, state)
    return state, history, outcome


def _stepper(problem: Problem, search: AbstractSearch, share: Callable[[Any], Any] | None = None) -> Callable[[Any], Any]:
    """A step of the search, compiled when it is first taken; `share` takes the place of the part that is shared out."""
    if not search.compiled:
        return partial(search.step, problem)

    def made_of(name: str, hasty: bool | None) -> Callable[..., Any]:
        if share is not None and name == search.shared:
            return share
        return (
            partial(getattr(search, name), problem) if hasty is None else program(problem, _part, search, name, hasty=hasty)
        )

    parts = [made_of(name, hasty) for name, hasty in search.parts.items()]

    def step(state: Any) -> Any:
        made: tuple[Any, ...] = ()
        for part in parts:
            made = (*made, part(state, *made))
        return made[-1]

    return step


def _part(problem: Problem, search: AbstractSearch, name: str, *args: Any) -> Any:
    return _strong(getattr(search, name)(problem, *args))


def _strong(state: Any) -> Any:
    """The state without weak types, since with them the second step would compile again."""
    return jax.tree.map(lambda x: jnp.asarray(x, jnp.asarray(x).dtype), state)


def _signature(problem: Problem, search: AbstractSearch) -> str:
    """What a checkpoint belongs to: the free numbers, where they start, the simulator, the data, and the search."""
    digest = hashlib.sha256(repr((problem.coordinates.labels, search, type(problem.sim.solver), problem.k)).encode())
    prior = np.zeros(0) if problem.prior is None else problem.prior
    arrays = jax.tree.leaves(eqx.filter((problem.sim, problem.segments), eqx.is_array))
    for x in (problem.start, problem.held_out, prior, *arrays):
        digest.update(np.ascontiguousarray(x).tobytes())
    return digest.hexdigest()


def result_of(
    problem: Problem, search: AbstractSearch, state: Any, history: list[float], outcome: Outcome,
    columns: Sequence[str], names: Sequence[str], dtype: Any,
) -> Fit:  # fmt: skip
    z, d, _ = search.best(problem, state)
    start, zero = problem.start, np.zeros(np.shape(d))
    normal = None
    if problem.coordinates.size and problem.p <= MOST_COLUMNS:
        if search.polished and outcome.ok:
            z, d, outcome = _polish(problem, z, d, outcome)
        normal = state.normal if isinstance(state, Point) else program(problem, Problem.normal)(z, d)
    after, remarks = _judge(problem, z, normal)
    if problem.k and problem.held_out.any():
        d, normal = program(problem, settle)(z, d), None
    (old, new), described = program(problem, _described, hasty=True)(np.stack([start, z]), np.stack([zero, d]))
    trains, apart = ~problem.held_out, problem.held_out
    if not apart.any():
        remarks.append("nothing was held out: give several runs, a horizon, or `held_out` logs for an error on unseen data")
    errors: Any = {(r, on): _errors(problem, x, rows, columns) if rows.any() else None
              for r, x in (("old", old), ("new", new)) for on, rows in (("train", trains), ("apart", apart))}  # fmt: skip
    described = jax.device_get(described)
    (_, _, first), (arrays, extra, values) = (jax.tree.map(lambda x, i=i: np.asarray(x[i]), described) for i in (0, 1))
    sim = eqx.combine(jax.device_put(arrays), problem.sim)
    return Fit(
        astype(sim, dtype), values, first, extra,
        outcome.ok, outcome.message, history, errors["old", "train"], errors["new", "train"], errors["new", "apart"],
        errors["old", "apart"], after, _curves(problem, old, new, columns, names), remarks, noise_known=problem.noise_known,
    )  # fmt: skip


def _unexplained(fit: Fit, hint: str | None) -> Fit:
    """Marks a fit as failed because its predictions are no better than a constant, however its search ended."""
    error = f"{fit.unexplained:.2g} times the motion" if np.isfinite(fit.unexplained) else "without bound"
    message = f"{fit.message}, but its predictions are no better than a constant: they are off by {error}"
    return dataclasses.replace(fit, ok=False, message=message, remarks=[*fit.remarks, *([] if hint is None else [hint])])


def _units_hint(problem: Problem, logs: list[Log], shooting: Shooting, wanted: bool) -> str | None:
    """A sentence if other units would explain the logs. It uses the program that described the result, so nothing is
    compiled."""

    if not wanted:
        return None

    def error(given: list[Log]) -> float:
        segments, _ = cut(problem.sim, given, shooting, _noise(given)[0])
        other = copy.copy(problem)
        other.segments = jax.device_put(segments)
        z, d = np.stack([problem.start] * 2), np.zeros((2, segments.number, problem.k))
        r = np.asarray(program(other, _described, hasty=True)(z, d)[0])[0]
        weight, trains = np.asarray(segments.weight), ~problem.held_out
        own = r / np.where(weight > 0, weight, np.nan)
        return relative_error(own[trains], np.where(weight > 0, segments.measured, np.nan)[trains])

    return suspected_units(logs, problem.sim.model, error)


def _described(problem: Problem, z: Any, d: Any) -> tuple[Any, tuple[Simulator, dict[str, Any], dict[str, Any]]]:
    """At several points: weighted errors, the simulator's arrays, the numbers beside the model, the free parameters by name."""

    def one(z: Any) -> Any:
        sim, extra = problem.simulator(z)
        return eqx.filter(sim, eqx.is_array), extra, problem.coordinates.values(z)

    return problem.errors(z, d, problem.segments), jax.vmap(one)(z)


def _polish(problem: Problem, z: Any, d: Any, outcome: Outcome) -> tuple[Any, Any, Outcome]:
    """The best point of a global search, improved by Levenberg-Marquardt."""
    local = LevenbergMarquardt()
    state = _strong(begin(problem, z)._replace(d=d))
    step = _stepper(problem, local)
    while not local.outcome(problem, state).done:
        state = step(state)
    return state.z, state.d, outcome._replace(message=f"{outcome.message}; polished in {int(state.done)} iterations")


def _judge(problem: Problem, z: Any, normal: Normal | None) -> tuple[Posterior | None, list[str]]:
    if not problem.coordinates.size:
        return None, []
    if normal is None:
        networks = ", those of the networks among them," if problem.networks else ""
        return None, [
            f"no intervals: {problem.p} free numbers{networks} are more than the limit of {MOST_COLUMNS}; "
            "fit the parameters alone to get them"
        ]
    if not np.isfinite(np.asarray(normal.A)).all():
        return None, ["no intervals: the derivatives at the result are not finite"]
    trains, noise_known = ~problem.held_out, problem.noise_known
    after = posterior(problem.coordinates, np.asarray(z), normal, problem.count, trains, noise_known, problem.prior)
    remarks = [*_at_bounds(problem.coordinates, np.asarray(z)), *_at_fences(problem, np.asarray(z))]
    if noise_known and after.scale > WORSE:
        starts = "" if problem.k else "the measured starts are noisy (`free_start` estimates them), "
        remarks.append(
            f"the errors are {after.scale:.1f} times what the noise explains: {starts}the model lacks something (an "
            "augmentation?), or the noise is larger than stated; intervals are widened accordingly"
        )
    return after, remarks


def _at_bounds(place: Coordinates, z: np.ndarray) -> list[str]:
    """Parameters that the search pushed against their bounds, one sentence each."""
    bounded = [c.bounded for c in place.charts for _ in range(c.size)]
    return [
        f"'{label}' ended at its {'upper' if x > 0 else 'lower'} bound: the data favour values beyond it"
        for label, b, x in zip(place.labels, bounded, z[: place.size], strict=True)
        if b and abs(x) > EDGE
    ]


def _at_fences(problem: Problem, z: np.ndarray) -> list[str]:
    """A sentence if numbers of curved charts ended as far below their start as one search may take them."""
    curved = ~(problem.bounded | problem.positive | problem.linear)[: problem.coordinates.size]
    below = curved & (z - problem.start < 0.01 - FENCE)[: problem.coordinates.size]
    labels = [label for label, x in zip(problem.coordinates.labels, below, strict=True) if x]
    if not labels:
        return []
    return [f"reduced as far as one search allows: {', '.join(labels)}; identify again from the result to continue"]


def _errors(problem: Problem, r: Any, rows: np.ndarray, columns: Sequence[str]) -> Errors:
    r, weight = np.asarray(r)[rows], np.asarray(problem.segments.weight)[rows]
    own = r / np.where(weight > 0, weight, 1.0)
    square = np.sum(own**2, axis=(0, 1)) / np.maximum(np.sum(weight > 0, axis=(0, 1)), 1)
    total = float(np.sqrt(np.sum(r**2) / max(int(np.sum(weight > 0)), 1)))
    return Errors(total, dict(zip(columns, np.sqrt(square).tolist(), strict=True)), int(rows.sum()))


def _curves(problem: Problem, old: Any, new: Any, columns: Sequence[str], names: Sequence[str]) -> Curves:
    """Measurements and predictions, from the weighted errors of both."""
    s = jax.tree.map(np.asarray, problem.segments)
    weight = np.where(s.weight > 0, s.weight, np.nan)
    measured = np.where(s.weight > 0, s.measured, np.nan)
    time = (s.at + s.ahead) * float(problem.sim.dt)
    before, after = (measured + np.asarray(r) / weight for r in (old, new))
    return Curves(tuple(columns), tuple(names), problem.held_out, time, measured, before, after)
