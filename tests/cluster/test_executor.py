"""What every executor promises, shown by `Local`; results that are kept; kernels that are made once."""

import asyncio
import sys

import numpy as np
import pytest

from flexor.cluster import Kept, Local, Ray, Work, executor, kernels, results
from flexor.simd import cache


def squares(counter):
    """A function of one task, and how often anything was done."""

    def square(x):
        counter.append(x)
        return {"x": np.asarray(x * x)}

    return square


def test_tasks_are_taken_as_results_are_read():
    taken = []

    def tasks():
        for x in range(1000):
            taken.append(x)
            yield x

    stream = Local().stream(Work(squares, ([],)), tasks())
    assert [int(next(stream)["x"]) for _ in range(3)] == [0, 1, 4]
    assert len(taken) == 3


def test_what_is_kept_is_not_done_again(tmp_path):
    tasks, kept, done = {"a": 3, "b": 4, "c": 5}, Kept(tmp_path / "kept", "squares"), []
    stream = results(Local(), Work(squares, (done,)), tasks, kept=kept)
    next(stream), next(stream)
    del stream  # a driver that was killed
    seen = []
    again = dict(results(Local(), Work(squares, (done,)), tasks, kept=kept, progress=lambda *x: seen.append(x)))
    assert {k: int(v["x"]) for k, v in again.items()} == {"a": 9, "b": 16, "c": 25}
    assert list(again) == ["a", "b", "c"]
    assert done == [3, 4, 5]
    assert seen == [(1, 3), (2, 3), (3, 3)]


def test_results_of_other_work_and_corrupt_ones_are_refused(tmp_path):
    Kept(tmp_path, "squares").write("a", {"x": np.ones(3)})
    with pytest.raises(ValueError, match=r"'.*a\.safetensors' is a result of other work"):
        Kept(tmp_path, "cubes").read("a")
    file = tmp_path / "a.safetensors"
    file.write_bytes(file.read_bytes()[:20])
    with pytest.raises(ValueError, match=r"'.*a\.safetensors' is corrupt"):
        Kept(tmp_path, "squares").read("a")


def test_executors_have_names():
    assert executor("local") == Local()
    assert executor("ray") == Ray()
    assert executor("ray:ray://10.0.0.1:10001") == Ray("ray://10.0.0.1:10001")
    for wrong in ("dask", "ray:", "local:2"):
        with pytest.raises(ValueError, match=f"there is no executor '{wrong}'"):
            executor(wrong)
    with pytest.raises(ValueError, match="must be positive"):
        Ray(cpus=0)


def test_without_its_package_ray_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ImportError, match=r"pip install \"flexor\[ray\]\""):
        next(Ray().stream(Work(squares, ([],)), [1]))


def test_the_first_to_ask_for_a_kernel_makes_it_and_the_others_wait():
    async def workers():
        actor = kernels.Kernels()
        first = await actor.fetch("k")
        others = [asyncio.ensure_future(actor.fetch("k")) for _ in range(3)]
        await asyncio.sleep(0)
        waiting = [task.done() for task in others]
        await actor.offer("k", b"code")
        return first, waiting, await asyncio.gather(*others), await actor.count()

    assert asyncio.run(workers()) == (None, [False] * 3, [b"code"] * 3, 1)


def test_a_kernel_whose_maker_was_lost_is_made_by_one_who_waited():
    async def workers():
        actor = kernels.Kernels(patience=0.01)
        return [await actor.fetch("k"), await actor.fetch("k")]

    assert asyncio.run(workers()) == [None, None]


@pytest.fixture
def exchange(monkeypatch, tmp_path):
    """An exchange without Ray, and an empty disk."""

    class Shelf(dict):
        fetch = dict.get
        offer = dict.__setitem__

    monkeypatch.setenv("FLEXOR_CACHE", str(tmp_path / "first"))
    monkeypatch.setattr(cache, "_exchanges", [Shelf()])
    return cache._exchanges[0]


def test_object_code_travels_through_the_exchange(exchange, monkeypatch, tmp_path):
    cache.write("key", b"code", {"lanes": 4})
    monkeypatch.setenv("FLEXOR_CACHE", str(tmp_path / "second"))  # another machine
    assert cache.read("key") == (b"code", {"lanes": 4})
    exchange.clear()
    assert cache.read("key") == (b"code", {"lanes": 4})  # now from its own disk
    exchange["bad"] = b"no kernel"
    assert cache.read("bad") is None
