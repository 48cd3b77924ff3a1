"""Videos: the robot's shapes, posed by flexor and rendered off-screen by MuJoCo, written as GIF or MP4."""

import ctypes.util
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import mujoco
import numpy as np
from matplotlib.colors import to_rgba

from flexor.files import write_with
from flexor.model.model import Model
from flexor.solvers.trajectory import Trajectory
from flexor.viz.colours import SERIES
from flexor.viz.framing import AZIMUTH, ELEVATION, Framing, boxes, floor_height, frame_motion
from flexor.viz.scene import body_motion, checked, frame_indices, shapes

_INSTALL = (
    "MuJoCo found no graphics library to render with. On Debian or Ubuntu install one of "
    "`libegl1 libgl1 libgl1-mesa-dri` (then MUJOCO_GL=egl) or `libosmesa6` (then MUJOCO_GL=osmesa); on Fedora "
    "`mesa-libEGL mesa-dri-drivers` or `mesa-libOSMesa`. The animation of `save_animation` and of `--html` needs none."
)
_FIELD_OF_VIEW = 35.0  # degrees, from top to bottom
_ENDLESS = (0.0, 0.0, 0.1)  # size of a plane
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
    drawn = shapes(model)
    space = [boxes(drawn, *motion) for motion in motions]
    framing = frame_motion(space, floor_height(model, *space[0]))
    views = zip(*(_frames(drawn, *m, size, framing, c) for m, c in zip(motions, SERIES, strict=False)), strict=True)
    frames = _counted((np.concatenate(images, axis=1) for images in views), len(rows), progress)
    whole = (len(motions) * size[0], size[1])
    write_with({path: lambda part: writers[path.suffix](part, frames, frames_per_second, whole)})
    return path


def _counted(frames: Iterator[np.ndarray], total: int, progress: Callable[[int, int], None] | None) -> Iterator[np.ndarray]:
    for i, frame in enumerate(frames):
        yield frame
        if progress is not None:
            progress(i + 1, total)


def puppet(
    drawn: Sequence[dict[str, Any]], bodies: int, framing: Framing, size: tuple[int, int], colour: str = SERIES[0]
) -> mujoco.MjModel:
    """A MuJoCo model of the shapes alone: every body is a mocap body. Light and camera cover what the framing contains."""
    spec = mujoco.MjSpec()
    spec.stat.center, spec.stat.extent = framing.centre[0], framing.radius
    spec.visual.quality.shadowsize, spec.visual.map.shadowclip = 4096, 3.0
    spec.visual.global_.offwidth, spec.visual.global_.offheight = size
    spec.visual.global_.fovy = _FIELD_OF_VIEW
    spec.visual.headlight.ambient, spec.visual.headlight.diffuse = [0.35] * 3, [0.45] * 3
    sky = {"builtin": mujoco.mjtBuiltin.mjBUILTIN_GRADIENT, "rgb1": [0.93, 0.95, 0.98], "rgb2": [0.72, 0.78, 0.86]}
    spec.add_texture(name="sky", type=mujoco.mjtTexture.mjTEXTURE_SKYBOX, width=64, height=64, **sky)
    _add_floor_material(spec, framing)
    kind = mujoco.mjtLightType.mjLIGHT_DIRECTIONAL
    spec.worldbody.add_light(
        pos=_above(framing.centre[0], framing.radius), dir=[0.1, 0.15, -1], type=kind, diffuse=[0.4] * 3
    )
    if framing.floor is not None:
        _add_grid(spec, framing)
    of_body = [spec.worldbody, *(spec.worldbody.add_body(name=f"body{i}", mocap=True) for i in range(1, bodies))]
    for i, shape in enumerate(drawn):
        _add_shape(spec, of_body[shape["body"]], shape, f"mesh{i}", colour)
    return spec.compile()


def _add_floor_material(spec: mujoco.MjSpec, framing: Framing) -> None:
    """The checkered material of planes."""
    texture = {"type": mujoco.mjtTexture.mjTEXTURE_2D, "builtin": mujoco.mjtBuiltin.mjBUILTIN_CHECKER}
    shades = {"rgb1": [0.72, 0.74, 0.78], "rgb2": [0.8, 0.82, 0.85]}
    spec.add_texture(name="floor", width=256, height=256, **texture, **shades)
    floor = spec.add_material(name="floor", texrepeat=[0.5 / framing.square] * 2, texuniform=True, emission=0.2)
    floor.textures[mujoco.mjtTextureRole.mjTEXROLE_RGB] = "floor"


