"""Soft contacts, limits and equalities: MuJoCo's `solref` and `solimp` as compliances."""

import jax
import jax.numpy as jnp
import mujoco
import numpy as np
import pytest

import flexor as fx
from flexor.contact.soft import impedance
from flexor.model.description import GeomSpec
from flexor.model.softness import mixed

BOX = """<mujoco><option timestep="0.002" cone="elliptic"/><worldbody><geom name="floor" type="plane" size="1 1 1" FLOOR/>
<body name="box" pos="0 0 0.1"><freejoint name="root"/><geom name="box" type="box" size="0.1 0.1 0.1" mass="2" SIDES/></body>
</worldbody></mujoco>"""
FLOOR = 'solref="0.1 1" solimp="0.5 0.8 0.01 0.4 3"'
MATTRESS = BOX.replace("FLOOR", FLOOR).replace("SIDES", 'solmix="2"')
LIMIT = """<mujoco><option timestep="0.0005"/><worldbody><body><joint name="rail" type="slide" axis="0 0 1" limited="true"
range="0 1" solreflimit="REF" solimplimit="IMP"/><geom size="0.1" mass="1.5" contype="0"/></body></worldbody></mujoco>"""
TIES = """<mujoco><option timestep="0.002"/><worldbody>
<body name="a"><joint name="a" axis="0 1 0"/><geom size="0.05" pos="0.3 0 0" mass="1" contype="0"/></body>
<body name="b" pos="0 1 0"><joint name="b" axis="0 1 0"/><geom size="0.05" pos="0.3 0 0" mass="0.5" contype="0"/></body>
<body name="c" pos="0 2 0"><joint name="c" axis="0 1 0"/><geom size="0.05" pos="0.3 0 0" mass="1" contype="0"/></body>
<body name="d" pos="0 3 0"><freejoint name="d"/><geom type="box" size="0.1 0.05 0.05" pos="0.1 0 0" mass="1" contype="0"/></body>
<body name="e" pos="0 4 0"><joint name="e" type="slide" axis="0 0 1"/><geom size="0.05" mass="1" contype="0"/></body>
</worldbody><tendon><fixed name="rope" limited="true" range="0 1" solreflimit="0.1 1" solimplimit="0.4 0.9 0.05">
<joint joint="e" coef="1"/></fixed></tendon>
<equality><joint name="gear" joint1="a" joint2="b" polycoef="0 0.5 0 0 0" solref="0.1 1"/>
<joint name="hold" joint1="b" solref="0.05 2" solimp="0.6 0.9 0.1"/>
<connect name="pin" body1="c" body2="world" anchor="0.3 0 0" solref="0.15 1" solimp="0.7 0.95 0.1"/>
<weld name="weld" body1="world" body2="d" solref="-300 -30" solimp="0.8 0.9 0.05"/></equality></mujoco>"""


def settled(text, steps=3000):
    m = mujoco.MjModel.from_xml_string(text)
    d = mujoco.MjData(m)
    for _ in range(steps):
        mujoco.mj_step(m, d)
    return d.qpos.copy()


def rollout(model, steps, dt=0.002, *, contact=None, simd=False, **start):
    solver = fx.RigidSolver(contact=contact or fx.NCP())
    sim = fx.Simulator(model, solver, dt=dt, simd=simd)
    return sim.rollout(sim.reset(**start), steps=steps)


@pytest.mark.parametrize("solref", ["0.3 0.7", "-200 -5"])
@pytest.mark.parametrize("solimp", ["0.2 0.9 0.1 0.3 3", "0.5 0.5 0.1 0.5 2", "0.3 1 0.05 0.5 1"])
def test_stiffness_damping_and_impedance_are_mujocos(solref, solimp):
    text = LIMIT.replace("REF", solref).replace("IMP", solimp)
    m, model = mujoco.MjModel.from_xml_string(text), fx.load(text)
    d, table = mujoco.MjData(m), model.compliances
    for r in (1e-4, 0.013, 0.03, 0.06, 0.2):
        d.qpos[0] = -r
        mujoco.mj_forward(m, d)
        found = [table.stiffness[0], table.damping[0], impedance(table.impedance[0], jnp.asarray(r))]
        np.testing.assert_allclose(found, d.efc_KBIP[0, :3], rtol=1e-12)
        ours = (1 - found[2]) / found[2] * table.response[0]
        np.testing.assert_allclose(ours, d.efc_R[0], rtol=1e-12)


