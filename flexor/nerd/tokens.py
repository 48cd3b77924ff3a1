"""A network that learns contact from its kinematics: contacts are a set of tokens with shared weights, without a base step.

    h          = trunk(state)                    u_0 = qd + free(h)
    L          = inverse(configuration)          W = L L^T, the learned inverse inertia
    c_k        = J_k (u_0 + W sum_j J_j^T p_j)   velocity of contact k against its ground, along its normal and two tangents
    p_k       += near_k contact(gap_k, gap of the next instant, c_k, J_k W J_k^T, p_k) / |J_k W J_k^T|     (`rounds` times)
    jump       = free(h) + W sum_k J_k^T p_k     displacement = beyond(h) + dt W sum_k J_k^T d_k

Impulses p_k act on the robot through the Jacobian of the contact, which is kinematics; the inertia that they meet, the forces in
flight and the law of contact are learned. Contacts enter by a sum, so that their order does not matter (Zaheer et al. 2017), and
what one learns of a contact holds for all. There is no window: the state is all that a step reads.
"""

from dataclasses import dataclass
from typing import ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PRNGKeyArray

from flexor.contact.detect import candidates
from flexor.nerd.frames import Frames
from flexor.nerd.network import AbstractNetwork, AbstractSizes, Norms

SMALLEST = 1e-3  # of the velocities' deviation: below this a contact has no mobility
Weights = tuple[Float[Array, "*members out in"], ...]


