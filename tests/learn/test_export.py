"""Policies as ONNX models: onnxruntime gives the actions that the policy gives."""

import builtins

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from flexor.learn import Actor, Norm, Perceptron, Policy


def policy_with(activation, dtype):
    rng = np.random.default_rng(0)
    net = Perceptron.build([5, 16, 8, 3], jax.random.key(1), activation=activation, last=1.0, dtype=dtype)
    mean, square = (jnp.asarray(x, dtype) for x in (rng.normal(size=5), rng.uniform(0.1, 2.0, 5)))
    norm = Norm(mean, square, jnp.ones((), dtype), bound=2.0)
    return Policy(Actor(norm, net, jnp.zeros(3, dtype)), "Some", {"physics": {"robot": "arm"}})


@pytest.mark.parametrize("activation", ["relu", "tanh", "elu"])
@pytest.mark.parametrize("dtype", [jnp.float32, jnp.float64], ids=["single", "double"])
def test_onnxruntime_gives_the_same_actions(activation, dtype, tmp_path):
    import onnxruntime

    policy = policy_with(activation, dtype)
    path = policy.export(tmp_path / "policy.onnx")
    session = onnxruntime.InferenceSession(path.read_bytes(), providers=["CPUExecutionProvider"])
    seen = np.random.default_rng(1).normal(scale=3.0, size=(7, 5)).astype(np.float32)  # some beyond the bound
    (action,) = session.run(["action"], {"observation": seen})
    # sums of 16 products of numbers of order 1, in another order, and two elementary functions: tens of eps
    np.testing.assert_allclose(action, policy(seen), rtol=0, atol=100 * np.finfo(np.float32).eps)
    assert abs(action).max() > 0.1
    assert [x.name for x in session.get_inputs()] == ["observation"]
    assert session.get_modelmeta().custom_metadata_map["task"] == "Some"


def test_the_file_must_be_onnx(tmp_path):
    with pytest.raises(ValueError, match=r"'policy\.pt' must end in \.onnx"):
        policy_with("relu", jnp.float32).export(tmp_path / "policy.pt")


def test_the_extra_is_named_where_it_is_missing(tmp_path, monkeypatch):
    real = builtins.__import__

    def without(name, *rest):
        if name == "onnx":
            raise ImportError(name)
        return real(name, *rest)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(ImportError, match=r'pip install "flexor\[onnx\]"'):
        policy_with("relu", jnp.float32).export(tmp_path / "policy.onnx")
