"""What all QPs with the same patterns share, whichever engine solves them.

Reads: the patterns of P and A, and the settings.  Produces: `QPStructure`, which has the pattern of
K, products with the matrices, scaling, soft rows and row classes.  Engines, sensitivities and
`QPSolver` are built from it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from warpmpc._conventions import RHO_MIN
from warpmpc._errors import PatternError, ProblemError, SettingsError
from warpmpc.qp.products import QPMatrices, rounded
from warpmpc.qp.scaling import Equilibration, Projection, QPData, ScaledQP, Scaling, row_factors
from warpmpc.qp.soft import Penalties, SoftRows
from warpmpc.qp.types import ADMMSettings, RowClass
from warpmpc.symbolic.derivatives.assembly import Assembly
from warpmpc.symbolic.derivatives.representative_kkt import (
    Point,
    RepresentativeSystem,
    find_light_variables,
    representative_of,
    variable_weights,
)
from warpmpc.symbolic.pattern import IntArray, KKTPattern, SparsePattern, build_kkt


@dataclass(frozen=True, eq=False)
class EliminationHints:
    """What is known about the values of K before there are any QPs.

    Attributes:
        light: Variables whose diagonal entry of P is stored but will be small against the squares
            of their column of A times rho.  In float32 they should not be eliminated early.
            Variables without a stored diagonal entry need not be listed.
        representative: Representative values of K: the staged engine tries on them which order of
            elimination fills least and is accurate in float32.
    """

    light: IntArray = field(default_factory=lambda: np.zeros(0, dtype=np.int32))
    representative: RepresentativeSystem | None = None

    @classmethod
    def of_problem(
        cls, assembly: Assembly, settings: ADMMSettings, point: Point | None
    ) -> EliminationHints:
        """What an MPC problem says about the values of K.

        Args:
            assembly: Index tables of the problem.
            settings: Settings of the QPs.
            point: A representative (z, params), if the caller knows one.
        """
        rho = (settings.rho, settings.rho * settings.rho_equality)
        params = assembly.problem.defaults if point is None else point[1]
        weights = variable_weights(assembly, params, rho)
        light, *fewer_light = find_light_variables(assembly, weights, settings.sigma)
        grows = settings.scaling > 0 or settings.adaptive_rho_every > 0
        every_rho = (*rho, RHO_MIN)
        representative = representative_of(
            assembly, every_rho, settings.sigma, weights, fewer_light, grows=grows, point=point
        )
        return cls(light, representative)


class QPStructure:
    """The patterns of P and A with everything that follows from them.

    Attributes:
        settings: Settings of the ADMM iteration.
        dtype: "float32" or "float64".
        P_pattern: Pattern of P as given, in full or its upper triangle.
        A_pattern: Pattern of A as given.
        A: Pattern of A; one without entries has an additional free row.
        n_vars: Number of variables.
        n_cons: Number of rows of A as given.
        n_added_rows: Number of additional free rows, 0 or 1.
        P_upper: Upper triangle of P.
        P_entries: Position in the caller's values of P of each entry of `P_upper`.
        soft: Soft rows, or None.
    """

    def __init__(
        self,
        P: SparsePattern,
        A: SparsePattern,
        settings: ADMMSettings,
        dtype: str,
        soft_rows: Sequence[int] | np.ndarray | None = None,
        row_classes: Sequence[int] | np.ndarray | None = None,
        hints: Callable[[], EliminationHints] = EliminationHints,
    ):
        """Keeps the patterns; what is costly is computed when it is needed.

        Args:
            P: Pattern of P, in full or its upper triangle.
            A: Pattern of A.
            settings: Settings of the ADMM iteration.
            dtype: "float32" or "float64".
            soft_rows: Rows of A whose bounds may be violated at the price of penalties.
            row_classes: `RowClass` of each row of A; None: what the bounds of each instance say.
            hints: Returns what is known about the values of K; called when an engine is built.
        """
        self.settings, self.dtype = settings.resolved(), dtype
        self.P_pattern, self.A_pattern, self.A = P, A, _with_entries(A)
        self.n_vars, self.n_cons = P.n_cols, A.n_rows
        self.n_added_rows = self.A.n_rows - A.n_rows
        self.P_upper, self.P_entries = P.upper()
        self.soft_rows = check_soft_rows(soft_rows, self.n_cons)
        self.soft = SoftRows(self.soft_rows, self.A.n_rows) if self.soft_rows.size else None
        self._classes = check_classes(row_classes, self.n_cons, self.n_added_rows, self.soft_rows)
        self._nominal: Scaling | None = None
        self._find_hints = hints

    def with_nominal(self, nominal: Any) -> QPStructure:
        """The same structure with one scaling for all instances.

        Args:
            nominal: Representative P_vals, q and A_vals of one instance.
        """
        if not self.settings.scaling:
            raise SettingsError("nominal has no effect with scaling=0; leave out one of the two.")
        sizes = (self.P_pattern.nnz, self.n_vars, self.A_pattern.nnz)
        arrays = finite_vectors(nominal, sizes, self.dtype)
        if arrays is None:
            raise ProblemError(
                "nominal needs finite values of one instance: P_vals "
                f"({sizes[0]}), q ({sizes[1]}) and A_vals ({sizes[2]})."
            )
        arrays[2] = np.append(arrays[2], np.zeros(self.n_added_rows, dtype=self.dtype))
        P, q, A = (jnp.asarray(array)[None, :, None] for array in arrays)
        unbounded = jnp.full((1, self.A.n_rows, 1), jnp.inf, dtype=self.dtype)
        nominal = self._equilibrated(QPData(P, q, A, -unbounded, unbounded))
        other = copy(self)
        other._nominal = nominal
        return other

    @property
    def scales_each(self) -> bool:
        """Whether each instance is scaled by itself, so that the unit of its cost is free."""
        return self.settings.scaling > 0 and self._nominal is None

    def with_hessian(self, P: SparsePattern) -> QPStructure:
        """The structure of QPs with the same rows and another Hessian.

        Args:
            P: Upper triangle of the other Hessian.
        """
        rows = (self.soft_rows, None if self._classes is None else self._classes[: self.n_cons])
        # Representative values belong to the pattern of the other K.
        return QPStructure(
            P,
            self.A_pattern,
            self.settings,
            self.dtype,
            *rows,
            hints=lambda: EliminationHints(self._hints.light),
        )

    def check(self) -> None:
        """Raises if P is not square or not symmetric, or if P and A do not fit together."""
        _ = self.kkt
        if self.P_upper.nnz != self.P_pattern.nnz and not self.P_pattern.is_symmetric():
            raise PatternError(
                "P is structurally unsymmetric; pass its upper triangle (scipy.sparse.triu) or the "
                "full symmetric pattern."
            )

    @cached_property
    def kkt(self) -> KKTPattern:
        """Pattern of K and its maps."""
        return build_kkt(self.P_upper, self.A)

    @cached_property
    def matrices(self) -> QPMatrices:
        """Products with P and A in the layout of the engines."""
        return QPMatrices(self.P_upper, self.P_entries, self.A)

    @cached_property
    def _equilibration(self) -> Equilibration:
        return Equilibration(self.P_upper, self.P_entries, self.A, self.P_pattern.nnz)

    @cached_property
    def _hints(self) -> EliminationHints:
        return self._find_hints()

    @property
    def representative(self) -> RepresentativeSystem | None:
        """Representative values of K, if they are known."""
        return self._hints.representative

    @property
    def light_variables(self) -> IntArray:
        """Variables without enough weight of their own: only sigma, or little, on the diagonal."""
        without = np.setdiff1d(np.arange(self.n_vars), self.P_diagonal[1])
        return np.union1d(without, self._hints.light).astype(np.int32)

    @property
    def P_diagonal(self) -> tuple[IntArray, IntArray]:
        """Stored diagonal entries of P: position in the caller's values, and variable."""
        stored = self.P_upper.row_idx == self.P_upper.col_idx
        return self.P_entries[stored], self.P_upper.col_idx[stored]

    @property
    def n_data(self) -> int:
        """Number of values of one QP."""
        of_rows = 2 * self.n_cons + 4 * self.soft_rows.size
        return self.n_matrices + self.n_vars + of_rows

    @property
    def n_matrices(self) -> int:
        """Number of values of P and A."""
        return self.P_pattern.nnz + self.A_pattern.nnz

    def values_for_scaling(self, *, matrices: bool) -> int:
        """Number of values that a scaled copy of one QP and its proximal maps need.

        Args:
            matrices: Whether the copies of P and A are kept while the loop runs.
        """
        scaled = self._nominal is not None or self.settings.scaling > 0
        proximal = 0 if self.soft is None else 4 * self.n_cons
        copied = self.n_data if matrices else self.n_data - self.n_matrices
        return proximal + (copied if scaled else 0)

    def assemble(
        self, P: jax.Array, A: jax.Array, rho: jax.Array, order: IntArray | None = None
    ) -> jax.Array:
        """Values of the upper triangle of K, or those listed in `order`: one gather, no scatter."""
        kkt, n_P, n_A = self.kkt, P.shape[1], A.shape[1]
        source = np.full(kkt.K_pattern.nnz, n_P + n_A + rho.shape[1], dtype=np.int32)
        source[kkt.P_to_K] = self.P_entries
        source[kkt.A_to_K] = n_P + np.arange(n_A)
        source[kkt.rho_to_K] = n_P + n_A + np.arange(rho.shape[1])
        shift = np.zeros((1, source.size, 1))
        shift[0, kkt.sigma_to_K] = self.settings.sigma
        if order is not None:
            source, shift = source[order], shift[:, order]
        zero = jnp.zeros((P.shape[0], 1, P.shape[2]), dtype=P.dtype)
        values = jnp.concatenate([P, A, -1 / rho, zero], axis=1)[:, source]
        return rounded(values) + jnp.asarray(shift, dtype=P.dtype)

    def scaled(self, data: QPData) -> ScaledQP:
        """The batch with its scaling and the step sizes of its rows."""
        scaling, identical, penalties = self._nominal, False, self._penalties(data)
        if scaling is None:
            scaling, identical = self._equilibrated(data), not self.settings.scaling
        scaled = data if identical else self._equilibration.apply(data, scaling)
        is_soft = None if self.soft is None else self.soft.is_soft
        factors, free = row_factors(scaled, self.settings, self._classes, is_soft)
        return ScaledQP(data, scaled, scaling, factors, free, identical, penalties)

    def start(
        self, data: QPData, given: tuple[jax.Array, ...], rho: jax.Array
    ) -> tuple[jax.Array, jax.Array, jax.Array]:
        """Unscaled x, s and y where the iteration starts.

        Args:
            data: The QPs.
            given: x, s and y of a `QPWarmStart`; empty for a cold start, which is zero.
            rho: Rho of every row.
        """
        if not given:
            zero = jnp.zeros_like(data.lower)
            return jnp.zeros_like(data.q), zero, zero
        x, s, y = given
        no_s, no_y = (jnp.isnan(rows).all(axis=1, keepdims=True) for rows in (s, y))
        penalties = self._penalties(data)
        proximal = None if penalties is None else penalties.proximal(rho)
        projected = Projection(data.lower, data.upper, proximal)(s)
        y = jnp.where(no_y, rho * (s - projected), y)
        s = jnp.where(no_s, self.matrices.A.product(data.A, x), jnp.where(no_y, projected, s))
        # An instance without a solution leaves values that are not finite: it starts afresh.
        known = jnp.isfinite(jnp.concatenate([x, s, y], axis=1)).all(axis=1, keepdims=True)
        x, s, y = (jnp.where(known, array, 0) for array in (x, s, y))
        return x, s, y

    def _equilibrated(self, data: QPData) -> Scaling:
        return self._equilibration.ruiz(data, self.matrices, self.settings.scaling)

    def _penalties(self, data: QPData) -> Penalties | None:
        if (self.soft is None) != (data.soft is None):
            raise ProblemError("QPData.soft belongs to soft rows: give both, or neither.")
        if self.soft is None or data.soft is None:
            return None
        return self.soft.penalties(data.soft)


