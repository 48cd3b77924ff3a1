"""A viewer in the browser (extra `view`, https://viser.studio): robots in motion, a time line, plots, and sliders that
simulate again at once."""

import threading
import time
from collections.abc import Sequence
from dataclasses import replace
from html import escape
from typing import Any

import numpy as np
from matplotlib.colors import to_rgb

from flexor.model.parameters import POSITIVE
from flexor.viz.colours import SERIES
from flexor.viz.framing import AZIMUTH, ELEVATION, boxes, floor_height, frame_motion
from flexor.viz.looks import looks
from flexor.viz.motion import Motion, numbers, series
from flexor.viz.robot_nodes import TRIANGLES, RobotNodes, add_floor
from flexor.viz.scene import body_motion, contact_forces

try:
    import viser
except ImportError as error:
    raise ImportError('`flexor view` needs viser: `pip install "flexor[view]"`.') from error

RATE = 30.0  # frames per second that are played
CURVES = 12  # that one plot shows at most
POINTS = 600  # of a curve
STILL = 0.01  # s: a shorter motion is a robot that stands


class Viewer:
    """Motions side by side in the scene of a viser server, which runs until `close`; `url` is where a browser finds it.

    A slider of a joint moves the start, one of a parameter all motions' physics; `simulate` of each motion, where there is one,
    then runs in a thread, and the last wish counts. Motions that are not `simulated` yet are at once. `status` says what it is
    doing, or why it failed.
    """

    def __init__(
        self,
        motions: Sequence[Motion],
        *,
        parameters: Sequence[str] = (),
        simulated: bool = True,
        host: str = "127.0.0.1",
        port: int = 8080,
    ):
        if not motions:
            raise ValueError("a viewer needs at least one Motion.")
        if parameters and not any(m.simulate for m in motions):
            raise ValueError("recordings alone have no physics, so no parameter can change them; simulate beside them.")
        self._motions = list(motions)
        self._lock, self._wish = threading.RLock(), threading.Event()
        self._start: np.ndarray | None = None
        self._values: dict[str, np.ndarray] = {}
        self._ended = False
        self._server = viser.ViserServer(host=host, port=port, verbose=False)
        self.url = f"http://{host}:{self._server.get_port()}"
        apart = self._furnish()
        self._nodes = [self._robot(i, np.array([0.0, i * apart, 0.0])) for i in range(len(motions))]
        self._poses = [_Poses(m) for m in motions]
        try:
            self._build_gui(parameters)
        except Exception:
            self._server.stop()
            raise
        self.seek(0.0)
        self._threads = [threading.Thread(target=t, daemon=True) for t in (self._play, self._simulate)]
        for thread in self._threads:
            thread.start()
        if not simulated:
            self._wish.set()

    def _robot(self, i: int, offset: np.ndarray) -> RobotNodes:
        motion, alone = self._motions[i], len(self._motions) == 1
        r, g, b = (round(255 * x) for x in to_rgb(SERIES[i % len(SERIES)]))
        return RobotNodes(self._server, motion.label, motion.model, offset, (r, g, b), alone=alone, floor=i == 0)

    def _furnish(self) -> float:
        """Puts the camera where it sees all robots at their start, and a floor where no robot has one; returns how far apart
        the robots stand, in m."""
        space = [_space(m) for m in self._motions]
        floors = [floor_height(m.model, *box) for m, box in zip(self._motions, space, strict=True)]
        sizes = [high[0] - low[0] for low, high in space]
        apart = max(max(1.5 * float(np.max(x[:2])), 0.75 * float(np.linalg.norm(x))) for x in sizes)
        moved = [(low + [0, i * apart, 0], high + [0, i * apart, 0]) for i, (low, high) in enumerate(space)]
        framing = frame_motion(moved, None if None in floors else min(z for z in floors if z is not None))
        camera, scene = self._server.initial_camera, self._server.scene
        back = np.array([np.cos(ELEVATION) * np.cos(AZIMUTH), np.cos(ELEVATION) * np.sin(AZIMUTH), np.sin(ELEVATION)])
        height = 2 * np.tan(camera.fov / 2)
        scene.set_up_direction("+z")
        camera.look_at = framing.centre[0]
        camera.position = framing.centre[0] + 1.4 * framing.distance(height, height) * back
        if framing.floor is not None:
            add_floor(self._server, "/floor", 2 * framing.radius, position=(0.0, 0.0, framing.floor))
        return apart

    # ---- the panel ----

    def _build_gui(self, parameters: Sequence[str]) -> None:
        gui = self._server.gui
        gui.configure_theme(show_logo=False, show_share_button=False)
        gui.add_markdown(f"**{_plain(', '.join(m.label for m in self._motions))}**")
        self._status = gui.add_markdown("")
        with gui.add_folder("Time"):
            self.playing: Any = gui.add_checkbox("play", initial_value=self.duration > STILL)
            self.time: Any = gui.add_slider("time (s)", min=0.0, max=max(self.duration, 1e-3), step=1e-3, initial_value=0.0)
            self.speed = gui.add_dropdown("speed", ("0.1", "0.25", "0.5", "1", "2"), initial_value="1")
        with gui.add_folder("Show"):
            self.frames = gui.add_checkbox("frames", initial_value=False)
            self.forces = gui.add_checkbox("contact forces", initial_value=True)
        self.joints: dict[str, Any] = {}
        self.sliders: dict[str, Any] = {}
        if any(m.simulate for m in self._motions):
            self._build_physics_gui(parameters)
        with gui.add_folder("Plot"):
            self.quantity = gui.add_dropdown("quantity", self._quantities(), initial_value="q")
            self.plots = [self._plot(m) for m in self._motions]
        self.time.on_update(lambda event: self._scrub() if event.client_id is not None else None)
        self.frames.on_update(lambda _: self.show_frames(self.frames.value))
        self.forces.on_update(lambda _: self.seek(self.time.value))
        self.quantity.on_update(lambda _: self._plot_again())

    def _build_physics_gui(self, parameters: Sequence[str]) -> None:
        gui = self._server.gui
        gui.add_button("simulate").on_click(lambda _: self._wish.set())
        if all(m.steerable and m.model.nq == self._motions[0].model.nq for m in self._motions):
            self._add_joints()
        with gui.add_folder("Parameters", expand_by_default=bool(parameters)) as self._folder:
            self._pattern = gui.add_text("name or pattern", initial_value="pair.*.friction")
            gui.add_button("add sliders").on_click(lambda _: self._add_typed())
        for pattern in parameters:
            self.add_parameter(pattern)

    def _add_joints(self) -> None:
        """A slider for each hinge and slide of the first robot; all robots start from them."""
        model = self._motions[0].model
        q = np.asarray(self._motions[0].trajectory.q[0], float).tolist()
        with self._server.gui.add_folder("Start", expand_by_default=len(q) < 12):
            for i, (joint, at) in enumerate(zip(model.topology.joints, model.topology.q_start.tolist(), strict=True)):
                if joint.kind not in ("hinge", "slide"):
                    continue
                reach = np.pi if joint.kind == "hinge" else 1.0
                low, high = np.asarray(model.joints.range[i], float).tolist() if joint.limited else (-reach, reach)
                self.joints[joint.name] = slider = self._slider(joint.name, min(low, q[at]), max(high, q[at]), q[at])
                slider.on_update(lambda _, at=at, s=slider: self.set_start(at, s.value))

    def _slider(self, label: str, low: float, high: float, value: float) -> Any:
        return self._server.gui.add_slider(label, min=low, max=high, step=(high - low) / 1000, initial_value=value)

    def _add_typed(self) -> None:
        try:
            self.add_parameter(self._pattern.value)
        except (KeyError, ValueError) as error:
            self._status.content = _plain(str(error.args[0]))

    def add_parameter(self, pattern: str) -> None:
        """Adds a slider for a parameter, or for all that match a pattern, which then share a value; for vectors one for each
        number."""
        found = numbers(self._motions[0].model, pattern)
        with self._lock, self._folder:
            self._values = {**found, **self._values}
            for i, value in np.ndenumerate(np.mean(list(found.values()), axis=0)):
                label = pattern + "".join(f"[{k}]" for k in i)
                if label in self.sliders:
                    continue
                number = float(f"{value:.6g}")
                low, high = span(pattern.rsplit(".", 1)[-1], number)
                self.sliders[label] = slider = self._slider(label, low, high, number)
                slider.on_update(lambda _, at=i, s=slider: self.set_parameter(tuple(found), at, s.value))

    def show_frames(self, shown: bool) -> None:
        """Shows or hides the axes of every body: x red, y green, z blue."""
        for nodes in self._nodes:
            nodes.show_frames(shown)

    def _quantities(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(name for m in self._motions for name in series(m)))

    def _curves(self, motion: Motion) -> dict[str, Any]:
        """Data, curves and title of the plot of a motion."""
        from viser import uplot

        name = self.quantity.value
        at, values, names = series(motion).get(name, (np.array([0.0, 1.0]), np.zeros((2, 0)), ()))
        rows = np.unique(np.linspace(0, len(at) - 1, POINTS).astype(int))
        shown = min(values.shape[1], CURVES)
        curves = [uplot.Series(label=names[i], stroke=SERIES[i % len(SERIES)], width=1.5) for i in range(shown)]
        title = f"{motion.label}: {name}" + (f", {CURVES} of {values.shape[1]}" if shown < values.shape[1] else "")
        data = (at[rows], *(np.nan_to_num(values[rows, i]) for i in range(shown)))
        return {"data": data, "series": (uplot.Series(label="t (s)"), *curves), "title": title}

    def _plot(self, motion: Motion) -> Any:
        from viser import uplot

        scales = {"x": uplot.Scale(time=False, auto=True)}
        return self._server.gui.add_uplot(**self._curves(motion), scales=scales, aspect=1.4)

    def _plot_again(self) -> None:
        with self._lock:
            for plot, motion in zip(self.plots, self._motions, strict=True):
                for name, value in self._curves(motion).items():
                    setattr(plot, name, value)

    # ---- time ----

    @property
    def duration(self) -> float:
        """Of the longest motion, in s."""
        return round(max(float(m.trajectory.time[-1]) for m in self._motions), 3)

    def seek(self, at: float) -> None:
        """Shows the robots as they are at a time in s; a shorter motion stays at its end."""
        with self._lock, self._server.atomic():
            for nodes, poses in zip(self._nodes, self._poses, strict=True):
                pos, quat, forces = poses.at(at)
                nodes.pose(pos, quat)
                nodes.show_forces(forces if self.forces.value else None)

    def _scrub(self) -> None:
        self.playing.value = False
        self.seek(self.time.value)

    def _play(self) -> None:
        last = time.perf_counter()
        while not self._ended:
            time.sleep(1 / RATE)
            now = time.perf_counter()
            passed, last = now - last, now
            if self.playing.value:
                self.advance(passed)

    def advance(self, seconds: float) -> None:
        """Plays on for some seconds of the clock; behind the end follows the start."""
        at = self.time.value + seconds * float(self.speed.value)
        self.time.value = 0.0 if at > self.duration else at
        self.seek(self.time.value)

    # ---- simulating again ----

    def set_start(self, coordinate: int, value: float) -> None:
        """Moves the start of all motions: at once to look at, then simulated."""
        with self._lock:
            start = np.array(self._motions[0].trajectory.q[0] if self._start is None else self._start, float)
            start[coordinate] = value
            self._start = start
            self.playing.value = False
            self.time.value = 0.0
            for nodes, motion in zip(self._nodes, self._motions, strict=True):
                if motion.simulate is not None:
                    pos, quat = body_motion(motion.model, start[None])
                    nodes.pose(pos[0], quat[0])
        self._wish.set()

    def set_parameter(self, names: Sequence[str], index: tuple[int, ...], value: float) -> None:
        """Sets one number of the parameters of these names, and simulates again."""
        with self._lock:
            for name in names:
                self._values[name] = np.array(self._values[name])
                self._values[name][index] = value
        self._wish.set()

    def _simulate(self) -> None:
        while not self._ended:
            self._wish.wait()
            self._wish.clear()
            if not self._ended:
                self.simulate()

    def simulate(self) -> None:
        """Simulates all motions again that can be, with the start and the parameters of the sliders."""
        with self._lock:
            start, values = self._start, dict(self._values)
        self._status.content = "simulating …"
        try:
            made = [m if m.simulate is None else replace(m, trajectory=m.simulate(start, values)) for m in self._motions]
            poses = [_Poses(m) for m in made]
        except Exception as error:  # of any solver, shown where the slider is; the last motion stays
            self._status.content = f"**not simulated:** {_plain(str(error))}"
            return
        bad = next((m for m in made if not m.trajectory.status.ok), None)
        self._status.content = (
            "" if bad is None else f"**{_plain(bad.label)} diverged:** {_plain(bad.trajectory.status.message)}"
        )
        with self._lock:
            first = self.duration < STILL and self._start is None
            self._motions, self._poses = made, poses
            self.time.max = max(self.duration, 1e-3)
            self.seek(min(self.time.value, self.duration))
            self.playing.value = self.playing.value or first
        if self.quantity.options != self._quantities():
            self.quantity.options = self._quantities()
        self._plot_again()

    @property
    def motions(self) -> tuple[Motion, ...]:
        """What is shown now."""
        return tuple(self._motions)

    @property
    def status(self) -> str:
        return str(self._status.content)

    @property
    def nodes(self) -> tuple[RobotNodes, ...]:
        """The robots in the scene."""
        return tuple(self._nodes)

    def close(self) -> None:
        """Ends the threads and the server."""
        self._ended = True
        self._wish.set()
        for thread in self._threads:
            thread.join(5.0)
        self._server.stop()


