"""Recipes, the command line, the solvers of the package, and files of other origin."""

import json
import os
import re
import shutil
import subprocess
import sys
from importlib import resources

import h5py
import jax
import numpy as np
import pytest
from typer.testing import CliRunner

import flexor as fx
from flexor.cli.app import app
from flexor.nerd import Recipe, data, read, sample

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
    assert re.search(r"\b20 hinges, rad( [\d.e-]+){3} 0\b", told)  # mean, median, deviation; none diverged
    assert (tmp_path / "growth.png").stat().st_size > 5000
    assert "true physics" in (tmp_path / "pair.html").read_text()


def test_recipes_say_what_is_wrong(tmp_path):
    for text, sentence in (
        ("dt = 1", "lacks its 'robot'"),
        ('robot = "cube"\nspeed = 1', "a recipe has the key 'speed'"),
        ('robot = "cube"\n[ranges]\nqq = 1', "ranges has the key 'qq'"),
        ('robot = "cube"\ncontact = "glue"', "the contact 'glue' is not known; there are ncp, penalty, none"),
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
    with pytest.raises(ValueError, match="does not tell the length of its steps"):
        read(theirs, sim.model)
    found, known = read(theirs, sim.model, dt=1 / 148), read(ours, sim.model)
    for x, y in zip(jax.tree.leaves(found), jax.tree.leaves(known), strict=True):
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
    with pytest.raises(OSError, match=r"the disk is full: .* stays in '.*p\.h5\.part'"):
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
