"""Files appear whole or not at all, with the user's ordinary mode, and one module writes them all."""

import ast
import os
import stat
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import flexor as fx
from flexor.files import (
    array_bytes,
    checkpoint_bytes,
    json_bytes,
    read_arrays,
    read_checkpoint,
    read_sealed,
    sealed,
    write_folder,
    write_text,
    write_with,
)
from flexor.viz import Report
from flexor.viz.animation import save_animation

PACKAGE = Path(fx.__file__).parent
# cache.py holds code, so that its modes are private; data.py appends to an HDF5 file over hours, under another name
ELSEWHERE = {"files.py", "simd/cache.py", "nerd/data.py"}


@pytest.fixture
def umask():
    old = os.umask(0o027)
    yield
    os.umask(old)


def modes(folder):
    return {p.name: stat.S_IMODE(p.stat().st_mode) for p in folder.rglob("*") if p.is_file()}


def test_everything_that_is_saved_has_the_users_ordinary_mode(tmp_path, umask):
    model = fx.load("pendulum")
    sim = fx.Simulator(model, fx.RigidSolver(contact=None), dt=0.01)
    run = sim.rollout(sim.reset([0.3]), np.zeros((3, 1)))
    for ending in ("csv", "h5", "npz"):
        run.save(tmp_path / f"run.{ending}")
    blueprint = fx.Blueprint().add("joint.passive_force", inputs=["joint.qd"], net=fx.nets.MLP(width=2, depth=1))
    sim.augment(blueprint).solver.augmentation.save(tmp_path / "net.safetensors")
    fx.save(model, tmp_path / "pendulum.xml")
    save_animation(tmp_path / "page.html", model, run)
    Report("Title").save(tmp_path / "report.html")
    found = modes(tmp_path)
    assert len(found) == 8
    assert set(found.values()) == {0o640}


def test_no_other_module_writes():
    """Nothing but files.py opens a file for writing, renames one or makes a temporary one."""
    found = []
    for path in sorted(PACKAGE.rglob("*.py")):
        name = path.relative_to(PACKAGE).as_posix()
        for call in (n for n in ast.walk(ast.parse(path.read_text(encoding="utf-8"))) if isinstance(n, ast.Call)):
            text = ast.unparse(call.func)
            writes = text.rsplit(".", 1)[-1] in ("write_bytes", "mkstemp", "NamedTemporaryFile", "replace_file") or (
                text in ("os.replace", "os.rename", "json.dump", "np.save", "shutil.move", "pathlib.write_text")
                or (text.endswith(".write_text") and text != "flexor.files.write_text")
            )
            if writes and name not in ELSEWHERE:
                found.append(f"{name}:{call.lineno} {text}")
    assert not found


def test_all_files_or_none(tmp_path):
    (tmp_path / "a.txt").write_text("old")

    def fail(part):
        part.write_text("half")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_with({tmp_path / "a.txt": lambda part: part.write_text("new"), tmp_path / "b.txt": fail})
    assert {p.name: p.read_text() for p in tmp_path.iterdir()} == {"a.txt": "old"}


def test_a_folder_or_nothing(tmp_path):
    write_folder(tmp_path / "one", {"a": b"1", "b": b"2"})
    write_folder(tmp_path / "one", {"c": b"3"})
    assert {p.name: p.read_bytes() for p in (tmp_path / "one").iterdir()} == {"c": b"3"}
    with pytest.raises(TypeError):
        write_folder(tmp_path / "one", {"d": b"4", "e": "not bytes"})
    assert {p.name: p.read_bytes() for p in (tmp_path / "one").iterdir()} == {"c": b"3"}
    assert [p.name for p in tmp_path.iterdir()] == ["one"]


def test_no_such_folder(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"cannot write '.*x.txt': the folder '.*nowhere' does not exist"):
        write_text(tmp_path / "nowhere" / "x.txt", "x")


def test_arrays_return_with_shape_and_type():
    arrays = {"a": np.float32(3.0), "b": np.zeros((0, 2)), "c": np.arange(6).reshape(2, 3).T, "d": np.array([True])}
    again = read_arrays(array_bytes(arrays))
    for name, x in arrays.items():
        assert (again[name].shape, again[name].dtype) == (np.shape(x), np.asarray(x).dtype)
        np.testing.assert_array_equal(again[name], x)


def test_seals(tmp_path):
    (tmp_path / "x.bin").write_bytes(b"content")
    path = tmp_path / "x.json"
    path.write_bytes(sealed("thing", 2, {"mass": 0.1, "names": ["a"]}, {"x.bin": b"content"}))
    data, beside = read_sealed(path, "thing", 3)
    assert (data["mass"], data["names"], beside) == (0.1, ["a"], {"x.bin": b"content"})
    with pytest.raises(
        ValueError, match="written by a newer flexor: its format has version 2, and this flexor reads up to 1"
    ):
        read_sealed(path, "thing", 1)


def test_json_holds_finite_numbers_alone():
    with pytest.raises(ValueError, match="not JSON compliant"):
        json_bytes({"mass": float("nan")})


def test_checkpoints_hold_arrays_keys_and_history(tmp_path):
    path, state = tmp_path / "run.npz", {"w": jnp.arange(3.0), "key": jax.random.key(4), "step": jnp.int32(7)}
    path.write_bytes(checkpoint_bytes("a", state, [{"loss": 1.0}]))
    found, history = read_checkpoint(path, "a", jax.tree.map(jnp.zeros_like, {**state, "key": jax.random.key(0)}))
    assert history == [{"loss": 1.0}]
    assert jax.random.key_data(found["key"]).tolist() == jax.random.key_data(state["key"]).tolist()
    assert (found["w"].tolist(), int(found["step"])) == ([0.0, 1.0, 2.0], 7)
    with pytest.raises(ValueError, match="belongs to another run; remove it, or choose another place"):
        read_checkpoint(path, "b", state)
    path.write_bytes(b"no archive")
    with pytest.raises(ValueError, match=r"the checkpoint '.*run\.npz' cannot be read .*; remove it to start again"):
        read_checkpoint(path, "a", state)
