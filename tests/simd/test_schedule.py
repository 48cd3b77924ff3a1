"""The order of a kernel's instructions."""

import jax
import jax.numpy as jnp
import pytest

import flexor as fx
from flexor.simd import emit, machine
from flexor.simd.compiler import Signature, _lanes, build
from flexor.simd.program import F32, F64
from flexor.simd.schedule import schedule, weights


def two_chains(x):
    """Forces b that rest on inertias a, link by link, and the last inertia asked for first."""
    a, b = x[0], x[1]
    for _ in range(40):
        a = a * x[0] - x[1]
        b = b * a + x[1]
    return a / b


@pytest.fixture
def program():
    jaxpr = jax.make_jaxpr(two_chains)(jnp.ones(2, jnp.float32))
    p, inputs, outputs = build(jaxpr, Signature((False,), (False,), False))
    return p, inputs, outputs, schedule(p, [o.buffer for o in outputs])


def test_what_rests_on_more_weighs_more(program):
    p, *_ = program
    found = weights(p, list(range(len(p.op))))
    for n, args in enumerate(p.args):
        if p.op[n] in ("mul", "fma", "sub", "fms", "fnma", "div"):
            assert all(found[n] > found[a] or p.op[a] == "const" for a in args)


def test_few_values_wait_at_a_time(program, monkeypatch):
    p, inputs, outputs, plan = program
    order = []
    made = emit._Emitter.instruction
    monkeypatch.setattr(emit._Emitter, "instruction", lambda self, n: order.append(n) or made(self, n))
    emit.emit(p, plan, 8, inputs, outputs)
    last = {a: k for k, n in enumerate(order) if p.op[n] != "load" for a in p.args[n]}
    waiting = [sum(1 for n in order[: k + 1] if last.get(n, 0) > k) for k in range(len(order))]
    assert len(order) > 80
    assert max(waiting) <= 5  # x, a and b, and one in the making; all of a before any of b would be forty


def planned(f, *args):
    jaxpr = jax.make_jaxpr(f)(*args)
    p, _, outputs = build(jaxpr, Signature((False,) * len(args), (False,) * len(jaxpr.out_avals), False))
    return p, schedule(p, [o.buffer for o in outputs])


def long(x):
    """More than a branch that is computed rather than jumped over."""
    for k in range(40):
        x = jnp.sin(x) + k
    return x


@pytest.mark.parametrize("outside", [False, True])
def test_a_result_that_is_read_under_the_same_mask_alone_is_not_set_elsewhere(outside):
    def f(x):
        first = jax.lax.cond(x > 0, long, lambda x: x + 1, x)
        second = jax.lax.cond(x > 0, lambda y: long(y * x), lambda y: x, first)
        return (second, first) if outside else second

    x = jnp.linspace(-1, 1, 40, dtype=jnp.float32)
    p, plan = planned(f, x[0])
    branches = [p.args[n][0] for n, op in enumerate(p.op) if op == "after"]
    assert len(branches) == 2
    assert len(plan.unread) == (0 if outside else 1)
    # not even a block without any lane that wants the branch, nor one where some do, changes a value
    for rows in (x, x[x < 0], x[x > 0]):
        for a, b in zip(jax.tree.leaves(fx.simd.vmap(f)(rows)), jax.tree.leaves(jax.vmap(f)(rows)), strict=True):
            assert jnp.allclose(a, b, rtol=1e-5, atol=1e-5)


def test_vectors_are_filled_with_the_type_that_is_used_most():
    single, double = jnp.ones(3, jnp.float32), jnp.ones(3)

    def mixed(x):
        """sin and cos of single precision reduce their argument in double precision."""
        return long(x).sum() + jnp.float64(2.0).astype(jnp.float32)

    assert _lanes(*planned(mixed, single)) == machine.lanes_for(F32)
    assert _lanes(*planned(lambda x: x @ x, double)) == machine.lanes_for(F64)
