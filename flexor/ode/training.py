"""Training by multiple shooting: many stretches of the recordings at once, each from the state that the encoder finds.

    loss = mean over what was measured of ((y - simulated) / scale)^2 + continuity * mean ((x_end - encoded there) / spread)^2

`scale` are the deviations of the columns. Adam takes random batches; Levenberg-Marquardt all stretches, for systems of few
numbers. The weights that are kept are the best on the validation recordings, simulated in free runs. What is random follows
from the seed and the number of the step, and a run that finds a checkpoint of its own resumes it.
"""

import hashlib
import json
import os
import re
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Array

from flexor.files import checkpoint_bytes, read_checkpoint, write_whole
from flexor.identify.log import Log
from flexor.ode.artefact import Ode, Parts, on_device
from flexor.ode.series import Pieces, Series, pieces

Progress = Callable[[int, int, float], None]
CHECKPOINT = "checkpoint.npz"
METHODS = ("adam", "levenberg-marquardt")


@dataclass(frozen=True)
class Training:
    """`steps` of a `method` on stretches of `length` rows whose starts are `stride` rows apart.

    Adam: `batch` stretches a step, a rate that falls from `rate` to a hundredth of it along a cosine, gradients clipped at norm
    1, weights decaying by `decay`. Levenberg-Marquardt: all stretches, `decay` is the ridge on weights in units of the loss.
    Errors beyond `huber` deviations count linearly. `continuity` weighs the gaps between a stretch's end and the encoder's
    state there. Every `every` steps the validation is simulated and a checkpoint written; `judged` is the length of its
    stretches, 0: whole recordings.
    """

    length: int = 100
    stride: int = 10
    steps: int = 1000
    method: str = "adam"
    batch: int = 64
    rate: float = 3e-3
    decay: float = 0.0
    continuity: float = 0.0
    huber: float | None = None
    judged: int = 0
    every: int = 50
    seed: int = 0

    def __post_init__(self) -> None:
        if self.method not in METHODS:
            raise ValueError(f"there is no method {self.method!r}; there are {', '.join(METHODS)}.")
        for name in ("length", "stride", "steps", "batch", "every"):
            if not isinstance(getattr(self, name), int) or getattr(self, name) < 1:
                raise ValueError(f"`{name}` must be a positive number, got {getattr(self, name)!r}.")


class Run(eqx.Module):
    """The state of a training run: what is trained, the optimiser's memory, and the best so far with its error."""

    weights: Any
    memory: Any
    best: Any
    error: Array
    step: Array


def fit(
    start: Ode | Parts,
    logs: Sequence[Series | Log],
    options: Training = Training(),  # noqa: B008
    *,
    validation: Sequence[Series | Log],
    out: str | os.PathLike[str] | None = None,
    progress: Progress | None = None,
) -> Ode:
    """`start` trained on the recordings, as good as it ever was on `validation`. With `out`, a folder, checkpoints are kept
    there, also after Ctrl-C, and the same call resumes them. The card has the options, a digest of the data, the
    history, and as `error` that of the weights that are kept."""
    parts = start.parts if isinstance(start, Ode) else start
    card = start.card if isinstance(start, Ode) else {}
    train, judged = [Series.of(x) for x in logs], [Series.of(x) for x in validation]
    if not train or not judged:
        raise ValueError("training needs recordings, and others to choose by (`validation`).")
    for what, these in (("recordings", train), ("validation", judged)):
        if not any(np.isfinite(s.values).any() for s in these):
            raise ValueError(f"nothing is measured in the {what}: all values are NaN.")
    began = time.perf_counter()
    session = _Session(parts, train, judged, options, None if out is None else Path(out))
    run, history = session.go(progress)
    stage = {
        "training": asdict(options),
        "data": {"series": len(train), "validation": len(judged), "digest": session.digest},
        "history": history,
        "error": float(run.error),
        "seconds": round(time.perf_counter() - began, 1),
    }
    made = eqx.combine(run.best, session.fixed)
    return Ode(made, {**card, "stages": [*card.get("stages", []), stage]})


