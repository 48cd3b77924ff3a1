"""Trajectories to files and back, exactly; and what is refused."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import flexor as fx

ENDINGS = [".h5", ".hdf5", ".csv", ".npz"]


@pytest.fixture(scope="module", params=["double_pendulum", "cube"])
def made(request):
    """A trajectory with actuators and one without, in contact, with taps."""
    model = fx.load(request.param)
    sim = fx.Simulator(model, dt=0.002)
    record = ["joint.acceleration"] + (["contact.depth", "contact.friction_force"] if request.param == "cube" else [])
    controls = np.random.default_rng(0).normal(size=(7, model.nu)) / 3
    return model, sim.rollout(sim.reset(qd=0.1 * np.ones(model.nv)), controls, record=record)


@pytest.mark.parametrize("ending", ENDINGS)
@pytest.mark.parametrize("dtype", [jnp.float64, jnp.float32], ids=["float64", "float32"])
def test_files_return_exactly(made, ending, dtype, tmp_path):
    model, trajectory = made
    trajectory = jax.tree.map(lambda x: x.astype(dtype) if x.dtype == jnp.float64 else x, trajectory)
    path = trajectory.save(tmp_path / f"run{ending}")
    again = fx.Trajectory.load(path, model.astype(dtype))
    for name in ("time", "q", "qd", "u"):
        np.testing.assert_array_equal(getattr(again, name), getattr(trajectory, name))
        assert getattr(again, name).dtype == dtype
    assert again.topology == model.topology
    taps = {} if ending == ".csv" else trajectory.taps
    assert set(again.taps) == set(taps)
    for name, value in taps.items():
        np.testing.assert_array_equal(again.taps[name], value)
    assert [p.name for p in tmp_path.iterdir()] == [path.name]


@pytest.mark.parametrize("ending", ENDINGS)
def test_numbers_that_are_none_return_too(made, ending, tmp_path):
    model, trajectory = made
    q = trajectory.q.at[3, 0].set(jnp.nan).at[4, 1].set(-jnp.inf)
    broken = fx.Trajectory(trajectory.time, q, trajectory.qd, trajectory.u, {}, None, trajectory.topology)
    again = fx.Trajectory.load(broken.save(tmp_path / f"run{ending}"), model)
    np.testing.assert_array_equal(again.q, q)
    assert again.status.step == 3


@pytest.mark.parametrize("ending", ENDINGS)
def test_another_robots_file_is_refused(made, ending, tmp_path):
    _, trajectory = made
    path = trajectory.save(tmp_path / f"run{ending}")
    with pytest.raises(ValueError, match=r"run.* is not a whole trajectory of 'cartpole': its columns are not those"):
        fx.Trajectory.load(path, fx.load("cartpole"))


@pytest.mark.parametrize("ending", ENDINGS)
def test_half_a_file_is_refused(made, ending, tmp_path):
    model, trajectory = made
    path = trajectory.save(tmp_path / f"run{ending}")
    path.write_bytes(path.read_bytes()[: len(path.read_bytes()) * 2 // 3])
    with pytest.raises(ValueError, match=f"run{ending}' (is not a whole trajectory of|holds)"):
        fx.Trajectory.load(path, model)


def test_files_that_are_not_there(made, tmp_path):
    model, trajectory = made
    with pytest.raises(FileNotFoundError, match=r"there is no trajectory file '.*nothing.h5'"):
        fx.Trajectory.load(tmp_path / "nothing.h5", model)
    with pytest.raises(FileNotFoundError, match=r"cannot write '.*': the folder '.*' does not exist"):
        trajectory.save(tmp_path / "no" / "run.h5")
    with pytest.raises(ValueError, match=r"'run.txt' must end in .h5, .hdf5, .csv, .npz"):
        trajectory.save(tmp_path / "run.txt")
    (tmp_path / "run.txt").touch()
    with pytest.raises(ValueError, match=r"'run.txt' must end in .h5, .hdf5, .csv, .npz"):
        fx.Trajectory.load(tmp_path / "run.txt", model)


def test_status_names_the_body_of_the_first_bad_number():
    model = fx.load("quadruped")
    q = jnp.broadcast_to(model.reference, (5, model.nq))
    qd = jnp.zeros((5, model.nv))
    time, u = jnp.arange(5.0), jnp.zeros((4, model.nu))

    def status(q, qd):
        return fx.Trajectory(time, q, qd, u, {}, None, model.topology).status

    assert status(q, qd).ok
    joint = len(model.topology.joints) - 1
    body = model.topology.bodies[model.topology.joints[joint].body]
    found = status(q.at[2:, -1].set(jnp.inf), qd)
    assert (found.ok, found.step, found.body) == (False, 2, body)
    found = status(q, qd.at[3, 4].set(jnp.nan))
    assert (found.step, found.body) == (3, model.topology.bodies[1])
    assert found.message == f"step 3 is not finite, first at body '{found.body}' (joint '{model.topology.joints[0].name}')"
    with pytest.raises(ValueError, match=r"`status` is that of one trajectory; index the batch of \(2,\) first"):
        status(jnp.stack([q, q]), jnp.stack([qd, qd]))
