"""What drives and brakes a robot is found from logs: time constants of activations, numbers of muscles, the fluid around it."""

import numpy as np
import pytest

import flexor as fx

ARM = """<mujoco model="arm"><option density="{density}"/><worldbody><body name="arm"><joint name="hinge" axis="0 1 0"/>
<geom type="box" size="0.02 0.1 0.1" mass="0.5" pos="0 0 -0.2"/></body></worldbody>
<actuator><general name="valve" joint="hinge" dyntype="filterexact" dynprm="{lag}" gainprm="2"/></actuator></mujoco>"""


def test_a_lag_and_a_density_are_found():
    dt, rng = 0.005, np.random.default_rng(0)
    true = fx.Simulator(fx.load(ARM.format(density=60, lag=0.08)), dt=dt)
    u = np.repeat(rng.normal(size=20), 10)[:, None]
    run = true.rollout(true.reset(), u)
    time = dt * np.arange(len(u) + 1)
    controls = np.concatenate([u, u[-1:]])
    log = fx.Log(time, np.asarray(run.q), ("q.hinge",), controls, {"q.hinge": 1e-4}, start=(run.q[0], run.qd[0]))
    guess = fx.Simulator(fx.load(ARM.format(density=20, lag=0.03)), dt=dt)
    fit = fx.identify(guess, log, free=["activation.valve.time_constant", "medium.fluid.density"])
    # without noise, the optimum is the truth up to the tolerance of the search
    assert fit.values["activation.valve.time_constant"] == pytest.approx(0.08, rel=1e-4)
    assert fit.values["medium.fluid.density"] == pytest.approx(60, rel=1e-4)


def test_segments_need_activations_that_no_log_holds():
    sim = fx.Simulator(fx.load(ARM.format(density=1, lag=0.1)), dt=0.005)
    log = fx.Log(np.arange(20) * 0.01, np.sin(np.arange(20))[:, None], ("q.hinge",), np.zeros((20, 1)), {"q.hinge": 1e-4})
    with pytest.raises(ValueError, match="a segment cannot start within a log"):
        fx.identify(sim, log, free=["body.arm.mass"], shooting=fx.Shooting(horizon=0.05))