class _Session:
    """One run of training: the data as arrays, and the functions of a step."""

    def __init__(self, parts: Parts, train: list[Series], judged: list[Series], options: Training, folder: Path | None):
        self.options, self.folder, self.past = options, folder, parts.encoder.past
        marks = eqx.tree_at(
            lambda p: p.system,
            jax.tree.map(eqx.is_inexact_array, parts),
            parts.system.trainable(),
            is_leaf=lambda x: x is None,
        )
        self.weights, self.fixed = eqx.partition(parts, marks)
        self.data = on_device(pieces(train, self.past, options.length, options.stride))
        judged_by = options.judged or 0
        self.judged = [on_device(pieces([s], self.past, judged_by, max(judged_by, 1))) for s in judged]
        scale = np.nanstd(np.concatenate([s.values for s in train]), axis=0)
        self.scale = jnp.asarray(np.where(scale > 0, scale, 1.0))
        self.digest = hashlib.sha256(b"".join(np.ascontiguousarray(x).tobytes() for x in self.data)).hexdigest()
        self.loss = _Loss(self.fixed, self.data, self.scale, options.continuity, options.huber)
        self._advance = self._adam() if options.method == "adam" else self._levenberg()
        self.error = self.errors(self.weights)
        arrays = jax.tree.leaves((eqx.filter(parts, eqx.is_array), self.judged))
        form = re.sub(r" at 0x[0-9a-f]+", "", eqx.tree_pformat(parts))  # what is no array: substeps, units
        read = [form.encode(), *(np.ascontiguousarray(x).tobytes() for x in arrays)]
        self.beginning = f"{hashlib.sha256(b''.join(read)).hexdigest()} {self.error:.6g}"  # the error speaks for the code

    def go(self, progress: Progress | None) -> tuple[Run, list[dict[str, Any]]]:
        """All steps, from the beginning or the checkpoint."""
        options = self.options
        run, history = self._restore(self._first())
        complete = run, history
        try:
            while int(run.step) < options.steps:
                run, loss = self._advance(run)
                done = int(run.step)
                if done % options.every == 0 or done == options.steps:
                    run, history = self._judge(run, float(loss), history)
                    self._keep(run, history)
                complete = run, history
                if progress is not None:
                    progress(done, options.steps, float(run.error))
        except KeyboardInterrupt:
            self._keep(*complete)
            raise
        if not np.isfinite(float(run.error)):
            raise FloatingPointError("no weights had a finite error on the validation: its free runs diverge.")
        return run, history

    def errors(self, weights: Any) -> float:
        """Root mean square of the validation's errors over the columns' deviations, free runs."""
        parts = eqx.combine(weights, self.fixed)
        sums = [np.asarray(_squares(parts, piece, self.scale)) for piece in self.judged]
        total, count = np.sum(sums, axis=0)
        if not count:
            raise ValueError("nothing is measured in the validation after the start of its free runs.")
        return float(np.sqrt(total / count))

    def _judge(self, run: Run, loss: float, history: list[dict[str, Any]]) -> tuple[Run, list[dict[str, Any]]]:
        error = self.errors(run.weights)
        if not np.isfinite(loss) and not np.isfinite(float(run.error)):
            raise FloatingPointError(
                f"training diverged at step {int(run.step)}: the loss is not finite. Try a smaller rate."
            )
        if np.isfinite(error) and not error >= float(run.error):  # the error of the start may be NaN
            run = Run(run.weights, run.memory, run.weights, jnp.asarray(error), run.step)
        row = {"step": int(run.step), "loss": loss, "validation": error}
        return run, [*history, {k: v if np.isfinite(v) else None for k, v in row.items()}]

    def _first(self) -> Run:
        memory = self.optimiser.init(self.weights) if self.options.method == "adam" else jnp.asarray(1e-2)
        return Run(self.weights, memory, self.weights, jnp.asarray(self.error), jnp.asarray(0))

    def _adam(self) -> Callable[[Run], tuple[Run, Array]]:
        o = self.options
        self.optimiser = _optimiser(o.rate, o.steps, o.decay)

        def advance(run: Run) -> tuple[Run, Array]:
            count = len(self.data.t)
            rows = np.random.default_rng((o.seed, int(run.step))).choice(count, min(o.batch, count), replace=False)
            return _adam_step(self.optimiser, self.loss, run, jnp.asarray(rows))

        return advance

    def _levenberg(self) -> Callable[[Run], tuple[Run, Array]]:
        """Steps (J^T J + l diag + ridge) d = -g; l falls tenfold after a step that lowers the loss, else it is tried larger."""
        _, back = ravel_pytree(self.weights)

        def advance(run: Run) -> tuple[Run, Array]:
            z = np.asarray(ravel_pytree(run.weights)[0])
            cost, A, g = (np.asarray(x) for x in _normal(self.loss, run.weights))
            ridge, damping = self.options.decay, float(run.memory)
            cost, A, g = cost + ridge * z @ z, A + ridge * np.eye(len(z)), g + ridge * z
            for _ in range(8):
                lift = damping * (np.diag(A) + 1e-6 * np.trace(A) / len(z))
                new = z - np.linalg.lstsq(A + np.diag(lift), g, rcond=None)[0]
                now = float(_value(self.loss, back(jnp.asarray(new)))) + ridge * new @ new
                if now < cost:
                    break
                damping = min(4 * damping, 1e8)
            else:
                new, now = z, float(cost)
            memory = jnp.asarray(max(damping / 10, 1e-9))
            return Run(back(jnp.asarray(new)), memory, run.best, run.error, run.step + 1), jnp.asarray(now)

        return advance

    def _signature(self) -> str:
        shapes = [list(x.shape) for x in jax.tree.leaves(self.weights)]
        return json.dumps([asdict(self.options), self.digest, self.beginning, shapes], sort_keys=True)

    def _keep(self, run: Run, history: list[dict[str, Any]]) -> None:
        if self.folder is None:
            return
        self.folder.mkdir(parents=True, exist_ok=True)
        write_whole({self.folder / CHECKPOINT: checkpoint_bytes(self._signature(), run, history)})

    def _restore(self, run: Run) -> tuple[Run, list[dict[str, Any]]]:
        path = None if self.folder is None else self.folder / CHECKPOINT
        if path is None or not path.is_file():
            return run, []
        return read_checkpoint(path, self._signature(), run)


