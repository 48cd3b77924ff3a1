"""Policies of the package: they load, fit their tasks, and do what they were trained for."""

import numpy as np
import pytest

import flexor as fx
from flexor.learn import evaluate, load
from flexor.learn.policy import pretrained

MOST = 0.9  # of the return at the end of training, which was that of a noisy policy: some starts are harder than others


def test_each_is_for_the_task_of_its_name():
    assert {"cartpole", "ant-run", "quadruped-forward"} <= set(pretrained())
    for name in pretrained():
        policy = load(name)
        task = fx.envs.make(name)
        policy.check(task)
        assert policy.card["recipe"] == {"task": name, "options": {}, "solver": None}
        assert policy.card["physics"]["robot"] == task.sim.model.topology.name
        assert policy(np.zeros(task.observations, np.float32)).shape == (task.actions,)


def test_the_cart_swings_its_pole_up():
    policy = load("cartpole")
    (found,) = evaluate(policy, fx.envs.make("cartpole"), episodes=8)
    assert found.returns.min() > MOST * policy.card["metrics"]["return"]
    assert not found.ended.any()


@pytest.mark.parametrize(("name", "wanted"), [("ant-run", 2400.0), ("quadruped-forward", 1236.0)])  # NeRD's returns
def test_robots_on_legs_walk(name, wanted):
    policy = load(name)
    (found,) = evaluate(policy, fx.envs.make(name), episodes=4)
    assert found.returns.mean() > wanted
    assert not found.ended.any()


def test_what_is_said_about_names():
    with pytest.raises(KeyError, match=r"there is no policy 'cartpol' in the package \(there are .*cartpole"):
        load("cartpol")
    with pytest.raises(FileNotFoundError, match="there is no file"):
        load("cartpol.safetensors")
