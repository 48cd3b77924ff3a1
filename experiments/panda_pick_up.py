"""A Panda follows a motion and picks up 3 kg at a time that it is not told. Simulated: MuJoCo is the truth.

MuJoCo steps twice a millisecond. The controllers run at a kilohertz and see encoders and velocities with noise, and stamps of
time that are up to a millisecond late. At a random time the hand gets heavier: 3 kg whose centre is off the hand's. Who knows
nothing of it is the frozen computed torque; adapters tell computed torque what they find (recursive least squares on momentum;
Kalman filter); Slotine & Li's controller adapts by itself, PD knows no model. Then the same with a joint whose friction doubles.
"""

import tempfile
import warnings
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import mujoco
import numpy as np
from _experiment import Result, at_least, at_most, run
from matplotlib.figure import Figure
from rich.progress import track

import flexor as fx
from flexor import adapt, control
from flexor.control.adaptive import free_of
from flexor.solvers.mujoco import mujoco_model

warnings.simplefilter("ignore")
DT, SUBSTEPS = 1e-3, 2
ENCODER, SPEED = 2e-5, 1e-3  # rad, rad/s: standard deviations
JITTER = 1e-3  # s: a stamp is up to so much late
STAMPS = JITTER / 6**0.5  # deviation of the time between two stamps
PAYLOAD, OFF = 3.0, np.array([0.03, -0.02, 0.10])  # kg; m, in the hand's frame
BOX = np.array([0.06, 0.08, 0.10])  # m, its edges
HAND = "panda_hand"
ARMATURE, DAMPING, FRICTION = 0.1, 1.0, 0.5  # of every joint
JOINT = "panda_joint4"
WAYS = ("frozen", "PD", "Slotine-Li", "RLS", "Kalman")
MASS, CENTRE = 2.0, 10.0  # %, mm: how near is near
AFTER = 0.5  # s after the pick-up at which the estimate is judged
KP, KD = 225.0, 30.0
PD_GAINS = (np.array([600, 600, 500, 400, 150, 100, 60.0]), np.array([50, 50, 40, 30, 10, 8, 5.0]))


class Run(NamedTuple):
    """What one way did: errors of tracking in rad (steps, joints), and estimates by time."""

    error: np.ndarray
    times: np.ndarray
    mass: np.ndarray
    within: np.ndarray
    com: np.ndarray
    events: list[str]
    alarms: list[float]
    last: adapt.Estimate | None


def arm() -> fx.Model:
    """The Panda, its fingers closed and part of the hand, with motors on seven joints."""
    with tempfile.TemporaryDirectory() as folder:
        fx.save(fx.load("panda"), Path(folder) / "panda.xml")
        spec = mujoco.MjSpec.from_file(str(Path(folder) / "panda.xml"))
    for x in [*spec.equalities, *spec.actuators, *spec.geoms, *spec.numerics, *spec.texts]:
        spec.delete(x)
    for x in list(spec.joints):
        if "finger" in x.name:
            spec.delete(x)
    for x in spec.joints:
        x.limited, x.armature, x.frictionloss = 0, ARMATURE, FRICTION
        x.damping[0] = DAMPING
        spec.add_actuator(name=x.name, target=x.name, trntype=mujoco.mjtTrn.mjTRN_JOINT)
    return fx.load(spec.compile())


def goal(seed: int) -> control.Sines:
    rng = np.random.default_rng(seed)
    middle = np.array([0, -0.4, 0, -1.8, 0, 1.8, 0.0])
    amplitude = np.array([0.6, 0.4, 0.6, 0.4, 0.7, 0.6, 0.8])
    return control.Sines(*(jnp.asarray(x, jnp.float32) for x in (
        middle, amplitude, rng.uniform(0.3, 0.7, 7), rng.uniform(0, 2 * np.pi, 7))))  # fmt: skip


