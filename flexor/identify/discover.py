"""`discover`: where a network helps, and which inputs it needs.

For every candidate output a hybrid is trained on short segments with the sparse-group-lasso cost at several strengths at once,
each in lanes of its own. What survives at a strength is refitted without shrinkage, inputs that died held at zero (the relaxed
lasso, Meinshausen 2007), and judged by its error on segments that were held out. From the best of these, inputs are removed
one at a time as long as the error stays within `SLACK` of the smallest, or grows by less than `NEGLIGIBLE` of the error
without a network: an input stays only if the data ask for it.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from flexor.augment import Blueprint, Each, input_weights, map_input_weights
from flexor.augment import networks as nets
from flexor.identify.gradient import Adam, Only, SparseGroupLasso
from flexor.identify.identify import Progress, as_logs, astype, hold_out
from flexor.identify.log import Log, check_against, check_excitation
from flexor.identify.problem import Problem, observe_columns
from flexor.identify.segments import Shooting, cut
from flexor.model.charts import coordinates
from flexor.solvers import Simulator
from flexor.solvers.trajectory import Trajectory

STRENGTHS = (3.0, 2.0, 1.0, 0.3, 0.1, 0.03)
SLACK = 1.2  # times the smallest held-out error within which fewer inputs win
NEGLIGIBLE = 0.01
SMOOTH = 1e-6  # lam of the upper layers


@dataclass(frozen=True, eq=False)
class Candidate:
    """A network on `output`: its held-out errors in units of those without it, and the inputs it kept."""

    output: str
    error: float
    inputs: dict[str, tuple[str, ...]]
    sim: Simulator
    before: dict[str, dict[str, np.ndarray]]
    after: dict[str, dict[str, np.ndarray]]
    path: list[dict[str, Any]]

    def __str__(self) -> str:
        kept = "; ".join(f"{name} from {', '.join(names) or 'nothing'}" for name, names in self.inputs.items())
        return f"{self.output}: held-out error {self.error:.3g} of that without a network ({kept})"


@dataclass(frozen=True, eq=False)
class Discovery:
    """Candidates, the most helpful first."""

    candidates: list[Candidate]

    @property
    def best(self) -> Candidate:
        return self.candidates[0]

    def __str__(self) -> str:
        return "\n".join(str(f) for f in self.candidates)


def discover(
    sim: Simulator,
    logs: Sequence[Log | Trajectory] | Log | Trajectory,
    outputs: Sequence[str] = ("joint.passive_force",),
    inputs: Sequence[str] = ("joint.q[*]", "joint.qd[*]"),
    *,
    net: Any = nets.MLP(width=8, depth=1),
    over: Any = Each(),  # noqa: B008
    scales: dict[str, float] | None = None,
    strengths: Sequence[float] = STRENGTHS,
    horizon: float | None = None,
    steps: int = 1500,
    rate: float = 1e-2,
    batch: int | None = 1024,
    held_out: float | Sequence[Log] = 0.3,
    seed: int = 0,
    progress: Progress | None = None,
) -> Discovery:
    """Ranks `outputs` by how much a network on each, reading `inputs`, lowers the held-out error of short predictions.

    `horizon` is their length in seconds, by default one row of the log. `scales` are typical sizes of inputs and outputs, as in
    `Blueprint.add`; by default inputs are scaled by what the logs hold. `strengths` are those of the sparse group lasso, relative
    to the loss without a network. Results are in float64.
    """
    with jax.enable_x64(True):
        sim = astype(sim, np.float64)
        runs = as_logs(logs)
        further = [] if isinstance(held_out, float | int) else as_logs(held_out)
        for log in runs + further:
            check_against(log, sim.model)
        check_excitation(runs, sim.model)
        shooting = Shooting(horizon=horizon or float(np.median(np.diff(runs[0].time))))
        share = held_out if isinstance(held_out, float | int) else None
        found: list[Candidate] = []
        done = count(1)

        def report(cost: float) -> None:
            if progress is not None:  # the number of inputs that will be removed is not known in advance
                progress(next(done), 0, cost)

        for output in outputs:
            own = {**_sizes(runs, sim, inputs), **(scales or {})}
            blueprint = Blueprint().add(output, inputs=list(inputs), net=net, over=over, scales=own)
            hybrid = sim.augment(blueprint, key=jax.random.key(seed))
            problem = _problem(hybrid, runs, further, shooting, share, seed)
            found.append(_search(problem, output, Adam(steps=steps, rate=rate, batch=batch), strengths, seed, report))
    return Discovery(sorted(found, key=lambda f: f.error))


def _sizes(logs: Sequence[Log], sim: Simulator, inputs: Sequence[str]) -> dict[str, float]:
    """Root mean square of the measured velocities, for inputs that are velocities."""
    speeds = [log.values[:, [i for i, c in enumerate(log.columns) if c.startswith("qd.")]] for log in logs]
    size = float(np.sqrt(np.nanmean(np.concatenate([s.ravel() for s in speeds]) ** 2))) if speeds[0].size else 1.0
    return {name: size for name in inputs if name.startswith("joint.qd")}


def _problem(
    hybrid: Simulator, runs: list[Log], further: list[Log], shooting: Shooting, share: float | None, seed: int
) -> Problem:
    """The problem with weights such that each column's error without a network has mean square one."""
    observe = observe_columns(hybrid.model, runs[0].columns)
    nothing = coordinates(hybrid.model, ())
    segments, owner = cut(hybrid, runs + further, shooting, np.ones(len(runs[0].columns)))
    apart = hold_out(owner, len(runs), share, seed)
    problem = Problem(hybrid, nothing, segments, observe, None, held_out=apart, networks=True, free_start=False)
    z, d = jnp.asarray(problem.start), problem.no_start(problem.training)
    r = jax.jit(problem.residuals)(z, d, problem.training)
    size = jnp.sqrt(
        jnp.sum(r**2, axis=(0, 1)) / jnp.maximum(jnp.sum(problem.training.weight > 0, axis=(0, 1)), 1).astype(r.dtype)
    )
    floor = 1e-6 * jnp.max(size)
    if not float(jnp.max(size)) > 0:
        raise ValueError("the simulator already reproduces the logs exactly: there is nothing to discover.")
    weighted = segments._replace(weight=segments.weight / jnp.maximum(size, floor)[None, None])
    return Problem(hybrid, nothing, weighted, observe, None, held_out=apart, networks=True, free_start=False)


