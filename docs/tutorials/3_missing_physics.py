# %% [markdown]
# # Find the physics that is missing
#
# The masses are right and the simulator is still wrong. Something acts on the robot that the description does not know:
# `fx.discover` tries networks at the places that you name, and says where one helps and what it has to read.
#
# The robot of this tutorial has a hose from its upper to its lower arm, which pulls at the shoulder whenever the elbow is
# bent, and dry friction in the elbow. Its description has neither.

# %%
import jax
import matplotlib.pyplot as plt
import numpy as np

import flexor as fx

jax.config.update("jax_enable_x64", True)

model = fx.load("double_pendulum")
sim = fx.Simulator(model, fx.RigidSolver(contact=None), dt=0.01)
print([joint.name for joint in model.topology.joints])


# %%
def unknown(state):
    """Torques that nobody has told the simulator about."""
    return jax.numpy.stack([-0.8 * jax.numpy.sin(state.q[1]), -0.06 * jax.numpy.tanh(10 * state.qd[1])])


rng = np.random.default_rng(0)


def recorded(name, steps=200):
    """Two seconds of the robot, let go from a random state; the motors are off."""
    run = sim.rollout(sim.reset(rng.uniform(-1.5, 1.5, 2), rng.uniform(-2, 2, 2)), unknown, steps=steps)
    values = np.concatenate([run.q, run.qd], axis=1) + rng.normal(size=(steps + 1, 4)) * [1e-4, 1e-4, 1e-3, 1e-3]
    columns = ("q.shoulder", "q.elbow", "qd.shoulder", "qd.elbow")
    return fx.Log(run.time, values, columns, controls=np.zeros((steps, 2)), name=name)


logs = [recorded(f"run {i}") for i in range(8)]

# %% [markdown]
# ## Where, and from what?
#
# One network for each joint is offered all angles and all rates. Inputs that the data do not ask for are removed (sparse
# group lasso, then one at a time); what is left is judged on segments that were held out.

# %%
found = fx.discover(sim, logs, outputs=["joint.passive_force"], inputs=["joint.q[*]", "joint.qd[*]"], steps=600)
print(found)

# %% [markdown]
# The shoulder's network reads the angle of the elbow: the hose. The elbow's reads its own rate: friction.
#
# ## What it learned

# %%
hybrid = found.best.sim
angles = np.linspace(-1.5, 1.5, 61)


def passive(q, qd):
    """Torques in the joints, of the hybrid's networks and the description's damping."""
    return hybrid.step(hybrid.reset(q, qd), record=["joint.passive_force"])[1]["joint.passive_force"]


hose = np.array([passive([0.0, angle], [0.0, 0.0])[0] for angle in angles])
rub = np.array([passive([0.0, 0.0], [0.0, rate])[1] for rate in angles])
damping = float(fx.parameters(model)["joint.elbow.damping"])
figure, (left, right) = plt.subplots(1, 2, figsize=(8, 3))
left.plot(angles, -0.8 * np.sin(angles), "k", label="robot")
left.plot(angles, hose, "--", label="network")
left.set(xlabel="angle of the elbow, rad", ylabel="torque in the shoulder, Nm")
right.plot(angles, -0.06 * np.tanh(10 * angles) - damping * angles, "k", label="robot")
right.plot(angles, rub, "--", label="network")
right.set(xlabel="rate of the elbow, rad/s", ylabel="torque in the elbow, Nm")
right.legend()
figure.tight_layout()
plt.show()

# %% [markdown]
# ## With it and without it
#
# A run that nobody has seen, from its first state for two seconds:

# %%
test = recorded("unseen")
start = test.values[0]
apart = {}
for name, each in (("without the network", sim), ("with it", hybrid)):
    run = each.rollout(each.reset(start[:2], start[2:]), steps=200)
    apart[name] = np.abs(np.asarray(run.q) - test.values[:, :2]).max(axis=1)
    print(f"{name}: {apart[name].mean():.3f} rad apart on average")
    plt.plot(test.time, apart[name], label=name)
plt.gcf().set_size_inches(7, 3)
plt.yscale("log")
plt.xlabel("time, s")
plt.ylabel("apart, rad")
plt.legend()
plt.show()

# %% [markdown]
# The hybrid is a simulator like any other: it has gradients, it can be saved (`hybrid.save("hybrid")`), and a policy can
# be trained in it. Where friction is what is missing, `fx.nets.Dissipative` gives a network that can only take energy
# away, whatever its weights: [networks in the physics](../augment.md).
