"""`flexor view` finds out what it was given, and says what is missing."""

import numpy as np
import pytest

import flexor as fx
from flexor.cli.loading import Robot
from flexor.cli.view import Options, motions_of, recorded


@pytest.fixture(scope="module")
def pendulum():
    return fx.Simulator(fx.load("pendulum"), fx.solver("mujoco"), dt=0.005)


@pytest.fixture(scope="module")
def run(pendulum):
    return pendulum.rollout(pendulum.reset([0.5]), steps=10)


def test_a_robot_stands_until_it_is_simulated():
    first, second = motions_of(Robot("pendulum"), Options(seconds=0.1, beside="mujoco", solver="none", q="0.3"))
    assert (first.label, second.label) == ("pendulum none", "pendulum, mujoco")
    np.testing.assert_allclose(first.trajectory.q, 0.3)
    assert len(second.simulate(None, {})) == 50


def test_a_saved_simulator_and_another_robot_beside(pendulum, tmp_path):
    pendulum.save(tmp_path / "kept")
    (motion, other) = motions_of(Robot(str(tmp_path / "kept")), Options(beside="cartpole"))
    assert motion.simulate.sim.dt == pendulum.dt
    assert other.model.topology.name == "cartpole"
    with pytest.raises(ValueError, match="saved simulator with its own solver and time step"):
        motions_of(Robot(str(tmp_path / "kept")), Options(solver="ncp"))


@pytest.mark.parametrize("ending", ["h5", "npz", "csv"])
def test_trajectories_are_shown_as_recorded(run, tmp_path, ending):
    path = run.save(tmp_path / f"run.{ending}")
    (motion,) = motions_of(Robot(str(path)), Options(of="pendulum"))
    np.testing.assert_allclose(motion.trajectory.q, run.q, atol=1e-9)
    assert motion.simulate is None
    with pytest.raises(ValueError, match="name its robot with --of"):
        motions_of(Robot(str(path)), Options())


def test_a_recording_is_simulated_beside_itself(run, tmp_path):
    path = run.save(tmp_path / "run.npz")
    _, beside = motions_of(Robot(str(path)), Options(of="pendulum", beside="mujoco"))
    np.testing.assert_allclose(beside.simulate(None, {}).q, run.q, atol=1e-9)


def test_logs_hold_what_was_not_measured(tmp_path):
    model = fx.load("cartpole")
    name = model.topology.q_name(1)
    path = tmp_path / "log.csv"
    path.write_text(f"time,q.{name}\n1.0,0.1\n1.1,\n1.2,0.3\n")
    run = recorded(path, model)
    np.testing.assert_allclose(run.time, [0, 0.1, 0.2], atol=1e-9)
    np.testing.assert_allclose(run.q[:, 1], [0.1, 0.1, 0.3])
    np.testing.assert_allclose(run.q[:, 0], model.reference[0])
    path.write_text(f"time,qd.{name}\n1.0,5\n1.1,6\n")
    with pytest.raises(ValueError, match="measures no coordinate of 'cartpole'"):
        recorded(path, model)


def test_wrong_combinations_are_refused():
    for options, sentence in (
        (Options(of="cube"), "--of names the robot of a trajectory"),
        (Options(keyframe="a", q="0"), "either --keyframe or --q"),
    ):
        with pytest.raises(ValueError, match=sentence):
            motions_of(Robot("pendulum"), options)
    with pytest.raises(ValueError, match="--beside takes robots"):
        motions_of(Robot("policy:cartpole"), Options(beside="mujoco"))
