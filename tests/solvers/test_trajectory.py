"""Trajectories to files and back, exactly; and what is refused."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import flexor as fx
from flexor.solvers.energy import EnergyBudget

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
    assert set(again.taps) == set(trajectory.taps)
    for name, value in trajectory.taps.items():
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
    with pytest.raises(
        ValueError, match=r"run.* is not a trajectory of 'cartpole', or it is corrupt: its columns are not those"
    ):
        fx.Trajectory.load(path, fx.load("cartpole"))


@pytest.mark.parametrize("ending", ENDINGS)
def test_half_a_file_is_refused(made, ending, tmp_path):
    model, trajectory = made
    path = trajectory.save(tmp_path / f"run{ending}")
    path.write_bytes(path.read_bytes()[: len(path.read_bytes()) * 2 // 3])
    with pytest.raises(ValueError, match=f"run{ending}' (is not a trajectory of .*, or it is corrupt|holds)"):
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
        jax.tree.map(lambda x: jnp.stack([x, x]), fx.Trajectory(time, q, qd, u, {}, None, model.topology)).status  # noqa: B018


def test_csv_names_every_number_of_a_tap(made, tmp_path):
    model, trajectory = made
    head = trajectory.save(tmp_path / "run.csv").read_text().splitlines()[0].split(",")
    assert f"tap.joint.acceleration.{model.nv - 1}" in head
    for name, value in trajectory.taps.items():
        assert sum(c.startswith(f"tap.{name}.") for c in head) == value[0].size
    if "contact.friction_force" in trajectory.taps:
        assert "tap.contact.friction_force.0.1" in head
    fx.Log.read(tmp_path / "run.csv", model)  # a log of the motion, whatever else was recorded


@pytest.mark.parametrize("dt", [0.01, 0.02, 0.05])
def test_energy_out_of_nothing_is_a_status(dt):
    """A cube dropped by 0.3 m on penalty contact whose stiffness asks for steps of a few milliseconds."""
    sim = fx.Simulator(fx.load("cube"), fx.RigidSolver(fx.Penalty()), dt=dt)
    trajectory = sim.rollout(sim.reset(sim.model.reference.at[2].add(0.3)), steps=int(2 / dt))
    assert jnp.isfinite(trajectory.q).all()
    status = trajectory.status
    assert not status.ok
    assert status.body == "cube"
    assert "the robot has gained unexplained energy, most at body 'cube'; use a shorter time step" in status.message
    before = trajectory.qd[: status.step]
    # it falls at 2.4 m/s; E = m g (0.3 m), and the threshold is (1 + 3 (0.3 + 0.17) / 0.3) of that
    assert float(jnp.abs(before[:, 2]).max()) < 2.45 * np.sqrt(1 + 3 * 0.48 / 0.3)
    with pytest.raises(FloatingPointError, match="gained unexplained energy"):
        trajectory.raise_if_bad()


@pytest.mark.parametrize("contact", [fx.NCP(), fx.Penalty()], ids=["NCP", "Penalty"])
@pytest.mark.parametrize("name", ["cartpole", "cube", "ant", "quadruped", "double_pendulum_contact", "swimmer2"])
def test_energy_gives_no_false_alarm(name, contact):
    """Robots thrown hard, driven by random inputs at their bounds, from above the floor and from 2 cm within it."""
    model = fx.load(name)
    rng = np.random.default_rng(4)
    sim = fx.Simulator(model, fx.RigidSolver(contact), dt=5e-4, simd=True)
    bounds = np.clip(np.asarray(model.actuators.ctrl_range), -1, 1)
    u = rng.uniform(bounds[:, 0], bounds[:, 1], (600, model.nu))
    q = np.array(model.keyframes[0] if len(model.topology.keyframes) else model.reference)
    free = len(model.topology.joints_of("free")) > 0
    for lift, speed in ((0.2, 3.0), (-0.02, 0.0)):
        start = q + (np.arange(len(q)) == 2) * lift * free
        trajectory = sim.rollout(sim.reset(start, speed * rng.normal(size=model.nv)), u)
        assert trajectory.status.ok, trajectory.status.message


def test_energy_is_not_judged_where_other_forces_act():
    sim = fx.Simulator(fx.load("cube"), fx.RigidSolver(contact=None))
    strong = fx.Control(tau=jnp.zeros((20, 6)).at[:, 2].set(1e4))
    assert sim.rollout(sim.reset(), strong).status.ok
    assert sim.rollout(sim.reset(), lambda state: fx.Control(tau=strong.tau[0]), steps=20).status.ok


def test_robots_that_mujoco_refuses_have_a_status():
    with pytest.warns(fx.ModelWarning):
        model = fx.load("talos", floating=True)  # a link with mass and no inertia
    rest = np.tile(np.asarray(model.reference), (3, 1))
    budget = EnergyBudget(model)
    time, u = np.arange(3) * 0.01, np.zeros((2, model.nu))
    assert budget.first_excess(time, rest, np.zeros((3, model.nv)), u) is None
    assert budget.first_excess(time, rest, np.array([[0.0], [0.0], [1e3]]) * np.ones(model.nv), u) == 2
