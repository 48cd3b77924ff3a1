"""Every kind of solver, each with a robot, a time step and a start: for tests that hold for all of them."""

from dataclasses import dataclass
from functools import cache

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import flexor as fx

DT = 0.004

# A ball that slides on the floor, with an arm that has a limit, dry friction, a spring and a motor.
ROLLER = """<mujoco model="roller"><compiler angle="radian"/><worldbody><geom name="floor" type="plane" size="1 1 1"/>
<body name="ball" pos="0 0 0.099"><freejoint name="root"/><geom name="ball" type="sphere" size="0.1" mass="1"/>
  <body name="arm" pos="0 0 0.1"><joint name="j" axis="0 1 0" damping="0.1" stiffness="1" frictionloss="0.02"
    range="-0.5 0.5" limited="true"/><geom type="capsule" size="0.02" fromto="0 0 0 0.2 0 0.3" mass="0.3" contype="0"
    conaffinity="0"/></body></body></worldbody><actuator><motor name="m" joint="j"/></actuator></mujoco>"""

# A wheel on a ball joint, beside its centre: nothing touches.
SPINNER = """<mujoco model="spinner"><compiler angle="radian"/><default><geom contype="0" conaffinity="0"/></default><worldbody>
<body name="wheel"><joint name="ball" type="ball" damping="0.01"/><geom type="box" size="0.1 0.2 0.05" pos="0.1 0 0" mass="1"/>
</body></worldbody></mujoco>"""


@dataclass(frozen=True)
class Scene:
    """A solver on its robot. `derivatives` and `quantities` say whether it has any; `wrong_dt` is a step that it refuses;
    `precision` is that of its numbers, which may be less than the model's."""

    model: fx.Model
    solver: fx.AbstractSolver
    dt: float
    qd: tuple[float, ...]
    derivatives: bool = True
    quantities: bool = True
    wrong_dt: float | None = None
    precision: type = jnp.float64

    def simulator(self, *, simd: bool = True) -> fx.Simulator:
        return fx.Simulator(self.model, self.solver, dt=self.dt, simd=simd)

    def start(self, sim: fx.Simulator) -> fx.State:
        """On the ground, sliding, the arm near its limit."""
        q = self.model.reference.at[-1].set(0.49) if self.model.topology.name == "roller" else self.model.reference
        return sim.reset(q, jnp.asarray(self.qd, self.model.dtype))

    def controls(self, steps: int) -> jax.Array:
        return jnp.asarray(0.2 * np.sin(np.arange(steps))[:, None] + np.zeros(self.model.nu), self.model.dtype)


def networks(solver: fx.AbstractSolver, dt: float = DT) -> fx.AbstractSolver:
    """The solver with a network that brakes the joints and is not fresh: it changes the motion."""
    blueprint = fx.Blueprint().add("joint.passive_force", inputs=["joint.qd"], net=fx.nets.MLP(width=4))
    made = fx.Simulator(fx.load(ROLLER), solver, dt=dt).augment(blueprint, key=jax.random.key(1))
    weights = made.augmentation
    leaves, tree = jax.tree.flatten(weights)
    keys = jax.random.split(jax.random.key(2), len(leaves))
    new = [0.3 * jax.random.normal(k, x.shape, x.dtype) for k, x in zip(keys, leaves, strict=True)]
    return eqx.tree_at(lambda s: s.augmentation, made, jax.tree.unflatten(tree, new)).solver


def _rigid(contact) -> fx.AbstractSolver:
    return fx.RigidSolver(contact=contact)


SOLVERS = {
    "ncp": lambda: _rigid(fx.NCP()),
    "penalty": lambda: _rigid(fx.Penalty()),
    "mixed": lambda: _rigid(fx.Mixed(soft="floor~*")),
    "none": lambda: _rigid(None),
    "hybrid": lambda: networks(_rigid(fx.NCP())),
    "substeps": lambda: fx.Substeps(_rigid(fx.NCP()), 3),
    "substeps of hybrid": lambda: fx.Substeps(networks(_rigid(fx.NCP()), DT / 3), 3),
    "hybrid of substeps": lambda: networks(fx.Substeps(_rigid(fx.NCP()), 3)),
    "mujoco": fx.MujocoSolver,
}


def learned(model: fx.Model) -> fx.ode.HamiltonianField:
    """Port-Hamiltonian, with random weights."""
    return fx.ode.port_hamiltonian(model, width=3, depth=1, key=jax.random.key(3))


@cache
def scene(name: str) -> Scene:
    """The scene of a solver by name, one of `SCENES`."""
    if name == "nerd":
        nerd = fx.nerd.load("cartpole")
        return Scene(
            nerd.model, nerd.solver(), nerd.dt, (0.1, -0.2), quantities=False, wrong_dt=0.001, precision=jnp.float32
        )
    if name == "ode":
        model = fx.load(SPINNER)
        return Scene(model, fx.ode.OdeSolver(learned(model)), DT, (0.3, 0.1, 2.0), quantities=False)
    own = name != "mujoco"
    qd = (0.3, 0.1, 0.0, 0.0, 0.0, 0.0, 0.2)
    return Scene(fx.load(ROLLER), SOLVERS[name](), DT, qd, derivatives=own, quantities=own)


SCENES = (*SOLVERS, "ode", "nerd")


@pytest.fixture(params=SCENES)
def any_scene(request) -> Scene:
    """Every solver in turn. Import it into a test file to run a test on all of them."""
    return scene(request.param)
