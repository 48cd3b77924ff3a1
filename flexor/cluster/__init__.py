"""Who does a bag of work: this process, or many machines."""

from flexor.cluster.executor import AbstractExecutor, Arrays, ExecutorError, Kept, Local, Work, results
from flexor.cluster.named import executor
from flexor.cluster.on_ray import Ray
from flexor.cluster.processes import join, join_as, supervise

__all__ = [
    "AbstractExecutor",
    "Arrays",
    "ExecutorError",
    "Kept",
    "Local",
    "Ray",
    "Work",
    "executor",
    "join",
    "join_as",
    "results",
    "supervise",
]
