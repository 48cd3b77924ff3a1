"""Simulators in folders: every solver returns to the same bits; what is missing, altered, too new or something else is named."""

import dataclasses
import importlib
import inspect
import json
import os
import pkgutil
import stat
import subprocess
import sys

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import flexor as fx
from flexor.augment.networks import AbstractNet
from flexor.contact.contact import AbstractContact
from flexor.contact.friction import AbstractFriction
from flexor.files import array_bytes, read_arrays, sealed
from flexor.nerd.base import AbstractBase
from flexor.solvers.artefact import CLASSES, VERSION
from flexor.solvers.encoding import decode, encode, lookup
from flexor.solvers.integrators import AbstractIntegrator

PENALTIES = [fx.Penalty(law) for law in (fx.Andersson(), fx.Hollars(velocity=0.03), fx.SmoothedCoulomb(), fx.BrownMcPhee())]
SOLVERS = {
    "ncp": fx.RigidSolver(),
    "ncp with options": fx.RigidSolver(fx.NCP(iterations=7, tolerance=1e-3, warm_start=False), fx.ImplicitDamping()),
    **{f"penalty {type(p.friction).__name__}": fx.RigidSolver(p, fx.RK4()) for p in PENALTIES},
    "mixed": fx.RigidSolver(fx.Mixed(soft="*", implicit=False)),
    "no contact": fx.RigidSolver(contact=None),
    "substeps": fx.Substeps(fx.RigidSolver(), 3),
    "mujoco": fx.MujocoSolver("RK4"),
}
NETS = {
    "MLP": fx.nets.MLP(width=3, depth=1, activation="sin"),
    "Dissipative": fx.nets.Dissipative(width=2, depth=1),
    "Conservative": fx.nets.Conservative(width=2, depth=1),
    "Symmetric": fx.nets.Symmetric(of=fx.nets.MLP(width=2, depth=1), pairs=(("shoulder", "elbow"),), flip=("elbow",)),
}


def changed(model):
    """The model with numbers that no description holds, different in every leaf."""
    rng = np.random.default_rng(3)
    return jax.tree.map(lambda x: x * (1 + 1e-3 * jnp.asarray(rng.random(x.shape), x.dtype)), model)


def hybrid(net, dtype=jnp.float64):
    sim = fx.Simulator(changed(fx.load("double_pendulum", dtype=dtype)), fx.RigidSolver(contact=None), dt=0.004)
    blueprint = fx.Blueprint().add(
        "joint.passive_force", inputs=["joint.q"], net=net, over=fx.Whole(), scales={"joint.passive_force": 0.3}
    )
    sim = sim.augment(blueprint)
    return jax.tree.map(lambda x: x + 0.1 if eqx.is_inexact_array(x) else x, sim)  # networks that change something


def assert_same(a, b):
    """Equal in structure, in static fields, in types, and in every bit."""
    (xs, tree), (ys, other) = jax.tree.flatten(a), jax.tree.flatten(b)
    assert tree == other
    for x, y in zip(xs, ys, strict=True):
        assert type(x) is type(y)
        if eqx.is_array(x):
            assert (x.dtype, x.shape, x.weak_type) == (y.dtype, y.shape, y.weak_type)
            assert np.asarray(x).tobytes() == np.asarray(y).tobytes()
        else:
            assert x == y


def returned(sim, folder):
    again = fx.open(sim.save(folder))
    assert_same(again, sim)
    return again


@pytest.mark.parametrize("name", SOLVERS)
@pytest.mark.parametrize("dtype", [jnp.float64, jnp.float32], ids=["float64", "float32"])
def test_every_solver_returns(name, dtype, tmp_path):
    sim = fx.Simulator(changed(fx.load("cube", dtype=dtype)), SOLVERS[name], dt=0.0031)
    returned(sim, tmp_path / "sim")


@pytest.mark.parametrize("net", NETS)
def test_networks_return(net, tmp_path):
    returned(hybrid(NETS[net]), tmp_path / "sim")


GRIPPER = """
<mujoco model="gripper"><worldbody>
  <body name="left"><joint name="l" type="slide" axis="0 1 0"/><geom size="0.01" mass="0.1"/><site name="tip"/></body>
  <body name="right"><joint name="r" type="slide" axis="0 -1 0"/><geom size="0.01" mass="0.1"/></body>
</worldbody><equality><joint joint1="r" joint2="l" polycoef="0 1 0 0 0"/></equality></mujoco>
"""


