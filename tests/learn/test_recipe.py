"""Recipes: settings for tasks that exist, and for any other."""

import flexor as fx
from flexor.envs import TASKS, make
from flexor.learn import PPO, RECIPES, Training, recipe
from tests.learn.test_loop import balance


def test_recipes_are_those_of_tasks():
    names = {make(name).name for name in TASKS}
    assert set(RECIPES) <= names
    assert recipe(make("cartpole")).algorithm.sizes == (64, 64)
    for found in RECIPES.values():
        assert found.options.robots % found.algorithm.minibatches == 0


def test_any_other_task_has_the_defaults_with_stretches_no_longer_than_its_episodes():
    found = recipe(balance())
    assert found.algorithm == PPO()
    assert found.options == Training(steps=12)


def test_training_follows_the_recipe(monkeypatch):
    options = Training(robots=8, steps=4, iterations=1)
    short = fx.learn.Recipe(PPO(sizes=(3,), minibatches=2), options)
    monkeypatch.setitem(RECIPES, "Balance", short)
    card = fx.learn.train(balance()).card
    assert card["algorithm"]["sizes"] == (3,)
    assert card["training"]["robots"] == 8
