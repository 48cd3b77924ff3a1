"""What the data say: closed forms of linear regression, and parameters that cannot be told."""

import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

import flexor as fx
from flexor.identify.identify import _at_bounds
from flexor.identify.posterior import posterior
from tests.identify.curves import Curve

TIME = np.linspace(0, 4, 41)
LINE = {"a": (2.0, None), "b": (0.5, None)}


def line(x, d, t):
    return x["a"] + x["b"] * t


def at_minimum(problem, prior=None):
    search, state = fx.LevenbergMarquardt(), None
    from flexor.identify.identify import run_search

    state, _, _ = run_search(problem, search, 0, None, None)
    z = np.asarray(search.best(problem, state)[0])
    return posterior(problem.coordinates, z, state.normal, problem.count, ~problem.held_out, problem.noise_known, prior)


@pytest.mark.parametrize("noise_known", [True, False])
def test_a_line_has_the_textbook_covariance(noise_known):
    """sigma^2 (X^T X)^-1; x = x0 + |x0| z, so that deviations of z are relative to the start."""
    sigma = 0.1
    problem = Curve(line, LINE, {"a": 2.1, "b": 0.4}, time=TIME, sigma=sigma, noise_known=noise_known)
    after = at_minimum(problem)
    X = np.stack([np.ones_like(TIME), TIME], axis=1)
    y = np.asarray(problem.segments.measured)[0, :, 0]
    estimate, square, *_ = np.linalg.lstsq(X, y, rcond=None)
    s2 = float(square[0]) / (len(TIME) - 2)
    variance = max(sigma**2, s2) if noise_known else s2
    size = np.array([2.0, 0.5])
    # the vague prior of deviation 100 takes a part in (0.05 / 100)^2
    np.testing.assert_allclose(after.covariance * np.outer(size, size), variance * np.linalg.inv(X.T @ X), rtol=1e-5)
    reach = stats.t.ppf(0.95, 10**6 if noise_known else len(TIME) - 2)
    for i, (name, (low, high)) in enumerate(after.intervals(0.9).items()):
        half = reach * np.sqrt(variance * np.linalg.inv(X.T @ X)[i, i])
        np.testing.assert_allclose([low, high], [estimate[i] - half, estimate[i] + half], rtol=1e-5)
        assert after.deviations()[name] == pytest.approx(half / reach / size[i], rel=1e-5)
    assert after.unidentifiable == ()


def test_a_prior_adds_its_precision():
    prior = np.array([1 / 0.01**2, 0.0])
    problem = Curve(line, LINE, {"a": 2.0, "b": 0.4}, time=TIME, sigma=0.1, prior=prior)
    after = at_minimum(problem, prior)
    X = np.stack([2.0 * np.ones_like(TIME), 0.5 * TIME], axis=1)
    wanted = np.linalg.inv(X.T @ X / max(0.1**2, 0.1**2 * after.scale**2) + np.diag(prior))
    np.testing.assert_allclose(after.covariance, wanted, rtol=1e-4)


@pytest.mark.parametrize("bounds", [None, (0.1, 5.0)], ids=["free", "bounded"])
def test_a_product_that_cannot_be_told_apart_is_named(bounds):
    """y = mass * length * t: relative changes of opposite sign cost nothing, whatever the charts and where the fit ended."""
    problem = Curve(
        lambda x, d, t: x["mass"] * x["length"] * t, {"mass": (0.5, bounds), "length": (2.0, bounds)},
        {"mass": 1.0, "length": 2.0}, time=TIME,
    )  # fmt: skip
    after = at_minimum(problem)
    (combination,) = after.unidentifiable
    values = problem.coordinates.values(jnp.asarray(after.z))
    # in relative changes of the values that were found
    units = {c.name: float(np.ravel(c.unit)[0]) for c in problem.coordinates.charts}
    relative = {name: c * units[name] / float(values[name]) for name, c in combination.coefficients.items()}
    assert relative["mass"] == pytest.approx(-relative["length"], rel=1e-3)
    assert combination.deviation > 1
    assert str(combination).startswith("the data do not determine +")
    assert "mass" in str(combination)
    assert "length" in str(combination)


def test_what_cannot_be_told_is_said_in_few_words():
    """Two numbers without any influence and a product, turned into one another by the eigenvectors, come out apart."""
    names = ("mass", "length", "width", "height", "c")
    problem = Curve(
        lambda x, d, t: x["mass"] * x["length"] * t + 0 * (x["width"] + x["height"]) + x["c"],
        dict.fromkeys(names, (1.0, None)), dict.fromkeys(names, 1.2), time=TIME,
    )  # fmt: skip
    after = at_minimum(problem)
    assert sorted(tuple(sorted(c.coefficients)) for c in after.unidentifiable) == [
        ("height",),
        ("length", "mass"),
        ("width",),
    ]
    first, second = after.sentences()
    assert first in ("the data say nothing about width and height", "the data say nothing about height and width")
    assert second == str(after.unidentifiable[-1])
    assert "uncertain without limit" in second


def test_what_stands_at_zero_or_at_a_bound_is_known():
    """Its number in z is not, but the parameter is: it must not be called unidentifiable."""
    start = {"a": (1.0, (0.1, 1.5)), "j.damping": (0.0, None), "b": (0.5, None)}
    problem = Curve(
        lambda x, d, t: x["a"] + x["b"] * t - 50 * x["j.damping"] * t**2,
        start,
        {"a": 2.0, "b": 0.5, "j.damping": 0.0},
        time=TIME,
    )
    after = at_minimum(problem)
    assert after.unidentifiable == ()
    assert _at_bounds(problem.coordinates, after.z) == ["'a' ended at its upper bound: the data favour values beyond it"]


def test_ninety_per_cent_intervals_hold_the_truth_nine_times_in_ten():
    """Of 100 lines about 90 should cover b; the binomial deviation is 3, so 80 to 98 is what chance allows."""
    covered = 0
    for seed in range(100):
        rng = np.random.default_rng(seed)
        y = 2.0 + 0.5 * TIME + 0.1 * rng.normal(size=TIME.shape)
        X = np.stack([2.0 * np.ones_like(TIME), 0.5 * TIME], axis=1)
        z = np.linalg.lstsq(X, y - X @ np.ones(2), rcond=None)[0]
        r = (X @ (1 + z) - y) / 0.1
        covered += _covers(X / 0.1, r, z)
    assert 80 <= covered <= 98


def _covers(J, r, z):
    from flexor.identify.problem import Normal
    from flexor.model.charts import Coordinates, chart

    none = jnp.zeros((1, 0, 0))
    normal = Normal(0.5 * r @ r, r, J.T @ J, J.T @ r, jnp.zeros((1, 2, 0)), none, jnp.zeros((1, 0)))
    place = Coordinates((chart("a", 2.0), chart("b", 0.5)), {})
    low, high = posterior(place, z, normal, len(r), np.array([True]), False).intervals(0.9)["b"]
    return bool(low <= 0.5 <= high)


def test_levels_are_probabilities():
    problem = Curve(line, LINE, {"a": 2.1, "b": 0.4}, time=TIME)
    with pytest.raises(ValueError, match="`level` must lie between 0 and 1, got 90"):
        at_minimum(problem).intervals(90)
