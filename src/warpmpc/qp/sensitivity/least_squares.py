"""Second method of differentiating a QP: regularised least squares on the optimality conditions.

The conditions are P x + q + A'y and, per row, y (a'x - b) for inequalities, a'x - b for equalities.
With their Jacobian J = [[P, A'], [C A, D]] (C = y or 1, D = a'x - b or 0) the method solves J z = f
and J'r = g in the sense of least squares through [[(1 + eps) I, J'], [J, -eps I]], twice the size
of K, and refines against eps = 0.  A row beyond a soft bound has the condition
y - w1 = w2 (a'x - b), over 1 + w2: C = -w2 / (1 + w2), D = 1 / (1 + w2).  Degenerate solutions
(dependent active rows, bounds active with a zero multiplier) give the solution of smallest norm.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import scipy.sparse as sp

from warpmpc.engines.runtime.batching import LANES
from warpmpc.qp.linear_solvers.base import LDLSettings, LinearSystem
from warpmpc.qp.linear_solvers.ldl_warp import WarpLDL
from warpmpc.qp.sensitivity.active_set import Sensitivity
from warpmpc.qp.sensitivity.refinement import has_small_residual
from warpmpc.qp.sensitivity.row_state import Point
from warpmpc.qp.structure import QPStructure
from warpmpc.qp.types import INFINITY
from warpmpc.symbolic.elimination import eliminate
from warpmpc.symbolic.ordering import order
from warpmpc.symbolic.pattern import symmetric_upper

_REGULARISATION = {"float32": 1e-4, "float64": 1e-6}
# The regularised system is that of a proximal point method, so plain refinement converges, and what
# it has not reached yet in nearly singular directions stays small: that is the method.
_REFINEMENTS = 100


class LSQSensitivity(Sensitivity):
    """Least squares on the sparse LDL' kernels, whichever engine iterated."""

    lanes = LANES

    def __init__(self, structure: QPStructure):
        """Analyses the doubled system.

        Args:
            structure: Patterns of the QPs.
        """
        super().__init__(structure)
        self._eps = _REGULARISATION[structure.dtype]
        A_pattern, upper, P_upper = structure.A, structure.P_upper, structure.P_entries
        n, m = A_pattern.n_cols, A_pattern.n_rows
        # Entries of J' = [[P, A'C], [A, D]]: which block, and which stored value.
        mirrored = np.flatnonzero(upper.row_idx != upper.col_idx)
        P_rows = np.concatenate([upper.row_idx, upper.col_idx[mirrored]])
        P_cols = np.concatenate([upper.col_idx, upper.row_idx[mirrored]])
        self._P_source = np.concatenate([P_upper, P_upper[mirrored]])
        diagonal = np.arange(m)
        rows = [P_rows, A_pattern.col_idx, n + A_pattern.row_idx, n + diagonal]
        cols = [P_cols, n + A_pattern.row_idx, A_pattern.col_idx, n + diagonal]
        size = n + m
        every = np.arange(2 * size)
        S_rows = np.concatenate([*rows, every])
        S_cols = np.concatenate([*(size + c for c in cols), every])
        position = sp.csc_matrix(
            (np.arange(1.0, S_rows.size + 1), (S_rows, S_cols)), shape=(2 * size, 2 * size)
        )
        pattern, source, n_values = symmetric_upper(position)
        self._order = (position.data - 1).astype(np.int32)  # storage order of the listed entries
        elimination = eliminate(pattern, order(pattern, "amd"))
        system = LinearSystem(elimination, source, n_values, structure.dtype, np.ones(n_values))
        self._ldl = WarpLDL(system, LDLSettings())
        self.values_per_instance = n_values + elimination.nnz_L + 8 * elimination.n

    def solve(self, at: Point, top: jax.Array, bottom: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Smallest (dx, dy) with J (dx, dy) = (top, C bottom)."""
        C, D = self._complementarity(at)
        zero, n = jnp.zeros_like(_stack(top, bottom)), at.x.shape[1]
        first, _ = self._least_squares(at, (C, D), zero, _stack(top, C * bottom))
        return first[:, :n], first[:, n:]

    def solve_transposed(
        self, at: Point, top: jax.Array, bottom: jax.Array
    ) -> tuple[jax.Array, jax.Array]:
        """Least-squares r with J'r = (top, bottom), its second part as multipliers of bounds."""
        C, D = self._complementarity(at)
        zero, n = jnp.zeros_like(_stack(top, bottom)), at.x.shape[1]
        _, second = self._least_squares(at, (C, D), _stack(top, bottom), zero)
        return second[:, :n], C * second[:, n:]

    def is_solved(self, at: Point, x_bar: jax.Array, y_bar: jax.Array) -> jax.Array:
        """See `Sensitivity`."""
        given = _stack(x_bar, jnp.where(self.rows(at).active, y_bar, 0))
        return self._refined(at, self._complementarity(at), given, jnp.zeros_like(given))[1]

    def _complementarity(self, at: Point) -> tuple[jax.Array, jax.Array]:
        """Diagonals C and D; a row without a multiplier has the slack of its nearer bound."""
        equal, rows = at.data.lower == at.data.upper, self.rows(at)
        Ax = self.matrices.A.product(jnp.where(at.valid, at.data.A, 0), at.x)
        above = jnp.where(at.data.upper < INFINITY, Ax - at.data.upper, -jnp.inf)
        below = jnp.where(at.data.lower > -INFINITY, at.data.lower - Ax, -jnp.inf)
        nearest = jnp.maximum(above, below)
        slack = jnp.where(rows.active, 0.0, jnp.where(jnp.isfinite(nearest), nearest, -1.0))
        C = jnp.where(equal, 1.0, at.y).astype(at.x.dtype)
        if rows.beyond is not None:
            violated, w2 = rows.beyond.violated, rows.beyond.curvature
            C = jnp.where(violated, -w2 / (1 + w2), C)
            slack = jnp.where(violated, 1 / (1 + w2), slack)
        return C, jnp.where(at.valid, slack, -1.0).astype(at.x.dtype)

    def _least_squares(
        self, at: Point, rows: tuple[jax.Array, jax.Array], top: jax.Array, bottom: jax.Array
    ) -> tuple[jax.Array, jax.Array]:
        """Both parts of the solution; zero for instances that are not solved."""
        size = top.shape[1]
        w, solved = self._refined(at, rows, top, bottom)
        w = jnp.where(solved, w, 0)
        return w[:, :size], w[:, size:]

    def _refined(
        self, at: Point, rows: tuple[jax.Array, jax.Array], top: jax.Array, bottom: jax.Array
    ) -> tuple[jax.Array, jax.Array]:
        """Solves the doubled system with C and D of the rows; also which instances are solved."""
        C, D = rows
        P, A = (jnp.where(at.valid, values, 0) for values in (at.data.P, at.data.A))
        factor = self._ldl.factor_tiles(self._assemble(P, A, C, D))
        rhs = jnp.where(at.valid, _stack(top, bottom), 0)

        def rest(w: jax.Array) -> jax.Array:
            return rhs - self._apply(P, A, C, D, w)

        def refine(_: int, w: jax.Array) -> jax.Array:
            return w + self._ldl.solve_tiles(factor, rest(w))

        w = jax.lax.fori_loop(0, _REFINEMENTS, refine, jnp.zeros_like(rhs))
        return w, has_small_residual(rest(w), rhs)

    def _assemble(self, P: jax.Array, A: jax.Array, C: jax.Array, D: jax.Array) -> jax.Array:
        listed = [P[:, self._P_source], A * C[:, self._A.row_idx], A, D]
        size = self._A.n_cols + self._A.n_rows
        diagonal = np.concatenate([np.full(size, 1 + self._eps), np.full(size, -self._eps)])
        shape = (P.shape[0], 2 * size, P.shape[2])
        listed.append(jnp.broadcast_to(jnp.asarray(diagonal, dtype=P.dtype)[None, :, None], shape))
        return jnp.concatenate(listed, axis=1)[:, self._order]

    def _apply(
        self, P: jax.Array, A: jax.Array, C: jax.Array, D: jax.Array, w: jax.Array
    ) -> jax.Array:
        """[[I, J'], [J, 0]] times a vector."""
        M, n, size = self.matrices, self._A.n_cols, w.shape[1] // 2
        t, r = w[:, :size], w[:, size:]
        tx, ty, rx, ry = t[:, :n], t[:, n:], r[:, :n], r[:, n:]
        return jnp.concatenate(
            [
                tx + M.P.product(P, rx) + M.AT.product(A, C * ry),
                ty + M.A.product(A, rx) + D * ry,
                M.P.product(P, tx) + M.AT.product(A, ty),
                C * M.A.product(A, tx) + D * ty,
            ],
            axis=1,
        )


def _stack(top: jax.Array, bottom: jax.Array) -> jax.Array:
    return jnp.concatenate([top, bottom], axis=1)
