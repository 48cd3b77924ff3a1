"""Data sets of transitions in NeRD's HDF5 layout: written chunk by chunk, resumed after an interruption, never left
incomplete.

The group `data` holds arrays (step, trajectory, ...) named as the original code names them: `states` and `next_states` (q, qd),
`joint_acts` (joint torques), `root_body_q` (position and quaternion x y z w of the root frame), `gravity_dir`,
`contact_normals`, `contact_points_0`, `contact_points_1`, `contact_depths`, and `contact_thicknesses` (zero here: our distances
are those of the surfaces).
"""

import dataclasses
import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from flexor.cluster import AbstractExecutor, Arrays, ExecutorError, Local, Work
from flexor.model.model import Control, Model
from flexor.nerd.base import NoBase
from flexor.nerd.frames import Frames
from flexor.nerd.ranges import Ranges
from flexor.nerd.scene import Scene
from flexor.solvers import Simulator
from flexor.spatial import matrix_to_quat, quat_to_matrix

LARGEST = 1e5  # a number beyond this is a divergence
CHUNK = 512  # trajectories made at once
Progress = Callable[[int, int], None]


def sample(
    sim: Simulator,
    ranges: Ranges,
    transitions: int,
    path: str | os.PathLike[str],
    *,
    length: int = 100,
    seed: int = 0,
    executor: AbstractExecutor = Local(),
    progress: Progress | None = None,
) -> Path:
    """Writes a data set of at least so many transitions of the simulator, in trajectories of `length` steps.

    Random states and controls as `ranges` says, new controls in every step. Trajectories that diverge are dropped and counted.
    An interrupted run leaves `<path>.part`, from which the same call resumes, to the same bits, with any `executor`.
    """
    import h5py

    if transitions < 1 or length < 2:
        raise ValueError(
            f"a data set needs transitions and trajectories of two steps at least, got {transitions} and {length}."
        )
    ranges.check(sim.model)
    path = Path(path)
    if not path.parent.is_dir():
        raise FileNotFoundError(f"cannot write '{path}': the folder '{path.parent}' does not exist.")
    part = path.with_name(path.name + ".part")
    about = head(sim, ranges, length, seed)
    wanted = -(-transitions // length)
    work = Work(chunks, (sim, ranges, length, seed, CHUNK))
    try:
        with h5py.File(part, "a") as file:
            done, dropped, chunk = _resume(file, about, part)
            while done < wanted:
                numbers = range(chunk, chunk - (done - wanted) // CHUNK)  # enough if no trajectory is dropped
                for arrays in executor.stream(work, numbers):
                    good = finite(arrays)
                    arrays = {k: np.swapaxes(v[good][: wanted - done], 0, 1) for k, v in arrays.items()}
                    done += arrays["states"].shape[1]
                    dropped += int((~good).sum())
                    chunk += 1
                    if chunk > 20 and done < chunk:
                        raise FloatingPointError(
                            f"nearly all trajectories of '{sim.model.topology.name}' diverge; ask for milder ranges."
                        )
                    _make_room(path, sum(x.nbytes for x in arrays.values()))
                    _append(file, arrays, done, dropped, chunk)
                    if progress is not None:
                        progress(done * length, wanted * length)
            file.attrs["hash"] = file["data"].attrs["hash"] = _digest(file)
    except ExecutorError:
        raise
    except (OSError, RuntimeError) as error:  # HDF5 raises either if the disk is full
        raise OSError(
            f"the data set '{path}' could not be written ({error}); the trajectories so far are in '{part}'."
        ) from error
    os.replace(part, path)
    return path


def head(sim: Simulator, ranges: Ranges, length: int, seed: int) -> dict[str, Any]:
    """Attributes of a file, by which a resumed run recognises its own."""
    from importlib import metadata

    return {
        "robot": sim.model.topology.name,
        "model": model_hash(sim.model),
        "solver": "".join(repr(sim.solver).split()),
        "ranges": json.dumps(dataclasses.asdict(ranges), sort_keys=True, default=dict),
        "dt": float(sim.dt),
        "length": length,
        "seed": seed,
        "jax": metadata.version("jax"),
    }


def model_hash(model: Model) -> str:
    """A hash of a robot's topology and of all its numbers, in single precision."""
    digest = hashlib.sha256(repr(model.topology).encode())
    for leaf in jax.tree.leaves(model):
        digest.update(np.ascontiguousarray(np.asarray(leaf, np.float32)).tobytes())
    return digest.hexdigest()[:16]


def chunks(sim: Simulator, ranges: Ranges, length: int, seed: int, size: int) -> Callable[[int], Arrays]:
    """A function from the number of a chunk of `size` trajectories to its arrays."""
    make = maker(sim, ranges, length, size)

    def chunk(number: int) -> Arrays:
        return {k: np.asarray(v) for k, v in make(jax.random.fold_in(jax.random.key(seed), number)).items()}

    return chunk


def maker(sim: Simulator, ranges: Ranges, length: int, size: int) -> Callable[[Any], dict[str, Any]]:
    """A compiled function from a key to the arrays of one chunk, trajectories first."""
    dt = float(sim.dt)
    frames = Frames(sim.model.topology, dt, base=NoBase())

    def one(key: Any) -> dict[str, Any]:
        place, state_key, control_key, rest_key = jax.random.split(key, 4)
        model = ranges.ground(sim.model, place)
        own = Simulator(model, sim.solver, dt=dt, simd=sim.simd)
        q, qd = ranges.draw(model, state_key)
        u = jnp.zeros((length, model.nu), model.dtype)
        if ranges.control and model.nu:
            low, high = ranges.control * model.actuators.ctrl_range.T
            moving = jax.random.uniform(rest_key) >= ranges.passive
            u = jnp.where(moving, jax.random.uniform(control_key, u.shape, model.dtype, low, high), 0.0)
        run = own.rollout(own.solver.init(model, own.reset(q, qd)), u if model.nu else None, steps=length)
        states = jnp.concatenate([run.q, run.qd], axis=1)
        zero = jnp.zeros(model.nv, model.dtype)
        scene = jax.vmap(lambda q, qd, u: frames.observe(model, q, qd, Control(u=u, tau=zero)))(run.q[:-1], run.qd[:-1], u)
        quat = jax.vmap(matrix_to_quat)(scene.rotation)
        return {
            "states": states[:-1], "next_states": states[1:], "joint_acts": scene.torque, "gravity_dir": scene.gravity,
            "root_body_q": jnp.concatenate([scene.origin, quat[:, 1:], quat[:, :1]], axis=1),
            "contact_normals": scene.normal, "contact_points_0": scene.point_a, "contact_points_1": scene.point_b,
            "contact_depths": scene.distance, "contact_thicknesses": jnp.zeros_like(scene.distance),
        }  # fmt: skip

    return jax.jit(lambda key: jax.vmap(one)(jax.random.split(key, size)))


def finite(arrays: dict[str, np.ndarray]) -> np.ndarray:
    states = np.concatenate([arrays["states"], arrays["next_states"]], axis=-1)
    return np.all(np.isfinite(states) & (np.abs(np.nan_to_num(states, nan=np.inf)) < LARGEST), axis=(1, 2))


def _resume(file: Any, head: dict[str, Any], part: Path) -> tuple[int, int, int]:
    """Trajectories done, dropped, and chunks made; a fresh file gets its head."""
    if "data" not in file:
        group = file.create_group("data")
        group.attrs.update({"mode": "trajectory", "total_transitions": 0, "trajectories": 0, "dropped": 0, "chunks": 0})
        group.attrs.update(head)
        return 0, 0, 0
    group = file["data"]
    for key, value in head.items():
        if group.attrs.get(key) != value:
            raise ValueError(
                f"'{part}' was started with another {key}: {group.attrs.get(key)}, not {value}; "
                "remove it, or use the same settings."
            )
    done = int(group.attrs["trajectories"])
    for array in group.values():  # what was appended after the last count is written again
        array.resize(done, axis=1)
    return done, int(group.attrs["dropped"]), int(group.attrs["chunks"])


def _make_room(path: Path, size: int) -> None:
    """Raises before a chunk would fill the disk, while the file is still intact."""
    free = shutil.disk_usage(path.parent).free
    if free < 2 * size:
        raise OSError(f"the disk is full: {size / 1e6:.0f} MB to write, {free / 1e6:.0f} MB free")


def _append(file: Any, arrays: dict[str, np.ndarray], done: int, dropped: int, chunk: int) -> None:
    group = file["data"]
    for name, array in arrays.items():
        array = array.astype(np.float32)
        if name not in group:
            shape, most = (array.shape[0], 0, *array.shape[2:]), (array.shape[0], None, *array.shape[2:])
            group.create_dataset(
                name, shape, "f4", maxshape=most, chunks=(array.shape[0], 64, *array.shape[2:]) if array.size else None
            )
        group[name].resize(done, axis=1)
        if array.size:
            group[name][:, done - array.shape[1] :] = array
    file.flush()
    steps = arrays["states"].shape[0]
    counts = {"trajectories": done, "dropped": dropped, "chunks": chunk, "total_transitions": done * steps}
    group.attrs.update(counts)
    file.flush()


def _digest(file: Any) -> str:
    """A hash of all states, read chunk by chunk."""
    digest = hashlib.sha256()
    states = file["data/next_states"]
    for at in range(0, states.shape[1], CHUNK):
        digest.update(np.ascontiguousarray(states[:, at : at + CHUNK]).tobytes())
    return digest.hexdigest()[:16]


def facts(path: str | os.PathLike[str]) -> dict[str, Any]:
    """What a data set says of itself: robot, ranges, seed, counts, versions, hash."""
    import h5py

    with h5py.File(path, "r") as file:
        return _plain(file["data"].attrs)


def _plain(attrs: Mapping[str, Any]) -> dict[str, Any]:
    return {k: v.item() if isinstance(v, np.generic) else v for k, v in attrs.items()}


class Data(eqx.Module):
    """A data set in memory: what was seen before every step and the states after it, with axes (trajectory, step). `about` is
    what the file says of itself (`facts`), as JSON."""

    scene: Scene
    next_q: Any
    next_qd: Any
    dt: float = eqx.field(static=True)
    hash: str = eqx.field(static=True)
    about: str = eqx.field(static=True, default="{}")

    @property
    def facts(self) -> dict[str, Any]:
        """What the data set says of itself; see `facts`."""
        return json.loads(self.about)  # type: ignore[no-any-return]

    @property
    def shape(self) -> tuple[int, int]:
        return tuple(self.next_q.shape[:2])  # type: ignore[return-value]


def read(path: str | os.PathLike[str], model: Model, *, most: int | None = None, dt: float | None = None) -> Data:
    """Reads a data set for a robot, ours or one made by the original code, which does not hold its step: give `dt` there.

    `most` limits the number of trajectories. All is held in memory; `blocks` reads piece by piece.
    """
    pieces = list(blocks(path, model, most, dt=dt))
    return jax.tree.map(lambda *x: np.concatenate(x), *pieces)


def blocks(
    path: str | os.PathLike[str], model: Model, most: int | None = None, *, size: int = 4 * CHUNK, dt: float | None = None
) -> Iterator[Data]:
    """The data set in pieces of `size` trajectories."""
    import h5py

    path = Path(path)
    if not path.is_file():
        part = path.with_name(path.name + ".part")
        hint = f"; there is an unfinished '{part.name}': sample again to resume" if part.is_file() else ""
        raise FileNotFoundError(f"there is no data set '{path}'{hint}.")
    try:
        with h5py.File(path, "r") as file:
            group = file["data"]
            attrs = dict(group.attrs)
            count = min(group["states"].shape[1], most or 2**62)
            for at in range(0, count, size):
                until = min(at + size, count)
                arrays = {n: np.swapaxes(np.asarray(group[n][:, at:until]), 0, 1) for n in group if n != "traj_lengths"}
                _check(path, arrays, attrs, model)
                yield block(arrays, attrs, model, dt)
    except (OSError, KeyError, RuntimeError) as error:
        raise ValueError(f"'{path}' is not a data set, or it is corrupt: {error}") from error


def block(arrays: dict[str, np.ndarray], attrs: dict[str, Any], model: Model, dt: float | None) -> Data:
    nq = model.topology.nq
    step = dt if dt is not None else attrs.get("dt")
    if step is None:
        raise ValueError("the data set does not hold the length of its steps; give `dt`.")
    quat = np.concatenate([arrays["root_body_q"][..., 6:7], arrays["root_body_q"][..., 3:6]], axis=-1)
    before, after = arrays["states"], arrays["next_states"]
    points = [arrays[f"contact_points_{i}"].reshape(*before.shape[:2], -1, 3) for i in (0, 1)]
    parts: Any = (
        before[..., :nq], before[..., nq:], arrays["joint_acts"], arrays["gravity_dir"], arrays["root_body_q"][..., :3],
        np.asarray(quat_to_matrix(jnp.asarray(quat))), arrays["contact_normals"].reshape(points[0].shape), *points,
        arrays["contact_depths"].reshape(points[0].shape[:3]),
    )  # fmt: skip
    about = json.dumps(_plain(attrs), sort_keys=True, default=str)
    return Data(Scene(*parts), after[..., :nq], after[..., nq:], float(step), str(attrs.get("hash", "")), about)


def _check(path: Path, arrays: dict[str, np.ndarray], attrs: dict[str, Any], model: Model) -> None:
    from flexor.contact.detect import candidates

    t = model.topology
    if attrs.get("mode", "trajectory") != "trajectory":
        raise ValueError(f"'{path}' holds {attrs['mode']}s, not trajectories.")
    lacking = [n for n in ("states", "next_states", "joint_acts", "root_body_q", "gravity_dir") if n not in arrays]
    if lacking:
        raise ValueError(f"'{path}' lacks '{lacking[0]}'.")
    if "robot" in attrs and attrs["robot"] != t.name:
        raise ValueError(f"'{path}' is a data set of '{attrs['robot']}', not of '{t.name}'.")
    width = arrays["states"].shape[-1]
    if width != t.nq + t.nv:
        raise ValueError(f"'{path}' has states of {width} numbers; '{t.name}' has {t.nq + t.nv}.")
    shape = arrays["states"].shape[:2]
    empty = {"contact_normals": 3, "contact_points_0": 3, "contact_points_1": 3, "contact_depths": 1}
    for name, size in empty.items():
        arrays.setdefault(name, np.zeros((*shape, 0, size), np.float32))
    count = int(np.prod(arrays["contact_depths"].shape[2:]))
    if count != len(candidates(t)):
        raise ValueError(f"'{path}' has {count} contact candidates; '{t.name}' has {len(candidates(t))}.")
    if not np.isfinite(arrays["next_states"]).all():
        raise ValueError(f"'{path}' holds numbers that are not finite.")