@pytest.mark.parametrize("first", ['solref="0.1 1"', 'solref="-300 -20"', 'solref="0.1 2" priority="1"', 'solmix="0"'])
@pytest.mark.parametrize("second", ['solref="0.05 3" solimp="0.3 0.8 0.02 0.3 4" solmix="3"', 'solref="-500 -10"'])
def test_two_geoms_are_mixed_as_mujoco_mixes_them(first, second):
    m = mujoco.MjModel.from_xml_string(BOX.replace("FLOOR", first).replace("SIDES", second))
    d = mujoco.MjData(m)
    d.qpos[2] -= 0.001
    mujoco.mj_forward(m, d)
    columns = ("solref", "solimp", "solmix", "priority")
    geoms = [GeomSpec("", "", "", **{f: getattr(m, f"geom_{f}")[g] for f in columns}) for g in (0, 1)]
    for found, wanted in zip(mixed(*geoms), (d.contact[0].solref, d.contact[0].solimp), strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-12)


def test_a_box_sinks_into_a_mattress_as_deep_as_in_mujoco():
    """Both at rest: the depths agree to what is left of the motion. A hard floor is there to see that it is the softness."""
    model = fx.load(MATTRESS)
    q, wanted = np.asarray(rollout(model, 2000).q[-1]), settled(MATTRESS)
    assert 0.1 - wanted[2] > 1e-3
    np.testing.assert_allclose(q[:3], wanted[:3], atol=1e-9)
    hard = rollout(fx.load(MATTRESS, ignore=["solref"]), 100).q[-1]
    assert abs(float(hard[2]) - 0.1) < 1e-5
    pair = BOX.replace("FLOOR", "").replace("SIDES", "")
    pair = pair.replace("</worldbody>", f'</worldbody><contact><pair geom1="floor" geom2="box" {FLOOR}/></contact>')
    np.testing.assert_allclose(rollout(fx.load(pair), 2000).q[-1, 2], settled(pair)[2], atol=1e-9)


@pytest.mark.parametrize(("ratio", "seconds"), [(0.3, 0.03), (1.0, 0.15)])
def test_a_mass_settles_on_a_soft_limit_as_the_closed_form_says(ratio, seconds):
    """With a constant impedance d, r'' = -d b r' - d^2 k r - (1 - d) g; the error of a step of first order halves with h."""
    d, T = 0.6, 0.1
    text = LIMIT.replace("REF", f"{T} {ratio}").replace("IMP", f"{d} {d} 0.1")
    model = fx.load(text)
    k, b = 1 / (d * T * ratio) ** 2, 2 / (d * T)
    w, damp, rest = d * np.sqrt(k), d * b / 2, -(1 - d) * 9.81 / (d**2 * k)
    root = np.sqrt(complex(w**2 - damp**2))
    start, speed = -0.1 - rest, 0.0
    root = root if abs(root) > 1e-6 else 1e-6
    swing = np.exp(-damp * seconds) * (
        start * np.cos(root * seconds) + (speed + damp * start) / root * np.sin(root * seconds)
    )
    exact, errors = rest + swing.real, []
    for h in (1e-3, 5e-4):
        q = rollout(model, round(seconds / h), h, q=jnp.array([-0.1])).q[-1, 0]
        errors.append(abs(float(q) - exact))
    assert errors[0] < 0.02 * 0.1
    assert errors[1] < 0.6 * errors[0]


def test_limits_equalities_and_loops_yield_to_their_loads_as_in_mujoco():
    """At rest. MuJoCo's own residual is near 1e-9; the weld turns and sinks, and the joint is held by two equalities."""
    model = fx.load(TIES)
    names = [c.name for c in model.topology.compliances]
    assert names == ["tendon.rope", "equality.gear", "equality.hold", "loop.pin", "loop.weld"]
    q, wanted = np.asarray(rollout(model, 4000).q[-1]), settled(TIES, 8000)
    assert np.abs(wanted - np.asarray(model.reference)).max() > 1e-2
    np.testing.assert_allclose(q, wanted, atol=1e-6)
    weaker = rollout(fx.load(TIES, ignore=["solref"]), 100).q[-1]
    assert np.abs(np.asarray(weaker) - np.asarray(model.reference)).max() < 1e-3


