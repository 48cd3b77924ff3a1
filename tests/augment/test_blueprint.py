"""What a blueprint refuses, and in which words."""

import pytest

import flexor as fx
from tests.augment.scenes import BALLS, BIPED, augmented, simulator

MLP = fx.nets.MLP(width=4, depth=1)


@pytest.fixture(scope="module")
def pendulum():
    return simulator("double_pendulum")


@pytest.fixture(scope="module")
def biped():
    return simulator(BIPED)


@pytest.fixture(scope="module")
def balls():
    return simulator(BALLS)


def refuse(error, text, output, inputs, net=MLP, **options):
    with pytest.raises(error, match=text):
        fx.Blueprint().add(output, inputs=inputs, net=net, **options)


def test_entries_are_checked_when_they_are_added():
    refuse(
        KeyError,
        "'joint.torque' is not a tap, so it cannot be augmented; the names are joint.q",
        "joint.torque",
        ["joint.q"],
    )
    refuse(ValueError, "'joint.q' cannot be augmented: positions are moved by velocities", "joint.q", ["joint.qd"])
    refuse(ValueError, "'link.velocity' cannot be augmented: it is read-only", "link.velocity", ["joint.qd"])
    refuse(ValueError, "the network of 'joint.qd' needs at least one input", "joint.qd", [])
    refuse(TypeError, "must be a list of names, got the string 'joint.q'", "joint.qd", "joint.q")
    refuse(TypeError, r"`mode` of 'joint.qd' must be an object such as fx.Add\(\)", "joint.qd", ["joint.q"], mode="add")
    refuse(TypeError, r"`over` of 'joint.qd' must be an object such as fx.Whole\(\)", "joint.qd", ["joint.q"], over=fx.Each)
    refuse(TypeError, r"`net` of 'joint.qd' must be an object such as fx.nets.MLP\(\)", "joint.qd", ["joint.q"], net="mlp")
    wrong = {"joint.speed": 2.0}
    refuse(KeyError, "names 'joint.speed', which is neither its output nor an input", "joint.qd", ["joint.q"], scales=wrong)
    refuse(ValueError, "scale of 'joint.q' must be a positive", "joint.qd", ["joint.q"], scales={"joint.q": 0})
    blueprint = fx.Blueprint()
    assert blueprint.add("joint.qd", inputs=["joint.q"], net=MLP) is blueprint
    with pytest.raises(ValueError, match=r"the blueprint has a network for 'joint.qd' already"):
        blueprint.add("joint.qd", inputs=["joint.q"], net=MLP)


def test_networks_are_checked_when_they_are_described():
    with pytest.raises(ValueError, match=r"MLP has no activation 'cube'; there are tanh, relu"):
        fx.nets.MLP(activation="cube")
    with pytest.raises(ValueError, match=r"Dissipative needs a `width` of at least 1"):
        fx.nets.Dissipative(width=0)
    with pytest.raises(ValueError, match=r"Symmetric takes an MLP or a Dissipative as `of`, got Conservative"):
        fx.nets.Symmetric(of=fx.nets.Conservative())
    with pytest.raises(ValueError, match=r"are pairs of joint names such as"):
        fx.nets.Symmetric(pairs=["hip_l", "hip_r"])


def test_guarantees_ask_for_outputs_that_can_hold_them():
    dissipative, conservative = fx.nets.Dissipative(), fx.nets.Conservative()
    need = "needs a force with a velocity on which it does work; 'joint.acceleration' has none"
    refuse(ValueError, need, "joint.acceleration", ["joint.q"], dissipative)
    refuse(ValueError, "contacts come and go", "contact.normal_force", ["contact.depth"], dissipative)
    only = r"so 'joint.passive_force' needs mode=Add\(\), not Scale\(\)"
    refuse(ValueError, only, "joint.passive_force", ["joint.q"], dissipative, mode=fx.Scale())
    refuse(
        ValueError,
        r"needs mode=Add\(\), not Replace\(\)",
        "joint.passive_force",
        ["joint.q"],
        conservative,
        mode=fx.Replace(),
    )
    refuse(
        ValueError,
        "needs a joint force, which 'contact.normal_force' is not",
        "contact.normal_force",
        ["joint.q"],
        conservative,
    )
    alone = "Conservative reads only 'joint.q', not 'joint.qd'"
    refuse(ValueError, alone, "joint.passive_force", ["joint.q", "joint.qd"], conservative)


