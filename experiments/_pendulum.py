"""The filmed double pendulum (Asseman, Kornuta & Ozcan 2018): markers, camera, identification and filter.

The file gives positions of three markers (pivot, elbow, tip) in tenths of a pixel. Along the file's first column the pendulum
hangs, so that "down" is the first column here and "right" the second, whatever the file calls them. What follows uses the elbow
and the tip relative to the pivot's marker, because the camera shakes (a ringing near 9.5 Hz that the pendulum does not feel),
and in millimetres of a picture in which the upper arm measures its 91 mm, because two distances of the camera were used.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float
from scipy.signal import savgol_filter

import flexor as fx

FILE = "double_pendulum_ibm.h5"
RATE = 400.0  # frames per second, as stated
UPPER, LOWER = 0.091, 0.070  # m, as stated
COLUMNS = ("elbow.down", "elbow.right", "tip.down", "tip.right")
NOISE = 0.065  # mm of a column: what high differences of slow stretches show

DATASHEET = f"""
<mujoco model="double_pendulum_ibm">
  <compiler angle="radian"/>
  <option timestep="{1 / RATE}"/>
  <default><joint axis="0 -1 0" damping="1e-7"/></default>
  <worldbody>
    <body name="upper">
      <joint name="shoulder"/>
      <inertial pos="0 0 {-UPPER / 2}" mass="{UPPER}" diaginertia="{UPPER**3 / 12} {UPPER**3 / 12} 1e-6"/>
      <body name="lower" pos="0 0 {-UPPER}">
        <joint name="elbow"/>
        <inertial pos="0 0 {-LOWER / 2}" mass="{LOWER}" diaginertia="{LOWER**3 / 12} {LOWER**3 / 12} 1e-6"/>
      </body>
    </body>
  </worldbody>
</mujoco>
"""
"""Uniform bars of the stated lengths, 1 kg to the metre, next to no damping: all that is known beforehand. Only ratios of masses
matter to a pendulum that swings freely."""


class Camera(NamedTuple):
    """A pinhole camera that looks at the plane of motion, to first order in the angle by which it is tilted.

        elbow = s X_e / (1 + k . X_e) - o          tip = s (1 + d) X_t / (1 + k . X_t) + c - o

    X is a position in the plane (down, right), turned by `roll` about the optical axis; s the scale in mm per m; k the tilt in
    1/m; d how much smaller the tip appears, being farther away, and c the shift that goes with it, mm; o where the axis of the
    shoulder lies from the middle of its marker, mm.
    """

    scale: Any = 1e3
    roll: Any = 0.0
    tilt: Any = (0.0, 0.0)
    depth: Any = 0.0
    shift: Any = (0.0, 0.0)
    pivot: Any = (0.0, 0.0)
    upper: Any = UPPER
    lower: Any = LOWER

    def project(self, q: Float[Array, " 2"]) -> Float[Array, " 4"]:
        """Elbow and tip relative to the pivot's marker in mm, as `COLUMNS`, at joint angles q."""
        a, b = q[0] + self.roll, q[0] + q[1] + self.roll
        elbow = self.upper * jnp.stack([jnp.cos(a), jnp.sin(a)])
        tip = elbow + self.lower * jnp.stack([jnp.cos(b), jnp.sin(b)])
        k, o, c = jnp.asarray(self.tilt), jnp.asarray(self.pivot), jnp.asarray(self.shift)
        u = self.scale * elbow / (1 + k @ elbow)
        v = self.scale * (1 + self.depth) * tip / (1 + k @ tip) + c
        return jnp.concatenate([u - o, v - o])

    def angles(self, markers: np.ndarray) -> np.ndarray:
        """Joint angles, unwrapped along the first axis, from rows of `COLUMNS`; the inverse of `project` but for noise."""
        k, o, c = (np.asarray(x) for x in (self.tilt, self.pivot, self.shift))
        elbow, tip = (markers[:, :2] + o) / self.scale, (markers[:, 2:] + o - c) / (self.scale * (1 + self.depth))
        elbow, tip = elbow / (1 - elbow @ k)[:, None], tip / (1 - tip @ k)[:, None]
        arm = tip - elbow
        a, b = np.arctan2(elbow[:, 1], elbow[:, 0]), np.arctan2(arm[:, 1], arm[:, 0])
        return np.unwrap(np.stack([a - self.roll, b - a], axis=1), axis=0)

    def extra(self) -> dict[str, Any]:
        """What `fx.identify` may change, by name. The lengths are the model's and `lower.length`."""
        own = {f"camera.{name}": value for name, value in self._asdict().items() if name not in ("upper", "lower")}
        return {**own, "lower.length": self.lower}

    @staticmethod
    def of(model: fx.Model, extra: dict[str, Any]) -> "Camera":
        """The camera with a model's upper arm, and with the numbers that `extra` names."""
        own = {name.removeprefix("camera."): value for name, value in extra.items() if name.startswith("camera.")}
        return Camera(**own, upper=-fx.parameters(model, "body.lower.pos")["body.lower.pos"][2], lower=extra["lower.length"])


