"""`QPSolver`: batches of convex QPs that share the patterns of P and A.

Checks what a caller can get wrong, folds leading axes into the batch, brings data into the engine's
layout, and runs scaling, ADMM and the read-out as one program.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property, partial
from typing import Any, Self

import jax
import jax.numpy as jnp
import numpy as np
import scipy.sparse as sp

from warpmpc._checks import ArrayLike, check_array, check_dtype, check_kind
from warpmpc._conventions import GradientStatus
from warpmpc._errors import ProblemError, SettingsError
from warpmpc.engines.runtime.announcing import ANNOUNCER
from warpmpc.engines.runtime.batching import in_auto_axes, on_batches, part_size
from warpmpc.engines.staged.tuning import Measured
from warpmpc.qp.linear_map import Directions, linear_map
from warpmpc.qp.linear_solvers.kkt_solvers import KKTEngine, SparseEngine
from warpmpc.qp.loops.general import ADMMLoop
from warpmpc.qp.loops.kernels import tune_loop
from warpmpc.qp.loops.registry import (
    Engine,
    EngineRequest,
    build_loop,
    check_request,
    engine_named,
)
from warpmpc.qp.polish import Polish, Polished, check_polish
from warpmpc.qp.products import QPMatrices, with_free_row
from warpmpc.qp.scaling import QPData, initial_status
from warpmpc.qp.sensitivity.active_set import KKTSensitivity, Sensitivity
from warpmpc.qp.sensitivity.least_squares import LSQSensitivity
from warpmpc.qp.sensitivity.row_state import Point
from warpmpc.qp.structure import QPStructure
from warpmpc.qp.types import ADMMSettings, QPSolution, QPWarmStart, StagedSettings, Status
from warpmpc.symbolic.pattern import SparsePattern

_LOG = logging.getLogger(__name__)
_DATA = ("P_vals", "q", "A_vals", "lower", "upper")
_FIRST_ONLY = "QPSolver has first derivatives only; its gradients have none."


class QPSolver:
    """min half x'Px + q'x subject to lower <= A x <= upper, for many instances at once.

    Attributes:
        structure: The patterns and what follows from them.
        settings: Settings of the ADMM iteration.
        dtype: "float32" or "float64".
        n_vars: Number of variables.
        n_cons: Number of rows of A.

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
    ):
        """Checks the arguments; the engine is built when it is first needed.

        Args:
            P: Pattern of P, its upper triangle or the full symmetric matrix.  Values are listed in
                column-major order of what is passed; of a full matrix the upper triangle is read.
            A: Pattern of A; values in column-major order.
            settings: Settings of the ADMM iteration.
            dtype: "float32" or "float64".
            engine: "staged" (fastest; needs `stages`), "sparse" (any pattern), "dense", "pcg", an
                engine that you put into `qp.loops.registry.LOOPS`, or "auto": staged if stages are
                given, else sparse.
            nominal: Representative (P_vals, q, A_vals) of one instance: the scaling is computed
                from them once and used for all instances, instead of one per instance.
            row_classes: `RowClass` of each row of A, which fixes its rho for all instances; None:
                what the bounds of each instance say.
            stages: Stage of each variable, then of each row of A; rows and cost may couple a stage
                with its neighbours only.
            staged: Settings of the staged engine's kernels.
            soft_rows: Rows of A whose bounds may be violated at the price of `penalties`.
        """
        check_kind("settings", settings, ADMMSettings)
        settings, dtype = ADMMSettings() if settings is None else settings, check_dtype(dtype)
        check_kind("staged", staged, StagedSettings)
        patterns = SparsePattern.from_scipy(P), SparsePattern.from_scipy(A)
        structure = QPStructure(*patterns, settings, dtype, soft_rows, row_classes)
        structure.check()
        given_stages = stages
        if structure.n_added_rows and stages is not None and np.ndim(stages) == 1:
            stages = [*stages, *list(stages)[: structure.n_added_rows]]
        if nominal is not None:
            structure = structure.with_nominal(nominal)
        self._set_up(engine, EngineRequest(structure, stages, staged))
        rest = (settings, dtype, engine, nominal, row_classes, given_stages, staged, soft_rows)
        self._definition = (*patterns, *rest)

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickles the definition; a process that reads it finds the kernels in the cache."""
        if self._definition is None:
            raise ProblemError("This QPSolver is a part of an MPCSolver; pickle that one.")
        return _rebuilt, self._definition

    def __copy__(self) -> Self:
        """The solver itself: it has no state that a copy could change."""
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        """The solver itself."""
        del memo
        return self

    @classmethod
    def from_structure(
        cls, structure: QPStructure, engine: str, stages: Any, staged: StagedSettings | None
    ) -> QPSolver:
        """A solver for a structure that exists already.

        Args:
            structure: Patterns and settings; they are known to fit together.
            engine: Name of the engine, or "auto".
            stages: Stage of each variable, then of each row of A, or None.
            staged: Settings of the staged engine's kernels.
        """
        check_kind("staged", staged, StagedSettings)
        solver = cls.__new__(cls)
        solver._set_up(engine, EngineRequest(structure, stages, staged))
        return solver

    def _set_up(self, engine: str, request: EngineRequest) -> None:
        check_request(engine, request)
        self._wanted, self._request = engine, request
        self._definition: tuple[Any, ...] | None = None
        self.structure = structure = request.structure
        self.settings, self.dtype = structure.settings, structure.dtype
        self.n_vars, self.n_cons = structure.n_vars, structure.n_cons
        self._solve = jax.jit(self._solve_batch)
        if self.settings.polish:
            check_polish(structure, engine, exact=self._exact_solver is not None)
        if request.staged is not None:
            _ = self._built  # only the elimination shows whether these settings can be used

    @cached_property
    def _built(self) -> tuple[Engine, ADMMLoop]:
        with jax.ensure_compile_time_eval():  # constants outlive the program being traced
            return build_loop(self._wanted, self._request)

    @property
    def engine(self) -> str:
        """Name of the engine; the first use builds it."""
        return self._built[0].name

    @property
    def loop(self) -> ADMMLoop:
        """The engine's ADMM loop: for outer methods that have their own way to its data."""
        return self._built[1]

    @property
    def lanes(self) -> int:
        """Instances per group of the engine's layout ``[groups, rows, lanes]``: 1 or 32."""
        return self.loop.lanes

    @property
    def P_pattern(self) -> SparsePattern:
        """Pattern of P as given."""
        return self.structure.P_pattern

    @property
    def A_pattern(self) -> SparsePattern:
        """Pattern of A as given."""
        return self.structure.A_pattern

    @property
    def matrices(self) -> QPMatrices:
        """Products with P and A in the engine's layout."""
        return self.structure.matrices

    def tune(self, batch: int) -> list[Measured]:
        """Measures which kernels are fastest for about this batch size: see `tune_loop`."""
        found = tune_loop(self.loop, batch)
        self._solve.clear_cache()  # pyright: ignore[reportAttributeAccessIssue]
        return found

    @property
    def values_per_instance(self) -> int:
        """Number of values in memory while one instance is solved, an estimate from above."""
        more = 0 if self._polish is None else self._polish.values_per_instance
        scaled = self.structure.values_for_scaling(matrices=self.loop.reads_matrices)
        return self.loop.values_per_instance + scaled + more

    @property
    def bytes_per_instance(self) -> int:
        """Memory of these values."""
        return self.values_per_instance * np.dtype(self.dtype).itemsize

    def _on_batches(
        self, function: Callable[..., Any], lanes: int, values: int
    ) -> Callable[..., Any]:
        """A function of groups as one of batches, in parts that the memory holds."""
        item = np.dtype(self.dtype).itemsize
        size = partial(
            part_size,
            max_batch=self.settings.max_batch,
            bytes_per_instance=values * item,
            bytes_per_result=self.structure.n_data * item,  # derivatives; solutions are smaller
        )
        return on_batches(function, lanes, size)

    @cached_property
    def _run(self) -> Callable[..., Any]:
        """The iteration on batches, with its derivatives."""
        run = jax.custom_jvp(self._on_batches(self.iterate, self.lanes, self.values_per_instance))
        run.defjvp(self._iterate_jvp)
        return run

    @cached_property
    def sensitivity(self) -> Sensitivity:
        """Derivatives of solutions; built with the first use."""
        return self._sensitivity(self.structure)

    def sensitivity_of(self, P: SparsePattern) -> Sensitivity:
        """A solver for QPs with the same rows and another Hessian, given by its upper triangle."""
        return self._sensitivity(self.structure.with_hessian(P))

    def _sensitivity(self, structure: QPStructure) -> Sensitivity:
        if self.settings.sensitivity == "lsq":
            if self.dtype == "float32":
                _LOG.warning("sensitivity lsq in float32 has two to three digits; use float64")
            return LSQSensitivity(structure)
        wanted, build = self._wanted, self._exact_solver
        if build is None:
            raise SettingsError(
                f'Engine "{wanted}" is too inexact for sensitivities: use engine="sparse", or '
                'ADMMSettings(sensitivity="lsq").'
            )
        return KKTSensitivity(build(structure), structure)

    @cached_property
    def _derivatives(self) -> tuple[Callable[..., Any], Callable[..., Any]]:
        """Forward and reverse mode on batches."""
        found = self.sensitivity
        needed = found.values_per_instance + 3 * self.structure.n_data
        forward, reverse = (
            self._on_batches(mode, found.lanes, needed) for mode in (found.forward, found.reverse)
        )
        return forward, reverse

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
            penalties: Penalties of soft rows, ``[batch, 4, n_soft]``: linear lower, linear upper,
                quadratic lower, quadratic upper, in the order of `soft_rows`.  A violation e of a
                side costs ``linear e + quadratic / 2 e^2``; inf keeps the side hard.
        """
        check_kind("warm_start", warm_start, QPWarmStart)
        more = {}
        if warm_start is not None:
            more["warm_start.x"] = (warm_start.x, self.n_vars)
            more["warm_start.s"] = (warm_start.s, self.n_cons)
            more["warm_start.y"] = (warm_start.y, self.n_cons)
        data = self._checked((P_vals, q, A_vals, lower, upper), penalties, more)
        with ANNOUNCER.call():
            return self._solve(*data)

    def _checked(
        self,
        data: Sequence[ArrayLike],
        penalties: ArrayLike | None,
        more: Mapping[str, tuple[ArrayLike, int]],
    ) -> tuple[list[jax.Array], *tuple[jax.Array, ...]]:
        """Penalties, then all other arrays: those of the data, and more with their lengths."""
        lengths = (self.P_pattern.nnz, self.n_vars, self.A_pattern.nnz, self.n_cons, self.n_cons)
        sizes = {**dict(zip(_DATA, zip(data, lengths, strict=True), strict=True)), **more}
        arrays = [
            check_array(array, name, size, self.dtype) for name, (array, size) in sizes.items()
        ]
        soft = check_penalties(penalties, self.structure.soft_rows.size, self.dtype)
        leading = {array.shape[:-1] for array in (*arrays, *soft)}
        if len(leading) > 1:
            raise ProblemError(f"All arguments need the same leading axes, got {sorted(leading)}.")
        return soft, *arrays

    @in_auto_axes
    def gradient_status(
        self, solution: QPSolution, *data: ArrayLike, cotangent: ArrayLike | None = None
    ) -> jax.Array:
        """Which instances of a solution have a gradient: `GradientStatus`, inside `jax.jit`, too.

        Gradients that cannot be trusted are zero.  This solves the linear system of reverse mode
        once and says for each instance whether it succeeded.

        Args:
            solution: Result of `solve`.
            data: What it was solved for: P_vals, q, A_vals, lower, upper; with soft rows also the
                penalties.
            cotangent: Derivative of your loss with respect to x, ``[..., n]`` or ``[n]``.  None:
                one that moves all variables.
        """
        if not isinstance(solution, QPSolution):
            raise ProblemError(
                f"solution must be a QPSolution of `solve`, got {type(solution).__name__}."
            )
        names = [*_DATA, "penalties"][: 5 + (self.structure.soft is not None)]
        if len(data) != len(names):
            raise ProblemError(
                f"gradient_status needs the data of the solve, {len(names)} arrays: "
                f"{', '.join(names)}; got {len(data)}."
            )
        start = solution.warm_start
        more = {
            "solution.x": (solution.x, self.n_vars),
            "solution.s": (start.s, self.n_cons),
            "solution.y": (solution.y, self.n_cons),
        }
        soft, *arrays = self._checked(data[:5], data[5] if data[5:] else None, more)
        if cotangent is None:
            signs = np.where(np.random.default_rng(0).random(self.n_vars) < 0.5, -1.0, 1.0)
            bars = jnp.asarray(signs, dtype=self.dtype)
        else:
            bars = check_array(cotangent, "cotangent", self.n_vars, self.dtype)
        bars = jnp.broadcast_to(bars, solution.x.shape)
        return self._gradient_status(soft, solution.status, bars, *arrays)

    @cached_property
    def _gradient_status(self) -> Callable[..., jax.Array]:
        found = self.sensitivity
        needed = found.values_per_instance + self.structure.n_data
        judge = self._on_batches(self._judge_gradient, found.lanes, needed)

        def of_batch(soft: list[jax.Array], status: jax.Array, *arrays: jax.Array) -> jax.Array:
            x_bar, *rest = (array.reshape(status.size, array.shape[-1]) for array in arrays)
            data = with_free_row(self.n_cons, *rest) if self.structure.n_added_rows else rest
            penalties = (array.reshape(status.size, array.shape[-1]) for array in soft)
            qp = QPData(*data[:5], *penalties)
            found = judge(qp, tuple(data[5:]), status.reshape(status.size, 1), x_bar)
            return found.reshape(status.shape)

        return jax.jit(of_batch)

    def _judge_gradient(
        self, data: QPData, end: tuple[jax.Array, ...], status: jax.Array, x_bar: jax.Array
    ) -> jax.Array:
        x, s, y = end
        at = self._point(data, x, s, y, status)
        bars = jnp.where(at.valid, x_bar, 0), jnp.zeros_like(y)
        trusted = self.sensitivity.is_solved(at, *bars)
        found = jnp.where(trusted, GradientStatus.VALID, GradientStatus.UNSOLVED)
        return jnp.where(at.valid, found, GradientStatus.NOT_CONVERGED).astype(jnp.int32)

    def _solve_batch(self, soft: list[jax.Array], *arrays: jax.Array) -> QPSolution:
        leading, n_cons = arrays[0].shape[:-1], self.n_cons
        flat = (array.reshape(math.prod(leading), array.shape[-1]) for array in arrays)
        data = with_free_row(n_cons, *flat) if self.structure.n_added_rows else flat
        P, q, A, lower, upper, *start = data
        penalties = (array.reshape(math.prod(leading), array.shape[-1]) for array in soft)
        x, y, objective, rest = self._run(QPData(P, q, A, lower, upper, *penalties), tuple(start))
        s, *end = rest
        y, s = y[:, :n_cons], s[:, :n_cons]
        x, y, s = (array.reshape(*leading, array.shape[-1]) for array in (x, y, s))
        objective, status, iterations, primal, dual = (
            scalar.reshape(leading) for scalar in (objective, *end)
        )
        return QPSolution(x, y, objective, status, iterations, primal, dual, QPWarmStart(x, s, y))

    def iterate(
        self, data: QPData, start: tuple[jax.Array, ...], active: jax.Array | None = None
    ) -> tuple[Any, ...]:
        """Solves instances that lie in the engine's layout: for outer methods, inside `jax.jit`.

        This is not differentiable and has no limit on the memory: both belong to `solve`.

        Args:
            data: Arrays ``[groups, rows, lanes]`` with `lanes` of this solver; the pattern of A
                must have an entry.
            start: Unscaled x, s and y as in `QPWarmStart`; empty for a cold start.
            active: Which instances to solve, ``[groups, 1, lanes]``; others do not iterate and
                their status is SOLVED.

        Returns:
            x, y, objective and (s, status, iterations, primal residual, dual residual); scalars
            per instance are ``[groups, 1, lanes]``.
        """
        problem = self.structure.scaled(data)
        rho = problem.rho(self.settings.rho)
        at = problem.scaled_start(*self.structure.start(data, start, rho))
        status = initial_status(data)
        if active is not None:
            status = jnp.where(active, status, Status.SOLVED).astype(status.dtype)
        end = self.loop.run(problem, at, status)
        x, s, y = problem.unscaled(end.x, end.v, end.rho)
        hopeless = (end.status == Status.NON_FINITE) | (end.status == Status.INVALID_BOUNDS)
        x, s, y = (jnp.where(hopeless, jnp.nan, array) for array in (x, s, y))
        objective = end.objective + problem.penalty(end.v, end.rho)
        primal, dual, objective = (
            jnp.where(hopeless, jnp.nan, scalar)
            for scalar in (end.residuals.primal, end.residuals.dual, objective)
        )
        if self._polish is not None:
            solved = end.status == Status.SOLVED
            at = Polished(x, s, y, objective, primal, dual)
            at = self._polish(data, at, solved if active is None else solved & active)
            x, s, y, objective, primal, dual = at.x, at.s, at.y, at.objective, at.primal, at.dual
        return x, y, objective, (s, end.status, end.iterations, primal, dual)

    @cached_property
    def _polish(self) -> Polish | None:
        if not self.settings.polish:
            return None
        build = self._exact_solver
        assert build is not None
        found = Polish(build(self.structure), self.structure)
        if found.lanes != self.lanes:
            raise SettingsError(
                f'Engine "{self._wanted}" has groups of {self.lanes} instances and cannot be '
                f"polished, which takes {found.lanes}; leave polish False."
            )
        return found

    @property
    def _exact_solver(self) -> Callable[[QPStructure], KKTEngine] | None:
        """Builds the linear solver for one exact solve; None: the engine has none."""
        # Both engines that "auto" chooses from have this one.
        return SparseEngine if self._wanted == "auto" else engine_named(self._wanted).sensitivity

    def _iterate_jvp(self, primals: tuple[Any, ...], tangents: tuple[Any, ...]):
        """Implicit differentiation: the start of the iteration has no influence."""
        forward, reverse = self._derivatives
        data, start = primals
        x, y, objective, rest = self._run(data, start)
        point = self._point(data, x, rest[0], y, rest[1])
        inputs, of_data = jax.tree.flatten(tangents[0])
        of_point = jax.tree.structure(point)
        directions = Directions(
            lambda given, moves: [*forward(of_point.unflatten(given), of_data.unflatten(moves))],
            lambda given, bars: jax.tree.leaves(reverse(of_point.unflatten(given), *bars)),
        )
        changes = linear_map(directions, _FIRST_ONLY, point, inputs, [x, y, objective])
        return (x, y, objective, rest), (*changes, jax.tree.map(no_tangent, rest))

    def _point(
        self, data: QPData, x: jax.Array, s: jax.Array, y: jax.Array, status: jax.Array
    ) -> Point:
        """Where to differentiate."""
        valid = self._differentiable(status)
        x, s, y = (jnp.where(valid, array, 0) for array in (x, s, y))
        return Point(data, x, y, valid, None if self.structure.soft is None else s)

    def _differentiable(self, status: jax.Array) -> jax.Array:
        """Instances that are solved, or iterated as often as the caller fixed beforehand."""
        solved = status == Status.SOLVED
        return solved if self.settings.check_every else solved | (status == Status.MAX_ITER)


def _rebuilt(P: SparsePattern, A: SparsePattern, *rest: Any) -> QPSolver:
    """A solver that was pickled."""
    return QPSolver(P.to_scipy(), A.to_scipy(), *rest)


def no_tangent(array: jax.Array) -> Any:
    """The tangent of an array that has no derivative."""
    if jnp.issubdtype(array.dtype, jnp.floating):
        return jnp.zeros_like(array)
    return np.zeros(array.shape, dtype=jax.dtypes.float0)


def check_penalties(given: ArrayLike | None, n_soft: int, dtype: str) -> list[jax.Array]:
    """Penalties of soft rows as ``[..., 4 n_soft]``; an empty list without soft rows."""
    if given is None:
        if n_soft:
            raise ProblemError(
                f"The solver has {n_soft} soft rows: pass `penalties`, [batch, 4, {n_soft}], in "
                "the order linear lower, linear upper, quadratic lower, quadratic upper."
            )
        return []
    if not n_soft:
        raise ProblemError(
            "penalties belong to soft rows: create the solver with `soft_rows`, or leave them out."
        )
    array = check_array(given, "penalties", n_soft, dtype)
    if array.ndim < 2 or array.shape[-2] != 4:
        raise ProblemError(
            f"penalties has shape {tuple(array.shape)}; its last axes must be (4, {n_soft}), in "
            "the order linear lower, linear upper, quadratic lower, quadratic upper."
        )
    return [array.reshape(*array.shape[:-2], 4 * n_soft)]
