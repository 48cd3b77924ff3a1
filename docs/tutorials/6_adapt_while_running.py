# %% [markdown]
# # Adapt while the robot runs
#
# An arm picks something up. Its model is wrong from that moment on, and its controller with it. `fx.adapt.Adapter` takes
# samples as they come, and says after each what the robot weighs by now, how certain that is, and whether the model still
# explains what is measured.

# %%
import matplotlib.pyplot as plt
import numpy as np

import flexor as fx

ARM = """
<mujoco model="arm">
  <worldbody>
    <body name="upper"><joint name="shoulder" axis="0 1 0" damping="0.3"/>
      <inertial pos="0 0 -0.2" mass="3" diaginertia="0.04 0.04 0.005"/>
      <body name="hand" pos="0 0 -0.4"><joint name="elbow" axis="0 1 0" damping="0.2"/>
        <inertial pos="0 0 -0.2" mass="1.5" diaginertia="0.02 0.02 0.003"/></body></body>
  </worldbody>
  <actuator><motor name="shoulder" joint="shoulder"/><motor name="elbow" joint="elbow"/></actuator>
</mujoco>
"""
DT = 0.002
sim = fx.Simulator(fx.load(ARM), fx.RigidSolver(contact=None), dt=DT)

# %% [markdown]
# ## The robot and what it measures
#
# The robot here is a second simulator, with steps ten times as fine, whose hand weighs 1.2 kg more after four seconds, and
# whose encoders are noisy. Nothing tells the adapter when that happens.

# %%
robot = fx.Simulator(sim.model, fx.solver("none", substeps=10), dt=DT).compile(parameters=["body.hand.mass"])
rng = np.random.default_rng(0)
noise = {"q.*": 1e-4, "qd.*": 1e-3}
adapter = fx.adapt.Adapter(sim, free=["body.hand.mass"], noise=noise)


def targets(t):
    """Angles and rates of a motion that never repeats."""
    phase = np.array([2.3, 3.1])
    return 0.7 * np.sin(phase * t), 0.7 * phase * np.cos(phase * t)


estimates = []
for k in range(4000):
    t = k * DT
    if t == 4.0:
        robot.parameters["body.hand.mass"][...] = 2.7
    goal, rate = targets(t)
    u = np.array([150.0, 60.0]) * (goal - robot.q) + np.array([15.0, 6.0]) * (rate - robot.qd)
    measured = np.concatenate([robot.q + 1e-4 * rng.normal(size=2), robot.qd + 1e-3 * rng.normal(size=2)])
    estimate = adapter.update(t, measured, u)
    estimates.append((t, estimate.values["body.hand.mass"], estimate.deviations["body.hand.mass"]))
    if estimate.alarm or estimate.event:
        print(estimate.alarm or estimate.event)
    robot.step(u)

# %% [markdown]
# ## The estimate and its band

# %%
time, mass, deviation = np.array(estimates).T
plt.figure(figsize=(7, 3))
plt.fill_between(time, mass - 1.64 * deviation, mass + 1.64 * deviation, alpha=0.3, label="90 %")
plt.plot(time, mass, label="estimate")
plt.plot(time, np.where(time < 4, 1.5, 2.7), "k--", label="the hand")
plt.ylim(1, 3.5)
plt.xlabel("time, s")
plt.ylabel("mass of the hand, kg")
plt.legend()
plt.show()
print(f"at the end {mass[-1]:.3f} kg, plus or minus {deviation[-1]:.3f}")

# %% [markdown]
# `estimate.surprise` is the mean square of the normalised innovations: about one while the model is right. Dropouts, late
# and doubled samples, jumps of the clock and readings that are not numbers are left out or bridged, and counted in
# `adapter.stream.counts`. More: [adaptation](../adapt.md).
