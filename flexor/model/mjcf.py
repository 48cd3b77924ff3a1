"""Reads MJCF, which MuJoCo's own compiler parses, from an `MjModel` into a `Description`.

Read: bodies, joints, geoms, sites, pairs, exclusions, actuators (`mjcf_actuators`), equalities that are active, tendons,
gravity, keyframes, and the numeric fields "flexor.<parameter name>". `solref`, `solimp` and `solmix` are read where they make
a constraint softer than MuJoCo's defaults (`softness`); those of friction, and the settings of solver and integrator, are not
read. Whatever else would change the motion is refused in `mjcf_refusals`.
"""

import mujoco
import numpy as np

from flexor.model.description import (
    UNLIMITED,
    WORLD,
    BodySpec,
    Description,
    GeomSpec,
    JointSpec,
    PairSpec,
    SiteSpec,
    unique,
)
from flexor.model.extension import FLUID_PREFIX, PREFIX, set_structure
from flexor.model.frames import matrix_six, quat_matrix
from flexor.model.mjcf_actuators import read_actuators, reflected
from flexor.model.mjcf_equalities import read_equalities
from flexor.model.mjcf_fluid import read_fluid
from flexor.model.mjcf_refusals import disabled, refuse_unknown_physics
from flexor.model.mjcf_sensors import read_sensors
from flexor.model.mjcf_tendons import read_tendons
from flexor.model.softness import compliance, soften

JOINT_KINDS = {0: "free", 1: "ball", 2: "slide", 3: "hinge"}
SHAPE_KINDS = {
    0: "plane",
    1: "hfield",
    2: "sphere",
    3: "capsule",
    4: "ellipsoid",
    5: "cylinder",
    6: "box",
    7: "mesh",
    8: "sdf",
}


def read_mjcf(
    m: mujoco.MjModel, *, name: str, source: str, ignore: frozenset[str] = frozenset(), mesh_vertices: int = 32
) -> Description:
    """The description of a compiled MuJoCo model; `source` names it in errors."""
    d = Description(name, source, ignore=ignore, mesh_vertices=mesh_vertices)
    names = _Names(m)
    refuse_unknown_physics(m, d, names)
    d.bodies = [BodySpec(WORLD, "")] + [_body(m, i, names, d) for i in range(1, m.nbody)]
    d.joints = [_joint(m, j, names, d) for j in range(m.njnt)]
    d.geoms = [_geom(m, g, names, d) for g in range(m.ngeom) if not names["geom"][g].startswith(FLUID_PREFIX)]
    d.pairs = [_pair(m, p, names, d) for p in range(m.npair)]
    bodies = names["body"]
    d.exclusions = [(bodies[s >> 16], bodies[s & 0xFFFF]) for s in m.exclude_signature]
    d.actuators = read_actuators(m, d, names)
    d.sites = [_site(m, s, names) for s in range(m.nsite)]
    read_equalities(m, d, names)
    d.tendons = read_tendons(m, d, names)
    read_fluid(m, d, names)
    read_sensors(m, d, names)
    d.gravity = np.zeros(3) if disabled(m, "GRAVITY") else m.opt.gravity.copy()
    d.keyframes = {names["key"][k]: m.key_qpos[k].copy() for k in range(m.nkey)}
    moving = [names["key"][k] for k in range(m.nkey) if np.any(m.key_qvel[k])]
    if moving:
        d.warn(
            f"keyframe '{moving[0]}' has velocities, but flexor keeps only the coordinates of keyframes; give the velocities to "
            "`sim.reset(name, qd)`"
        )
    _warn_of_keyframe_poses(m, d, names)
    active = [names["key"][k] for k in range(m.nkey) if np.any(m.key_act[k])]
    if active:
        d.warn(
            f"keyframe '{active[0]}' has activations, but flexor keeps the coordinates of keyframes alone: states start without; "
            "`dataclasses.replace(state, act=...)` sets them"
        )
    d.filter_parent = not disabled(m, "FILTERPARENT")
    d.collisions = not disabled(m, "CONTACT", "CONSTRAINT")
    _read_extension(m, d)
    return d


