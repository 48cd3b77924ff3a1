"""Pages in a real browser: robots are drawn, they play, the slider moves them, the console stays silent, nothing is fetched."""

import base64
import io

import numpy as np
import pytest
import trimesh
from PIL import Image

import flexor as fx
from flexor.contact.detect import candidates
from flexor.viz import Actor, Animation, Figure, Report, Section, save_animation
from flexor.viz.plots import lines
from tests.viz import browser

pytestmark = pytest.mark.skipif(
    browser.chromium() is None, reason="no Chromium to open pages in; `apt-get install chromium` brings one"
)

ARM = """<robot name="arm">
  <link name="base"><visual><origin xyz="0 0 -0.1"/><geometry><box size="0.4 0.4 0.2"/></geometry>
    <material name="g"><color rgba="0 1 0 1"/></material></visual></link>
  <link name="arm"><inertial><origin xyz="0 0 0.5"/><mass value="1"/><inertia ixx="1" iyy="1" izz="1" ixy="0" ixz="0" iyz="0"/>
    </inertial><visual><origin xyz="0 0 0.5"/><geometry><mesh filename="rod.stl"/></geometry>
    <material name="r"><color rgba="1 0 0 1"/></material></visual></link>
  <joint name="j" type="continuous"><parent link="base"/><child link="arm"/><axis xyz="1 0 0"/></joint>
</robot>"""
PIXELS = """(() => {
  const canvas = document.querySelectorAll('canvas')[%d], copy = document.createElement('canvas');
  Object.assign(copy, { width: canvas.width, height: canvas.height });
  const pen = copy.getContext('2d', { willReadFrequently: true });
  pen.drawImage(canvas, 0, 0);
  const data = pen.getImageData(0, 0, copy.width, copy.height).data;
  return [copy.width, copy.height, btoa(Array.from(data, (x) => String.fromCharCode(x)).join(''))];
})()"""
FIRST = "document.querySelector('input[type=range]')"


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    """A page with an arm that turns from upright to the side, in red, on a green base."""
    folder = tmp_path_factory.mktemp("arm")
    trimesh.creation.box((0.1, 0.1, 1)).export(folder / "rod.stl")
    (folder / "arm.urdf").write_text(ARM)
    model = fx.load(folder / "arm.urdf")
    time = np.linspace(0, 1, 51)
    still = np.zeros((51, 1))
    run = fx.Trajectory(time, 1.5 * time[:, None], still, still[1:], {}, None, model.topology)
    return save_animation(folder / "arm.html", model, run)


@pytest.fixture(scope="module")
def chromium(tmp_path_factory):
    started = browser.Browser(tmp_path_factory.mktemp("profile"))
    yield started
    started.close()


def pixels(chromium, canvas=0):
    """Red, green, blue and opacity of a canvas."""
    width, height, data = chromium.run(PIXELS % canvas)
    return np.frombuffer(base64.b64decode(data), np.uint8).reshape(height, width, 4).astype(int)


def mask(image, channel):
    """Where a channel is far above the other two."""
    others = [c for c in range(3) if c != channel]
    return (image[..., 3] > 200) & (image[..., channel] > 90) & (image[..., others].max(-1) < 0.5 * image[..., channel])


def drawn(chromium, canvas=0):
    browser.wait(lambda: pixels(chromium, canvas)[..., 3].max() > 0, "nothing was drawn")
    return pixels(chromium, canvas)


