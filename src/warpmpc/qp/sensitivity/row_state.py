"""What every row does at the solution of a QP: inactive, at a bound, or beyond a soft bound.

Beyond a soft bound y = w1 + w2 (a'x - b), all with the sign of the side.  A change of the penalties
changes y by itself, by g = dw1 + dw2 (a'x - b); the rest of its change is w2 (d(a'x) - db): an
unknown like that of an active row, with -1/w2 on the diagonal, and nothing for w2 = 0.
"""

from __future__ import annotations

from dataclasses import dataclass

import jax
import jax.numpy as jnp

from warpmpc.qp.products import QPMatrices
from warpmpc.qp.scaling import Projection, QPData
from warpmpc.qp.soft import SoftRows

_LEAST_CURVATURE = 1e-30  # a smaller quadratic penalty is none


@jax.tree_util.register_dataclass
@dataclass(frozen=True, eq=False)
class Point:
    """A solution to differentiate at, ``[groups, rows, lanes]``; `valid` masks whole instances.

    `s` tells which soft rows are beyond their bounds; None: what x and y say about that.
    """

    data: QPData
    x: jax.Array
    y: jax.Array
    valid: jax.Array
    s: jax.Array | None = None


@dataclass(frozen=True, eq=False)
class Beyond:
    """Violations of soft rows.

    Attributes:
        soft: Which rows they are.
        below: Violation of the lower bound, or zero, of the soft rows.
        above: Violation of the upper bound, or zero, of the soft rows.
        violated: Whether a row is beyond one of its bounds, of all rows like what follows.
        curvature: Quadratic penalty of the violated side, or zero.
        y: Multipliers, zero where nothing is violated.
    """

    soft: SoftRows
    below: jax.Array
    above: jax.Array
    violated: jax.Array
    curvature: jax.Array
    y: jax.Array

    def own_change(self, penalties: jax.Array) -> jax.Array:
        """What y of all rows changes by itself when the penalties change."""
        l_lower, l_upper, q_lower, q_upper = jnp.split(penalties, 4, axis=1)
        up = jnp.where(self.above > 0, l_upper + q_upper * self.above, 0)
        down = jnp.where(self.below > 0, l_lower + q_lower * self.below, 0)
        return self.soft.spread(up - down, 0)

    def cost_change(self, penalties: jax.Array) -> jax.Array:
        """What the penalties of each soft row change by themselves."""
        l_lower, l_upper, q_lower, q_upper = jnp.split(penalties, 4, axis=1)
        up = (l_upper + 0.5 * q_upper * self.above) * self.above
        return up + (l_lower + 0.5 * q_lower * self.below) * self.below

    def gradient(self, y_bar: jax.Array, objective_bar: jax.Array) -> jax.Array:
        """Transpose of both: from cotangents of y of all rows and of the objective."""
        y_bar = y_bar[:, self.soft.rows]
        down = objective_bar * self.below - jnp.where(self.below > 0, y_bar, 0)
        up = objective_bar * self.above + jnp.where(self.above > 0, y_bar, 0)
        half = 0.5 * objective_bar
        q_lower = (down - half * self.below) * self.below
        q_upper = (up - half * self.above) * self.above
        return jnp.concatenate([down, up, q_lower, q_upper], axis=1)


@dataclass(frozen=True, eq=False)
class RowState:
    """The rows of a batch at its solutions.

    Attributes:
        active: Rows that enter the linear system.
        give: What such a row gives way per unit of y: zero at a bound, 1/w2 beyond a soft one.
        lower: Share of each row's bound that is its lower one.
        upper: Share of each row's bound that is its upper one.
        beyond: Violations of soft rows; None without soft rows.
    """

    active: jax.Array
    give: jax.Array
    lower: jax.Array
    upper: jax.Array
    beyond: Beyond | None

    def bound_change(self, tangent: QPData) -> jax.Array:
        """Change of the bound that each row is at."""
        return weighted(self.upper, tangent.upper) + weighted(self.lower, tangent.lower)


def active_rows(at: Point) -> jax.Array:
    """Rows that hold with equality at the solution and near it, if none is soft."""
    return (at.y != 0) | (at.data.lower == at.data.upper)


def row_state(at: Point, soft: SoftRows | None, matrices: QPMatrices) -> RowState:
    """Reads the rows off a solution.

    An equality whose multiplier is exactly zero has no side; its bound is shared by halves, so that
    moving both bounds together, the only way to move an equality, has the right derivative.

    Args:
        at: The solution.
        soft: Soft rows, or None.
        matrices: Products with A.
    """
    active = active_rows(at)
    half = jnp.where(active & (at.y == 0), 0.5, 0.0)
    upper, lower = (jnp.where(side, 1.0, half).astype(at.x.dtype) for side in (at.y > 0, at.y < 0))
    give = jnp.zeros_like(at.y)
    if soft is None:
        return RowState(active, give, lower, upper, None)
    beyond = _beyond(at, soft, matrices)
    curved = beyond.violated & (beyond.curvature > _LEAST_CURVATURE)
    give = jnp.where(curved, 1 / jnp.where(curved, beyond.curvature, 1), 0)
    return RowState((active & ~beyond.violated) | curved, give, lower, upper, beyond)


def _beyond(at: Point, soft: SoftRows, matrices: QPMatrices) -> Beyond:
    assert at.data.soft is not None
    rows = at.s
    if rows is None:
        # At a solution the projection of A x + y / rho is A x for every rho; near it, inside the
        # bounds or at them is what has no multiplier or not all of it.
        proximal = soft.penalties(at.data.soft).proximal(jnp.ones_like(at.y))
        v = matrices.A.product(jnp.where(at.valid, at.data.A, 0), at.x) + at.y
        rows = Projection(at.data.lower, at.data.upper, proximal)(v)
    s, low, high = (array[:, soft.rows] for array in (rows, at.data.lower, at.data.upper))
    above = jnp.where(at.valid, jnp.maximum(s - high, 0), 0)
    below = jnp.where(at.valid, jnp.maximum(low - s, 0), 0)
    _, _, q_lower, q_upper = jnp.split(at.data.soft, 4, axis=1)
    curvature = jnp.where(above > 0, q_upper, jnp.where(below > 0, q_lower, 0))
    violated = soft.spread(above + below, 0) > 0
    y = jnp.where(violated, at.y, 0)
    return Beyond(soft, below, above, violated, soft.spread(curvature, 0), y)


def weighted(weight: jax.Array, values: jax.Array) -> jax.Array:
    """Product in which a zero weight hides infinities."""
    return jnp.where(weight != 0, values, 0) * weight
