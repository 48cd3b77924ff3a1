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

import multiprocessing
import re
import warnings
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import jax
import mujoco
import numpy as np
import pinocchio as pin
from _form import Check, Result, at_most, equals, machine, run
from _mujoco_oracle import MujocoOracle
from _pinocchio_oracle import PinocchioOracle
from _quantities import QUANTITIES, Instant, Points, flexor_quantities, random_instants, random_points
from rich.console import Console
from rich.progress import track

import flexor as fx
from flexor.robots import example_robots
from flexor.solvers.mujoco import mujoco_model

jax.config.update("jax_enable_x64", True)
mujoco.set_mju_user_warning(lambda message: None)  # the default writes a log file into the working directory

TARGET = 1e-9
INSTANTS = 8
EPS = float(np.finfo(float).eps)
SINGULAR = 0.01 / EPS  # condition number from which no digit of a solution can be trusted
QUICK_URDFS = ("double_pendulum_continuous", "laikago", "panda", "ur5_robot", "anymal-kinova", "romeo_small")
MJCF_FOLDERS = {"gymnasium": "envs/mujoco/assets", "dm_control": "suite"}
MJCF_LEAST = 12
QUICK_MJCF = 3  # files of each package in a quick run

# XLA's newer fusion compiler takes some 15 s for each of these programs, the older one 2 s.
FAST_COMPILE = {"xla_cpu_use_fusion_emitters": False, "xla_backend_optimization_level": 0}

Oracles = dict[str, Callable[[fx.Model, Points], Any]]


@dataclass(frozen=True)
class Case:
    """A robot to be compared, its file, the package it comes with, and its base: fixed, floating, or as the file says."""

    robot: str
    file: Path
    package: str
    base: str


def urdf_cases(quick: bool) -> list[Case]:
    """Every URDF of example-robot-data, on a fixed and on a floating base."""
    known = example_robots()
    if not known:
        raise ModuleNotFoundError("example-robot-data is not installed; `pip install flexor[dev]` brings it.")
    root = next(p for p in next(iter(known.values())).parents if p.parent.name == "example-robot-data")
    files = [f for f in sorted(root.rglob("*.urdf")) if not quick or f.stem in QUICK_URDFS]
    stems = [f.stem for f in files]
    names = [f.stem if stems.count(f.stem) == 1 else f"{f.relative_to(root).parts[0]}/{f.stem}" for f in files]
    bases = ("fixed", "floating")
    return [Case(n, f, "example-robot-data", base) for n, f in zip(names, files, strict=True) for base in bases]


def mjcf_cases(quick: bool) -> list[Case]:
    """Every MJCF file of gymnasium's environments and of dm_control's suite."""
    cases = []
    for package, folder in MJCF_FOLDERS.items():
        spec = find_spec(package)
        if spec is None or spec.origin is None:
            raise ModuleNotFoundError(f"{package} is not installed; `pip install flexor[dev]` brings it.")
        files = sorted((Path(spec.origin).parent / folder).glob("*.xml"))
        cases += [Case(file.stem, file, package, "as drawn") for file in files[: QUICK_MJCF if quick else None]]
    return cases


def open_urdf(case: Case) -> tuple[fx.Model, Oracles, str]:
    """The model, Pinocchio on the same file, and MuJoCo on what flexor writes of it."""
    floating = case.base == "floating"
    model = fx.load(case.file, floating=floating)
    return (
        model,
        {
            "Pinocchio": lambda model, points: PinocchioOracle(case.file, model, points, floating=floating),
            "MuJoCo": lambda model, points: MujocoOracle(mujoco_model(model), model, points),
        },
        "",
    )


def open_mjcf(case: Case) -> tuple[fx.Model, Oracles, str]:
    """The model, MuJoCo on the same file, and what had to be ignored: whatever flexor's own refusals advise."""
    m = mujoco.MjModel.from_xml_path(str(case.file))
    ignored: list[str] = []
    while True:
        try:
            model = fx.load(m, ignore=ignored)
            break
        except fx.DescriptionError as error:
            advice = re.search(r'ignore=\["([\w-]+)"\]', str(error))
            if advice is None:
                raise
            ignored.append(advice[1])
    remark = f"ignored {', '.join(ignored)}" if ignored else ""
    return model, {"MuJoCo": lambda model, points: MujocoOracle(m, model, points)}, remark


def measure_case(case: Case) -> list[dict[str, Any]]:
    """One row for each oracle of a robot, or one that says why there is none."""
    head = {"robot": case.robot, "from": case.package, "base": case.base, "oracle": "-", "nv": "-"}
    head |= dict.fromkeys(QUANTITIES, "-")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", fx.ModelWarning)
            model, oracles, remark = (open_urdf if case.file.suffix == ".urdf" else open_mjcf)(case)
    except ValueError as error:
        verdict = "cannot float" if case.base == "floating" else "refused"
        return [head | {"note": f"{verdict}: {error}{_pinocchio_too(case)}"}]
    if model.nv == 0:
        return [head | {"nv": 0, "note": "nothing to compare: no joint in the file"}]
    rng = np.random.default_rng(0)
    points, instants = random_points(model, rng), random_instants(model, rng, INSTANTS)
    program = jax.jit(jax.vmap(flexor_quantities(points), (None, 0)), compiler_options=FAST_COMPILE)
    found = {name: np.asarray(x) for name, x in program(model, instants).items()}
    return [head | _compare(name, make, model, points, instants, found, remark) for name, make in oracles.items()]


