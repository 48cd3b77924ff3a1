"""Recipes, the command line, the solvers of the package, and files of other origin."""

import json
import os
import re
import shutil
import subprocess
import sys
from importlib import resources

import equinox as eqx
import h5py
import jax
import numpy as np
import pytest
from typer.testing import CliRunner

import flexor as fx
from flexor.cli.app import app
from flexor.nerd import Recipe, data, read, sample, training

RUNNER = CliRunner()
PRETRAINED = ("ant", "cartpole", "cube", "double_pendulum_contact")
TOML = """
robot = "pendulum"
dt = 0.05
contact = "none"
base = "none"
transitions = 400
length = 10
[ranges]
control = 0.0
[sizes]
layers = 1
width = 16
heads = 2
history = 4
[training]
steps = 4
batch = 8
window = 6
every = 2
"""


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch):
    monkeypatch.setattr(data, "CHUNK", 8)


def invoke(*words, status=0):
    result = RUNNER.invoke(app, ["nerd", *map(str, words)])
    assert result.exit_code == status, result.output + repr(result.exception)
    return " ".join((result.stdout if status == 0 else result.stderr).split())


def test_from_a_recipe_to_a_judged_solver(tmp_path):
    config = tmp_path / "swing.toml"
    config.write_text(TOML)
    out = ("--out", tmp_path / "made")
    assert "flexor nerd sample" in invoke("train", config, *out, status=2)
    assert "400 transitions of pendulum, 0 trajectories dropped" in invoke("sample", config, *out)
    assert "held_out" in invoke("train", config, *out, "--tensorboard")
    folder = tmp_path / "made"
    assert list((folder / "swing").glob("events.*"))
    assert "hinges mean, rad" in (folder / "swing" / "history.csv").read_text()
    card = json.loads((folder / "swing.json").read_text())
    assert {"recipe", "data", "seed", "metrics", "versions", "robot", "minutes of training"} <= set(card)
    assert Recipe.of(card["recipe"]) == Recipe.read(config)
    words = ("--steps", 20, "--rollouts", 8, "--plot", tmp_path / "growth.png", "--html", tmp_path / "pair.html")
    told = invoke("evaluate", folder / "swing.safetensors", *words)
    assert "swing.safetensors, passive motion, 8 rollouts" in told
    tables = re.findall(r"\b20 hinges, rad( [\d.e-]+){3} 0\b", told)  # mean, median, deviation; none diverged
    assert len(tables) == 2  # the base step alone as well
    assert re.search(r"after 20 steps the network leaves [\d.e+]+ of the base step's error in hinges", told)
    assert "warning: none in this file" in told  # too few trajectories to calibrate one
    assert (tmp_path / "growth.png").stat().st_size > 5000
    assert "true physics" in (tmp_path / "pair.html").read_text()


ARM = """<mujoco model="arm of mine"><worldbody><body><joint name="swing" axis="0 1 0" damping=".1"/>
<inertial pos="0 0 -.3" mass="1" diaginertia=".01 .01 .01"/></body></worldbody></mujoco>"""


@pytest.fixture
def own(tmp_path):
    """A recipe for a robot in a file beside it, sampled."""
    (tmp_path / "arm.xml").write_text(ARM)
    config = tmp_path / "swing.toml"
    config.write_text(TOML.replace('"pendulum"', '"arm.xml"'))
    invoke("sample", config, "--out", tmp_path / "made")
    return config


def test_a_robot_from_a_file_is_evaluated_even_where_the_file_is_gone(own, tmp_path):
    folder = tmp_path / "made"
    invoke("train", own, "--out", folder)
    words = ("evaluate", folder / "swing.safetensors", "--steps", 5, "--rollouts", 4)
    (tmp_path / "arm.xml").rename(tmp_path / "moved.xml")
    before = invoke(*words)
    assert "4 rollouts" in before
    heavy = tmp_path / "heavy.xml"
    heavy.write_text(ARM.replace('damping=".1"', 'damping="2"'))
    assert invoke(*words, "--robot", heavy) != before
    assert "joints or contacts are not those of 'cartpole'" in invoke(*words, "--robot", "cartpole", status=2)
    card = json.loads((folder / "swing.json").read_text())
    for new in ("truth", "ranges", "model hash"):  # as version 1 wrote it
        del card[new]
    card |= {"version": 1, "model": "0"}
    (folder / "swing.json").write_text(json.dumps(card))
    told = invoke(*words, status=2)
    assert "arm.xml', which is not there" in told
    assert "`--robot FILE`" in told
    assert invoke(*words, "--robot", tmp_path / "moved.xml") == before
    (tmp_path / "moved.xml").rename(tmp_path / "arm.xml")
    assert invoke(*words) == before  # by the path in the card


