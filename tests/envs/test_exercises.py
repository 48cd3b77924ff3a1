"""Exercises: where they begin, that standing still solves none, and the jump's geometry against MuJoCo's."""

import jax.numpy as jnp
import numpy as np
import pytest

import flexor as fx
from flexor.envs import EXERCISES, exercise
from flexor.envs.exercises import EDGE, HEIGHT, pose
from flexor.solvers.mujoco import mujoco_model


@pytest.mark.parametrize("name", [n for n in EXERCISES if n != "panda-reach"])
def test_staying_at_the_start_solves_no_exercise(name):
    what = exercise(name)
    what.objective.check(what.sim)
    q = jnp.stack([what.start.q] * 2)
    still = fx.Trajectory(jnp.zeros(2), q, jnp.zeros((2, what.sim.model.nv)), jnp.zeros((1, what.sim.model.nu)), {}, None,
                          what.sim.model.topology)  # fmt: skip
    assert any(f.value > f.limit for f in what.judge(still))


def test_the_jump_is_onto_a_platform_that_is_there():
    what = exercise("quadruped-jump")
    m = mujoco_model(what.sim.model)
    platform = m.geom("platform")
    top, edge = platform.pos[2] + platform.size[2], platform.pos[0] - platform.size[0]
    np.testing.assert_allclose([top, edge], [HEIGHT, EDGE])
    assert what.start.q[0] + 0.22 + 0.0265 < edge  # its front feet stand before it


def test_a_pose_is_judged_by_its_farthest_joint():
    model = fx.load("double_pendulum")
    what = pose(fx.Simulator(model, dt=0.01), np.array([0.3, -0.2]), None, 5, 0.1)
    assert np.asarray(what.objective.running(what.start, np.array([5.0, 0.0]))).tolist()[-2:] == [0.1, 0.0]
    q = jnp.array([[0.0, 0.0], [0.3, 0.3]])
    made = fx.Trajectory(jnp.zeros(2), q, jnp.zeros((2, 2)), jnp.zeros((1, 2)), {}, None, model.topology)
    place, _ = what.judge(made)
    np.testing.assert_allclose(place.value, 0.5)
    assert "elbow" in place.what


def test_an_unknown_exercise_is_a_sentence():
    with pytest.raises(KeyError, match="Did you mean 'acrobot'"):
        exercise("acrobat")
