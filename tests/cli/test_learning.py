"""`flexor train`, `play` and `evaluate`: what they write and print, and the sentences about what does not go together."""

import csv
import json

import pytest

from flexor.envs import TASKS as TASK_NAMES
from flexor.learn import Policy
from tests.cli.test_cli import flexor, sentence

TASKS = '''
import jax
import jax.numpy as jnp
import flexor as fx


class Balance(fx.envs.AbstractTask):
    def reset(self, key):
        return self.sim.reset(jax.random.uniform(key, (2,), self.sim.model.dtype, -0.1, 0.1)), None

    def observe(self, state, goal):
        return jnp.concatenate([state.q, state.qd])

    def reward(self, step):
        return {"upright": jnp.cos(step.after.q[1])}

    def ended(self, state, goal):
        return jnp.abs(state.q[1]) > 0.5


class Broken(Balance):
    def reward(self, step):
        return {"upright": jnp.cos(step.after.q[1]), "share": 0.0 / (step.action[0] * 0.0)}


class Growing(Balance):
    def reset(self, key):
        return super().reset(key)[0], jnp.zeros(1)

    def follow(self, step, key):
        return jnp.zeros(2)


class Resizing(Balance):
    """Sees one number more once the solver has its memory."""

    def reset(self, key):
        return fx.State(jnp.zeros(2), jnp.zeros(2), jnp.zeros(())), None

    def observe(self, state, goal):
        return jnp.zeros(4 if state.memory is None else 5)


def _on(kind, length=12, solver="none"):
    sim = fx.Simulator(fx.load("cartpole"), fx.solver(solver), dt=0.02)
    return kind(sim=sim, action=fx.envs.Torque(), length=length)


def balance(length=12):
    return _on(Balance, length)


def broken():
    return _on(Broken)


def growing():
    return _on(Growing)


def resizing():
    return _on(Resizing, solver="ncp")


nothing = dict
'''
SMALL = ("--robots", "16", "--steps", "6", "--sizes", "8", "--iterations")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A policy of a task in a file."""
    here = tmp_path_factory.mktemp("learning")
    (here / "mine.py").write_text(TASKS)
    flexor("train", f"{here / 'mine.py'}:balance", *SMALL, 3, "--output", here / "run")
    return here


def rows(folder):
    with (folder / "run" / "history.csv").open() as file:
        return list(csv.DictReader(file))


def test_a_task_of_a_file_is_learned(folder):
    policy = Policy.load(folder / "run" / "policy.safetensors")
    assert policy.task == "Balance"
    assert policy.card["recipe"] == {"task": f"{folder / 'mine.py'}:balance", "options": {}, "solver": None}
    assert len(rows(folder)) == 3
    assert float(rows(folder)[-1]["seconds"]) > 0


def test_the_same_command_goes_on(folder):
    result = flexor("train", f"{folder / 'mine.py'}:balance", *SMALL, 5, "--output", folder / "run", "--until", "1e9")
    assert len(rows(folder)) == 5
    assert "return" in result.stdout
    assert "below the 1e+09 that were wanted" in result.stdout
    assert "term of the reward" in result.stdout
    assert "belongs to another run" in sentence(
        "train", f"{folder / 'mine.py'}:balance", *SMALL, 5, "--output", folder / "run", "--seed", "1"
    )
    flexor("train", f"{folder / 'mine.py'}:balance", *SMALL, 1, "--output", folder / "run", "--fresh")
    assert len(rows(folder)) == 1


def test_it_is_learned_by_derivatives(folder):
    flexor("train", f"{folder / 'mine.py'}:balance", *SMALL, 2, "--algorithm", "shac", "--output", folder / "by")
    assert Policy.load(folder / "by" / "policy.safetensors").card["algorithm"]["name"] == "SHAC"
    said = sentence("train", f"{folder / 'mine.py'}:balance", *SMALL, 2, "--algorithm", "shac", "--output", folder / "by",
                    "--solver", "mujoco", "--fresh")  # fmt: skip
    assert "has no derivatives, and SHAC learns by them" in said


def test_an_episode_is_played(folder):
    policy = folder / "run" / "policy.safetensors"
    task = f"{folder / 'mine.py'}:balance"
    assert f"names Python code, '{task}', which would be executed" in sentence("play", policy)
    result = flexor(
        "play", policy, "--task", task, "--html", folder / "a.html", "--output", folder / "a.npz", "--set", "length=7"
    )
    assert "Balance: return" in result.stdout
    assert "in 7 steps of 0.02 s (its time was up)" in result.stdout
    assert (folder / "a.html").read_text().startswith("<!doctype html>")
    assert "must end in .html" in sentence("play", policy, "--html", folder / "a.txt")
    said = sentence("play", policy, "--task", "cartpole")
    assert "was trained for 'Balance' (4 observations, 1 actions), not for 'CartpoleSwingUp'" in said


def test_a_policy_of_the_package_is_played(folder):
    result = flexor("play", "cartpole", "--set", "length=5", "--output", folder / "b.npz")
    assert "CartpoleSwingUp: return" in result.stdout
    assert "there is no policy 'cartpol' in the package" in sentence("play", "cartpol")


def test_a_table_of_policies_and_solvers(folder):
    config = folder / "config.toml"
    config.write_text(
        f'task = "{folder / "mine.py"}:balance"\npolicies = ["run/*.safetensors"]\n'
        'solvers = ["none", {name = "ncp", substeps = 2}]\nseeds = [0, 1]\nepisodes = 5\n'
    )
    result = flexor("evaluate", config, "--json", folder / "table.json")
    assert "Balance, 5 episodes each" in result.stdout
    assert "ncp substeps=2" in result.stdout
    report = json.loads((folder / "table.json").read_text())
    assert [(r["policy"], r["episodes"]) for r in report["summary"]] == [("run", 10)] * 2
    assert len(report["rows"]) == 4
    for text, said in (
        ('policies = ["cartpol"]', "there is no policy 'cartpol' in the package"),
        ('policies = ["no/*.safetensors"]', "no policy matches 'no/*.safetensors'"),
        ("", "needs `policies`"),
        ("policies = [1]", "must name files or policies of the package, got 1"),
        ('policy = "a"', "has the key 'policy', which is not known"),
        ('policies = ["run/policy.safetensors"]', "names Python code"),
        ('policies = ["run/policy.safetensors"]\nseeds = [0.5]', "`seeds` must be a list of whole numbers"),
        ('policies = ["run/policy.safetensors"]\ntask = "cartpole"', "not for 'CartpoleSwingUp'"),
    ):
        config.write_text(text)
        assert said in sentence("evaluate", config)


def test_tasks_are_listed():
    lines = {line.split()[0]: line.rstrip() for line in flexor("tasks").stdout.splitlines() if line.strip()}
    assert set(TASK_NAMES) <= set(lines)
    assert lines["cartpole"].endswith("From hanging to upright, after NeRD")


def test_some_tasks_are_listed_with_their_sizes():
    lines = {line.split()[0]: line for line in flexor("tasks", "cartpole").stdout.splitlines() if line.strip()}
    assert lines["cartpole"].split()[1:] == ["cartpole", "4", "1", "300", "0.01667"]
    assert "there is no task 'cartpol'. Did you mean 'cartpole'?" in sentence("tasks", "cartpol")


def test_what_is_said_about_tasks(folder):
    file = folder / "mine.py"
    out = ("--output", folder / "other")
    assert "there is no task 'cartpol'. Did you mean 'cartpole'?" in sentence("train", "cartpol", *out)
    assert "there is no file" in sentence("train", f"{folder / 'no.py'}:balance", *out)
    assert "has no 'run'" in sentence("train", f"{file}:run", *out)
    assert "makes dict, not a task" in sentence("train", f"{file}:nothing", *out)
    assert "`follow` of Growing must return a goal of the same form" in sentence("train", f"{file}:growing", *out)
    said = sentence("train", f"{file}:resizing", *out)
    assert "the observation of Resizing changes its size: 4 numbers after a reset, 5 after a step" in said
    said = sentence("train", f"{file}:broken", *SMALL, 1, *out)
    assert "the term 'share' of the reward of Broken is not finite for 16 of 16 robots" in said
    assert "there is no solver 'bullet'; there are rigid" in sentence("train", "cartpole", "--solver", "bullet", *out)
    said = sentence("train", "ant-run", "--solver", "nerd:cartpole", *out)
    assert "the learned solver was trained for 'cartpole', and this is 'ant'" in said
    assert "--sizes takes positive whole numbers" in sentence("train", f"{file}:balance", "--sizes", "a", *out)
    assert "--set takes NAME=VALUE" in sentence("train", f"{file}:balance", "--set", "length", *out)
    assert "is no value of TOML" in sentence("train", f"{file}:balance", "--set", "length=x", *out)