def _warn_of_keyframe_poses(m: mujoco.MjModel, d: Description, names: "_Names") -> None:
    """Keyframes of mocap bodies elsewhere than the description has them, which no state of flexor's holds."""
    rows = np.argsort(np.where(m.body_mocapid >= 0, m.body_mocapid, m.nbody))[: m.nmocap]
    pos, quat = m.body_pos[rows].ravel(), m.body_quat[rows].ravel()
    for k in range(m.nkey if m.nmocap and "mocap" not in d.ignore else 0):
        if not (np.allclose(m.key_mpos[k], pos) and np.allclose(m.key_mquat[k], quat)):
            d.warn(
                f"keyframe '{names['key'][k]}' moves mocap bodies, whose poses are inputs in flexor: give them to each step as "
                "`Control(mocap_pos=..., mocap_quat=...)`"
            )
            return


def element_names(m: mujoco.MjModel) -> "_Names":
    """The names that the reader gives to the elements of a compiled model, by kind ("body", "geom") and index."""
    return _Names(m)


class _Names:
    """Names of MuJoCo's elements by kind and index; what has no name gets one from its body or its kind."""

    def __init__(self, m: mujoco.MjModel):
        body = self._named(m, mujoco.mjtObj.mjOBJ_BODY, [f"body{i}" for i in range(m.nbody)])
        joint = self._named(m, mujoco.mjtObj.mjOBJ_JOINT, self._on_body(m.jnt_bodyid, body, "joint"))
        trn = [joint[i] if 0 <= i < m.njnt else f"actuator{a}" for a, i in enumerate(m.actuator_trnid[:, 0])]
        self._lists = {
            "body": body,
            "joint": joint,
            "geom": self._named(m, mujoco.mjtObj.mjOBJ_GEOM, self._on_body(m.geom_bodyid, body, "geom")),
            "actuator": self._named(m, mujoco.mjtObj.mjOBJ_ACTUATOR, trn),
            "site": self._named(m, mujoco.mjtObj.mjOBJ_SITE, self._on_body(m.site_bodyid, body, "site")),
            "key": self._named(m, mujoco.mjtObj.mjOBJ_KEY, [f"key{i}" for i in range(m.nkey)]),
            "tendon": self._named(m, mujoco.mjtObj.mjOBJ_TENDON, [f"tendon{i}" for i in range(m.ntendon)]),
            "equality": self._named(m, mujoco.mjtObj.mjOBJ_EQUALITY, [f"equality{i}" for i in range(m.neq)]),
            "sensor": self._named(m, mujoco.mjtObj.mjOBJ_SENSOR, [f"sensor{i}" for i in range(m.nsensor)]),
            "flex": self._named(m, mujoco.mjtObj.mjOBJ_FLEX, [f"flex{i}" for i in range(m.nflex)]),
            "plugin": self._named(m, mujoco.mjtObj.mjOBJ_PLUGIN, [f"plugin{i}" for i in range(m.nplugin)]),
        }

    def __getitem__(self, kind: str, /) -> list[str]:
        return self._lists[kind]

    @staticmethod
    def _named(m: mujoco.MjModel, kind: mujoco.mjtObj, fallback: list[str]) -> list[str]:
        given = [mujoco.mj_id2name(m, kind, i) for i in range(len(fallback))]
        taken = {n for n in given if n}
        for i, n in enumerate(given):
            if not n:
                given[i] = unique(fallback[i], taken)
                taken.add(given[i])
        return given

    @staticmethod
    def _on_body(owners: np.ndarray, bodies: list[str], kind: str) -> list[str]:
        return [f"{bodies[b]}_{kind}{int(np.sum(owners[:i] == b))}" for i, b in enumerate(owners)]


