"""Soft rows: penalties on the violation of a bound instead of the bound itself.

A violation e of one side costs ``linear e + quadratic / 2 e^2``.  In the v-form of the iteration
(`qp.loops.general`) the projection onto the bounds becomes the proximal map of this penalty: clip,
then give way by max(0, a (distance to the bound) - b) with a = rho / (rho + quadratic) and
b = linear / (rho + quadratic).  The linear system stays what it is.  A side with an infinite
penalty (beyond 1e20) stays hard, and so do both sides of all other rows: their b is infinite.
"""

from __future__ import annotations

from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np

from warpmpc.qp.products import rounded, total
from warpmpc.qp.types import INFINITY
from warpmpc.symbolic.pattern import IntArray


@dataclass(frozen=True, eq=False)
class Side:
    """Coefficients of the lower or upper side of every row, ``[groups, rows, lanes]``.

    Attributes:
        linear: Linear penalty, or b of the proximal map; infinite where the side is hard.
        quadratic: Quadratic penalty (zero where the side is hard), or a of the proximal map.
    """

    linear: jax.Array
    quadratic: jax.Array

    @property
    def soft(self) -> jax.Array:
        """Where the side is soft."""
        return self.linear < jnp.inf

    @property
    def slope(self) -> jax.Array:
        """What a violation costs per unit in the long run, where that is finite; else zero."""
        return jnp.where(self.soft & (self.quadratic == 0), self.linear, 0)

    def scaled(self, con: jax.Array, cost: jax.Array) -> Side:
        """Penalties when rows are multiplied by `con` and the cost by `cost`."""
        return Side(self.linear * (cost / con), self.quadratic * (cost / con**2))

    def proximal(self, rho: jax.Array) -> Side:
        """The proximal map: b as `linear`, a as `quadratic`."""
        whole = rho + self.quadratic
        return Side(self.linear / whole, rho / whole)

    def excess(self, beyond: jax.Array) -> jax.Array:
        """How far a proximal map gives way to what lies so far beyond the bound."""
        return jnp.maximum(rounded(self.quadratic * beyond) - self.linear, 0)

    def cost(self, excess: jax.Array) -> jax.Array:
        """What a violation costs."""
        linear = jnp.where(excess > 0, self.linear, 0)  # infinity times nothing is nothing
        return rounded(linear * excess) + rounded(0.5 * self.quadratic * excess * excess)


@dataclass(frozen=True, eq=False)
class Penalties:
    """Both sides of every row."""

    lower: Side
    upper: Side

    def scaled(self, con: jax.Array, cost: jax.Array) -> Penalties:
        """Penalties when rows are multiplied by `con` and the cost by `cost`."""
        return Penalties(self.lower.scaled(con, cost), self.upper.scaled(con, cost))

    def proximal(self, rho: jax.Array) -> Penalties:
        """Coefficients of the proximal map."""
        return Penalties(self.lower.proximal(rho), self.upper.proximal(rho))

    def cost(self, excess: tuple[jax.Array, jax.Array]) -> jax.Array:
        """What violations of the lower and upper side cost each instance."""
        return total(self.lower.cost(excess[0]) + self.upper.cost(excess[1]))


class SoftRows:
    """Which rows of A are soft, and where their penalties stand."""

    def __init__(self, rows: IntArray, n_rows: int):
        """Builds the table from rows to soft rows.

        Args:
            rows: Soft rows, in the order of their penalties.
            n_rows: Number of rows of A.
        """
        self.rows, self._count = rows, rows.size
        # Rows that are not soft find a value behind the list.
        self._place = np.full(n_rows, rows.size, dtype=np.int32)
        self._place[rows] = np.arange(rows.size)

    @property
    def is_soft(self) -> np.ndarray:
        """Whether each row is soft."""
        return self._place < self._count

    def penalties(self, given: jax.Array) -> Penalties:
        """Penalties of all rows, from ``[groups, 4 n_soft, lanes]`` as in `QPData`."""
        l_lower, l_upper, q_lower, q_upper = jnp.split(given, 4, axis=1)
        return Penalties(self._side(l_lower, q_lower), self._side(l_upper, q_upper))

    def _side(self, linear: jax.Array, quadratic: jax.Array) -> Side:
        hard = (linear > INFINITY) | (quadratic > INFINITY)
        linear, quadratic = jnp.where(hard, jnp.inf, linear), jnp.where(hard, 0, quadratic)
        return Side(self.spread(linear, jnp.inf), self.spread(quadratic, 0))

    def spread(self, values: jax.Array, otherwise: float) -> jax.Array:
        """Values of soft rows as values of all rows."""
        rest = jnp.full_like(values[:, :1], otherwise)
        return jnp.concatenate([values, rest], axis=1)[:, self._place]
