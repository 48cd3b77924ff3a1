"""Data sets and training: whole files, resumed runs with the same bits, and sentences for what is wrong."""

import equinox as eqx
import h5py
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import flexor as fx
from flexor.nerd import (
    Contribution,
    NoBase,
    Passive,
    Planes,
    Ranges,
    Sizes,
    Training,
    base_alone,
    data,
    evaluate_passive,
    read,
    sample,
    train,
)
from flexor.nerd.frames import Frames
from flexor.nerd.training import kept_steps

SMALL = Sizes(layers=1, width=16, heads=2, history=4)
QUICK = Training(steps=6, batch=8, window=6, every=2)
ARRAYS = ("states", "next_states", "joint_acts", "root_body_q", "gravity_dir", "contact_normals", "contact_depths")


def everything(sim):
    """Nothing touches a pendulum: all of its dynamics is learned."""
    return Frames(sim.model.topology, float(sim.dt), base=NoBase())


@pytest.fixture(scope="module", autouse=True)
def small_chunks():
    original, data.CHUNK = data.CHUNK, 8
    yield
    data.CHUNK = original


@pytest.fixture(scope="module")
def sim():
    return fx.Simulator(fx.load("pendulum"), fx.Substeps(fx.RigidSolver(contact=None), 2), dt=1 / 60)


@pytest.fixture(scope="module")
def path(sim, tmp_path_factory):
    return sample(sim, Ranges(), 200, tmp_path_factory.mktemp("data") / "pendulum.h5", length=10, seed=3)


def test_a_data_set_holds_what_the_simulator_does(sim, path):
    found = read(path, sim.model)
    assert found.shape == (20, 10)
    with h5py.File(path) as file:
        assert set(ARRAYS) <= set(file["data"])
        attrs = dict(file["data"].attrs)
    assert attrs["mode"] == "trajectory"
    assert attrs["total_transitions"] == 200
    assert {"robot", "model", "ranges", "seed", "hash", "dropped", "jax"} <= set(attrs)
    truth = sim
    s = found.scene
    for i, k in ((0, 0), (7, 4)):
        control = fx.Control(tau=jnp.asarray(s.torque[i, k]))
        after = truth.step(truth.reset(s.q[i, k], s.qd[i, k]), control)
        assert np.abs(np.asarray(after.q) - found.next_q[i, k]).max() < 1e-5
        assert np.abs(np.asarray(after.qd) - found.next_qd[i, k]).max() < 1e-4
    assert np.array_equal(s.q[:, 1:], found.next_q[:, :-1])


def test_an_interrupted_sampling_goes_on_to_the_same_bits(sim, path, tmp_path):
    class Stop(Exception):
        pass

    def stop(done, total):
        if done >= 100:
            raise Stop

    again = tmp_path / "again.h5"
    with pytest.raises(Stop):
        sample(sim, Ranges(), 200, again, length=10, seed=3, progress=stop)
    with pytest.raises(FileNotFoundError, match=r"unfinished 'again\.h5\.part'"):
        read(again, sim.model)
    with pytest.raises(ValueError, match="started with another seed"):
        sample(sim, Ranges(), 200, again, length=10, seed=4)
    sample(sim, Ranges(), 200, again, length=10, seed=3)
    with h5py.File(path) as a, h5py.File(again) as b:
        for name in a["data"]:
            assert np.array_equal(a["data"][name], b["data"][name])
        assert a.attrs["hash"] == b.attrs["hash"]


def test_random_planes_are_seen_by_the_contacts(tmp_path):
    sim = fx.Simulator(fx.load("cube"), dt=1 / 148)
    ranges = Ranges(q={"root.z": (0.5, 0.6)}, planes=Planes(tilt=0.5, offset=(-0.1, 0.1)))
    found = read(sample(sim, ranges, 40, tmp_path / "cube.h5", length=5), sim.model)
    normals = found.scene.normal[:, 0, 0]
    assert np.abs(np.linalg.norm(normals, axis=-1) - 1).max() < 1e-5
    assert np.std(normals[:, 0]) > 0.05


