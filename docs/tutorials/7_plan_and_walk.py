# %% [markdown]
# # Plan and walk
#
# A simulator with derivatives can be planned through; one that is fast can try hundreds of plans at once. And a robot on
# four legs walks by a program that is solved fifty times a second.

# %%
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np

import flexor as fx
from flexor.control import ILQR, Objective, Quadruped, Walked, Walker, on_its_feet

# %% [markdown]
# ## Swing a pole up
#
# A cart, a pole that hangs, and two seconds. The cost says what is wanted at the end and what force costs; the plan begins
# with no force at all.

# %%
cart = fx.Simulator(fx.load("cartpole"), fx.RigidSolver(contact=None), dt=0.02)


def running(state, u):
    return jnp.concatenate([0.1 * state.q[:1], 0.02 * u])


def final(state):
    return jnp.concatenate([jnp.array([10.0, 30.0]) * state.q, 5 * state.qd])


hanging = cart.reset([0.0, np.pi])
found = ILQR().plan(cart, Objective(running, final, steps=100), hanging)
print(found.status.message, f"cost {found.history[0]:.0f} -> {found.history[-1]:.1f}")

# %%
motion = found.trajectory
plt.figure(figsize=(7, 3))
plt.plot(motion.time, motion.q, label=["cart, m", "pole, rad"])
plt.axhline(0, color="k", linewidth=0.5)
plt.xlabel("time, s")
plt.legend()
plt.show()

# %% [markdown]
# `MPPI`, `PredictiveSampling` and `CrossEntropy` plan without derivatives, a population in the lanes; `Receding` makes a
# policy of any planner, which plans anew while the robot moves.
#
# ## Walk
#
# Everything that the controller knows of the robot comes from its description: feet, legs, motors, mass, inertia.

# %%
robot = Quadruped.of(on_its_feet(fx.load("quadruped")))
sim = fx.Simulator(robot.model, dt=0.002)
walker = Walker(robot, jnp.array([0.6, 0.0, 0.2]), dt=0.002)  # m/s forwards, m/s to the left, rad/s
walk = sim.rollout(sim.reset(jnp.asarray(robot.stand)), walker, steps=2000)
print(Walked.of(robot, walk.time, walk.q, walk.qd))

# %%
plt.figure(figsize=(7, 3))
plt.plot(walk.q[:, 0], walk.q[:, 1])
plt.xlabel("forwards, m")
plt.ylabel("to the left, m")
plt.axis("equal")
plt.show()

# %% [markdown]
# `flexor walk a1 --command 0.6 0 0.2 --html walk.html` makes a page of it. [Walking](../control.md) has the program of
# forces, its times beside OSQP's, and the network that takes its place.