def _add_grid(spec: mujoco.MjSpec, framing: Framing) -> None:
    """Thin lines in place of a floor: they do not hide what is below."""
    square, reach = framing.square, 20
    middle = square * np.round(framing.centre[0] / square)
    middle[2] = framing.floor
    for i in range(-reach, reach + 1):
        for axis in (0, 1):
            size = np.full(3, 0.001 * framing.radius)
            size[axis] = reach * square
            pos = middle.copy()
            pos[1 - axis] += i * square
            spec.worldbody.add_geom(type=mujoco.mjtGeom.mjGEOM_BOX, pos=pos, size=size, rgba=[0.6, 0.65, 0.7, 0.6])


def _add_shape(spec: mujoco.MjSpec, body: Any, shape: dict[str, Any], mesh: str, colour: str) -> None:
    kind = getattr(mujoco.mjtGeom, f"mjGEOM_{shape['shape'].upper()}")
    look: dict[str, Any] = {"rgba": to_rgba(colour)}
    size = shape["size"]
    if shape["shape"] == "plane":
        look, size = {"material": "floor"}, _ENDLESS
    if shape["shape"] == "mesh":
        if not shape["faces"]:
            return  # a flat mesh has no hull to draw
        # MuJoCo moves a mesh to its own inertial frame and back, so that its pose stays the one given here
        inertia = mujoco.mjtMeshInertia.mjMESH_INERTIA_CONVEX
        spec.add_mesh(name=mesh, uservert=np.ravel(shape["vertices"]), userface=np.ravel(shape["faces"]), inertia=inertia)
        look["meshname"] = mesh
    body.add_geom(type=kind, pos=shape["pos"], quat=shape["quat"], size=size, **look)


def _above(centre: np.ndarray, radius: float) -> np.ndarray:
    """Where the light is, over what the camera looks at."""
    return centre + radius * np.array([-0.1, -0.15, 1.1])


def _frames(
    drawn: Sequence[dict[str, Any]], pos: np.ndarray, quat: np.ndarray, size: tuple[int, int], framing: Framing, colour: str
) -> Iterator[np.ndarray]:
    """Images (height, width, 3) of the poses (frames, nbody, ...)."""
    with closing(Stage(drawn, pos.shape[1], framing, size, colour)) as stage:
        for i, (p, q) in enumerate(zip(pos, quat, strict=True)):
            yield stage.image(p, q, framing.centre[i])


class Stage:
    """A robot's shapes before an off-screen camera, for images one by one. `close` releases the graphics context."""

    def __init__(
        self,
        drawn: Sequence[dict[str, Any]],
        bodies: int,
        framing: Framing,
        size: tuple[int, int],
        colour: str = SERIES[0],
    ):
        self._m = puppet(drawn, bodies, framing, size, colour)
        self._data = mujoco.MjData(self._m)
        self._camera = _camera(framing, size)
        self._radius = framing.radius
        self._screen = _Screen(self._m, size)

    @staticmethod
    def of(model: Model, q: np.ndarray, size: tuple[int, int]) -> "Stage":
        """For a robot that may go anywhere from the pose `q`; the camera stands as far away as that pose needs."""
        drawn, motion = shapes(model), body_motion(model, q[None])
        space = boxes(drawn, *motion)
        return Stage(drawn, motion[0].shape[1], frame_motion([space], floor_height(model, *space)), size)

    def image(self, pos: np.ndarray, quat: np.ndarray, centre: np.ndarray) -> np.ndarray:
        """The image (height, width, 3) of the poses (nbody, ...), the camera turned to `centre`."""
        moved = self._m.body_mocapid[1:]
        self._data.mocap_pos[moved], self._data.mocap_quat[moved] = pos[1:], quat[1:]
        self._camera.lookat, self._m.light_pos[0] = centre, _above(centre, self._radius)
        mujoco.mj_kinematics(self._m, self._data)
        mujoco.mj_camlight(self._m, self._data)
        return self._screen.image(self._data, self._camera)

    def close(self) -> None:
        self._screen.close()


def _camera(framing: Framing, size: tuple[int, int]) -> mujoco.MjvCamera:
    height = 2 * np.tan(np.deg2rad(_FIELD_OF_VIEW) / 2)
    camera = mujoco.MjvCamera()
    camera.distance = framing.distance(height * size[0] / size[1], height)
    # MuJoCo's angles are those of the direction in which the camera looks
    camera.azimuth, camera.elevation = np.rad2deg(AZIMUTH) + 180, -np.rad2deg(ELEVATION)
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
    """MuJoCo's OpenGL context: of MUJOCO_GL's library, else a hidden window if there is a display, else any library that
    works."""
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
