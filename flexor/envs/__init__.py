"""Tasks over any simulator: what a robot is to do, as pure functions of one robot."""

from flexor.envs.action import AbstractAction, Delayed, Target, Torque
from flexor.envs.ant import AntRun, AntSpin, AntSpinTrack
from flexor.envs.batch import batched
from flexor.envs.cartpole import CartpoleSwingUp
from flexor.envs.episode import Episode, Transition, advance, check, start
from flexor.envs.randomised import AbstractDraw, Between, Drawn, Pushes, Randomised, Scaled, Shifted
from flexor.envs.table import TASKS, make
from flexor.envs.task import AbstractTask, Step, uniform

__all__ = [
    "TASKS",
    "AbstractAction",
    "AbstractDraw",
    "AbstractTask",
    "AntRun",
    "AntSpin",
    "AntSpinTrack",
    "Between",
    "CartpoleSwingUp",
    "Delayed",
    "Drawn",
    "Episode",
    "Pushes",
    "Randomised",
    "Scaled",
    "Shifted",
    "Step",
    "Target",
    "Torque",
    "Transition",
    "advance",
    "batched",
    "check",
    "make",
    "start",
    "uniform",
]
