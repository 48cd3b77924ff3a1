"""Robots by name: MJCF files that come with flexor, and a finder for the installed example-robot-data."""

from flexor.robots.find import bundled, example_robots, find
from flexor.robots.load import load

__all__ = ["bundled", "example_robots", "find", "load"]
