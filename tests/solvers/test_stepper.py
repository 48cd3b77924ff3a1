"""The stepper gives the bits of `Simulator.step`, in place; the store of programs is bounded; `jax.jit` takes methods."""

import gc
import signal
import subprocess
import sys
import textwrap
import time

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import flexor as fx
from flexor.simd import store


def hybrid():
    made = fx.Blueprint()
    made.add("joint.passive_force", inputs=["joint.q", "joint.qd"], net=fx.nets.Dissipative(width=4))
    sim = fx.Simulator(fx.load("double_pendulum"), simd=True).augment(made)
    return eqx.tree_at(lambda s: s.augmentation, sim, jax.tree.map(lambda x: x + 0.1, sim.augmentation))


def learned():
    nerd = fx.nerd.load("cartpole")
    return fx.Simulator(nerd.model, nerd.solver(), dt=1 / 60, simd=True)


SIMULATORS = {
    "rigid": lambda: fx.Simulator(fx.load("cube"), simd=True),
    "hybrid": hybrid,
    "substeps": lambda: fx.Simulator(fx.load("cartpole"), fx.Substeps(fx.RigidSolver(), 3), simd=True),
    "learned": learned,
}


@pytest.mark.parametrize("name", SIMULATORS)
def test_bits_of_simulator_step(name):
    sim = SIMULATORS[name]()
    state = sim.reset(None, np.linspace(0.1, 0.5, sim.model.nv))
    stepper = sim.compile()
    stepper.reset(state)
    q, u = stepper.q, np.full(sim.model.nu, 0.1)
    for _ in range(5):
        state = sim.step(state, u)
        stepper.step(u)
    assert stepper.q is q
    for mine, other in zip(jax.tree.leaves(stepper.state), jax.tree.leaves(state), strict=True):
        np.testing.assert_array_equal(mine, other)


@pytest.fixture(scope="module")
def sim():
    return fx.Simulator(fx.load("double_pendulum"), dt=0.002, simd=True)


def test_a_batch_records_and_takes_parameters(sim):
    record, names = ["joint.acceleration"], ["joint.shoulder.damping"]
    rng = np.random.default_rng(0)
    q = rng.normal(size=(37, 2))
    runs = []
    for threads in (1, 2):
        stepper = sim.compile(batch=37, controls=("u", "tau"), record=record, parameters=names, threads=threads)
        stepper.reset(q)
        stepper.tau[:] = 0.3
        stepper.parameters["joint.shoulder.damping"][:] = np.linspace(0, 1, 37)
        for _ in range(3):
            stepper.step(np.ones((37, sim.model.nu)))
        runs.append((stepper.q.copy(), stepper.recorded["joint.acceleration"].copy()))
    for one, two in zip(*runs, strict=True):
        np.testing.assert_array_equal(one, two)
    k = 20
    other = fx.Simulator(fx.replace(sim.model, {names[0]: np.linspace(0, 1, 37)[k]}), sim.solver, dt=sim.dt, simd=False)
    control = fx.Control(jnp.ones(sim.model.nu), jnp.full(2, 0.3))
    trajectory = other.rollout(other.reset(q[k]), lambda s: control, steps=3, record=record)
    np.testing.assert_allclose(runs[0][0][k], trajectory.q[-1], rtol=1e-12)
    np.testing.assert_allclose(runs[0][1][k], trajectory.taps[record[0]][-1], rtol=1e-10)
    stepper.reset("level", where=[3, 5])
    np.testing.assert_array_equal(stepper.q[5], sim.reset("level").q)
    np.testing.assert_array_equal(stepper.q[4], runs[1][0][4])


def test_sentences(sim):
    stepper = sim.compile(controls=("tau",))
    with pytest.raises(ValueError, match="no input `u`"):
        stepper.step([0.0, 0.0])
    with pytest.raises(ValueError, match=r"must have shape \(2,\), got \(3,\)"):
        sim.compile().step(np.zeros(3))
    with pytest.raises(ValueError, match="selects robots of a batch"):
        stepper.reset(where=[0])
    with pytest.raises(ValueError, match="MujocoSolver does not compile to a kernel"):
        sim.with_solver(fx.MujocoSolver()).compile()
    with pytest.raises(ValueError, match="a control has no part 'force'"):
        sim.compile(controls=("force",))
    with pytest.raises(KeyError, match=r"matches 'joint\.knee"):
        sim.compile(parameters=["joint.knee*"])
    with pytest.raises(ValueError, match="`batch` must be a positive number"):
        sim.compile(batch=0)


@pytest.mark.parametrize("simd", [True, False])
def test_jit_takes_methods(simd):
    """The method of another simulator, at the address of one that is gone, must not find its program."""
    found = []
    gc.freeze()  # what other tests left behind, millions of objects, need not be looked through each time
    for length in (1.0, 2.0, 3.0):
        model = fx.replace(fx.load("pendulum"), {"joint.*.damping": 0.1 * length})
        sim = fx.Simulator(model, simd=simd)
        state = sim.reset(None, [1.0])
        step, roll = jax.jit(sim.step), jax.jit(sim.rollout, static_argnames="steps")
        np.testing.assert_allclose(step(state).qd, sim.step(state).qd, rtol=1e-14)
        np.testing.assert_allclose(roll(state, steps=2).q, sim.rollout(state, steps=2).q, rtol=1e-14)
        many = jax.tree.map(lambda x: jnp.stack([x, x]), state)
        assert jax.jit(jax.vmap(sim.step))(many).q.shape == (2, 1)
        slope = jax.grad(lambda v, s=sim: jax.jit(s.step)(s.reset(None, v)).qd[0])(jnp.ones(1))
        assert 0 < slope[0] < 1
        found.append(float(step(state).qd[0]))
        del sim, step, roll
        gc.collect()
    gc.unfreeze()
    assert len(set(found)) == 3


def test_an_eager_step_looks_a_simulator_through_once(sim, monkeypatch):
    from flexor.solvers import compiled

    state = sim.step(sim.reset())
    monkeypatch.setattr(compiled, "_Parts", None)  # would be called by a second look
    sim.step(state)


def test_the_store_is_bounded(monkeypatch):
    monkeypatch.setattr(store, "_kept", type(store._kept)())
    before = fx.simd.programs()
    for k in range(before.capacity + 5):
        assert store.keep(("test", k), lambda k=k: (k,)) == (k,)
    assert store.keep(("test", before.capacity), lambda: None) == (before.capacity,)
    after = fx.simd.programs()
    assert after.size == before.capacity
    assert after.dropped == before.dropped + 5
    assert (after.hits - before.hits, after.misses - before.misses) == (1, before.capacity + 5)


def test_ctrl_c_ends_a_compilation(tmp_path):
    """LLVM is replaced by a wait in C that holds out for a minute."""
    text = """
        import ctypes, flexor.simd.machine as machine
        machine._emit = lambda text: ctypes.CDLL(None).sleep(60)
        print("compiling", flush=True)
        try:
            machine.compile_object("")
        except KeyboardInterrupt:
            print("interrupted", flush=True)
    """
    process = subprocess.Popen([sys.executable, "-c", textwrap.dedent(text)], stdout=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "compiling\n"
    time.sleep(0.3)
    process.send_signal(signal.SIGINT)
    out, _ = process.communicate(timeout=30)
    assert out == "interrupted\n"
    assert process.returncode == 0
