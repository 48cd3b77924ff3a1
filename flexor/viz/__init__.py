"""Seeing a robot: plots, an animation drawn in the page, self-contained HTML reports, videos."""

from flexor.viz.animation import animate, save_animation
from flexor.viz.report import Animation, Code, Figure, Interval, Report, Section, Table
from flexor.viz.scene import Actor
from flexor.viz.video import save_video

__all__ = [
    "Actor",
    "Animation",
    "Code",
    "Figure",
    "Interval",
    "Report",
    "Section",
    "Table",
    "animate",
    "save_animation",
    "save_video",
]
