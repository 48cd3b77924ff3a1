import jax
import jax.numpy as jnp
import numpy as np
import pytest

from benchmarks._quantities import random_instants
from flexor.robots import load
from tests.dynamics.robots import NASTY


@pytest.fixture(scope="session")
def model():
    return load(NASTY)


@pytest.fixture(scope="session")
def at(model):
    """A random instant of its motion."""
    return jax.tree.map(lambda x: jnp.asarray(x[0]), random_instants(model, np.random.default_rng(7), 1))
