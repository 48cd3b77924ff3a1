"""What a network reads and writes, with numbers worked out by hand."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import flexor as fx
from flexor.augment import input_groups, input_weights, map_input_weights
from flexor.augment.layout import contact_names
from flexor.contact.detect import candidates
from tests.augment.scenes import BALLS, BIPED, ask, augmented, numbers, randomised, simulator

LINEAR = fx.nets.MLP(depth=0)
Q, QD = np.array([0.3, -0.7]), np.array([1.1, -0.4])


@pytest.fixture(scope="module")
def pendulum():
    return simulator("double_pendulum")


@pytest.fixture(scope="module")
def joints(pendulum):
    return [j.name for j in pendulum.model.topology.joints]


def layer(hybrid, entry=0, group=0):
    linear = hybrid.solver.augmentation.networks[entry][group].layers[0]
    return np.asarray(linear.weight), np.asarray(linear.bias)


def test_whole(pendulum):
    """One matrix; angles of hinges without limits as sine and cosine; inputs divided, the result multiplied by its scale."""
    hybrid = augmented(
        pendulum,
        "joint.passive_force",
        ["joint.q", "joint.qd"],
        LINEAR,
        scales={"joint.qd": 5.0, "joint.passive_force": 0.1},
    )
    w, b = layer(randomised(hybrid, 1))
    assert w.shape == (1, 2, 6)
    found = ask(randomised(hybrid, 1), joint_q=Q, joint_qd=QD, joint_passive_force=[2.0, 3.0])
    x = np.array([np.sin(Q[0]), np.cos(Q[0]), np.sin(Q[1]), np.cos(Q[1]), *QD / 5])
    np.testing.assert_allclose(found, [2, 3] + 0.1 * (w[0] @ x + b[0]), rtol=1e-14)


def test_each_and_shared(pendulum, joints):
    """Own values of the own joint, one matrix for each or one for all; a selection is given whole to everyone."""
    options = {"output": "joint.passive_force", "inputs": ["joint.qd", f"joint.qd[{joints[0]}]"], "net": LINEAR}
    each = randomised(augmented(pendulum, **options, over=fx.Each()), 2)
    w, b = layer(each)
    assert w.shape == (2, 1, 2)
    found = ask(each, joint_qd=QD, joint_passive_force=[0.0, 0.0])
    np.testing.assert_allclose(found, [w[k, 0] @ [QD[k], QD[0]] + b[k, 0] for k in range(2)], rtol=1e-14)
    shared = randomised(augmented(pendulum, **options, over=fx.Shared()), 3)
    w, b = layer(shared)
    assert w.shape == (1, 1, 2)
    found = ask(shared, joint_qd=QD, joint_passive_force=[0.0, 0.0])
    np.testing.assert_allclose(found, [w[0, 0] @ [QD[k], QD[0]] + b[0, 0] for k in range(2)], rtol=1e-14)


def test_modes(pendulum):
    value = np.array([2.0, 3.0])
    results = {}
    for mode in (fx.Add(), fx.Scale(), fx.Replace()):
        fresh = augmented(pendulum, "joint.passive_force", ["joint.qd"], LINEAR, mode=mode)
        before = ask(fresh, joint_qd=QD, joint_passive_force=value)
        assert np.array_equal(before, value) == mode.fresh
        w, b = layer(randomised(fresh, 4))
        results[type(mode)] = ask(randomised(fresh, 4), joint_qd=QD, joint_passive_force=value), w[0] @ QD + b[0]
    for kind, law in ((fx.Add, lambda y: value + y), (fx.Scale, lambda y: value * (1 + y)), (fx.Replace, lambda y: y)):
        found, y = results[kind]
        np.testing.assert_allclose(found, law(y), rtol=1e-14)


def test_a_selected_output_leaves_the_others_alone(pendulum, joints):
    hybrid = randomised(augmented(pendulum, f"joint.passive_force[{joints[1]}]", ["joint.passive_force"], LINEAR), 5)
    w, b = layer(hybrid)
    found = ask(hybrid, joint_passive_force=[2.0, 3.0])
    np.testing.assert_allclose(found, [2.0, 3.0 + w[0, 0] @ [2.0, 3.0] + b[0, 0]], rtol=1e-14)


def test_coordinates_of_every_kind():
    """Positions as they are, rotations as matrices; a free joint's parts can be selected."""
    sim = simulator(BALLS)
    q = numbers(6, 12)
    R = [np.asarray(fx.spatial.quat_to_matrix(jnp.asarray(q[k : k + 4]))).ravel() for k in (3, 7)]
    layout = augmented(sim, "joint.passive_force", ["joint.q"], LINEAR).solver.augmentation.layout
    expected = {
        "root.x": q[:1],
        "root.z": q[2:3],
        "root.rotation": R[0],
        "root": [*q[:3], *R[0]],
        "ball": R[1],
        "slide": q[11:],
    }
    for selection, x in expected.items():
        hybrid = randomised(augmented(sim, "joint.passive_force[slide]", [f"joint.q[{selection}]"], LINEAR), 7)
        w, b = layer(hybrid)
        found = ask(hybrid, joint_q=q, joint_passive_force=np.zeros(10))
        np.testing.assert_allclose(found[-1], w[0, 0] @ x + b[0, 0], rtol=1e-13, err_msg=selection)
    each = augmented(sim, "joint.passive_force", ["joint.q", "joint.qd"], LINEAR, over=fx.Each())
    assert [n.layers[0].weight.shape for n in each.solver.augmentation.networks[0]] == [(6, 1, 13), (3, 1, 10), (1, 1, 2)]
    assert layout.robot == "balls"


