"""A digest of a jaxpr that is the same in every process: the key under which its object code is kept."""

import hashlib
from typing import Any

import numpy as np

IGNORED = {"name", "jvp_jaxpr_fun", "jvp_jaxpr_thunk", "fwd_jaxpr_thunk", "bwd", "linear", "sharding", "out_sharding",
           "in_shardings", "out_shardings", "in_layouts", "out_layouts", "donated_invars", "ctx_mesh", "keep_unused", "inline",
           "compiler_options_kvs", "prevent_cse", "differentiated", "policy", "symbolic_zeros", "num_consts_fwd",
           "optimize_remat"}  # fmt: skip


def fingerprint(jaxpr: Any) -> str:
    """Digest of equations, parameters, types and constants; names and places in the source do not count."""
    digest = hashlib.sha256()
    _closed(digest, jaxpr)
    return digest.hexdigest()


def _closed(digest: Any, jaxpr: Any) -> None:
    for c in getattr(jaxpr, "consts", ()):
        _constant(digest, c)
    _open(digest, getattr(jaxpr, "jaxpr", jaxpr))


def _constant(digest: Any, value: Any) -> None:
    value = np.asarray(value)
    digest.update(f"{value.dtype}{value.shape}".encode())
    digest.update(np.ascontiguousarray(value).tobytes())


def _open(digest: Any, jaxpr: Any) -> None:
    number: dict[Any, int] = {}

    def name(v: Any) -> str:
        if hasattr(v, "val"):
            _constant(digest, v.val)
            return f"lit{v.aval.dtype}{v.aval.shape}"
        return f"v{number.setdefault(v, len(number))}"

    lines = [f"{name(v)}:{v.aval.dtype}{v.aval.shape}" for v in (*jaxpr.constvars, *jaxpr.invars)]
    for eqn in jaxpr.eqns:
        given = ",".join(name(v) for v in eqn.invars)
        made = ",".join(f"{name(v)}:{v.aval.dtype}{v.aval.shape}" for v in eqn.outvars)
        lines.append(f"{made}={eqn.primitive.name}({given})")
        for key in sorted(eqn.params):
            if key not in IGNORED:
                lines.append(key)
                digest.update("\n".join(lines).encode())
                lines = []
                _parameter(digest, eqn.params[key])
    lines.append(",".join(name(v) for v in jaxpr.outvars))
    digest.update("\n".join(lines).encode())


def _parameter(digest: Any, value: Any) -> None:
    if hasattr(value, "eqns") or hasattr(value, "jaxpr"):
        _closed(digest, value)
    elif isinstance(value, tuple | list):
        digest.update(f"({len(value)}".encode())
        for x in value:
            _parameter(digest, x)
    elif isinstance(value, np.ndarray):
        _constant(digest, value)
    elif not callable(value) or isinstance(value, type):
        digest.update(repr(value).encode())
