"""Videos: the robot's shapes, posed by flexor and rendered off-screen by MuJoCo, written as GIF or MP4."""

import ctypes.util
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import mujoco
import numpy as np
from matplotlib.colors import to_rgba

from flexor.model.model import Model
from flexor.solvers.trajectory import Trajectory
from flexor.viz.colours import SERIES
from flexor.viz.scene import body_motion, checked, extent, frame_indices

_INSTALL = (
    "MuJoCo found no graphics library to render with. On Debian or Ubuntu install one of "
    "`libegl1 libgl1 libgl1-mesa-dri` (then MUJOCO_GL=egl) or `libosmesa6` (then MUJOCO_GL=osmesa); on Fedora "
    "`mesa-libEGL mesa-dri-drivers` or `mesa-libOSMesa`. The animation of `save_animation` and of `--html` needs none."
)
_NO_ENCODER = 'MP4 needs an encoder: `pip install "flexor[video]"` (imageio-ffmpeg), or write a .gif instead.'


class GraphicsError(RuntimeError):
    """Nothing to render with; the sentence says what to install."""


def save_video(
    path: str | os.PathLike[str],
    model: Model,
    trajectory: Trajectory,
    *,
    beside: Trajectory | None = None,
    frames_per_second: float = 30.0,
    size: tuple[int, int] = (640, 480),
    progress: Callable[[int, int], None] | None = None,
) -> Path:
    """Writes the motion to a .gif or .mp4 file in real time; returns the path. `progress(done, all)` is called per frame.

    Another trajectory of the same robot and times, `beside`, is seen on the right by the same camera, in another colour.
    """
    path = Path(path)
    writers = {".gif": _write_gif, ".mp4": _write_mp4}
    if path.suffix not in writers:
        raise ValueError(f"'{path.name}' must end in {' or '.join(writers)}.")
    if path.suffix == ".mp4":
        _encoder()
    if not path.parent.is_dir():
        raise FileNotFoundError(f"cannot write '{path}': the folder '{path.parent}' does not exist.")
    rows = frame_indices(np.asarray(checked(trajectory).time, float), frames_per_second)
    motions = [body_motion(model, t.q[rows]) for t in (trajectory, *([] if beside is None else [checked(beside)]))]
    corners = [extent(model, pos) for pos, _ in motions]
    low, high = np.min([c[0] for c in corners], axis=0), np.max([c[1] for c in corners], axis=0)
    views = zip(*(_frames(model, *m, size, low, high, c) for m, c in zip(motions, SERIES, strict=False)), strict=True)
    frames = (np.concatenate(images, axis=1) for images in views)
    whole = (len(motions) * size[0], size[1])
    writers[path.suffix](path, _counted(frames, len(rows), progress), frames_per_second, whole)
    return path


def _counted(frames: Iterator[np.ndarray], total: int, progress: Callable[[int, int], None] | None) -> Iterator[np.ndarray]:
    for i, frame in enumerate(frames):
        yield frame
        if progress is not None:
            progress(i + 1, total)


def puppet(
    model: Model, low: np.ndarray, high: np.ndarray, size: tuple[int, int], colour: str = SERIES[0]
) -> mujoco.MjModel:
    """A MuJoCo model of the robot's shapes alone: every body is a mocap body. Two corners of space are lit and seen."""
    spec = mujoco.MjSpec()
    spec.stat.center, spec.stat.extent = (low + high) / 2, max(0.1, float(np.linalg.norm(high - low)) / 2)
    spec.visual.quality.shadowsize, spec.visual.map.shadowclip = 4096, 3.0
    spec.visual.global_.offwidth, spec.visual.global_.offheight = size
    spec.visual.headlight.ambient, spec.visual.headlight.diffuse = [0.35] * 3, [0.45] * 3
    sky = {"builtin": mujoco.mjtBuiltin.mjBUILTIN_GRADIENT, "rgb1": [0.93, 0.95, 0.98], "rgb2": [0.72, 0.78, 0.86]}
    spec.add_texture(name="sky", type=mujoco.mjtTexture.mjTEXTURE_SKYBOX, width=64, height=64, **sky)
    checker = {"builtin": mujoco.mjtBuiltin.mjBUILTIN_CHECKER, "rgb1": [0.78, 0.81, 0.85], "rgb2": [0.84, 0.87, 0.9]}
    spec.add_texture(name="floor", type=mujoco.mjtTexture.mjTEXTURE_2D, width=256, height=256, **checker)
    floor = spec.add_material(name="floor", texrepeat=[2, 2], texuniform=True)
    floor.textures[mujoco.mjtTextureRole.mjTEXROLE_RGB] = "floor"
    above = spec.stat.center + spec.stat.extent * np.array([-0.1, -0.15, 1.1])
    kind = mujoco.mjtLightType.mjLIGHT_DIRECTIONAL
    spec.worldbody.add_light(pos=above, dir=[0.1, 0.15, -1], type=kind, diffuse=[0.4] * 3)
    bodies = [spec.worldbody]
    bodies += [spec.worldbody.add_body(name=f"body{i}", mocap=True) for i in range(1, len(model.topology.bodies))]
    for i, geom in enumerate(model.topology.geoms):
        _add_shape(spec, bodies[geom.body], model, i, colour)
    return spec.compile()