def payload(model: fx.Model) -> tuple[float, np.ndarray, np.ndarray]:
    """Mass, centre of mass and inertia about it (3, 3) of the hand and what it carries, in the hand's axes."""
    b = model.body(HAND)
    m, c = float(model.bodies.mass[b]), np.asarray(model.bodies.com[b], float)
    I = np.asarray(fx.spatial.inertia_matrix(model.bodies.inertia[b]), float)
    box = PAYLOAD / 12 * np.diag([BOX[1] ** 2 + BOX[2] ** 2, BOX[0] ** 2 + BOX[2] ** 2, BOX[0] ** 2 + BOX[1] ** 2])
    total = m + PAYLOAD
    centre = (m * c + PAYLOAD * OFF) / total

    def moved(mass: float, d: np.ndarray) -> np.ndarray:
        return mass * (d @ d * np.eye(3) - np.outer(d, d))

    return total, centre, I + moved(m, c - centre) + box + moved(PAYLOAD, OFF - centre)


class Truth:
    """MuJoCo's robot."""

    def __init__(self, model: fx.Model, q: np.ndarray):
        self.m = mujoco_model(model)
        self.m.opt.timestep = DT / SUBSTEPS
        self.d = mujoco.MjData(self.m)
        self.d.qpos[:] = q
        mujoco.mj_forward(self.m, self.d)
        self.hand = self.m.body(HAND).id
        self.loaded = payload(model)

    def step(self, u: np.ndarray) -> None:
        self.d.ctrl[:] = u
        mujoco.mj_step(self.m, self.d, SUBSTEPS)

    def pick_up(self) -> None:
        mass, com, inertia = self.loaded
        w, V = np.linalg.eigh(inertia)
        V[:, 0] *= np.sign(np.linalg.det(V))
        self.m.body_mass[self.hand], self.m.body_ipos[self.hand], self.m.body_inertia[self.hand] = mass, com, w
        quat = np.zeros(4)
        mujoco.mju_mat2Quat(quat, np.ascontiguousarray(V).ravel())
        self.m.body_iquat[self.hand] = quat
        mujoco.mj_setConst(self.m, mujoco.MjData(self.m))

    def wear(self) -> None:
        self.m.dof_frictionloss[self.m.joint(JOINT).dofadr] *= 2
        self.m.dof_damping[self.m.joint(JOINT).dofadr] *= 2


class Follower:
    """A controller and, where it has one, the adapter that tells it what it found. Compiled once for all runs."""

    def __init__(self, way: str, model: fx.Model, path: control.Sines, free: list[str]):
        sim = fx.Simulator(model, fx.RigidSolver(contact=None), dt=DT)
        self.adapter = None
        if way in ("RLS", "Kalman"):
            rule = (
                adapt.MomentumRLS(mass=5.0) if way == "RLS" else adapt.Kalman(disturbance=0.3, iterations=1, jitter=STAMPS)
            )
            noise = {"q.*": ENCODER, "qd.*": SPEED}
            self.adapter = adapt.Adapter(sim, free, estimator=rule, noise=noise)
        if way == "PD":
            policy: Any = control.PD(model, path, *(jnp.asarray(x, model.dtype) for x in PD_GAINS))
        elif way == "Slotine-Li":
            own = free_of(model, names(free))
            rate = jnp.asarray(0.3 * own.sizes(model, 5.0, 0.15) ** 2, model.dtype)
            kd = jnp.asarray(PD_GAINS[1], model.dtype)
            policy = control.SlotineLi(model, path, own, DT, kd, rate, lam=KP / KD)
        else:
            place = None if self.adapter is None else self.adapter.place
            policy = control.ComputedTorque(model, path, KP, KD, place)
        self.loop = policy.compile()

    def follow(self, truth: Truth, path: np.ndarray, change: Any, at: int, seed: int) -> Run:
        """The whole run; `change` happens before step `at`."""
        rng, steps = np.random.default_rng(seed), len(path)
        errors, told = np.zeros((steps, 7)), []
        for k in range(steps):
            if k == at:
                change(truth)
            q = truth.d.qpos + ENCODER * rng.normal(size=7)
            qd = truth.d.qvel + SPEED * rng.normal(size=7)
            u = self.loop(k * DT, q, qd)
            if self.adapter is not None:
                estimate = self.adapter.update(k * DT + JITTER * rng.uniform(), np.concatenate([q, qd]), u)
                if np.isfinite(estimate.z).all():
                    self.loop.memory[...] = estimate.z
                if k % 20 == 0:
                    told.append((k * DT, estimate))
            errors[k] = truth.d.qpos - path[k]
            truth.step(u)
        return self._run(errors, told)

    def _run(self, errors: np.ndarray, told: list[Any]) -> Run:
        nothing = np.zeros(0)
        if not told or f"body.{HAND}.mass" not in told[0][1].values:
            events = [] if self.adapter is None else [str(e) for e in self.adapter.events]
            alarms = [] if self.adapter is None else [a.time for a in self.adapter.alarms]
            return Run(errors, nothing, nothing, nothing, nothing, events, alarms, told[-1][1] if told else None)
        mass = np.array([float(e.values[f"body.{HAND}.mass"]) for _, e in told])
        within = np.array([float(e.deviations[f"body.{HAND}.mass"]) for _, e in told])
        com = np.array([e.values[f"body.{HAND}.com"] for _, e in told])
        assert self.adapter is not None
        alarms = [a.time for a in self.adapter.alarms]
        return Run(errors, np.array([t for t, _ in told]), mass, within, com, [str(e) for e in self.adapter.events], alarms,
                   told[-1][1])  # fmt: skip


