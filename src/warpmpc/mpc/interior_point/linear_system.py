"""The linear system of a Newton step, and its regularisation until the inertia is right.

Reads: the patterns of P and A.  Produces: factors of ``K = [[P + delta I, A'], [A, -G]]`` and
solves with them.  G is diagonal.  A step is one of descent where K has as many positive pivots as
there are variables, so delta grows until it has (WB, 3.1).  Only tiles with such an instance are
factorised again, and the factors of the others there keep their bits.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np

from warpmpc._errors import PatternError
from warpmpc.engines.runtime.batching import LANES
from warpmpc.engines.staged.newton_launch import Factor, NewtonKernels
from warpmpc.engines.staged.newton_source import NewtonSource, ValuePlaces
from warpmpc.mpc.interior_point.constants import INERTIA, REFINEMENTS
from warpmpc.mpc.interior_point.problem_functions import NewtonData, RowOrder
from warpmpc.qp.linear_solvers.base import LDLSettings, LinearSystem
from warpmpc.qp.linear_solvers.dense import full_matrix, lu_after
from warpmpc.qp.linear_solvers.ldl_warp import WarpLDL
from warpmpc.qp.products import QPMatrices
from warpmpc.symbolic.elimination import eliminate
from warpmpc.symbolic.ordering import safe_amd
from warpmpc.symbolic.pattern import IntArray, SparsePattern, build_kkt
from warpmpc.symbolic.stage_elimination import build_stage_elimination

_LARGEST_CODE = 8_000  # multiply-adds in straight-line code beyond which tables are used


class KKTLayout:
    """Pattern of K for rows in another order, and where its values come from.

    Values are listed as those of P with delta on the stored diagonal, of A, delta, and -G.
    """

    def __init__(
        self,
        P: SparsePattern,
        A: SparsePattern,
        rows: RowOrder,
        stages: tuple[IntArray, IntArray],
    ):
        """Builds the tables.

        Args:
            P: Upper triangle of P.
            A: Pattern of A, rows in the order of the problem.
            rows: The order of rows in K.
            stages: Stage of each variable, and of each row in the order of the problem.
        """
        there = rows.place[A.row_idx], A.col_idx
        moved = SparsePattern.from_coo(*there, A.shape)
        self.kkt = kkt = build_kkt(P, moved)
        self.n_vars, self.n_rows = kkt.n_vars, kkt.n_cons
        self.A_entries = moved.positions(*there)  # place of each value of A in the moved pattern
        on_diagonal = P.row_idx == P.col_idx
        self.P_diagonal = on_diagonal.astype(np.float64)[None, :, None]
        self.light = np.setdiff1d(np.arange(self.n_vars), P.col_idx[on_diagonal]).astype(np.int32)
        delta = P.nnz + A.nnz
        source = np.full(kkt.K_pattern.nnz, delta, dtype=np.int32)
        source[kkt.P_to_K] = np.arange(P.nnz)
        source[kkt.A_to_K[self.A_entries]] = P.nnz + np.arange(A.nnz)
        source[kkt.rho_to_K] = delta + 1 + np.arange(self.n_rows)
        self.source: IntArray = source
        self.n_P, self.n_A, self.n_values = P.nnz, A.nnz, delta + 1 + self.n_rows
        self.stages = np.concatenate([stages[0], stages[1][rows.order]])
        self.A_order = np.argsort(self.A_entries).astype(np.int32)  # the other way round
        self.products = QPMatrices(P, np.arange(P.nnz), moved)

    def values(self, P: jax.Array, A: jax.Array, G: jax.Array, delta: jax.Array) -> jax.Array:
        """The values that K is made of."""
        diagonal = jnp.asarray(self.P_diagonal, dtype=P.dtype)
        return jnp.concatenate([P + delta * diagonal, A, delta, -G], axis=1)

    def product(self, system: tuple[jax.Array, ...], x: jax.Array) -> jax.Array:
        """K times a vector.

        Args:
            system: P, A, G and delta.
            x: The vector.
        """
        P, A, G, delta = system
        A = A[:, self.A_order]
        dz, dy = x[:, : self.n_vars], x[:, self.n_vars :]
        top = self.products.P.product(P, dz) + delta * dz + self.products.AT.product(A, dy)
        return jnp.concatenate([top, self.products.A.product(A, dz) - G * dy], axis=1)


Values = tuple[jax.Array, jax.Array, jax.Array, jax.Array]  # P, A, G, delta


class KKTSolver(Protocol):
    """Factorises K and solves with it; factors are any pytree of tiles.

    Attributes:
        values_per_instance: Values in memory that an instance needs.
        any_lanes: Whether tiles may have other than 32 lanes.
    """

    values_per_instance: int
    any_lanes: bool

    def factor(self, values: Values) -> Any:
        """Factors."""
        ...

    def refactor(self, factor: Any, values: Values, change: jax.Array) -> Any:
        """New factors of the instances marked in `change`; others keep theirs."""
        ...

    def positive(self, factor: Any) -> jax.Array:
        """Number of positive pivots, -1 where a pivot is zero or not finite."""
        ...

    def solve(self, factor: Any, rhs: jax.Array) -> jax.Array:
        """Solutions."""
        ...


class StagedSolver:
    """LDL' stage by stage, in code that is generated for the stages."""

    any_lanes = True

    def __init__(self, layout: KKTLayout, dtype: str):
        """Orders the stages.

        Args:
            layout: Pattern of K.
            dtype: "float32" or "float64".

        Raises:
            PatternError: Code for the stages would be too long, or equal stages differ.
        """
        # Variables without an entry in P wait for the rows that have them.
        program = build_stage_elimination(layout.kkt, layout.stages, layout.light)
        if program.code_size > _LARGEST_CODE:
            raise PatternError(
                f"The stages need {program.code_size} multiply-adds, more than {_LARGEST_CODE}."
            )
        source = NewtonSource(program, ValuePlaces(layout.n_P, layout.n_A, layout.source))
        self._kernels = NewtonKernels(program, source, dtype)
        self.values_per_instance = layout.n_values + program.n_L + program.n_nodes

    def factor(self, values: Values) -> Factor:
        """Factors."""
        return self._kernels.factor(*values)

    def refactor(self, factor: Factor, values: Values, change: jax.Array) -> Factor:
        """New factors of tiles with a change; equal values give equal factors."""
        return self._kernels.refactor(factor, *values, todo=_changed_tiles(change))

    def positive(self, factor: Factor) -> jax.Array:
        """Number of positive pivots."""
        return factor[1]

    def solve(self, factor: Factor, rhs: jax.Array) -> jax.Array:
        """Solutions."""
        return self._kernels.solve(factor, rhs)


