"""Fine-tuning on recordings, and the loss of several steps."""

import dataclasses
from functools import partial

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import flexor as fx
from flexor.nerd import (
    AnchorLoss,
    FineContact,
    Finetuning,
    Frames,
    Nerd,
    NoBase,
    OneStepLoss,
    PositionLoss,
    RolloutLoss,
    Sizes,
    SteadyStarts,
    Training,
    Transformer,
    finetune,
    read,
    sample,
    train,
)
from flexor.nerd.examples import norms_of
from flexor.nerd.finetune import _advance
from flexor.nerd.losses import Before
from flexor.nerd.network import member, trainable
from flexor.nerd.training import optimiser_of
from flexor.nerd.unrolled import path_errors, unrolled_errors
from flexor.nerd.windows import windows

HOW = Finetuning(losses=(OneStepLoss(), RolloutLoss()), steps=30, batch=8, window=6, rate=3e-3)
PATHS = dataclasses.replace(HOW, losses=(PositionLoss(),))


@pytest.fixture(scope="module")
def sim():
    return fx.Simulator(fx.load("pendulum"), fx.RigidSolver(contact=None), dt=0.05)


@pytest.fixture(scope="module")
def logs(sim):
    rng = np.random.default_rng(0)
    return [sim.rollout(sim.reset(rng.normal(size=1)), np.zeros((12, 1), np.float32)) for _ in range(4)]


@pytest.fixture(scope="module")
def nerd(sim, logs):
    frames = Frames(sim.model.topology, 0.05, base=NoBase())
    empty = Nerd(sim.model, None, frames)
    data = windows(empty, logs, 6)
    norms = norms_of(data.x, data.y)
    sizes = Sizes(layers=1, width=16, heads=2, history=4)
    network = eqx.filter_jit(eqx.filter_vmap(lambda k: Transformer.build(sizes, norms, k)))(
        jax.random.split(jax.random.key(0), 1)
    )
    return Nerd(sim.model, network, frames)


def test_recordings_improve_it_and_leave_its_normalisation(nerd, logs):
    losses = []
    tuned = finetune(nerd, logs, HOW, progress=lambda step, total, value: losses.append(value))
    assert np.mean(losses[-3:]) < 0.7 * np.mean(losses[:3])
    assert eqx.tree_equal(tuned.network.norms, nerd.network.norms)
    assert tuned.card["fine-tuned"]["recordings"] == 4
    held = finetune(nerd, logs, dataclasses.replace(HOW, steps=5, losses=(*HOW.losses, AnchorLoss(1e3))))
    away = [float(jnp.abs(t.network.embed - nerd.network.embed).max()) for t in (tuned, held)]
    assert 0 < away[1] < 0.5 * away[0]


def test_members_of_an_ensemble_learn_each_for_itself(nerd, logs):
    how = dataclasses.replace(PATHS, steps=3, starts=SteadyStarts(2), clip=1e9)
    norms, sizes = jax.tree.map(lambda x: x[0], nerd.network.norms), nerd.network.sizes
    two = eqx.filter_vmap(lambda k: Transformer.build(sizes, norms, k))(jax.random.split(jax.random.key(1), 2))
    both = finetune(dataclasses.replace(nerd, network=two), logs, how).network
    alone = jax.tree.map(lambda x: x[:1], two)
    alone = finetune(dataclasses.replace(nerd, network=alone), logs, how).network
    assert float(jnp.abs(both.embed[0] - two.embed[0]).max()) > 1e-3
    assert np.allclose(both.embed[0], alone.embed[0], atol=1e-4)
    assert float(jnp.abs(both.embed[1] - two.embed[1]).max()) > 1e-3


def test_a_network_agrees_with_its_own_rollout(nerd):
    own = nerd.simulator()
    run = own.rollout(own.reset(jnp.array([0.4])), steps=5)
    torque = jnp.zeros((5, 1))
    errors = unrolled_errors(member(nerd.network, 0), nerd.frames, nerd.model, run.q, run.qd, torque)
    assert errors.shape == (5, 2)
    assert np.abs(errors).max() < 1e-3  # rounding, in units of a step's change
    paths = path_errors(member(nerd.network, 0), nerd.frames, nerd.model, run.q, run.qd, torque)
    assert paths.shape == (5, 1)  # hinges alone
    assert paths.max() < 2e-4  # the 1e-8 under its root, and rounding


