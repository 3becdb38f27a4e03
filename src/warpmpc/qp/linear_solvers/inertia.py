"""Whether P + sigma I + A' rho A bends down somewhere: the signs of the pivots of K.

K = L D L' has as many negative pivots as rows exactly if that matrix is positive definite, which it
is for every convex P.  In float32 a pivot that should be tiny and positive may come out negative.
So only pivots count that are not rounding: those beyond a share of the terms they are the sum of.
"""

from __future__ import annotations

from typing import Any, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
import numpy as np

from warpmpc._conventions import Status
from warpmpc.qp.products import RowGather
from warpmpc.symbolic.elimination import Elimination
from warpmpc.symbolic.pattern import IntArray

_ROUNDING = 100  # error of a pivot, in units of the machine precision of its largest terms


@runtime_checkable
class KnowsCurvature(Protocol):
    """A KKT engine that can tell from what it has prepared whether the problem is convex."""

    def bends_down(self, state: Any, P: jax.Array, A: jax.Array, rho: jax.Array) -> jax.Array:
        """Which instances have a direction of negative curvature, ``[groups, 1, lanes]``."""
        ...


class Inertia:
    """Counts pivots with the wrong sign."""

    def __init__(self, elimination: Elimination, n_vars: int, node_of: IntArray | None = None):
        """Builds the table of terms.

        Args:
            elimination: With the pattern of L, in the order of elimination.
            n_vars: Number of variables.
            node_of: Where the factor keeps the inverse pivot of each place in that order; None: in
                that order.
        """
        L = elimination.L_pattern
        self._n_vars, self._n_L, self._n_nodes = n_vars, elimination.nnz_L, elimination.n
        self._node_of = np.arange(elimination.n) if node_of is None else node_of
        self._terms = RowGather(L.row_idx, L.col_idx, np.arange(L.nnz), elimination.n)

    def is_wrong(self, factor: jax.Array, diagonal: jax.Array) -> jax.Array:
        """Which instances have more negative pivots than rows, ``[groups, 1, lanes]``.

        Args:
            factor: L, then inverse pivots, ``[groups, rows, lanes]``.
            diagonal: Diagonal of K in the order of elimination.
        """
        inverse = factor[:, self._n_L :]
        suspect = jnp.sum(inverse < 0, axis=1, keepdims=True) > self._n_nodes - self._n_vars

        def confirmed() -> jax.Array:
            pivots = 1 / inverse[:, self._node_of]
            L = factor[:, : self._n_L]
            size = jnp.abs(diagonal) + self._terms.product(L * L, jnp.abs(pivots))
            sure = pivots < -_ROUNDING * jnp.finfo(factor.dtype).eps * size
            return jnp.sum(sure, axis=1, keepdims=True) > self._n_nodes - self._n_vars

        # Reading L again takes as long as half an iteration: only where something is wrong.
        return jax.lax.cond(suspect.any(), lambda: suspect & confirmed(), lambda: suspect)


def with_curvature(status: jax.Array, bends_down: jax.Array) -> jax.Array:
    """The final status where the cost has been found to bend down.

    The iteration may end at a maximiser or a saddle, so its solutions are none, or leave the range
    of numbers.  What shows that there is no solution at all shows it for every P.
    """
    ended = (status == Status.SOLVED) | (status == Status.MAX_ITER) | (status == Status.NON_FINITE)
    return jnp.where(bends_down & ended, Status.NON_CONVEX, status)


def bends_down_densely(K: jax.Array, n_vars: int, rho: jax.Array) -> jax.Array:
    """Whether Cholesky fails, for dense K ``[groups, n, n]`` and rho ``[groups, rows]``."""
    A = K[:, n_vars:, :n_vars]
    reduced = K[:, :n_vars, :n_vars] + jnp.einsum("gri,gr,grj->gij", A, rho, A)
    size = jnp.abs(jnp.diagonal(reduced, axis1=1, axis2=2))
    root = jnp.sqrt(jnp.where(size > 0, size, 1))
    scaled = reduced / (root[:, :, None] * root[:, None, :])
    shift = _ROUNDING * jnp.finfo(K.dtype).eps * jnp.eye(n_vars, dtype=K.dtype)
    fails = ~jnp.isfinite(jnp.linalg.cholesky(scaled + shift[None])).all(axis=(1, 2))
    return fails & jnp.isfinite(reduced).all(axis=(1, 2))