class _Poses:
    """Where bodies and contact forces of a motion are at any of its times. A state that is not finite is not shown."""

    def __init__(self, motion: Motion):
        run = motion.trajectory
        finite = np.isfinite(np.asarray(run.q)).all(1)
        count = len(finite) if finite.all() else max(int(np.argmin(finite)), 1)
        self.time = np.asarray(run.time, float)[:count]
        self.pos, self.quat = body_motion(motion.model, run.q[:count])
        self.forces = contact_forces(motion.model, run, np.arange(count)) if len(run) else None

    def at(self, seconds: float) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
        """Positions, quaternions and forces at the last state before a time."""
        i = max(int(np.searchsorted(self.time, seconds + 1e-9, side="right")) - 1, 0)
        return self.pos[i], self.quat[i], None if self.forces is None else self.forces[i]


def _plain(text: str) -> str:
    """Words that a description or an error brings, so that the browser shows them and reads no HTML in them."""
    return escape(text, quote=False)


def _space(motion: Motion) -> tuple[np.ndarray, np.ndarray]:
    """Lowest and highest corner of a robot at its start."""
    return boxes(looks(motion.model, triangles=TRIANGLES), *body_motion(motion.model, np.asarray(motion.trajectory.q[:1])))


def span(field: str, value: float) -> tuple[float, float]:
    """The ends of a slider around a value: from zero to twice as much, or one to both sides of zero."""
    if field in POSITIVE:
        return 0.0, 2 * value if value > 0 else 1.0
    reach = 2 * abs(value) if value else 1.0
    return -reach, reach
