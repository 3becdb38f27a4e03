"""The network as a module of flax; imported where a network is first used, not with warpmpc."""

from __future__ import annotations

from collections.abc import Callable

import flax.linen as nn
import jax


class Perceptron(nn.Module):
    """Dense layers with one activation between them, and a linear output.

    Attributes:
        widths: Units of each hidden layer, and outputs.
        activation: Function of the values of a hidden layer.
    """

    widths: tuple[int, ...]
    activation: Callable[[jax.Array], jax.Array]

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        """Outputs ``[..., widths[-1]]`` of standardised inputs."""
        for i, width in enumerate(self.widths):
            layer = nn.Dense(width, kernel_init=nn.initializers.he_normal(), name=f"layer_{i}")
            x = layer(x) if i == 0 else layer(self.activation(x))
        return x