def names(free: list[str]) -> list[str]:
    """What the patterns of this experiment mean for a controller."""
    return [n.replace(".*", ".mass") if n.startswith("body") else n for n in free]


def scene(model: fx.Model, way: str, seed: int, seconds: float, free: list[str], change: Any) -> tuple[Run, float]:
    """A run, and the time of the change."""
    rng = np.random.default_rng(1000 + seed)
    at = round(rng.uniform(0.4, 0.5) * seconds / DT)
    motion = goal(seed)
    path = np.asarray(jax.jit(jax.vmap(lambda t: motion(t)[0]))(jnp.arange(round(seconds / DT), dtype=jnp.float32) * DT))
    follower = Follower(way, model, motion, free)
    return follower.follow(Truth(model, path[0].astype(float)), path, change, at, seed), at * DT


def measure(options: Any) -> Result:
    model = arm()
    seconds, seeds = (3.0, {}) if options.quick else (8.0, {"frozen": 10, "RLS": 10})
    ways = ("frozen", "RLS") if options.quick else WAYS
    rows: list[dict[str, Any]] = []
    first: dict[str, Run] = {}
    free, when = [f"body.{HAND}.*"], 0.0
    total, centre, _ = payload(model)
    worst: dict[str, list[float]] = {"mass": [], "com": [], "ratio": [], "alarms": []}
    cases = [(w, s) for w in ways for s in range(1 if options.quick else seeds.get(w, 3))]
    for way, seed in track(cases, "the Panda picks up", transient=True):
        found, at = scene(model, way, seed, seconds, free, Truth.pick_up)
        k = round((at + AFTER) / DT)
        row: dict[str, Any] = {"change": "3 kg", "way": way, "seed": seed, "RMS after, mrad": 1e3 * rms(found.error[k:])}
        if len(found.times):
            j = int(np.searchsorted(found.times, at + AFTER))
            row["mass off, %"] = 100 * abs(found.mass[j] / total - 1)
            row["CoM off, mm"] = 1e3 * float(np.linalg.norm(found.com[j] - centre))
            row["both within after, s"] = settled(found, total, centre, at)
            row["alarm after, s"] = next((t - at for t in found.alarms if t >= at), float("nan"))
            row["said"] = "; ".join(found.events)
            if way == "RLS":
                worst["mass"].append(row["mass off, %"])
                worst["com"].append(row["CoM off, mm"])
                worst["alarms"].append(sum(t < at for t in found.alarms))
        rows.append(row)
        if seed == 0:
            first[way], when = found, at
    frozen = {r["seed"]: r["RMS after, mrad"] for r in rows if r["way"] == "frozen"}
    worst["ratio"] = [r["RMS after, mrad"] / frozen[r["seed"]] for r in rows if r["way"] == "RLS"]
    rows += worn(model, ways, seconds)
    draw(first, when, total).savefig(options.out / "panda_pick_up.png", dpi=150)
    good = [m <= MASS and c <= CENTRE for m, c in zip(worst["mass"], worst["com"], strict=True)]
    checks = [
        at_most(f"mass {AFTER:g} s after the pick-up, worst run, RLS", max(worst["mass"]), MASS, "%"),
        at_most(f"centre of mass {AFTER:g} s after the pick-up, median, RLS", float(np.median(worst["com"])), CENTRE, "mm"),
        at_least("share of the runs in which both are that near, RLS", float(np.mean(good)), 0.9),
        at_most("tracking error after the pick-up of that of the frozen model, worst run, RLS", max(worst["ratio"]), 1 / 3),
        at_most("false alarms before the pick-up, RLS", max(worst["alarms"]), 0),
        at_least("runs", len(rows), 2),
    ]
    remarks = [
        f"hand and payload weigh {total:.3f} kg; tracking errors from {AFTER:g} s after the change to the end, all joints"
    ]
    return Result(rows, checks, remarks)


