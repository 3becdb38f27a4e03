"""Sensitivities of QP solutions by implicit differentiation on the pattern of K.

With the active set of the solution, small changes of the data change x and y by
[[P, A_a'], [A_a, 0]] [dx; dy] = [-dP x - dq - dA'y; db - dA x], b the active bounds.  The same
symmetric matrix serves forward and reverse mode.  It is factorised once with a small regularisation
(P + sigma I, -eps on active rows, -1 on inactive ones, which drop out) and refined against the
unregularised system.  Where active rows are linearly dependent the refined solution stays finite:
it approaches the limit of the regularised ones.

Rows beyond a soft bound have a diagonal of their own, -1/w2: see `qp.sensitivity.row_state`.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from warpmpc.qp.linear_solvers.kkt_solvers import KKTEngine
from warpmpc.qp.products import exact_product, exact_sum, total
from warpmpc.qp.scaling import QPData
from warpmpc.qp.sensitivity.refinement import DIRECTIONS, equilibrated, refined
from warpmpc.qp.sensitivity.row_state import Point, RowState, row_state, weighted
from warpmpc.qp.structure import QPStructure

# Shift of both diagonals of the scaled K: about the root of the machine precision.
_REGULARISATION = {"float32": 2e-4, "float64": 1e-8}


class Sensitivity:
    """Forward and reverse derivatives of (x, y) with respect to the data of a QP.

    A subclass solves the linear system: `solve` from changes of the optimality conditions to those
    of (x, y), `solve_transposed` from cotangents of (x, y) to multipliers of the conditions.

    Attributes:
        lanes: Instances per group of its arrays ``[groups, rows, lanes]``: 1 or 32.
        matrices: Products with P and A.
        values_per_instance: Number of values that it keeps in memory at a time.
    """

    lanes: int
    values_per_instance: int

    def __init__(self, structure: QPStructure):
        """Keeps where each stored value stands.

        Args:
            structure: Patterns of the QPs.
        """
        self.matrices, self._soft = structure.matrices, structure.soft
        self._P, self._A = structure.P_pattern, structure.A
        rows, cols = self._P.row_idx, self._P.col_idx
        # A value above the diagonal stands for two entries of P, one below is never read.
        self._P_weight = np.where(rows < cols, 1.0, np.where(rows == cols, 0.5, 0.0))[None, :, None]

    def rows(self, at: Point) -> RowState:
        """What every row does at a solution."""
        return row_state(at, self._soft, self.matrices)

    def forward(self, point: Point, tangent: QPData) -> tuple[jax.Array, jax.Array, jax.Array]:
        """Changes of x, y and the objective for a change of the data."""
        at, M, rows = point, self.matrices, self.rows(point)
        top = -(M.P.product(tangent.P, at.x) + tangent.q + M.AT.product(tangent.A, at.y))
        moved = rows.bound_change(tangent) - M.A.product(tangent.A, at.x)
        direct = total((0.5 * M.P.product(tangent.P, at.x) + tangent.q) * at.x)
        own = jnp.zeros_like(at.y)
        if rows.beyond is not None and tangent.soft is not None:
            own = rows.beyond.own_change(tangent.soft)
            top = top - M.AT.product(jnp.where(at.valid, at.data.A, 0), own)
            direct += total(rows.beyond.cost_change(tangent.soft)) - total(rows.beyond.y * moved)
        dx, dy = self.solve(at, top, weighted(rows.active, moved))
        objective = total(self._slope(at, rows) * dx) + direct
        return dx, dy + own, jnp.where(at.valid, objective, 0)

    def reverse(
        self, point: Point, x_bar: jax.Array, y_bar: jax.Array, objective_bar: jax.Array
    ) -> QPData:
        """Gradient with respect to the data from cotangents of x, y and the objective."""
        at, rows = point, self.rows(point)
        objective_bar = jnp.where(at.valid, objective_bar, 0)
        x_bar = jnp.where(at.valid, x_bar, 0) + objective_bar * self._slope(at, rows)
        y_bar = jnp.where(at.valid, y_bar, 0)
        dx, dy = self.solve_transposed(at, x_bar, jnp.where(rows.active, y_bar, 0))
        soft = None
        if rows.beyond is not None:
            A = jnp.where(at.valid, at.data.A, 0)
            soft = rows.beyond.gradient(y_bar - self.matrices.A.product(A, dx), objective_bar)
            dy = dy - objective_bar * rows.beyond.y
        weight = jnp.asarray(self._P_weight, dtype=dx.dtype)
        row, col = self._P.row_idx, self._P.col_idx
        x_row, x_col = at.x[:, row], at.x[:, col]
        return QPData(
            P=weight * (objective_bar * x_row * x_col - dx[:, row] * x_col - dx[:, col] * x_row),
            q=objective_bar * at.x - dx,
            A=-(at.y[:, self._A.row_idx] * dx[:, self._A.col_idx])
            - dy[:, self._A.row_idx] * at.x[:, self._A.col_idx],
            lower=weighted(rows.lower, dy),
            upper=weighted(rows.upper, dy),
            soft=soft,
        )

    def _slope(self, at: Point, rows: RowState) -> jax.Array:
        """Gradient of the objective with respect to x."""
        slope = self.matrices.P.product(at.data.P, at.x) + at.data.q
        if rows.beyond is not None:
            slope += self.matrices.AT.product(at.data.A, rows.beyond.y)
        return jnp.where(at.valid, slope, 0)

    def solve(self, at: Point, top: jax.Array, bottom: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Changes of x and y from the right-hand side of the linearised conditions."""
        raise NotImplementedError

    def solve_transposed(
        self, at: Point, top: jax.Array, bottom: jax.Array
    ) -> tuple[jax.Array, jax.Array]:
        """Multipliers of stationarity and of the active bounds from cotangents of x and y."""
        raise NotImplementedError

    def is_solved(self, at: Point, x_bar: jax.Array, y_bar: jax.Array) -> jax.Array:
        """Which instances have a gradient for these cotangents of x and y: those solved."""
        raise NotImplementedError


