"""FLEXOR_SIMD_LEVEL: LLVM works less, and the numbers are the same."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import flexor as fx
from flexor.simd import machine, store


@pytest.fixture
def run():
    """A rollout and its gradient: impacts, friction, elementary functions, loops."""
    model = fx.load("double_pendulum_contact")
    sim = fx.Simulator(model, dt=0.004, simd=False)

    def end(qd):
        state = fx.State(model.reference, qd, jnp.zeros((), model.dtype))
        return jnp.sum(sim.rollout(sim.solver.init(model, state), steps=20).q ** 2)

    return jax.value_and_grad(end), jnp.asarray(np.random.default_rng(0).normal(size=(5, model.nv)), model.dtype)


def test_every_level_gives_the_same_bits(run, monkeypatch):
    f, qd = run
    results, counts = [], []
    for level in ("0", "2"):
        monkeypatch.setenv("FLEXOR_SIMD_LEVEL", level)
        store.clear()
        results.append(jax.tree.map(np.asarray, fx.simd.vmap(lambda x, level=level: f(x))(qd)))
        figures = fx.simd.programs()
        counts.append(figures.compiled + figures.from_disk)
    assert counts[1] > counts[0]
    assert np.isfinite(results[0][0]).all()
    jax.tree.map(np.testing.assert_array_equal, *results)


def test_large_kernels_are_optimised_at_any_level(run, monkeypatch):
    """At level 0 they would need more stack than a thread has."""
    levels = []
    target = machine._target_machine
    monkeypatch.setattr(machine, "_target_machine", lambda level: levels.append(level) or target(level))
    monkeypatch.setenv("FLEXOR_SIMD_LEVEL", "0")
    fx.simd.vmap(lambda x: jnp.sin(x) * 0.123)(jnp.arange(3.0))
    monkeypatch.setattr(machine, "MOST_TEXT", 100)
    fx.simd.vmap(lambda x: jnp.sin(x) * 0.321)(jnp.arange(3.0))
    assert levels[0] == 0
    assert levels[-1] == 2


def test_other_levels_are_refused(monkeypatch):
    monkeypatch.setenv("FLEXOR_SIMD_LEVEL", "fast")
    with pytest.raises(ValueError, match=r"FLEXOR_SIMD_LEVEL must be 0, 1, 2 or 3, got 'fast'"):
        fx.simd.vmap(lambda x: x * 0.777)(jnp.arange(3.0))
