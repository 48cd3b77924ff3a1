# %% [markdown]
# # Match a robot to its logs
#
# You have a URDF whose masses and friction are guesses, and a CSV of the real robot. `fx.identify` finds the numbers with
# which the simulator does what the robot did, says how certain they are, and what the log cannot tell.
#
# The log here is made by a robot whose numbers we keep secret until the end.

# %%
from pathlib import Path

import jax
import matplotlib.pyplot as plt
import numpy as np

import flexor as fx

jax.config.update("jax_enable_x64", True)

URDF = """
<robot name="lever">
  <link name="base"/>
  <link name="upper"><inertial><origin xyz="0 0 -0.2"/><mass value="1.0"/>
    <inertia ixx="0.014" iyy="0.014" izz="0.0002" ixy="0" ixz="0" iyz="0"/></inertial></link>
  <link name="lower"><inertial><origin xyz="0 0 -0.15"/><mass value="0.5"/>
    <inertia ixx="0.004" iyy="0.004" izz="0.0001" ixy="0" ixz="0" iyz="0"/></inertial></link>
  <joint name="shoulder" type="continuous"><parent link="base"/><child link="upper"/><axis xyz="0 1 0"/>
    <limit effort="10" velocity="10"/><dynamics damping="0.05"/></joint>
  <joint name="elbow" type="continuous"><parent link="upper"/><child link="lower"/><origin xyz="0 0 -0.4"/><axis xyz="0 1 0"/>
    <limit effort="5" velocity="10"/><dynamics damping="0.05"/></joint>
</robot>
"""
Path("lever.urdf").write_text(URDF)
model = fx.load("lever.urdf")
DT = 0.005

# %% [markdown]
# ## The log
#
# Columns are `time`, `q.<joint>`, `qd.<joint>`, `u.<joint>`; others can be renamed when they are read (`columns=`,
# `units=`), from CSV, HDF5, Parquet, MCAP and ROS 2 bags. Random torques, held for a tenth of a second, move both joints
# for six seconds, and encoders add noise.

# %%
rng = np.random.default_rng(0)
secret = {"body.upper.mass": 1.3, "body.lower.mass": 0.42, "joint.shoulder.damping": 0.12, "joint.elbow.damping": 0.03}
robot = fx.Simulator(fx.replace(model, secret), fx.RigidSolver(contact=None), dt=DT)
torques = np.repeat(rng.normal(size=(60, 2)) * [3.0, 1.0], 20, axis=0)
run = robot.rollout(robot.reset(), torques)
noise = {"q.*": 1e-3, "qd.*": 2e-2}
columns = ["q.shoulder", "q.elbow", "qd.shoulder", "qd.elbow"]
measured = np.concatenate([run.q, run.qd], axis=1) + [1e-3, 1e-3, 2e-2, 2e-2] * rng.normal(size=(len(run.time), 4))
log = fx.Log(run.time, measured, tuple(columns), controls=torques, noise=noise, name="six seconds")
print(log.name, log.columns, log.values.shape)

# %% [markdown]
# ## The fit
#
# The guess is the URDF. Parameters are chosen by name pattern and move only through values that a body can have. Two links
# that swing are chaotic enough that a simulation of all six seconds would lead nowhere, so the log is cut into segments of
# half a second whose starts are estimated as well.

# %%
guess = fx.Simulator(model, fx.RigidSolver(contact=None), dt=DT)
free = ["body.*.mass", "joint.*.damping"]
fit = fx.identify(guess, log, free=free, shooting=fx.Shooting(horizon=0.5, free_start=True))
print(fit)

# %%
for name, true in secret.items():
    print(f"{name:24} guessed {float(fx.parameters(model)[name]):.3f}, found {float(fit.values[name]):.4f}, true {true}")

# %% [markdown]
# ## What the log does not say
#
# Asked for the whole inertia of the lower link, the fit says which of its numbers this motion cannot show: the arm moves
# in a plane.

# %%
whole = [*free, "body.lower.com", "body.lower.inertia"]
more = fx.identify(guess, log, free=whole, shooting=fx.Shooting(horizon=0.5, free_start=True))
for line in more.posterior.unidentifiable:
    print(line)

# %% [markdown]
# ## Before and after
#
# On a motion that the fit has not seen:

# %%
fresh = np.repeat(rng.normal(size=(10, 2)) * [3.0, 1.0], 20, axis=0)
true, before, after = (s.rollout(s.reset(), fresh) for s in (robot, guess, fit.sim))
plt.figure(figsize=(7, 3))
plt.plot(true.time, true.q[:, 1], "k", label="robot")
plt.plot(before.time, before.q[:, 1], "--", label="URDF as it was")
plt.plot(after.time, after.q[:, 1], ":", label="identified")
plt.xlabel("time, s")
plt.ylabel("elbow, rad")
plt.legend()
plt.show()

# %% [markdown]
# ## Keep it
#
# The folder has the simulator for `fx.open`, the numbers, and the robot as a URDF and an MJCF for other programs.

# %%
for path in fit.save("identified", formats=("urdf", "xml")):
    print(Path(path).name)
again = fx.open("identified/simulator")
print((again.rollout(again.reset(), fresh).q == after.q).all())

# %% [markdown]
# The same from files, with a report to look at: `flexor identify config.toml`. Where torques were measured and logs are of
# a robot under closed-loop control, [identification from torques](../torques.md) is faster and needs no simulation.
