"""Multi-layer perceptrons as pure functions of their weights, and the policy around one.

A policy standardises the state, holds it to the range of the training data, applies the network,
limits the standardised output, and gives a safe input for states that are not finite.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import jax
import jax.numpy as jnp

from warpmpc._errors import SettingsError

LEAK = 0.01
ACTIVATIONS: dict[str, Callable[[jax.Array], jax.Array]] = {
    "leaky_relu": lambda v: jnp.where(v >= 0, v, LEAK * v),
    "relu": lambda v: jnp.maximum(v, 0),
    "tanh": jnp.tanh,
}
Weights = tuple[tuple[jax.Array, jax.Array], ...]


@dataclass(frozen=True)
class Network:
    """Sizes and activation of a perceptron with a linear output.

    Attributes:
        sizes: Number of inputs, of units in each hidden layer, and of outputs.
        activation: A key of `ACTIVATIONS`.
    """

    sizes: tuple[int, ...]
    activation: str = "leaky_relu"

    def __post_init__(self) -> None:
        """Refuses what cannot be built."""
        if self.activation not in ACTIVATIONS:
            raise SettingsError(
                f"activation must be one of {tuple(ACTIVATIONS)}, got {self.activation!r}."
            )
        if len(self.sizes) < 2 or any(size < 1 for size in self.sizes):
            raise SettingsError(f"A network needs at least two positive sizes, got {self.sizes}.")

    @property
    def n_weights(self) -> int:
        """Number of weights and biases."""
        return sum((a + 1) * b for a, b in pairwise(self.sizes))

    def init(self, key: jax.Array) -> Weights:
        """Weights ``[out, in]`` by He's rule, biases zero."""
        layers = []
        pairs = list(pairwise(self.sizes))
        for (n_in, n_out), k in zip(pairs, jax.random.split(key, len(pairs)), strict=True):
            weight = jax.random.normal(k, (n_out, n_in), jnp.float32) * (2 / n_in) ** 0.5
            layers.append((weight, jnp.zeros(n_out, jnp.float32)))
        return tuple(layers)

    def apply(self, weights: Weights, x: jax.Array) -> jax.Array:
        """Outputs ``[..., sizes[-1]]`` of standardised inputs."""
        activation = ACTIVATIONS[self.activation]
        *hidden, (last, bias) = weights
        for weight, offset in hidden:
            x = activation(jnp.matmul(x, weight.T) + _like(offset, x))
        return jnp.matmul(x, last.T) + _like(bias, x)


def apply_policy(network: Network, data: dict[str, Any], x: jax.Array) -> jax.Array:
    """Inputs of the plant at states ``[..., n_x]``, in float32.

    Args:
        network: Sizes and activation.
        data: `Policy.data`: weights, normalisation and limits.
        x: States.
    """
    x = x.astype(jnp.float32)
    finite = jnp.isfinite(x).all(axis=-1, keepdims=True)
    x = jnp.where(finite, x, 0)
    normal = (x - _like(data["x_mean"], x)) * _like(data["x_scale"], x)
    normal = jnp.clip(normal, -data["x_limit"], data["x_limit"])
    y = network.apply(data["weights"], normal)
    y = jnp.clip(y, -data["u_limit"], data["u_limit"])
    u = _like(data["u_mean"], y) + _like(data["u_std"], y) * y
    return jnp.where(finite, u, _like(data["safe"], u))


def _like(vector: jax.Array, array: jax.Array) -> jax.Array:
    """A vector with as many axes as an array."""
    return jnp.reshape(vector, (1,) * (array.ndim - 1) + jnp.shape(vector))