def test_an_input_must_be_computed_before_its_output(pendulum):
    later = r"input 'joint.acceleration' is computed later than 'joint.passive_force', so it cannot be read there"
    with pytest.raises(ValueError, match=later):
        augmented(pendulum, "joint.passive_force", ["joint.q", "joint.acceleration"], MLP)
    with pytest.raises(
        ValueError, match=r"input 'contact.depth\[\*\]' of 'joint.passive_force' is not computed by this solver"
    ):
        augmented(pendulum, "joint.passive_force", ["contact.depth[*]"], MLP)
    with pytest.raises(ValueError, match=r"'contact.normal_force' is not computed by this solver for 'double_pendulum', so"):
        augmented(pendulum, "contact.normal_force", ["joint.q"], MLP)
    with pytest.raises(ValueError, match=r"nothing that matches 'contact.\*' is computed before 'joint.passive_force'"):
        augmented(pendulum, "joint.passive_force", ["contact.*"], MLP)


def test_selections_must_hit_and_not_overlap(pendulum):
    with pytest.raises(
        ValueError, match=r"'joint.qd\[elbw\]' matches nothing in 'double_pendulum'; 'joint.qd' has \w+, \w+\."
    ):
        augmented(pendulum, "joint.passive_force", ["joint.qd[elbw]"], MLP)
    blueprint = fx.Blueprint()
    for output in ("joint.passive_force", "joint.passive_force[*]"):
        blueprint.add(output, inputs=["joint.q"], net=MLP)
    with pytest.raises(ValueError, match=r"write to the same elements of 'joint.passive_force'; give each element to one"):
        pendulum.augment(blueprint)
    with pytest.raises(ValueError, match=r"the blueprint is empty"):
        pendulum.augment(fx.Blueprint())


def test_a_solver_without_names_cannot_be_augmented(pendulum):
    with pytest.raises(ValueError, match=r"MujocoSolver computes no named quantities"):
        augmented(pendulum.with_solver(fx.MujocoSolver()), "joint.passive_force", ["joint.q"], MLP)


def test_shared_weights_need_equal_inputs(biped):
    text = r"Shared\(\) needs the same inputs for every element, but those of .*\[lift\] and .* have 1 and 2 features"
    with pytest.raises(ValueError, match=text):
        augmented(biped, "joint.passive_force", ["joint.q"], MLP, over=fx.Shared())
    augmented(biped, "joint.passive_force[knee_*]", ["joint.q"], MLP, over=fx.Shared())


def test_a_potential_reaches_all_that_it_depends_on(biped, balls):
    net = fx.nets.Conservative(width=4, depth=1)
    with pytest.raises(
        ValueError, match=r"depends on 'joint.q\[hip_r\]', but 'joint.passive_force\[hip_l\]' has no force there"
    ):
        augmented(biped, "joint.passive_force[hip_l]", ["joint.q[hip_*]"], net)
    with pytest.raises(ValueError, match=r"reads the joint's own 'joint.q', not 'joint.q\[\*\]'"):
        augmented(biped, "joint.passive_force", ["joint.q[*]"], net, over=fx.Each())
    with pytest.raises(ValueError, match=r"is one of several directions of its joint, so its force alone is no gradient"):
        augmented(balls, "joint.passive_force[ball]", ["joint.q"], net, over=fx.Each())


def test_mirrors_are_checked(biped, balls):
    def refuse(text, sim=biped, output="joint.passive_force", inputs=("joint.q",), over=fx.Whole(), **mirror):  # noqa: B008
        with pytest.raises(ValueError, match=text):
            augmented(sim, output, list(inputs), fx.nets.Symmetric(of=MLP, **mirror), over=over)

    refuse("pairs 'hip_x', but 'biped' has no such joint; it has lift, hip_l", pairs=[("hip_l", "hip_x")])
    refuse("pairs 'hip_l' twice", pairs=[("hip_l", "hip_r"), ("hip_l", "knee_r")])
    refuse("both must be hinges or both slides, with limits or without", pairs=[("hip_l", "knee_l")])
    refuse("flips 'wing', but 'biped' has no such joint", flip=["wing"])
    mirror = {"pairs": [("hip_l", "hip_r")]}
    refuse(
        r"has 'joint.passive_force\[hip_l\]' but not its mirror image 'hip_r'", output="joint.passive_force[hip_l]", **mirror
    )
    refuse("works only with 'joint.*', not with 'link.velocity'", inputs=["link.velocity"], **mirror)
    refuse(
        r"'joint.q\[root.x\]' belongs to neither, so leave it out",
        sim=balls,
        output="joint.passive_force[slide]",
        flip="slide",
    )
    refuse(r"'joint.passive_force\[root.vx\]' belongs to neither", sim=balls, inputs=["joint.q[slide]"], flip="slide")
