"""`certify`: derivatives of a rollout against finite differences, in every contact mode, and against closed forms."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from flexor.certify.closed_forms import closed_forms, jit_once
from flexor.certify.differences import derivative, stencil
from flexor.certify.scenes import MODES, Scene, scenes
from flexor.contact import NCP, Penalty
from flexor.dynamics import integrate
from flexor.model.model import Control, Model, State
from flexor.model.parameters import replace
from flexor.solvers import RigidSolver, Simulator
from flexor.solvers.integrators import SemiImplicitEuler

TOLERANCE = 2e-6  # relative; rounding leaves the differences good to about 1e-9 absolutely, and FLOOR to 1e-7 relatively
FLOOR = 1e-2  # derivatives below this are judged absolutely: the function and the directions are of order one

KINDS: dict[str, Callable[[Model], Array]] = {
    "mass": lambda m: m.bodies.mass,
    "centre of mass": lambda m: m.bodies.com,
    "inertia": lambda m: m.bodies.inertia,
    "joint frame, position": lambda m: m.bodies.pos,
    "joint frame, rotation": lambda m: m.bodies.quat,
    "joint anchor": lambda m: m.joints.pos,
    "joint axis": lambda m: m.joints.axis,
    "damping": lambda m: m.joints.damping,
    "stiffness": lambda m: m.joints.stiffness,
    "spring rest": lambda m: m.rest,
    "armature": lambda m: m.joints.armature,
    "joint dry friction": lambda m: m.joints.frictionloss,
    "joint limits": lambda m: m.joints.range,
    "limit CFM": lambda m: m.joints.limit_cfm,
    "limit Baumgarte": lambda m: m.joints.limit_baumgarte,
    "limit stiffness": lambda m: m.joints.limit_stiffness,
    "limit damping": lambda m: m.joints.limit_damping,
    "force range of a joint": lambda m: m.joints.force_range,
    "friction": lambda m: m.pairs.friction,
    "restitution": lambda m: m.pairs.restitution,
    "torsional friction": lambda m: m.pairs.torsion,
    "rolling friction": lambda m: m.pairs.rolling,
    "contact margin": lambda m: m.pairs.margin,
    "adhesion": lambda m: m.pairs.adhesion,
    "surface velocity": lambda m: m.geoms.surface_velocity,
    "softness, stiffness": lambda m: m.compliances.stiffness,
    "softness, damping": lambda m: m.compliances.damping,
    "softness, impedance": lambda m: m.compliances.impedance,
    "softness, response": lambda m: m.compliances.response,
    "softness, response of rotations": lambda m: m.compliances.rotation_response,
    "contact stiffness": lambda m: m.pairs.stiffness,
    "contact damping": lambda m: m.pairs.damping,
    "CFM": lambda m: m.pairs.cfm,
    "Baumgarte": lambda m: m.pairs.baumgarte,
    "equality coefficients": lambda m: m.equalities.coefficients,
    "equality CFM": lambda m: m.equalities.cfm,
    "equality Baumgarte": lambda m: m.equalities.baumgarte,
    "equality stiffness": lambda m: m.equalities.stiffness,
    "equality damping": lambda m: m.equalities.damping,
    "equality reference": lambda m: m.reference,
    "loop anchor of the first body": lambda m: m.loops.anchor_a,
    "loop anchor of the second body": lambda m: m.loops.anchor_b,
    "loop rotation": lambda m: m.loops.quat,
    "loop torquescale": lambda m: m.loops.torquescale,
    "loop CFM": lambda m: m.loops.cfm,
    "loop CFM of rotations": lambda m: m.loops.rotation_cfm,
    "loop Baumgarte": lambda m: m.loops.baumgarte,
    "loop stiffness": lambda m: m.loops.stiffness,
    "loop damping": lambda m: m.loops.damping,
    "loop stiffness of rotations": lambda m: m.loops.rotation_stiffness,
    "loop damping of rotations": lambda m: m.loops.rotation_damping,
    "tendon coefficients": lambda m: m.tendons.coefficients,
    "tendon stiffness": lambda m: m.tendons.stiffness,
    "tendon damping": lambda m: m.tendons.damping,
    "tendon armature": lambda m: m.tendons.armature,
    "tendon dry friction": lambda m: m.tendons.frictionloss,
    "tendon slack range": lambda m: m.tendons.spring_range,
    "tendon limits": lambda m: m.tendons.range,
    "tendon limit CFM": lambda m: m.tendons.limit_cfm,
    "tendon limit Baumgarte": lambda m: m.tendons.limit_baumgarte,
    "tendon limit stiffness": lambda m: m.tendons.limit_stiffness,
    "tendon limit damping": lambda m: m.tendons.limit_damping,
    "tendon force range": lambda m: m.tendons.force_range,
    "tendon reference": lambda m: m.tendons.reference,
    "site position": lambda m: m.sites.pos,
    "site rotation": lambda m: m.sites.quat,
    "shape position": lambda m: m.geoms.pos,
    "shape rotation": lambda m: m.geoms.quat,
    "shape size": lambda m: m.geoms.size,
    "vertices": lambda m: m.geoms.vertices,
    "gravity": lambda m: m.gravity,
    "actuator gain": lambda m: m.actuators.gain,
    "actuator gear": lambda m: m.actuators.gear,
    "actuator bias": lambda m: m.actuators.bias,
    "actuator gain slope": lambda m: m.actuators.gain_slope,
    "input range": lambda m: m.actuators.ctrl_range,
    "force range of an actuator": lambda m: m.actuators.force_range,
    "actuator direction": lambda m: m.transmissions.direction,
    "crank length": lambda m: m.transmissions.crank_length,
    "activation time": lambda m: m.activations.time_constant,
    "release time": lambda m: m.activations.release_time,
    "activation smoothing": lambda m: m.activations.smoothing,
    "activation range": lambda m: m.activations.range,
    "muscle force": lambda m: m.muscles.peak_force,
    "muscle length range": lambda m: m.muscles.length_range,
    "muscle speed": lambda m: m.muscles.max_velocity,
    "muscle passive force": lambda m: m.muscles.passive_force,
    "muscle operating range": lambda m: m.muscles.range,
    "muscle shortest length": lambda m: m.muscles.shortest,
    "muscle longest length": lambda m: m.muscles.longest,
    "muscle lengthening force": lambda m: m.muscles.lengthening_force,
    "gravity compensation": lambda m: m.bodies.gravcomp,
    "fluid density": lambda m: m.media.density,
    "fluid viscosity": lambda m: m.media.viscosity,
    "wind": lambda m: m.media.wind,
    "shape in the fluid, position": lambda m: m.fluid_shapes.pos,
    "shape in the fluid, rotation": lambda m: m.fluid_shapes.quat,
    "shape in the fluid, size": lambda m: m.fluid_shapes.size,
    "drag": lambda m: m.fluid_shapes.blunt_drag,
    "slender drag": lambda m: m.fluid_shapes.slender_drag,
    "angular drag": lambda m: m.fluid_shapes.angular_drag,
    "lift": lambda m: m.fluid_shapes.kutta_lift,
    "Magnus lift": lambda m: m.fluid_shapes.magnus_lift,
    "virtual mass": lambda m: m.fluid_shapes.virtual_mass,
    "virtual inertia": lambda m: m.fluid_shapes.virtual_inertia,
}
STATES = ("position", "velocity", "control")


@dataclass(frozen=True)
class Row:
    """One derivative: computed value, reference and its uncertainty, relative error, tolerance, verdict.

    `influence` is False where value and reference are both zero: the quantity plays no part in this mode.
    """

    contact: str
    mode: str
    what: str
    value: float
    reference: float
    error: float
    tolerance: float
    holds: bool
    influence: bool = True


@dataclass(frozen=True)
class Certificate:
    """Rows of the table, and remarks on modes that are not covered."""

    robot: str
    rows: list[Row]
    remarks: list[str] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        """Whether every derivative holds, and there is at least one that has any influence."""
        return all(row.holds for row in self.rows) and any(row.influence for row in self.rows)

    @property
    def failures(self) -> list[Row]:
        return [row for row in self.rows if not row.holds]

    def __str__(self) -> str:
        worst = max((row.error for row in self.rows if row.influence), default=float("nan"))
        count = sum(row.influence for row in self.rows)
        head = (
            f"{self.robot}: {count} derivatives, largest relative error {worst:.1e}: {'all hold' if self.ok else 'FAILED'}"
        )
        bad = [f"  {r.contact}, {r.mode}, {r.what}: {r.value:.9g} against {r.reference:.9g}" for r in self.failures]
        return "\n".join([head, *bad, *(f"  {remark}" for remark in self.remarks)])


def certify(model: Model, *, steps: int = 12, dt: float = 2e-3, seed: int = 0) -> Certificate:
    """Certificate of the gradients of rollouts of `model`, with both contact models where both apply, in float64.

    For each contact mode a short rollout is differentiated in reverse mode with respect to its initial state, its controls
    and every kind of parameter, and compared along a random direction with fourth-order finite differences. Pairs without
    restitution get 0.3, so that its derivative is tested; the sticking mode adds 2 to the friction coefficients. Closed
    forms of four textbook problems follow.
    """
    with jax.enable_x64(True):
        model = jax.tree.map(lambda x: jnp.asarray(np.asarray(x), jnp.float64), model)
        if model.topology.pairs and not np.any(np.asarray(model.pairs.restitution) > 0):
            model = replace(model, {"pair.*.restitution": 0.3})
        made = scenes(model, seed, dt)
        remarks = [
            f"the mode '{m}' is not covered: no state was found that leads to it"
            for m in MODES
            if m not in {s.mode for s in made}
        ]
        if not model.topology.pairs:
            remarks = [
                "only the mode 'airborne' is covered: the robot has nothing to touch (ground=True, or --ground, adds a plane)"
            ]
        rows: list[Row] = []
        models = [NCP(iterations=50, tolerance=1e-13), Penalty()]
        if model.topology.sticky or any(p.condim > 3 for p in model.topology.pairs):
            remarks.append("Penalty is not covered: it has no adhesion, and no torsional or rolling friction")
            models = models[:1]
        for contact in models:
            rows += _certify_contact(model, contact, made, steps, dt, seed, remarks)
        rows += [Row("NCP", *numbers) for numbers in closed_forms()]
    return Certificate(model.topology.name, rows, remarks)


def _certify_contact(
    model: Model, contact: Any, made: list[Scene], steps: int, dt: float, seed: int, remarks: list[str]
) -> list[Row]:
    rng = np.random.default_rng(seed + 1)
    weights = jnp.asarray(rng.normal(size=(steps, 2, model.nv)))
    u = jnp.asarray(0.1 * rng.normal(size=(steps, model.nu)))
    sim = Simulator(model, RigidSolver(contact, SemiImplicitEuler()), dt=dt)
    record = ("contact.normal_force", "contact.relative_velocity") if model.topology.pairs else ()
    start = jnp.stack([s.q for s in made]), jnp.array([s.grip for s in made])
    qd = jnp.stack([s.qd for s in made])

    def rollout(
        model: Model, scene: tuple[Array, Array], move: Array, qd: Array, u: Array
    ) -> tuple[Array, dict[str, Array]]:
        """A generic smooth function of the rollout, and the contacts along it."""
        start, grip = scene
        gripping = eqx.tree_at(lambda m: m.pairs.friction, model, model.pairs.friction + grip)
        own = eqx.tree_at(lambda s: s.model, sim, gripping)
        state = own.solver.init(model, State(integrate(model, start, move), qd, jnp.zeros(())))
        trajectory = own.rollout(state, Control(u=u), record=record)
        here = jax.vmap(lambda q: _coordinates(model, q))(trajectory.q[1:])
        value = jnp.sum(weights[:, 0] * here + 0.1 * weights[:, 1] * trajectory.qd[1:]) / steps
        return value, trajectory.taps

    gradient = jit_once(jax.vmap(jax.grad(rollout, argnums=(0, 2, 3, 4), has_aux=True), (None, 0, 0, 0, None)))
    (dm, dmove, dqd, du), taps = gradient(model, start, jnp.zeros_like(qd), qd, u)
    remarks += _uncovered(type(contact).__name__, made, taps)
    directions = {name: _direction(leaf(model), rng) for name, leaf in KINDS.items()}
    values = _line_values(rollout, model, start, qd, u, directions, rng)
    gradients = {**{name: leaf(dm) for name, leaf in KINDS.items()}, "position": dmove, "velocity": dqd, "control": du}
    rows = []
    for name, (direction, lines) in values.items():
        wanted = direction != 0  # the gradient with respect to an infinite limit is meaningless
        computed = np.asarray(gradients[name])[:, wanted] @ direction[wanted]
        reference, doubt = derivative(np.asarray(lines))
        for scene, v, r, d in zip(made, computed, reference, doubt, strict=True):
            rows.append(_judge(type(contact).__name__, scene.mode, name, float(v), float(r), float(d)))
    return rows


def _judge(contact: str, mode: str, what: str, value: float, reference: float, doubt: float) -> Row:
    """Relative error, absolute below `FLOOR`.

    The tolerance widens by the uncertainty of the differences, but never beyond 1e-4: a derivative that cannot be judged
    does not pass.
    """
    scale = max(abs(reference), FLOOR)
    error = abs(value - reference) / scale
    tolerance = min(TOLERANCE + doubt / scale, 1e-4)
    influence = not (value == 0 and abs(reference) < 1e-12)
    return Row(contact, mode, what, value, reference, error, tolerance, bool(error <= tolerance), influence)


def _direction(leaf: Array, rng: np.random.Generator) -> np.ndarray:
    """A random direction of the size of the numbers in a leaf; zero where they are infinite (no limit there)."""
    x = np.asarray(leaf)
    finite = np.isfinite(x)
    size = np.sqrt(np.mean(x[finite] ** 2)) if finite.any() else 0.0
    return np.where(finite, rng.normal(size=x.shape) * (size or 1.0) * 0.3, 0.0)


def _line_values(
    rollout: Callable[..., Any], model: Model, start: Any, qd: Array, u: Array, directions: dict[str, np.ndarray], rng: Any
) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """For every kind its direction, and the function's values (scene, step, offset) along it."""
    zero = jax.tree.map(np.zeros_like, model)
    still = (np.zeros(model.nv), np.zeros(model.nv), np.zeros(u.shape))
    lines: dict[str, tuple[np.ndarray, Any]] = {}
    for name, direction in directions.items():
        if direction.size and np.any(direction):
            lines[name] = direction, (eqx.tree_at(KINDS[name], zero, direction), *still)
    for k, name in enumerate(STATES):
        shift = list(still)
        if shift[k].size:
            shift[k] = rng.normal(size=shift[k].shape)
            lines[name] = shift[k], (zero, *shift)
    paths = jax.tree.map(lambda *x: jnp.asarray(np.stack(x)), *(path for _, path in lines.values()))

    def value(path: Any, t: Array, scene: Any, qd: Array) -> Array:
        step, move, dqd, du = jax.tree.map(lambda x: t * x, path)
        moved = jax.tree.map(lambda a, b: jnp.where(jnp.isfinite(a), a + b, a), model, step)
        return rollout(moved, scene, move, qd + dqd, u + du)[0]

    shape = (len(lines), len(qd), stencil().size)
    line, scene, at = (jnp.asarray(i.ravel()) for i in np.indices(shape))
    ts = jnp.asarray(stencil().ravel())[at]

    def one(i: Array, s: Array, t: Array) -> Array:
        path, here = jax.tree.map(lambda x: x[i], paths), jax.tree.map(lambda x: x[s], start)
        return value(path, t, here, qd[s])

    values = np.asarray(jit_once(jax.vmap(one))(line, scene, ts)).reshape(*shape[:2], *stencil().shape)
    return {name: (direction, values[i]) for i, (name, (direction, _)) in enumerate(lines.items())}


