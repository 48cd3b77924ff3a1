"""Tasks over any simulator: what a robot is to do, as pure functions of one robot."""

from flexor.envs.action import AbstractAction, Delayed, Shift, Target, Torque
from flexor.envs.ant import AntRun, AntSpin, AntSpinTrack
from flexor.envs.batch import batched
from flexor.envs.cartpole import CartpoleSwingUp
from flexor.envs.episode import Episode, Transition, advance, check, start
from flexor.envs.exercises import EXERCISES, Exercise, exercise
from flexor.envs.franka import Reach
from flexor.envs.joystick import Commands, Joystick
from flexor.envs.legged import Legs, on_its_feet
from flexor.envs.randomised import AbstractDraw, Between, Drawn, Pushes, Randomised, Scaled, Shifted
from flexor.envs.table import TASKS, make
from flexor.envs.task import AbstractTask, Step, uniform
from flexor.envs.walk import Walk

__all__ = [
    "EXERCISES",
    "TASKS",
    "AbstractAction",
    "AbstractDraw",
    "AbstractTask",
    "AntRun",
    "AntSpin",
    "AntSpinTrack",
    "Between",
    "CartpoleSwingUp",
    "Commands",
    "Delayed",
    "Drawn",
    "Episode",
    "Exercise",
    "Joystick",
    "Legs",
    "Pushes",
    "Randomised",
    "Reach",
    "Scaled",
    "Shift",
    "Shifted",
    "Step",
    "Target",
    "Torque",
    "Transition",
    "Walk",
    "advance",
    "batched",
    "check",
    "exercise",
    "make",
    "on_its_feet",
    "start",
    "uniform",
]
