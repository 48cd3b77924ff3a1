# %% [markdown]
# # Your own robot from its URDF
#
# A description goes in, a simulator comes out that moves, can be looked at, and can be differentiated. Here the robot is a
# lever with a gripper that we write down ourselves; yours is a file: `fx.load("robot.urdf")`.

# %%
from pathlib import Path

URDF = """
<robot name="crane">
  <link name="base"/>
  <link name="boom">
    <inertial><origin xyz="0.4 0 0"/><mass value="2.0"/>
      <inertia ixx="0.002" iyy="0.11" izz="0.11" ixy="0" ixz="0" iyz="0"/></inertial>
    <collision><origin xyz="0.4 0 0" rpy="0 1.5708 0"/><geometry><cylinder radius="0.03" length="0.8"/></geometry></collision>
  </link>
  <link name="hook">
    <inertial><origin xyz="0 0 -0.25"/><mass value="0.5"/>
      <inertia ixx="0.004" iyy="0.004" izz="0.0004" ixy="0" ixz="0" iyz="0"/></inertial>
    <collision><origin xyz="0 0 -0.3"/><geometry><sphere radius="0.05"/></geometry></collision>
  </link>
  <joint name="lift" type="revolute">
    <parent link="base"/><child link="boom"/><origin xyz="0 0 0.6"/><axis xyz="0 -1 0"/>
    <limit lower="-0.6" upper="1.2" effort="30" velocity="3"/><dynamics damping="0.5" friction="0.2"/>
  </joint>
  <joint name="swing" type="continuous">
    <parent link="boom"/><child link="hook"/><origin xyz="0.8 0 0"/><axis xyz="0 1 0"/>
    <dynamics damping="0.01"/>
  </joint>
</robot>
"""
Path("crane.urdf").write_text(URDF)

# %%
import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np

import flexor as fx

model = fx.load("crane.urdf", ground=True)  # `ground=True` adds a floor; `floating=True` would let the base move
for name, value in fx.parameters(model, "joint.*").items():
    print(f"{name:24} {np.asarray(value).round(4)}")

# %% [markdown]
# Every number of the description is a parameter with a name. What cannot be read raises an error that names the element,
# and what is left out on purpose is said in a warning.
#
# ## Motion
#
# A `Simulator` is a model, a solver and a time step. The boom falls, the hook swings, until it lies on the floor:

# %%
sim = fx.Simulator(model, dt=0.002)
start = sim.reset([0.8, 0.0])
run = sim.rollout(start, steps=1000, record=["contact.normal_force"])
print(run.status.message)

# %%
names = [joint.name for joint in model.topology.joints]
plt.figure(figsize=(7, 3))
plt.plot(run.time, run.q, label=names)
plt.xlabel("time, s")
plt.ylabel("joint angle, rad")
plt.legend()
plt.show()

# %% [markdown]
# ## Beside MuJoCo
#
# MuJoCo is a solver like any other. Before the hook touches the floor the two agree; contact and dry friction are other
# models in the two, hard here and soft there.

# %%
peer = sim.with_solver(fx.MujocoSolver())
other = peer.rollout(peer.reset([0.8, 0.0]), steps=1000)
apart = np.abs(np.asarray(run.q - other.q)).max(axis=1)
touch = int(np.argmax(np.asarray(run.taps["contact.normal_force"]).sum(axis=1) > 0))
print(
    f"before the touch at {run.time[touch]:.2f} s: {apart[:touch].max():.1e} rad apart, after it {apart[touch:].max():.1e} rad"
)

# %% [markdown]
# ## Derivatives
#
# How does the angle of the hook after half a second change with every number of the crane?


# %%
def swing(damping):
    crane = fx.Simulator(fx.replace(model, {"joint.swing.damping": damping}), sim.solver, dt=sim.dt)
    return crane.rollout(crane.reset([0.8, 0.0]), steps=250).q[-1, 1]


slope = jax.grad(swing)(0.01)
difference = (swing(0.011) - swing(0.009)) / 0.002
print(f"derivative {slope:.4f}, central difference {difference:.4f}")

# %% [markdown]
# ## Many at once
#
# `jax.vmap` makes a thousand cranes; on a CPU each is a lane of a SIMD kernel.

# %%
angles = jnp.linspace(0.0, 1.0, 1000)
ends = jax.vmap(lambda a: sim.rollout(sim.reset(jnp.stack([a, 0 * a])), steps=250).q[-1])(angles)
plt.figure(figsize=(7, 3))
plt.plot(angles, ends, label=names)
plt.xlabel("lift at the start, rad")
plt.ylabel("after half a second, rad")
plt.legend()
plt.show()

# %% [markdown]
# ## Keep it
#
# `sim.save` writes model, solver and time step; `fx.open` reads them back to the same bits. `fx.save(model, "crane.xml")`
# writes an MJCF. `fx.viz.save_animation("crane.html", model, run)` makes a page that plays the motion; from the command line,
# `flexor simulate crane.urdf --ground --html crane.html` does the same.

# %%
sim.save("crane")
again = fx.open("crane")
print((again.rollout(start, steps=1000).q == sim.rollout(start, steps=1000).q).all())
