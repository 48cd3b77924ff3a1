"""Augmentations in files: the same bits back, and a clear word where a file is not what it should be."""

import json
import os

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import flexor as fx
from tests.augment.scenes import BIPED, augmented, randomised, simulator

MLP = fx.nets.MLP(width=3, depth=1, activation="silu")


@pytest.fixture(scope="module")
def biped():
    return simulator(BIPED)


@pytest.fixture(scope="module")
def hybrid(biped):
    """Every network, mode and scope there is, over two kinds of inputs."""
    mirror = fx.nets.Symmetric(of=MLP, pairs=[("hip_l", "hip_r"), ("knee_l", "knee_r")], flip=["tail"])
    blueprint = fx.Blueprint()
    blueprint.add("joint.applied_force", inputs=["joint.*"], net=mirror, over=fx.Each(), scales={"joint.qd": 3.0})
    blueprint.add("joint.passive_force", inputs=["joint.q"], net=fx.nets.Conservative(width=3))
    blueprint.add("joint.gravity_force", inputs=["joint.qd"], net=fx.nets.Dissipative(width=3), over=fx.Shared())
    blueprint.add("joint.bias_force[knee_*]", inputs=["link.velocity[l2]"], net=MLP, mode=fx.Scale())
    blueprint.add("joint.acceleration[tail]", inputs=["joint.qd[lift]"], net=MLP, mode=fx.Replace())
    return randomised(biped.augment(blueprint), 0)


@pytest.fixture(scope="module")
def saved(hybrid, tmp_path_factory):
    return hybrid.solver.augmentation.save(tmp_path_factory.mktemp("net") / "net.safetensors")


def copied(saved, folder):
    for ending in (".safetensors", ".json"):
        (folder / f"net{ending}").write_bytes(saved.with_suffix(ending).read_bytes())
    return folder / "net.safetensors"


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.float64])
def test_the_same_bits_come_back(biped, hybrid, tmp_path, dtype):
    augmentation = jax.tree.map(lambda x: x.astype(dtype), hybrid.solver.augmentation)
    path = augmentation.save(os.fspath(tmp_path / "net.safetensors"))
    assert sorted(p.name for p in tmp_path.iterdir()) == ["net.json", "net.safetensors"]
    back = fx.Augmentation.load(path)
    assert back.entries == augmentation.entries
    assert back.layout == augmentation.layout
    assert jax.tree.structure(back) == jax.tree.structure(augmentation)
    for a, b in zip(jax.tree.leaves(back), jax.tree.leaves(augmentation), strict=True):
        assert a.dtype == b.dtype
        assert np.asarray(a).tobytes() == np.asarray(b).tobytes()
    again = biped.augment(path)
    assert jax.tree.structure(again) == jax.tree.structure(hybrid)


def test_the_json_can_be_read_by_people(saved):
    data = json.loads(saved.with_suffix(".json").read_text())
    assert data["format"] == "flexor augmentation"
    assert data["blueprint"][1]["net"] == {"class": "Conservative", "width": 3, "depth": 2, "activation": "tanh"}
    assert data["robot"]["joints"][1] == ["hip_l", "hinge", True]


def test_saving_over_an_old_file_is_whole_or_not_at_all(hybrid, saved, tmp_path, monkeypatch):
    path = copied(saved, tmp_path)
    monkeypatch.setattr(os, "replace", lambda a, b: (_ for _ in ()).throw(OSError("disk full")))
    with pytest.raises(OSError, match=r"disk full"):
        randomised(hybrid, 1).solver.augmentation.save(path)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["net.json", "net.safetensors"]
    assert path.read_bytes() == saved.read_bytes()


def test_files_that_are_not_whole_say_so(biped, hybrid, saved, tmp_path):
    with pytest.raises(
        FileNotFoundError, match=r"there is no file '.*net.safetensors'; an augmentation is a .safetensors and"
    ):
        biped.augment(tmp_path / "net.safetensors")
    path = copied(saved, tmp_path)
    path.write_bytes(saved.read_bytes()[:-10])
    with pytest.raises(
        ValueError, match=r"is not the file of weights that 'net.json' describes: truncated, changed or from another"
    ):
        biped.augment(path)
    path = copied(saved, tmp_path)
    path.with_suffix(".json").unlink()
    with pytest.raises(FileNotFoundError, match=r"there is no file '.*net.json'"):
        biped.augment(path)
    texts = {"{": "is corrupt", "[]": "is corrupt", '{"format": "other"}': "it does not describe an augmentation"}
    data = json.loads(saved.with_suffix(".json").read_text())
    texts[json.dumps({**data, "version": 99})] = "it has version 99, and this flexor reads up to 1"
    texts[json.dumps({k: v for k, v in data.items() if k != "robot"})] = "is corrupt: 'robot'"
    net = {**data["blueprint"][0], "net": {"class": "LSTM"}}
    texts[json.dumps({**data, "blueprint": [net]})] = "is corrupt: 'LSTM'"
    texts[json.dumps({**data, "blueprint": data["blueprint"][1:]})] = "do not fit the blueprint beside them"
    for text, message in texts.items():
        path.with_suffix(".json").write_text(text)
        with pytest.raises(ValueError, match=message):
            biped.augment(path)
    with pytest.raises(ValueError, match=r"'net.pt' must end in .safetensors; the rest is written to a .json beside it"):
        hybrid.solver.augmentation.save(tmp_path / "net.pt")
    with pytest.raises(FileNotFoundError, match=r"the folder '.*nowhere' does not exist"):
        hybrid.solver.augmentation.save(tmp_path / "nowhere" / "net.safetensors")


def test_a_file_for_another_robot(saved):
    with pytest.raises(ValueError, match=r"made for 'biped' and does not fit 'cartpole': its joints are"):
        simulator("cartpole").augment(saved)


def test_a_file_for_a_robot_of_the_same_name_with_other_limits(saved):
    other = simulator(BIPED.replace('name="knee_l" axis="0 1 0"', 'name="knee_l" axis="0 1 0" limited="true" range="-1 1"'))
    with pytest.raises(
        ValueError, match=r"made for 'biped' and does not fit 'biped': its joints are .*knee_l \(hinge, limited\)"
    ):
        other.augment(saved)
    assert augmented(other, "joint.passive_force", ["joint.q"], MLP) is not None