def _search(
    problem: Problem, output: str, adam: Adam, strengths: Sequence[float], seed: int, report: Callable[[float], None]
) -> Candidate:
    k = len(strengths)
    train = _trainer(problem, adam, seed, report)
    start = jnp.tile(jnp.asarray(problem.start), (k, 1))
    apart = problem.segments.take(np.flatnonzero(problem.held_out))
    judge = jax.jit(jax.vmap(lambda z: jnp.sqrt(_mean_square(problem, z, apart))))
    without = float(judge(start)[0])
    lam = jnp.full(k, SMOOTH)
    sparse = train(SparseGroupLasso(jnp.zeros(k), jnp.asarray(strengths), lam), start)  # type: ignore[arg-type]

    def refit(z: Any) -> tuple[Any, np.ndarray]:
        z = train(Only(jax.vmap(lambda z: _alive(problem.augmentation(z)))(z), lam), z)  # type: ignore[arg-type]
        errors = np.asarray(judge(z)) / without
        return z, np.where(np.isfinite(errors), errors, np.inf)

    z, errors = refit(sparse)
    path = [
        {"strength": s, "error": float(e), "inputs": _count(problem, x)}
        for s, e, x in zip(strengths, errors, z, strict=True)
    ]
    least = float(errors.min())
    enough = max(SLACK * least, least + NEGLIGIBLE)
    near = [i for i in range(k) if errors[i] <= enough]
    chosen = min(near, key=lambda i: (path[i]["inputs"], errors[i]))
    best, error = _eliminate(problem, z[chosen], float(errors[chosen]), enough, refit, k)
    before, after = (_numbers(problem.augmentation(x)) for x in (start[0], best))
    return Candidate(output, error, _kept(problem, best), problem.simulator(best)[0], before, after, path)


