"""The whole contract of a solver, on every solver: records, taps, augmentation, time steps, batches, derivatives, files,
kernels."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import flexor as fx
from flexor.taps import TAPS, collect
from tests.solvers.scenes import DT, ROLLER, SCENES, any_scene, networks, scene  # noqa: F401

STEPS = 4
SUBSTEPPED = ("substeps", "substeps of hybrid", "hybrid of substeps")


def close(a, b, dtype, factor=1e3):
    """Equal to rounding: a few steps with an impact amplify it by less than a thousand."""
    tolerance = factor * float(jnp.finfo(dtype).eps)
    for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
        x, y = np.asarray(x), np.asarray(y)
        assert x.dtype == y.dtype
        np.testing.assert_allclose(x, y, rtol=tolerance, atol=tolerance * (1 + np.abs(y).max(initial=0)))


def test_kernels_give_what_xla_gives(any_scene):  # noqa: F811
    """A rollout and a step, with everything that can be recorded."""
    kernels, xla = any_scene.simulator(simd=True), any_scene.simulator(simd=False)
    start, controls = any_scene.start(xla), any_scene.controls(STEPS)
    record = list(fx.taps(xla))
    assert bool(record) == any_scene.quantities
    a, b = (sim.rollout(start, controls, record=record) for sim in (kernels, xla))
    close((a.q, a.qd, a.time, a.u, a.taps), (b.q, b.qd, b.time, b.u, b.taps), any_scene.precision)
    assert jnp.isfinite(b.q).all()
    (new, recorded), (same, others) = (sim.step(start, controls[0], record=record) for sim in (kernels, xla))
    close((new, recorded), (same, others), any_scene.precision)


def test_a_step_records_what_a_rollout_records(any_scene):  # noqa: F811
    """And recording changes nothing; taps have the shapes that `fx.taps` says; names are checked."""
    sim = any_scene.simulator()
    start, controls = any_scene.start(sim), any_scene.controls(STEPS)
    listed = fx.taps(sim)
    run = sim.rollout(start, controls, record=list(listed))
    state, plain = start, start
    for k, u in enumerate(controls):
        state, recorded = sim.step(state, u, record=list(listed))
        plain = sim.step(plain, u)
        close(recorded, {name: x[k] for name, x in run.taps.items()}, any_scene.precision)
    close((state.q, state.qd), (run.q[-1], run.qd[-1]), any_scene.precision)
    close((plain.q, plain.qd), (state.q, state.qd), any_scene.precision)
    for name, tap in listed.items():
        assert str(recorded[name].shape) == tap.shape
    assert sim.step(start, record=())[1] == {}
    with pytest.raises(KeyError, match=r"'joint.torque' is not a tap"):
        sim.step(start, record=["joint.torque"])
    absent = "joint.acceleration" if not listed else None
    if absent:
        with pytest.raises(ValueError, match=f"{type(sim.solver).__name__} does not compute '{absent}'"):
            sim.step(start, record=[absent])


def test_networks_where_they_apply(any_scene):  # noqa: F811
    """Fresh ones change no bit; a solver without quantities says so."""
    sim = any_scene.simulator()
    blueprint = fx.Blueprint().add("joint.applied_force", inputs=["joint.qd"], net=fx.nets.MLP(width=4))
    if not any_scene.quantities:
        with pytest.raises(ValueError, match="computes no named quantities"):
            sim.augment(blueprint)
        return
    hybrid = sim.augment(blueprint)
    assert hybrid.augmentation is hybrid.solver.augmentation
    start = any_scene.start(sim)
    np.testing.assert_array_equal(hybrid.step(start).q, sim.step(start).q)
    speaking = jax.tree.map(lambda x: x + 0.3, hybrid.augmentation)
    loud = eqx.tree_at(lambda s: s.augmentation, hybrid, speaking)
    assert float(jnp.abs(loud.step(start).qd - sim.step(start).qd).max()) > 1e-6


@pytest.mark.parametrize("simd", [True, False], ids=["kernels", "XLA"])
def test_time_steps_are_checked_before_anything_is_traced(any_scene, simd):  # noqa: F811
    s = any_scene
    with pytest.raises(ValueError, match=r"`dt` must be a positive number of seconds, got -1"):
        fx.Simulator(s.model, s.solver, dt=-1.0, simd=simd)
    if s.wrong_dt is not None:
        with pytest.raises(ValueError, match=r"trained for time steps of 0.0166667 s and cannot step by 0.001 s"):
            fx.Simulator(s.model, s.solver, dt=s.wrong_dt, simd=simd)
        with pytest.raises(ValueError, match=r"cannot step by 0.00833333 s"):
            fx.Simulator(s.model, fx.Substeps(s.solver, 2), dt=s.dt, simd=simd)
        with pytest.raises(
            ValueError, match=r"a traced `dt` cannot be checked: build the simulator with the number dt=0.0166667"
        ):
            jax.jit(lambda dt: fx.Simulator(s.model, s.solver, dt=dt, simd=simd).reset().q)(s.dt)
        doubled = fx.Simulator(s.model, fx.Substeps(s.solver, 2), dt=2 * s.dt, simd=simd)
        single = s.simulator(simd=simd)
        twice = single.step(single.step(s.start(single)))
        close(doubled.step(s.start(doubled)).q, twice.q, s.precision)


def test_batches(any_scene):  # noqa: F811
    sim = any_scene.simulator()
    start = any_scene.start(sim)
    scales = jnp.array([0.0, 1.0, -0.5], any_scene.model.dtype)

    def run(scale):
        return sim.rollout(eqx.tree_at(lambda s: s.qd, start, scale * start.qd), any_scene.controls(STEPS)).q[-1]

    together = jax.vmap(run)(scales)
    close(together, jnp.stack([run(x) for x in scales]), any_scene.precision)


def test_gradients_or_a_sentence(any_scene):  # noqa: F811
    """Of the end of a rollout and of what it recorded, by the first velocity, through the rollout's checkpoints. Against central
    differences: h^2 + eps / h, 1e-9 at h = 1e-5 in double precision and 1e-3 at h = 1e-2 in single, times 1000 for the stiffness
    of contact. A resting contact neither breaks nor slips here, so there is a derivative."""
    sim = any_scene.simulator()
    start, record = any_scene.start(sim), ["joint.passive_force"] if any_scene.quantities else []
    along = start.qd / jnp.linalg.norm(start.qd)

    @jax.jit
    def end(x):
        run = sim.rollout(eqx.tree_at(lambda s: s.qd, start, start.qd + x * along), any_scene.controls(STEPS), record=record)
        return jnp.sin(run.q[-1]).sum() + sum(x.sum() for x in run.taps.values())

    zero = jnp.zeros((), any_scene.model.dtype)
    if not any_scene.derivatives:
        assert not sim.solver.differentiable
        with pytest.raises(NotImplementedError, match="MujocoSolver cannot be differentiated"):
            jax.grad(end)(zero)
        with pytest.raises(ValueError, match="MujocoSolver cannot be substepped: its steps are not JAX throughout"):
            fx.Substeps(sim.solver, 2)
        return
    assert sim.solver.differentiable
    single = any_scene.precision == jnp.float32
    h = jnp.asarray(1e-2 if single else 1e-5, zero.dtype)
    difference = (end(zero + h) - end(zero - h)) / (2 * h)
    np.testing.assert_allclose(jax.grad(end)(zero), difference, rtol=0.02 if single else 1e-6, atol=0.02 if single else 1e-6)


def test_saved_and_opened_it_goes_on_to_the_same_bits(any_scene, tmp_path):  # noqa: F811
    """The simulator is equal in structure and numbers, and so is what it computes."""
    sim = any_scene.simulator()
    again = fx.open(sim.save(tmp_path / "sim"))
    assert jax.tree.structure(again) == jax.tree.structure(sim)
    runs = [s.rollout(any_scene.start(s), any_scene.controls(STEPS)) for s in (sim, again)]
    for pair in ((sim, again), runs):
        for x, y in zip(*map(jax.tree.leaves, pair), strict=True):
            assert (type(x), np.asarray(x).dtype) == (type(y), np.asarray(y).dtype)
            np.testing.assert_array_equal(x, y)


@pytest.mark.parametrize("name", SUBSTEPPED)
@pytest.mark.parametrize("simd", [True, False], ids=["kernels", "XLA"])
def test_records_through_substeps(name, simd):
    """Against the same short steps taken one by one: forces are means over the substeps, all else is that of the last."""
    s = scene(name)
    sim = s.simulator(simd=simd)
    inner = s.solver if name == "hybrid of substeps" else s.solver.base
    if name == "hybrid of substeps":
        inner = fx.HybridSolver(inner.base.base, inner.augmentation)
    short = fx.Simulator(s.model, inner, dt=DT / 3, simd=simd)
    record = list(fx.taps(sim))
    assert record == list(fx.taps(short))
    u = s.controls(1)[0]
    new, recorded = sim.step(s.start(sim), u, record=record)
    run = short.rollout(s.start(short), jnp.stack([u] * 3), record=record)
    close((new.q, new.qd), (run.q[-1], run.qd[-1]), s.model.dtype)
    for name, values in run.taps.items():
        close(recorded[name], jnp.mean(values, axis=0) if TAPS[name].mean else values[-1], s.model.dtype)
        assert TAPS[name].mean == name.endswith("_force")
    assert float(recorded["contact.normal_force"].max()) > 1
    assert float(jnp.ptp(run.taps["contact.normal_force"])) > 1e-3, "means and last values differ"


def test_networks_inside_and_outside_of_substeps_are_the_same():
    a, b = (scene(name).simulator() for name in ("substeps of hybrid", "hybrid of substeps"))
    start = scene("ncp").start(a)
    inside, outside = (sim.rollout(start, steps=STEPS) for sim in (a, b))
    np.testing.assert_array_equal(inside.q, outside.q)
    without = scene("substeps").simulator().rollout(start, steps=STEPS)
    assert float(jnp.abs(inside.q - without.q).max()) > 1e-6
    assert a.augmentation is a.solver.base.augmentation


def test_collectors_nest_and_leave_loops_alone():
    sim = scene("substeps").simulator()
    start = scene("substeps").start(sim)
    args = (sim.model, start, fx.Control(u=jnp.zeros(1), tau=jnp.zeros(7), wrench=jnp.zeros((3, 6))), sim.dt)

    def inner():
        return collect(sim.solver.step, ["joint.q"])(*args)

    (_, few), everything = jax.jit(lambda: collect(inner)())()
    assert list(few) == ["joint.q"]
    assert set(everything) == set(fx.taps(sim))
    with pytest.raises(ValueError, match=r"cannot be collected from outside of a rollout: name them in its `record=`"):
        collect(sim.rollout)(start, steps=2)


class Careful(fx.AbstractWrapper):
    """A wrapper that changes nothing and lists what it was asked."""

    calls: list = eqx.field(static=True, default_factory=list)

    def accept(self, control):
        self.calls.append("accept")
        self.base.accept(control)


def test_wrappers_delegate():
    """A wrapper in two lines behaves as what it wraps: checks, memory, controls, flags, simplification."""
    nerd, ncp = scene("nerd"), scene("ncp")
    for s in (nerd, ncp, scene("mujoco")):
        wrapped = Careful(s.solver)
        assert (wrapped.differentiable, wrapped.compilable) == (s.solver.differentiable, s.solver.compilable)
        a, b = (fx.Simulator(s.model, x, dt=s.dt) for x in (wrapped, s.solver))
        close(a.step(s.start(a)).q, b.step(s.start(b)).q, s.precision)
        assert "accept" in wrapped.calls
    with pytest.raises(ValueError, match=r"cannot step by 0.001 s"):
        fx.Simulator(nerd.model, Careful(nerd.solver), dt=0.001)
    wrench = fx.Control(wrench=jnp.zeros((3, 6)))
    for solver in (Careful(nerd.solver), fx.Substeps(nerd.solver, 1)):
        with pytest.raises(ValueError, match="reads joint torques only"):
            fx.Simulator(nerd.model, solver, dt=nerd.dt).step(nerd.start(nerd.simulator()), wrench)
    fresh = ncp.simulator().augment(fx.Blueprint().add("joint.applied_force", inputs=["joint.qd"], net=fx.nets.MLP(width=4)))
    simple = fx.Substeps(Careful(fresh.solver), 2).simplified()
    assert isinstance(simple, fx.Substeps)
    assert isinstance(simple.base, Careful)
    assert isinstance(simple.base.base, fx.RigidSolver)


class Filtered(fx.AbstractPolicy):
    """A spring on the arm that sees its angle through a low-pass filter, with noise."""

    share: jax.Array
    noise: float = eqx.field(static=True, default=0.0)

    def init(self, key):
        return jnp.zeros(()) if key is None else jax.random.normal(key)

    def __call__(self, state, memory, key):
        memory = memory + self.share * (state.q[-1] - memory)
        noise = self.noise * jax.random.normal(key) if self.noise else 0.0
        return jnp.reshape(-memory + noise, (1,)), memory


@pytest.mark.parametrize("simd", [True, False], ids=["kernels", "XLA"])
def test_policies_carry_memory(simd):
    s = scene("ncp")
    sim, policy = s.simulator(simd=simd), Filtered(jnp.asarray(0.3))
    start = s.start(sim)
    run = sim.rollout(start, policy, steps=8)
    memory, wanted = 0.0, []
    for q in np.asarray(run.q[:-1, -1]):
        memory += 0.3 * (q - memory)
        wanted.append(-memory)
    np.testing.assert_allclose(run.u[:, 0], wanted, atol=1e-14)
    np.testing.assert_allclose(run.policy_memory, memory, atol=1e-14)
    first = sim.rollout(start, policy, steps=3)
    second = sim.rollout(first.final, policy, steps=5, memory=first.policy_memory)
    np.testing.assert_array_equal(jnp.concatenate([first.q, second.q[1:]]), run.q)
    slope = jax.jit(jax.grad(lambda p: sim.rollout(start, p, steps=8).q[-1, -1]))(policy).share
    h = 1e-5
    ends = [sim.rollout(start, Filtered(jnp.asarray(0.3 + x)), steps=8).q[-1, -1] for x in (h, -h)]
    np.testing.assert_allclose(slope, (ends[0] - ends[1]) / (2 * h), rtol=1e-5)  # h^2 + eps / h of a slope of 1e-3
    with pytest.raises(ValueError, match="`key` and `memory` are for an `AbstractPolicy`"):
        sim.rollout(start, lambda state: jnp.zeros(1), steps=2, key=jax.random.key(0))


@pytest.mark.parametrize("simd", [True, False], ids=["kernels", "XLA"])
def test_policies_draw_random_numbers(simd):
    """One key for `init`, one for each step: the same key the same run, another key another; lanes have keys of their own."""
    s = scene("ncp")
    sim, policy = s.simulator(simd=simd), Filtered(jnp.asarray(0.0), noise=1.0)
    start, keys = s.start(sim), jax.random.split(jax.random.key(5), 3)

    def inputs(key):
        return sim.rollout(start, policy, steps=6, key=key).u[:, 0]

    together = jax.vmap(inputs)(keys)
    for k, key in enumerate(keys):
        init, steps = jax.random.split(key)
        noise = jnp.stack([jax.random.normal(jax.random.fold_in(steps, i)) for i in range(6)])
        np.testing.assert_allclose(together[k], noise - jax.random.normal(init), atol=1e-14)
    np.testing.assert_array_equal(inputs(keys[0]), inputs(keys[0]))
