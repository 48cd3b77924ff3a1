"""The transformer with and without its cache, and the learned solver behind the ordinary interface."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import flexor as fx
from flexor.model.model import as_control
from flexor.nerd import Frames, FreeFlight, Nerd, NerdSolver, NoBase, Sizes, Transformer, disagreement
from flexor.nerd.network import Norms

SMALL = Sizes(layers=2, width=16, heads=2, history=4)


def network(n_in, n_out, members=1, dtype=jnp.float64, seed=0):
    rng = np.random.default_rng(seed)
    norms = Norms(
        *(jnp.asarray(x) for x in (rng.normal(size=n_in), 1 + rng.random(n_in), np.zeros(n_out), 0.01 * np.ones(n_out)))
    )
    keys = jax.random.split(jax.random.key(seed), members)
    return eqx.filter_jit(eqx.filter_vmap(lambda k: Transformer.build(SMALL, norms, k, dtype)))(keys)


@pytest.fixture(scope="module")
def cube():
    model = fx.load("cube").astype(jnp.float64)
    frames = Frames(model.topology, 1 / 148, base=FreeFlight())
    return Nerd(model, network(len(frames.labels), frames.outputs, members=2), frames)


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.float64])
def test_a_sliding_window_gives_what_a_whole_sequence_gives(dtype):
    net = jax.tree.map(lambda x: x[0], network(5, 3, dtype=dtype))
    x = jnp.asarray(np.random.default_rng(0).normal(size=(15, 5)), dtype)
    step = jax.jit(lambda cache, row: net.step(row, cache)[::-1])
    steps = jax.lax.scan(step, net.begin(), x)[1]
    whole = jax.jit(lambda x: net.sequence(x))(x)
    assert np.abs(steps - whole).max() < 50 * jnp.finfo(dtype).eps * np.abs(whole).max()


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.float64])
def test_a_step_after_millions_is_as_exact_as_the_first_ones(dtype):
    net = jax.tree.map(lambda x: x[0], network(5, 3, dtype=dtype))
    x = jnp.asarray(np.random.default_rng(0).normal(size=(15, 5)), dtype)
    step = jax.jit(lambda cache, row: net.step(row, cache)[::-1])
    late = eqx.tree_at(lambda c: c.count, net.begin(), jnp.asarray(50_000_000 * SMALL.history, jnp.int32))
    early, late = (np.asarray(jax.lax.scan(step, cache, x)[1]) for cache in (net.begin(), late))
    full = SMALL.layers * SMALL.history  # from here on nothing before the first of these steps is seen
    assert np.abs(late - early)[full:].size > 0
    assert np.abs(late - early)[full:].max() < 50 * jnp.finfo(dtype).eps * np.abs(early).max()


def test_the_window_reaches_as_far_as_the_layers_take_it_and_no_further():
    net = jax.tree.map(lambda x: x[0], network(5, 3))
    x = jnp.asarray(np.random.default_rng(0).normal(size=(20, 5)))
    influence = jax.jit(jax.jacobian(lambda x: net.sequence(x)[-1]))(x)
    felt = np.abs(influence).max(axis=(0, 2)) > 0
    reach = SMALL.layers * (SMALL.history - 1)  # each layer looks `history` - 1 steps back from what the layer below saw
    assert felt[-reach - 1 :].all()
    assert not felt[: -reach - 1].any()


def test_predictions_do_not_change_when_the_scene_is_moved(cube):
    from tests.nerd.test_frames import moved

    sim = cube.simulator()
    q, qd = cube.model.reference.at[2].set(0.06), jnp.arange(6) / 5
    shift = jnp.array([2.0, -1.0, 0.5])
    move = jax.jit(lambda q, qd: moved(cube.model, cube.frames, q, qd, 1.1, shift)[1:])
    there = moved(cube.model, cube.frames, q, qd, 1.1, shift)
    run = sim.rollout(sim.reset(q, qd), steps=6)
    other = fx.Simulator(there[0], cube.solver(), dt=cube.dt)
    moved_run = other.rollout(other.reset(*there[1:]), steps=6)
    expected = jax.vmap(move)(run.q, run.qd)
    assert np.abs(expected[0] - moved_run.q).max() < 1e-9
    assert np.abs(expected[1] - moved_run.qd).max() < 1e-9


def test_jit_vmap_scan_and_grad(cube):
    sim = cube.simulator()
    starts = jnp.stack([cube.model.reference.at[2].set(z) for z in (0.06, 0.2, 0.5)])

    def heights(q, speed):
        return sim.rollout(sim.reset(q, jnp.zeros(6).at[2].set(speed)), steps=3).q[:, 2]

    speeds = 0.3 + 1e-6 * jnp.array([0.0, 1.0, -1.0])
    many = jax.jit(jax.vmap(lambda q: jax.vmap(lambda v: heights(q, v))(speeds)))(starts)
    one, slope = jax.jit(jax.value_and_grad(lambda v: heights(starts[1], v)[-1]))(0.3)
    assert abs(many[1, 0, -1] - one) < 1e-12
    assert float(slope) == pytest.approx(float(many[1, 1, -1] - many[1, 2, -1]) / 2e-6, rel=1e-6)


def test_a_bare_state_starts_with_an_empty_window(cube):
    solver = cube.solver()
    state = fx.State(cube.model.reference, jnp.zeros(6), jnp.zeros(()))
    sim = fx.Simulator(cube.model, solver, dt=cube.dt)
    bare = jax.jit(lambda s: solver.step(cube.model, s, as_control(cube.model, None), sim.dt))(state)
    assert np.abs(bare.q - sim.step(sim.reset()).q).max() < 1e-14
    assert disagreement(bare) > 0
    with pytest.raises(TypeError, match="was not computed by a NerdSolver"):
        disagreement(state)


def test_it_says_what_it_is_not_for(cube):
    with pytest.raises(ValueError, match="trained for 'cube', and this is 'cartpole'"):
        fx.Simulator(fx.load("cartpole"), cube.solver(), dt=cube.dt)
    solver = NerdSolver(cube.network, cube.frames)
    with pytest.raises(ValueError, match=r"time steps of 0\.00675676 s and cannot step by 0\.01 s"):
        solver.step(cube.model, fx.State(cube.model.reference, jnp.zeros(6), jnp.zeros(())), None, jnp.asarray(0.01))
    with pytest.raises(ValueError, match="multiple of twice the 4 heads"):
        Sizes(width=20, heads=4)


def test_files(cube, tmp_path):
    path = tmp_path / "cube.safetensors"
    half = Nerd(cube.model.astype(jnp.float32), jax.tree.map(lambda x: x.astype(jnp.float32), cube.network), cube.frames)
    half.save(path)
    again = fx.nerd.load(path, half.model)
    assert eqx.tree_equal(again.network, half.network)
    assert again.card["members"] == 2
    with pytest.raises(ValueError, match="joints or contacts are not those of 'cartpole'"):
        fx.nerd.load(path, fx.load("cartpole"))
    path.write_bytes(path.read_bytes()[:-10])
    with pytest.raises(ValueError, match="is corrupt, or not the file that"):
        fx.nerd.load(path)
    path.with_suffix(".json").unlink()
    with pytest.raises(FileNotFoundError, match=r"a \.safetensors and the \.json"):
        fx.nerd.load(path)
    with pytest.raises(KeyError, match="no pretrained solver 'pianist'"):
        fx.nerd.load("pianist")


def test_kernels_give_what_xla_gives(monkeypatch):
    monkeypatch.setattr("flexor.solvers.compiled.CONSTANT", 100)  # weights as arguments, as of networks of a useful size
    model = fx.load("cartpole").astype(jnp.float64)
    frames = Frames(model.topology, 1 / 60)
    nerd = Nerd(model, network(len(frames.labels), frames.outputs), frames)
    runs = []
    for simd in (True, False):
        sim = fx.Simulator(model, nerd.solver(), dt=nerd.dt, simd=simd)
        runs.append(jax.jit(jax.vmap(lambda q, sim=sim: sim.rollout(sim.reset(q), steps=6).q))(jnp.ones((3, 2)) / 3))
    assert np.abs(runs[0] - runs[1]).max() < 1e-13
    assert np.abs(runs[0][:, -1] - 1 / 3).max() > 1e-4


def test_wrenches_act_through_the_base_step(cube):
    """In flight a pushed cube moves as the rigid one; without a base step the push would be lost, and is refused."""
    learned = cube.simulator()
    true = learned.with_solver(fx.RigidSolver())
    start, push = cube.model.reference.at[2].set(1.0), jnp.zeros((2, 6)).at[1, 3:].set(jnp.array([1.0, -2.0, 0.5]))
    controls = fx.Control(wrench=jnp.tile(push, (4, 1, 1)))
    found, wanted = (sim.rollout(sim.reset(start), controls) for sim in (learned, true))
    assert np.abs(found.q - wanted.q).max() < 1e-12
    assert np.abs(found.qd[-1]).max() > 0.1
    frames = Frames(cube.model.topology, 1 / 148, base=NoBase())
    deaf = fx.Simulator(cube.model, NerdSolver(network(len(frames.labels), frames.outputs), frames), dt=1 / 148)
    with pytest.raises(ValueError, match="wrenches on bodies act through a base step, and it has none"):
        deaf.rollout(deaf.reset(start), controls)
    with pytest.raises(ValueError, match="wrenches on bodies"):
        deaf.step(deaf.reset(start), fx.Control(wrench=push))
