"""A robot that was saved and loaded again moves as before."""

import numpy as np
import pytest

import flexor as fx
from flexor.robots import example_robots
from tests.dynamics.robots import NASTY

CASES = [("pendulum5", ".xml"), ("pendulum5", ".urdf"), ("pusher", ".xml"), ("nasty", ".xml"), ("ur5_robot", ".urdf"),
         ("ur5_robot", ".xml"), ("cube", ".xml"), ("cube", ".urdf")]  # fmt: skip


@pytest.mark.parametrize(("name", "ending"), CASES)
@pytest.mark.filterwarnings("ignore::flexor.model.description.ModelWarning")
def test_trajectories_agree(name, ending, tmp_path):
    if name == "ur5_robot" and name not in example_robots():
        pytest.skip("example-robot-data is not installed")
    model = fx.load(NASTY if name == "nasty" else name)
    path = tmp_path / f"robot{ending}"
    fx.save(model, path)
    rng = np.random.default_rng(0)
    qd, controls = 0.3 * rng.normal(size=model.nv), rng.normal(size=(100, model.nu))
    runs = []
    for m in (model, fx.load(path)):
        sim = fx.Simulator(m, dt=0.002)
        runs.append(sim.rollout(sim.reset(qd=qd), controls).raise_if_bad())
    np.testing.assert_allclose(runs[0].q, runs[1].q, rtol=0, atol=1e-9)
    np.testing.assert_allclose(runs[0].qd, runs[1].qd, rtol=0, atol=1e-9)
