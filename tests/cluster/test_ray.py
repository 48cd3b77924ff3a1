"""A Ray cluster of two workers on this machine. `benchmarks/cluster.py` kills workers, nodes and drivers."""

import os

import h5py
import numpy as np
import pytest

import flexor as fx
from flexor.cluster import ExecutorError, Local, Ray, Work
from flexor.nerd import Ranges, data, sample


@pytest.fixture(scope="module", autouse=True)
def cluster():
    import ray

    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="error", object_store_memory=80 * 2**20)
    yield
    ray.shutdown()


def inspect():
    """A task that says where it runs, or raises."""

    def look(task):
        if task < 0:
            raise KeyError(f"no task {task}")
        import jax

        x64 = jax.numpy.zeros(1).dtype.itemsize == 8
        return {"own": np.asarray([os.getpid(), os.environ["NPROC"] == "1", x64, task])}

    return look


def test_results_come_in_order_from_processes_with_one_thread_and_the_drivers_precision():
    found = np.array([x["own"] for x in Ray(ahead=3).stream(Work(inspect), range(12))])
    assert found[:, 3].tolist() == list(range(12))
    assert found[:, 1:3].all()
    assert os.getpid() not in found[:, 0]


def test_an_error_of_a_task_is_raised_as_it_was_there():
    with pytest.raises(KeyError, match="no task -1"):
        list(Ray().stream(Work(inspect), [1, -1]))


def test_more_processors_than_any_node_has_are_refused():
    with pytest.raises(ExecutorError, match="no node of the Ray cluster has 3 processors; the largest has 2"):
        next(Ray(cpus=3).stream(Work(inspect), [1]))


def test_a_data_set_has_the_same_bits(tmp_path, monkeypatch):
    monkeypatch.setattr(data, "CHUNK", 8)
    sim = fx.Simulator(fx.load("pendulum"), fx.RigidSolver(contact=None), dt=1 / 60)
    paths = [
        sample(sim, Ranges(), 100, tmp_path / f"{i}.h5", length=5, executor=who) for i, who in enumerate((Local(), Ray()))
    ]
    with h5py.File(paths[0]) as a, h5py.File(paths[1]) as b:
        assert a.attrs["hash"] == b.attrs["hash"]
        for name in a["data"]:
            assert np.array_equal(a["data"][name], b["data"][name])