@dataclass(frozen=True)
class TokenLayout:
    """Where things stand among the inputs: the configuration comes first, then velocities; contacts come last, `parts` numbers
    each, of which the last are its Jacobian."""

    configuration: int
    state: int
    contacts: int
    parts: int
    nv: int
    dt: float

    @staticmethod
    def of(frames: Frames) -> "TokenLayout":
        nv, names = frames.topology.nv, frames.labels
        contacts = len(candidates(frames.topology))
        own = sum(not name.startswith("contact ") for name in names)
        configuration = next(i for i, name in enumerate(names) if name.startswith("velocity "))
        return TokenLayout(configuration, own, contacts, (len(names) - own) // max(contacts, 1), nv, frames.dt)


class TokenSizes(AbstractSizes):
    """Layers and width of what reads the state, width of what reads a contact, and rounds among the contacts."""

    name: ClassVar[str] = "tokens"
    layers: int = eqx.field(static=True, default=2)
    width: int = eqx.field(static=True, default=128)
    contact_width: int = eqx.field(static=True, default=48)
    rounds: int = eqx.field(static=True, default=3)

    def __check_init__(self) -> None:
        if min(self.layers, self.width, self.contact_width, self.rounds) < 1:
            raise ValueError("layers, width, contact_width and rounds must be positive.")

    def build(self, frames: Frames, norms: Norms, key: PRNGKeyArray) -> "ContactTokens":
        """Fresh weights."""
        if not frames.jacobians:
            raise ValueError("contacts as tokens need their Jacobians among the inputs: `Frames(..., jacobians=True)`.")
        return ContactTokens.build(self, TokenLayout.of(frames), norms, key)


class StepCount(eqx.Module):
    """The memory of a network that needs none: how many steps there have been."""

    count: Int[Array, ""]


class ContactTokens(AbstractNetwork):
    """The network above. In an ensemble, weights have a leading axis."""

    trunk: Weights
    inverse: Weights
    contact: tuple[Weights, ...]
    norms: Norms
    sizes: TokenSizes = eqx.field(static=True)
    layout: TokenLayout = eqx.field(static=True)

    @staticmethod
    def build(sizes: TokenSizes, layout: TokenLayout, norms: Norms, key: PRNGKeyArray) -> "ContactTokens":
        """Gaussian weights of deviation 1 / sqrt(inputs); last layers are smaller."""
        nv, w, v = layout.nv, sizes.width, sizes.contact_width
        keys = iter(jax.random.split(key, sizes.layers + 4 + 3 * sizes.rounds))

        def weights(*widths: int, last: float) -> Weights:
            """Matrices of a chain of layers, each with a column for its bias."""
            shapes = list(zip(widths[1:], widths[:-1], strict=True))
            sizes = [1.0] * (len(shapes) - 1) + [last]
            return tuple(
                float(s / np.sqrt(max(i, 1))) * jax.random.normal(next(keys), (o, i + 1), jnp.float32).at[:, -1].set(0.0)
                for (o, i), s in zip(shapes, sizes, strict=True)
            )

        trunk = weights(layout.state, *[w] * sizes.layers, 2 * nv, last=0.1)
        inverse = weights(layout.configuration, w // 2, nv * (nv + 1) // 2, last=0.3)
        contact = tuple(weights(16, v, v, 6, last=0.1) for _ in range(sizes.rounds)) if layout.contacts else ()
        norms = jax.tree.map(lambda x: jnp.asarray(x, jnp.float32), norms)
        return ContactTokens(trunk=trunk, inverse=inverse, contact=contact, norms=norms, sizes=sizes, layout=layout)

    def sequence(self, x: Float[Array, "*batch t n_in"]) -> Float[Array, "*batch t n_out"]:
        flat = jnp.asarray(x, self.dtype).reshape(-1, x.shape[-1])
        return jax.vmap(self.predict)(flat).reshape(*x.shape[:-1], -1)

    def begin(self) -> StepCount:
        return StepCount(jnp.zeros((), jnp.int32))

    def step(self, x: Float[Array, " n_in"], cache: StepCount) -> tuple[Float[Array, " n_out"], StepCount]:
        return self.predict(x), StepCount(cache.count + 1)

    def silenced(self) -> "ContactTokens":
        last = (self.trunk[-1], self.inverse[-1], self.norms.y_mean)
        silent = eqx.tree_at(lambda n: (n.trunk[-1], n.inverse[-1], n.norms.y_mean), self, [jnp.zeros_like(w) for w in last])
        return eqx.tree_at(lambda n: [c[-1] for c in n.contact], silent, [jnp.zeros_like(c[-1]) for c in self.contact])

    def predict(self, x: Float[Array, " n_in"]) -> Float[Array, " n_out"]:
        """What a step changes beyond the base step: displacements, then jumps of the velocity."""
        at, norms = self.layout, self.norms
        z = (x[: at.state] - norms.x_mean[: at.state]) / norms.x_std[: at.state]
        y = _chain(self.trunk, z) * norms.y_std + norms.y_mean
        if not at.contacts:
            return y
        speed = norms.x_std[at.configuration : at.configuration + at.nv]
        lower = self._lower(z[: at.configuration]) * speed[:, None]  # in velocities per unit impulse
        qd = x[at.configuration : at.configuration + at.nv]
        pushes = self._contacts(x[at.state :].reshape(at.contacts, at.parts), qd + y[at.nv :], lower, jnp.mean(speed))
        return y + jnp.concatenate([at.dt * pushes[1], pushes[0]])

    def _lower(self, z: Float[Array, " n"]) -> Float[Array, "nv nv"]:
        """The Cholesky factor of the learned inverse inertia, in units of the velocities' deviations."""
        nv, numbers = self.layout.nv, _chain(self.inverse, z)
        rows = [jnp.pad(numbers[i * (i + 1) // 2 : (i + 1) * (i + 2) // 2], (0, nv - 1 - i)) for i in range(nv)]
        return jnp.eye(nv, dtype=z.dtype) + jnp.stack(rows)

    def _contacts(
        self, tokens: Float[Array, "n parts"], u: Float[Array, " nv"], lower: Float[Array, "nv nv"], speed: Float[Array, ""]
    ) -> tuple[Float[Array, " nv"], Float[Array, " nv"]]:
        """Velocities that the impulses of all contacts make, and displacements by the step."""
        at = self.layout
        n = at.contacts
        reached = (tokens[:, :3] ** 2).sum(axis=1) > 0.25  # inputs of a candidate out of reach are zero
        gaps = tokens[:, 9:11] / (at.dt * speed)
        jacobian = tokens[:, -3 * at.nv :].reshape(3 * n, at.nv)  # along the normal and two tangents, contact by contact
        reduced = jacobian @ lower  # J L, so that J W J^T = (J L) (J L)^T
        own = reduced.reshape(n, 3, at.nv)
        mobility = jnp.einsum("kiv,kjv->kij", own, own).reshape(n, 9)
        total = mobility[:, 0] + mobility[:, 4] + mobility[:, 8] + (SMALLEST * speed) ** 2
        shape = jnp.stack([mobility[:, i] for i in (0, 1, 2, 4, 5)], axis=1) / total[:, None]
        unit = jnp.where(reached, speed / total, 0.0)[:, None]
        free = (jacobian @ u).reshape(n, 3) / speed
        push, drift = jnp.zeros((n, 3), u.dtype), jnp.zeros((n, 3), u.dtype)
        for weights in self.contact:
            made = (reduced @ (reduced.T @ push.reshape(-1))).reshape(n, 3) / speed
            known = jnp.concatenate([gaps, free + made, free, shape, push * total[:, None] / speed], axis=1)
            out = _chain(weights, known)
            push, drift = push + unit * out[:, :3], drift + unit * out[:, 3:]
        return lower @ (reduced.T @ push.reshape(-1)), lower @ (reduced.T @ drift.reshape(-1))


def _chain(weights: Weights, x: Float[Array, "*n in"]) -> Float[Array, "*n out"]:
    """Layers of one chain: SiLU between them, residual where widths agree."""
    for i, matrix in enumerate(weights):
        y = x @ matrix[:, :-1].T
        y = y + jnp.broadcast_to(matrix[:, -1], y.shape)
        if i + 1 == len(weights):
            return y
        y = jax.nn.silu(y)
        x = x + y if x.shape == y.shape else y
    return x
