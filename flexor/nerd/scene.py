"""What the robot-centric view is made of: `Scene`, one instant, and `Ahead`, what the base step makes of it."""

from typing import NamedTuple

from jaxtyping import Array, Float


class Scene(NamedTuple):
    """One instant: state, joint torques, direction of gravity, root frame, contact candidates; world axes."""

    q: Float[Array, " nq"]
    qd: Float[Array, " nv"]
    torque: Float[Array, " n"]
    gravity: Float[Array, "3"]
    origin: Float[Array, "3"]
    rotation: Float[Array, "3 3"]
    normal: Float[Array, "ncon 3"]
    point_a: Float[Array, "ncon 3"]
    point_b: Float[Array, "ncon 3"]
    distance: Float[Array, " ncon"]


class Ahead(NamedTuple):
    """The state after the base step, and what led there: velocities without contact (`free`), relative velocities and distances
    of the candidates without contact, their relative velocities with it (`after`), and how far limited joints would be from
    their two stops without contact. `closing` is the largest speed at which something near closes, zero where nothing is near.
    `jacobian` of the candidates is there where the layout asks for it: from velocity coordinates in the root frame to the
    relative velocity along the normal and two tangents, halfway to that state."""

    q: Float[Array, " nq"]
    qd: Float[Array, " nv"]
    free: Float[Array, " nv"]
    velocity: Float[Array, "ncon 3"]
    distance: Float[Array, " ncon"]
    after: Float[Array, "ncon 3"]
    room: Float[Array, "n_limited 2"]
    closing: Float[Array, ""]
    jacobian: Float[Array, "ncon 3 nv"] | None = None
