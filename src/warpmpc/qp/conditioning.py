"""Scaling and step sizes of a QP: Ruiz equilibration, rho per row, adaptation of rho.

Reads: unscaled data in ``[groups, rows, lanes]``.  Produces: `Scaling` and rho vectors.  Constants
are OSQP's.
"""

from __future__ import annotations

from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np

from warpmpc.qp.products import QPMatrices, total
from warpmpc.qp.types import ADMMSettings, RowClass
from warpmpc.symbolic.pattern import SparsePattern

INFINITY = 1e20  # bounds beyond it are absent
RHO_MIN, RHO_MAX = 1e-6, 1e6
_EQUALITY_TOLERANCE = 1e-4
_SCALE_MIN, _SCALE_MAX = 1e-4, 1e4


@jax.tree_util.register_dataclass
@dataclass(frozen=True, eq=False)
class QPData:
    """Numbers of a batch of QPs, ``[groups, rows, lanes]`` each."""

    P: jax.Array
    q: jax.Array
    A: jax.Array
    lower: jax.Array
    upper: jax.Array


@jax.tree_util.register_dataclass
@dataclass(frozen=True, eq=False)
class Scaling:
    """Scaled variables are x / `x`, rows are multiplied by `con`, the cost by `cost`."""

    x: jax.Array
    con: jax.Array
    cost: jax.Array


class Equilibration:
    """Ruiz scaling of QPs with one pattern."""

    def __init__(
        self, P_pattern: SparsePattern, P_entries: np.ndarray, A_pattern: SparsePattern, n_P: int
    ):
        """Keeps which row and column each stored value belongs to.

        Args:
            P_pattern: Upper triangle of P.
            P_entries: Position of its entries in the caller's list of values.
            A_pattern: Pattern of A.
            n_P: Length of the caller's list of values of P.
        """
        self._P_row, self._P_col = np.zeros(n_P, dtype=np.int32), np.zeros(n_P, dtype=np.int32)
        self._P_row[P_entries], self._P_col[P_entries] = P_pattern.row_idx, P_pattern.col_idx
        self._A_row, self._A_col = A_pattern.row_idx, A_pattern.col_idx

    def apply(self, data: QPData, scaling: Scaling) -> QPData:
        """The scaled QP."""
        x, con = scaling.x, scaling.con
        return QPData(
            P=data.P * scaling.cost * x[:, self._P_row] * x[:, self._P_col],
            q=data.q * scaling.cost * x,
            A=data.A * con[:, self._A_row] * x[:, self._A_col],
            lower=data.lower * con,
            upper=data.upper * con,
        )

    def ruiz(self, data: QPData, matrices: QPMatrices, passes: int) -> Scaling:
        """Equilibrates the columns of the KKT matrix, then the cost, `passes` times."""
        groups, _, lanes = data.q.shape
        one = jnp.ones((groups, 1, lanes), dtype=data.q.dtype)
        scaling = Scaling(jnp.ones_like(data.q), jnp.ones_like(data.lower), one)

        def once(_: int, scaling: Scaling) -> Scaling:
            scaled = self.apply(data, scaling)
            column = jnp.maximum(matrices.P.row_norms(scaled.P), matrices.AT.row_norms(scaled.A))
            x = scaling.x / jnp.sqrt(_limit(column))
            con = scaling.con / jnp.sqrt(_limit(matrices.A.row_norms(scaled.A)))
            scaled = self.apply(data, Scaling(x, con, scaling.cost))
            mean = total(matrices.P.row_norms(scaled.P)) / data.q.shape[1]
            largest = jnp.abs(scaled.q).max(axis=1, keepdims=True)
            cost = scaling.cost / _limit(jnp.maximum(mean, _limit(largest)))
            return Scaling(x, con, cost)

        return jax.lax.fori_loop(0, passes, once, scaling)


def _limit(norm: jax.Array) -> jax.Array:
    return jnp.where(norm < _SCALE_MIN, 1.0, jnp.minimum(norm, _SCALE_MAX)).astype(norm.dtype)


def row_factors(
    scaled: QPData, settings: ADMMSettings, classes: np.ndarray | None = None
) -> tuple[jax.Array, jax.Array]:
    """Factor of each row on its instance's rho, and which rows are free (their rho is fixed).

    Args:
        scaled: Scaled data; what kind a row is follows from its bounds.
        settings: With the factor of equalities.
        classes: `RowClass` of each row instead, for all instances.
    """
    if classes is None:
        equal = scaled.upper - scaled.lower < _EQUALITY_TOLERANCE
        large = INFINITY * _SCALE_MIN
        free = (scaled.lower < -large) & (scaled.upper > large)
    else:
        equal, free = (
            jnp.broadcast_to(jnp.asarray(classes == kind)[None, :, None], scaled.lower.shape)
            for kind in (RowClass.EQUALITY, RowClass.FREE)
        )
    return jnp.where(equal, settings.rho_equality, 1.0).astype(scaled.q.dtype), free


def rho_rows(rho: jax.Array | float, factors: jax.Array, free: jax.Array) -> jax.Array:
    """Rho of every row from the rho of its instance ``[groups, 1, lanes]``."""
    return jnp.where(free, RHO_MIN, rho * factors).astype(factors.dtype)


def adapted_rho(
    rho: jax.Array, primal: tuple[jax.Array, jax.Array], dual: tuple[jax.Array, jax.Array]
) -> jax.Array:
    """Rho that balances the relative residuals (residual, normaliser), OSQP's rule."""
    tiny = 1e-10
    relative_primal = primal[0] / (primal[1] + tiny)
    relative_dual = dual[0] / (dual[1] + tiny)
    return jnp.clip(rho * jnp.sqrt(relative_primal / (relative_dual + tiny)), RHO_MIN, RHO_MAX)
