"""flexor's solvers behind Newton's interface: states are those of flexor's own rollouts, conventions hold both ways."""

import jax.numpy as jnp
import newton
import numpy as np
import pytest
import warp as wp

import flexor as fx
from flexor.plugins.newton import FlexorSolver
from flexor.plugins.newton_layout import Layout

wp.config.quiet = True
WORLDS, DT = 3, 0.005
TUMBLER = """
<mujoco model="tumbler">
  <compiler angle="radian"/>
  <worldbody>
    <geom name="floor" type="plane" size="5 5 0.1"/>
    <body name="base" pos="0.1 -0.2 0.5" quat="0.8 0.4 -0.4 0.2">
      <freejoint name="base"/>
      <inertial pos="0.05 0.02 -0.03" mass="1.5" diaginertia="0.01 0.02 0.015"/>
      <geom name="ball" type="sphere" size="0.1"/>
      <body name="arm" pos="0.1 0 0">
        <joint name="arm" axis="0 1 0" damping="0.02" armature="0.01" range="-2 2"/>
        <inertial pos="0.1 0 0" mass="0.3" diaginertia="0.001 0.002 0.002"/>
        <geom name="rod" type="capsule" size="0.03" fromto="0 0 0 0.2 0 0"/>
      </body>
    </body>
  </worldbody>
</mujoco>
"""


def built(text, worlds=WORLDS):
    """A Newton model of so many worlds, from an MJCF."""
    one, many = newton.ModelBuilder(), newton.ModelBuilder()
    one.add_mjcf(text)
    many.replicate(one, worlds)
    return many.finalize(device="cpu")


@pytest.fixture(scope="module")
def tumbler():
    return built(TUMBLER), fx.load(TUMBLER)


def moving(model, layout, seed=0):
    """A Newton state whose flexor coordinates and velocities are random, and those."""
    rng = np.random.default_rng(seed)
    state = model.state()
    q, qd = layout.from_newton(state.joint_q.numpy(), state.joint_qd.numpy())
    qd = rng.normal(size=qd.shape).astype(np.float32)
    joint_q, joint_qd = state.joint_q.numpy(), state.joint_qd.numpy()
    layout.to_newton(q, qd, joint_q, joint_qd)
    state.joint_q.assign(joint_q)
    state.joint_qd.assign(joint_qd)
    newton.eval_fk(model, state.joint_q, state.joint_qd, state)
    return state, q, qd


def test_states_are_those_of_flexors_own_rollouts(tumbler):
    """A hundred steps through a fall onto the floor, under forces of a joint: equal to the rounding of single precision."""
    model, robot = tumbler
    solver = FlexorSolver(model, "ncp", robot=robot)
    state, q, qd = moving(model, solver.layout)
    other, control = model.state(), model.control()
    control.joint_f.assign(np.tile(np.array([0, 0, 0, 0, 0, 0, 0.05], np.float32), WORLDS))
    sim = fx.Simulator(robot, dt=DT)
    tau = fx.Control(tau=jnp.tile(jnp.array([0, 0, 0, 0, 0, 0, 0.05]), (100, 1)))
    for _ in range(100):
        solver.step(state, other, control, None, DT)
        state, other = other, state
    ours, ours_qd = solver.layout.from_newton(state.joint_q.numpy(), state.joint_qd.numpy())
    for world in range(WORLDS):
        expected = sim.rollout(sim.reset(q[world], qd[world]), tau)
        # the start is in single precision for both; Newton's arrays round each state, flexor's own goes on unrounded
        np.testing.assert_allclose(ours[world], expected.q[-1], atol=2e-6)
        np.testing.assert_allclose(ours_qd[world], expected.qd[-1], atol=2e-5)


def test_velocities_are_those_of_newtons_bodies(tumbler):
    """Newton's own kinematics of what `to_newton` writes gives flexor's velocities: of the centre of mass, in world axes."""
    model, robot = tumbler
    layout = Layout.of(model, robot)
    state, q, qd = moving(model, layout)
    body_q, body_qd = state.body_q.numpy().reshape(WORLDS, -1, 7), state.body_qd.numpy().reshape(WORLDS, -1, 6)
    for world, (place, rate) in enumerate(zip(np.float64(q), np.float64(qd), strict=True)):
        position, turn = fx.frame_pose(robot, jnp.asarray(place), "arm")
        np.testing.assert_allclose(body_q[world, 1, :3], position, atol=1e-6)
        spin, speed = np.split(np.asarray(fx.frame_velocity(robot, jnp.asarray(place), jnp.asarray(rate), "arm")), 2)
        com = np.asarray(turn) @ np.array([0.1, 0, 0])
        np.testing.assert_allclose(body_qd[world, 1, 3:], spin, atol=1e-5)
        np.testing.assert_allclose(body_qd[world, 1, :3], speed + np.cross(spin, com), atol=1e-5)


def test_layouts_go_both_ways(tumbler):
    model, robot = tumbler
    layout = Layout.of(model, robot)
    state, q, qd = moving(model, layout)
    back = layout.from_newton(state.joint_q.numpy(), state.joint_qd.numpy())
    np.testing.assert_allclose(back[0], q, atol=1e-6)
    np.testing.assert_allclose(back[1], qd, atol=1e-5)


