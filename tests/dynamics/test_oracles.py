"""Every quantity of the dynamics against MuJoCo and Pinocchio, in both precisions, one robot at a time and under vmap."""

from functools import cache

import jax
import jax.numpy as jnp
import mujoco
import numpy as np
import pytest

from benchmarks._mujoco_oracle import MujocoOracle
from benchmarks._quantities import QUANTITIES, Instant, flexor_quantities, random_instants, random_points
from flexor.robots import example_robots, load
from tests.dynamics.robots import NASTY

COUNT = 4
URDFS = {"double_pendulum_continuous": True, "ur5_robot": False}

# Quantities are sums and products along chains of some ten joints, of numbers with a spread of about 10; accelerations lose
# another factor of the condition number of M, which is below 1e4 for these robots.
ROUNDINGS = 100
CONDITION = 1e4


def oracle_pinocchio(name, model, points):
    pytest.importorskip("pinocchio")
    from benchmarks._pinocchio_oracle import PinocchioOracle

    return PinocchioOracle(example_robots()[name], model, points, floating=URDFS[name])


@cache
def compared(name):
    """The model, instants, points, and the oracle's answers."""
    rng = np.random.default_rng(3)
    if name != "nasty" and name not in example_robots():
        pytest.skip("example-robot-data is not installed")
    model = load(NASTY) if name == "nasty" else load(name, floating=URDFS[name])
    points, instants = random_points(model, rng), random_instants(model, rng, COUNT)
    if name == "nasty":
        oracle = MujocoOracle(mujoco.MjModel.from_xml_string(NASTY), model, points)
    else:
        oracle = oracle_pinocchio(name, model, points)
    answers = [oracle(Instant(*(x[k] for x in instants))) for k in range(COUNT)]
    return model, instants, points, {q: np.array([a[q] for a in answers]) for q in QUANTITIES}


@cache
def found(name, dtype):
    model, instants, points, _ = compared(name)
    program = jax.jit(jax.vmap(flexor_quantities(points), (None, 0)))
    return program(model.astype(dtype), jax.tree.map(lambda x: jnp.asarray(x, dtype), instants))


@pytest.mark.parametrize("quantity", QUANTITIES)
@pytest.mark.parametrize(("name", "dtype"), [("nasty", "float64"), ("nasty", "float32"), *((u, "float64") for u in URDFS)])
@pytest.mark.filterwarnings("ignore::flexor.model.description.ModelWarning")
def test_quantity(name, quantity, dtype):
    wanted = compared(name)[3][quantity]
    got = found(name, dtype)[quantity]
    assert got.dtype == dtype
    tolerance = ROUNDINGS * jnp.finfo(dtype).eps * np.abs(wanted).max() * (CONDITION if quantity == "aba" else 1)
    np.testing.assert_allclose(got, wanted, atol=tolerance, rtol=0)


def test_one_robot_is_a_row_of_the_batch():
    model, instants, points, _ = compared("nasty")
    alone = jax.jit(flexor_quantities(points))(model, Instant(*(x[1] for x in instants)))
    for quantity, rows in found("nasty", "float64").items():
        size = float(jnp.abs(rows).max())
        tolerance = ROUNDINGS * np.finfo(float).eps * size * (CONDITION if quantity == "aba" else 1)
        np.testing.assert_allclose(alone[quantity], rows[1], atol=tolerance, rtol=0)
