"""The mirror of a robot as a signed permutation P of its joints, P P = 1: what `Symmetric` commutes with."""

from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

import numpy as np

from flexor.augment.blueprint import Entry, split
from flexor.augment.layout import Atom, Layout
from flexor.augment.networks import Symmetric
from flexor.model.topology import INDEX


@dataclass(frozen=True, eq=False)
class Mirror:
    """`joint[j]` is the mirror image of joint j, `sign[j]` its sign; `column` and `column_sign` the same for the features z, with
    -1 for those of ball and free joints, whose mirror image depends on their frames."""

    entry: Entry
    layout: Layout
    joint: np.ndarray
    sign: np.ndarray
    column: np.ndarray
    column_sign: np.ndarray

    @staticmethod
    def of(entry: Entry, layout: Layout, names: Sequence[str], start: dict[str, int], size: int) -> "Mirror | None":
        """The mirror of a `Symmetric` entry, for features that begin at `start`; None for any other network."""
        net = entry.net
        if not isinstance(net, Symmetric):
            return None
        outside = [n for n in (split(entry.output)[0], *names) if not n.startswith("joint.")]
        if outside:
            raise ValueError(f"Symmetric mirrors joints, so it works only with 'joint.*', not with '{outside[0]}'.")
        joint, sign = _joints(net, layout)
        column, column_sign = np.full(size, -1), np.ones(size)
        for tap in names:
            atoms = {(_joint_of(layout, tap, a)): a for a in layout.atoms(tap)}
            for j, atom in atoms.items():
                if layout.joints[j][1] in ("hinge", "slide"):
                    image = atoms[int(joint[j])]
                    for c, other, odd in zip(atom.columns, image.columns, atom.odd, strict=True):
                        column[start[tap] + c] = start[tap] + other
                        column_sign[start[tap] + c] = sign[j] if odd else 1.0
        return Mirror(entry, layout, joint, sign, column, column_sign)

    def inputs(self, read: Sequence[tuple[int, str]]) -> tuple[np.ndarray, np.ndarray]:
        """Where the mirror images of the given columns stand in z, and their signs."""
        take = np.array([c for c, _ in read], INDEX)
        unknown = [label for c, label in read if self.column[c] < 0]
        if unknown:
            raise ValueError(f"Symmetric mirrors hinges and slides; '{unknown[0]}' belongs to neither, so leave it out.")
        return self.column[take], self.column_sign[take]

    def mixes(self, read: Sequence[tuple[int, str]]) -> bool:
        """Whether the mirror changes anything in the given columns."""
        take = np.array([c for c, _ in read], INDEX)
        other, sign = self.inputs(read)
        return bool((other != take).any() or (sign < 0).any())

    def sign_of(self, element: Atom) -> float:
        """Sign that an element of the output gets in the mirror."""
        return float(self.sign[self._joint(element)])

    def partner(self, elements: Sequence[Atom], k: int) -> int:
        """Place of the mirror image of element k among the elements."""
        image = int(self.joint[self._joint(elements[k])])
        places = {self._joint(e): i for i, e in enumerate(elements)}
        if image not in places:
            name = self.layout.joints[image][0]
            raise ValueError(
                f"'{self.entry.output}' has '{elements[k].label}' but not its mirror image '{name}'; select both or none."
            )
        return places[image]

    def outputs(self, elements: Sequence[Atom]) -> tuple[np.ndarray, np.ndarray]:
        """Place and sign of the mirror image of every element."""
        at = [self.partner(elements, k) for k in range(len(elements))]
        return np.array(at, INDEX), np.array([self.sign_of(e) for e in elements])

    def _joint(self, element: Atom) -> int:
        j = int(self.layout.topology.dof_joint[element.owner])
        if self.layout.joints[j][1] not in ("hinge", "slide"):
            raise ValueError(f"Symmetric mirrors hinges and slides; '{element.label}' belongs to neither, so leave it out.")
        return j


def _joint_of(layout: Layout, tap: str, atom: Atom) -> int:
    return atom.owner if tap == "joint.q" else int(layout.topology.dof_joint[atom.owner])


def _joints(net: Symmetric, layout: Layout) -> tuple[np.ndarray, np.ndarray]:
    """Mirror image and sign of every joint."""
    names = [name for name, _, _ in layout.joints]
    joint, sign = np.arange(len(names)), np.ones(len(names))
    for pair in net.pairs:
        for name in pair:
            if name not in names:
                raise ValueError(
                    f"Symmetric pairs '{name}', but '{layout.robot}' has no such joint; it has {', '.join(names)}."
                )
            if joint[names.index(name)] != names.index(name) or pair[0] == pair[1]:
                raise ValueError(f"Symmetric pairs '{name}' twice; a joint has one mirror image.")
        a, b = (names.index(n) for n in pair)
        if layout.joints[a][1:] != layout.joints[b][1:] or layout.joints[a][1] not in ("hinge", "slide"):
            raise ValueError(
                f"Symmetric pairs '{pair[0]}' with '{pair[1]}': both must be hinges or both slides, with limits or without."
            )
        joint[a], joint[b] = b, a
    for pattern in net.flip:
        hits = [j for j, name in enumerate(names) if fnmatchcase(name, pattern)]
        if not hits:
            raise ValueError(
                f"Symmetric flips '{pattern}', but '{layout.robot}' has no such joint; it has {', '.join(names)}."
            )
        for j in hits:
            sign[j] = sign[joint[j]] = -1.0
    return joint, sign
