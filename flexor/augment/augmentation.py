"""`Augmentation`: networks in their places among the quantities of a step, as a pytree whose arrays are the weights."""

import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from flexor.augment.blueprint import Blueprint, Entry, split
from flexor.augment.layout import Layout, encode
from flexor.augment.networks import Draw, Network, Potential, inner
from flexor.augment.wiring import Group, Wire, wires
from flexor.dynamics import integrate
from flexor.model.model import Model
from flexor.taps import Handler


class Augmentation(eqx.Module):
    """Networks wired to the quantities of one robot. Weights have a leading axis with a row for every network of an entry: one
    with `Whole` and `Shared`, as many as elements with `Each` (elements with differing inputs in groups of their own)."""

    networks: tuple[tuple[Network, ...], ...]
    entries: tuple[Entry, ...] = eqx.field(static=True)
    layout: Layout = eqx.field(static=True)

    @staticmethod
    def build(blueprint: Blueprint, layout: Layout, key: PRNGKeyArray, dtype: Any) -> "Augmentation":
        """Fresh networks for a robot and a solver."""
        entries = tuple(blueprint.entries)
        if not entries:
            raise ValueError("the blueprint is empty: `add` a network to it first.")
        found, count = wires(entries, layout), Draw()
        for wire in found:
            _build(wire, count)
        numbers = jax.random.uniform(key, (count.count,), dtype, -1, 1)
        draw = Draw(numbers if isinstance(numbers, jax.core.Tracer) else np.asarray(numbers))
        networks = tuple(_build(wire, draw) for wire in found)
        return Augmentation(jax.tree.map(lambda x: jnp.asarray(x, dtype), networks), entries, layout)

    @property
    def wires(self) -> tuple[Wire, ...]:
        """What each entry reads and writes."""
        return wires(self.entries, self.layout)

    def on(self, layout: Layout) -> "Augmentation":
        """The same networks under another solver, or for another copy of the robot; raises if names or their order
        differ."""
        kinds = {split(n)[0].split(".")[0] for e in self.entries for n in (e.output, *e.inputs)}
        clause = layout.differs(self.layout, kinds)
        if clause:
            raise ValueError(
                f"this augmentation was made for '{self.layout.robot}' and does not fit '{layout.robot}': {clause}."
            )
        old, new = self.wires, wires(self.entries, layout)
        for a, b in zip(old, new, strict=True):
            if [g.columns for g in a.groups] != [g.columns for g in b.groups]:
                raise ValueError(
                    f"the inputs of '{a.entry.output}' are not the same under this solver; name them one by one."
                )
        return Augmentation(self.networks, self.entries, layout)

    def check(self, model: Model) -> None:
        """Raises when the robot is not the one the networks were made for."""
        self.on(Layout.of(model, self.layout.taps))

    def simplified(self) -> "Augmentation":
        """Without the entries whose concrete weights show that they change nothing: fresh `Add` and `Scale` networks. The
        program of the rest is the same as if they had never been added, to the last bit."""
        pairs = zip(self.entries, self.networks, strict=True)
        kept = [(e, n) for e, n in pairs if not (e.mode.fresh and all(x.is_zero() for x in n))]
        if len(kept) == len(self.entries):
            return self
        return Augmentation(tuple(n for _, n in kept), tuple(e for e, _ in kept), self.layout)

    def handler(self, model: Model) -> Handler:
        """The handler for the taps of one step that applies the networks."""
        tap_values: dict[str, Array] = {}
        by_tap: dict[str, list[tuple[Wire, tuple[Network, ...]]]] = {}
        for wire, networks in zip(self.wires, self.networks, strict=True):
            by_tap.setdefault(wire.tap, []).append((wire, networks))

        def handle(name: str, value: Array) -> Array:
            tap_values[name] = value
            changes = [(w, _result(self.layout, w, n, model, tap_values)) for w, n in by_tap.get(name, [])]
            for wire, result in changes:
                value = _written(wire, value, result)
            tap_values[name] = value
            return value

        return handle

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Writes the weights to `path`, which ends in .safetensors, and all else to a .json beside it; returns the path."""
        from flexor.augment.files import save

        return save(self, path)

    @staticmethod
    def load(path: str | os.PathLike[str]) -> "Augmentation":
        """Reads what `save` wrote."""
        from flexor.augment.files import load

        return load(path)


def _build(wire: Wire, draw: Draw) -> tuple[Network, ...]:
    """The networks of an entry, with a leading axis for those of one group."""
    net, fresh = wire.entry.net, wire.entry.mode.fresh
    return tuple(net.build(len(g.labels), g.take.shape[1], g.n_out, draw, fresh) for g in wire.groups)


def _rows(group: Group, network: Network, call: Callable[..., Array], *args: Array) -> Array:
    """`call(network, *args)` for every evaluation of a group, each with its own weights."""
    if len(group.labels) == 1:
        single = jax.tree.map(lambda w: w[0], network)
        return (
            jnp.stack([call(single, *(a[0] for a in args))])
            if len(group.which) == 1
            else jax.vmap(call, (None, *[0] * len(args)))(single, *args)
        )
    if not np.array_equal(group.which, np.arange(len(group.labels))):
        network = jax.tree.map(lambda w: w[group.which], network)
    return jax.vmap(call)(network, *args)


def _features(wire: Wire, group: Group, z: Array) -> Float[Array, "k n_in"]:
    x = z[group.take]
    return x if group.sign is None else jnp.asarray(group.sign, z.dtype) * x


def _stretched(layout: Layout, wire: Wire, tap_values: dict[str, Array]) -> Float[Array, " n"]:
    """The features z of all inputs, divided by their scales."""
    z = jnp.concatenate([encode(layout, tap, tap_values[tap]) for tap in wire.inputs])
    return z if (wire.divide == 1).all() else z * jnp.asarray(1 / wire.divide, z.dtype)


def _result(layout: Layout, wire: Wire, networks: tuple[Network, ...], model: Model, tap_values: dict[str, Array]) -> Array:
    """The output of the networks of an entry, for every number that it writes."""
    if isinstance(networks[0], Potential):
        out = _gradient(layout, wire, networks, model, tap_values)
    else:
        z = _stretched(layout, wire, tap_values)
        v = wire.velocity
        parts = []
        for group, network in zip(wire.groups, networks, strict=True):
            speed = jnp.zeros((len(group.which), 0), z.dtype)
            if v is not None:
                speed = tap_values[v].reshape(-1)[group.v_take] * jnp.asarray(group.v_sign, z.dtype)
            parts.append(_rows(group, network, lambda n, x, v: n(x, v), _features(wire, group, z), speed).reshape(-1))
        y = parts[0] if len(parts) == 1 else jnp.concatenate(parts)
        terms = [
            y[p] if (w == 1).all() else jnp.asarray(w, y.dtype) * y[p] for p, w in zip(wire.pick, wire.weight, strict=True)
        ]
        out = terms[0] if len(terms) == 1 else terms[0] + terms[1]
    out = out if wire.multiply == 1 else out * wire.multiply
    touching = _touching(wire, tap_values)
    return out if touching is None else jnp.where(touching, out, 0.0)


def _gradient(
    layout: Layout, wire: Wire, networks: tuple[Network, ...], model: Model, tap_values: dict[str, Array]
) -> Array:
    """-dV / d displacement at zero displacement, for the sum of all potentials of an entry."""
    q = tap_values["joint.q"]

    def energy(displacement: Array) -> Array:
        z = _stretched(layout, wire, {"joint.q": integrate(model, q, displacement)})
        return sum(
            (
                _rows(g, n, lambda n, x: n.energy(x), _features(wire, g, z)).sum()
                for g, n in zip(wire.groups, networks, strict=True)
            ),
            jnp.zeros((), z.dtype),
        )

    return -wire.sense * jax.grad(energy)(jnp.zeros(model.nv, q.dtype))[wire.put]


def _touching(wire: Wire, tap_values: dict[str, Array]) -> Array | None:
    """Contact forces act where bodies touch, whatever a network returns elsewhere; None for all other quantities."""
    if wire.tap == "contact.normal_force":
        touching = (tap_values["contact.depth"] > 0) | (tap_values["contact.normal_force"] > 0)
    elif wire.tap == "contact.friction_force":
        touching = tap_values["contact.normal_force"] > 0
    else:
        return None
    size = 2 if wire.tap == "contact.friction_force" else 1
    return touching[wire.put // size]


def _written(wire: Wire, value: Array, result: Array) -> Array:
    """The quantity with the networks' results at their places."""
    flat = value.reshape(-1)
    new = wire.entry.mode.apply(flat[wire.put], result)
    if len(wire.put) < len(flat) or (wire.put != np.arange(len(flat))).any():
        new = flat.at[wire.put].set(new)
    return new.reshape(value.shape)