def _body(m: mujoco.MjModel, i: int, names: _Names, d: Description) -> BodySpec:
    R = quat_matrix(m.body_iquat[i])
    return BodySpec(
        name=names["body"][i],
        parent=names["body"][m.body_parentid[i]],
        pos=m.body_pos[i].copy(),
        quat=m.body_quat[i].copy(),
        mass=float(m.body_mass[i]),
        com=m.body_ipos[i].copy(),
        inertia=matrix_six(R @ np.diag(m.body_inertia[i]) @ R.T),
        gravcomp=0.0 if "gravcomp" in d.ignore or disabled(m, "GRAVITY") else float(m.body_gravcomp[i]),
        mocap=bool(m.body_mocapid[i] >= 0) and "mocap" not in d.ignore,
        response=float(m.body_invweight0[i, 0]),
    )


def _joint(m: mujoco.MjModel, j: int, names: _Names, d: Description) -> JointSpec:
    kind = JOINT_KINDS[int(m.jnt_type[j])]
    q = slice(m.jnt_qposadr[j], m.jnt_qposadr[j] + {"free": 7, "ball": 4}.get(kind, 1))
    v = slice(m.jnt_dofadr[j], m.jnt_dofadr[j] + {"free": 6, "ball": 3}.get(kind, 1))
    name = names["joint"][j]
    for what, values in (("damping", m.dof_damping), ("armature", m.dof_armature), ("frictionloss", m.dof_frictionloss)):
        if np.ptp(values[v]):
            d.fail(f"joint '{name}' has different {what} on its degrees of freedom; flexor keeps one number per joint")
    limited = bool(m.jnt_limited[j]) and not disabled(m, "LIMIT", "CONSTRAINT") and kind != "free"
    limited = limited and not (kind == "ball" and "ball-limit" in d.ignore)
    dof = m.jnt_dofadr[j]
    damping, armature = reflected(m, j, d)
    return JointSpec(
        name=name,
        kind=kind,
        body=names["body"][m.jnt_bodyid[j]],
        reference=m.qpos0[q].copy(),
        rest=m.qpos_spring[q].copy(),
        pos=m.jnt_pos[j].copy(),
        axis=m.jnt_axis[j].copy(),
        stiffness=0.0 if disabled(m, "SPRING") else float(m.jnt_stiffness[j]),
        damping=0.0 if disabled(m, "DAMPER") else float(m.dof_damping[dof]) + damping,
        armature=float(m.dof_armature[dof]) + armature,
        frictionloss=0.0 if disabled(m, "FRICTIONLOSS", "CONSTRAINT") else float(m.dof_frictionloss[dof]),
        range=_range(m, j, name, d) if limited else None,
        force_range=tuple(m.jnt_actfrcrange[j]) if m.jnt_actfrclimited[j] else UNLIMITED,
        actuated_gravcomp=bool(m.jnt_actgravcomp[j]),
        compliance=compliance(m.jnt_solref[j], m.jnt_solimp[j], float(m.dof_invweight0[dof])) if limited else None,
    )


def _range(m: mujoco.MjModel, j: int, name: str, d: Description) -> tuple[float, float]:
    """The limits of a joint. MuJoCo's margin makes them act that much earlier and hold the joint there: a narrower range."""
    low, high = m.jnt_range[j] + m.jnt_margin[j] * np.array([1.0, -1.0])
    if int(m.jnt_type[j]) == int(mujoco.mjtJoint.mjJNT_BALL):  # the largest angle alone
        low = 0.0
    if low > high:
        d.fail(f"joint '{name}' has a limit margin of {m.jnt_margin[j]}, which leaves nothing of its range {m.jnt_range[j]}")
    return float(low), float(high)


