"""Iterates of the interior-point method.

Arrays are ``[tiles, rows, 32]``, one value per instance ``[tiles, 1, 32]``; rows are in the order
of `RowOrder`.
"""

from __future__ import annotations

from dataclasses import dataclass

import jax
import jax.numpy as jnp

from warpmpc.mpc.interior_point.sides import Side


@jax.tree_util.register_dataclass
@dataclass(frozen=True, eq=False)
class Rows:
    """What is known of the rows of an instance before the first iteration.

    Attributes:
        target: Bounds of the equalities by form.
        fixed: 1 for rows with slacks whose bounds are equal in this instance: equalities, too.
        some: 1 for rows with slacks that are not free; kernels read both as numbers.
        crossed: Whether a lower bound lies above its upper one.
    """

    target: jax.Array
    fixed: jax.Array
    some: jax.Array
    crossed: jax.Array


@jax.tree_util.register_dataclass
@dataclass(frozen=True, eq=False)
class Point:
    """An iterate; its last step beside it.

    Attributes:
        z: Variables.
        s: Slacks.
        y: Multipliers of all rows; where a row has a bound they follow from those of its sides.
        sides: Bounds with their multipliers and elastic variables.
        cost: Cost of z, without penalties.
        g: Rows at z.
        mu: Barrier parameter.
        theta_max: Largest violation that the line search accepts.
    """

    z: jax.Array
    s: jax.Array
    y: jax.Array
    sides: tuple[Side, ...]
    cost: jax.Array
    g: jax.Array
    mu: jax.Array
    theta_max: jax.Array

    def violation(self, rows: Rows) -> jax.Array:
        """Residual of every row: distance from its slack, or from its target."""
        return violation(self.g, self.s, rows)


def violation(g: jax.Array, s: jax.Array, rows: Rows) -> jax.Array:
    """Residual of every row: distance from its slack, or from its target."""
    n_slack = s.shape[1]
    of_slack = jnp.where(rows.some > 0, g[:, :n_slack] - s, 0)
    return jnp.concatenate([of_slack, g[:, n_slack:] - rows.target], axis=1)


def multipliers(y: jax.Array, sides: tuple[Side, ...], n_slack: int) -> jax.Array:
    """Multipliers of all rows, those of bounded rows from their sides.

    Args:
        y: Multipliers of equalities; of other rows those that belong to no side.
        sides: The sides.
        n_slack: Number of rows with slacks.
    """
    own = y[:, :n_slack]
    found = over_rows(own, [(side, side.z if side.upper else -side.z) for side in sides])
    bounded = over_rows(own, [(side, side.has) for side in sides]) > 0
    return jnp.concatenate([jnp.where(bounded, found, own), y[:, n_slack:]], axis=1)


def over_rows(s: jax.Array, parts: list[tuple[Side, jax.Array]]) -> jax.Array:
    """Sum of values of sides, row by row.

    Args:
        s: An array like the result.
        parts: Sides with their values.
    """
    found = jnp.zeros_like(s)
    for side, values in parts:
        found = found + jnp.pad(values, ((0, 0), (side.first, s.shape[1] - side.last), (0, 0)))
    return found