def test_bodies_and_contacts_are_rows():
    sim = simulator("cube", fx.RigidSolver(contact=fx.Penalty()))
    drag = randomised(augmented(sim, "link.external_force", ["link.velocity"], LINEAR, over=fx.Each()), 8)
    w, b = layer(drag)
    velocity = numbers(9, 2, 6)
    found = ask(drag, link_velocity=velocity, link_external_force=np.zeros((2, 6)))
    np.testing.assert_allclose(found, [np.zeros(6), w[0] @ velocity[1] + b[0]], rtol=1e-13)
    inputs = ["contact.depth", "contact.normal", "joint.qd[root.vx]"]
    ground = randomised(augmented(sim, "contact.friction_force", inputs, LINEAR, over=fx.Shared()), 10)
    w, b = layer(ground)
    depth, normal, qd, normal_force = numbers(11, 8), numbers(12, 8, 3), numbers(13, 6), np.arange(8) - 3.0
    found = ask(
        ground, joint_qd=qd, contact_depth=depth, contact_normal=normal, contact_normal_force=normal_force,
        contact_friction_force=np.ones((8, 2)),
    )  # fmt: skip
    result = [w[0] @ [depth[k], *normal[k], qd[0]] + b[0] if normal_force[k] > 0 else np.zeros(2) for k in range(8)]
    np.testing.assert_allclose(found, 1 + np.array(result), rtol=1e-13)  # nothing where bodies do not touch


@pytest.mark.parametrize("robot", ["cube", "ant", "pusher"])
def test_contacts_are_named_in_the_order_of_detection(robot):
    model = fx.load(robot)
    kin = fx.dynamics.forward_kinematics
    found = jax.jit(lambda m: fx.contact.detect(m, kin(m, m.reference)))(model)
    assert candidates(model.topology) == tuple(found.pair.tolist())
    assert len(contact_names(model.topology)) == len(set(contact_names(model.topology))) == len(found)


def test_patterns_stand_for_what_is_computed_before(pendulum):
    hybrid = augmented(pendulum, "joint.passive_force", ["joint.*"], LINEAR)
    assert hybrid.solver.augmentation.wires[0].inputs == ("joint.q", "joint.qd", "joint.applied_force")
    several = fx.Blueprint().add("joint.passive_force", inputs=["joint.qd"], net=LINEAR)
    several.add("joint.bias_force", inputs=["joint.passive_force"], net=LINEAR)
    both = randomised(pendulum.augment(several), 14)
    (w, b), (w2, b2) = layer(both), layer(both, 1)
    passive = w[0] @ QD + b[0]
    found = ask(both, joint_qd=QD, joint_passive_force=[0.0, 0.0], joint_bias_force=[1.0, 1.0])
    np.testing.assert_allclose(found, 1 + w2[0] @ passive + b2[0], rtol=1e-13)  # the second sees what the first has made


