"""Derivatives of forward dynamics, which come from the equation it solves: against differences of its values, in all
arguments and parameters at once, forwards, backwards and twice."""

import equinox as eqx
import jax
import jax.numpy as jnp
import mujoco
import numpy as np
import pytest

import flexor as fx
from flexor import dynamics as dyn
from flexor.dynamics import kinematics
from flexor.dynamics.crba import factor_inertia, solve_inertia
from tests.dynamics.robots import NASTY

STEP = 1e-3
TOLERANCE = 1e-9  # differences of fourth order: rounding over the step, and the step to the fourth
WHAT = ("displacement", "qd", "tau", "wrench", "extra inertia", "bodies", "joints", "gravity")
compiled = fx.simd.jit  # XLA takes a quarter of a minute for each


@pytest.fixture(scope="module")
def place(model, at):
    """Arguments of the two functions below, and a direction for each."""
    smooth = [eqx.filter(x, eqx.is_inexact_array) for x in (model.bodies, model.joints)]
    zero = jnp.zeros(model.nv)
    here = dict(zip(WHAT, (zero, at.qd, at.tau, at.wrench, jnp.abs(at.qdd), *smooth, model.gravity), strict=True))
    leaves, tree = jax.tree.flatten(here)
    rng = np.random.default_rng(5)
    # parameters change by a share of themselves, so that ranges without end stay, and inertias remain possible
    way = [jnp.where(jnp.isfinite(x), x, 0.0) * 0.05 * rng.normal(size=x.shape) for x in leaves]
    way = jax.tree.unflatten(tree, way)
    return here, way | {"displacement": jnp.asarray(0.3 * rng.normal(size=model.nv))}


def _moved(model, q, x):
    """Model and kinematics at x."""
    parts = (eqx.combine(x["bodies"], model.bodies), eqx.combine(x["joints"], model.joints), x["gravity"])
    moved = eqx.tree_at(lambda m: (m.bodies, m.joints, m.gravity), model, parts)
    return moved, dyn.forward_kinematics(moved, dyn.integrate(moved, q, x["displacement"]))


def by_aba(model, q, x):
    """qdd as a function of everything."""
    return dyn.aba(*_moved(model, q, x), x["qd"], x["tau"], x["wrench"], x["extra inertia"])


def by_factor(model, q, x):
    """The same by M and its factor."""
    moved, kin = _moved(model, q, x)
    M = dyn.crba(moved, kin) + jnp.diag(x["extra inertia"])
    force = x["tau"] - dyn.rnea(moved, kin, x["qd"], jnp.zeros(model.nv), x["wrench"])
    return solve_inertia(M, factor_inertia(M), force)


def _along(f, here, way):
    """f on a line through here."""
    return lambda t: f(jax.tree.map(lambda x, dx: x + t * dx, here, way))


def _difference(f):
    """Derivative at 0 of a function of one number: fourth order."""
    return (8 * (f(STEP) - f(-STEP)) - (f(2 * STEP) - f(-2 * STEP))) / (12 * STEP)


@pytest.mark.parametrize("solve", [by_aba, by_factor])
def test_first_and_second_derivatives_are_those_of_differences(model, at, place, solve):
    f = _along(lambda x: solve(model, at.q, x), *place)

    def slope(t):
        return jax.jvp(f, (t,), (jnp.ones(()),))[1]

    wanted, found = _difference(compiled(f)), compiled(slope)
    np.testing.assert_allclose(found(0.0), wanted, rtol=0, atol=TOLERANCE * float(jnp.abs(wanted).max()))
    wanted = _difference(found)
    curve = compiled(lambda t: jax.jvp(slope, (t,), (jnp.ones(()),))[1])(0.0)
    np.testing.assert_allclose(curve, wanted, rtol=0, atol=TOLERANCE * float(jnp.abs(wanted).max()))


@pytest.mark.parametrize("solve", [by_aba, by_factor])
def test_backwards_is_the_transpose_of_forwards(model, at, place, solve):
    here, way = place
    force = jnp.asarray(np.random.default_rng(1).normal(size=model.nv))

    @compiled
    def both(here, way):
        _, pull = jax.vjp(lambda x: solve(model, at.q, x), here)
        pairs = jax.tree.map(lambda a, b: jnp.sum(a * b), pull(force)[0], way)
        return jax.tree.reduce(jnp.add, pairs), force @ jax.jvp(lambda x: solve(model, at.q, x), (here,), (way,))[1]

    backwards, forwards = both(here, way)
    np.testing.assert_allclose(backwards, forwards, rtol=1e-9)


@pytest.mark.parametrize("moving", ["q", "geometry", "both"])
def test_derivatives_of_kinematics_are_those_of_its_formulas(model, at, moving):
    """The rule of the moving tree against JAX's derivative of the products of rotations; quaternions are not of unit length."""
    rng = np.random.default_rng(3)
    given = kinematics._geometry(model)
    way = jax.tree.map(lambda x: jnp.asarray(rng.normal(size=x.shape)), (at.q, given))
    dq, dgeometry = way if moving == "both" else (way[0], None) if moving == "q" else (None, way[1])

    def along(f, t):
        q = at.q * 1.1 if dq is None else at.q * 1.1 + t * dq
        moved = model if dgeometry is None else eqx.tree_at(
            kinematics._geometry, model, jax.tree.map(lambda x, dx: x + t * dx, given, dgeometry))  # fmt: skip
        return f(moved, q)

    def slope(f):
        return jax.jit(lambda t: jax.jvp(lambda t: along(f, t), (t,), (jnp.ones(()),))[1])(0.0)

    both = [jax.tree.leaves(slope(f)) for f in (dyn.forward_kinematics, kinematics._kinematics.fun)]
    for found, wanted in zip(*both, strict=True):
        # sums of some dozens of products along the tree
        np.testing.assert_allclose(found, wanted, rtol=0, atol=1e3 * np.finfo(float).eps * float(jnp.abs(wanted).max()))


def test_what_is_welded_costs_nothing(model):
    """Kernels of a robot with welded bodies do as much as those of the same robot that MuJoCo has fused."""
    spec = mujoco.MjSpec.from_string(NASTY)
    spec.compiler.fusestatic = True
    fused = fx.load(spec.compile())
    assert len(fused.topology.bodies) < len(model.topology.bodies)

    def operations(model):
        def accelerations(q, qd):
            return dyn.aba(model, dyn.forward_kinematics(model, q), qd, 0 * qd)

        return sum(fx.simd.inspect(accelerations, model.reference, jnp.zeros(model.nv)).operations.values())

    # offsets of joints add up one by one where bodies are not fused
    assert operations(model) < 1.05 * operations(fused)