@pytest.mark.parametrize("robot", ["quadruped", "ant", "swimmer5", GRIPPER], ids=lambda r: r[:9].strip())
def test_robots_return(robot, tmp_path):
    returned(fx.Simulator(changed(fx.load(robot)), dt=0.002), tmp_path / "sim")


def _rolled(sim, qd=0.4):
    control = np.random.default_rng(0).normal(size=(4, sim.model.nu))
    return sim.rollout(sim.reset(qd=np.full(sim.model.nv, qd)), control, steps=4)


@pytest.mark.parametrize("name", ["ncp", "penalty Hollars", "mixed", "substeps", "mujoco", "hybrid", "kernels"])
def test_rollouts_go_on_to_the_same_bits(name, tmp_path):
    model = changed(fx.load("cube"))
    sims = {"hybrid": hybrid(NETS["MLP"]), "kernels": fx.Simulator(model, dt=0.004, simd=True)}
    sim = sims.get(name) or fx.Simulator(model, SOLVERS[name], dt=0.004)
    again = returned(sim, tmp_path / "sim")
    assert again.simd == sim.simd
    assert_same(_rolled(again), _rolled(sim))


@pytest.mark.parametrize("name", ["ant", "cartpole", "cube", "double_pendulum_contact"])
def test_learned_solvers_return(name, tmp_path):
    sim = fx.nerd.load(name).simulator()
    again = returned(sim, tmp_path / "sim")
    if name == "cartpole":
        assert_same(_rolled(again), _rolled(sim))