class _Loss(eqx.Module):
    """What residuals need beside the weights."""

    fixed: Any
    data: Pieces
    scale: Array
    continuity: float = eqx.field(static=True)
    huber: float | None = eqx.field(static=True)

    def residuals(self, weights: Any, data: Pieces) -> Array:
        """Weighted residuals whose sum of squares is the loss."""
        parts = eqx.combine(weights, self.fixed)
        n = parts.encoder.past

        def one(*piece: Array) -> tuple[Array, Array]:
            p = Pieces(*piece)
            y, last = parts.run(p)
            r = (y - p.y[n - 1 :]) / self.scale[None] * p.seen[n - 1 :]
            if self.huber is not None:  # a residual whose square is Huber's loss, smooth
                r = r * jnp.sqrt(2 / (1 + jnp.sqrt(1 + (r / self.huber) ** 2)))
            u = jnp.concatenate([p.u0, p.u1[-1:]])[-n:]  # of the intervals that begin at these rows, as in `Parts.start`
            there = parts.encoder.start(p.t[-n:], p.y[-n:], p.seen[-n:], u) if self.continuity else last
            return r, last - there

        r, gap = jax.vmap(one)(*data)
        r = r / jnp.sqrt(jnp.maximum(jnp.sum(data.seen[:, n - 1 :]), 1.0))
        gap = gap * np.sqrt(self.continuity / gap.size)
        return jnp.concatenate([r.ravel(), gap.ravel()]) if self.continuity else r.ravel()


@eqx.filter_jit
def _value(loss: _Loss, weights: Any) -> Array:
    return jnp.sum(loss.residuals(weights, loss.data) ** 2)


@eqx.filter_jit
def _normal(loss: _Loss, weights: Any) -> tuple[Array, Array, Array]:
    """Sum of squares, J^T J and J^T r."""
    z, back = ravel_pytree(weights)
    r, push = jax.linearize(lambda z: loss.residuals(back(z), loss.data), z)
    J = jax.vmap(push)(jnp.eye(len(z), dtype=z.dtype))
    return jnp.sum(r**2), J @ J.T, J @ r


@lru_cache(maxsize=8)
def _optimiser(rate: float, steps: int, decay: float) -> Any:
    import optax

    schedule = optax.cosine_decay_schedule(rate, steps, 0.01)
    return optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(schedule, weight_decay=decay))


@eqx.filter_jit
def _adam_step(optimiser: Any, loss: _Loss, run: Run, rows: Array) -> tuple[Run, Array]:
    batch = Pieces(*(x[rows] for x in loss.data))
    value, slope = eqx.filter_value_and_grad(lambda w: jnp.sum(loss.residuals(w, batch) ** 2))(run.weights)
    update, memory = optimiser.update(slope, run.memory, run.weights)
    return Run(eqx.apply_updates(run.weights, update), memory, run.best, run.error, run.step + 1), value


@eqx.filter_jit
def _squares(parts: Parts, batch: Pieces, scale: Array) -> Array:
    """Sum of squared errors after the start, and how many."""
    n = parts.encoder.past
    y = jax.vmap(lambda *piece: parts.run(Pieces(*piece))[0])(*batch)
    seen = batch.seen[:, n:]
    return jnp.stack([jnp.sum(((y[:, 1:] - batch.y[:, n:]) / scale[None, None] * seen) ** 2), jnp.sum(seen)])
