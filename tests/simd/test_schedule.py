"""The order of a kernel's instructions."""

import jax
import jax.numpy as jnp
import pytest

from flexor.simd import emit
from flexor.simd.compiler import Signature, build
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