def test_recipes_and_python_are_one_way(own, tmp_path):
    recipe, path = Recipe.read(own), tmp_path / "made" / "swing.h5"
    sim = fx.Simulator(fx.load(tmp_path / "arm.xml"), fx.solver("none"), dt=0.05)
    frames = fx.nerd.Frames(sim.model.topology, 0.05, base=fx.nerd.NoBase())
    ranges = fx.nerd.Ranges(control=0.0)
    again = sample(sim, ranges, 400, tmp_path / "again.h5", length=10)
    assert data.facts(again)["hash"] == data.facts(path)["hash"]
    by_hand = fx.nerd.train(sim, again, sizes=recipe.sizes, options=recipe.training, frames=frames)
    by_recipe = recipe.train(path)
    assert eqx.tree_equal(by_hand.network, by_recipe.network)
    assert by_hand.frames == by_recipe.frames
    assert by_hand.ranges == by_recipe.ranges == ranges
    assert by_hand.truth == by_recipe.truth
    assert by_recipe.card["data"] == by_hand.card["data"]
    assert {**by_recipe.card, "minutes of training": 0} == {
        "recipe": recipe.table(),
        **by_hand.card,
        "minutes of training": 0,
    }
    opened = fx.nerd.load(by_hand.save(tmp_path / "hand.safetensors"))
    errors = [fx.nerd.evaluate_passive(n, steps=5, rollouts=4).hinges for n in (opened, by_recipe)]
    assert np.array_equal(*errors)


INTERRUPTED = """
import os, signal, sys
from flexor.cli import console
from flexor.cli.app import main
from flexor.nerd import recipe

real = recipe.train

def train(*args, progress, **options):
    def report(done, total, loss):
        progress(done, total, loss)
        if done == 3:
            os.kill(os.getpid(), signal.SIGINT)
    return real(*args, progress=report, **options)

recipe.train = train
main()
"""


