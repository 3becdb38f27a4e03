"""A policy as ONNX: matrix products, activations and limits, the normalisation inside.

States are batches ``[batch, n_x]`` of any size.  States that are not finite are the caller's: the
graph has no safe output.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from warpmpc._errors import SettingsError
from warpmpc.learn.network import LEAK
from warpmpc.learn.policy import U_LIMIT, Policy

OPSET, IR_VERSION = 17, 8


def onnx_bytes(policy: Policy) -> bytes:
    """The model, serialised."""
    try:
        from onnx import TensorProto, checker, helper, numpy_helper
    except ImportError as error:
        raise SettingsError(
            "ONNX files need the package onnx: pip install 'warpmpc[learn]', or pip install onnx."
        ) from error
    nodes: list[Any] = []
    values: list[Any] = []

    def constant(name: str, array: Any) -> str:
        values.append(numpy_helper.from_array(np.asarray(array, dtype=np.float32), name))
        return name

    def gemm(source: str, name: str, weight: np.ndarray, bias: np.ndarray) -> str:
        inputs = [source, constant(f"{name}_weight", weight), constant(f"{name}_bias", bias)]
        nodes.append(helper.make_node("Gemm", inputs, [name], transB=1))
        return name

    def limited(source: str, name: str, limit: float) -> str:
        bounds = [constant(f"{name}_low", -limit), constant(f"{name}_high", limit)]
        nodes.append(helper.make_node("Clip", [source, *bounds], [name]))
        return name

    scale = policy.x_scale
    at = gemm("x", "standardised", np.diag(scale), -policy.x_mean * scale)
    at = limited(at, "held", policy.x_limit)
    for i, (weight, bias) in enumerate(policy.weights):
        at = gemm(at, f"layer_{i}", weight, bias)
        if i + 1 < len(policy.weights):
            nodes.append(_activation(helper, policy.network.activation, at, f"hidden_{i}"))
            at = f"hidden_{i}"
    at = limited(at, "limited", U_LIMIT)
    gemm(at, "u", np.diag(policy.u_std), policy.u_mean)
    graph = helper.make_graph(
        nodes,
        "policy",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", policy.n_x])],
        [helper.make_tensor_value_info("u", TensorProto.FLOAT, ["batch", policy.n_u])],
        values,
    )
    opset = helper.make_opsetid("", OPSET)
    model = helper.make_model(graph, opset_imports=[opset], ir_version=IR_VERSION)
    model.producer_name = "warpmpc"
    helper.set_model_props(model, {"fingerprint": policy.fingerprint})
    checker.check_model(model, full_check=True)
    return model.SerializeToString()


def _activation(helper: Any, name: str, source: str, target: str) -> Any:
    if name == "leaky_relu":
        return helper.make_node("LeakyRelu", [source], [target], alpha=LEAK)
    return helper.make_node({"relu": "Relu", "tanh": "Tanh"}[name], [source], [target])
