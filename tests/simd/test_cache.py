"""Object code on disk: warm starts, races, damage, other people's files, full disks."""

import os
import subprocess
import sys
import warnings

import jax.numpy as jnp
import numpy as np
import pytest

import flexor as fx
from flexor.simd import cache, compiler

SCRIPT = """
import jax.numpy as jnp, sys
import flexor as fx
from flexor.simd import compiler
x = jnp.linspace(0, 1, 40).reshape(20, 2)
y = fx.simd.vmap(lambda x: jnp.sin(x) @ jnp.array([1.0, {n}]))(x)
(kernel,) = compiler._kernels.values()
print(kernel.warm, float(y.sum()))
"""


def run(folder, n):
    return subprocess.Popen(
        [sys.executable, "-c", SCRIPT.format(n=n)], env={**os.environ, "FLEXOR_CACHE": str(folder)},
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


def result(process):
    out, err = process.communicate(timeout=120)
    assert process.returncode == 0, err
    return out.split()


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("FLEXOR_CACHE", str(tmp_path))
    monkeypatch.setattr(compiler, "_kernels", {})
    return tmp_path / "simd"


def compiled(factor):
    """Compiles a small program; whether it came from disk, and what it says."""
    compiler._kernels.clear()
    x = jnp.arange(6.0, dtype=getattr(factor, "dtype", None))
    value = fx.simd.vmap(lambda x: x * factor + 1)(x)
    np.testing.assert_allclose(value, x * factor + 1)
    (kernel,) = compiler._kernels.values()
    return kernel.warm


def test_two_processes_race_and_a_third_starts_warm(tmp_path):
    racers = [run(tmp_path, 3.0) for _ in range(2)]
    first, second = (result(p) for p in racers)
    assert first[1] == second[1]
    assert result(run(tmp_path, 3.0)) == ["True", first[1]]
    assert len(list((tmp_path / "simd").iterdir())) == 1  # no temporary files left


def test_a_second_compilation_comes_from_disk(folder):
    assert not compiled(1.25)
    assert compiled(1.25)
    assert not compiled(1.5)


@pytest.mark.parametrize(
    "damage", [lambda d: d[: len(d) // 2], lambda d: b"", lambda d: d[:-9] + b"garbage!!", lambda d: b"x" + d]
)
def test_a_damaged_file_is_made_anew(folder, damage):
    assert not compiled(2.5)
    (path,) = folder.iterdir()
    path.write_bytes(damage(path.read_bytes()))
    assert not compiled(2.5)
    assert compiled(2.5)


def test_files_of_other_users_are_not_loaded(folder, monkeypatch):
    assert not compiled(3.5)
    uid = os.getuid()
    monkeypatch.setattr(os, "getuid", lambda: uid + 1)
    assert not compiled(3.5)


def test_a_place_that_cannot_be_written_is_a_warning(tmp_path, monkeypatch):
    blocked = tmp_path / "file"
    blocked.write_text("not a folder")
    monkeypatch.setenv("FLEXOR_CACHE", str(blocked))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        assert not compiled(4.5)
    assert any("could not keep compiled code" in str(w.message) for w in caught)


def test_no_cache_where_the_variable_is_empty(monkeypatch):
    monkeypatch.setenv("FLEXOR_CACHE", "")
    assert cache.directory() is None
    assert not compiled(5.5)
    assert not compiled(5.5)


def test_the_key_knows_constants_and_types(folder):
    assert not compiled(6.5)
    assert not compiled(np.float32(6.25))
    a, b = (fx.simd.vmap(lambda x, c=c: x * c)(jnp.ones(3)) for c in (2.0, 3.0))
    assert float(a[0]) == 2.0
    assert float(b[0]) == 3.0