def test_bad_requests_and_files(sim, path, tmp_path):
    with pytest.raises(KeyError, match="no q of 'pendulum' matches 'knee'"):
        sample(sim, Ranges(q={"knee": (0, 1)}), 10, tmp_path / "x.h5")
    with pytest.raises(ValueError, match="has no plane"):
        sample(sim, Ranges(planes=Planes()), 10, tmp_path / "x.h5")
    with pytest.raises(FileNotFoundError, match="does not exist"):
        sample(sim, Ranges(), 10, tmp_path / "no" / "x.h5")
    with pytest.raises(ValueError, match="data set of 'pendulum', not of 'cube'"):
        read(path, fx.load("cube"))
    broken = tmp_path / "broken.h5"
    broken.write_bytes(path.read_bytes()[:1000])
    with pytest.raises(ValueError, match="is not a data set, or it is corrupt"):
        read(broken, sim.model)
    with pytest.raises(FloatingPointError, match="nearly all trajectories of 'pendulum' diverge"):
        sample(sim, Ranges(qd={"*": (1e6, 1e6)}), 10, tmp_path / "wild.h5", length=2)


def test_training_is_reproducible_and_resumes_to_the_same_weights(sim, path, tmp_path):
    found = read(path, sim.model)
    whole = train(sim, found, sizes=SMALL, frames=everything(sim), options=QUICK)

    class Stop(Exception):
        pass

    def stop(done, total, loss):
        if done == 4:
            raise Stop

    with pytest.raises(Stop):
        train(sim, found, sizes=SMALL, frames=everything(sim), options=QUICK, out=tmp_path, progress=stop)
    resumed = train(sim, found, sizes=SMALL, frames=everything(sim), options=QUICK, out=tmp_path)
    assert whole.card["history"] == resumed.card["history"]
    for a, b in zip(jax.tree.leaves(whole.network), jax.tree.leaves(resumed.network), strict=True):
        assert np.array_equal(a, b)
    assert (tmp_path / "history.csv").read_text().count("\n") == 4
    with pytest.raises(ValueError, match=r"the data set has steps of 0\.0166667 s, but the network has steps of 0\.02 s"):
        train(sim, found, sizes=SMALL, frames=Frames(sim.model.topology, 0.02, base=NoBase()), options=QUICK)
    with pytest.raises(ValueError, match="belongs to another run"):
        train(sim, found, sizes=SMALL, frames=everything(sim), options=Training(steps=8, batch=8, window=6), out=tmp_path)
    with pytest.raises(ValueError, match="windows of 20 steps do not fit into trajectories of 10"):
        train(sim, found, sizes=SMALL, frames=everything(sim))


def test_a_robot_that_touches_nothing_has_nothing_to_teach_beyond_its_base_step(sim, path):
    with pytest.raises(ValueError, match="nothing in the data set touches anything"):
        train(sim, read(path, sim.model), sizes=SMALL, options=QUICK)


PINCH = """<mujoco model="pinch"><compiler angle="radian"/><worldbody>
  <body name="left" pos="0 0.03 0"><joint name="left" type="slide" axis="0 1 0" range="-0.02 0.02" damping="2"/>
    <geom type="box" size="0.01 0.005 0.02" mass="0.1" contype="1" conaffinity="0"/></body>
  <body name="right" pos="0 -0.03 0"><joint name="right" type="slide" axis="0 -1 0" range="-0.02 0.02" damping="2"/>
    <geom type="box" size="0.01 0.005 0.02" mass="0.1" contype="1" conaffinity="0"/></body>
  <body name="card" pos="0 0 0.1"><joint name="card" axis="1 0 0" damping="0.001"/>
    <geom type="cylinder" size="0.012 0.02" pos="0 0 -0.1" mass="0.05" contype="0" conaffinity="1"/></body></worldbody>
  <tendon><fixed name="split"><joint joint="left" coef="0.5"/><joint joint="right" coef="0.5"/></fixed></tendon>
  <equality><joint name="coupling" joint1="left" joint2="right"/></equality>
  <actuator><motor name="close" tendon="split" ctrlrange="-4 4"/></actuator></mujoco>"""