def _eliminate(
    problem: Problem, z: Any, error: float, enough: float, refit: Callable[[Any], tuple[Any, np.ndarray]], k: int
) -> tuple[Any, float]:
    """Removes the least useful input again and again, as long as the error stays below `enough`."""
    while _count(problem, z):
        fewer = [jnp.asarray(x) for x in _each_without_one(problem, z)]
        tried = []
        for i in range(0, len(fewer), k):
            members = (fewer[i : i + k] + [fewer[i]] * k)[:k]  # always k members, so that nothing is compiled again
            tried += list(zip(*refit(jnp.stack(members)), strict=True))
        best = min(tried, key=lambda pair: pair[1])
        if best[1] > enough:
            break
        z, error = best[0], float(best[1])
    return z, error


def _each_without_one(problem: Problem, z: Any) -> list[Any]:
    """Copies of z, each with one of the remaining inputs set to zero."""
    augmentation = problem.augmentation(z)
    groups = [w for named in input_weights(augmentation).values() for w in named.values()]
    made = []
    for at, group in enumerate(groups):
        if np.any(np.asarray(group) != 0):
            made.append(problem.flatten(_scaled(augmentation, [i != at for i in range(len(groups))])))
    return made


def _scaled(augmentation: Any, flags: Sequence[Any]) -> Any:
    """The weights, with zeros for those inputs whose flag is false."""
    remaining = iter(flags)
    return map_input_weights(lambda w: jnp.where(next(remaining), w, 0.0), augmentation)


def _trainer(problem: Problem, adam: Adam, seed: int, report: Callable[[float], None]) -> Callable[[Any, Any], Any]:
    """A function that trains many members at once, each with its own penalty."""

    def with_penalty(penalty: Any) -> Adam:
        return Adam(adam.steps, adam.rate, adam.batch, penalty, adam.clip, adam.block)

    key = jax.random.key_data(jax.random.key(seed))
    first = jax.jit(jax.vmap(lambda penalty, z: with_penalty(penalty).init(problem, z, key)))
    step = jax.jit(jax.vmap(lambda penalty, state: with_penalty(penalty).step(problem, state)))

    def train(penalties: Any, z: Any) -> Any:
        state = first(penalties, z)
        for _ in range(adam.total()):
            state = step(penalties, state)
            report(float(jnp.nanmin(state.cost)))
        return state.z

    return train


def _mean_square(problem: Problem, z: Any, segments: Any) -> Any:
    r = problem.residuals(z, problem.no_start(segments), segments)
    return jnp.sum(r**2) / jnp.maximum(jnp.sum(segments.weight > 0), 1).astype(r.dtype)


def _alive(augmentation: Any) -> Any:
    """Ones in the place of weights, zeros in the place of first-layer weights that are all zero for their input."""
    ones = jax.tree.map(jnp.ones_like, augmentation)
    alive = [jnp.any(w != 0) for named in input_weights(augmentation).values() for w in named.values()]
    return _scaled(ones, alive)


def _kept(problem: Problem, z: Any) -> dict[str, tuple[str, ...]]:
    """The inputs of every network that have a nonzero weight."""
    weights = input_weights(problem.augmentation(z))
    return {net: tuple(n for n, w in named.items() if np.any(np.asarray(w) != 0)) for net, named in weights.items()}


def _count(problem: Problem, z: Any) -> int:
    return sum(len(names) for names in _kept(problem, z).values())


def _numbers(augmentation: Any) -> dict[str, dict[str, np.ndarray]]:
    return {net: {n: np.asarray(w) for n, w in named.items()} for net, named in input_weights(augmentation).items()}