def _changed_tiles(change: jax.Array) -> jax.Array:
    return change.any(axis=(1, 2)).astype(jnp.int32)


class SparseSolver:
    """LDL' with tables for any pattern."""

    any_lanes = False

    def __init__(self, layout: KKTLayout, dtype: str):
        """Analyses K; variables without an entry in P are eliminated after a row that has them."""
        self._layout = layout
        elimination = eliminate(layout.kkt.K_pattern, safe_amd(layout.kkt, layout.light))
        scale = np.ones(layout.n_values)
        linear = LinearSystem(elimination, layout.source, layout.n_values, dtype, scale)
        self._ldl, self._n_L = WarpLDL(linear, LDLSettings()), elimination.nnz_L
        self.values_per_instance = layout.n_values + 2 * (elimination.nnz_L + elimination.n)

    def factor(self, values: Values) -> jax.Array:
        """Factors."""
        return self._ldl.factor_tiles(self._layout.values(*values))

    def refactor(self, factor: jax.Array, values: Values, change: jax.Array) -> jax.Array:
        """New factors of tiles with a change; equal values give equal factors."""
        joined = self._layout.values(*values)
        return self._ldl.refactor_tiles(factor, joined, _changed_tiles(change))

    def positive(self, factor: jax.Array) -> jax.Array:
        """Number of positive pivots."""
        inverse = factor[:, self._n_L :]
        usable = (jnp.isfinite(inverse) & (inverse != 0)).all(axis=1, keepdims=True)
        return jnp.where(usable, (inverse > 0).sum(axis=1, keepdims=True), -1)

    def solve(self, factor: jax.Array, rhs: jax.Array) -> jax.Array:
        """Solutions."""
        return self._ldl.solve_tiles(factor, rhs)


