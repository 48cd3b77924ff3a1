"""The viewer without a browser: what is in the scene, what sliders do, what is said when something fails."""

import dataclasses
import sys

import numpy as np
import pytest

import flexor as fx
from flexor.viz.motion import Motion, Replay, numbers, series, still
from flexor.viz.robot_nodes import solid
from flexor.viz.scene import body_motion, shapes
from tests.viz.browser import wait

viser = pytest.importorskip("viser", reason="viser is not installed (extra `view`)")
Viewer = pytest.importorskip("flexor.viz.viewer").Viewer


def replay(sim, steps=20, u=0.0):
    model = sim.model
    return Replay(
        sim, np.full((steps, model.nu), u), np.asarray(model.reference), np.zeros(model.nv), ("joint.passive_force",)
    )


@pytest.fixture(scope="module")
def pendulum():
    return fx.Simulator(fx.load("pendulum"), fx.solver("none"), dt=0.005)


@pytest.fixture(scope="module")
def viewer(pendulum):
    """A pendulum by flexor, and one by MuJoCo beside it."""
    others = {"flexor": pendulum, "MuJoCo": pendulum.with_solver(fx.solver("mujoco"))}
    motions = [Motion(label, sim.model, still(sim.model), replay(sim)) for label, sim in others.items()]
    motions[1] = dataclasses.replace(motions[1], simulate=dataclasses.replace(motions[1].simulate, record=()))
    made = Viewer(motions, parameters=["gravity"], port=8790)
    made.playing.value = False
    yield made
    made.close()


def test_replay_is_the_rollout(pendulum):
    """With the stepper's parameters or without, at the same start: the same motion."""
    again = replay(pendulum, u=0.3)
    q, gravity = np.array([0.4]), np.array([0.0, 0.0, -3.0])
    made = again(q, {"gravity": gravity})
    other = fx.Simulator(fx.replace(pendulum.model, {"gravity": gravity}), pendulum.solver, dt=pendulum.dt)
    wanted = other.rollout(other.reset(q), again.u, record=again.record)
    np.testing.assert_allclose(made.q, wanted.q, atol=1e-12)
    np.testing.assert_allclose(made.time, wanted.time, atol=1e-12)
    np.testing.assert_allclose(made.taps["joint.passive_force"], wanted.taps["joint.passive_force"], atol=1e-12)
    assert len(again.steppers) == 1
    again(q, {"gravity": 2 * gravity})
    assert len(again.steppers) == 1  # nothing is compiled anew


def test_scene_has_the_robots_side_by_side(viewer):
    first, second = viewer.nodes
    apart = second.where(1) - first.where(1)
    assert apart[1] > 0.5
    np.testing.assert_allclose(apart[[0, 2]], 0, atol=1e-9)


def test_sliders_move_the_robot_and_simulate_again(viewer, pendulum):
    (name,) = viewer.joints
    viewer.joints[name].value = 1.0
    wait(lambda: all(len(m.trajectory) == 20 for m in viewer.motions), "nothing was simulated")
    assert viewer.status == ""
    for motion in viewer.motions:
        np.testing.assert_allclose(motion.trajectory.q[0], 1.0, atol=0.01)
    q, other = (np.asarray(m.trajectory.q) for m in viewer.motions)
    np.testing.assert_allclose(q, other, atol=1e-4)  # the two treat damping differently within a step of 5 ms
    viewer.sliders["gravity[2]"].value = 0.0
    wait(lambda: np.ptp(np.asarray(viewer.motions[1].trajectory.q)) < 1e-9, "gravity was not switched off")
    assert np.ptp(np.asarray(viewer.motions[0].trajectory.q)) < 1e-9
    viewer.sliders["gravity[2]"].value = -9.81
    wait(lambda: np.ptp(np.asarray(viewer.motions[1].trajectory.q)) > 1e-3, "gravity was not switched on")


def test_forces_are_arrows_of_bounded_length(viewer):
    nodes, size = viewer.nodes[0], viewer.nodes[0]._size
    weight = nodes._weight
    nodes.show_forces(
        np.array([[0, 0, 0, 0, 0, 0.2 * weight], [1.0, 0, 0, 0, 0, 100 * weight], [2.0, 0, 0, 0, 0, 0.01 * weight]])
    )
    arrows = nodes._forces.points
    np.testing.assert_allclose(arrows[:, 1] - arrows[:, 0], [[0, 0, 0.12 * size], [0, 0, 0.45 * size]], rtol=1e-5, atol=1e-6)
    nodes.show_forces(None)
    assert len(nodes._forces.points) == 0


