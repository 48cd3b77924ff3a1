"""Learning to do tasks: the loop in the kernel, PPO, policies as artefacts and what they are worth."""

from flexor.learn.actor import Actor, Norm, Perceptron
from flexor.learn.evaluate import Evaluation, evaluate, play, summary
from flexor.learn.loop import Experience, Loop
from flexor.learn.policy import Policy, load
from flexor.learn.ppo import PPO
from flexor.learn.recipe import RECIPES, Recipe, Training, recipe
from flexor.learn.train import train

__all__ = [
    "PPO",
    "RECIPES",
    "Actor",
    "Evaluation",
    "Experience",
    "Loop",
    "Norm",
    "Perceptron",
    "Policy",
    "Recipe",
    "Training",
    "evaluate",
    "load",
    "play",
    "recipe",
    "summary",
    "train",
]