def inverse_rho(settings: ADMMSettings, dtype: str) -> list[float]:
    """1/rho of inequalities, equalities and free rows; rho is rounded to the dtype before."""
    real = np.dtype(dtype).type
    rho = (settings.rho, settings.rho * settings.rho_equality, RHO_MIN)
    return [float(real(1) / real(value)) for value in rho]


def finite_vectors(given: Any, sizes: tuple[int, ...], dtype: str) -> list[np.ndarray] | None:
    """Vectors of these sizes; None if they are anything else."""
    try:
        arrays = [np.asarray(values, dtype=dtype) for values in given]
    except (TypeError, ValueError):
        return None
    shapes = [array.shape for array in arrays]
    fine = shapes == [(size,) for size in sizes] and all(np.isfinite(a).all() for a in arrays)
    return arrays if fine else None


def check_classes(
    given: Sequence[int] | np.ndarray | None, n_cons: int, n_added_rows: int, soft: IntArray
) -> np.ndarray | None:
    """`RowClass` of each row; rows that are added behind them are free."""
    if given is None:
        return None
    classes = np.asarray(given)
    if classes.shape != (n_cons,) or (n_cons and classes.dtype.kind not in "iu"):
        raise ProblemError(
            f"row_classes must be one RowClass per row of A: {n_cons} integers; got shape "
            f"{classes.shape}, dtype {classes.dtype}."
        )
    wrong = np.flatnonzero(~np.isin(classes, list(RowClass)))
    if wrong.size:
        raise ProblemError(
            f"row_classes[{wrong[0]}] is {classes[wrong[0]]}; use RowClass.EQUALITY, "
            "RowClass.INEQUALITY or RowClass.FREE."
        )
    equal = soft[classes[soft] == RowClass.EQUALITY]
    if equal.size:
        raise ProblemError(
            f"row_classes[{equal[0]}] is RowClass.EQUALITY, but the row is soft; use "
            "RowClass.INEQUALITY, also if its bounds are equal."
        )
    return np.append(classes, np.full(n_added_rows, RowClass.FREE))


