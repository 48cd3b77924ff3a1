"""`Layout`: what an augmentation must know of a robot and its solver, and how quantities become features of a network.

Encoding and its description stand side by side here: `atoms` says which features belong to which joint, body or contact, and
`encode` computes them. Hinges without limits enter joint.q as sine and cosine, quaternions as rotation matrices, everything else
as it is.
"""

import re
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from flexor.contact.detect import candidates
from flexor.model.model import Model
from flexor.model.topology import INDEX, JOINT_NV, Joint, Topology
from flexor.spatial import quat_to_matrix


class Atom(NamedTuple):
    """The smallest part of a quantity that can be selected: its label, the names by which it is found, which joint, body,
    candidate or tendon it belongs to, its columns in the features, which change sign in a mirror, and which are scaled."""

    label: str
    names: tuple[str, ...]
    owner: int
    columns: tuple[int, ...]
    odd: tuple[bool, ...]
    scaled: tuple[bool, ...]


@dataclass(frozen=True)
class Layout:
    """Names of joints (with kind and whether they have limits), bodies, contact candidates and tendons; taps in the order of
    computation, with their shapes."""

    robot: str
    joints: tuple[tuple[str, str, bool], ...]
    bodies: tuple[str, ...]
    contacts: tuple[str, ...]
    taps: tuple[tuple[str, tuple[int, ...]], ...]
    tendons: tuple[str, ...] = ()

    @staticmethod
    def of(model: Model, taps: tuple[tuple[str, tuple[int, ...]], ...]) -> "Layout":
        """The layout of a robot whose solver computes `taps`."""
        t = model.topology
        joints = tuple((j.name, j.kind, j.limited) for j in t.joints)
        return Layout(t.name, joints, t.bodies, contact_names(t), taps, tuple(x.name for x in t.tendons))

    @cached_property
    def topology(self) -> Topology:
        """Names and numbers of the coordinates; the tree itself is not kept."""
        joints = tuple(Joint(name, kind, 0, limited) for name, kind, limited in self.joints)
        return Topology(self.robot, self.bodies, (0,) * len(self.bodies), joints)

    @cached_property
    def order(self) -> tuple[str, ...]:
        return tuple(name for name, _ in self.taps)

    def differs(self, other: "Layout", kinds: set[str]) -> str | None:
        """What differs in the names of the given kinds, as a clause; None if nothing does."""
        parts = {"joint": ("joints", self.joints, other.joints), "link": ("bodies", self.bodies, other.bodies),
                 "contact": ("contact candidates", self.contacts, other.contacts),
                 "tendon": ("tendons", self.tendons, other.tendons)}  # fmt: skip
        for kind in sorted(kinds):
            what, mine, theirs = parts[kind]
            if mine != theirs:
                return f"its {what} are {_listed(mine)}, not {_listed(theirs)}"
        return None

    def atoms(self, tap: str) -> tuple[Atom, ...]:
        """The parts of a quantity with their columns in `encode(tap, value)`."""
        return _atoms(self, tap)


def _listed(names: tuple) -> str:
    shown = [n if isinstance(n, str) else f"{n[0]} ({n[1]}{', limited' if n[2] else ''})" for n in names]
    return (", ".join(shown[:8]) + (", …" if len(shown) > 8 else "")) or "none"


@lru_cache(maxsize=256)
def contact_names(topology: Topology) -> tuple[str, ...]:
    """A name for every contact candidate: its pair's, with a number where the pair has several."""
    index = candidates(topology)
    seen: dict[int, int] = {}
    names = []
    for i in index:
        k = seen[i] = seen.get(i, -1) + 1
        names.append(topology.pairs[i].name + (f".{k}" if index.count(i) > 1 else ""))
    return tuple(names)


