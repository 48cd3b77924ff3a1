"""Drawings: the data they show is right, and the pages need nothing from outside."""

import base64
import itertools
import json
import re
from html.parser import HTMLParser

import numpy as np
import pytest

import flexor as fx
from flexor.viz import Actor, Animation, Code, Figure, Report, Section, Table, animate, save_animation
from flexor.viz.framing import AZIMUTH, ELEVATION, MARGIN, boxes, floor_height, frame_motion
from flexor.viz.plots import inline_svg, lines, trajectory_figure
from flexor.viz.report import number
from flexor.viz.scene import body_motion, frame_indices, hull_faces, links, shapes

FORCES = ("contact.normal_force", "contact.friction_force")
SHAPES = """
<mujoco model="shapes">
  <asset><mesh name="wedge" vertex="0 0 0  1 0 0  0 1 0  0 0 1"/></asset>
  <worldbody>
    <geom name="floor" type="plane" size="1 1 1"/>
    <body name="a" pos="0 0 2">
      <freejoint name="root"/>
      <geom name="ball" type="sphere" size="0.1"/>
      <geom name="rod" type="capsule" size="0.1 0.3" pos="0.5 0 0"/>
      <geom name="can" type="cylinder" size="0.1 0.2" pos="0 0.5 0"/>
      <geom name="brick" type="box" size="0.1 0.2 0.3"/>
      <geom name="wedge" type="mesh" mesh="wedge" pos="0 0 0.5"/>
      <body name="b" pos="0 0 1"><joint name="j"/><inertial pos="0 0 0" mass="1" diaginertia="1 1 1"/></body>
    </body>
  </worldbody>
</mujoco>
"""


@pytest.fixture(scope="module")
def model():
    return fx.load(SHAPES)


@pytest.fixture(scope="module")
def cube():
    """A tossed cube with its contact forces."""
    sim = fx.Simulator(fx.load("cube"))
    return sim.model, sim.rollout(sim.reset("tossed"), steps=150, record=FORCES)


class Outside(HTMLParser):
    """Collects everything in a page that a browser would fetch, and the JSON payloads."""

    def __init__(self, text):
        super().__init__()
        self.fetched, self.payloads, self._json = [], [], False
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        named = dict(attributes)
        links = [named[k] for k in ("src", "href", "data", "action") if named.get(k)]
        self.fetched += [x for x in links if not x.startswith(("#", "data:"))]
        self._json = tag == "script" and named.get("type") == "application/json"

    def handle_endtag(self, tag):
        self._json = False

    def handle_data(self, data):
        if self._json:
            self.payloads.append(json.loads(data))


def addresses(text):
    """Addresses in a page but the name of HTML's namespace, which three.js contains and no browser opens."""
    return set(re.findall(r"https?://[^\s\"'`<]+", text)) - {"http://www.w3.org/1999/xhtml"}


def test_shapes_are_plain_data(model):
    found = {s["shape"]: s for s in shapes(model) if s["name"] != "a"}  # that is a link
    assert set(found) == {"plane", "sphere", "capsule", "cylinder", "box", "mesh"}
    assert found["capsule"]["size"][:2] == [0.1, 0.3]
    assert len(found["mesh"]["faces"]) == 4
    json.dumps(shapes(model), allow_nan=False)


def test_hull_faces_look_outwards():
    corners = np.array([[x, y, z] for x in (0, 1) for y in (0, 1) for z in (0, 1)], float)
    for a, b, c in hull_faces(corners):
        normal = np.cross(corners[b] - corners[a], corners[c] - corners[a])
        assert normal @ (corners[a] - corners.mean(0)) > 0
    assert hull_faces(corners[:2]) == []


def test_body_without_shape_gets_a_link(model):
    (link,) = links(model)
    assert (link["shape"], link["body"]) == ("capsule", model.body("a"))
    np.testing.assert_allclose(link["pos"], [0, 0, 0.5], atol=1e-5)  # half way to b
    assert link["size"][1] == pytest.approx(0.5)


def test_links_end_at_the_next_joint_and_skip_bare_frames():
    arm = fx.load("""<robot name="arm">
      <link name="base"/><link name="upper"><inertial><mass value="1"/><origin xyz="0 0.3 0"/>
        <inertia ixx="1" iyy="1" izz="1" ixy="0" ixz="0" iyz="0"/></inertial></link>
      <link name="lower"><inertial><mass value="1"/><origin xyz="0.1 0 0"/>
        <inertia ixx="1" iyy="1" izz="1" ixy="0" ixz="0" iyz="0"/></inertial></link><link name="camera"/>
      <joint name="s" type="continuous"><parent link="base"/><child link="upper"/><origin xyz="0 0 0.2"/></joint>
      <joint name="e" type="continuous"><parent link="upper"/><child link="lower"/><origin xyz="0 0.6 0"/></joint>
      <joint name="f" type="fixed"><parent link="lower"/><child link="camera"/><origin xyz="0 0 0.4"/></joint></robot>""")
    ends = {s["name"]: 2 * np.array(s["pos"]) for s in links(arm)}
    assert set(ends) == {"base", "upper", "lower"}
    np.testing.assert_allclose(ends["base"], [0, 0, 0.2], atol=1e-5)
    np.testing.assert_allclose(ends["upper"], [0, 0.6, 0], atol=1e-5)
    np.testing.assert_allclose(ends["lower"], [0.2, 0, 0], atol=1e-5)  # twice as far as its centre of mass