def test_ctrl_c_before_the_first_checkpoint_loses_nothing_and_says_so(own, tmp_path):
    """The signal itself, in a process of its own; that it resumes to the same bits is tested with training."""
    own.write_text(own.read_text().replace("steps = 4", "steps = 8").replace("every = 2", "every = 8"))
    command = [sys.executable, "-c", INTERRUPTED, "nerd", "train", str(own), "--out", str(tmp_path / "made")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 130, done.stderr
    assert "has 3 steps, and the same command resumes there" in " ".join(done.stderr.split())
    assert training.kept_steps(tmp_path / "made" / "swing") == 3
    assert "held_out" in invoke("train", own, "--out", tmp_path / "made")
    assert fx.nerd.load(tmp_path / "made" / "swing.safetensors").card["metrics"]["step"] == 8


def test_ctrl_c_before_the_first_step_says_that_there_is_nothing(own, tmp_path, monkeypatch):
    def interrupted(*args, **options):
        raise KeyboardInterrupt

    monkeypatch.setattr(training, "pool_of", interrupted)
    told = invoke("train", own, "--out", tmp_path / "made", status=130)
    assert "interrupted before the first step; there is no checkpoint in" in told
    monkeypatch.setattr(data, "chunks", lambda *args: interrupted)
    own.write_text(own.read_text().replace("transitions = 400", "transitions = 500"))
    (tmp_path / "made" / "swing.h5").unlink()
    assert "and the same command resumes" in invoke("sample", own, "--out", tmp_path / "made", status=130)


def test_recipes_say_what_is_wrong(tmp_path):
    for text, sentence in (
        ("dt = 1", "has no 'robot'"),
        ('robot = "cube"\nspeed = 1', "a recipe has the unknown key 'speed'"),
        ('robot = "cube"\n[ranges]\nqq = 1', "ranges has the unknown key 'qq'"),
        ('robot = "cube"\ncontact = "glue"', "there is no contact 'glue'; use one of ncp, penalty, mixed, none"),
        ('robot = "cube"\nbase = "soft"', "there is no base step 'soft'; use one of none, free, coarse, fine"),
        ("robot = ", "is not TOML"),
    ):
        (tmp_path / "x.toml").write_text(text)
        with pytest.raises(ValueError, match=sentence):
            Recipe.read(tmp_path / "x.toml")
    with pytest.raises(FileNotFoundError, match="neither a file nor one of ant, cartpole"):
        Recipe.read("pianist")


@pytest.mark.parametrize("name", PRETRAINED)
def test_every_solver_of_the_package_is_made_by_the_recipe_beside_it(name):
    nerd = fx.nerd.load(name)
    assert Recipe.of(nerd.card["recipe"]) == Recipe.read(name)
    assert nerd.card["data"]["hash"]


def test_the_solvers_of_the_package_are_small():
    folder = resources.files("flexor.nerd").joinpath("pretrained")
    assert sum(len(p.read_bytes()) for p in folder.iterdir()) < 20e6


def test_the_cartpole_of_the_package_swings_like_the_true_one():
    nerd = fx.nerd.load("cartpole")
    result = Recipe.of(nerd.card["recipe"]).evaluate(nerd, steps=30, rollouts=32)
    assert np.median(result.slides[:, -1]) < 2e-3
    assert np.median(result.hinges[:, -1]) < 4e-3
    assert not result.diverged.any()


def test_files_of_the_original_code(tmp_path):
    """They have no head, no velocities of contact points, and flat contact arrays."""
    sim = fx.Simulator(fx.load("cube"), dt=1 / 148)
    ours = sample(sim, fx.nerd.Ranges(q={"root.z": (0.1, 0.2)}), 40, tmp_path / "ours.h5", length=5)
    theirs = tmp_path / "theirs.h5"
    with h5py.File(ours) as a, h5py.File(theirs, "w") as b:
        group = b.create_group("data")
        group.attrs["mode"] = "trajectory"
        for name, array in a["data"].items():
            if name != "contact_velocities":
                group[name] = array[:].reshape(*array.shape[:2], -1)
    with pytest.raises(ValueError, match="does not hold the length of its steps"):
        read(theirs, sim.model)
    converted, original = read(theirs, sim.model, dt=1 / 148), read(ours, sim.model)
    for x, y in zip(jax.tree.leaves(converted), jax.tree.leaves(original), strict=True):
        assert x.shape == y.shape
        assert np.abs(x - y).max(initial=0) < 1e-5


def test_a_full_disk_loses_nothing(tmp_path, monkeypatch):
    recipe = Recipe.of({"robot": "pendulum", "dt": 0.05, "contact": "none", "transitions": 400, "length": 10})
    full = shutil.disk_usage(tmp_path)._replace(free=10)
    begun = []

    def usage(folder, real=shutil.disk_usage):
        begun.append(folder)
        return full if len(begun) > 2 else real(folder)

    monkeypatch.setattr(shutil, "disk_usage", usage)
    with pytest.raises(OSError, match=r"the disk is full: .* so far are in '.*p\.h5\.part'"):
        recipe.sample(tmp_path / "p.h5")
    monkeypatch.undo()
    monkeypatch.setattr(data, "CHUNK", 8)
    again = recipe.sample(tmp_path / "p.h5")
    assert data.facts(again)["total_transitions"] == 400
    assert data.facts(again)["hash"] == data.facts(recipe.sample(tmp_path / "whole.h5"))["hash"]


PARALLEL = """
import sys, numpy as np, jax
from flexor.nerd import Recipe
recipe = Recipe.read(sys.argv[1])
nerd = recipe.train(sys.argv[2])
print(len(jax.devices()))
np.save(sys.argv[3], np.asarray(nerd.network.embed))
"""


def test_training_spreads_over_devices(tmp_path):
    (tmp_path / "swing.toml").write_text(TOML)
    path = Recipe.read(tmp_path / "swing.toml").sample(tmp_path / "swing.h5")
    embeds = []
    for count in (1, 2):
        flags = f"{os.environ['XLA_FLAGS']} --xla_force_host_platform_device_count={count}"
        environment = os.environ | {"XLA_FLAGS": flags}
        words = [sys.executable, "-c", PARALLEL, tmp_path / "swing.toml", path, tmp_path / f"{count}.npy"]
        done = subprocess.run(words, env=environment, capture_output=True, text=True, check=True)
        assert done.stdout.split() == [str(count)]
        embeds.append(np.load(tmp_path / f"{count}.npy"))
    assert np.abs(embeds[0] - embeds[1]).max() < 1e-5
