"""Learning to do tasks: the loop in the kernel, PPO, SHAC, policies as artefacts and what they are worth."""

from flexor.learn.actor import Actor, Norm, Perceptron
from flexor.learn.algorithm import AbstractAlgorithm, AbstractLearner
from flexor.learn.evaluate import Evaluation, evaluate, play, summary
from flexor.learn.loop import Experience, Loop
from flexor.learn.policy import Policy, load
from flexor.learn.ppo import PPO
from flexor.learn.recipe import ANALYTIC, RECIPES, Recipe, Training, recipe
from flexor.learn.seeds import train_seeds
from flexor.learn.shac import SHAC
from flexor.learn.train import train

__all__ = [
    "ANALYTIC",
    "PPO",
    "RECIPES",
    "SHAC",
    "AbstractAlgorithm",
    "AbstractLearner",
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
    "train_seeds",
]