def test_poses_are_those_of_mujoco(model):
    import mujoco

    from flexor.solvers.mujoco import mujoco_model

    rng = np.random.default_rng(0)
    q = rng.normal(size=(3, model.nq))
    q[:, 3:7] /= np.linalg.norm(q[:, 3:7], axis=1, keepdims=True)
    pos, quat = body_motion(model, q)
    m = mujoco_model(model)
    d = mujoco.MjData(m)
    for i in range(len(q)):
        d.qpos[:] = q[i]
        mujoco.mj_kinematics(m, d)
        np.testing.assert_allclose(pos[i], d.xpos, atol=1e-12)
        # a rotation has two quaternions
        np.testing.assert_allclose(np.abs(np.sum(quat[i] * d.xquat, -1)), 1, atol=1e-12)


def framed(model, q):
    pos, quat = body_motion(model, np.asarray(q))
    box = boxes(shapes(model), pos, quat)
    return box, frame_motion([box], floor_height(model, *box))


def test_box_holds_the_robot_and_no_more(model):
    (low, high), framing = framed(model, model.reference[None])
    np.testing.assert_allclose(low[0], [-0.1, -0.2, 1.6], atol=1e-5)
    np.testing.assert_allclose(high[0], [1.0, 1.0, 3.5], atol=1e-5)
    assert framing.floor is None  # it has one


@pytest.mark.parametrize("picture", [(1.0, 0.6), (0.6, 1.0)])
def test_camera_sees_the_whole_motion(picture):
    """All corners of the box, projected as the page and MuJoCo do, lie inside the picture, and one near its edge."""
    model = fx.load("quadruped")
    q = np.repeat(np.asarray(model.keyframe("stand"))[None], 3, axis=0)
    q[:, 0] = [0.0, 0.7, 1.5]
    (low, high), framing = framed(model, q)
    assert len(np.unique(framing.centre, axis=0)) == 1
    back = np.array([np.cos(ELEVATION) * np.cos(AZIMUTH), np.cos(ELEVATION) * np.sin(AZIMUTH), np.sin(ELEVATION)])
    right = np.array([-np.sin(AZIMUTH), np.cos(AZIMUTH), 0.0])
    eye = framing.centre[0] + framing.distance(*picture) * back
    points = np.array([[x, y, z] for x, y, z in itertools.product(*zip(low.min(0), high.max(0), strict=True))]) - eye
    shown = points @ np.stack([right, np.cross(back, right)], axis=1) / -(points @ back)[:, None] / (np.array(picture) / 2)
    assert np.abs(shown).max() == pytest.approx(MARGIN)


def test_camera_goes_along_with_a_long_fall():
    model = fx.load("cube")
    q = np.repeat(np.asarray(model.keyframe("rest"))[None], 5, axis=0)
    q[:, 2] -= np.array([0.0, 1.0, 5.0, 10.0, 20.0])
    (low, high), framing = framed(model, q)
    np.testing.assert_allclose(framing.centre[:, 2], (low[:, 2] + high[:, 2]) / 2)
    np.testing.assert_allclose(framing.half[2], 0.05, rtol=0.1)


@pytest.mark.parametrize(
    ("lowest", "floor"),
    [
        ([0.1, 0.0, -0.3], 0.0),  # stands, and reaches below
        ([-1.0, -1.2, -1.1], -1.2),  # hangs
        ([-1.0, -5.0, -20.0], -1.0),  # falls for ever
    ],
)
def test_floor_lies_at_zero_or_under_what_hangs(lowest, floor):
    low = np.array([[0.0, 0.0, z] for z in lowest])
    assert floor_height(fx.load("pendulum"), low, low + 1.0) == floor
    assert floor_height(fx.load("cube"), low, low + 1.0) is None


@pytest.mark.parametrize("rate", [10, 30, 1000])
def test_frames_lie_on_their_times(rate):
    time = np.arange(0, 1.001, 0.002)
    rows = frame_indices(time, rate)
    assert rows[0] == 0
    assert (np.diff(rows) > 0).all()
    if rate <= 500:
        np.testing.assert_allclose(time[rows], np.arange(len(rows)) / rate, atol=0.0011)


def test_animation_is_self_contained(cube, tmp_path):
    path = save_animation(tmp_path / "cube.html", *cube)
    text = path.read_text()
    page = Outside(text)
    assert page.fetched == []
    assert not addresses(text)
    (payload,) = page.payloads
    actor = payload["actors"][0]
    poses = np.frombuffer(base64.b64decode(actor["poses"]), "<f4").reshape(len(payload["time"]), 2, 7)
    assert len(poses) == len(actor["forces"])
    np.testing.assert_allclose(poses[0, 1, :3], cube[1].q[0, :3], rtol=1e-6)
    # at rest the floor carries the weight; in the air nothing does
    assert actor["forces"][0] == []
    assert payload["time"][-1] == pytest.approx(0.3)