def check_soft_rows(given: Any, n_cons: int) -> IntArray:
    """Indices of soft rows; an empty array for None."""
    try:
        found = np.asarray([] if given is None else given)
    except ValueError:  # ragged
        found = np.zeros((1, 1))
    if found.ndim != 1 or (found.size and found.dtype.kind not in "iu"):
        raise ProblemError(
            f"soft_rows must list rows of A as integers; got shape {found.shape}, dtype "
            f"{found.dtype}."
        )
    outside = found[(found < 0) | (found >= n_cons)]
    if outside.size:
        there = f"rows 0 to {n_cons - 1}" if n_cons else "no rows"
        raise ProblemError(f"soft_rows has row {outside[0]}, but A has {there}.")
    different, times = np.unique(found, return_counts=True)
    if times.max(initial=1) > 1:
        raise ProblemError(f"soft_rows has row {different[times > 1][0]} more than once.")
    return found.astype(np.int32)


def _with_entries(A: SparsePattern) -> SparsePattern:
    """The pattern of A; one without entries gets a free row."""
    if not A.n_cols:
        raise PatternError("A QP needs at least one variable; P and A have no columns.")
    if A.nnz:
        return A
    return SparsePattern.from_coo(np.array([A.n_rows]), np.array([0]), (A.n_rows + 1, A.n_cols))
