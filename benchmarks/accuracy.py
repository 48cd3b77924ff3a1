"""How far is flexor from MuJoCo and from Pinocchio? Every quantity of the dynamics, on every robot at hand, in float64.

Robots: all URDFs of example-robot-data, with a fixed and with a floating base, against Pinocchio on the same file and
against MuJoCo on the MJCF that flexor writes of it; all MJCF files of gymnasium and of dm_control's suite, against MuJoCo on
the same file. Eight random instants each. Contacts, limits and actuators play no part, so that elements which act only
through them are ignored where flexor has none of their kind; the table says which.

The error of a quantity is the largest difference over all instants and entries, divided by the largest entry of the
reference. Two are measured more strictly, since their entries differ in size by many orders: M_ij relative to
sqrt(M_ii M_jj), and the accelerations of ABA in units of 1/sqrt(M_ii). Two backward-stable solutions of M a = f may differ
by about eps kappa, where kappa is the condition number of C_ij = M_ij / sqrt(M_ii M_jj). Where 10 eps kappa is above 1e-9,
no method can promise 1e-9, and "aba" is the backward error instead (Rigal & Gaches 1967): the residual of the oracle's
inverse dynamics at flexor's accelerations, over |C| |a| + |f|; the note says so. Where M is singular, because a joint moves
no inertia, there is no acceleration to compare, and the note names the joint.
"""

import re
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import jax
import mujoco
import numpy as np
from _mujoco_oracle import MujocoOracle
from _pinocchio_oracle import PinocchioOracle
from _quantities import QUANTITIES, Instant, Points, flexor_quantities, random_instants, random_points

import flexor as fx
from flexor.robots import example_robots
from flexor.solvers.mujoco import mujoco_model

TARGET = 1e-9
INSTANTS = 8
EPS = float(np.finfo(float).eps)
SINGULAR = 0.01 / EPS  # condition number from which no digit of a solution can be trusted
QUICK_URDFS = ("double_pendulum_continuous", "laikago", "panda", "ur5_robot", "anymal-kinova", "romeo_small")
QUICK_MJCFS = 12

# XLA's newer fusion compiler takes some 15 s for each of these programs, the older one 2 s.
FAST_COMPILE = {"xla_cpu_use_fusion_emitters": False, "xla_backend_optimization_level": 0}


@dataclass
class Case:
    """A robot to be compared: how to load it, and its oracles, each made from (flexor's model, points)."""

    robot: str
    source: str
    base: str
    load: Callable[[], tuple[fx.Model, list[str]]]
    oracles: dict[str, Callable[[fx.Model, Points], Any]]


def urdf_cases(quick: bool) -> list[Case]:
    """Every URDF of example-robot-data, on a fixed and on a floating base."""
    paths = example_robots().values()
    root = next(p for p in next(iter(paths)).parents if p.parent.name == "example-robot-data")
    files = sorted(root.rglob("*.urdf"))
    if quick:
        files = [f for f in files if f.stem in QUICK_URDFS]
    return [_urdf_case(file, floating) for file in files for floating in (False, True)]


def _urdf_case(file: Path, floating: bool) -> Case:
    def load() -> tuple[fx.Model, list[str]]:
        return fx.load(file, floating=floating), []

    def pinocchio(model: fx.Model, points: Points) -> PinocchioOracle:
        return PinocchioOracle(file, model, points, floating=floating)

    def written(model: fx.Model, points: Points) -> MujocoOracle:
        return MujocoOracle(mujoco_model(model), model, points)

    oracles = {"Pinocchio": pinocchio, "MuJoCo": written}
    return Case(file.stem, "example-robot-data", "floating" if floating else "fixed", load, oracles)