@lru_cache(maxsize=1024)
def _atoms(layout: Layout, tap: str) -> tuple[Atom, ...]:
    kind = tap.split(".")[0]
    if tap == "joint.q":
        return tuple(_coordinate_atoms(layout, tap))
    t, size = layout.topology, int(np.prod(dict(layout.taps)[tap][1:]))
    names: list[tuple[str, ...]]
    if kind == "joint":
        names = [(t.dof_name(i), t.joints[t.dof_joint[i]].name) for i in range(t.nv)]
    elif kind == "link":
        names = [(b,) for b in layout.bodies]
    elif kind == "tendon":
        names = [(x,) for x in layout.tendons]
    else:
        rows = dict(layout.taps)[tap][0]  # fewer than candidates where contacts are a list of the near ones
        contacts = layout.contacts if rows == len(layout.contacts) else [f"near.{i}" for i in range(rows)]
        names = [(c, re.sub(r"\.\d+$", "", c)) for c in contacts]
    numbers = range(1 if kind == "link" else 0, len(names))  # the world does not move and is not pushed
    flags = (True,) * size
    return tuple(
        Atom(f"{tap}[{names[i][0]}]", names[i], i, tuple(range(i * size, (i + 1) * size)), flags, flags) for i in numbers
    )


class _Coordinates(NamedTuple):
    """Rows of q that enter as they are, as sine and cosine, and as quaternions (four each)."""

    plain: np.ndarray
    angle: np.ndarray
    quat: np.ndarray


@lru_cache(maxsize=256)
def _coordinates(layout: Layout) -> _Coordinates:
    t = layout.topology
    plain: list[int] = []
    angle: list[int] = []
    quat: list[list[int]] = []
    for j, start in zip(t.joints, t.q_start.tolist(), strict=True):
        if j.kind == "hinge" and not j.limited:
            angle.append(start)
        elif j.kind in ("hinge", "slide"):
            plain.append(start)
        else:
            plain += range(start, start + (3 if j.kind == "free" else 0))
            quat.append(list(range(start + (3 if j.kind == "free" else 0), start + (7 if j.kind == "free" else 4))))
    return _Coordinates(np.array(plain, INDEX), np.array(angle, INDEX), np.array(quat, INDEX).reshape(-1, 4))


def encode(layout: Layout, tap: str, value: Array) -> Float[Array, " n"]:
    """All features of a quantity: for joint.q plain coordinates, sines, cosines, rotation matrices; otherwise its numbers."""
    if tap != "joint.q":
        return value.reshape(-1)
    at = _coordinates(layout)
    parts = [value[at.plain]]
    if len(at.angle):
        parts += [jnp.sin(value[at.angle]), jnp.cos(value[at.angle])]
    if len(at.quat):
        parts.append(quat_to_matrix(value[at.quat]).reshape(-1))
    return jnp.concatenate(parts)


def _coordinate_atoms(layout: Layout, tap: str) -> list[Atom]:
    t, at = layout.topology, _coordinates(layout)
    sines, matrices = len(at.plain), len(at.plain) + 2 * len(at.angle)
    atoms = []
    for k, (j, start) in enumerate(zip(t.joints, t.q_start.tolist(), strict=True)):
        if start in at.angle:
            i = sines + int(np.flatnonzero(at.angle == start)[0])
            atoms.append(Atom(f"{tap}[{j.name}]", (j.name,), k, (i, i + len(at.angle)), (True, False), (False, False)))
            continue
        for row in range(start, start + JOINT_NV[j.kind] if j.kind != "ball" else start):
            if row in at.plain:
                i = int(np.flatnonzero(at.plain == row)[0])
                name = t.q_name(row)
                atoms.append(Atom(f"{tap}[{name}]", (name, j.name), k, (i,), (True,), (True,)))
        if j.kind in ("ball", "free"):
            first = start + (3 if j.kind == "free" else 0)
            i = matrices + 9 * int(np.flatnonzero(at.quat[:, 0] == first)[0])
            name = f"{j.name}.rotation"
            atoms.append(Atom(f"{tap}[{name}]", (name, j.name), k, tuple(range(i, i + 9)), (True,) * 9, (False,) * 9))
    return atoms
