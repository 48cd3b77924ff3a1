"""Contacts as tokens: Jacobians among the inputs, shared weights, impulses through the Jacobian."""

import dataclasses

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import flexor as fx
from flexor.nerd import Frames, FreeFlight, Nerd, NoBase, Recipe, Sizes, TokenSizes
from flexor.nerd.base import moved_contacts
from flexor.nerd.network import Norms
from flexor.spatial import quat_to_matrix
from tests.nerd.test_frames import moved

SMALL = TokenSizes(layers=2, width=16, contact_width=12, rounds=2)
DT = 1 / 60


def built(name, sizes=SMALL, scale=1.0):
    """A robot, its layout, and a network of random weights that are `scale` times as large in their last layers."""
    model = fx.load(name).astype(jnp.float32)
    frames = Frames(model.topology, DT, base=NoBase(), jacobians=True)
    n, rng = len(frames.labels), np.random.default_rng(0)
    norms = Norms(np.zeros(n), 1 + rng.random(n), np.zeros(frames.outputs), 0.1 * np.ones(frames.outputs))
    net = eqx.filter_jit(lambda k: sizes.build(frames, norms, k))(jax.random.key(0))
    net = eqx.tree_at(lambda n: [c[-1] for c in n.contact], net, [scale * c[-1] for c in net.contact])
    return Nerd(model, jax.tree.map(lambda x: x[None], net), frames), net


@pytest.fixture(scope="module")
def cube():
    return built("cube", scale=20.0)


@pytest.fixture(scope="module")
def pendulum():
    return built("double_pendulum_contact", scale=20.0)


def touching(model, z=0.06):
    """A state of the cube near its floor, turned and moving."""
    quat = np.array([0.96, 0.1, 0.2, 0.15], np.float32)
    q = model.reference.at[2].set(z).at[3:].set(quat / np.linalg.norm(quat))
    return q, jnp.array([0.3, -0.2, -1.0, 1.0, 2.0, -1.5], jnp.float32)


@eqx.filter_jit
def predict(net, x):
    return net.predict(x)


def inputs(nerd, q, qd):
    """Scene, what comes after, and inputs."""
    frames, model = nerd.frames, nerd.model

    def look(q, qd):
        scene = frames.look(model, q, qd, jnp.zeros(len(frames.pushed), q.dtype))
        ahead = frames.foresee(model, scene)
        return scene, ahead, frames.features(scene, ahead)

    return jax.tree.map(lambda x: x[0], fx.simd.vmap(look)(q[None], qd[None]))


def test_a_jacobian_gives_the_velocity_of_its_contact(cube):
    """In the root frame, along the normal and two tangents; of a body that does not turn it is the same all along a step."""
    nerd, _ = cube
    q, qd = touching(nerd.model)
    qd = qd.at[3:].set(0.0)
    scene, ahead, x = inputs(nerd, q, qd)
    velocity = moved_contacts(nerd.model, q, ahead.q, qd, scene)[0]
    R = np.asarray(quat_to_matrix(q[3:]))
    turned = np.concatenate([R.T @ qd[:3], qd[3:]])
    found = np.asarray(ahead.jacobian) @ turned
    assert np.abs(found[:, 0] - np.sum(np.asarray(scene.normal * velocity), axis=1)).max() < 1e-5
    assert np.abs(np.linalg.norm(found, axis=1) - np.linalg.norm(velocity, axis=1)).max() < 1e-5
    names = dict(zip(nerd.frames.labels, np.asarray(x), strict=True))
    shown = [name for name in names if name.endswith("Jn2")]
    assert len(shown) == 8
    near = np.minimum(scene.distance, ahead.distance) < nerd.frames.reach
    assert np.allclose([names[n] for n in shown], np.where(near, np.asarray(ahead.jacobian)[:, 0, 2], 0.0), atol=1e-6)


