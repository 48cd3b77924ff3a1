"""Reads the equalities of an `MjModel`: polynomials of joints and of tendons, points and frames of bodies held together."""

import mujoco
import numpy as np

from flexor.model.description import Description, EqualitySpec, LoopSpec
from flexor.model.frames import quat_product
from flexor.model.mjcf_refusals import Names, disabled
from flexor.model.softness import compliance

POLYNOMIAL = {int(mujoco.mjtEq.mjEQ_JOINT): "joint", int(mujoco.mjtEq.mjEQ_TENDON): "tendon"}


def read_equalities(m: mujoco.MjModel, d: Description, names: Names) -> None:
    """Fills `equalities` and `loops` with what is active in the file. Equalities of tendons go where tendons are ignored."""
    if disabled(m, "EQUALITY", "CONSTRAINT") or "equality" in d.ignore:
        return
    for e in np.flatnonzero(m.eq_active0).tolist():
        kind = POLYNOMIAL.get(int(m.eq_type[e]))
        if int(m.eq_type[e]) in (int(mujoco.mjtEq.mjEQ_CONNECT), int(mujoco.mjtEq.mjEQ_WELD)):
            d.loops.append(_loop(m, e, names))
        elif kind == "joint" or (kind == "tendon" and "tendon" not in d.ignore):
            d.equalities.append(_polynomial(m, e, kind, names))


def _polynomial(m: mujoco.MjModel, e: int, kind: str, names: Names) -> EqualitySpec:
    first, second = int(m.eq_obj1id[e]), int(m.eq_obj2id[e])
    coefficients = m.eq_data[e, :5].copy()
    if second < 0:  # then the others say nothing
        coefficients[1:] = 0
    other = None if second < 0 else names[kind][second]
    response = None
    if kind == "tendon":
        response = float(m.tendon_invweight0[first])
        response += float(coefficients[1] ** 2 * m.tendon_invweight0[second]) if second >= 0 else 0.0
    weight = m.tendon_invweight0 if kind == "tendon" else m.dof_invweight0[m.jnt_dofadr]
    own = float(weight[first]) + (float(weight[second]) if second >= 0 else 0.0)
    soft = compliance(m.eq_solref[e], m.eq_solimp[e], own)
    return EqualitySpec(names["equality"][e], names[kind][first], other, coefficients, kind, response, soft)


def _loop(m: mujoco.MjModel, e: int, names: Names) -> LoopSpec:
    """Sites become points of their bodies: the anchors and the relative rotation are equivalent."""
    weld = int(m.eq_type[e]) == int(mujoco.mjtEq.mjEQ_WELD)
    first, second, data = int(m.eq_obj1id[e]), int(m.eq_obj2id[e]), m.eq_data[e]
    if int(m.eq_objtype[e]) == int(mujoco.mjtObj.mjOBJ_SITE):
        anchors = m.site_pos[first], m.site_pos[second]
        quat = quat_product(m.site_quat[first], m.site_quat[second] * np.array([1.0, -1, -1, -1]))
        first, second = int(m.site_bodyid[first]), int(m.site_bodyid[second])
    else:
        anchors = (data[3:6], data[0:3]) if weld else (data[0:3], data[3:6])
        quat = data[6:10]
    move, turn = m.body_invweight0[first] + m.body_invweight0[second]
    return LoopSpec(
        name=names["equality"][e],
        first=names["body"][first],
        second=names["body"][second],
        weld=weld,
        anchor_a=anchors[0].copy(),
        anchor_b=anchors[1].copy(),
        quat=quat.copy() if weld else np.array([1.0, 0, 0, 0]),
        torquescale=float(data[10]) if weld else 1.0,
        response=float(move),
        rotation_response=float(turn),
        # the rows of a weld's angles are twice as long as MuJoCo's, which squares in their response
        compliance=compliance(m.eq_solref[e], m.eq_solimp[e], float(move), turning=4 * float(turn)),
    )