class DenseSolver:
    """Full matrices: LU with pivoting, inertia by eigenvalues.  The oracle, for small problems."""

    any_lanes = False

    def __init__(self, layout: KKTLayout, dtype: str):
        """Keeps the pattern."""
        del dtype
        self._layout = layout
        self.values_per_instance = 5 * layout.kkt.K_pattern.n_cols**2

    def factor(self, values: Values) -> tuple[jax.Array, jax.Array, jax.Array]:
        """LU factors, and the number of positive eigenvalues."""
        pattern, joined = self._layout.kkt.K_pattern, self._layout.values(*values)
        flat = joined.transpose(0, 2, 1).reshape(-1, joined.shape[1])[:, self._layout.source]
        K = full_matrix(pattern, flat)
        finite = jnp.isfinite(K).all(axis=(1, 2), keepdims=True)
        safe = jnp.where(finite, K, jnp.eye(K.shape[1], dtype=K.dtype)[None])
        count = (jnp.linalg.eigvalsh(safe) > 0).sum(axis=1)
        return *lu_after(count > 0, safe), jnp.where(finite[:, 0, 0], count, -1)

    def refactor(self, factor: Any, values: Values, change: jax.Array) -> Any:
        """New factors of all instances; equal values give equal factors."""
        del factor, change
        return self.factor(values)

    def positive(self, factor: Any) -> jax.Array:
        """Number of positive eigenvalues."""
        return factor[2].reshape(-1, 1, LANES)

    def solve(self, factor: Any, rhs: jax.Array) -> jax.Array:
        """Solutions."""
        flat = rhs.transpose(0, 2, 1).reshape(-1, rhs.shape[1])
        x = jax.vmap(jax.scipy.linalg.lu_solve)(factor[:2], flat)
        return x.reshape(-1, LANES, rhs.shape[1]).transpose(0, 2, 1)


SOLVERS: dict[str, Callable[[KKTLayout, str], KKTSolver]] = {
    "staged": StagedSolver,
    "sparse": SparseSolver,
    "dense": DenseSolver,
}


class Factorised:
    """K of one iteration, factorised with the right inertia, and solves with it.

    Attributes:
        delta: The regularisation.
        right: Instances whose inertia is right.
        tries: Number of factorisations of each instance.
        slope: Gradient of the Lagrangian, minus the right-hand side of the variables.
    """

    def __init__(
        self,
        system: NewtonSystem,
        data: NewtonData,
        G: jax.Array,
        delta: jax.Array,
        active: jax.Array,
    ):
        """Factorises.

        Args:
            system: Pattern and linear solver.
            data: Derivatives.
            G: Minus the diagonal entries of the rows.
            delta: First regularisation.
            active: Instances that take part.
        """
        self._system, (P, A), self.slope = system, (data.P, data.A), data.slope
        solver, layout = system.solver, system.layout
        factor = solver.factor((P, A, G, delta))
        right = solver.positive(factor) == layout.n_vars
        again = jnp.maximum(INERTIA.up * delta, INERTIA.first)

        def wrong(carry: tuple[Any, ...]) -> jax.Array:
            delta, _, right, _ = carry
            return (active & ~right & (delta < INERTIA.most)).any()

        def grown(carry: tuple[Any, ...]) -> tuple[Any, ...]:
            delta, factor, right, tries = carry
            bad = active & ~right & (delta < INERTIA.most)
            delta = jnp.where(bad, jnp.maximum(INERTIA.up * delta, again), delta)
            factor = solver.refactor(factor, (P, A, G, delta), bad)
            return delta, factor, solver.positive(factor) == layout.n_vars, tries + bad

        begin = (delta, factor, right, active.astype(jnp.int32))
        self.delta, self._factor, self.right, self.tries = jax.lax.while_loop(wrong, grown, begin)
        self._values = (P, A, G, self.delta)

    def solve(self, rhs: jax.Array) -> jax.Array:
        """Solutions, refined in float32."""
        system = self._system
        x = system.solver.solve(self._factor, rhs)
        for _ in range(system.refinements):
            rest = rhs - system.layout.product(self._values, x)
            x = x + system.solver.solve(self._factor, rest)
        return x


class NewtonSystem:
    """Pattern and linear solver of one problem."""

    def __init__(self, layout: KKTLayout, engine: str, dtype: str):
        """Analyses K.

        Args:
            layout: Pattern of K.
            engine: Name in `SOLVERS`, or "auto": the first one that is possible.
            dtype: "float32" or "float64".

        Raises:
            PatternError: The engine is not possible for this pattern.
        """
        self.layout, self.refinements = layout, REFINEMENTS[dtype]
        self.engine, self.reason = engine, ""
        if engine == "auto":
            self.engine, self.solver, self.reason = _first_possible(layout, dtype)
        else:
            self.solver = SOLVERS[engine](layout, dtype)


def _first_possible(layout: KKTLayout, dtype: str) -> tuple[str, KKTSolver, str]:
    """Name and solver of the fastest engine, and why a faster one is not possible."""
    try:
        return "staged", StagedSolver(layout, dtype), ""
    except PatternError as error:
        return "sparse", SparseSolver(layout, dtype), str(error)