def _add_shape(spec: mujoco.MjSpec, body: Any, model: Model, i: int, colour: str) -> None:
    geom, g = model.topology.geoms[i], model.geoms
    kind = getattr(mujoco.mjtGeom, f"mjGEOM_{geom.shape.upper()}")
    look: dict[str, Any] = {"rgba": to_rgba(colour)}
    size = np.asarray(g.size[i], float)
    if geom.shape == "plane":
        look, size = {"material": "floor"}, np.array([0, 0, 0.1])
    if geom.shape == "mesh":
        vertices = np.asarray(g.vertices[geom.start : geom.stop], float)
        # MuJoCo moves a mesh to its own inertial frame and back, so that its pose stays the one given here
        spec.add_mesh(name=f"mesh{i}", uservert=vertices.ravel(), inertia=mujoco.mjtMeshInertia.mjMESH_INERTIA_CONVEX)
        look["meshname"] = f"mesh{i}"
    body.add_geom(type=kind, pos=np.asarray(g.pos[i], float), quat=np.asarray(g.quat[i], float), size=size, **look)


def _frames(
    model: Model, pos: np.ndarray, quat: np.ndarray, size: tuple[int, int], low: np.ndarray, high: np.ndarray, colour: str
) -> Iterator[np.ndarray]:
    """Images (height, width, 3) of the poses (frames, nbody, ...), of the space between two corners."""
    m = puppet(model, low, high, size, colour)
    data = mujoco.MjData(m)
    camera = _camera(low, high)
    moved = m.body_mocapid[1:]
    with closing(_Screen(m, size)) as screen:
        for p, q in zip(pos, quat, strict=True):
            data.mocap_pos[moved], data.mocap_quat[moved] = p[1:], q[1:]
            mujoco.mj_kinematics(m, data)
            mujoco.mj_camlight(m, data)
            yield screen.image(data, camera)


def _camera(low: np.ndarray, high: np.ndarray) -> mujoco.MjvCamera:
    camera = mujoco.MjvCamera()
    camera.lookat = (low + high) / 2
    camera.distance = 1.1 * max(0.1, float(np.linalg.norm(high - low)))
    camera.azimuth, camera.elevation = 120, -15
    return camera


class _Screen:
    """An off-screen image of a MuJoCo model: what `mujoco.Renderer` does, on a graphics context of our choice."""

    def __init__(self, m: mujoco.MjModel, size: tuple[int, int]):
        self._m = m
        self._window = _graphics_context(size)
        self._context = mujoco.MjrContext(m, mujoco.mjtFontScale.mjFONTSCALE_100)
        mujoco.mjr_setBuffer(mujoco.mjtFramebuffer.mjFB_OFFSCREEN, self._context)
        self._scene = mujoco.MjvScene(m, maxgeom=m.ngeom + 1000)
        self._area = mujoco.MjrRect(0, 0, *size)

    def image(self, data: mujoco.MjData, camera: mujoco.MjvCamera) -> np.ndarray:
        """The image (height, width, 3) that the camera sees."""
        self._window.make_current()
        everything = mujoco.mjtCatBit.mjCAT_ALL
        mujoco.mjv_updateScene(self._m, data, mujoco.MjvOption(), None, camera, everything, self._scene)
        mujoco.mjr_render(self._area, self._scene, self._context)
        pixels = np.empty((self._area.height, self._area.width, 3), np.uint8)
        mujoco.mjr_readPixels(pixels, None, self._area, self._context)
        return pixels[::-1]

    def close(self) -> None:
        self._context.free()
        self._window.free()


def _graphics_context(size: tuple[int, int]) -> Any:
    """MuJoCo's OpenGL context: of MUJOCO_GL's library, else a hidden window where there is a display, else what is there."""
    try:
        window = _context_class()(*size)
        window.make_current()
        return window
    except Exception as error:  # every library fails in its own way: ImportError, AttributeError, OSError, RuntimeError
        raise GraphicsError(_INSTALL) from error


def _context_class() -> Any:
    unset = not os.environ.get("MUJOCO_GL") and not os.environ.get("DISPLAY")
    if sys.platform == "linux" and unset and ctypes.util.find_library("EGL"):
        from mujoco.egl import GLContext
    elif sys.platform == "linux" and unset:
        from mujoco.osmesa import GLContext
    else:
        from mujoco.gl_context import GLContext
    return GLContext


def _write_gif(path: Path, frames: Iterator[np.ndarray], frames_per_second: float, size: tuple[int, int]) -> None:
    from PIL import Image

    # one palette for all frames, taken from the first, keeps the background still
    images: list[Image.Image] = []
    for frame in frames:
        image = Image.fromarray(frame)
        images.append(image.quantize(palette=images[0], dither=Image.Dither.NONE) if images else image.quantize(128))
    # GIF counts hundredths of a second
    images[0].save(path, save_all=True, append_images=images[1:], duration=round(100 / frames_per_second) * 10, loop=0)


def _encoder() -> Any:
    try:
        import imageio_ffmpeg
    except ImportError as error:
        raise GraphicsError(_NO_ENCODER) from error
    return imageio_ffmpeg


def _write_mp4(path: Path, frames: Iterator[np.ndarray], frames_per_second: float, size: tuple[int, int]) -> None:
    writer = _encoder().write_frames(str(path), size, fps=frames_per_second, macro_block_size=2)
    writer.send(None)
    try:
        for frame in frames:
            writer.send(np.ascontiguousarray(frame))
    finally:
        writer.close()