class KKTSensitivity(Sensitivity):
    """The default: the KKT matrix of the active set, on the engine and pattern of the iteration."""

    def __init__(self, engine: KKTEngine, structure: QPStructure):
        """Keeps the engine.

        Args:
            engine: Linear solver for the pattern of K.
            structure: Patterns of the QPs.
        """
        super().__init__(structure)
        self._engine, self._eps = engine, _REGULARISATION[structure.dtype]
        self.lanes = engine.lanes
        size = self._A.n_rows + self._A.n_cols
        self.values_per_instance = engine.values_per_instance + (2 * DIRECTIONS + 12) * size

    def solve_transposed(
        self, at: Point, top: jax.Array, bottom: jax.Array
    ) -> tuple[jax.Array, jax.Array]:
        """Product with the transpose, which is the same matrix."""
        return self.solve(at, top, bottom)

    def is_solved(self, at: Point, x_bar: jax.Array, y_bar: jax.Array) -> jax.Array:
        """See `Sensitivity`."""
        return self._refined(at, x_bar, jnp.where(self.rows(at).active, y_bar, 0))[1]

    def solve(self, at: Point, top: jax.Array, bottom: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Regularised solve and refinement; zero for instances that are not valid."""
        w, solved = self._refined(at, top, bottom)
        w, n = jnp.where(solved, w, 0), at.x.shape[1]
        return w[:, :n], w[:, n:]

    def _refined(self, at: Point, top: jax.Array, bottom: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Solution of the scaled system in terms of the given one; also which are solved."""
        rows = self.rows(at)
        active = rows.active
        P, A = (jnp.where(at.valid, values, 0) for values in (at.data.P, at.data.A))
        A = jnp.where(active[:, self._A.row_idx], A, 0)
        of_x, of_rows = equilibrated(P, A, self.matrices, self._P, self._A)
        P = P * of_x[:, self._P.row_idx] * of_x[:, self._P.col_idx]
        A = A * of_rows[:, self._A.row_idx] * of_x[:, self._A.col_idx]
        diagonal = jnp.where(active, rows.give * of_rows * of_rows, 1)
        rho = jnp.where(active, 1 / (diagonal + self._eps), 1)
        state = self._engine.prepare(P, A, rho)
        scale = jnp.concatenate([of_x, of_rows], axis=1)
        rhs = jnp.where(at.valid, jnp.concatenate([top, bottom], axis=1) * scale, 0)
        w, solved = refined(
            lambda w: self._apply(P, A, diagonal, w),
            lambda rhs, w, low: self._residual((P, A, diagonal), rhs, w, low),
            lambda r: self._engine.solve(state, r, jnp.zeros_like(at.x)),
            rhs,
        )
        return w * scale, solved

    def _apply(self, P: jax.Array, A: jax.Array, diagonal: jax.Array, w: jax.Array) -> jax.Array:
        """The unregularised matrix; inactive rows read -w = 0."""
        M, n = self.matrices, w.shape[1] - diagonal.shape[1]
        x, y = w[:, :n], w[:, n:]
        top = M.P.product(P, x) + M.AT.product(A, y)
        return jnp.concatenate([top, M.A.product(A, x) - diagonal * y], axis=1)

    def _residual(
        self, matrix: tuple[jax.Array, ...], rhs: jax.Array, w: jax.Array, low: jax.Array
    ) -> jax.Array:
        """What the unregularised matrix times w + low leaves of a right-hand side."""
        P, A, diagonal = matrix
        M, n = self.matrices, w.shape[1] - diagonal.shape[1]
        x, y = w[:, :n], w[:, n:]
        of_x = (M.P.product_twice(P, x), M.AT.product_twice(A, y))
        of_rows = (M.A.product_twice(A, x), exact_product(-diagonal, y))
        parts = []
        for (one, one_lost), (other, other_lost) in (of_x, of_rows):
            both, lost = exact_sum(one, other)
            parts.append((both, lost + (one_lost + other_lost)))
        product, lost = (jnp.concatenate(pair, axis=1) for pair in zip(*parts, strict=True))
        return (rhs - product) - (lost + self._apply(P, A, diagonal, low))