def settled(found: Run, total: float, centre: np.ndarray, at: float) -> float:
    """Seconds after the pick-up from which on mass and centre of mass stay within their bounds."""
    near = (np.abs(found.mass / total - 1) <= MASS / 100) & (np.linalg.norm(found.com - centre, axis=1) <= CENTRE / 1e3)
    last = int(np.max(np.flatnonzero(~near), initial=0))
    return round(float(found.times[last + 1] - at), 2) if last + 1 < len(near) else float("nan")


def worn(model: fx.Model, ways: Any, seconds: float) -> list[dict[str, Any]]:
    """A joint whose friction doubles, dry and viscous."""
    free = [f"joint.{JOINT}.damping", f"joint.{JOINT}.frictionloss"]
    rows = []
    for way in track(ways, "a joint wears", transient=True):
        found, at = scene(model, way, 0, seconds, free, Truth.wear)
        k, dof = round((at + AFTER) / DT), 3
        row: dict[str, Any] = {"change": "friction of joint 4", "way": way, "seed": 0,
                               "RMS after, mrad": 1e3 * rms(found.error[k:, dof : dof + 1])}  # fmt: skip
        if found.last is not None:
            row["said"] = "; ".join(found.events)
            values = ", ".join(f"{n.rsplit('.', 1)[1]} {float(x):.3g}" for n, x in found.last.values.items())
            row["said"] += f" ({values} at the end; {2 * DAMPING:g}, {2 * FRICTION:g} are true)"
        rows.append(row)
    return rows


def rms(x: np.ndarray) -> float:
    return float(np.sqrt(np.mean(x**2)))


def draw(runs: dict[str, Run], at: float, total: float) -> Figure:
    figure = Figure(figsize=(9, 3.4), layout="constrained")
    left, right = figure.subplots(1, 2)
    for way, found in runs.items():
        t = DT * np.arange(len(found.error))
        left.semilogy(t[::20], 1e3 * np.linalg.norm(found.error[::20], axis=1) + 1e-3, label=way)
        if len(found.times):
            (line,) = right.plot(found.times, found.mass, label=way)
            low, high = found.mass - 1.645 * found.within, found.mass + 1.645 * found.within
            right.fill_between(found.times, low, high, color=line.get_color(), alpha=0.2)
    left.set(xlabel="time (s)", ylabel="error of tracking (mrad)")
    right.axhline(total, color="k", linestyle=":", linewidth=1)
    right.set(xlabel="time (s)", ylabel="mass in the hand (kg), 90 %", ylim=(0, 1.6 * total))
    for axes in (left, right):
        axes.axvline(at, color="k", linestyle=":", linewidth=1)
        axes.legend(fontsize=8)
    return figure


if __name__ == "__main__":
    run("Does an arm notice what it picked up, and does that help it?", measure)
