"""Small robots and a way to ask an augmentation directly, without the physics around it."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

import flexor as fx
from flexor.taps import TAPS

# Two legs that mirror each other, and a tail that is its own mirror image; one leg joint without limits on each side.
BIPED = """<mujoco model="biped"><compiler angle="radian"/><worldbody><body name="trunk">
<geom type="sphere" size="0.1" mass="1"/><joint name="lift" type="slide" axis="0 0 1"/>
<body name="l" pos="0 0.1 0"><joint name="hip_l" axis="1 0 0" limited="true" range="-1 1"/><geom type="capsule" size="0.02"
  fromto="0 0 0 0 0 -0.3" mass="0.2"/><body name="l2" pos="0 0 -0.3"><joint name="knee_l" axis="0 1 0"/><geom type="capsule"
  size="0.02" fromto="0 0 0 0 0 -0.3" mass="0.1"/></body></body>
<body name="r" pos="0 -0.1 0"><joint name="hip_r" axis="1 0 0" limited="true" range="-1 1"/><geom type="capsule" size="0.02"
  fromto="0 0 0 0 0 -0.3" mass="0.2"/><body name="r2" pos="0 0 -0.3"><joint name="knee_r" axis="0 1 0"/><geom type="capsule"
  size="0.02" fromto="0 0 0 0 0 -0.3" mass="0.1"/></body></body>
<body name="tail" pos="-0.1 0 0"><joint name="tail" axis="0 0 1"/><geom type="capsule" size="0.02" fromto="0 0 0 -0.3 0 0"
  mass="0.1"/></body></body></worldbody></mujoco>"""

# A free body with a ball joint and a slide: every kind of coordinate.
BALLS = """<mujoco model="balls"><worldbody><body name="a"><freejoint name="root"/><geom type="box" size="0.1 0.2 0.3" mass="1"/>
<body name="b" pos="0 0 0.3"><joint name="ball" type="ball"/><geom type="box" size="0.1 0.1 0.2" mass="0.5"/>
<body name="c" pos="0 0 0.2"><joint name="slide" type="slide" axis="1 0 0"/><geom type="sphere" size="0.1" mass="0.2"/></body>
</body></body></worldbody></mujoco>"""

# Two hinges, one of them with a limit: enough for impulses.
LIMITED = """<mujoco model="limited"><compiler angle="radian"/><worldbody><body name="a"><joint name="a" axis="0 1 0"
limited="true" range="-1 1"/><geom type="capsule" size="0.02" fromto="0 0 0 0 0 -0.3" mass="0.2" contype="0"/>
<body name="b" pos="0 0 -0.3"><joint name="b" axis="1 0 0"/><geom type="capsule" size="0.02" fromto="0 0 0 0 0 -0.3" mass="0.1"
contype="0"/></body></body></worldbody></mujoco>"""

FREE = fx.RigidSolver(contact=None)


def simulator(robot, solver=FREE, dtype=None, **options):
    model = fx.load(robot) if dtype is None else fx.load(robot, dtype=dtype)
    return fx.Simulator(model, solver, dt=0.005, **options)


def augmented(sim, output, inputs, net, key=0, **options):
    blueprint = fx.Blueprint().add(output, inputs=inputs, net=net, **options)
    return sim.augment(blueprint, key=jax.random.key(key))


def randomised(hybrid, seed, size=1.0):
    """The hybrid with random weights in all its networks."""
    weights, tree = jax.tree.flatten(hybrid.solver.augmentation)
    edges = np.cumsum([0] + [w.size for w in weights])
    numbers = size * jax.random.normal(jax.random.key(seed), (int(edges[-1]),), weights[0].dtype)
    numbers = numbers if isinstance(numbers, jax.core.Tracer) else np.asarray(numbers)
    new = [jnp.asarray(numbers[a : a + w.size].reshape(w.shape)) for a, w in zip(edges, weights, strict=False)]
    return eqx.tree_at(lambda h: h.solver.augmentation, hybrid, jax.tree.unflatten(tree, new))


def ask(hybrid, **values):
    """What the augmentation makes of quantities that are given in the order of their computation; dots as underscores."""
    return _ask(hybrid, {name: np.asarray(x) if isinstance(x, list) else x for name, x in values.items()}, tuple(values))


@eqx.filter_jit
def _ask(hybrid, values, order):
    handle = hybrid.solver.augmentation.handler(hybrid.model)
    names = {name.replace(".", "_"): name for name in TAPS}
    for name in order:
        out = handle(names[name], jnp.asarray(values[name], hybrid.model.dtype))
    return out


def numbers(seed, *shape, size=1.0):
    return np.random.default_rng(seed).normal(size=shape) * size