def _pinocchio_too(case: Case) -> str:
    """Whether Pinocchio opens a URDF that flexor does not open at all."""
    if case.file.suffix != ".urdf" or case.base == "floating":
        return ""
    try:
        pin.buildModelFromUrdf(str(case.file))
    except (ValueError, RuntimeError):
        return " Pinocchio refuses it too."
    return " Pinocchio opens it."


def _compare(
    name: str,
    make: Callable[[fx.Model, Points], Any],
    model: fx.Model,
    points: Points,
    instants: Instant,
    found: dict[str, np.ndarray],
    remark: str,
) -> dict[str, Any]:
    row: dict[str, Any] = {"oracle": name, "nv": model.nv, "note": remark}
    try:
        oracle = make(model, points)
    except ValueError as error:
        return row | {"note": f"not against {name}: {' '.join(str(error).split())}"}
    each = [Instant(*(np.asarray(x)[k] for x in instants)) for k in range(INSTANTS)]
    answers = [oracle(at) for at in each]
    wanted = {q: np.array([a[q] for a in answers]) for q in QUANTITIES}
    for q in QUANTITIES:
        row[q] = relative(found[q], wanted[q])
    scale = np.sqrt(np.einsum("kii->ki", wanted["M"]))
    scale = np.maximum(scale, np.sqrt(EPS) * scale.max(axis=1, keepdims=True))
    unit = scale[:, :, None] * scale[:, None, :]
    row["M"] = float(np.max(np.abs(found["M"] - wanted["M"]) / unit))
    row["aba"], note = _forward(oracle, each, found["aba"], wanted, scale, model)
    return row | {"note": "; ".join(x for x in (remark, note) if x)}


def relative(found: np.ndarray, wanted: np.ndarray) -> float:
    """Largest difference over the largest entry of the reference."""
    size = float(np.max(np.abs(wanted)))
    return float(np.max(np.abs(found - wanted))) / (size or 1.0)


def _forward(
    oracle: Any, each: list[Instant], found: np.ndarray, wanted: dict[str, np.ndarray], scale: np.ndarray, model: fx.Model
) -> tuple[float | str, str]:
    """Error of the accelerations, and a note where the error is not the plain one."""
    C = wanted["M"] / (scale[:, :, None] * scale[:, None, :])
    kappa = float(np.max(np.linalg.cond(C)))
    if not kappa < SINGULAR:
        weakest = np.linalg.eigh(C[0])[1][:, 0]
        joint = model.topology.dof_name(int(np.argmax(np.abs(weakest))))
        return "-", f"M is singular: joint '{joint}' moves no inertia"
    if 10 * EPS * kappa < TARGET:
        return relative(scale * found, scale * wanted["aba"]), ""
    worst = 0.0
    for at, a, D, Ck in zip(each, found, scale, C, strict=True):
        f = at.tau - oracle.inverse(at, np.zeros_like(a))
        left = oracle.inverse(at, a) - at.tau
        size = np.abs(Ck).sum(axis=1).max() * np.max(np.abs(D * a)) + np.max(np.abs(f / D))
        worst = max(worst, float(np.max(np.abs(left / D)) / size))
    return worst, f"aba by its residual, kappa = {kappa:.0e}"


def measure(quick: bool) -> Result:
    cases = mjcf_cases(quick) + urdf_cases(quick)
    workers = min(machine()["cores"], len(cases))
    with ProcessPoolExecutor(workers, multiprocessing.get_context("spawn")) as pool:
        found = (map if quick else pool.map)(measure_case, cases)  # new processes cost more than a few robots
        done = track(found, "comparing", len(cases), console=Console(stderr=True), transient=True)
        rows = [row for rows in done for row in rows]
    least = 2 * QUICK_MJCF if quick else MJCF_LEAST
    return Result(rows, checks(rows, least), [f"{name}: {meaning}" for name, meaning in QUANTITIES.items()])


def checks(rows: list[dict[str, Any]], least: int) -> list[Check]:
    """The largest error of each quantity against each oracle, and how many files stand behind it."""
    found = []
    for oracle in ("Pinocchio", "MuJoCo"):
        for q in QUANTITIES:
            values = [r[q] for r in rows if r["oracle"] == oracle and isinstance(r[q], float)]
            found.append(at_most(f"{q} against {oracle}, {len(values)} cases", max(values, default=np.nan), TARGET))
    mjcf = {(r["from"], r["robot"]) for r in rows if r["base"] == "as drawn" and r["oracle"] == "MuJoCo" and r["M"] != "-"}
    found.append(Check("MJCF files compared", len(mjcf), f">= {least}", len(mjcf) >= least))
    lost = sum("Pinocchio opens it" in r["note"] for r in rows)
    return [*found, equals("URDF files that Pinocchio opens and flexor refuses", lost, 0)]


if __name__ == "__main__":
    run("how far is flexor from MuJoCo and Pinocchio, for every quantity and robot?", measure)