def test_time_line_moves_bodies(viewer):
    viewer.simulate()
    run = viewer.motions[0].trajectory
    viewer.time.value = 0.0
    viewer.seek(0.0)
    viewer.advance(0.05)
    assert viewer.time.value == pytest.approx(0.05)
    pos, _ = body_motion(viewer.motions[0].model, run.q)
    np.testing.assert_allclose(viewer.nodes[0].where(1), pos[10, 1], atol=1e-9)
    viewer.advance(10.0)
    assert viewer.time.value == 0.0


def test_plots_follow_the_quantity(viewer):
    viewer.simulate()
    assert "joint.passive_force" in viewer.quantity.options
    viewer.quantity.value = "qd"
    np.testing.assert_allclose(viewer.plots[0].data[1], np.asarray(viewer.motions[0].trajectory.qd)[:, 0])
    assert viewer.plots[0].title == "flexor: qd"


def test_a_failure_is_told_and_the_last_motion_stays(pendulum):
    def refuse(q, values):
        raise ValueError("no physics today")

    def diverge(q, values):
        run = still(pendulum.model)
        return dataclasses.replace(run, q=run.q.at[1].set(np.nan), time=run.time * 1000)

    motion = Motion("it", pendulum.model, still(pendulum.model), refuse)
    made = Viewer([motion], port=8791)
    try:
        made.simulate()
        assert made.status == "**not simulated:** no physics today"
        assert made.motions == (motion,)
        made._motions = [dataclasses.replace(motion, simulate=diverge)]
        made.simulate()
        assert "**it diverged:** step 1 is not finite" in made.status
        made.seek(1.0)  # shows the last state that is finite
        assert np.isfinite(made.nodes[0].where(1)).all()
        made._pattern.value = "nothing.*"
        made._add_typed()
        assert "matches 'nothing.*'" in made.status
    finally:
        made.close()


def test_recordings_have_no_sliders(pendulum):
    model = pendulum.model
    with pytest.raises(ValueError, match="recordings alone have no physics"):
        Viewer([Motion("log", model, still(model))], parameters=["gravity"])
    with pytest.raises(ValueError, match="at least one Motion"):
        Viewer([])
    with pytest.raises(KeyError, match=r"no parameter of 'pendulum' matches 'nothing\.\*'"):
        numbers(model, "nothing.*")
    with pytest.raises(ValueError, match="different shapes"):
        numbers(model, "body.*")


def test_series_name_their_columns(pendulum):
    run = replay(pendulum)(None, {})
    found = series(Motion("x", pendulum.model, run))
    assert set(found) == {"q", "qd", "u", "joint.passive_force"}
    assert found["q"][2] == [pendulum.model.topology.q_name(0)]
    assert all(len(at) == len(values) and values.shape[1] == len(names) for at, values, names in found.values())


def test_solids_fill_their_shapes():
    sizes = {
        "sphere": [0.2, 0, 0],
        "capsule": [0.1, 0.3, 0],
        "cylinder": [0.1, 0.3, 0],
        "box": [0.1, 0.2, 0.3],
        "ellipsoid": [0.1, 0.2, 0.3],
    }
    reach = {
        "sphere": [0.2] * 3,
        "capsule": [0.1, 0.1, 0.4],
        "cylinder": [0.1, 0.1, 0.3],
        "box": [0.1, 0.2, 0.3],
        "ellipsoid": [0.1, 0.2, 0.3],
    }
    for kind, size in sizes.items():
        made = solid({"shape": kind, "size": size}).bounds
        np.testing.assert_allclose(made, [-np.array(reach[kind]), reach[kind]], rtol=0.02)
    assert {s["shape"] for s in shapes(fx.load("pusher"))} <= {*sizes, "mesh", "plane"}


def test_missing_extra_is_a_sentence(monkeypatch):
    monkeypatch.setitem(sys.modules, "viser", None)
    monkeypatch.delitem(sys.modules, "flexor.viz.viewer")
    with pytest.raises(ImportError, match=r'needs viser: `pip install "flexor\[view\]"`'):
        import flexor.viz.viewer  # noqa: F401
