"""Dense oracle: LU with partial pivoting of the full matrices, independent of everything sparse."""

from __future__ import annotations

from typing import ClassVar

import jax
import jax.numpy as jnp

from warpmpc._errors import SettingsError
from warpmpc.qp.linear_solvers.base import LDLSettings, LinearSystem, invert_pivots, status_of
from warpmpc.symbolic.pattern import SparsePattern


def full_matrix(pattern: SparsePattern, values: jax.Array) -> jax.Array:
    """Symmetric matrices ``[batch, n, n]`` from the values of their upper triangles."""
    K = jnp.zeros((values.shape[0], *pattern.shape), dtype=values.dtype)
    K = K.at[:, pattern.row_idx, pattern.col_idx].set(values)
    return K.at[:, pattern.col_idx, pattern.row_idx].set(values)


def lu_after(answer: jax.Array, K: jax.Array) -> tuple[jax.Array, jax.Array]:
    """LU factors with pivots of matrices, computed after a yes or no about each of them.

    XLA would run both at the same time, and on two cores the parallel LAPACK calls of JAX (0.10)
    may then wait for each other for ever.
    """
    nothing = jnp.where(answer, 0.0, -0.0).astype(K.dtype)
    return jax.scipy.linalg.lu_factor(K + nothing[:, None, None])


class DenseLU:
    """Factorises full matrices; for checking and for small systems only."""

    honours: ClassVar[frozenset[str]] = frozenset()

    def __init__(self, system: LinearSystem, settings: LDLSettings):
        """Keeps the pattern."""
        del settings
        self._system = system

    def factor(self, K_vals: jax.Array) -> tuple[tuple[jax.Array, jax.Array], jax.Array]:
        """LU factors with pivots, and status per problem."""
        pattern, source = self._system.elimination.K_pattern, self._system.source
        scale = jnp.asarray(self._system.value_scale, dtype=K_vals.dtype)
        K = full_matrix(pattern, (K_vals * scale[None])[:, source])
        lu, pivots = jax.scipy.linalg.lu_factor(K)
        # NaN anywhere in a row of U reaches no pivot when the matrix is 1 x 1 or triangular.
        worst = jnp.where(jnp.isfinite(K).all(axis=(1, 2)), 1.0, jnp.nan)[:, None]
        diagonal = jnp.diagonal(lu, axis1=1, axis2=2) * worst
        return (lu, pivots), status_of(invert_pivots(diagonal), axis=1)

    def solve(self, factor: tuple[jax.Array, jax.Array], rhs: jax.Array) -> jax.Array:
        """Solutions in the caller's order."""
        return jax.vmap(jax.scipy.linalg.lu_solve)(factor, rhs)

    def factors(
        self, factor: tuple[jax.Array, jax.Array], batch: int
    ) -> tuple[jax.Array, jax.Array]:
        """Not available: LU with pivoting has no L and D of the elimination."""
        raise SettingsError('backend "dense" has no L and D; use backend "warp" or "jax".')
