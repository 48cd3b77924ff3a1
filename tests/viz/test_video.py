"""Videos: the puppet stands where the robot stands; files are written, or the reason is told."""

import sys

import mujoco
import numpy as np
import pytest

import flexor as fx
from flexor.viz import video


@pytest.fixture(scope="module")
def cube():
    sim = fx.Simulator(fx.load("cube"), fx.RigidSolver(contact=None))
    return sim.model, sim.rollout(sim.reset("tossed"), steps=50)


def puppet(model, q, colour=video.SERIES[0]):
    """The puppet of a model, and the poses of its bodies."""
    pos, quat = video.body_motion(model, np.asarray(q)[None])
    drawn = video.shapes(model)
    box = video.boxes(drawn, pos, quat)
    framing = video.frame_motion([box], video.floor_height(model, *box))
    return video.puppet(drawn, pos.shape[1], framing, (64, 48), colour), pos, quat


def test_what_is_beside_has_another_colour():
    model = fx.load("cartpole")
    seen = {tuple(puppet(model, model.reference, colour)[0].geom_rgba[-1].tolist()) for colour in video.SERIES[:2]}
    assert len(seen) == 2


def test_puppet_has_the_robots_shapes_and_poses():
    model = fx.load("quadruped")
    m, pos, quat = puppet(model, model.keyframe("stand"))
    assert m.ngeom == len(video.shapes(model))
    d = mujoco.MjData(m)
    d.mocap_pos[m.body_mocapid[1:]], d.mocap_quat[m.body_mocapid[1:]] = pos[0, 1:], quat[0, 1:]
    mujoco.mj_kinematics(m, d)
    np.testing.assert_allclose(d.xpos, pos[0], atol=1e-12)


def test_mesh_keeps_its_place():
    model = fx.load(
        """<mujoco><asset><mesh name="w" vertex="0 0 0  1 0 0  0 2 0  0 0 3"/></asset><worldbody>
        <geom type="plane" size="1 1 1"/>
        <body pos="0 0 5"><freejoint/><geom type="mesh" mesh="w" pos="0.1 0.2 0.3"/></body></worldbody></mujoco>"""
    )
    m, pos, quat = puppet(model, model.reference)
    d = mujoco.MjData(m)
    d.mocap_pos[0], d.mocap_quat[0] = pos[0, 1], quat[0, 1]
    mujoco.mj_kinematics(m, d)
    i = int(np.flatnonzero(m.geom_type == mujoco.mjtGeom.mjGEOM_MESH)[0])
    corners = d.geom_xpos[i] + m.mesh_vert @ d.geom_xmat[i].reshape(3, 3).T
    wanted = pos[0, 1] + np.array([0.1, 0.2, 0.3]) + np.array([[0, 0, 0], [1, 0, 0], [0, 2, 0], [0, 0, 3]])
    # the quaternion of a shape is rounded to 1e-5, and the mesh is 3 m long
    np.testing.assert_allclose(np.sort(corners, axis=0), np.sort(wanted, axis=0), atol=3e-5)


def test_ending_and_folder_are_checked_first(cube, tmp_path):
    with pytest.raises(ValueError, match=r"must end in \.gif or \.mp4"):
        video.save_video(tmp_path / "run.avi", *cube)
    with pytest.raises(FileNotFoundError, match="does not exist"):
        video.save_video(tmp_path / "none" / "run.gif", *cube)


def test_missing_graphics_library_says_what_to_install(cube, tmp_path, monkeypatch):
    def broken():
        raise OSError("libEGL.so.1: cannot open shared object file")

    monkeypatch.setattr(video, "_context_class", broken)
    with pytest.raises(video.GraphicsError, match=r"libosmesa6.*MUJOCO_GL=osmesa"):
        video.save_video(tmp_path / "run.gif", *cube)
    assert not (tmp_path / "run.gif").exists()


def test_missing_encoder_says_what_to_install(cube, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "imageio_ffmpeg", None)
    with pytest.raises(video.GraphicsError, match=r"flexor\[video\]"):
        video.save_video(tmp_path / "run.mp4", *cube)


def test_frames_become_a_gif(cube, tmp_path, monkeypatch):
    from PIL import Image

    noise = np.random.default_rng(0).integers(0, 255, (48, 64, 3)).astype(np.uint8)
    monkeypatch.setattr(video, "_frames", lambda *_: (np.roll(noise, 5 * i, axis=1) for i in range(4)))
    done = []
    options = {"frames_per_second": 30, "size": (64, 48), "progress": lambda i, n: done.append((i, n))}
    path = video.save_video(tmp_path / "run.gif", *cube, **options)
    with Image.open(path) as image:
        assert (image.n_frames, image.size, image.info["duration"]) == (4, (64, 48), 30)
    assert done == [(i + 1, 4) for i in range(4)]


def test_rendering_shows_the_robot(cube, tmp_path):
    from PIL import Image

    try:
        path = video.save_video(tmp_path / "run.gif", *cube, size=(96, 72))
    except video.GraphicsError as error:
        pytest.skip(str(error))
    with Image.open(path) as image:
        pixels = np.asarray(image.convert("RGB"), int)
    blue = (pixels[..., 2] > pixels[..., 0] + 60).mean()
    assert 0.005 < blue < 0.5


def test_interrupted_rendering_leaves_no_file(cube, tmp_path, monkeypatch):
    def interrupted(*_):
        yield np.zeros((48, 64, 3), np.uint8)
        raise KeyboardInterrupt

    monkeypatch.setattr(video, "_frames", interrupted)
    with pytest.raises(KeyboardInterrupt):
        video.save_video(tmp_path / "run.gif", *cube)
    assert list(tmp_path.iterdir()) == []
