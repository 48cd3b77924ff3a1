"""Two contact models at once: penalty forces for the pairs of a pattern, impulses of the NCP for all others.

The soft pairs act as forces f_s before the impulses are solved: u0 = qd + h A^-1 (f + J_s^T f_s), then u = u0 + A^-1 J^T x with
the laws of `ncp.py` for the rest; A = M, or A = M + h D where the friction of the soft pairs is `implicit`. It is then taken at
the end of the step as far as it opposes the slip v: it acts as -c v with c = |f_t| / |v|, and D = sum_s J_t^T c J_t brings in
the change of v (a linearly implicit step with the secant in place of the tangent; Vogel & Oman 1996 call it lagged
diffusivity). Forces are unchanged where the motion is steady, and the step may be long: explicit friction asks for
h < 2 m / slope (see `friction.py`), which in slow sliding is a small part of a millisecond.
"""

from collections.abc import Callable
from fnmatch import fnmatchcase
from typing import ClassVar, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from flexor.contact.contacts import Contacts, contact_jacobian, tapped
from flexor.contact.ncp import NCP, Impulses
from flexor.contact.penalty import Penalty
from flexor.dynamics import Kinematics
from flexor.model.model import Model
from flexor.spatial import matvec
from flexor.taps import tap


class Soft(NamedTuple):
    """What the soft pairs bring to a step: generalised force, damping matrix (zero if explicit); and for every candidate its
    velocity, as listeners left it, and the forces that they have not heard yet."""

    force: Float[Array, " nv"]
    damping: Float[Array, "nv nv"]
    velocity: Float[Array, "ncon 3"]
    forces: Float[Array, "ncon 3"]


class Mixed(eqx.Module):
    """`penalty` for pairs whose name matches `soft` (shell pattern, e.g. `floor~*`), `ncp` for the others and for the joints.

    `implicit` takes the soft pairs' friction at the end of the step, stable at any step length. Taps of `contact.*` keep a row
    for every candidate. The forces are tapped twice in a step: before the NCP, with its rows zero, where a listener changes the
    soft forces, and after it, where a listener changes the NCP's; both times the soft rows have the same value.
    """

    ncp: NCP = NCP()
    penalty: Penalty = Penalty()
    soft: str = eqx.field(static=True, default="floor~*")
    implicit: bool = eqx.field(static=True, default=True)
    impulsive: ClassVar[bool] = True

    def check(self, model: Model) -> None:
        """Raises when the pattern matches no pair."""
        names = [p.name for p in model.topology.pairs]
        if not any(fnmatchcase(n, self.soft) for n in names):
            known = ", ".join(names[:8]) + (", …" if len(names) > 8 else "")
            raise ValueError(
                f"Mixed(soft='{self.soft}') matches no pair of '{model.topology.name}'; it has {known or 'none'}."
            )

    def init(self, model: Model, contacts: Contacts) -> Impulses:
        """No impulses yet, for the rows of the NCP."""
        _, rows = self._rows(model, contacts)
        return self.ncp.init(model, eqx.filter_eval_shape(lambda c: _take(c, rows), contacts))

    def _rows(self, model: Model, contacts: Contacts) -> tuple[np.ndarray, np.ndarray]:
        """Candidates of the soft pairs, and the others."""
        pairs = model.topology.pairs
        soft = np.array([fnmatchcase(pairs[p].name, self.soft) for p in contacts.pair], dtype=bool)
        return np.flatnonzero(soft), np.flatnonzero(~soft)

    def soft_forces(
        self, model: Model, kin: Kinematics, contacts: Contacts, qd: Float[Array, " nv"]
    ) -> tuple[Contacts, Soft]:
        """The contacts as listeners may have changed them, and the forces of the soft pairs."""
        contacts, depth = tapped(model, kin, contacts)
        rows, _ = self._rows(model, contacts)
        own = _take(contacts, rows)
        J = contact_jacobian(model, kin, contacts)
        all_velocity = tap("contact.relative_velocity", matvec(J, qd))
        velocity = all_velocity[rows]
        zero = jnp.zeros(len(contacts), qd.dtype)
        fn_raw = zero.at[rows].set(self.penalty.normal_force(own, depth[rows], -velocity[:, 0]))
        fn = tap("contact.normal_force", fn_raw)[rows]
        drag = self.penalty.friction.drag(own.friction, fn, velocity[:, 1:])
        law = -drag[:, None] * velocity[:, 1:]
        ft_raw = jnp.zeros((len(contacts), 2), qd.dtype).at[rows].set(law)
        ft = tap("contact.friction_force", ft_raw)[rows]
        force = jnp.einsum("ck,ckd->d", jnp.concatenate([fn[:, None], ft], axis=1), J[rows])
        none = jnp.zeros((len(qd), len(qd)), qd.dtype)
        damping = _secant(drag, law, ft, J[rows, 1:]) if self.implicit else none
        return contacts, Soft(force, damping, all_velocity, jnp.concatenate([fn_raw[:, None], ft_raw], axis=1))

    def resolve(
        self,
        soft: Soft,
        model: Model,
        kin: Kinematics,
        contacts: Contacts,
        q: Float[Array, " nq"],
        qd: Float[Array, " nv"],
        free: Float[Array, " nv"],
        M: Float[Array, "nv nv"],
        dt: Float[Array, ""],
        memory: Impulses,
    ) -> tuple[Float[Array, " nv"], Float[Array, " nv"], Impulses]:
        """`NCP.resolve` for the pairs that are not soft; contacts and forces as `soft_forces` returned them."""
        _, rows = self._rows(model, contacts)
        listener = _among(rows, soft)
        return self.ncp.resolve(model, kin, _take(contacts, rows), q, qd, free, M, dt, memory, listener)


def _take(contacts: Contacts, rows: np.ndarray) -> Contacts:
    """The given candidates."""
    arrays = (contacts.point_a, contacts.point_b, contacts.normal, contacts.distance, contacts.pairs)
    point_a, point_b, normal, distance, pairs = jax.tree.map(lambda x: x[rows], arrays)
    bodies, pair = tuple(contacts.bodies[i] for i in rows), tuple(contacts.pair[i] for i in rows)
    return Contacts(point_a, point_b, normal, distance, pairs, bodies, pair, tuple(contacts.frictional[i] for i in rows))


def _secant(drag: Array, law: Array, force: Array, J: Float[Array, "n 2 nv"]) -> Float[Array, "nv nv"]:
    """D = sum J_t^T c J_t, c the law's force over the sliding speed, or that of what a listener made of it where that is more."""
    more = jnp.sum(force * law, axis=-1) / (jnp.sum(law**2, axis=-1) + 1e-12)
    return jnp.einsum("c,cki,ckj->ij", drag * jnp.maximum(more, 1.0), J, J)


def _among(rows: np.ndarray, soft: Soft) -> Callable[[str, Array], Array]:
    """A tap for the NCP's rows: places them among the soft ones, lets the listeners hear all, and takes them out again."""
    known = {"contact.normal_force": soft.forces[:, 0], "contact.friction_force": soft.forces[:, 1:]}

    def heard(name: str, value: Array) -> Array:
        if name == "contact.relative_velocity":
            return soft.velocity[rows]
        if name in known:
            among = known[name].at[rows].set(value)
            changed = tap(name, among)
            return value if changed is among else changed[rows]
        return value if name.startswith("contact.") else tap(name, value)

    return heard