def read(path: Path) -> list[np.ndarray]:
    """Rows of `COLUMNS` in mm, for every run."""
    import h5py

    with h5py.File(path) as file:
        tables = [np.asarray(run, float) for run in file["runs"].values()]
    runs = []
    for table in tables:
        markers = np.concatenate([table[:, 2:4] - table[:, :2], table[:, 4:6] - table[:, :2]], axis=1)
        arm = np.median(np.hypot(markers[:, 0], markers[:, 1]))
        runs.append(markers * (1e3 * UPPER / arm))
    return runs


def simulator(*, exact: bool = True) -> fx.Simulator:
    """The pendulum of the datasheet, a step to a frame: by Runge-Kutta, or by Euler's method, which compiles sooner."""
    integrator = fx.RK4() if exact else fx.SemiImplicitEuler()
    return fx.Simulator(fx.load(DATASHEET), fx.RigidSolver(contact=None, integrator=integrator), dt=1 / RATE)


def smooth(q: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Angles and velocities by local polynomials over 25 frames; where the identification starts from, nothing else."""
    return savgol_filter(q, 25, 5, axis=0), savgol_filter(q, 25, 5, deriv=1, delta=1 / RATE, axis=0)


def pieces(runs: Sequence[np.ndarray], camera: Camera, *, frames: int, stride: int) -> list[fx.Log]:
    """Stretches of the runs as logs of markers, with their smoothed starts."""
    noise = dict.fromkeys(COLUMNS, NOISE)
    logs = []
    for i, run in enumerate(runs):
        q, qd = smooth(camera.angles(run))
        for first in range(20, len(run) - frames - 20, stride):
            time = np.arange(frames + 1) / RATE
            start = (q[first], qd[first])
            logs.append(
                fx.Log(time, run[first : first + frames + 1], COLUMNS, noise=noise, start=start, name=f"{i}:{first}")
            )
    return logs


FREE = (
    "body.lower.pos[2]", "lower.length", "body.lower.mass", "body.*.com[0]", "body.*.com[2]", "gyration.*", "joint.*.damping",
    "camera.*",
)  # fmt: skip


def build(model: fx.Model, extra: dict[str, Any]) -> fx.Model:
    """Inertias from the radii of gyration: of the six numbers only the one about the hinges' axis is felt."""
    mass = fx.parameters(model, "body.*.mass")
    spread = jnp.array([1.0, 1.0, 0.1, 0.0, 0.0, 0.0])
    return fx.replace(
        model,
        {f"body.{b}.inertia": mass[f"body.{b}.mass"] * extra[f"gyration.{b}"] ** 2 * spread for b in ("upper", "lower")},
    )


def observe(model: fx.Model, state: fx.State, extra: dict[str, Any]) -> Array:
    """The markers that the camera sees."""
    return Camera.of(model, extra).project(state.q)


class Estimate(NamedTuple):
    """The filter's estimate of q and qd at every frame, from the frames up to it."""

    q: Float[Array, "*run time 2"]
    qd: Float[Array, "*run time 2"]


@eqx.filter_jit
def track(
    sim: fx.Simulator, camera: Camera, runs: Float[Array, "run time 4"], start: Float[Array, "run 4"],
    *, disturbance: tuple[float, float] = (2.0, 5.0), gate: float = 3.0,
) -> Estimate:  # fmt: skip
    """Extended Kalman filter along each run, causal: no frame after the one it estimates is used.

    Process noise is an acceleration, constant over a frame, with the given standard deviations for the two absolute angles,
    rad/s^2. A frame whose innovation exceeds `gate` deviations counts less by the square of the excess (a marker misread).
    """
    dt = 1 / RATE
    push = jnp.array([[1.0, 0.0], [-1.0, 1.0]]) @ jnp.diag(jnp.asarray(disturbance))
    G = jnp.concatenate([push * dt**2 / 2, push * dt])
    Q, R = G @ G.T, NOISE**2 * jnp.eye(4)

    def step(x: Array) -> Array:
        new = sim.step(sim.reset(x[:2], x[2:]))
        return jnp.concatenate([new.q, new.qd])

    def frame(carry: tuple[Array, Array], z: Array) -> tuple[Any, Array]:
        x, P = carry
        F, x = jax.jacfwd(step)(x), step(x)
        P = F @ P @ F.T + Q
        H = jax.jacfwd(lambda x: camera.project(x[:2]))(x)
        innovation, spread = z - camera.project(x[:2]), H @ P @ H.T
        far = innovation @ jnp.linalg.solve(spread + R, innovation) / 4
        S = spread + R * jnp.maximum(1.0, far / gate**2)
        K = jnp.linalg.solve(S, H @ P).T
        x, P = x + K @ innovation, P - K @ S @ K.T
        return (x, (P + P.T) / 2), x

    def one(run: Array, x: Array) -> Array:
        P = jnp.diag(jnp.array([1e-5, 1e-5, 1.0, 4.0]))
        return jax.lax.scan(frame, (x, P), run)[1]

    x = jax.vmap(one)(runs, start)
    return Estimate(x[..., :2], x[..., 2:])
