"""Delays in files: read from MJCF, written back, kept by URDF; what is read differently is said."""

import jax
import mujoco
import numpy as np
import pytest

import flexor as fx

ARM = """<mujoco model="arm"><option timestep="0.002"/><worldbody><body name="link"><joint name="j" axis="0 1 0"/>
<geom size="0.1" mass="1" pos="0 0 -0.3"/></body></worldbody><actuator>
<position name="a" joint="j" kp="20" {a}/><motor name="b" joint="j"/></actuator></mujoco>"""


@pytest.mark.parametrize("suffix", [".xml", ".urdf"])
@pytest.mark.parametrize("delay", [0.0, 0.0231], ids=["room alone", "delay"])
def test_files_keep_delays(tmp_path, suffix, delay):
    model = fx.with_delay(fx.load(ARM.format(a="")), {"actuator.a.delay": delay}, dt=0.01, longest=0.1)
    fx.save(model, tmp_path / f"arm{suffix}")
    again = fx.load(tmp_path / f"arm{suffix}")
    assert again.topology == model.topology
    jax.tree.map(np.testing.assert_array_equal, again, model)
    if suffix == ".xml":
        m = mujoco.MjModel.from_xml_path(str(tmp_path / "arm.xml"))
        np.testing.assert_array_equal(m.actuator_delay, [delay, 0])
        np.testing.assert_array_equal(m.actuator_history, [[10, 1], [0, 0]])


def test_urdf_with_a_wrong_count_is_refused(tmp_path):
    model = fx.with_delay(fx.load(ARM.format(a="")), {"actuator.a.delay": 0.01}, dt=0.01)
    fx.save(model, tmp_path / "arm.urdf")
    text = (tmp_path / "arm.urdf").read_text()
    with pytest.raises(fx.DescriptionError, match=r"attribute samples='-1' of <actuator> should be a whole number"):
        fx.load(text.replace('samples="1"', 'samples="-1"'))


@pytest.mark.parametrize(("interp", "delay"), [("zoh", 0.005), ("cubic", 0.005), ("linear", 0.001)])
def test_what_mujoco_rounds_or_smooths_is_said(interp, delay):
    with pytest.warns(fx.ModelWarning, match=rf"actuator 'a' has a delay of {delay} s with interp=\"{interp}\""):
        model = fx.load(ARM.format(a=f'delay="{delay}" nsample="4" interp="{interp}"'))
    assert float(model.actuators.delay[0]) == pytest.approx(delay)


def test_parameters_and_charts_know_delays():
    from flexor.model.charts import coordinates

    model = fx.with_delay(fx.load(ARM.format(a="")), {"actuator.a.delay": 0.02}, dt=0.01)
    assert list(fx.parameters(model, "*.delay")) == ["actuator.a.delay", "actuator.b.delay"]
    place = coordinates(model, ["actuator.a.delay"])
    np.testing.assert_allclose(place.values(place.start)["actuator.a.delay"], 0.02, rtol=1e-12)
    assert float(place.values(np.array([-30.0]))["actuator.a.delay"]) > 0