def _coordinates(model: Model, q: Array) -> Array:
    """q as one number for each degree of freedom: quaternions without their scalar part."""
    t = model.topology
    picks: list[int] = []
    for j, start in zip(t.joints, t.q_start, strict=True):
        offsets = {"hinge": (0,), "slide": (0,), "ball": (1, 2, 3), "free": (0, 1, 2, 4, 5, 6)}[j.kind]
        picks += [int(start) + o for o in offsets]
    return q[np.array(picks, dtype=int)]


def _uncovered(contact: str, made: list[Scene], taps: dict[str, Array]) -> list[str]:
    """Remarks on scenes whose rollout did not pass through their mode, with what happened instead."""
    if not taps:
        return []
    remarks = []
    forces, velocities = (np.asarray(taps[name]) for name in ("contact.normal_force", "contact.relative_velocity"))
    for scene, force, velocity in zip(made, forces, velocities, strict=True):
        instead = _instead(scene.mode, force > 0, np.linalg.norm(velocity[..., 1:], axis=-1))
        if instead:
            remarks.append(
                f"{contact}: the mode '{scene.mode}' is not covered, the robot {instead}; "
                "the derivatives under it are those of that motion"
            )
    return remarks


def _instead(mode: str, touches: np.ndarray, slip: np.ndarray) -> str:
    """What a rollout did instead of passing through its mode; empty if it did pass. Touches and slip are (steps,
    contacts)."""
    touched = np.asarray(touches.any(axis=-1))
    fastest = slip[touches].max(initial=0.0)
    if mode == "airborne":
        return "touched something" if touched.any() else ""
    if not touched.any():
        return "touched nothing"
    return {
        "touching": "was in contact from the start" if touched[0] else "",
        "sliding": "" if fastest > 0.1 else "did not slide",
        "sticking": "slid" if fastest >= 0.1 else "",
        "lifting off": "" if (touches[:-1] & ~touches[1:]).any() else "stayed in contact",
    }[mode]
