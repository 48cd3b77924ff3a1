"""Two links with motors as a structure, and the state at a start from the samples just before it."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

import flexor as fx
from flexor.augment.networks import Perceptron
from flexor.ode.field import random_perceptron

PAST = 24  # samples, of which those count that are not much older than RECENT
RECENT, SLOW = 0.02, 0.1  # s; rad/s below which motion is slow for the network
SPEED, TORQUE = 10.0, 3.0  # rad/s, N m: sizes of what the network reads
PUSH = 0.3  # N m: size of what it adds
NUMBERS = 17
UNKNOWN = (1e-3, 1e-3, 1e-3, 1e-3)  # e and m, which the makers do not have: next to nothing
SLIDING = 0.3  # rad/s at which static friction is gone


class Links(fx.ode.AbstractSystem):
    """x = (q1, q2, v1, v2), u the measured torques:

        M(q) dv/dt = c u - C(q, v) v - G(q) - b v - F arctan(s v) + network
        F = f + m |u| + e exp(-(v / SLIDING)^2)
        M = [[A + 2 K cos q2, B + K cos q2 - n R], [., B + n^2 R]],  G = g [P sin q1 + Q sin(q1 + q2), Q sin(q1 + q2)]

    Attributes:
        base: A, B, K, R (kg m^2), P, Q (kg m), b1, b2 (N m s), f1, f2, e1, e2 (N m), m1, m2, s1, s2 (s/rad) and the torques'
            gain c, as they were at the start.
        z: logarithms of how they have changed.
        offset: torque at rest, N m.
        net: the network, of sin q, cos q, v, the direction of v and u; None: none.
    """

    base: Float[Array, "17"]
    z: Float[Array, "17"]
    offset: Float[Array, "2"]
    net: Perceptron | None = None

    @staticmethod
    def published(attrs: dict[str, float]) -> "Links":
        """The makers' own parameters."""
        p = {k.removeprefix("published_"): float(v) for k, v in attrs.items() if k != "published_model"}
        gear, lever = p["gr"], p["m2"] * p["r2"]
        A = p["I1"] + p["I2"] + p["m2"] * p["l1"] ** 2 + (gear**2 + 1) * p["Ir"]
        P = p["m1"] * p["r1"] + p["m2"] * p["l1"]
        base = [
            A,
            p["I2"],
            p["l1"] * lever,
            p["Ir"],
            P,
            lever,
            p["b1"],
            p["b2"],
            p["cf1"],
            p["cf2"],
            *UNKNOWN,
            100.0,
            100.0,
            1.0,
        ]
        return Links(jnp.asarray(base), jnp.zeros(NUMBERS), jnp.zeros(2))

    def settled(self) -> "Links":
        """The same, with what it has become as its start."""
        return Links(self.base * jnp.exp(self.z), jnp.zeros(NUMBERS), self.offset, self.net)

    def with_network(self, width: int, key: Array) -> "Links":
        """With a fresh network, which changes nothing yet."""
        net = random_perceptron(10, 2, width, 1, key, self.base.dtype)
        net = eqx.tree_at(lambda n: n.layers[-1], net, jax.tree.map(jnp.zeros_like, net.layers[-1]))
        return Links(self.base, self.z, self.offset, net)

    def rate(self, t: Array, x: Array, u: Array) -> Array:
        A, B, K, R, P, Q, b1, b2, f1, f2, e1, e2, m1, m2, s1, s2, c = self.base * jnp.exp(self.z)
        gear, gravity = 6.0, 9.81
        (q1, q2), v = x[:2], x[2:]
        kc, ks = K * jnp.cos(q2), K * jnp.sin(q2)
        tip = Q * jnp.sin(q1 + q2)
        friction = jnp.stack([f1, f2]) + jnp.stack([m1, m2]) * jnp.abs(u)
        friction = friction + jnp.stack([e1, e2]) * jnp.exp(-((v / SLIDING) ** 2))
        force = c * u + self.offset - jnp.stack([b1, b2]) * v - friction * jnp.arctan(jnp.stack([s1, s2]) * v)
        force = force + ks * jnp.stack([2 * v[0] * v[1] + v[1] ** 2, -(v[0] ** 2)])
        force = force - gravity * jnp.stack([P * jnp.sin(q1) + tip, tip])
        if self.net is not None:
            read = jnp.concatenate([jnp.sin(x[:2]), jnp.cos(x[:2]), v / SPEED, jnp.tanh(v / SLOW), u / TORQUE])
            force = force + PUSH * self.net(read)
        m11, m12, m22 = A + 2 * kc, B + kc - gear * R, B + gear**2 * R
        a = jnp.stack([m22 * force[0] - m12 * force[1], m11 * force[1] - m12 * force[0]]) / (m11 * m22 - m12**2)
        return jnp.concatenate([v, a])

    def output(self, x: Array, u: Array) -> Array:
        return x

    def trainable(self) -> "Links":
        marks = super().trainable()
        return eqx.tree_at(lambda s: s.base, marks, False)


class Estimate(fx.ode.AbstractEncoder):
    """Angles as measured; speeds moved towards the slope of a parabola through the past, and ahead:

    v + b (slope - v) + c dv/dt

    Attributes:
        share: b of the two joints, and c in units of 10 ms.
    """

    share: Float[Array, "2 2"]
    past: int = eqx.field(static=True, default=PAST)

    @staticmethod
    def guess() -> "Estimate":
        """As measured."""
        return Estimate(jnp.zeros((2, 2)))

    def start(self, t: Array, y: Array, seen: Array, u: Array) -> Array:
        s = (t - t[-1]) / RECENT
        V = jnp.stack([jnp.ones_like(s), s, s**2], axis=1)
        V = V * jnp.exp(-(s**2) / 2)[:, None]
        weighted = y * jnp.exp(-(s**2) / 2)[:, None]
        q, v = (jnp.linalg.solve(V.T @ V + 1e-6 * np.eye(3), V.T @ weighted[:, k : k + 2]) for k in (0, 2))
        speed = y[-1, 2:] + self.share[0] * (q[1] / RECENT - y[-1, 2:]) + self.share[1] * 0.01 * v[1] / RECENT
        return jnp.concatenate([y[-1, :2], speed])