def test_page_draws_plays_and_follows_the_slider(chromium, page):
    chromium.open(page)
    drawn(chromium)
    chromium.run(f"{FIRST}.value = 0; {FIRST}.dispatchEvent(new Event('input'))")
    upright = pixels(chromium)
    red, green = mask(upright, 0), mask(upright, 1)
    assert red.sum() > 200
    assert green.sum() > 200
    assert np.argwhere(red)[:, 0].mean() < np.argwhere(green)[:, 0].mean()  # the arm is above its base
    assert not red[:, : red.shape[1] // 4].any()
    # the slider
    chromium.run(f"{FIRST}.value = 50; {FIRST}.dispatchEvent(new Event('input'))")
    turned = mask(pixels(chromium), 0)
    assert chromium.run("document.querySelector('output').textContent") == "1.00 / 1.00 s"
    height, width = (np.ptp(np.argwhere(turned), axis=0)).tolist()
    tall, thin = (np.ptp(np.argwhere(red), axis=0)).tolist()
    assert tall > 3 * thin
    assert width > 1.5 * height  # lies on its side
    # the button
    chromium.run(f"{FIRST}.value = 0; {FIRST}.dispatchEvent(new Event('input'))")
    chromium.run("document.querySelector('button').click()")
    chromium.wait(f"Number({FIRST}.value) > 10")
    chromium.run("document.querySelector('button').click()")
    assert mask(pixels(chromium), 0).sum() > 100
    stopped = chromium.run(f"Number({FIRST}.value)")
    assert chromium.run(f"new Promise((done) => setTimeout(() => done(Number({FIRST}.value)), 150))") == stopped
    assert chromium.messages == []
    assert chromium.fetched == [page.as_uri()]


def test_mouse_turns_and_brings_nearer(chromium, page):
    chromium.open(page)
    drawn(chromium)
    chromium.run(f"{FIRST}.value = 0; {FIRST}.dispatchEvent(new Event('input'))")
    before = pixels(chromium)
    where = {"x": 240, "y": 120, "button": "left", "buttons": 1, "clickCount": 1}
    chromium.send("Input.dispatchMouseEvent", type="mousePressed", **where)
    chromium.send("Input.dispatchMouseEvent", type="mouseMoved", **{**where, "x": 340})
    chromium.send("Input.dispatchMouseEvent", type="mouseReleased", **{**where, "x": 340, "buttons": 0})
    browser.wait(lambda: (pixels(chromium) != before).any(), "the mouse turned nothing")
    turned = mask(pixels(chromium), 0).sum()
    chromium.send("Input.dispatchMouseEvent", type="mouseWheel", x=240, y=120, deltaX=0, deltaY=-600)
    browser.wait(lambda: mask(pixels(chromium), 0).sum() > 1.2 * turned, "the wheel brought nothing nearer")
    assert chromium.messages == []


def test_report_draws_every_animation(chromium, tmp_path):
    """Two robots, each in a colour, with forces; and further down an animation that is drawn when it is seen."""
    model = fx.load("cube")
    q, count = np.repeat(np.asarray(model.keyframe("rest"))[None], 21, axis=0), len(candidates(model.topology))
    forces = {"contact.normal_force": np.full((20, count), 1.0), "contact.friction_force": np.zeros((20, count, 2))}
    still = np.zeros((21, model.nv))
    run = fx.Trajectory(np.linspace(0, 1, 21), q, still, still[1:, : model.nu], forces, None, model.topology)
    pair = [Actor(model, run, "one", "#ff0000"), Actor(model, run, "two", "#00ff00", (0.0, 0.3, 0.0))]
    plot = Figure(lines(run.time, {"z": run.q[:, 2]}, ylabel="m"))
    blocks = [Animation(pair), plot, plot, plot, Animation([Actor(model, run)])]
    path = Report("Title", sections=[Section("Part", "One.", blocks)]).save(tmp_path / "report.html")
    chromium.open(path)
    chromium.run("document.querySelectorAll('canvas')[0].scrollIntoView()")
    first = drawn(chromium)
    assert mask(first, 0).sum() > 200
    assert mask(first, 1).sum() > 200
    arrows = (first[..., 0] > 150) & (first[..., 2] > 60) & (first[..., 1] < 60)
    assert arrows.sum() > 20
    assert not pixels(chromium, 1)[..., 3].any()
    chromium.run("document.querySelectorAll('canvas')[1].scrollIntoView()")
    second = drawn(chromium, 1)
    assert (second[..., 2] - second[..., 0] > 60).sum() > 200  # the robot's blue
    assert chromium.messages == []
    assert chromium.fetched == [path.as_uri()]
    shown = Image.open(io.BytesIO(chromium.picture()))
    assert len(set(shown.convert("RGB").resize((64, 64)).get_flattened_data())) > 50


def test_page_says_that_webgl_is_missing(page, tmp_path):
    without = browser.Browser(tmp_path / "profile", browser.NO_DRAWING)
    try:
        without.open(page)
        assert "WebGL is missing or switched off" in without.run("document.body.innerText")
        assert without.run("document.querySelectorAll('canvas').length") == 0
        assert without.messages == []
    finally:
        without.close()