def test_the_order_of_contacts_does_not_matter(cube):
    nerd, net = cube
    x = inputs(nerd, *touching(nerd.model))[2]
    at = net.layout
    tokens = x[at.state :].reshape(at.contacts, at.parts)
    order = np.random.default_rng(1).permutation(at.contacts)
    shuffled = jnp.concatenate([x[: at.state], tokens[order].ravel()])
    one, other = predict(net, x), predict(net, shuffled)
    assert np.abs(one - other).max() < 1e-5 * np.abs(one).max()
    changed = jnp.concatenate([x[: at.state], tokens.at[0].set(tokens[1]).ravel()])
    assert np.abs(one - predict(net, changed)).max() > 1e-3 * np.abs(one).max()


def test_contacts_out_of_reach_do_nothing(cube):
    nerd, net = cube
    q, qd = touching(nerd.model, z=1.0)
    far = inputs(nerd, q, qd)[2]
    none = eqx.tree_at(lambda n: n.contact, net, ())
    assert np.array_equal(predict(net, far), predict(none, far))
    near = inputs(nerd, *touching(nerd.model))[2]
    assert np.abs(predict(net, near) - predict(none, near)).max() > 1e-3


def test_predictions_do_not_change_when_the_scene_is_moved(cube):
    nerd, net = cube
    q, qd = touching(nerd.model)
    angle, shift = jnp.asarray(1.1, jnp.float32), jnp.array([2.0, -1.0, 0.5], jnp.float32)
    model, there, fast = moved(nerd.model, nerd.frames, q, qd, angle, shift)
    here = predict(net, inputs(nerd, q, qd)[2])
    other = predict(net, inputs(dataclasses.replace(nerd, model=model), there, fast)[2])
    assert np.abs(here - other).max() < 2e-4 * np.abs(here).max()


def test_kernels_give_what_xla_gives_and_the_base_step_alone_is_silent(pendulum):
    nerd, _ = pendulum
    runs = []
    q = jnp.array([[0.3, 0.4], [1.6, 0.1], [-2.0, 1.0]], jnp.float32)
    for simd in (True, False):
        sim = fx.Simulator(nerd.model, nerd.solver(), dt=nerd.dt, simd=simd)
        runs.append(jax.jit(jax.vmap(lambda q, sim=sim: sim.rollout(sim.reset(q, [1.0, -1.0]), steps=5).q))(q))
    assert np.abs(runs[0] - runs[1]).max() < 1e-4
    assert np.abs(runs[1][:, -1] - q).max() > 1e-2
    alone = fx.nerd.base_alone(nerd).simulator()
    still = fx.Simulator(nerd.model, alone.solver, dt=nerd.dt, simd=False)
    coasting = still.rollout(still.reset([0.3, 0.4], [1.0, -1.0]), steps=3)
    assert np.allclose(coasting.qd, [1.0, -1.0])


def test_files_recipes_and_sentences(pendulum, tmp_path):
    nerd, net = pendulum
    again = fx.nerd.load(nerd.save(tmp_path / "p.safetensors"))
    assert again.card["network"] == "tokens"
    assert again.frames == nerd.frames
    assert eqx.tree_equal(again.network, nerd.network)
    sim = nerd.simulator()
    sim.save(tmp_path / "folder")
    assert eqx.tree_equal(fx.open(tmp_path / "folder").solver, sim.solver)
    recipe = Recipe.of({"robot": "cube", "base": "none", "network": "tokens", "sizes": {"width": 24}})
    assert recipe.sizes == TokenSizes(width=24)
    assert recipe.frames(recipe.model()).jacobians
    assert Recipe.of(recipe.table()) == recipe
    with pytest.raises(ValueError, match=r"there is no network 'mlp'; use one of transformer, tokens"):
        Recipe.of({"robot": "cube", "network": "mlp"})
    with pytest.raises(ValueError, match=r"the network is 'transformer', but `sizes` are those of 'tokens'"):
        Recipe("cube", sizes=TokenSizes())
    with pytest.raises(ValueError, match="Jacobians among the inputs are for networks without a base step"):
        Frames(nerd.model.topology, DT, base=FreeFlight(), jacobians=True)
    bare = dataclasses.replace(nerd.frames, jacobians=False)
    with pytest.raises(ValueError, match="need their Jacobians among the inputs"):
        SMALL.build(bare, net.norms, jax.random.key(0))
    assert Sizes().name == "transformer"