def _geom(m: mujoco.MjModel, g: int, names: _Names, d: Description) -> GeomSpec:
    shape = SHAPE_KINDS[int(m.geom_type[g])]
    vertices = None
    if shape == "mesh":
        start, count = m.mesh_vertadr[m.geom_dataid[g]], m.mesh_vertnum[m.geom_dataid[g]]
        vertices = m.mesh_vert[start : start + count].astype(float)
    size, grid = m.geom_size[g].copy(), None
    if shape == "hfield":
        size, vertices, grid = _field(m, int(m.geom_dataid[g]))
    return GeomSpec(
        name=names["geom"][g],
        shape=shape,
        body=names["body"][m.geom_bodyid[g]],
        pos=m.geom_pos[g].copy(),
        quat=m.geom_quat[g].copy(),
        size=size,
        vertices=vertices,
        grid=grid,
        contype=int(m.geom_contype[g]) & 0xFFFFFFFF,
        conaffinity=int(m.geom_conaffinity[g]) & 0xFFFFFFFF,
        condim=int(m.geom_condim[g]),
        priority=int(m.geom_priority[g]),
        friction=float(m.geom_friction[g, 0]),
        margin=float(m.geom_margin[g]),
        torsion=float(m.geom_friction[g, 1]),
        rolling=float(m.geom_friction[g, 2]),
        solref=m.geom_solref[g].copy(),
        solimp=m.geom_solimp[g].copy(),
        solmix=float(m.geom_solmix[g]),
        adhesion=float(m.geom_adhesion[g]),
        gap=float(m.geom_gap[g]),
        surface_velocity=np.zeros(6) if "surfacevel" in d.ignore else m.geom_surfacevel[g].copy(),
    )


def _field(m: mujoco.MjModel, h: int) -> tuple[np.ndarray, np.ndarray, tuple[int, int]]:
    """Size, vertices and grid of a height field: rows along y, columns along x, heights from zero up."""
    rows, columns, start = int(m.hfield_nrow[h]), int(m.hfield_ncol[h]), int(m.hfield_adr[h])
    x, y, top, base = m.hfield_size[h]
    across, along = np.meshgrid(np.linspace(-x, x, columns), np.linspace(-y, y, rows))
    heights = top * m.hfield_data[start : start + rows * columns].astype(float)
    return np.array([0, 0, base]), np.stack([across.ravel(), along.ravel(), heights], axis=1), (rows, columns)


def _site(m: mujoco.MjModel, s: int, names: _Names) -> SiteSpec:
    numbers = (m.site_pos[s].copy(), m.site_quat[s].copy(), m.site_size[s].copy())
    return SiteSpec(names["site"][s], names["body"][m.site_bodyid[s]], *numbers)


def _pair(m: mujoco.MjModel, p: int, names: _Names, d: Description) -> PairSpec:
    a, b = (names["geom"][i[p]] for i in (m.pair_geom1, m.pair_geom2))
    condim = int(m.pair_dim[p])
    first, second, torsion, rolling, other = m.pair_friction[p].tolist()
    if first != second and condim > 1:
        d.refuse("anisotropic", f"pair '{a}' and '{b}' has friction {first} and {second} in its two directions")
    if rolling != other and condim == 6:
        d.refuse("anisotropic", f"pair '{a}' and '{b}' has rolling friction {rolling} and {other} in its two directions")
    margin, gap, adhesion = (float(x[p]) for x in (m.pair_margin, m.pair_gap, m.pair_adhesion))
    pair = PairSpec(a, b, first, condim, margin, torsion=torsion, rolling=rolling, adhesion=adhesion, gap=gap)
    bodies = m.geom_bodyid[[m.pair_geom1[p], m.pair_geom2[p]]]
    return soften(pair, m.pair_solref[p], m.pair_solimp[p], float(m.body_invweight0[bodies, 0].sum()))


def _read_extension(m: mujoco.MjModel, d: Description) -> None:
    """Numeric fields "flexor.<parameter name>" (see `save`) into the overrides of the description."""
    for i in range(m.nnumeric):
        name = mujoco.mj_id2name(m, mujoco.mjtObj.mjOBJ_NUMERIC, i) or ""
        if name.startswith(PREFIX):
            start = m.numeric_adr[i]
            d.overrides[name.removeprefix(PREFIX)] = m.numeric_data[start : start + m.numeric_size[i]].copy()
    set_structure(d)
