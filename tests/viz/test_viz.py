"""Drawings: the data they show is right, and the pages need nothing from outside."""

import json
import re
from html.parser import HTMLParser

import numpy as np
import pytest

import flexor as fx
from flexor.viz import Actor, Animation, Code, Figure, Report, Section, Table, animate, save_animation
from flexor.viz.plots import inline_svg, lines, trajectory_figure
from flexor.viz.report import number
from flexor.viz.scene import body_motion, bones, extent, frame_indices, hull_faces, shapes

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


def test_shapes_are_plain_data(model):
    found = {s["shape"]: s for s in shapes(model)}
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


def test_body_without_shape_gets_a_bone(model):
    assert bones(model) == [[model.body("b"), model.body("a")]]


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


def test_extent_holds_the_robot(model):
    pos, _ = body_motion(model, np.asarray(model.reference)[None])
    low, high = extent(model, pos)
    assert (low <= [-0.1, -0.2, 1.7]).all()
    assert (high >= [0.6, 0.7, 3.0]).all()
    assert high[2] < 10


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
    assert not re.search(r"https?://", text)
    (payload,) = page.payloads
    actor = payload["actors"][0]
    assert len(actor["poses"]) == len(payload["time"]) == len(actor["forces"])
    assert len(actor["poses"][0]) == 7 * 2
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
    assert second["forces"] is None
    assert payload["high"][1] > 1


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
    assert not re.search(r"https?://", text)
    assert len(page.payloads) == 1
    for words in ("<h1>Title</h1>", "<p>Two.</p>", "a plot", "✓ holds", "✗ off", "<summary>more</summary>", "<svg"):
        assert words in text


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
    assert titles[:3] == ["position", "orientation (quaternion)", "velocities"]
    assert set(FORCES) <= set(titles)


@pytest.mark.parametrize(
    ("value", "text"), [(0.0, "0"), (12, "12"), (1.2e-13, "1.2e-13"), (0.12345, "0.1235"), (12000, "12 000")]
)
def test_numbers(value, text):
    assert number(value) == text
