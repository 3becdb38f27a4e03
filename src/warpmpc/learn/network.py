"""Sizes and weights of a perceptron, which flax builds and applies, and the policy around it.

A policy standardises the state, holds it to the range of the training data, applies the network,
limits the standardised output, and gives a safe input for states that are not finite.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from itertools import pairwise
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from warpmpc._errors import SettingsError

LEAK = 0.01
ACTIVATIONS: dict[str, Callable[[jax.Array], jax.Array]] = {
    "leaky_relu": partial(jax.nn.leaky_relu, negative_slope=LEAK),
    "relu": jax.nn.relu,
    "tanh": jnp.tanh,
}
Layers = tuple[tuple[np.ndarray, np.ndarray], ...]


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

    def init(self, key: jax.Array) -> Any:
        """Random parameters as flax holds them: weights by He's rule, biases zero."""
        return _module(self).init(key, jnp.zeros(self.sizes[0], jnp.float32))

    def apply(self, parameters: Any, x: jax.Array) -> jax.Array:
        """Outputs ``[..., sizes[-1]]`` of standardised inputs."""
        return _module(self).apply(parameters, x)

    def layers(self, parameters: Any) -> Layers:
        """(weight ``[out, in]``, bias) of each layer, as a `Policy` and its exports hold them."""
        found = [parameters["params"][f"layer_{i}"] for i in range(len(self.sizes) - 1)]
        return tuple((np.asarray(of["kernel"]).T.copy(), np.asarray(of["bias"])) for of in found)

    def parameters(self, layers: Sequence[tuple[Any, Any]]) -> Any:
        """The inverse of `layers`."""
        named = {
            f"layer_{i}": {"kernel": jnp.asarray(weight).T, "bias": jnp.asarray(bias)}
            for i, (weight, bias) in enumerate(layers)
        }
        return {"params": named}


@lru_cache(maxsize=64)
def _module(network: Network) -> Any:
    try:
        from warpmpc.learn.perceptron import Perceptron
    except ImportError as error:
        raise SettingsError(
            "Networks need flax: pip install 'warpmpc[learn]', or pip install flax."
        ) from error
    return Perceptron(network.sizes[1:], ACTIVATIONS[network.activation])


def apply_policy(network: Network, data: dict[str, Any], x: jax.Array) -> jax.Array:
    """Inputs of the plant at states ``[..., n_x]``, in float32.

    Args:
        network: Sizes and activation.
        data: `Policy.data`: parameters, normalisation and limits.
        x: States.
    """
    x = x.astype(jnp.float32)
    finite = jnp.isfinite(x).all(axis=-1, keepdims=True)
    x = jnp.where(finite, x, 0)
    normal = (x - _like(data["x_mean"], x)) * _like(data["x_scale"], x)
    normal = jnp.clip(normal, -data["x_limit"], data["x_limit"])
    y = network.apply(data["parameters"], normal)
    y = jnp.clip(y, -data["u_limit"], data["u_limit"])
    u = _like(data["u_mean"], y) + _like(data["u_std"], y) * y
    return jnp.where(finite, u, _like(data["safe"], u))


def _like(vector: jax.Array, array: jax.Array) -> jax.Array:
    """A vector with as many axes as an array."""
    return jnp.reshape(vector, (1,) * (array.ndim - 1) + jnp.shape(vector))
