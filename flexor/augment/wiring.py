"""From a blueprint and a robot's layout to indices: which features a network reads, and which numbers it writes.

Everything here is static. The features of all inputs of an entry, one after the other, are z. A network is evaluated on rows
`take` of z; what it returns is picked by `pick` and written to the places `put` of the quantity.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import lru_cache

import numpy as np

from flexor.augment.blueprint import CONJUGATE, Entry, Shared, Whole, split
from flexor.augment.layout import Atom, Layout
from flexor.augment.mirror import Mirror
from flexor.augment.networks import Conservative, Dissipative, guarantee
from flexor.model.topology import INDEX


@dataclass(frozen=True, eq=False)
class Group:
    """Evaluations of networks of one size. Row k runs the network `which[k]` on sign[k] z[take[k]] and the velocities
    v_sign[k] v[v_take[k]]. `labels` names the networks, `columns` what each of their inputs is."""

    take: np.ndarray
    sign: np.ndarray | None
    which: np.ndarray
    v_take: np.ndarray
    v_sign: np.ndarray
    n_out: int
    labels: tuple[str, ...]
    columns: tuple[tuple[str, ...], ...]


@dataclass(frozen=True, eq=False)
class Wire:
    """The wiring of one entry. Its result is sum_t weight[t] y[pick[t]], y all that its groups return, one after the other.

    `velocity` names the tap of the velocities that a `Dissipative` opposes; `sense` is -1 for a quantity that is subtracted from
    the forces.
    """

    entry: Entry
    tap: str
    inputs: tuple[str, ...]
    divide: np.ndarray
    multiply: float
    groups: tuple[Group, ...]
    pick: np.ndarray
    weight: np.ndarray
    put: np.ndarray
    velocity: str | None
    sense: float


@lru_cache(maxsize=256)
def wires(entries: tuple[Entry, ...], layout: Layout) -> tuple[Wire, ...]:
    """The wiring of all entries; raises where a name, an order or a size does not fit."""
    found = tuple(_Wiring(entry, layout).wire() for entry in entries)
    taken: dict[tuple[str, int], str] = {}
    for wire in found:
        for place in wire.put.tolist():
            other = taken.setdefault((wire.tap, place), wire.entry.output)
            if other != wire.entry.output:
                raise ValueError(
                    f"'{other}' and '{wire.entry.output}' of the blueprint write to the same elements of '{wire.tap}'; "
                    "give each element to one of them."
                )
    return found


class _Wiring:
    """The wiring of one entry, step by step."""

    def __init__(self, entry: Entry, layout: Layout):
        self.entry, self.layout = entry, layout
        self.tap, selection = split(entry.output)
        if self.tap not in layout.order:
            raise ValueError(f"'{self.tap}' is not computed by this solver for '{layout.robot}', so it cannot be augmented.")
        self.elements = _selected(layout, self.tap, selection, entry.output)
        self.inputs = self._expanded()
        names = list(dict.fromkeys(tap for tap, _, _ in self.inputs))
        self.names = tuple(names)
        starts = np.cumsum([0] + [_width(layout, n) for n in names])
        self.start = dict(zip(names, starts[:-1].tolist(), strict=True))
        self.size = int(starts[-1])
        net = guarantee(entry.net)
        self.velocity = CONJUGATE[self.tap] if isinstance(net, Dissipative) else None
        if self.velocity:
            self._check_order(self.velocity[0], self.velocity[0])
        if isinstance(net, Conservative):
            self._check_potential()

    @property
    def _sense(self) -> float:
        """Sign with which the quantity enters the motion."""
        return CONJUGATE[self.tap][2] if self.tap in CONJUGATE else 1.0

    def wire(self) -> Wire:
        mirror = Mirror.of(self.entry, self.layout, self.names, self.start, self.size)
        if isinstance(self.entry.over, Whole):
            groups, pick, weight = self._whole(mirror)
        else:
            groups, pick, weight = self._elementwise(mirror)
        divide = np.ones(self.size)
        for tap, _, name in self.inputs:
            for atom in self.layout.atoms(tap):
                for c, scaled in zip(atom.columns, atom.scaled, strict=True):
                    divide[self.start[tap] + c] = self.entry.scale(name, tap) if scaled else 1.0
        put = np.array([c for e in self.elements for c in e.columns], dtype=INDEX)
        multiply = self.entry.scale(self.entry.output, self.tap)
        velocity = self.velocity[0] if self.velocity else None
        parts = (self.entry, self.tap, self.names, divide, multiply, tuple(groups), pick, weight, put)
        return Wire(*parts, velocity, self._sense)

    # inputs

    def _expanded(self) -> list[tuple[str, str | None, str]]:
        """Tap, selection and the name as written, for every input; patterns stand for what is computed before the output."""
        before = self.layout.order[: self.layout.order.index(self.tap)]
        out = []
        for name in self.entry.inputs:
            tap, selection = split(name)
            if "*" in tap or "?" in tap:
                hits = [t for t in before if fnmatchcase(t, tap)]
                if not hits:
                    raise ValueError(f"nothing that matches '{name}' is computed before '{self.tap}'.")
                out += [(t, selection, name) for t in hits]
            else:
                self._check_order(tap, name)
                out.append((tap, selection, name))
        return out

    def _check_order(self, tap: str, name: str) -> None:
        order = self.layout.order
        if tap not in order:
            raise ValueError(
                f"input '{name}' of '{self.entry.output}' is not computed by this solver for '{self.layout.robot}'; "
                f"it computes {', '.join(order)}."
            )
        if order.index(tap) > order.index(self.tap):
            raise ValueError(
                f"input '{name}' is computed later than '{self.entry.output}', so it cannot be read there; "
                f"computed before are {', '.join(order[: order.index(self.tap)])}."
            )

    def _columns(self, tap: str, atoms: Sequence[Atom]) -> list[tuple[int, str]]:
        return [(self.start[tap] + c, a.label) for a in atoms for c in a.columns]

    def _read(self, element: Atom | None) -> list[tuple[int, str]]:
        """Columns of z that a network reads, with their labels; the element's own where that is meant."""
        out: list[tuple[int, str]] = []
        kind = self.tap.split(".")[0]
        for tap, selection, name in self.inputs:
            if element is None or selection is not None or tap.split(".")[0] != kind:
                out += self._columns(tap, _selected(self.layout, tap, selection, name))
                continue
            owner = element.owner
            if tap == "joint.q":
                owner = int(self.layout.topology.dof_joint[owner])
            own = self._columns(tap, [a for a in self.layout.atoms(tap) if a.owner == owner])
            out += [(c, tap) for c, _ in own] if isinstance(self.entry.over, Shared) else own
        return out

    def _work(self, elements: Sequence[Atom]) -> np.ndarray:
        """Indices of the velocities on which the elements' forces do work; empty if no network needs them."""
        if not self.velocity:
            return np.zeros(0, dtype=INDEX)
        tap, parts, _ = self.velocity
        size = int(np.prod(dict(self.layout.taps)[tap][1:]))
        per = range(size) if parts is None else parts
        return np.array([e.owner * size + k for e in elements for k in per], dtype=INDEX)

    # scopes

    def _whole(self, mirror: Mirror | None) -> tuple[list[Group], np.ndarray, np.ndarray]:
        read = self._read(None)
        take, v = np.array([c for c, _ in read], INDEX), self._work(self.elements)
        n_out = sum(len(e.columns) for e in self.elements)
        labels, columns = (self.entry.output,), (tuple(label for _, label in read),)
        one, first = np.zeros(1, dtype=INDEX), np.arange(n_out, dtype=INDEX)[None]
        if mirror is None:
            group = Group(take[None], None, one, v[None], np.full((1, len(v)), self._sense), n_out, labels, columns)
            return [group], first, np.ones((1, n_out))
        other, sign = mirror.inputs(read)
        at, factor = mirror.outputs(self.elements)
        v_other, v_sign = (v[at], factor) if len(v) else (v, np.ones(0))
        group = Group(
            np.stack([take, other]), np.stack([np.ones(len(take)), sign]), np.zeros(2, dtype=INDEX),
            np.stack([v, v_other]), self._sense * np.stack([np.ones(len(v)), v_sign]), n_out, labels, columns,
        )  # fmt: skip
        return [group], np.concatenate([first, n_out + at[None]]), np.stack([np.full(n_out, 0.5), 0.5 * factor])

    def _elementwise(self, mirror: Mirror | None) -> tuple[list[Group], np.ndarray, np.ndarray]:
        """Evaluations sorted into groups by the number of their inputs; an element has one, or two if it is its own mirror
        image."""
        shared = isinstance(self.entry.over, Shared)
        runs = [run for k, e in enumerate(self.elements) for run in self._runs(k, e, mirror)]
        sizes = list(dict.fromkeys(len(r.take) for r in runs))
        if shared and len(sizes) > 1:
            by_size = [next(self.elements[r.element].label for r in runs if len(r.take) == n) for n in sizes]
            raise ValueError(
                f"Shared() needs the same inputs for every element, but those of {by_size[0]} and {by_size[1]} have "
                f"{sizes[0]} and {sizes[1]} features; select elements of one kind, or use Each()."
            )
        groups, order = [], []
        for size in sizes:
            mine = [r for r in runs if len(r.take) == size]
            keys = [self.entry.output if shared else self.elements[r.weights].label for r in mine]
            labels = list(dict.fromkeys(keys))
            columns = [next(r.columns for r, key in zip(mine, keys, strict=True) if key == label) for label in labels]
            groups.append(
                Group(
                    np.stack([r.take for r in mine]), np.stack([r.sign for r in mine]) if mirror else None,
                    np.array([labels.index(key) for key in keys], INDEX), np.stack([r.v_take for r in mine]),
                    np.stack([r.v_sign for r in mine]), len(self.elements[0].columns), tuple(labels), tuple(columns),
                )
            )  # fmt: skip
            order += mine
        return groups, *self._picked(order)

    def _picked(self, order: list["_Run"]) -> tuple[np.ndarray, np.ndarray]:
        n = len(self.elements[0].columns)
        terms = max(sum(r.element == k for r in order) for k in range(len(self.elements)))
        pick = np.zeros((terms, len(self.elements) * n), dtype=INDEX)
        weight = np.zeros((terms, len(self.elements) * n))
        for k in range(len(self.elements)):
            mine = [i for i, r in enumerate(order) if r.element == k]
            for term in range(terms):
                i = mine[term % len(mine)]
                pick[term, k * n : (k + 1) * n] = i * n + np.arange(n)
                weight[term, k * n : (k + 1) * n] = order[i].factor / terms
        return pick, weight

    def _runs(self, k: int, element: Atom, mirror: Mirror | None) -> list["_Run"]:
        def run(source: int, mirrored: bool) -> _Run:
            read = self._read(self.elements[source])
            take, sign, factor = np.array([c for c, _ in read], INDEX), np.ones(len(read)), 1.0
            if mirrored and mirror is not None:
                (take, sign), factor = mirror.inputs(read), mirror.sign_of(element)
            v = self._work([element])
            v_sign = np.full(len(v), factor * self._sense)
            return _Run(k, source, take, sign, factor, v, v_sign, tuple(label for _, label in read))

        if mirror is None:
            return [run(k, False)]
        partner = mirror.partner(self.elements, k)
        if partner != k:
            return [run(min(k, partner), k > partner)]
        own = mirror.sign_of(element) > 0 and not mirror.mixes(self._read(element))
        return [run(k, False)] if own else [run(k, False), run(k, True)]

    def _check_potential(self) -> None:
        """The force of a potential must reach every degree of freedom on which the potential depends."""
        t, own = self.layout.topology, {e.owner for e in self.elements}
        if not isinstance(self.entry.over, Whole):
            given = [name for tap, selection, name in self.inputs if selection is not None]
            if given:
                raise ValueError(
                    f"a potential for each joint reads the joint's own 'joint.q', not '{given[0]}'; or use Whole()."
                )
            several = [e for e in self.elements if t.joints[t.dof_joint[e.owner]].kind in ("ball", "free")]
            if several:
                raise ValueError(f"'{several[0].label}' is one of several directions of its joint, so its force alone is no "
                                 "gradient: use Whole(), or select hinges and slides.")  # fmt: skip
            return
        for tap, selection, name in self.inputs:
            for atom in _selected(self.layout, tap, selection, name):
                dofs = np.flatnonzero(t.dof_joint == atom.owner).tolist()
                if not set(dofs) <= own:
                    raise ValueError(f"the potential depends on '{atom.label}', but '{self.entry.output}' has no force there, so "
                                     "it would not be a gradient: select the same joints in both.")  # fmt: skip


@dataclass(frozen=True, eq=False)
class _Run:
    """One evaluation for one element, with the weights of the element `weights`."""

    element: int
    weights: int
    take: np.ndarray
    sign: np.ndarray
    factor: float
    v_take: np.ndarray
    v_sign: np.ndarray
    columns: tuple[str, ...]


def _width(layout: Layout, tap: str) -> int:
    """How many features a quantity has."""
    return sum(len(a.columns) for a in layout.atoms(tap)) if tap == "joint.q" else int(np.prod(dict(layout.taps)[tap]))


def _selected(layout: Layout, tap: str, selection: str | None, name: str) -> list[Atom]:
    """The parts of a quantity whose names match the selection; all without one."""
    atoms = layout.atoms(tap)
    hits = [a for a in atoms if selection is None or any(fnmatchcase(n, selection) for n in a.names)]
    if not hits:
        names = list(dict.fromkeys(a.names[0] for a in atoms))
        listed = ", ".join(names[:12]) + (", …" if len(names) > 12 else "")
        raise ValueError(f"'{name}' matches nothing in '{layout.robot}'; '{tap}' has {listed or 'no elements'}.")
    return hits
