"""`Placed` and `Touch`: what a narrow phase takes and returns."""

from typing import NamedTuple

from jaxtyping import Array, Float


class Touch(NamedTuple):
    """Candidates of one pair of shapes."""

    point_a: Float[Array, "n 3"]
    point_b: Float[Array, "n 3"]
    normal: Float[Array, "n 3"]
    distance: Float[Array, " n"]


class Placed(NamedTuple):
    """A shape in the world: frame, MuJoCo's size numbers (of a height field the depth of its base, the third), and the vertices
    of a mesh or a height field in the shape's frame."""

    pos: Float[Array, "3"]
    rot: Float[Array, "3 3"]
    size: Float[Array, "3"]
    vertices: Float[Array, "n 3"] | None = None