def test_gradients_along_a_path_are_cut(nerd, logs):
    log, torque = logs[0], jnp.zeros((len(logs[0]), 1))

    def off(q, limit):
        return path_errors(member(nerd.network, 0), nerd.frames, nerd.model, log.q.at[0].set(q), log.qd, torque, limit).sum()

    whole, same, cut = (float(jax.grad(off)(log.q[0], limit)[0]) for limit in (np.inf, 1e6, 1e-2))
    assert np.isclose(whole, same, rtol=1e-4)
    assert 0 < abs(cut) <= 1e-2 * 1.001 < abs(whole)


def test_paths_are_learned_and_held_out_recordings_choose(nerd, logs):
    how = dataclasses.replace(PATHS, first=0.5)
    blind = [
        eqx.tree_at(lambda t: t.qd, log, jnp.full_like(log.qd, 9.0)) for log in logs
    ]  # wrong velocities, which it does not read
    tuned = finetune(nerd, blind, dataclasses.replace(how, steps=60, first=0.0, starts=SteadyStarts(2)))
    before, after = (
        np.mean([np.abs(sim.rollout(sim.reset(log.q[0], log.qd[0]), log.u).q - log.q).mean() for log in logs])
        for sim in (nerd.simulator(), tuned.simulator())
    )
    assert after < 0.85 * before
    wild = dataclasses.replace(how, steps=4, rate=30.0, last_rate=30.0, held_out=0.25, every=1)
    kept = finetune(nerd, logs, wild)
    assert eqx.tree_equal(kept.network, nerd.network)  # for all that came after was worse
    kept = finetune(
        nerd, blind, dataclasses.replace(wild, first=0.0, starts=SteadyStarts(2))
    )  # along windows of the one left aside
    assert eqx.tree_equal(kept.network, nerd.network)
    with pytest.raises(ValueError, match="`held_out` and `first` are shares"):
        Finetuning(held_out=1.0)
    with pytest.raises(ValueError, match="must be positive numbers"):
        Finetuning(steps=0)
    rough = [eqx.tree_at(lambda t: t.q, log, log.q.at[0].add(1.0)) for log in logs]  # a jump after the first instant
    with pytest.raises(ValueError, match="`first` asks for windows from the first states"):
        finetune(nerd, rough, dataclasses.replace(how, starts=SteadyStarts(2)))


def test_a_fine_base_step_is_the_true_physics():
    model = fx.load("cube")
    frames = Frames(model.topology, 0.01, base=FineContact(4))
    true = fx.Simulator(model, fx.Substeps(fx.RigidSolver(), 4), dt=0.01)
    q, qd = jnp.array([0.0, 0.0, 0.06, 0.9, 0.3, 0.3, 0.1]), jnp.array([0.5, 0.0, -1.0, 1.0, 2.0, 3.0])
    start = true.reset(q.at[3:].divide(jnp.linalg.norm(q[3:])), qd)
    ahead = frames.foresee(model, frames.look(model, start.q, start.qd, jnp.zeros(0)))
    after = true.step(start)
    assert np.abs(after.qd - qd).max() > 0.5  # it has hit the ground
    assert np.allclose(ahead.q, after.q, atol=1e-5)
    assert np.allclose(ahead.qd, after.qd, atol=1e-3)


def test_sentences(nerd, logs):
    bad = eqx.tree_at(lambda t: t.q, logs[0], logs[0].q.at[2].set(jnp.nan))
    slow = eqx.tree_at(lambda t: t.time, logs[0], 2 * logs[0].time)
    cart = fx.Simulator(fx.load("cartpole"), dt=0.05)
    other = cart.rollout(cart.reset(), steps=8)
    for recordings, sentence in (
        ([bad], "recording 0 holds numbers that are not finite"),
        ([logs[0], slow], r"recording 1 has steps of 0\.1 s; the solver was trained for steps of 0\.05 s"),
        ([other], "recording 0 has 2 coordinates; 'pendulum' has 1"),
        ([], "there are none"),
    ):
        with pytest.raises(ValueError, match=sentence):
            finetune(nerd, recordings, HOW)
    with pytest.raises(ValueError, match="windows of 40 do not fit"):
        finetune(nerd, logs, dataclasses.replace(HOW, window=40))


