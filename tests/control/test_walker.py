"""Quadrupeds walk, in flexor and in MuJoCo; what is derived from their models; refusals."""

import dataclasses

import equinox as eqx
import jax
import jax.numpy as jnp
import mujoco
import numpy as np
import pytest

import flexor as fx
from flexor.control import GAITS, ForceSolution, Gait, InteriorPoint, Legs, Quadruped, Walker, on_its_feet
from flexor.dynamics import body_poses, centre_of_mass, forward_kinematics, kinetic_energy, point_jacobian
from flexor.solvers.mujoco import mujoco_model

DT = 0.002
COMMANDS = np.array([[0.6, 0, 0], [0, 0.2, 0], [0, 0, 0.8], [0.4, 0.1, 0.4]])


@pytest.fixture(scope="module")
def robot():
    return Quadruped.of(on_its_feet(fx.load("quadruped", dtype=jnp.float32)))


@pytest.fixture(scope="module")
def walker(robot):
    return Walker(robot, jnp.asarray(COMMANDS[0], jnp.float32), DT)


@pytest.fixture(scope="module")
def pilot(walker):
    return walker.compile()


def speeds(q, qd):
    """Mean velocities in axes of the heading, and the rate of turning."""
    yaw = np.unwrap(np.arctan2(2 * (q[:, 3] * q[:, 6] + q[:, 4] * q[:, 5]), 1 - 2 * (q[:, 5] ** 2 + q[:, 6] ** 2)))
    c, s = np.cos(yaw), np.sin(yaw)
    return np.array(
        [
            (c * qd[:, 0] + s * qd[:, 1]).mean(),
            (c * qd[:, 1] - s * qd[:, 0]).mean(),
            (yaw[-1] - yaw[0]) / (DT * (len(q) - 1)),
        ]
    )


def test_a_batch_walks_as_told_in_one_kernel(robot, walker):
    sim = fx.Simulator(robot.model, dt=DT)

    def walk(command):
        return sim.rollout(
            sim.reset(jnp.asarray(robot.stand)), eqx.tree_at(lambda w: w.command, walker, command), steps=1500
        )

    made = jax.vmap(walk)(jnp.asarray(COMMANDS, jnp.float32))
    q, qd = np.asarray(made.q, float), np.asarray(made.qd, float)
    assert np.all(np.asarray(made.policy_memory.refused) == 0)
    for k, command in enumerate(COMMANDS):
        assert q[k, :, 2].min() > 0.35
        found = speeds(q[k, 500:], qd[k, 500:])
        np.testing.assert_allclose(found, command, atol=0.1 * max(0.2, np.abs(command).max()))


def test_the_pilot_walks_mujoco_beside_the_stepper(robot, walker, pilot):
    """The same program gives MuJoCo's own step its torques: in another simulator's contacts the robot walks as well."""
    m = mujoco_model(robot.model)
    d = mujoco.MjData(m)
    m.opt.timestep = DT
    d.qpos[:] = robot.stand
    pilot.reset()
    pilot.order(np.array([0.6, 0.0, 0.0]))
    q, qd = [], []
    for _ in range(1000):
        d.ctrl[:] = pilot(d.qpos, d.qvel)
        mujoco.mj_step(m, d)
        q.append(d.qpos.copy())
        qd.append(d.qvel.copy())
    assert pilot.memory.refused == 0
    assert np.array(q)[:, 2].min() > 0.35
    np.testing.assert_allclose(speeds(np.array(q)[500:], np.array(qd)[500:]), [0.6, 0, 0], atol=0.06)


def test_figures_follow_from_the_model(robot):
    model = robot.model
    assert robot.mass == pytest.approx(float(np.asarray(model.bodies.mass)[1:].sum()), rel=1e-6)
    bodies = np.array([model.topology.geoms[k].body for k in robot.legs.feet])

    def look(q):
        kin = forward_kinematics(model, q)
        feet, clearances = robot.legs.foot_positions(model, kin), robot.legs.clearances(model, kin)
        com = centre_of_mass(model, kin) - q[:3]
        return feet, clearances, body_poses(model, kin)[0], com, point_jacobian(model, kin, bodies, feet)

    stand = jnp.asarray(robot.stand)
    feet, clearances, pos, com, J = (np.asarray(x, float) for x in fx.simd.jit(look)(stand))
    thighs = [model.topology.bodies.index(f"{leg}_thigh") for leg in ("FR", "FL", "RR", "RL")]
    np.testing.assert_allclose(feet[:, 0], pos[thighs, 0], atol=1e-3)  # feet below the hips
    np.testing.assert_allclose(clearances, 0, atol=1e-5)
    np.testing.assert_allclose(robot.leg_length, 0.5, rtol=1e-5)
    # the energy of a trunk that turns about the centre of mass while the feet stay
    w, qd = np.array([0.3, -0.5, 0.7]), np.zeros(18)
    qd[:6] = [*np.cross(com, w), *w]
    for k, d in enumerate(robot.dofs):
        qd[d] = -np.linalg.solve(J[k][:, d], J[k][:, :6] @ qd[:6])
    assert np.abs(J @ qd).max() < 1e-6
    energy = fx.simd.jit(lambda q, v: kinetic_energy(model, forward_kinematics(model, q), v))(
        stand, jnp.asarray(qd, jnp.float32)
    )
    assert w @ robot.inertia @ w / 2 == pytest.approx(float(energy), rel=1e-4)


