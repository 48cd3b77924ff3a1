"""Policies as ONNX models, for what runs on the robot (extra `onnx`).

    action = net(clip((observation - mean) / deviation, -bound, bound))

The graph has one input, `observation`, and one output, `action`, both of shape (batch, n) and in single precision. Opset 17, IR
version 8. The name of the task and the physics are in the model's metadata.
"""

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from flexor.files import write_whole

if TYPE_CHECKING:
    from flexor.learn.policy import Policy

OPSET, IR_VERSION = 17, 8
OPERATORS = {"relu": "Relu", "tanh": "Tanh", "elu": "Elu"}
"""ONNX's operators for the activations of `flexor.learn.actor.ACTIVATIONS`."""


def export(policy: "Policy", path: str | os.PathLike[str]) -> Path:
    """Writes a policy to `path`, which ends in .onnx, whole or not at all."""
    path = Path(path)
    if path.suffix != ".onnx":
        raise ValueError(f"'{path.name}' must end in .onnx.")
    try:
        import onnx
    except ImportError as error:
        raise ImportError('exporting policies to ONNX needs it: `pip install "flexor[onnx]"`.') from error
    h = onnx.helper
    net, norm = policy.actor.net, policy.actor.norm
    arrays = {
        "mean": norm.mean, "deviation": norm.deviation, "low": -norm.bound, "high": norm.bound,
        **{f"weight_{k}": W for k, W in enumerate(net.weights)}, **{f"bias_{k}": b for k, b in enumerate(net.biases)},
    }  # fmt: skip
    constants = [onnx.numpy_helper.from_array(np.asarray(x, np.float32), name) for name, x in arrays.items()]
    kind = onnx.TensorProto.FLOAT
    ends = [
        h.make_tensor_value_info(name, kind, ["batch", n])
        for name, n in (("observation", len(norm.mean)), ("action", len(policy.actor.log_deviation)))
    ]
    graph = h.make_graph(_nodes(h, len(net.weights), net.activation), "policy", ends[:1], ends[1:], constants)
    model = h.make_model(graph, producer_name="flexor", opset_imports=[h.make_opsetid("", OPSET)], ir_version=IR_VERSION)
    h.set_model_props(model, {"task": policy.task, "physics": json.dumps(policy.card.get("physics", {}))})
    onnx.checker.check_model(model, full_check=True)
    write_whole({path: model.SerializeToString()})
    return path


def _nodes(helper: Any, layers: int, activation: str) -> list[Any]:
    """The operations in their order: normalisation, then the layers."""
    nodes = [
        helper.make_node("Sub", ["observation", "mean"], ["centred"]),
        helper.make_node("Div", ["centred", "deviation"], ["scaled"]),
        helper.make_node("Clip", ["scaled", "low", "high"], ["hidden_0"]),
    ]
    for k in range(layers):
        last = k == layers - 1
        out = "action" if last else f"sum_{k}"
        nodes.append(helper.make_node("Gemm", [f"hidden_{k}", f"weight_{k}", f"bias_{k}"], [out]))
        if not last:
            nodes.append(helper.make_node(OPERATORS[activation], [out], [f"hidden_{k + 1}"]))
    return nodes