def input_groups(augmentation: Augmentation) -> dict[tuple[str, str], tuple[int, int, int, tuple[int, ...]]]:
    """For every network and every quantity that it reads, e.g. ("joint.passive_force[elbow]", "joint.qd[elbow]"), where its
    first-layer weights stand: entry, group, row of the group, columns."""
    found = {}
    for e, wire in enumerate(augmentation.wires):
        for g, group in enumerate(wire.groups):
            for row, (label, columns) in enumerate(zip(group.labels, group.columns, strict=True)):
                for name in dict.fromkeys(columns):
                    found[label, name] = (e, g, row, tuple(i for i, c in enumerate(columns) if c == name))
    return found


def _first(augmentation: Augmentation, e: int, g: int) -> Array:
    return inner(augmentation.networks[e][g]).layers[0].weight


def input_weights(augmentation: Augmentation) -> dict[str, dict[str, Float[Array, "width k"]]]:
    """First-layer weights of every network, by the quantity that they multiply: {network: {input: columns}}."""
    out: dict[str, dict[str, Array]] = {}
    for (label, name), (e, g, row, columns) in input_groups(augmentation).items():
        out.setdefault(label, {})[name] = _first(augmentation, e, g)[row][:, np.array(columns)]
    return out


def map_input_weights(f: Callable[[Array], Array], augmentation: Augmentation) -> Augmentation:
    """The augmentation with f applied to the first-layer weights of each input of each network; f keeps the shape."""
    for e, wire in enumerate(augmentation.wires):
        for g in range(len(wire.groups)):
            weight = _first(augmentation, e, g)
            for at_e, at_g, row, columns in input_groups(augmentation).values():
                if (at_e, at_g) == (e, g):
                    at = np.array(columns)
                    weight = weight.at[row, :, at].set(f(weight[row][:, at]).T)
            augmentation = eqx.tree_at(partial(_first, e=e, g=g), augmentation, weight)
    return augmentation
