"""`Ode`: a system with its encoder and its method, and the folder that it is kept in.

ode.json               format, version, the system and the encoder, the card; digests of all files
arrays.safetensors     every array
"""

import os
from collections.abc import Iterable
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from flexor.files import array_bytes, read_arrays, read_sealed, sealed, write_folder
from flexor.ode.encoder import AbstractEncoder
from flexor.ode.series import Pieces, Series, pieces
from flexor.ode.stepping import AbstractStepping, RungeKutta4
from flexor.ode.system import AbstractSystem
from flexor.solvers.artefact import with_own
from flexor.solvers.encoding import decode, encode

KIND, VERSION = "ode", 1
HEAD, ARRAYS = "ode.json", "arrays.safetensors"


class Parts(eqx.Module):
    """What is trained, and how it is integrated."""

    system: AbstractSystem
    encoder: AbstractEncoder
    stepping: AbstractStepping = RungeKutta4()

    def start(self, piece: Pieces) -> Array:
        """The state at the last row of the past."""
        n = self.encoder.past
        return self.encoder.start(piece.t[:n], piece.y[:n], piece.seen[:n], piece.u0[:n])

    def run(self, piece: Pieces) -> tuple[Float[Array, "n ny"], Float[Array, " nx"]]:
        """Outputs from the start on, and the last state. The output at the end of an interval is that under its input."""
        n = self.encoder.past
        x = self.start(piece)

        def step(x: Array, row: tuple[Array, ...]) -> tuple[Array, Array]:
            t0, t1, u0, u1 = row
            x = self.system.advance(self.stepping, x, t0, t1, u0, u1)
            return x, self.system.output(x, u1)

        first = self.system.output(x, piece.u0[n - 1])
        last, rest = jax.lax.scan(step, x, (piece.t[n - 1 : -1], piece.t[n:], piece.u0[n - 1 :], piece.u1[n - 1 :]))
        return jnp.concatenate([first[None], rest]), last


@eqx.filter_jit
def _run_all(parts: Parts, batch: Pieces) -> Array:
    return jax.vmap(lambda *piece: parts.run(Pieces(*piece))[0])(*batch)


def outputs(parts: Parts, batch: Pieces) -> np.ndarray:
    """Free runs of many stretches at once: outputs from the start of each on, (stretches, rows, outputs)."""
    return np.asarray(_run_all(parts, on_device(batch)))


def on_device(batch: Pieces) -> Pieces:
    """The arrays in the device's precision; raises where that moves a time by more than a thousandth of the median step."""
    times = np.asarray(batch.t, float)
    steps, kept = np.diff(times), np.diff(times.astype(jnp.zeros(0).dtype)).astype(float)
    if (kept <= 0).any() or np.abs(kept - steps).max() > 1e-3 * np.median(steps):
        raise ValueError(
            "times are too large or too close for single precision: count them from the recording's start, or use "
            "jax_enable_x64."
        )
    return Pieces(*(jnp.asarray(x) for x in batch))


@dataclass(frozen=True, eq=False)
class Ode:
    """A trained system. `card` holds recipe, data, seed, history, versions."""

    parts: Parts
    card: dict[str, Any] = field(default_factory=dict)

    @property
    def system(self) -> AbstractSystem:
        return self.parts.system

    def simulate(self, series: Series) -> np.ndarray:
        """Outputs at the times of a series, in a free run that sees only its inputs and, for the start, its first `past` values;
        NaN in the rows before the start."""
        whole = pieces([series], self.parts.encoder.past, 0, 1)
        out = outputs(self.parts, whole)[0]
        full = np.concatenate([np.full((self.parts.encoder.past - 1, out.shape[1]), np.nan), out])
        return full[np.searchsorted(whole.t[0], series.time)]

    def save(self, folder: str | os.PathLike[str], *, classes: Iterable[type] = ()) -> Path:
        """Writes the folder whole or not at all. `classes` are systems and encoders of your own; `fx.open` needs them too."""
        path = Path(folder)
        if path.exists() and not (path / HEAD).is_file():
            raise FileExistsError(f"'{path}' is not the folder of an ode, so it is not overwritten: choose another one.")
        data, arrays = encode(self.parts, with_own(classes), "ode")
        beside = {ARRAYS: array_bytes(arrays)}
        versions = {name: metadata.version(name) for name in ("jax", "equinox", "diffrax")}
        write_folder(
            path, {HEAD: sealed(KIND, VERSION, {"card": {**self.card, "versions": versions}, "ode": data}, beside), **beside}
        )
        return path


def open_ode(folder: str | os.PathLike[str], *, classes: Iterable[type] = ()) -> Ode:
    """What `Ode.save` wrote, to the last bit; `fx.open` calls it."""
    path = Path(folder)
    data, beside = read_sealed(path / HEAD, KIND, VERSION)
    try:
        parts = decode(data["ode"], with_own(classes), read_arrays(beside[ARRAYS]))
    except (ValueError, KeyError) as error:
        raise ValueError(f"the ode in '{path}' cannot be opened: {str(error).rstrip('.')}.") from error
    return Ode(parts, data["card"])
