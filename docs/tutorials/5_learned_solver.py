# %% [markdown]
# # A learned solver, and when to believe it
#
# A network can take the place of the physics: the same simulator, with one word changed. This tutorial looks at two that
# come with flexor, at what a network adds to the physics it is built on, and at how it says that it should not be
# believed.

# %%
import jax
import matplotlib.pyplot as plt
import numpy as np

import flexor as fx

nerd = fx.nerd.load("cartpole")
print(nerd.card["minutes of training"], "minutes of training,", nerd.card["data"]["total_transitions"], "steps seen")
print("physics in its prediction:", nerd.card["frames"]["base"])

# %% [markdown]
# ## Same code, solver swapped

# %%
learned, true = nerd.simulator(), nerd.true_simulator()
ends = {}
for name, sim in (("true physics", true), ("network", learned)):
    run = sim.rollout(sim.reset([0.0, 2.5], [0.3, 0.0]), steps=180)
    plt.plot(run.time, run.q[:, 1], "-" if sim is true else "--", label=name)
    ends[name] = np.asarray(run.q[-1])
plt.gcf().set_size_inches(7, 3)
plt.xlabel("time, s")
plt.ylabel("pole, rad")
plt.legend()
plt.show()
print({name: end.round(3).tolist() for name, end in ends.items()})

# %% [markdown]
# It is differentiable, it runs in kernels, and policies can be trained in it: `task.on(nerd.solver())`.

# %%
slope = jax.grad(lambda push: learned.rollout(learned.reset([0.0, 2.5]), [[push]] * 30).q[-1, 1])
print(f"derivative of the pole's angle by the push {float(slope(0.0)):.4f} rad/N")

# %% [markdown]
# ## How good is it?
#
# Judged by rollouts from random states beside the true physics, not by the error of single steps. Mean and median differ
# much: a few rollouts meet a stop of the rail a little early or late.

# %%
for row in fx.nerd.evaluate_passive(nerd, steps=100, rollouts=256).rows((100,)):
    print({name: round(figure, 4) for name, figure in row.items()})

# %% [markdown]
# ## What does the network add?
#
# The pendulum that strikes the ground is learned beyond a coarse contact step. A network of that kind is always shown
# beside what its base step does alone, and is called useless where it takes away less than a fifth of every error.

# %%
both = fx.nerd.evaluate_contribution(fx.nerd.load("double_pendulum_contact"), steps=100, rollouts=256)
print(both.verdict(100))

# %% [markdown]
# ## When should it not be believed?
#
# Each step says how far its state is from what the network was trained on, in units of a limit that was set on
# trajectories held out of the training: `fx.nerd.doubt(state)`. Above one, the status of the rollout says so and names the
# first step. Solvers whose file has no such limit get one from any data of the true physics.

# %%
ranges = fx.nerd.Ranges(qd={"slider": (-2.0, 2.0), "hinge": (-6.3, 6.3)})
data = fx.nerd.sample(nerd.true_simulator(), ranges, transitions=20_000, path="cartpole.h5", length=100)
warned = fx.nerd.calibrate(nerd, data)
sim = warned.simulator()
for speed in (5.0, 25.0):
    run = sim.rollout(sim.reset([0.0, 0.0], [0.0, speed]), steps=60)
    apart = np.abs(np.asarray(run.q) - np.asarray(true.rollout(true.reset([0.0, 0.0], [0.0, speed]), steps=60).q)).max()
    print(f"pole begins at {speed:4.0f} rad/s: {apart:.3f} off after a second. {run.status.message}")

# %% [markdown]
# The warning says where a network was not trained. It does not say how well it learned what it was trained on: an impact
# on the wrong side of a step is as familiar as one on the right side. [Learned solvers](../nerd.md) has the figures,
# recipes to train one of your own robot, and fine-tuning on recordings.