def test_what_is_no_softer_than_mujocos_defaults_stays_hard():
    """With the program of before; a hard contact that is underdamped bounces."""
    plain = fx.load(BOX.replace("FLOOR", "").replace("SIDES", ""))
    assert plain.topology.compliances == ()
    harder = fx.load(BOX.replace("FLOOR", 'solref="0.004 1" solimp="0.95 0.99 0.001"').replace("SIDES", ""))
    assert harder.topology == plain.topology
    assert float(harder.pairs.restitution[0]) == 0.0
    bouncy = fx.load(BOX.replace("FLOOR", 'solref="0.004 0.2" priority="1"').replace("SIDES", ""))
    assert bouncy.topology == plain.topology
    assert float(bouncy.pairs.restitution[0]) == pytest.approx(np.exp(-np.pi * 0.2 / np.sqrt(0.96)))
    assert fx.load(LIMIT.replace("REF", "0.004 0.5").replace("IMP", "0.9 0.95 0.001")).topology.compliances


def test_derivatives_of_a_soft_landing_are_those_of_differences():
    """While the box is in touch: central differences of 1e-6 leave 1e-16 / 1e-6 of the value."""
    model = fx.load(MATTRESS)
    names = ("compliance.*.stiffness", "compliance.*.damping", "compliance.*.response", "compliance.*.impedance")
    start = {n: np.asarray(next(iter(fx.parameters(model, n).values())), float) for n in names}
    q = jnp.asarray([0, 0, 0.099, 1, 0.01, 0, 0])

    def height(values, q):
        start = {"q": q, "qd": jnp.array([0.1, 0, -0.2, 0, 0, 0])}
        end = rollout(fx.replace(model, values), 10, **start)
        return end.q[-1, 2] + 0.1 * end.q[-1, 0]

    value = jax.jit(height)
    slope = jax.jit(jax.grad(height, argnums=(0, 1)))(start, q)
    for name in names:
        step = 1e-6 * start[name]
        up, down = (float(value(start | {name: start[name] + s * step}, q)) for s in (1, -1))
        assert float(np.sum(slope[0][name] * step)) == pytest.approx((up - down) / 2, rel=1e-4, abs=1e-16), name
    move = np.array([0, 0, 1e-6, 0, 0, 0, 0])
    up, down = (float(value(start, q + s * move)) for s in (1, -1))
    assert float(slope[1][2]) * 1e-6 == pytest.approx((up - down) / 2, rel=1e-5)


@pytest.mark.parametrize("most", [None, 4])
def test_kernels_and_lists_of_contacts_have_soft_contacts_too(most):
    """In single precision; a list of four places holds the four corners."""
    model = fx.load(MATTRESS)
    wanted = np.asarray(rollout(model, 300).q[-1])
    single = model.astype(jnp.float32)
    found = rollout(single, 300, contact=fx.NCP(most=most), simd=True).q[-1]
    np.testing.assert_allclose(found, wanted, atol=2e-5)


def test_the_penalty_model_has_soft_limits_and_equalities():
    """A spring with the stiffness from the width on."""
    text = LIMIT.replace("REF", "0.1 1").replace("IMP", "0.6 0.6 0.1")
    q = rollout(fx.load(text), 4000, 5e-4, contact=fx.Penalty()).q[-1]
    np.testing.assert_allclose(q, settled(text, 4000), atol=1e-6)


@pytest.mark.parametrize("text", [MATTRESS, TIES, LIMIT.replace("REF", "0.1 1").replace("IMP", "0.6 0.6 0.1")])
def test_compliances_are_saved(text, tmp_path):
    """The same numbers come back, without flexor's own fields too, and with them also where a constraint is hard by now."""
    model = fx.load(text)
    fx.save(model, tmp_path / "soft.xml")
    again = fx.load(tmp_path / "soft.xml")
    assert again.topology == model.topology
    jax.tree.map(np.testing.assert_array_equal, again, model)
    text = (tmp_path / "soft.xml").read_text().replace("flexor.", "other.")  # what other programs read of it
    np.testing.assert_allclose(fx.load(text).compliances.stiffness, model.compliances.stiffness, rtol=1e-12)
    stiff = fx.replace(model, {"compliance.*.stiffness": 1e7})
    fx.save(stiff, tmp_path / "stiff.xml")
    assert fx.load(tmp_path / "stiff.xml").topology == model.topology
    with pytest.raises(fx.DescriptionError, match=r"is soft|has the tendon"):
        fx.save(model, tmp_path / "soft.urdf")


def test_a_simulator_of_a_soft_scene_is_saved_and_opened(tmp_path):
    sim = fx.Simulator(fx.load(MATTRESS), dt=0.002, simd=False)
    sim.save(tmp_path / "bed")
    again = fx.open(tmp_path / "bed")
    assert again.model.topology == sim.model.topology
    jax.tree.map(np.testing.assert_array_equal, again.model, sim.model)
