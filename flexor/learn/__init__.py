"""Learning to do tasks: the loop in the kernel, policies."""

from flexor.learn.actor import Actor, Norm, Perceptron
from flexor.learn.loop import Experience, Loop

__all__ = ["Actor", "Experience", "Loop", "Norm", "Perceptron"]
