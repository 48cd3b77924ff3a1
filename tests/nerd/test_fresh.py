"""Data drawn while a network is trained."""

import dataclasses

import equinox as eqx
import numpy as np
import pytest

import flexor as fx
from flexor.nerd import Frames, Fresh, NoBase, Ranges, Recipe, TokenSizes, Training, data, train
from flexor.nerd.fresh import pool_of

SMALL = TokenSizes(layers=1, width=8, contact_width=8, rounds=1)
HOW = Training(steps=4, batch=8, window=1, every=2)


@pytest.fixture(scope="module")
def sim():
    return fx.Simulator(fx.load("pendulum"), fx.Substeps(fx.RigidSolver(contact=None), 2), dt=1 / 60)


@pytest.fixture(scope="module", autouse=True)
def small_chunks():
    original, data.CHUNK = data.CHUNK, 24
    yield
    data.CHUNK = original


def test_parts_are_new_every_few_steps_and_a_function_of_their_number(sim):
    frames = Frames(sim.model.topology, float(sim.dt), base=NoBase(), jacobians=True)
    fresh = Fresh(Ranges(), length=5, steps=2, seed=1)
    pool, again = (pool_of(fresh, 0.05, 1, sim, frames) for _ in range(2))
    parts = [pool.at(step)[0].x for step in (0, 1, 2, 3)]
    assert parts[0] is parts[1]
    assert parts[2] is parts[3]
    apart = [np.abs(a - b).max() for a, b in ((parts[0], parts[2]), (parts[0], pool.first.x), (parts[2], pool.first.x))]
    assert min(apart) > 0.1
    assert np.array_equal(again.at(3)[0].x, parts[3])
    assert pool.at(0)[2] == len(parts[0]) == 24
    with pytest.raises(ValueError, match="fresh data need trajectories of two steps and a positive number of steps"):
        Fresh(steps=0)


def test_training_on_fresh_data_resumes_and_warns(sim, tmp_path):
    frames = Frames(sim.model.topology, float(sim.dt), base=NoBase(), jacobians=True)
    fresh = Fresh(Ranges(), length=5, steps=1)
    whole = train(sim, fresh, sizes=SMALL, frames=frames, options=HOW)

    def stop(done, total, loss):
        if done == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(sim, fresh, sizes=SMALL, frames=frames, options=HOW, out=tmp_path, progress=stop)
    resumed = train(sim, fresh, sizes=SMALL, frames=frames, options=HOW, out=tmp_path)
    assert eqx.tree_equal(resumed.network, whole.network)
    assert resumed.card["data"]["fresh"] is True
    assert resumed.ranges == Ranges()
    assert resumed.doubt is not None
    other = dataclasses.replace(fresh, ranges=Ranges(qd={"hinge": (-0.1, 0.1)}))
    with pytest.raises(ValueError, match="belongs to another run"):
        train(sim, other, sizes=SMALL, frames=frames, options=HOW, out=tmp_path)
    table = {"robot": "pendulum", "base": "none", "network": "tokens", "fresh": 3}
    recipe = Recipe.of(table)
    assert Recipe.of(recipe.table()) == recipe
    with pytest.raises(ValueError, match="the recipe asks for a data set: give its path, or say `fresh`"):
        dataclasses.replace(recipe, fresh=0).train()
