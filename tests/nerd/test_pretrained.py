"""The solvers of the package move as they always have, and their files, of version 1, are as good as new ones."""

import json
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import flexor as fx
from flexor.nerd import CoarseContact, NoBase, Recipe

REFERENCE = json.loads((Path(__file__).parent / "pretrained.json").read_text())  # XLA, single precision, as first published


@pytest.mark.parametrize("name", REFERENCE)
def test_ten_steps_under_controls_as_first_published(name):
    """Rounding alone differs from one processor to another: 1.3e-5 between XLA and kernels, in which impacts are amplified."""
    nerd = fx.nerd.load(name)
    sim = fx.Simulator(nerd.model.astype(jnp.float32), nerd.solver(), dt=nerd.dt)
    u = np.random.default_rng(0).uniform(-0.5, 0.5, (8, 40, nerd.model.nu))[4:7, :10].astype(np.float32)
    start, end = (
        [np.array(REFERENCE[name][when][x], np.float32) for x in ("q", "qd")] for when in ("start", "after 10 steps")
    )
    last = jax.jit(jax.vmap(lambda q, qd, u: (lambda run: (run.q[-1], run.qd[-1]))(sim.rollout(sim.reset(q, qd), u))))
    for value, expected in zip(last(*start, jnp.asarray(u)), end, strict=True):
        assert value.dtype == jnp.float32
        assert np.abs(value - expected).max() < 1e-4
    assert np.abs(end[1] - start[1]).max() > 0.1


@pytest.mark.parametrize(("name", "base"), [("cartpole", NoBase()), ("cube", CoarseContact(20))])
def test_old_files_tell_the_same_as_new_ones(name, base, tmp_path):
    old = fx.nerd.load(name)
    assert old.card["version"] == 1
    assert old.frames.base == base
    assert old.ranges == Recipe.read(name).ranges
    assert old.true_simulator().solver == Recipe.read(name).simulator().solver
    new = fx.nerd.load(old.save(tmp_path / "new.safetensors"))
    assert new.card["version"] == 2
    assert new.frames == old.frames
    assert new.ranges == old.ranges
    assert new.truth == old.truth
    for part in ("model", "network"):
        a, b = (jax.tree.leaves(getattr(x, part)) for x in (old, new))
        assert all(x.dtype == y.dtype and np.array_equal(x, y) for x, y in zip(a, b, strict=True))