def test_forces_do_the_same_work(tumbler):
    """Power is the same in both programs' words: joint_f . joint_qd = tau . qd, and for wrenches on bodies."""
    model, robot = tumbler
    layout = Layout.of(model, robot)
    state, q, qd = moving(model, layout)
    rng = np.random.default_rng(1)
    joint_f = rng.normal(size=model.joint_dof_count).astype(np.float32)
    theirs = (joint_f * state.joint_qd.numpy()).reshape(WORLDS, -1).sum(1)
    np.testing.assert_allclose((layout.forces(joint_f, q) * qd).sum(1), theirs, rtol=1e-4)
    body_f = rng.normal(size=(model.body_count, 6)).astype(np.float32)
    theirs = (body_f * state.body_qd.numpy()).reshape(WORLDS, -1).sum(1)
    wrench = layout.wrenches(body_f, state.body_q.numpy())
    for world in range(WORLDS):
        ours = 0.0
        for b, name in enumerate(robot.topology.bodies):
            if name != "world":
                twist = fx.frame_velocity(robot, jnp.asarray(np.float64(q[world])), jnp.asarray(np.float64(qd[world])), name)
                ours += float(np.dot(np.asarray(twist), wrench[world, b]))
        np.testing.assert_allclose(ours, theirs[world], rtol=1e-4)


def test_newtons_model_is_the_robot(tumbler):
    """Without `robot=` the description comes from Newton's model: the same accelerations, masses and contacts."""
    model, robot = tumbler
    solver = FlexorSolver(model)
    mine = solver.robot
    assert [j.name for j in mine.topology.joints] == [j.name for j in robot.topology.joints]
    rng = np.random.default_rng(2)
    qd = jnp.asarray(rng.normal(size=robot.nv))
    forces = [fx.dynamics.rnea(m, fx.dynamics.forward_kinematics(m, m.reference), qd, qd) for m in (mine, robot)]
    np.testing.assert_allclose(forces[0], forces[1], rtol=1e-4, atol=1e-5)
    shapes = [{frozenset(m.topology.geoms[g].shape for g in (p.a, p.b)) for p in m.topology.pairs} for m in (mine, robot)]
    assert shapes[0] == shapes[1]


def test_targets_pull_as_newton_says():
    """A position target of one joint: the force ke (q* - q) - kd qd in the first step."""
    model = built(TUMBLER, 1)
    ke, kd = model.joint_target_ke.numpy(), model.joint_target_kd.numpy()
    ke[6], kd[6] = 3.0, 0.1
    model.joint_target_ke.assign(ke)
    model.joint_target_kd.assign(kd)
    robot = fx.load(TUMBLER)
    state, q, qd = moving(model, Layout.of(model, robot))
    control, after = model.control(), model.state()
    target = control.joint_target_q.numpy()
    target[-1] = 0.7
    control.joint_target_q.assign(target)
    FlexorSolver(model, robot=robot).step(state, after, control, None, DT)
    tau = np.zeros(7)
    tau[6] = 3.0 * (0.7 - q[0, 7]) - 0.1 * qd[0, 6]
    sim = fx.Simulator(robot, dt=DT)
    expected = sim.step(sim.reset(q[0], qd[0]), fx.Control(tau=jnp.asarray(tau)))
    np.testing.assert_allclose(after.joint_qd.numpy()[6], expected.qd[6], rtol=1e-4)


def test_a_learned_solver_steps_newtons_worlds():
    nerd = fx.nerd.load("cartpole")
    model = built(fx.robots.find("cartpole").read_text())
    solver = FlexorSolver(model, nerd.solver(), robot=nerd.model)
    state, other = model.state(), model.state()
    state.joint_q.assign(np.tile(np.array([0.1, 0.5], np.float32), WORLDS))
    for _ in range(10):
        solver.step(state, other, None, None, nerd.dt)
        state, other = other, state
    sim = fx.Simulator(nerd.model, nerd.solver(), dt=nerd.dt)
    expected = sim.rollout(sim.reset(np.array([0.1, 0.5], np.float32)), steps=10)
    np.testing.assert_allclose(state.joint_q.numpy().reshape(WORLDS, 2)[1], expected.q[-1], atol=2e-6)
    with pytest.raises(ValueError, match=r"cannot step by 0\.005 s"):
        solver.step(state, other, None, None, DT)


def test_a_changed_model_is_named(tumbler):
    solver = FlexorSolver(tumbler[0], robot=tumbler[1])
    solver.notify_model_changed(newton.ModelFlags.BODY_PROPERTIES)  # poses and velocities are read at every step
    with pytest.raises(NotImplementedError, match="BODY_INERTIAL_PROPERTIES of the Newton model changed"):
        solver.notify_model_changed(newton.ModelFlags.BODY_INERTIAL_PROPERTIES)


def test_robots_that_do_not_fit_are_named(tumbler):
    model, _ = tumbler
    with pytest.raises(ValueError, match="Newton's model lacks hinge, slider; 'cartpole' lacks arm, base"):
        FlexorSolver(model, robot="cartpole")
    builder = newton.ModelBuilder()
    body = builder.add_link(mass=1.0, inertia=wp.mat33(np.eye(3)), label="box")
    builder.add_articulation([builder.add_joint_d6(-1, body, label="six")])
    with pytest.raises(NotImplementedError, match="no joint of the kind D6, which 'six' is"):
        FlexorSolver(builder.finalize(device="cpu"))
