"""`QPSolver`: batches of convex QPs that share the patterns of P and A.

Checks what a caller can get wrong, folds leading axes into the batch, brings data into the engine's
layout, and runs scaling, ADMM and the read-out as one program.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cached_property, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import scipy.sparse as sp

from warpmpc._errors import PatternError, ProblemError, SettingsError
from warpmpc._types import ArrayLike, check_array, check_dtype
from warpmpc.engines.runtime.sharding import in_auto_axes
from warpmpc.engines.staged.tuning import Measured
from warpmpc.qp.batching import on_batches, part_size
from warpmpc.qp.checks import (
    check_classes,
    check_kind,
    check_light,
    check_penalties,
    check_soft_rows,
    finite_vectors,
)
from warpmpc.qp.linear_solvers.kkt_solvers import KKTSystem
from warpmpc.qp.loops.general import ADMMLoop
from warpmpc.qp.loops.kernels import tune_loop
from warpmpc.qp.loops.registry import EngineRequest, build_loop, sensitivity_engine
from warpmpc.qp.products import QPMatrices, with_entries, with_spare
from warpmpc.qp.scaling import Equilibration, QPData, ScaledQP, Scaling, row_factors
from warpmpc.qp.sensitivity.active_set import KKTSensitivity, Sensitivity, apply_linear
from warpmpc.qp.sensitivity.least_squares import LSQSensitivity
from warpmpc.qp.sensitivity.row_state import Point
from warpmpc.qp.soft import Penalties, Projection, SoftRows
from warpmpc.qp.termination import initial_status
from warpmpc.qp.types import ADMMSettings, QPSolution, QPWarmStart, StagedSettings, Status
from warpmpc.symbolic.float32_ordering import RepresentativeSystem
from warpmpc.symbolic.kkt import build_kkt
from warpmpc.symbolic.pattern import SparsePattern

_LOG = logging.getLogger(__name__)


class QPSolver:
    """min half x'Px + q'x subject to lower <= A x <= upper, for many instances at once.

    Examples:
        >>> solver = QPSolver(P, A)
        >>> solution = solver.solve(P_vals, q, A_vals, lower, upper)
    """

    def __init__(  # noqa: PLR0913  (one constructor, as users expect; most are optional)
        self,
        P: sp.spmatrix | sp.sparray,
        A: sp.spmatrix | sp.sparray,
        settings: ADMMSettings | None = None,
        dtype: str = "float32",
        engine: str = "auto",
        nominal: tuple[np.ndarray, np.ndarray, np.ndarray] | None = None,
        row_classes: Sequence[int] | np.ndarray | None = None,
        stages: Sequence[int] | np.ndarray | None = None,
        staged: StagedSettings | None = None,
        soft_rows: Sequence[int] | np.ndarray | None = None,
        light: Sequence[int] | np.ndarray | None = None,
        representative: RepresentativeSystem | None = None,
    ):
        """Analyses the patterns; nothing is compiled yet.

        Args:
            P: Pattern of P, its upper triangle or the full symmetric matrix.  Values are listed in
                column-major order of what is passed; of a full matrix the upper triangle is read.
            A: Pattern of A; values in column-major order.
            settings: Of the ADMM iteration.
            dtype: "float32" or "float64".
            engine: "staged" (fastest; needs `stages`), "sparse" (any pattern), "dense", "pcg", or
                "auto": staged if stages are given, else sparse.
            nominal: Representative (P_vals, q, A_vals) of one instance: the scaling is computed
                from them once and used for all instances, instead of one per instance.
            row_classes: `RowClass` of each row of A, which fixes its rho for all instances; None:
                what the bounds of each instance say.
            stages: Stage of each variable, then of each row of A; rows and cost may couple a stage
                with its neighbours only.
            staged: Of the staged engine's kernels.
            soft_rows: Rows of A whose bounds may be violated at the price of `penalties`.
            light: Variables whose diagonal entry of P is stored but will be small against the
                squares of their column of A times rho.  In float32 they should not be eliminated
                early; those without a stored entry are known anyway.
            representative: Representative values of K: the staged engine tries on them which order
                of elimination fills least and is accurate in float32.
        """
        self.settings, self.dtype = settings or ADMMSettings(), check_dtype(dtype)
        check_kind("settings", self.settings, ADMMSettings)
        check_kind("staged", staged, StagedSettings)
        P_given, self.A_pattern = SparsePattern.from_scipy(P), SparsePattern.from_scipy(A)
        if P_given.n_rows != P_given.n_cols:
            raise PatternError(f"P must be square, got shape {P_given.shape}.")
        upper, P_entries = P_given.upper()
        if upper.nnz != P_given.nnz and not P_given.is_symmetric():
            raise PatternError(
                "P is structurally unsymmetric; pass its upper triangle (scipy.sparse.triu) or the "
                "full symmetric pattern."
            )
        self.P_pattern, self._A = P_given, with_entries(self.A_pattern)
        self._n_spare = self._A.n_rows - self.A_pattern.n_rows
        kkt = build_kkt(upper, self._A)
        self.n_vars, self.n_cons = kkt.n_vars, self.A_pattern.n_rows
        self._matrices = QPMatrices(upper, P_entries, self._A)
        self._equilibration = Equilibration(upper, P_entries, self._A, P_given.nnz)
        soft = check_soft_rows(soft_rows, self.n_cons)
        self._soft = SoftRows(soft, self._A.n_rows) if soft.size else None
        sigma = self.settings.sigma
        light = check_light(light, self.n_vars)
        check_kind("representative", representative, RepresentativeSystem)
        given = (kkt, P_entries, self._matrices, sigma, self.dtype, soft, light, representative)
        self.system = KKTSystem(*given)
        if self._n_spare and stages is not None:
            stages = [*stages, *list(stages)[: self._n_spare]]
        request = EngineRequest(self.system, self.settings, stages, staged)
        self.engine, self._loop = build_loop(engine, request)
        self._nominal = None if nominal is None else self._nominal_scaling(nominal)
        self._row_classes = check_classes(row_classes, self.n_cons, self._n_spare, soft)
        self._run = jax.custom_jvp(self._on_batches(self.iterate, self.values_per_instance))
        self._run.defjvp(self._iterate_jvp)
        self._solve = jax.jit(self._solve_batch)

    @property
    def lanes(self) -> int:
        """Instances per group of the engine's layout ``[groups, rows, lanes]``: 1 or 32."""
        return self._loop.lanes

    @property
    def loop(self) -> ADMMLoop:
        """The engine's ADMM loop: for outer methods that have their own way to its data."""
        return self._loop

    def tune(self, batch: int) -> list[Measured]:
        """Measures which kernels are fastest for about this batch size: see `tune_loop`."""
        found = tune_loop(self._loop, batch)
        self._solve.clear_cache()  # pyright: ignore[reportAttributeAccessIssue]
        return found

    @property
    def matrices(self) -> QPMatrices:
        """Products with P and A in the engine's layout."""
        return self._matrices

    @property
    def values_per_instance(self) -> int:
        """Numbers in memory while one instance is solved, an estimate from above."""
        scaled = self._nominal is not None or self.settings.scaling > 0
        proximal = 0 if self._soft is None else 4 * self.n_cons
        return self._loop.values_per_instance + proximal + (self._n_data if scaled else 0)

    @property
    def bytes_per_instance(self) -> int:
        """Memory of these numbers."""
        return self.values_per_instance * np.dtype(self.dtype).itemsize

    @property
    def _n_data(self) -> int:
        """Numbers of one QP."""
        soft = 0 if self._soft is None else 4 * self._soft.rows.size
        return self.P_pattern.nnz + self.A_pattern.nnz + self.n_vars + 2 * self.n_cons + soft

    def _on_batches(self, function: Callable[..., Any], values: int) -> Callable[..., Any]:
        """A function of tiles as one of batches, in parts that the memory holds."""
        item = np.dtype(self.dtype).itemsize
        size = partial(
            part_size,
            max_batch=self.settings.max_batch,
            bytes_per_instance=values * item,
            bytes_per_result=self._n_data * item,  # of derivatives; solutions are smaller
        )
        return on_batches(function, self.lanes, size)

    def _nominal_scaling(self, nominal: tuple[np.ndarray, np.ndarray, np.ndarray]) -> Scaling:
        """Scaling of one representative instance, to be broadcast over the batch."""
        if not self.settings.scaling:
            raise SettingsError("nominal has no effect with scaling=0; leave out one of the two.")
        sizes = (self.P_pattern.nnz, self.n_vars, self.A_pattern.nnz)
        arrays = finite_vectors(nominal, sizes, self.dtype)
        if arrays is None:
            raise ProblemError(
                "nominal needs finite values of one instance: P_vals "
                f"({sizes[0]}), q ({sizes[1]}) and A_vals ({sizes[2]})."
            )
        arrays[2] = np.append(arrays[2], np.zeros(self._n_spare, dtype=self.dtype))
        P, q_one, A = (jnp.asarray(array)[None, :, None] for array in arrays)
        unbounded = jnp.full((1, self._A.n_rows, 1), jnp.inf, dtype=self.dtype)
        data = QPData(P, q_one, A, -unbounded, unbounded)
        return self._equilibration.ruiz(data, self._matrices, self.settings.scaling)

    @cached_property
    def sensitivity(self) -> Sensitivity:
        """Derivatives of solutions, in the engine's layout; built with the first use."""
        return self._sensitivity(self.system, self.P_pattern)

    def sensitivity_of(self, P: SparsePattern) -> Sensitivity:
        """The same for QPs with the same rows and another Hessian, given by its upper triangle."""
        entries = np.arange(P.nnz, dtype=np.int32)
        matrices = QPMatrices(P, entries, self._A)
        system = replace(
            self.system,
            kkt=build_kkt(P, self._A),
            P_entries=entries,
            matrices=matrices,
            representative=None,  # of another pattern
        )
        return self._sensitivity(system, P)

    def _sensitivity(self, system: KKTSystem, P: SparsePattern) -> Sensitivity:
        patterns = (system.matrices, P, self._A, self._soft)
        if self.settings.sensitivity == "lsq":
            if self.dtype == "float32":
                _LOG.warning("sensitivity lsq in float32 has two to three digits; use float64")
            return LSQSensitivity(*patterns, self.lanes, self.dtype)
        return KKTSensitivity(sensitivity_engine(self.engine, system), *patterns, self.dtype)

    @cached_property
    def _derivatives(self) -> tuple[Callable[..., Any], Callable[..., Any]]:
        """Forward and reverse mode on batches."""
        found = self.sensitivity
        needed = found.values_per_instance + 3 * self._n_data
        return self._on_batches(found.forward, needed), self._on_batches(found.reverse, needed)

    @in_auto_axes
    def solve(
        self,
        P_vals: ArrayLike,
        q: ArrayLike,
        A_vals: ArrayLike,
        lower: ArrayLike,
        upper: ArrayLike,
        warm_start: QPWarmStart | None = None,
        penalties: ArrayLike | None = None,
    ) -> QPSolution:
        """Solves every instance; all arguments have the same leading axes.

        Args:
            P_vals: Values of P, ``[batch, nnz(P)]``.
            q: Linear cost, ``[batch, n]``.
            A_vals: Values of A, ``[batch, nnz(A)]``.
            lower: Lower bounds, ``[batch, m]``, -inf where there is none.
            upper: Upper bounds, inf where there is none.
            warm_start: `QPSolution.warm_start` of an earlier call, or your own `QPWarmStart`.
            penalties: Of soft rows, ``[batch, 4, n_soft]``: linear lower, linear upper, quadratic
                lower, quadratic upper, in the order of `soft_rows`.  A violation e of a side costs
                ``linear e + quadratic / 2 e^2``; inf keeps the side hard.
        """
        sizes = {
            "P_vals": (P_vals, self.P_pattern.nnz),
            "q": (q, self.n_vars),
            "A_vals": (A_vals, self.A_pattern.nnz),
            "lower": (lower, self.n_cons),
            "upper": (upper, self.n_cons),
        }
        check_kind("warm_start", warm_start, QPWarmStart)
        if warm_start is not None:
            sizes["warm_start.x"] = (warm_start.x, self.n_vars)
            sizes["warm_start.s"] = (warm_start.s, self.n_cons)
            sizes["warm_start.y"] = (warm_start.y, self.n_cons)
        arrays = [
            check_array(array, name, size, self.dtype) for name, (array, size) in sizes.items()
        ]
        soft = check_penalties(
            penalties, 0 if self._soft is None else self._soft.rows.size, self.dtype
        )
        leading = {array.shape[:-1] for array in (*arrays, *soft)}
        if len(leading) > 1:
            raise ProblemError(f"All arguments need the same leading axes, got {sorted(leading)}.")
        return self._solve(soft, *arrays)

    def _solve_batch(self, soft: list[jax.Array], *arrays: jax.Array) -> QPSolution:
        leading = arrays[0].shape[:-1]
        flat = (array.reshape(math.prod(leading), array.shape[-1]) for array in arrays)
        P, q, A, lower, upper, *start = with_spare(self.n_cons, *flat) if self._n_spare else flat
        penalties = (array.reshape(math.prod(leading), array.shape[-1]) for array in soft)
        x, y, objective, rest = self._run(QPData(P, q, A, lower, upper, *penalties), tuple(start))
        s, *end = rest
        y, s = y[:, : self.n_cons], s[:, : self.n_cons]
        x, y, s = (array.reshape(*leading, array.shape[-1]) for array in (x, y, s))
        objective, status, iterations, primal, dual = (
            scalar.reshape(leading) for scalar in (objective, *end)
        )
        return QPSolution(x, y, objective, status, iterations, primal, dual, QPWarmStart(x, s, y))

    def _start(
        self, data: QPData, given: tuple[jax.Array, ...], rho: jax.Array
    ) -> tuple[jax.Array, jax.Array, jax.Array]:
        """Unscaled x, s and y from a `QPWarmStart`; zero for a cold start."""
        if not given:
            zero = jnp.zeros_like(data.lower)
            return jnp.zeros_like(data.q), zero, zero
        x, s, y = given
        no_s, no_y = (jnp.isnan(rows).all(axis=1, keepdims=True) for rows in (s, y))
        penalties = self._penalties(data)
        proximal = None if penalties is None else penalties.proximal(rho)
        projected = Projection(data.lower, data.upper, proximal)(s)
        y = jnp.where(no_y, rho * (s - projected), y)
        s = jnp.where(no_s, self._matrices.A.product(data.A, x), jnp.where(no_y, projected, s))
        # Not finite is what an instance without a solution leaves behind: it starts afresh.
        known = jnp.isfinite(jnp.concatenate([x, s, y], axis=1)).all(axis=1, keepdims=True)
        x, s, y = (jnp.where(known, array, 0) for array in (x, s, y))
        return x, s, y

    def _penalties(self, data: QPData) -> Penalties | None:
        if (self._soft is None) != (data.soft is None):
            raise ProblemError("QPData.soft belongs to soft rows: give both, or neither.")
        if self._soft is None or data.soft is None:
            return None
        return self._soft.penalties(data.soft)

    def _scaled(self, data: QPData) -> ScaledQP:
        """The batch with its scaling and rho classes."""
        scaling, identical, penalties = self._nominal, False, self._penalties(data)
        if scaling is None:
            scaling = self._equilibration.ruiz(data, self._matrices, self.settings.scaling)
            identical = not self.settings.scaling
        scaled = data if identical else self._equilibration.apply(data, scaling)
        is_soft = None if self._soft is None else self._soft.is_soft
        factors, free = row_factors(scaled, self.settings, self._row_classes, is_soft)
        return ScaledQP(data, scaled, scaling, factors, free, identical, penalties)

    def iterate(
        self, data: QPData, start: tuple[jax.Array, ...], active: jax.Array | None = None
    ) -> tuple[Any, ...]:
        """Solves instances that lie in the engine's layout: for outer methods, inside `jax.jit`.

        Not differentiable, and no limit on the memory: both belong to `solve`.

        Args:
            data: Arrays ``[groups, rows, lanes]`` with `lanes` of this solver; the pattern of A
                must have an entry.
            start: Unscaled x, s and y as in `QPWarmStart`; empty for a cold start.
            active: Which instances to solve, ``[groups, 1, lanes]``; others do not iterate and are
                said to be solved.

        Returns:
            x, y, objective and (s, status, iterations, primal residual, dual residual); scalars
            per instance are ``[groups, 1, lanes]``.
        """
        problem = self._scaled(data)
        rho = problem.rho(self.settings.rho)
        at = problem.scaled_start(*self._start(data, start, rho))
        status = initial_status(data)
        if active is not None:
            status = jnp.where(active, status, Status.SOLVED).astype(status.dtype)
        end = self._loop.run(problem, at, status)
        x, s, y = problem.unscaled(end.x, end.v, end.rho)
        hopeless = (end.status == Status.NON_FINITE) | (end.status == Status.INVALID_BOUNDS)
        x, s, y = (jnp.where(hopeless, jnp.nan, array) for array in (x, s, y))
        objective = end.objective + problem.penalty(end.v, end.rho)
        primal, dual, objective = (
            jnp.where(hopeless, jnp.nan, scalar)
            for scalar in (end.residuals.primal, end.residuals.dual, objective)
        )
        return x, y, objective, (s, end.status, end.iterations, primal, dual)

    def _iterate_jvp(self, primals: tuple[Any, ...], tangents: tuple[Any, ...]):
        """Implicit differentiation: the start of the iteration has no influence."""
        if self.engine == "pcg" and self.settings.sensitivity == "kkt":
            raise SettingsError(
                'Engine "pcg" is too inexact for sensitivities: use engine="sparse", or '
                'ADMMSettings(sensitivity="lsq").'
            )
        data, start = primals
        x, y, objective, rest = self._run(data, start)
        valid = self._differentiable(rest[1])
        x_there, y_there, s_there = (jnp.where(valid, array, 0) for array in (x, y, rest[0]))
        point = Point(data, x_there, y_there, valid, None if self._soft is None else s_there)
        changes = apply_linear(*self._derivatives, point, tangents[0])
        return (x, y, objective, rest), (*changes, jax.tree.map(_no_tangent, rest))

    def _differentiable(self, status: jax.Array) -> jax.Array:
        """Solved; or iterated as often as the caller fixed beforehand."""
        solved = status == Status.SOLVED
        return solved if self.settings.check_every else solved | (status == Status.MAX_ITER)


def _no_tangent(array: jax.Array) -> Any:
    if jnp.issubdtype(array.dtype, jnp.floating):
        return jnp.zeros_like(array)
    return np.zeros(array.shape, dtype=jax.dtypes.float0)
