"""A sweep over recipes gives what each recipe gives alone."""

import dataclasses

import numpy as np
import pytest

from flexor.cluster import AbstractExecutor, Local
from flexor.nerd import Recipe, Sizes, TokenSizes, Training, sweep, with_seeds

SMALL = Recipe(
    "pendulum", contact="none", transitions=60, length=6, base="none", sizes=Sizes(layers=1, width=8, heads=2, history=2),
    training=Training(steps=2, batch=4, window=4, every=2),
)  # fmt: skip


class Counted(AbstractExecutor):
    """The works that were begun."""

    def __init__(self):
        self.works = []

    def stream(self, work, tasks):
        self.works.append(work.prepare.__name__)
        return Local().stream(work, tasks)


def test_recipes_that_draw_fresh_data_have_no_data_set(tmp_path):
    sizes = TokenSizes(layers=1, width=8, contact_width=8, rounds=1)
    recipe = dataclasses.replace(
        SMALL, network="tokens", sizes=sizes, fresh=1, training=dataclasses.replace(SMALL.training, window=1)
    )
    assert list(sweep({"fresh": recipe}, tmp_path)) == ["fresh"]
    assert not list(tmp_path.glob("*.h5"))


def test_a_sweep_gives_what_each_recipe_gives_alone(tmp_path):
    who, seen = Counted(), []
    recipes = with_seeds({"pendulum": SMALL}, [0, 3])
    found = sweep(recipes, tmp_path, executor=who, progress=lambda *x: seen.append(x))
    assert list(found) == ["pendulum-seed0", "pendulum-seed3"]
    assert who.works == ["chunks", "_trainer"]  # one data set for both
    assert seen[-2:] == [("training", 1, 2), ("training", 2, 2)]
    alone = SMALL.train(SMALL.sample(tmp_path / "alone.h5"))
    np.testing.assert_array_equal(found["pendulum-seed0"].network.embed, alone.network.embed)
    assert not np.array_equal(found["pendulum-seed3"].network.embed, alone.network.embed)
    with pytest.raises(ValueError, match="there are no recipes"):
        sweep({}, tmp_path)