def test_input_weights(pendulum, joints):
    """First-layer weights by the quantity they multiply, for every network; and a map over them."""
    a, b = joints
    net = fx.nets.MLP(width=3, depth=1)
    whole = augmented(pendulum, "joint.passive_force", ["joint.q", "joint.qd"], net).solver.augmentation
    weights = input_weights(whole)["joint.passive_force"]
    first = whole.networks[0][0].layers[0].weight[0]
    assert list(weights) == [f"joint.q[{a}]", f"joint.q[{b}]", f"joint.qd[{a}]", f"joint.qd[{b}]"]
    np.testing.assert_array_equal(weights[f"joint.q[{b}]"], first[:, [2, 3]])
    np.testing.assert_array_equal(weights[f"joint.qd[{a}]"], first[:, [4]])
    for kind, inner in ((fx.nets.Dissipative, "joint.q"), (fx.nets.Conservative, "joint.q")):
        each = augmented(
            pendulum, "joint.passive_force", [inner], kind(width=3, depth=1), over=fx.Each()
        ).solver.augmentation
        weights = input_weights(each)
        assert {n: list(w) for n, w in weights.items()} == {f"joint.passive_force[{j}]": [f"joint.q[{j}]"] for j in joints}
        np.testing.assert_array_equal(
            weights[f"joint.passive_force[{b}]"][f"joint.q[{b}]"], each.networks[0][0].inner.layers[0].weight[1]
        )
    shared = augmented(pendulum, "joint.passive_force", ["joint.q", "joint.qd"], net, over=fx.Shared()).solver.augmentation
    assert list(input_weights(shared)["joint.passive_force"]) == ["joint.q", "joint.qd"]
    assert len(input_groups(whole)) == 4

    def prune(w):
        return jnp.where(jnp.abs(w).sum() > 2.0, w, 0.0)

    pruned = jax.jit(lambda x: map_input_weights(prune, x))(whole)
    before, after = input_weights(whole)["joint.passive_force"], input_weights(pruned)["joint.passive_force"]
    for name in before:
        np.testing.assert_array_equal(after[name], prune(before[name]))
    np.testing.assert_array_equal(pruned.networks[0][0].layers[1].weight, whole.networks[0][0].layers[1].weight)


@pytest.mark.parametrize("activation", fx.nets.ACTIVATIONS)
def test_activations(activation):
    draw = fx.nets.Draw(numbers(14, 3 * 5 + 5 + 5 * 5 + 5 + 5 * 2 + 2))
    stack = fx.nets.MLP(width=5, depth=2, activation=activation).build(1, 3, 2, draw, False)
    net = jax.tree.map(lambda x: jnp.asarray(x[0], jnp.float32), stack)
    x = jnp.asarray(numbers(15, 3), jnp.float32)
    laws = {
        "tanh": np.tanh,
        "sin": np.sin,
        "relu": lambda x: np.maximum(x, 0),
        "elu": lambda x: np.where(x > 0, x, np.expm1(x)),
        "softplus": lambda x: np.log1p(np.exp(x)),
        "silu": lambda x: x / (1 + np.exp(-x)),
        "sigmoid": lambda x: 1 / (1 + np.exp(-x)),
    }
    y = np.asarray(x, np.float64)
    for k, linear in enumerate(net.layers):
        y = np.asarray(linear.weight, np.float64) @ y + np.asarray(linear.bias)
        y = laws[activation](y) if k < 2 else y
    assert net(x).dtype == jnp.float32
    np.testing.assert_allclose(net(x), y, rtol=1e-5, atol=1e-6)  # a dozen roundings of numbers near one


def test_biped_is_wired_by_kind():
    """Elements whose inputs differ in number have networks of their own size."""
    each = augmented(simulator(BIPED), "joint.passive_force", ["joint.q"], LINEAR, over=fx.Each()).solver.augmentation
    assert [len(g.labels) for g in each.wires[0].groups] == [3, 3]
    assert [g.take.shape for g in each.wires[0].groups] == [(3, 1), (3, 2)]
    hybrid = randomised(augmented(simulator(BIPED), "joint.passive_force", ["joint.q"], LINEAR, over=fx.Each()), 16)
    q = numbers(17, 6)
    (w1, b1), (w2, b2) = layer(hybrid), layer(hybrid, group=1)
    names = [j.name for j in hybrid.model.topology.joints]
    found = dict(zip(names, np.asarray(ask(hybrid, joint_q=q, joint_passive_force=np.zeros(6))), strict=True))
    at = dict(zip(names, q, strict=True))
    for k, name in enumerate(n for n in names if n in ("lift", "hip_l", "hip_r")):
        np.testing.assert_allclose(found[name], w1[k, 0, 0] * at[name] + b1[k, 0], rtol=1e-13)
    for k, name in enumerate(n for n in names if n in ("knee_l", "knee_r", "tail")):
        x = [np.sin(at[name]), np.cos(at[name])]
        np.testing.assert_allclose(found[name], w2[k, 0] @ x + b2[k, 0], rtol=1e-13)
