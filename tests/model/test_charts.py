"""Charts: whatever z is, the parameter is valid; at the start it is what it was."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import flexor as fx
from flexor.model.charts import SMALLEST, chart, coordinates
from flexor.spatial import inertia_matrix

RNG = np.random.default_rng(0)
ROD = np.array([0.02, 0.02, 1e-9, 0, 0, 0])
TURNED = np.array([0.03, 0.05, 0.06, 0.004, -0.003, 0.002])
BODY = """
<mujoco model="two"><worldbody>
  <body name="a"><joint name="j" axis="0 1 0"/><inertial pos="0 0 -0.5" mass="1" diaginertia="0.08 0.08 0.01"/>
    <body name="b" pos="0 0 -1"><joint name="k" axis="0 1 0"/>
      <inertial pos="0 0 -0.5" mass="2" diaginertia="0.08 0.08 0.01"/></body>
  </body></worldbody></mujoco>
"""


@pytest.fixture(scope="module")
def model():
    return fx.load(BODY)


@pytest.mark.parametrize(
    ("name", "x", "bounds"),
    [
        ("body.a.mass", 0.3, None),
        ("body.a.mass", 2e-4, None),  # lighter than a thousandth of the usual size
        ("joint.a.damping", np.array([0.2, 1e-6]), None),
        ("body.a.com", np.array([0.0, 0.1, -0.2]), None),
        ("camera.offset", 0.0, None),
        ("body.a.inertia", TURNED, None),
        ("body.a.quat", np.array([0.6, 0.0, 0.8, 0.0]), None),
        ("joint.a.axis", np.array([0.0, 0.6, 0.8]), None),
        ("body.a.mass", 0.3, (0.1, 3.0)),
        ("body.a.com", np.array([0.0, 0.1, -0.2]), (-1.0, [1.0, 1.0, 0.5])),
    ],
)
def test_the_start_is_the_value(name, x, bounds):
    c = chart(name, x, bounds)
    assert len(c.start) == c.size == len(c.labels)
    np.testing.assert_allclose(c.value(jnp.asarray(c.start)), x, rtol=1e-12, atol=1e-14)
    np.testing.assert_allclose(c.first, x, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize(
    ("name", "x", "bounds"),
    [
        ("joint.a.damping", 0.0, None),
        ("body.a.mass", 0.1, (0.1, 3.0)),
        ("body.a.com", np.array([-1.0, 0.1, 0.5]), (-1.0, [1.0, 1.0, 0.5])),
        ("body.a.inertia", ROD, None),
    ],
)
def test_what_cannot_stay_where_it_is_starts_beside_it(name, x, bounds):
    c = chart(name, x, bounds)
    np.testing.assert_allclose(c.first, c.value(jnp.asarray(c.start)), rtol=1e-9)


def test_the_model_at_the_start_is_that_of_the_charts(model):
    free = ["body.b.mass", "body.*.com", "body.a.pos[1]", "joint.*.frictionloss"]
    place = coordinates(model, free, bounds={"body.b.mass": (2.0, 3.0)})
    made, wanted = place.at_start(model), place.apply(model, jnp.asarray(place.start))[0]
    for a, b in zip(jax.tree.leaves(made), jax.tree.leaves(wanted), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-12)
    assert all(j.dry_friction for j in made.topology.joints)
    assert float(place.blank(made).bodies.mass[2]) == 0.0


def test_zero_starts_at_a_small_share_of_the_usual_size():
    c = chart("joint.a.damping", 0.0)
    assert 0 < float(c.value(jnp.asarray(c.start))) <= 1.01 * SMALLEST * 0.1


def test_a_start_on_a_bound_is_moved_inside():
    c = chart("body.a.mass", 0.1, (0.1, 3.0))
    assert 0.1 < float(c.value(jnp.asarray(c.start))) < 0.1 + 2 * SMALLEST * 2.9


def test_single_precision_does_not_push_a_start_out_of_its_bounds():
    chart("body.a.mass", float(np.float32(0.3)), (0.1, 0.3))  # 0.30000001


@pytest.mark.parametrize("x", [ROD, TURNED], ids=["rod", "turned"])
def test_any_number_gives_an_inertia_that_a_body_can_have(x):
    """Triangle inequality of the principal moments, which is: the second moments S = tr(I)/2 - I are positive."""
    c = chart("body.a.inertia", x)
    I = jax.vmap(lambda z: inertia_matrix(c.value(z)))(2 * RNG.normal(size=(200, 6)))
    moments = np.linalg.eigvalsh(np.asarray(I))
    assert (moments[:, 0] > 0).all()
    # rounding of the largest moment, of which the smallest may be a part in 1e7
    assert (moments[:, 0] + moments[:, 1] - moments[:, 2] > -1e-13 * moments[:, 2]).all()


def test_pseudo_inertia_is_positive_definite_with_everything_free(model):
    """Wensing, Kim & Slotine 2018, equation 12: [[S + m c c^T, m c], [m c^T, m]]."""
    place = coordinates(model, ["body.a.mass", "body.a.com", "body.a.inertia"])
    many = jax.vmap(place.values)(RNG.normal(size=(50, place.size)))
    tensors = np.asarray(jax.vmap(inertia_matrix)(many["body.a.inertia"]))
    for m, c, I in zip(np.asarray(many["body.a.mass"]), np.asarray(many["body.a.com"]), tensors, strict=True):
        S = np.trace(I) / 2 * np.eye(3) - I
        pseudo = np.block([[S + m * np.outer(c, c), m * c[:, None]], [m * c[None], np.full((1, 1), m)]])
        assert np.linalg.eigvalsh(pseudo)[0] > 0


@pytest.mark.parametrize("name", ["body.a.mass", "joint.a.damping", "pair.a.friction", "joint.a.limit_cfm"])
def test_positive_parameters_stay_positive(name):
    c = chart(name, 0.0)
    values = np.asarray(jax.vmap(c.value)(jnp.linspace(-30, 30, 61)[:, None]))
    assert (values > 0).all()


def test_bounds_are_kept_and_never_crossed():
    c = chart("body.a.com", np.array([0.0, 0.1, -0.2]), (-1.0, [1.0, 1.0, 0.5]))
    values = np.asarray(jax.vmap(c.value)(20 * RNG.normal(size=(100, 3))))
    assert (values >= -1).all()
    assert (values <= [1.0, 1.0, 0.5]).all()


@pytest.mark.parametrize(
    ("name", "bounds"), [("body.a.mass", None), ("body.a.pos", None), ("body.a.mass", (0.1, 3.0))], ids=str
)
def test_monotone_charts_grow_each_with_its_own_number(name, bounds):
    c = chart(name, np.full(3, 0.5) if name.endswith("pos") else 0.5, bounds)
    assert c.monotone
    J = np.asarray(jax.jacfwd(c.value)(jnp.asarray(c.start))).reshape(c.size, c.size)
    assert (np.diag(J) > 0).all()
    np.testing.assert_array_equal(J - np.diag(np.diag(J)), 0)


def test_rotations_keep_their_length():
    for name, x in (("body.a.quat", np.array([0.6, 0, 0.8, 0])), ("joint.a.axis", np.array([0, 0.6, 0.8]))):
        c = chart(name, x)
        moved = np.asarray(jax.vmap(c.value)(RNG.normal(size=(20, c.size))))
        np.testing.assert_allclose(np.linalg.norm(moved, axis=1), 1.0, rtol=1e-12)


def test_coordinates_move_what_was_named_and_nothing_else(model):
    place = coordinates(model, ["body.*.mass", "body.b.com[2]", "camera.*"], extra={"camera.scale": 1.0, "other": 2.0})
    assert place.labels == ("body.a.mass", "body.b.mass", "body.b.com[2]", "camera.scale")
    moved, extra = place.apply(model, jnp.asarray(place.start + 0.1))
    before, after = fx.parameters(model), fx.parameters(moved)
    changed = {name for name in before if not np.array_equal(before[name], after[name])}
    assert changed == {"body.a.mass", "body.b.mass", "body.b.com"}
    np.testing.assert_array_equal(after["body.b.com"][:2], before["body.b.com"][:2])
    assert float(extra["camera.scale"]) == pytest.approx(1.1)
    assert float(extra["other"]) == 2.0


def test_a_number_of_an_extra_vector(model):
    place = coordinates(model, ["shift[1]"], extra={"shift": np.array([1.0, 2.0])})
    _, extra = place.apply(model, jnp.asarray([0.5]))
    np.testing.assert_allclose(extra["shift"], [1.0, 3.0])


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda m: coordinates(m, ["*.mas"]), "no parameter of 'two' matches '*.mas'"),
        (lambda m: coordinates(m, ["body.world.*"]), "no parameter of 'two' matches 'body.world.*'"),
        (lambda m: coordinates(m, ["body.a.mass"], bounds={"*.mass": (3, 1)}), "the bounds of 'body.a.mass' are empty"),
        (lambda m: coordinates(m, ["body.a.mass"], bounds={"*.mass": (2, 3)}), "'body.a.mass' starts at 1.0, outside its bounds"),
        (lambda m: coordinates(m, ["body.a.mass"], bounds={"*.mass": 3}), "must be a pair (low, high), got 3"),
        (lambda m: coordinates(m, ["body.a.mass"], bounds={"*.com": (0, 1)}), "the bounds for '*.com' match none"),
        (lambda m: coordinates(m, ["body.a.inertia"], bounds={"*.inertia": (0, 1)}), "bounds for 'body.a.inertia' are not"),
        (lambda m: coordinates(m, ["body.a.inertia[1]"]), "the numbers of 'body.a.inertia' are moved together"),
        (lambda m: coordinates(m, ["body.a.com[3]"]), "'body.a.com' has no component 3"),
        (lambda m: coordinates(m, ["body.a.com", "body.a.com[1]"]), "'body.a.com[1]' is free twice"),
        (lambda m: coordinates(m, ["*.mass"], extra={"body.a.mass": 1.0}), "which is a parameter of 'two'"),
        (lambda m: coordinates(m, ["joint.j.range"]), "'joint.j.range' is [-inf  inf] and cannot be free"),
        (lambda m: chart("body.a.inertia", np.zeros(6)), "which no body can have"),
        (lambda m: chart("body.a.mass", -1.0), "'body.a.mass' starts at -1.0, but it cannot be negative"),
    ],
)  # fmt: skip
def test_sentences(model, call, text):
    with pytest.raises((ValueError, KeyError)) as error:
        call(model)
    assert text in str(error.value.args[0])


def test_what_charts_keep_positive_is_refused_when_negative():
    """One list for both: a limit's stiffness cannot be negative in a search, nor by hand."""
    model = fx.load("quadruped")
    shapes = {name: np.shape(x) for name, x in fx.parameters(model).items() if np.size(x) == 1}
    positive = {name.rsplit(".", 1)[1]: name for name in shapes if chart(name, 0.1).positive}
    assert {"limit_stiffness", "limit_damping", "limit_cfm", "limit_baumgarte", "mass", "delay"} <= set(positive)
    for name in positive.values():
        with pytest.raises(ValueError, match=f"'{name}' must not be negative, got -1.0"):
            fx.replace(model, {name: -1.0})


def test_patterns_leave_out_the_inertia_of_what_never_moves():
    stand = BODY.replace('<body name="a">', '<body name="stand"><geom size="0.1" mass="3"/><body name="a">').replace(
        "</worldbody>", "</body></worldbody>"
    )
    two = fx.load(stand, ground=False)
    assert [c.name for c in coordinates(two, ["body.*.mass"]).charts] == ["body.a.mass", "body.b.mass"]
    assert [c.name for c in coordinates(two, ["body.stand.mass"]).charts] == ["body.stand.mass"]
    assert "body.stand.pos" in [c.name for c in coordinates(two, ["body.*.pos"]).charts]