def test_another_process_opens_it_to_the_same_bits(tmp_path):
    sim = fx.Simulator(changed(fx.load("cartpole", dtype=jnp.float32)), dt=0.004, simd=True)
    sim.save(tmp_path / "sim")
    code = (
        f"import flexor as fx, numpy as np; sim = fx.open({str(tmp_path / 'sim')!r})\n"
        "print(np.asarray(sim.rollout(sim.reset(qd=np.full(2, 0.4)), np.ones((5, 1))).q).tobytes().hex())"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    q = sim.rollout(sim.reset(qd=np.full(2, 0.4)), np.ones((5, 1))).q
    assert done.stdout.strip() == np.asarray(q).tobytes().hex()


def test_all_classes_have_their_place_in_the_table():
    """Whoever adds a solver, a contact model, an integrator, a friction law or a network adds its name to the table."""
    for module in pkgutil.walk_packages(fx.__path__, "flexor."):
        if not module.name.startswith(("flexor.cli", "flexor.viz", "flexor.simd")):
            importlib.import_module(module.name)
    kinds = [fx.AbstractSolver, AbstractContact, AbstractIntegrator, AbstractFriction, AbstractNet, AbstractBase]
    found = set()
    while kinds:
        kind = kinds.pop()
        kinds += [c for c in kind.__subclasses__() if c.__module__.startswith("flexor.")]
        if not kind.__name__.startswith("Abstract"):
            found.add(f"{kind.__module__}:{kind.__qualname__}")
    assert len(found) > 15
    assert found <= set(CLASSES.values())


@pytest.mark.parametrize("name", CLASSES)
def test_the_table_leads_to_classes_that_are_made_of_their_fields(name):
    made = lookup(name, CLASSES)
    assert made.__name__ == name
    fields = [f.name for f in dataclasses.fields(made) if f.init]
    assert list(inspect.signature(made).parameters) == fields


VALUES = [
    *(None, True, 3, -(2**60), 0.1, 1e-320, -0.0, float("inf"), float("-inf"), "text", (), (1, (2.5, "x")), [1, [2]]),
    *({}, {"a": (1,), 3: [None]}, np.float32(0.1), np.int8(-3), np.arange(6).reshape(2, 3), np.zeros((0, 4), np.float16)),
    *(np.array(7.0), np.array([True, False]), jnp.asarray(0.1), jnp.arange(3, dtype=jnp.uint8), jnp.float32(2.0)),
    *(jnp.asarray([1.5, -0.0, jnp.nan, jnp.inf], jnp.bfloat16), jnp.zeros((0,)), jax.random.key(7)),
]


@pytest.mark.parametrize("value", VALUES, ids=lambda v: f"{type(v).__name__} {np.shape(v) if eqx.is_array(v) else v}")
def test_values_return_exactly(value):
    data, arrays = encode(value, {}, "x")
    again = decode(json.loads(json.dumps(data, allow_nan=False)), {}, read_arrays(array_bytes(arrays)))
    assert type(again) is type(value)
    if isinstance(value, jax.Array) and jax.dtypes.issubdtype(value.dtype, jax.dtypes.prng_key):
        again, value = jax.random.key_data(again), jax.random.key_data(value)
    if isinstance(value, jax.Array | np.ndarray | np.generic):
        assert (again.dtype, again.shape) == (value.dtype, value.shape)
        assert getattr(again, "weak_type", None) == getattr(value, "weak_type", None)
        assert np.asarray(again).tobytes() == np.asarray(value).tobytes()
    else:
        assert repr(again) == repr(value)  # which tells -0.0 from 0.0


def test_what_has_no_place_in_a_file_is_refused_by_name():
    with pytest.raises(TypeError, match=r"`x.1` cannot be saved: the function '.*<lambda>' is not among the classes"):
        encode((1, lambda: 0), {}, "x")
    with pytest.raises(TypeError, match=r"`x.mass` cannot be saved: a complex is not among"):
        encode({"mass": 1j}, {}, "x")
    with pytest.raises(ValueError, match="inside a JAX transformation: save outside of jit"):
        jax.jit(lambda x: encode(x, {}, "x") and x)(1.0)


class Damped(fx.AbstractWrapper):
    """A solver of a user's own."""

    gain: float = 0.9

    def step(self, model, state, control, dt):
        new = self.base.step(model, state, control, dt)
        return eqx.tree_at(lambda s: s.qd, new, self.gain * new.qd)


def test_classes_of_the_users_own(tmp_path):
    sim = fx.Simulator(fx.load("pendulum"), Damped(fx.RigidSolver(), 0.5), dt=0.01)
    with pytest.raises(TypeError, match=r"`solver` cannot be saved: a Damped is not among .* Name classes of your own"):
        sim.save(tmp_path / "sim")
    assert not list(tmp_path.iterdir())
    sim.save(tmp_path / "sim", classes=[Damped])
    assert_same(fx.open(tmp_path / "sim", classes=[Damped]), sim)
    with pytest.raises(ValueError, match="cannot be opened: there is no class 'Damped' in this flexor"):
        fx.open(tmp_path / "sim")


@pytest.fixture
def saved(tmp_path):
    return fx.Simulator(fx.load("pendulum"), dt=0.01).save(tmp_path / "sim")


def test_no_folder_or_no_simulator(tmp_path, saved):
    with pytest.raises(FileNotFoundError, match=r"there is no folder '.*nothing' to open a simulator from"):
        fx.open(tmp_path / "nothing")
    with pytest.raises(FileNotFoundError, match=r"is not a simulator: there is no 'simulator.json' in it"):
        fx.open(tmp_path)
    (saved / "simulator.json").write_text("{}")
    with pytest.raises(ValueError, match=r"simulator.json' is corrupt, or no file of flexor: it lacks 'format'"):
        fx.open(saved)
    (saved / "simulator.json").write_text('{"format": "flexor fit", "version": 1}')
    with pytest.raises(ValueError, match="describes a 'flexor fit', not a 'flexor simulator'"):
        fx.open(saved)


def test_half_a_file(saved):
    text = (saved / "simulator.json").read_text()
    (saved / "simulator.json").write_text(text[: len(text) // 2])
    with pytest.raises(ValueError, match=r"simulator.json' is corrupt, or no file of flexor"):
        fx.open(saved)


def test_a_newer_version(saved):
    data = json.loads((saved / "simulator.json").read_text())
    (saved / "simulator.json").write_text(json.dumps({**data, "version": VERSION + 1}))
    with pytest.raises(
        ValueError, match=rf"written by a newer flexor: its format has version {VERSION + 1}, and this flexor"
    ):
        fx.open(saved)


@pytest.mark.parametrize("name", ["arrays.safetensors", "robot.xml"])
def test_a_missing_file_is_named(saved, name):
    (saved / name).unlink()
    with pytest.raises(FileNotFoundError, match=f"simulator '.*sim' is incomplete: its file '{name}' is missing"):
        fx.open(saved)


@pytest.mark.parametrize("name", ["arrays.safetensors", "robot.xml"])
def test_an_altered_file_is_named(saved, name):
    content = bytearray((saved / name).read_bytes())
    content[-2] ^= 1
    (saved / name).write_bytes(content)
    with pytest.raises(ValueError, match=f"{name}' was altered after it was written, or belongs to another simulator"):
        fx.open(saved)


def test_an_altered_head_is_named(saved):
    text = (saved / "simulator.json").read_text()
    (saved / "simulator.json").write_text(text.replace('"hinge"', '"knee"', 1))
    with pytest.raises(ValueError, match=r"simulator.json' was altered after it was written: its digest does not match"):
        fx.open(saved)


def test_nothing_but_the_tables_classes_is_ever_made(saved):
    """A head that is sealed as it should be, but asks for a class that is none of ours."""
    data = json.loads((saved / "simulator.json").read_text())
    beside = {name: (saved / name).read_bytes() for name in data["files"]}
    for name in ("os.system", "subprocess:Popen", "Simulator"):
        data["simulator"]["solver"] = {"class": name, "args": ["true"]}
        kept = {k: v for k, v in data.items() if k not in ("format", "version", "files", "digest")}
        (saved / "simulator.json").write_bytes(sealed("simulator", VERSION, kept, beside))
        with pytest.raises(ValueError, match=f"cannot be opened: there is no class '{name}' in this flexor"):
            fx.open(saved)


def test_double_precision_is_never_rounded_in_silence(saved):
    with jax.enable_x64(False), pytest.raises(ValueError, match=r"in double precision \(float64\): call jax.config.update"):
        fx.open(saved)


def test_saving_over_a_simulator_replaces_it_whole_or_not_at_all(saved, monkeypatch):
    other = fx.Simulator(fx.load("cartpole"), dt=0.02)
    before = {p.name: p.read_bytes() for p in saved.iterdir()}
    rename, count = os.rename, []

    def fail(a, b):
        count.append(a)
        if len(count) == 2:  # the old folder is out of the way, the new one not yet in its place
            raise OSError("no space left")
        rename(a, b)

    monkeypatch.setattr(os, "rename", fail)
    with pytest.raises(OSError, match="no space left"):
        other.save(saved)
    assert {p.name: p.read_bytes() for p in saved.iterdir()} == before
    assert [p.name for p in saved.parent.iterdir()] == ["sim"]
    monkeypatch.undo()
    assert_same(fx.open(other.save(saved)), other)
    assert [p.name for p in saved.parent.iterdir()] == ["sim"]


def test_other_folders_are_not_overwritten(saved, tmp_path):
    sim = fx.open(saved)
    (saved / "notes.txt").write_text("mine")
    with pytest.raises(FileExistsError, match=r"holds 'notes.txt', which is not part of a simulator and would be lost"):
        sim.save(saved)
    assert (saved / "notes.txt").read_text() == "mine"
    (tmp_path / "robots").mkdir()
    (tmp_path / "robots" / "robot.xml").write_text("<mujoco/>")
    with pytest.raises(FileExistsError, match="is not a simulator's folder, so it is not overwritten"):
        sim.save(tmp_path / "robots")
    (tmp_path / "file").touch()
    with pytest.raises(FileExistsError, match="there is a file of that name"):
        sim.save(tmp_path / "file")
    with pytest.raises(FileNotFoundError, match=r"the folder '.*nowhere' does not exist"):
        sim.save(tmp_path / "nowhere" / "sim")
    (tmp_path / "empty").mkdir()
    sim.save(tmp_path / "empty")


def test_folder_and_files_have_the_users_ordinary_mode(tmp_path):
    sim, old = fx.Simulator(fx.load("pendulum")), os.umask(0o027)
    try:
        folder = sim.save(tmp_path / "sim")
    finally:
        os.umask(old)
    assert stat.S_IMODE(folder.stat().st_mode) == 0o750
    assert {stat.S_IMODE(p.stat().st_mode) for p in folder.iterdir()} == {0o640}


def test_the_description_beside_it_is_for_people(saved, tmp_path):
    assert_same(fx.load(saved / "robot.xml", dtype=jnp.float64), fx.open(saved).model)
    sim = fx.open(saved)
    strange = eqx.tree_at(lambda s: s.model.bodies.mass, sim, -sim.model.bodies.mass)
    folder = strange.save(tmp_path / "strange")  # a mass that no MJCF can hold
    assert "link" in json.loads((folder / "simulator.json").read_text())["description"]["why_not"]
    assert not (folder / "robot.xml").exists()
    assert_same(fx.open(folder), strange)