def test_equalities_tendons_and_general_contact_are_sampled_and_learned(tmp_path):
    """Coupled fingers, driven by a tendon, against a swinging cylinder: the data keep the coupling, and a network learns."""
    sim = fx.Simulator(fx.load(PINCH), fx.Substeps(fx.RigidSolver(), 4), dt=1 / 100)
    near = {"left": (0.0, 0.0), "right": (0.0, 0.0), "card": (-0.3, 0.3)}
    still = {"left": (0.0, 0.0), "right": (0.0, 0.0)}
    path = sample(sim, Ranges(q=near, qd=still), 320, tmp_path / "pinch.h5", length=10, seed=1)
    found = read(path, sim.model)
    assert np.abs(found.next_q[..., 0] - found.next_q[..., 1]).max() < 1e-5
    nerd = train(sim, found, sizes=SMALL, options=Training(steps=60, batch=16, window=6, every=30))
    history = nerd.card["history"]
    assert np.isfinite([row["loss"] for row in history]).all()
    assert history[-1]["held_out"] < history[0]["held_out"]
    learned = fx.Simulator(sim.model, nerd.solver(), dt=sim.dt)
    assert learned.rollout(learned.reset(found.scene.q[0, 0]), steps=5).status.ok


def test_passive_motion_is_judged_against_the_truth(sim, path):
    found = read(path, sim.model)
    nerd = train(sim, found, sizes=SMALL, frames=everything(sim), options=QUICK)
    result = evaluate_passive(nerd, steps=8, rollouts=4)
    rows = result.rows((4, 8, 100))
    assert [r["steps"] for r in rows] == [4, 8]
    assert rows[1]["hinges mean, rad"] > rows[0]["hinges mean, rad"] > 0
    assert result.position is None  # a fixed base
    same = data.LARGEST * np.ones((1, 3, 1)) * 2
    from flexor.nerd.evaluation import errors

    assert errors(nerd.frames, np.zeros((1, 3, 1)), same).diverged.all()
    exact = errors(nerd.frames, np.full((1, 3, 1), np.pi), np.full((1, 3, 1), -np.pi))
    assert exact.hinges.max() == pytest.approx(0, abs=1e-6)  # half a turn either way is the same


def passive(mean, diverged=0):
    """Errors of ten rollouts after two steps: the same for all, some of them diverged."""
    hinges = np.full((10, 2), mean)
    return Passive(None, None, None, hinges, np.arange(20).reshape(10, 2) // 2 < diverged)


@pytest.mark.parametrize(
    ("ours", "base", "useless"), [(0.9, 1.0, True), (0.81, 1.0, True), (0.79, 1.0, False), (2.0, 1.0, True)]
)
def test_a_network_that_adds_less_than_a_fifth_is_useless(ours, base, useless):
    found = Contribution(passive(ours), passive(base))
    assert found.remaining(2) == {"hinges": pytest.approx(ours / base)}
    assert found.useless(2) is useless
    assert found.verdict(2).startswith("useless: ") is useless


def test_rollouts_that_all_diverge_have_no_small_error():
    assert Contribution(passive(0.1, diverged=10), passive(1.0)).useless(2)
    assert not Contribution(passive(0.1), passive(1.0, diverged=10)).useless(2)


def test_the_base_step_alone_is_the_network_at_zero(sim, path):
    """Without its network a solver with `NoBase` keeps its velocities."""
    nerd = train(sim, read(path, sim.model), sizes=SMALL, frames=everything(sim), options=QUICK)
    learned = fx.Simulator(sim.model, base_alone(nerd).solver(), dt=sim.dt)
    start = learned.reset([0.3], [0.7])
    np.testing.assert_allclose(learned.rollout(start, steps=4).qd[-1], start.qd, rtol=1e-5)


def test_ctrl_c_keeps_the_steps_that_are_done(sim, path, tmp_path):
    """Before the first checkpoint is due, and while a network is judged: nothing but that one step is made again."""
    how = Training(steps=6, batch=8, window=6, every=3)
    whole = train(sim, path, sizes=SMALL, frames=everything(sim), options=how)

    def stop(done, total, loss):
        if done == 2:
            raise KeyboardInterrupt

    def interrupted(network):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(sim, path, sizes=SMALL, frames=everything(sim), options=how, out=tmp_path, progress=stop)
    assert kept_steps(tmp_path) == 2
    assert not (tmp_path / "history.csv").exists()
    with pytest.raises(KeyboardInterrupt):
        train(sim, path, sizes=SMALL, frames=everything(sim), options=how, out=tmp_path, judge=interrupted)
    assert kept_steps(tmp_path) == 2
    resumed = train(sim, path, sizes=SMALL, frames=everything(sim), options=how, out=tmp_path)
    assert eqx.tree_equal(resumed.network, whole.network)
    assert resumed.card["history"] == whole.card["history"]
    assert kept_steps(tmp_path / "elsewhere") is None
