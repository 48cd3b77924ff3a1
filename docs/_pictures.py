"""The five pictures of the landing page and the README: `python docs/_pictures.py` writes docs/pictures (needs chromium).

Two are photographs of pages that flexor writes, three are what tutorials draw.
"""

import subprocess
import tempfile
from pathlib import Path

import jax.numpy as jnp
from _tutorials import FOLDER, executed
from PIL import Image

import flexor as fx
from flexor.control import Quadruped, Walker, on_its_feet

OUT = Path(__file__).parent / "pictures"
DRAWN = {"match": ("2_match_logs", 0), "missing": ("3_missing_physics", 0), "adapt": ("6_adapt_while_running", 0)}
SIZE = (760, 420)
CHROMIUM = [
    "chromium", "--headless", "--no-sandbox", "--use-gl=angle", "--use-angle=swiftshader", "--enable-unsafe-swiftshader",
    "--window-size=760,480", "--virtual-time-budget=6000",
]  # fmt: skip


def walk() -> tuple[fx.Model, fx.Trajectory]:
    """ANYmal C under convex MPC."""
    robot = Quadruped.of(on_its_feet(fx.load("anymal_c", floating=True, ground=True)))
    sim = fx.Simulator(robot.model, dt=0.002)
    walker = Walker(robot, jnp.array([0.6, 0.0, 0.2]), dt=0.002)
    return robot.model, sim.rollout(sim.reset(jnp.asarray(robot.stand)), walker, steps=1000)


def ran() -> tuple[fx.Model, fx.Trajectory]:
    """The ant under a policy of the package."""
    task = fx.envs.make("ant-run")
    return task.sim.model, fx.learn.play(fx.learn.load("ant-run"), task, seed=3)[0]


def photograph(name: str, model: fx.Model, motion: fx.Trajectory) -> None:
    """A page that plays the motion, as a browser shows it."""
    with tempfile.TemporaryDirectory() as folder:
        page, raw = Path(folder) / "page.html", Path(folder) / "raw.png"
        fx.viz.save_animation(page, model, motion)
        subprocess.run([*CHROMIUM, f"--screenshot={raw}", page.as_uri()], check=True, capture_output=True)
        _keep(name, Image.open(raw).crop((0, 30, SIZE[0], 30 + SIZE[1] - 40)))


def _keep(name: str, picture: Image.Image) -> None:
    picture.convert("RGB").quantize(128).save(OUT / f"{name}.png", optimize=True)


def main() -> None:
    """Writes all of them."""
    OUT.mkdir(exist_ok=True)
    photograph("walk", *walk())
    photograph("ant", *ran())
    for name, (tutorial, number) in DRAWN.items():
        with tempfile.TemporaryDirectory() as folder:
            raw = Path(folder) / "raw.png"
            raw.write_bytes(executed(FOLDER / f"{tutorial}.py").pictures[f"{tutorial}-{number}.png"])
            _keep(name, Image.open(raw))


if __name__ == "__main__":
    main()