def test_names_cannot_break_out_of_the_page(cube):
    model, trajectory = cube
    nasty = "</script><script>alert(1)</script>"
    text = animate(Actor(model, trajectory, nasty))
    assert text.count("<script") == 1
    assert Outside(text).payloads[0]["actors"][0]["label"] == nasty
    assert "<b>" not in Report("<b>", sections=[Section("<b>", "<b>", [Table(["<b>"], [["<b>"]]), Code("<b>")])]).html()


def test_actors_of_different_steps_share_the_frames(cube):
    model, trajectory = cube
    short = fx.Simulator(model, dt=0.001)
    other = short.rollout(short.reset("tossed"), steps=100)
    payload = Outside(animate([Actor(model, trajectory), Actor(model, other, offset=(0, 1, 0))])).payloads[0]
    first, second = payload["actors"]
    assert len(first["poses"]) == len(second["poses"])
    assert not first["painted"]
    assert not second["painted"]
    assert second["forces"] is None
    assert payload["half"][1] > 0.5


def test_bad_drawings_are_refused(cube):
    model, trajectory = cube
    with pytest.raises(ValueError, match="at least one Actor"):
        animate([])
    with pytest.raises(ValueError, match="must be positive"):
        animate(Actor(model, trajectory), frames_per_second=0)
    with pytest.raises(ValueError, match="2 cells for 1 columns"):
        Table(["a"], [[1, 2]])


def test_report_holds_its_parts(cube, tmp_path):
    trajectory = cube[1]
    plot = lines(trajectory.time, {"z": trajectory.q[:, 2], "x": trajectory.q[:, 0]}, ylabel="m")
    table = Table(["a", "b"], [[1.5, True], ["x", False]], folded="more")
    blocks = [Figure(plot, "a plot"), table, Animation([Actor(*cube)])]
    path = Report("Title", "Lead.", [("fact", "value")], [Section("Part", "One.\n\nTwo.", blocks)]).save(tmp_path / "r.html")
    text = path.read_text()
    page = Outside(text)
    assert page.fetched == []
    assert not addresses(text)
    assert len(page.payloads) == 1
    for words in ("<h1>Title</h1>", "<p>Two.</p>", "a plot", "✓ holds", "✗ off", "<summary>more</summary>", "<svg"):
        assert words in text


def test_reports_without_animations_carry_no_three(cube):
    assert "flexorThree" not in Report("Title", sections=[Section("Part", "One.")]).html()
    assert "flexorThree" in Report("Title", sections=[Section("Part", "One.", [Animation([Actor(*cube)])])]).html()


def test_svg_follows_the_page(cube):
    text = inline_svg(lines(cube[1].time, {"z": cube[1].q[:, 2]}, ylabel="m"))
    assert text.startswith("<svg")
    assert "currentColor" in text
    assert "xmlns" not in text
    for used in re.findall(r"url\(#([\w-]+)\)", text):
        assert f'id="{used}"' in text


def test_plots_leave_no_global_figures(cube):
    import matplotlib

    before = dict(matplotlib.rcParams)
    figure = trajectory_figure(cube[1])
    assert dict(matplotlib.rcParams) == before
    titles = [a.get_title(loc="left") for a in figure.axes]
    assert titles[:4] == ["position", "orientation (quaternion)", "velocity", "angular velocity"]
    assert {"contact.normal_force", "contact.friction_force (1 of 2)", "contact.friction_force (2 of 2)"} <= set(titles)


def test_every_curve_is_named_once_in_a_legend():
    model = fx.load("quadruped")
    q = np.repeat(np.asarray(model.keyframe("stand"))[None], 4, axis=0)
    run = fx.Trajectory(np.arange(4.0), q, np.ones((4, model.nv)), np.ones((3, model.nu)), {}, None, model.topology)
    figure = trajectory_figure(run)
    named = [text.get_text() for axes in figure.axes for text in axes.get_legend().get_texts()]
    t = model.topology
    wanted = [t.q_name(i) for i in range(t.nq)] + [t.dof_name(i) for i in range(t.nv)] + [a.name for a in t.actuators]
    assert sorted(named) == sorted(wanted)
    for axes in figure.axes:
        colours = [line.get_color() for line in axes.get_lines()]
        assert len(set(colours)) == len(colours)
    figure.draw_without_rendering()
    width = figure.get_window_extent().width
    for axes in figure.axes:
        assert axes.get_legend().get_window_extent().x1 <= width  # no name is cut off


@pytest.mark.parametrize(
    ("value", "text"), [(0.0, "0"), (12, "12"), (1.2e-13, "1.2e-13"), (0.12345, "0.1235"), (12000, "12 000")]
)
def test_numbers(value, text):
    assert number(value) == text
