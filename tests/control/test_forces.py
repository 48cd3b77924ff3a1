"""OSQP and a network in the place of the solver."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import flexor as fx
from flexor.control import InteriorPoint, Osqp, Twin, Walked
from flexor.control.twin import INPUTS, features
from tests.control.problems import HORIZON, problems


def test_osqp_inside_jax_gives_the_solver_s_forces():
    p = jax.tree.map(lambda x: x[0], problems("trot", 1, jnp.float32))
    own, other = fx.simd.jit(InteriorPoint())(p), jax.jit(Osqp(tolerance=1e-6))(p)
    assert bool(other.converged)
    weight = float(p.mass * p.gravity)
    np.testing.assert_allclose(own.forces / weight, other.forces / weight, atol=1e-3)
    flying = jax.tree.map(lambda x: x, p)
    flying = type(p)(**{**vars(flying), "contact": jnp.zeros_like(p.contact)})
    assert float(jnp.abs(Osqp()(flying).forces).max()) == 0


def test_a_network_is_kept_and_an_altered_one_refused(tmp_path):
    twin = Twin.fresh(jax.random.key(1), width=8)
    again = Twin.load(twin.save(tmp_path / "twin", {"robot": "quadruped"}))
    jax.tree.map(np.testing.assert_array_equal, twin, again)
    file = tmp_path / "twin" / "weights.safetensors"
    file.write_bytes(file.read_bytes()[:-4] + b"0000")
    with pytest.raises(ValueError, match=r"weights\.safetensors"):
        Twin.load(tmp_path / "twin")


def test_a_network_sees_the_inputs_of_the_paper_and_obeys_the_bounds():
    p = jax.tree.map(lambda x: x[0], problems("trot", 1, jnp.float32))
    seen = np.asarray(features(p))
    assert seen.shape == (INPUTS,)
    np.testing.assert_array_equal(seen[:3], p.start[9:12])
    np.testing.assert_array_equal(seen[9:13], p.contact[0])
    np.testing.assert_array_equal(seen[13:25].reshape(4, 3), p.arms[0])
    twin = Twin.fresh(jax.random.key(0))
    assert sum(x.size for x in (*twin.weights, *twin.biases)) == 84_492  # as shipped with the paper
    found = fx.simd.jit(twin)(p)
    assert found.forces.shape == (HORIZON, 4, 3)
    standing = np.asarray(p.contact[0]) > 0
    f = np.asarray(found.forces[0])
    assert np.all(f[~standing] == 0)
    assert np.all(f[standing, 2] >= float(p.low))
    assert np.all(np.abs(f[:, :2]) <= 0.45 * f[:, 2:] + 1e-4)


def test_a_walk_is_judged_by_its_trajectory():
    class Standing:
        class legs:
            level = staticmethod(lambda model: 0.0)

        model, stand = None, np.array([0, 0, 0.4])

    time = np.linspace(0, 4, 401)
    q = np.zeros((401, 19))
    q[:, 2], q[:, 3], q[:, 6] = 0.4, np.cos(0.1 * time), np.sin(0.1 * time)  # turns at 0.2 rad/s
    qd = np.zeros((401, 18))
    qd[:, 0], qd[:, 1] = 0.5 * np.cos(0.2 * time), 0.5 * np.sin(0.2 * time)
    found = Walked.of(Standing(), time, q, qd)
    np.testing.assert_allclose(found.velocity, [0.5, 0, 0.2], atol=1e-9)
    assert not found.fell
    q[300:, 2] = 0.1
    found = Walked.of(Standing(), time, q, qd)
    assert found.fell
    assert found.when == time[300]