def test_rollouts_in_the_loss_of_training(sim, nerd, tmp_path):
    data = read(sample(sim, fx.nerd.Ranges(control=0.0), 512 * 8, tmp_path / "p.h5", length=8), sim.model)
    how = Training(steps=4, batch=8, window=6, every=2, rollout=4)
    made = train(sim, data, sizes=nerd.network.sizes, frames=nerd.frames, options=how)
    assert np.isfinite(made.card["metrics"]["held_out"])
    plain = train(sim, data, sizes=nerd.network.sizes, frames=nerd.frames, options=dataclasses.replace(how, rollout=0))
    assert not np.array_equal(made.network.embed, plain.network.embed)
    with pytest.raises(ValueError, match="must be shorter than a window"):
        train(sim, data, sizes=nerd.network.sizes, frames=nerd.frames, options=dataclasses.replace(how, rollout=6))


def huber(e, h):
    return h**2 * (np.sqrt(1 + (e / h) ** 2) - 1)


def test_the_loss_is_the_sum_of_its_terms(nerd, logs):
    """Each term against the formula at the top of `losses.py`, written with NumPy over the predictions, and all together."""
    data = windows(nerd, logs, 6)
    before, network = Before(nerd, data), member(nerd.network, 0)
    rows = jax.tree.map(lambda x: x[:3], data)
    single = (np.asarray(network.sequence(rows.x)) - np.asarray(rows.y)) / np.asarray(network.norms.y_std)
    parts = (data.r[..., :1], data.r[..., 1:2], data.r[:, :-1, 2:])
    several, off = (
        np.asarray(jax.jit(jax.vmap(lambda *z, f=f: f(network, nerd.frames, nerd.model, *z)))(*parts))
        for f in (unrolled_errors, path_errors)
    )
    moved = jax.tree.map(lambda w: w + 0.01, trainable(nerd.network))
    away = sum(0.01**2 * w.size for w in jax.tree.leaves(moved))
    terms = {
        OneStepLoss(0.3, huber=0.2): huber(single, 0.2).mean(),
        RolloutLoss(0.7, huber=0.1): huber(several[:3], 0.1).mean(),
        PositionLoss(2.0): (3 * np.log1p(off[:3] / off.mean() / 3)).mean(),
    }
    for loss, expected in terms.items():
        value = jax.jit(partial(loss.term(before), network, network))(rows)
        assert float(value) == pytest.approx(float(expected), rel=1e-5)
    other = member(eqx.combine(moved, nerd.network), 0)
    assert float(AnchorLoss(5.0).term(before)(other, network, rows)) == pytest.approx(away, rel=1e-4)
    options = dataclasses.replace(HOW, losses=(*terms, AnchorLoss(5.0)))
    optimiser, first = optimiser_of(options), trainable(nerd.network)
    value = _advance(before, options, optimiser)(first, optimiser.init(first), rows)[2]
    assert float(value) == pytest.approx(sum(loss.weight * float(x) for loss, x in terms.items()), rel=1e-5)
    drawn = PositionLoss(most=1.2).interest(before)
    assert np.allclose(drawn, np.minimum(off.mean(axis=(1, 2)) / off.mean(), 1.2), atol=1e-5)


def test_terms_that_make_no_sense():
    with pytest.raises(ValueError, match="weight of a RolloutLoss must be positive, got 0; leave the term out"):
        RolloutLoss(0)
    with pytest.raises(ValueError, match="`losses` must be one or more terms"):
        Finetuning(losses=())
    with pytest.raises(ValueError, match="a parabola needs one instant at least"):
        SteadyStarts(0)


def test_the_card_tells_how_it_was_tuned(nerd, logs, tmp_path):
    options = dataclasses.replace(PATHS, steps=1, starts=SteadyStarts(2))
    tuned = finetune(nerd, logs, options)
    again = fx.nerd.load(tuned.save(tmp_path / "tuned.safetensors")).card["fine-tuned"]
    assert again == {"recordings": 4, **options.table()}
    assert again["losses"] == [{"class": "PositionLoss", "weight": 1.0, "limit": 1e3, "most": 2.0}]
    assert again["starts"] == {"class": "SteadyStarts", "half": 2}