def mjcf_cases(quick: bool) -> list[Case]:
    """Every MJCF file of gymnasium's environments and of dm_control's suite."""
    folders = {"gymnasium": "envs/mujoco/assets", "dm_control": "suite"}
    cases = []
    for package, folder in folders.items():
        spec = find_spec(package)
        if spec is None or spec.origin is None:
            raise ModuleNotFoundError(f"{package} is not installed; `pip install flexor[dev]` brings it.")
        files = sorted((Path(spec.origin).parent / folder).glob("*.xml"))
        cases += [_mjcf_case(file, package) for file in files[: QUICK_MJCFS // 2 if quick else None]]
    return cases


def _mjcf_case(file: Path, package: str) -> Case:
    @cache
    def compiled() -> mujoco.MjModel:
        return mujoco.MjModel.from_xml_path(str(file))

    def load() -> tuple[fx.Model, list[str]]:
        ignored: list[str] = []
        while True:
            try:
                return fx.load(compiled(), ignore=ignored), ignored
            except fx.DescriptionError as error:
                advice = re.search(r'ignore=\["([\w-]+)"\]', str(error))
                if advice is None:
                    raise
                ignored.append(advice[1])

    def same(model: fx.Model, points: Points) -> MujocoOracle:
        return MujocoOracle(compiled(), model, points)

    return Case(file.stem, package, "as drawn", load, {"MuJoCo": same})


def measure(case: Case) -> list[dict[str, Any]]:
    """One row for each oracle of a robot, or one that says why there is none."""
    head = {"robot": case.robot, "from": case.source, "base": case.base}
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", fx.ModelWarning)
            model, ignored = case.load()
    except (fx.DescriptionError, ValueError) as error:
        return [head | {"oracle": "-", "note": f"refused: {error}"}]
    if model.nv == 0:
        return [head | {"oracle": "-", "nv": 0, "note": "nothing moves: there is no joint in the file"}]
    rng = np.random.default_rng(0)
    points, instants = random_points(model, rng), random_instants(model, rng, INSTANTS)
    program = jax.jit(jax.vmap(flexor_quantities(points), (None, 0)), compiler_options=FAST_COMPILE)
    found = {name: np.asarray(x) for name, x in program(model, instants).items()}
    remark = f"ignored {', '.join(ignored)}" if ignored else ""
    return [head | _compare(name, make, model, points, instants, found, remark) for name, make in case.oracles.items()]


def _compare(
    name: str,
    make: Callable[[fx.Model, Points], Any],
    model: fx.Model,
    points: Points,
    instants: Instant,
    found: dict[str, np.ndarray],
    remark: str,
) -> dict[str, Any]:
    row: dict[str, Any] = {"oracle": name, "nv": model.nv}
    try:
        oracle = make(model, points)
    except ValueError as error:
        return row | {"note": f"refused by {name}: {' '.join(str(error).split())}"}
    each = [Instant(*(np.asarray(x)[k] for x in instants)) for k in range(INSTANTS)]
    answers = [oracle(at) for at in each]
    wanted = {q: np.array([a[q] for a in answers]) for q in QUANTITIES}
    for q in QUANTITIES:
        row[q] = relative(found[q], wanted[q])
    scale = np.sqrt(np.einsum("kii->ki", wanted["M"]))
    scale = np.maximum(scale, np.sqrt(EPS) * scale.max(axis=1, keepdims=True))
    unit = scale[:, :, None] * scale[:, None, :]
    row["M"] = float(np.max(np.abs(found["M"] - wanted["M"]) / unit))
    row["aba"], row["kappa"], note = _forward(oracle, each, found["aba"], wanted, scale, model)
    return row | {"note": "; ".join(x for x in (remark, note) if x)}


def relative(found: np.ndarray, wanted: np.ndarray) -> float:
    """Largest difference over the largest entry of the reference."""
    size = float(np.max(np.abs(wanted)))
    return float(np.max(np.abs(found - wanted))) / (size or 1.0)


def _forward(
    oracle: Any, each: list[Instant], found: np.ndarray, wanted: dict[str, np.ndarray], scale: np.ndarray, model: fx.Model
) -> tuple[float | None, float, str]:
    """Error of the accelerations, condition number, and a note where the error is not the plain one."""
    C = wanted["M"] / (scale[:, :, None] * scale[:, None, :])
    kappa = float(np.max(np.linalg.cond(C)))
    if not kappa < SINGULAR:
        weakest = np.linalg.eigh(C[0])[1][:, 0]
        joint = model.topology.dof_name(int(np.argmax(np.abs(weakest))))
        return None, kappa, f"M is singular: joint '{joint}' moves no inertia"
    if 10 * EPS * kappa < TARGET:
        return relative(scale * found, scale * wanted["aba"]), kappa, ""
    worst = 0.0
    for at, a, D, Ck in zip(each, found, scale, C, strict=True):
        f = at.tau - oracle.inverse(at, np.zeros_like(a))
        left = oracle.inverse(at, a) - at.tau
        size = np.abs(Ck).sum(axis=1).max() * np.max(np.abs(D * a)) + np.max(np.abs(f / D))
        worst = max(worst, float(np.max(np.abs(left / D)) / size))
    return worst, kappa, f"aba by its residual, kappa = {kappa:.0e}"
