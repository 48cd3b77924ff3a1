"""Two contact models at once: penalty forces for the pairs of a pattern, impulses of the NCP for all others.

The soft pairs act as forces f_s before the impulses are solved: u0 = qd + h A^-1 (f + J_s^T f_s), then u = u0 + A^-1 J^T x with
the laws of `ncp.py` for the rest; A = M, or A = M + h D where the friction of the soft pairs is `implicit`. It is then taken at
the end of the step as far as it opposes the slip v: it acts as -c v with c = |f_t| / |v|, and D = sum_s J_t^T c J_t brings in
the change of v (a linearly implicit step with the secant in place of the tangent; Vogel & Oman 1996 call it lagged
diffusivity). Forces are unchanged where the motion is steady, and the step may be long: explicit friction asks for
h < 2 m / slope (see `friction.py`), which in slow sliding is a small part of a millisecond.
"""

from fnmatch import fnmatchcase
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from flexor.contact.contact import AbstractContact, FreeStep, Instant, Loads, Outcome
from flexor.contact.contacts import Contacts, contact_jacobian, tapped
from flexor.contact.detect import candidates, detect
from flexor.contact.ncp import NCP, Impulses, no_impulses
from flexor.contact.penalty import Penalty, slip
from flexor.contact.sums import contact_sums
from flexor.model.model import Model
from flexor.spatial import matvec
from flexor.taps import Handler, listening, tap


class Mixed(AbstractContact):
    """`penalty` for pairs whose name matches `soft` (shell pattern, e.g. `floor~*`), `ncp` for the others and for the joints.

    `implicit` takes the soft pairs' friction at the end of the step, stable at any step length. Taps of `contact.*` keep a row
    for every candidate. The forces are tapped twice in a step: before the NCP, with its rows zero, where a listener changes the
    soft forces, and after it, where a listener changes the NCP's; both times the soft rows have the same value.
    """

    ncp: NCP = NCP()
    penalty: Penalty = Penalty()
    soft: str = eqx.field(static=True, default="floor~*")
    implicit: bool = eqx.field(static=True, default=True)

    def sources(self, model: Model) -> tuple[str, ...]:
        return self.ncp.sources(model)

    def check(self, model: Model) -> None:
        """Raises when the pattern matches no pair."""
        names = [p.name for p in model.topology.pairs]
        if not any(fnmatchcase(n, self.soft) for n in names):
            listed = ", ".join(names[:8]) + (", …" if len(names) > 8 else "")
            raise ValueError(
                f"Mixed(soft='{self.soft}') matches no pair of '{model.topology.name}'; it has {listed or 'none'}."
            )
        if model.topology.sticky:
            raise ValueError(f"Mixed() has no adhesion, which '{model.topology.name}' has: use contact=NCP().")
        spinning = [p.name for p in model.topology.pairs if p.condim > 3 and fnmatchcase(p.name, self.soft)]
        if spinning:
            raise ValueError(
                f"Mixed(soft='{self.soft}') matches '{spinning[0]}', whose torsional friction Penalty() has not."
            )

    def init(self, model: Model) -> Impulses:
        return no_impulses(model, len(self._split(model, candidates(model.topology))[1]))

    def _split(self, model: Model, pair: Any) -> tuple[np.ndarray, np.ndarray]:
        """Candidates of the soft pairs, and the others; `pair` is the pair of every candidate."""
        pairs = model.topology.pairs
        soft = np.array([fnmatchcase(pairs[p].name, self.soft) for p in pair], dtype=bool)
        return np.flatnonzero(soft), np.flatnonzero(~soft)

    def forces(self, now: Instant) -> Loads:
        """Those of the soft pairs; the other candidates, as listeners may have changed them, are left to the NCP."""
        model, kin, _, qd = now
        contacts, depth = tapped(model, kin, detect(model, kin))
        soft, rigid = self._split(model, contacts.pair)
        own = _take(contacts, soft)
        J = contact_jacobian(model, kin, contacts)
        all_velocity = tap("contact.relative_velocity", matvec(J, qd))
        velocity = all_velocity[soft]
        zero = jnp.zeros(len(contacts), qd.dtype)
        fn_law = zero.at[soft].set(self.penalty.normal_force(own, depth[soft], -velocity[:, 0]))
        fn = tap("contact.normal_force", fn_law)[soft]
        slipping = slip(own, velocity)
        drag = self.penalty.friction.drag(own.friction, fn, slipping)
        law = -drag[:, None] * slipping
        ft_law = jnp.zeros((len(contacts), 2), qd.dtype).at[soft].set(law)
        ft = tap("contact.friction_force", ft_law)[soft]
        own_force = jnp.concatenate([fn[:, None], ft], axis=1)
        force = jnp.einsum("ck,ckd->d", own_force, J[soft])
        sums = contact_sums(model, kin, own, own_force) if listening() else {}
        damping = _secant(drag, law, ft, J[soft, 1:]) if self.implicit else None
        soft_forces = {"contact.normal_force": fn_law, "contact.friction_force": ft_law}
        return Loads(force, damping, _take(contacts, rigid), _among(rigid, all_velocity, soft_forces, sums))

    def resolve(self, step: FreeStep, loads: Loads, memory: Impulses) -> Outcome:
        return self.ncp.resolve(step, loads, memory)


def _take(contacts: Contacts, rows: np.ndarray) -> Contacts:
    """The given candidates."""
    return jax.tree.map(lambda x: x[rows], contacts)


def _secant(drag: Array, law: Array, force: Array, J: Float[Array, "n 2 nv"]) -> Float[Array, "nv nv"]:
    """D = sum J_t^T c J_t, c the law's force over the sliding speed, or that of what a listener made of it where that is more."""
    more = jnp.sum(force * law, axis=-1) / (jnp.sum(law**2, axis=-1) + 1e-12)
    return jnp.einsum("c,cki,ckj->ij", drag * jnp.maximum(more, 1.0), J, J)


def _among(
    rows: np.ndarray, velocity: Float[Array, "ncon 3"], soft_forces: dict[str, Array], sums: dict[str, Array]
) -> Handler:
    """A tap for the NCP's candidates: listeners get all candidates, and the NCP those of the given rows. `sums` are those of the
    soft contacts, to which the NCP's are added.

    Velocities are as the listeners left them; of the soft forces they get the law's own, since they add to them once more.
    """

    def tap_among(name: str, value: Array) -> Array:
        if name == "contact.relative_velocity":
            return velocity[rows]
        if name in sums:
            return tap(name, value + sums[name])
        if name in soft_forces:
            among = soft_forces[name].at[rows].set(value)
            changed = tap(name, among)
            return value if changed is among else changed[rows]
        return value if name.startswith("contact.") else tap(name, value)

    return tap_among
