"""Post-training quantisation: integer weights with a scale per row, activations of 16 bits.

Reads: a policy and states that calibrate the range of activations.  Produces: the integer layers,
and the same arithmetic in NumPy, which tells what is lost.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from warpmpc._errors import SettingsError
from warpmpc.learn.network import LEAK
from warpmpc.learn.policy import U_LIMIT, Policy

BITS = (16, 8)
ACTIVATION_MAX, HEADROOM = 32767, 1.25


@dataclass(frozen=True)
class QuantizedLayer:
    """One layer.

    Attributes:
        weight: Integers ``[out, in]``.
        scale: What sums of a row are multiplied by, float32.
        bias: Added afterwards, float32.
        inverse_step: What activations are multiplied by before they are rounded.
    """

    weight: np.ndarray
    scale: np.ndarray
    bias: np.ndarray
    inverse_step: np.float32


@dataclass(frozen=True)
class Quantized:
    """A quantised network.

    Attributes:
        bits: Bits of a weight: 16 or 8.
        layers: Layers from input to output.
    """

    bits: int
    layers: tuple[QuantizedLayer, ...]

    @property
    def weight_bytes(self) -> int:
        """Bytes of integer weights, scales and biases."""
        values = sum(4 * (len(layer.scale) + len(layer.bias)) for layer in self.layers)
        return values + sum(layer.weight.size * self.bits // 8 for layer in self.layers)


def quantize(policy: Policy, bits: int, states: np.ndarray) -> Quantized:
    """Rounds the weights of a policy.

    Args:
        policy: The policy.
        bits: Bits of a weight: 16 or 8.
        states: States ``[n, n_x]`` that occur; they set the range of activations.
    """
    if bits not in BITS:
        raise SettingsError(f"Weights can have {BITS} bits, got {bits}.")
    a = normalised(policy, states)
    layers = []
    most = 2 ** (bits - 1) - 1
    for i, (weight, bias) in enumerate(policy.weights):
        # Inputs are limited exactly; hidden activations get some room above what was seen.
        reach = policy.x_limit if i == 0 else HEADROOM * float(np.abs(a).max(initial=1e-6))
        step = np.float32(reach / ACTIVATION_MAX)
        row = np.maximum(np.abs(weight).max(axis=1), 1e-12) / most
        integers = np.rint(weight / row[:, None]).astype(np.int64)
        scale = (row * step).astype(np.float32)
        layer = QuantizedLayer(integers, scale, bias.astype(np.float32), np.float32(1) / step)
        layers.append(layer)
        a = activate(policy.network.activation, a @ weight.T + bias)
    return Quantized(bits, tuple(layers))


def run_quantized(policy: Policy, quantized: Quantized, x: np.ndarray) -> np.ndarray:
    """Inputs of the plant as the C code computes them, ``[n, n_u]``."""
    x = np.asarray(x, dtype=np.float32)
    finite = np.asarray(np.isfinite(x).all(axis=1))
    a = normalised(policy, np.where(finite[:, None], x, 0))
    for i, layer in enumerate(quantized.layers):
        scaled = np.clip(a * layer.inverse_step, -ACTIVATION_MAX, ACTIVATION_MAX)
        integers = np.trunc(scaled + np.copysign(np.float32(0.5), scaled)).astype(np.int64)
        sums = (integers @ layer.weight.T).astype(np.float32)
        a = sums * layer.scale + layer.bias
        if i + 1 < len(quantized.layers):
            a = activate(policy.network.activation, a)
    u = policy.u_mean + policy.u_std * np.clip(a, -U_LIMIT, U_LIMIT)
    return np.where(finite[:, None], u, policy.safe).astype(np.float32)


def normalised(policy: Policy, x: np.ndarray) -> np.ndarray:
    """Standardised states, the input of the network, in float32."""
    x = np.asarray(x, dtype=np.float32)
    limit = np.float32(policy.x_limit)
    with np.errstate(over="ignore"):
        return np.clip((x - policy.x_mean) * policy.x_scale, -limit, limit)


def activate(name: str, v: np.ndarray) -> np.ndarray:
    """An activation in NumPy."""
    v = v.astype(np.float32)
    if name == "tanh":
        return np.tanh(v)
    return np.where(v >= 0, v, np.float32(LEAK if name == "leaky_relu" else 0) * v)