@pytest.mark.parametrize("name", ["laikago", "a1", "anymal_c"])
@pytest.mark.filterwarnings("ignore")
def test_real_robots_are_understood(name):
    robot = Quadruped.of(on_its_feet(fx.load(name, floating=True, ground=True)))
    front = robot.feet[:2].mean(0) - robot.feet[2:].mean(0)
    assert front[0] > 0.3
    assert robot.feet[1, 1] > 0 > robot.feet[0, 1]
    assert np.all(np.linalg.eigvalsh(robot.inertia) > 0)
    assert 0.7 < robot.height / robot.leg_length < 1


def test_gaits_say_who_stands():
    trot = GAITS["trot"]
    times = jnp.arange(0, 0.5, 0.01) + 0.005
    stands = np.asarray(trot.stands(trot.phases(times)))
    np.testing.assert_array_equal(stands[:, 0], stands[:, 3])
    np.testing.assert_array_equal(stands[:, 1], stands[:, 2])
    np.testing.assert_allclose(stands.mean(0), 0.6)
    assert np.all(np.asarray(GAITS["stand"].stands(GAITS["stand"].phases(times))))
    with pytest.raises(ValueError, match="positive period and a duty"):
        Gait(period=0.5, duty=0.0, offsets=(0, 0, 0, 0))


def test_a_lost_state_keeps_the_last_torques_and_is_counted(robot, pilot):
    pilot.reset()
    u = pilot(robot.stand, np.zeros(18, np.float32)).copy()
    assert np.abs(u).max() > 1
    again = pilot(np.full(19, np.nan), np.zeros(18))
    np.testing.assert_array_equal(again, u)
    assert pilot.memory.refused == 1


def test_an_unsolved_plan_keeps_the_last_forces(robot, walker):
    class Never(InteriorPoint):
        def __call__(self, problem, start=None):
            found = super().__call__(problem, start)
            return ForceSolution(0 * found.forces, found.converged & False, found.iterations)

    lost = dataclasses.replace(walker, forces=Never(iterations=1))
    memory = lost.init(None)
    state = fx.Simulator(robot.model, dt=DT).reset(jnp.asarray(robot.stand))
    control, after = fx.simd.jit(lambda s, m: lost(s, m, None))(state, memory)
    np.testing.assert_array_equal(after.forces, memory.forces)
    assert int(after.refused) == 1
    assert np.isfinite(np.asarray(control.u)).all()


@pytest.mark.parametrize(
    ("command", "sentence"),
    [
        ([3.0, 0, 0], r"cannot follow the command .3.0, 0.0, 0.0.: at 3.00 m/s .* its legs reach"),
        ([np.nan, 0, 0], "three finite numbers"),
    ],
)
def test_commands_out_of_reach_are_refused(robot, pilot, command, sentence):
    with pytest.raises(ValueError, match=sentence):
        Walker(robot, jnp.asarray(command, jnp.float32), DT)
    with pytest.raises(ValueError, match=sentence):
        pilot.order(np.array(command))


def test_robots_that_cannot_walk_on_four_feet_are_refused():
    with pytest.raises(ValueError, match="does not float"):
        Quadruped.of(fx.load("cartpole"))
    with pytest.raises(ValueError, match="'ant' has no feet"):
        Quadruped.of(on_its_feet(fx.load("ant")))
    model = on_its_feet(fx.load("quadruped"))
    three = dataclasses.replace(
        model,
        topology=dataclasses.replace(model.topology, pairs=model.topology.pairs[:3]),
        pairs=jax.tree.map(lambda x: x[:3], model.pairs),
    )
    assert len(Legs.of(three).feet) == 3
    with pytest.raises(ValueError, match=r"'quadruped' has 3 feet.* walks on four"):
        Quadruped.of(three)
    servos = eqx.tree_at(lambda m: m.actuators.bias, model, jnp.ones_like(model.actuators.bias))
    with pytest.raises(ValueError, match="servos; this controller needs motors"):
        Quadruped.of(servos)
    with pytest.raises(ValueError, match="cannot stand with its feet below its hips"):
        Quadruped.of(model, bend=1.2)
