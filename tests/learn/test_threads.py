"""What is learned from a stretch does not depend on the cores that XLA may use: the same bits on one and on all."""

import os
import subprocess
import sys

import pytest

UPDATES = """
import hashlib, os, sys
os.sched_setaffinity(0, [int(c) for c in sys.argv[1].split(",")])
import jax, jax.numpy as jnp, numpy as np
from flexor.learn import Experience
from flexor.learn.ppo import PPO, first, update
from flexor.learn import shac

rng, robots, steps, n, m = np.random.default_rng(0), 256, 32, 29, 8
draw = lambda *shape: jnp.asarray(rng.normal(size=shape), jnp.float32)
no = jnp.zeros((robots, steps), bool)
lived = Experience(draw(robots, steps, n), draw(robots, steps, m), draw(robots, steps, m), draw(robots, steps), no, no,
                   draw(robots, n), draw(robots, n), None)
ppo, key = PPO(minibatches=2, epochs=1), jax.random.key(0)
learner = first(ppo, n, m, key, jnp.float32)
other = shac.SHAC(minibatches=1, epochs=1)
memory, critic_memory = (shac.adam(other).init(x) for x in ((learner.actor.net, learner.actor.log_deviation), learner.critic))
analytic = shac.ShacLearner(learner.actor, learner.critic, learner.critic, memory, critic_memory, learner.rate)
found = update(ppo, learner, lived, key), shac.update(other, analytic, lived, draw(robots, steps, m), draw(robots, steps), key)
digest = hashlib.sha256()
for x in jax.tree.leaves(found):
    digest.update(np.asarray(x).tobytes())
print(digest.hexdigest())
"""


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="processes cannot be bound to cores here")
def test_updates_are_the_same_on_one_core_and_on_all():
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) == 1:
        pytest.skip("there is one core only")

    def digest(some):
        command = [sys.executable, "-c", UPDATES, ",".join(map(str, some))]
        environment = {name: x for name, x in os.environ.items() if name != "XLA_FLAGS"}  # as users compile
        return subprocess.run(command, capture_output=True, text=True, check=True, env=environment).stdout

    assert digest(cores[:1]) == digest(cores)
