# %% [markdown]
# # Train a policy in a minute
#
# A task is what a robot should do: where episodes start, what the policy sees, what is rewarded. Physics, policy, rewards
# and resets of hundreds of robots run in one kernel, so that a laptop's processor is enough.

# %%
import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np

import flexor as fx


class Balance(fx.envs.AbstractTask):
    """Keeps a pole up on a cart that stays near the middle."""

    def reset(self, key):
        return self.sim.reset(jax.random.uniform(key, (2,), minval=-0.2, maxval=0.2)), None

    def observe(self, state, goal):
        return jnp.concatenate([state.q, state.qd])

    def reward(self, step):
        return {
            "upright": jnp.cos(step.after.q[1]),
            "middle": -(step.after.q[0] ** 2),
            "effort": -0.01 * step.action[0] ** 2,
        }

    def ended(self, state, goal):
        return jnp.abs(state.q[1]) > 0.5


sim = fx.Simulator(fx.load("cartpole"), fx.solver("ncp", substeps=4), dt=0.02)
task = Balance(sim=sim, action=fx.envs.Torque(), length=200)
fx.envs.check(task)  # says what does not fit together, before anything runs

# %% [markdown]
# ## Learn
#
# Two hundred and fifty-six robots learn by PPO. The same seed gives the same policy to the last bit.

# %%
history = []
options = fx.learn.Training(robots=256, iterations=30, seed=0)
policy = fx.learn.train(
    task,
    algorithm=fx.learn.PPO(sizes=(32, 32), activation="tanh", minibatches=4),
    options=options,
    progress=lambda iteration, iterations, row: history.append(row),
)
print(f"{policy.card['metrics']['return']:.0f} of {task.length} after {options.iterations} iterations")

# %%
plt.figure(figsize=(7, 3))
plt.plot([row["return"] for row in history])
plt.xlabel("iteration")
plt.ylabel("return")
plt.show()

# %% [markdown]
# ## What is it worth?
#
# Episodes without the noise of exploration, in the physics it learned in, and in MuJoCo, which it has never seen: one word
# changes.

# %%
found = fx.learn.evaluate({"policy": policy}, task, solvers=["ncp", "mujoco"], episodes=256)
for row in fx.learn.summary(found):
    print(f"{row['physics']:8} return {row['return']:.1f} +- {row['deviation']:.1f}")

# %% [markdown]
# ## A robot that differs
#
# The real pole is heavier or lighter than the description says, measurements are noisy, and commands arrive late. A task
# declares it, and training on it is the same call.

# %%
envs = fx.envs
real = envs.Randomised(
    task,
    {"body.pole.mass": envs.Scaled(0.5, 2.0), "joint.*.damping": envs.Between(0.0, 0.2)},
    noise=0.01,
    latency=(0.0, 0.04),
)
robust = fx.learn.train(real, algorithm=fx.learn.PPO(sizes=(32, 32), activation="tanh", minibatches=4), options=options)
both = {"trained on one robot": policy, "trained on many": robust}
for row in fx.learn.summary(fx.learn.evaluate(both, real, episodes=256)):
    print(f"{row['policy']:22} return {row['return']:.1f} +- {row['deviation']:.1f}")

# %% [markdown]
# ## Look at it, take it along
#
# `policy.save` writes weights and a card. A policy is called with NumPy arrays, without JAX;
# `policy.export("policy.onnx")` writes it for other programs. `flexor play policy.safetensors --html play.html` shows it.

# %%
path = policy.save("balance.safetensors")
motion, terms = fx.learn.play(policy, task, seed=3)
again = fx.learn.Policy.load(path)
print(again(np.array([0.0, 0.1, 0.0, 0.0], np.float32)))
plt.figure(figsize=(7, 3))
plt.plot(motion.time, motion.q, label=["cart, m", "pole, rad"])
plt.xlabel("time, s")
plt.legend()
plt.show()

# %% [markdown]
# `flexor tasks` lists the tasks that come with flexor: an ant that runs, quadrupeds and a G1 under a joystick, a Panda
# that reaches, and Gymnasium's own. `flexor train ant-run` learns one from the command line.
