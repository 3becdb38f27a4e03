"""`MPCSolver`: batches of nonlinear MPC problems that share one structure.

Checks what a caller can get wrong, packs parameters, folds leading axes into the batch, and runs
the SQP iteration as one differentiable program.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, Self

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jax.sharding import NamedSharding

from warpmpc._checks import (
    ArrayLike,
    check_alive,
    check_argument_flag,
    check_array,
    check_dtype,
)
from warpmpc._errors import ProblemError, SettingsError
from warpmpc.engines.runtime.batching import (
    HostWidths,
    Widths,
    as_device,
    check_divisible,
    device_at,
    everywhere,
    in_auto_axes,
    part_size,
    place_of,
)
from warpmpc.engines.staged.tuning import Measured
from warpmpc.mpc.batching import (
    BatchedCall,
    Sensitivity,
    is_sharded,
    release,
    result_values,
)
from warpmpc.mpc.interior_point.choice import InteriorPointChoice, given_names
from warpmpc.mpc.parameters import (
    ParameterPacker,
    Parameters,
    ParameterSplit,
    Params,
    check_names,
    has_tensors,
    to_jax,
    to_torch,
)
from warpmpc.mpc.sensitivity import SolveSensitivity, StepSensitivity
from warpmpc.mpc.settings import SQPSettings, checked_settings
from warpmpc.mpc.sqp.choice import IterationChoice
from warpmpc.mpc.sqp.general import Iterate, final
from warpmpc.mpc.stage_evaluation import StageEvaluator
from warpmpc.mpc.types import (
    Guess,
    History,
    MPCWarmStart,
    QPState,
    Shift,
    Solution,
    TrajectoryLayout,
)
from warpmpc.mpc.units import SensitivityInUnits, UnitChange
from warpmpc.problem.mpc_problem import MPCProblem
from warpmpc.problem.ocp.ocp import OCP, as_problem
from warpmpc.qp.loops.kernels import tune_loop
from warpmpc.qp.loops.registry import differentiable_engines, engine_named
from warpmpc.qp.qp_solver import QPSolver
from warpmpc.qp.scaling import EQUALITY_TOLERANCE
from warpmpc.qp.structure import EliminationHints, QPStructure, finite_vectors
from warpmpc.qp.types import StagedSettings
from warpmpc.symbolic.derivatives.assembly import host_qp
from warpmpc.symbolic.derivatives.representative_kkt import Point
from warpmpc.symbolic.derivatives.stage_model import HessianRule, row_kinds
from warpmpc.symbolic.derivatives.units import find_units, problem_in


class MPCSolver:
    """Solves batches of one `MPCProblem` by SQP with an ADMM method for the QPs.

    Examples:
        >>> solver = MPCSolver(ocp)
        >>> solution = solver.solve(x0)          # x0: [batch, n_x]
        >>> solution.u[:, 0]                     # first inputs
    """

    def __init__(
        self,
        problem: MPCProblem | OCP,
        settings: SQPSettings | None = None,
        dtype: str = "float32",
        engine: str = "auto",
        device: Any = None,
        nominal: tuple[ArrayLike, ArrayLike] | None = None,
        staged: StagedSettings | None = None,
    ):
        """Differentiates and analyses the problem; kernels are compiled with the first call.

        Args:
            problem: What to solve.
            settings: Settings of the SQP iteration, its line search and its QPs.
            dtype: "float32" or "float64".
            engine: "onchip" (a solve is one launch with one warp per problem: for few states),
                "staged", "sparse", "dense" (engines of the QPs), or "auto": on a GPU onchip if it
                fits, else staged if it can.
            device: Where arrays of the caller are moved to: a JAX device, a platform name ("cpu",
                "gpu"), or a `NamedSharding` that spreads the batch over devices; None: they stay
                where they are.
            nominal: A representative (z, params): QPs are scaled once, at this point, instead of
                one by one, and orders of elimination are tried at it.
            staged: Settings of the staged engine's kernels.
        """
        self.settings, self.dtype = checked_settings(settings), check_dtype(dtype)
        self.problem = as_problem(problem)
        _check_engine(engine)
        self._device = as_device(device)
        self._rest_of_definition = (engine, nominal, staged)
        self.programs = StageEvaluator(self.problem, self._rule(), self.dtype)
        if not self.programs.assembly.A_pattern.nnz:
            raise ProblemError(
                "No constraint of this problem depends on a variable; an MPC problem has dynamics. "
                "Add them, or a bound."
            )
        self._choice: IterationChoice | InteriorPointChoice
        if self.settings.method == "interior_point":
            names = given_names(nominal=nominal, staged=staged)
            self._choice = InteriorPointChoice(engine, self.programs, self.settings, names)
            engine = self._choice.engine
        self._units = self._scaled_units(nominal)
        self.qp = self._qp_solver(engine, staged, nominal)
        given = (self.programs, self.qp, self.settings)
        if self.settings.method == "sqp":
            self._choice = IterationChoice(engine, *given, free=staged is None)
        self._onchip = self._choice.is_onchip
        self.widths = self._tile_widths()
        self._iterations: dict[ParameterSplit, Any] = {}
        self._pack = ParameterPacker(self.problem, self.dtype)
        guess = Guess(self.problem, self.dtype)
        self._guess = jax.jit(lambda params: guess(params.joined()))
        # Compiled, so that no constant comes from the host.
        self._nothing = jax.jit(self._cold_state)
        self._shift = jax.jit(Shift(self.problem))
        self._layout = TrajectoryLayout(self.problem, self.settings, engine)
        of_solve = partial(SolveSensitivity, *given)
        self._solve = self._program(self._solve_tiles, self._in_units(of_solve))
        of_step = partial(StepSensitivity, self.programs, self.qp)
        self._step = self._program(self._step_tiles, self._in_units(of_step))

    @property
    def engine(self) -> str:
        """Name of the engine; the first use builds it."""
        if isinstance(self._choice, InteriorPointChoice):
            return self._choice.engine
        return "onchip" if self._onchip else self.qp.engine

    @property
    def engine_reason(self) -> str:
        """The SQP iteration and why faster ones are not taken, in one line.

        Iterations are "onchip" (a solve is one launch), "three_launch" (an iteration is three) and
        "general".  The first use builds the engine.
        """
        return self._choice.reason

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickles the definition; a process that reads it finds the kernels in the cache."""
        engine, nominal, staged = self._rest_of_definition
        place = place_of(self._device)
        return _rebuilt, (place, self.problem, self.settings, self.dtype, engine, nominal, staged)

    def __copy__(self) -> Self:
        """The solver itself: it has no state that a copy could change."""
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        """The solver itself."""
        del memo
        return self

    def __repr__(self) -> str:
        """Sizes, and all settings with the values that they have for this solver."""
        problem = self.problem
        engine = "onchip" if self._onchip else self._layout.engine
        return (
            f"MPCSolver(<{problem.n_vars} variables, {problem.n_cons} rows, horizon "
            f"{problem.horizon}>, settings={self.settings.resolved(self.dtype)}, "
            f"dtype={self.dtype!r}, engine={engine!r})"
        )

    def _rule(self) -> HessianRule:
        settings = self.settings
        if settings.regularization and not self.problem.full_diagonal:
            raise SettingsError(
                "regularization needs all diagonal entries of the Hessian: build the problem with "
                "full_diagonal=True."
            )
        # The interior-point method sees to the inertia of the whole matrix.
        convexify = settings.convexify if settings.method == "sqp" else "none"
        return HessianRule(settings.hessian_kind, convexify, settings.regularization)

    def _scaled_units(self, nominal: Any) -> UnitChange | None:
        """The units that the iteration works in; `programs` are in them from then on."""
        if not self.settings.changes_units:
            return None
        sizes = (self.problem.n_vars, self.problem.n_params)
        given = None if nominal is None else finite_vectors(nominal, sizes, self.dtype)
        units = find_units(self.programs.assembly, None if given is None else given[0])
        if units is None:
            return None
        change = UnitChange(units, self.programs)
        scaled = problem_in(units, self.problem)
        self.programs = StageEvaluator(scaled, self._rule(), self.dtype)
        return change

    def _in_units(self, make: Callable[[], Any]) -> Callable[[], Sensitivity]:
        """Makes derivatives in the units of the user."""
        change = self._units
        return make if change is None else lambda: SensitivityInUnits(make(), change)

    def _qp_solver(self, engine: str, staged: StagedSettings | None, nominal: Any) -> QPSolver:
        at, problem = self.programs.assembly, self.problem
        settings = self.settings.qp_settings(self.dtype)
        point = None if nominal is None else self._nominal_point(nominal)
        hints: Callable[[], EliminationHints] = EliminationHints
        if self.settings.method == "sqp":  # which are for convex QPs
            hints = partial(EliminationHints.of_problem, at, settings, point)
        structure = QPStructure(
            at.P_pattern,
            at.A_pattern,
            settings,
            self.dtype,
            soft_rows=at.soft_rows,
            hints=hints,
        )
        if point is not None:
            # On the host: kernels would be built for this point alone.
            found = host_qp(at, *point)
            structure = structure.with_nominal((found.P, found.q, found.A))
        # The on-chip engine needs a QP solver for derivatives only.
        engine = "auto" if engine == "onchip" else engine
        stages = None
        if engine == "auto" or engine_named(engine).takes_stages:
            stages = np.concatenate([problem.var_stage, problem.con_stage])
        return QPSolver.from_structure(structure, engine, stages, staged)

    def _nominal_point(self, nominal: Any) -> Point:
        """A representative point, checked."""
        if not self.settings.qp_settings(self.dtype).scaling:
            raise SettingsError("nominal has no effect with scaling=0; leave out one of the two.")
        sizes = (self.problem.n_vars, self.problem.n_params)
        arrays = finite_vectors(nominal, sizes, self.dtype)
        if arrays is None:
            raise ProblemError(
                f"nominal needs z ({sizes[0]}) and the whole parameter vector ({sizes[1]}) of one "
                "instance, all finite."
            )
        z, params = arrays
        return (z if self._units is None else z / self._units.units.z), params

    @property
    def bytes_per_instance(self) -> int:
        """Memory that one instance needs while it is solved, an estimate from above."""
        return self._values_per_instance() * np.dtype(self.dtype).itemsize

    def _values_per_instance(self) -> int:
        return self._choice.kind.values()

    def _values_in_parts(self) -> int:
        """What decides how many instances are worked on at once; 0: the method sees to that."""
        return 0 if self._choice.is_pooled else self._values_per_instance()

    def _program(
        self, function: Callable[..., Any], sensitivity: Callable[[], Sensitivity]
    ) -> BatchedCall:
        return BatchedCall(
            function,
            sensitivity,
            self._read,
            self._part_size,
            self._values_in_parts,
            self.widths,
        )

    def _tile_widths(self) -> Widths:
        if self._onchip:
            return Widths(has_tiles=False)
        item = np.dtype(self.dtype).itemsize
        return HostWidths(
            item, lambda: self._choice.kind.values() if self._choice.takes_any_lanes else None
        )

    def _part_size(self, batch: int, values: int) -> int:
        """Instances worked on at once if each needs so many values; with none, all of them."""
        item, most = np.dtype(self.dtype).itemsize, self.qp.settings.max_batch
        results = result_values(self.programs) * item
        return part_size(batch, most if values else most or batch, values * item, results)

    def _iteration(self, split: ParameterSplit) -> Any:
        """The iteration for parameters of which some are common; one object per split."""
        if split not in self._iterations:
            programs = self.programs.for_split(split)
            with jax.ensure_compile_time_eval():  # constants outlive the program being traced
                self._iterations[split] = self._choice.kind.build(programs)
        return self._iterations[split]

    def _solve_tiles(self, params: Parameters, start: MPCWarmStart) -> tuple[Iterate, Any]:
        iteration, units = self._iteration(params.split), self._units
        start = start if units is None else units.start(start)
        end, history = iteration.run(iteration.begin(start.z, start.qp, params.unknown()), params)
        return (end, history) if units is None else (units.end(end, params), units.history(history))

    def _step_tiles(self, params: Parameters, start: MPCWarmStart) -> tuple[Iterate, Any]:
        iteration, units = self._iteration(params.split), self._units
        start = start if units is None else units.start(start)
        begin = iteration.begin(start.z, start.qp, params.unknown())
        end = final(iteration.step(begin, params, always=True))
        return (end if units is None else units.end(end, params)), None

    def tune(self, batch: int) -> list[Measured]:
        """Measures which kernels of the QPs are fastest for about this batch size.

        The choice is kept on disk: later solvers of the same problem find it.  Returns all that
        was measured, the fastest last.
        """
        if self._onchip:
            raise SettingsError('Nothing to tune: engine="onchip" has one shape.')
        self._refuse_interior_point("tune")
        is_three_launch = self._choice.is_three_launch
        kinds = row_kinds(self.problem, EQUALITY_TOLERANCE) if is_three_launch else ()
        found = tune_loop(self.qp.loop, batch, kinds)
        for program in (self._solve, self._step):
            program.forget()
        return found

    def phase_cycles(self, x0: ArrayLike, warm_start: MPCWarmStart) -> dict[str, float]:
        """Mean cycles of the phases inside one on-chip solve; see `OnchipIteration`."""
        params = self._packed(x0, None)
        found = self._iteration(params.split).phase_cycles(params, warm_start)
        if found is None:
            raise SettingsError('Only engine="onchip" has phases inside a launch.')
        return found

    @in_auto_axes
    def pack(self, x0: ArrayLike | None, params: Params = None) -> jax.Array:
        """The parameter vectors ``[..., n_params]`` of a problem."""
        return self._pack(x0, params, whole=True).own

    @in_auto_axes
    def z_guess(self, x0: ArrayLike | None, params: Params = None) -> jax.Array:
        """The initial guess of the problem, ``[..., n_vars]``."""
        return self._guess(self._pack(x0, params))

    @in_auto_axes
    def shift(self, warm_start: MPCWarmStart) -> MPCWarmStart:
        """A warm start moved by one node, for the next sampling instant."""
        sizes = self._start_arrays(warm_start)
        for name, (array, size) in sizes.items():
            check_array(array, name, size, self.dtype)
        return self._shift(warm_start)

    @in_auto_axes
    def cold_start(self, z: ArrayLike) -> MPCWarmStart:
        """A warm start from a trajectory alone, which is not copied if it is a JAX array."""
        z = check_array(z, "z", self.problem.n_vars, self.dtype)
        state = self._nothing(z)
        # Zeros do not depend on z: they would lie on every device as a whole.
        return MPCWarmStart(z, jax.device_put(state, z.sharding) if is_sharded(z) else state)

    def _cold_state(self, z: jax.Array) -> QPState:
        rows = jnp.zeros((*z.shape[:-1], self.problem.n_cons), dtype=self.dtype)
        return QPState(jnp.zeros_like(z), rows, rows)

    @in_auto_axes
    def solve(
        self,
        x0: ArrayLike | None = None,
        params: Params = None,
        warm_start: MPCWarmStart | ArrayLike | None = None,
        *,
        shift: bool = False,
        donate: bool = False,
    ) -> Solution:
        """Solves every instance.

        Batches of as many tiles of 32 share one program.  Where the arrays are spread over devices
        along their first axis, each device solves its own instances.

        Args:
            x0: Initial states ``[..., n_x0]``; no leading axis for a single problem.
            params: Parameters by name, or all of them but x0 as one array; None: defaults.  What
                has no leading axes is kept once for all instances.
            warm_start: `Solution.warm_start` of an earlier call, or a trajectory z; None: the
                guess of the problem.
            shift: Whether the warm start is moved by one node first.
            donate: Whether the solver may overwrite the warm start, which saves memory and a copy.
                Neither it nor the solution that it belongs to can be used again then.  Without
                effect on arrays of a program that is being traced.
        """
        check_names(params)
        check_argument_flag("shift", shift)
        check_argument_flag("donate", donate)
        if has_tensors((x0, params, warm_start)):
            args = to_jax((x0, params, warm_start))
            return to_torch(self.solve(*args, shift=shift))
        packed = self._packed(x0, params)
        start = self._start(packed, warm_start)
        if shift:
            moved = self._shift(start)
            if donate:
                release(start, moved)
            start = moved
        return self._solve(packed, start, donate=donate or shift or warm_start is None)

    @in_auto_axes
    def gradient_status(
        self,
        solution: Solution,
        x0: ArrayLike | None = None,
        params: Params = None,
        cotangent: ArrayLike | None = None,
        step_from: MPCWarmStart | ArrayLike | None = None,
    ) -> jax.Array:
        """Which instances of a solution have a gradient: `GradientStatus`, inside `jax.jit`, too.

        Gradients that cannot be trusted are zero.  This solves the linear system of reverse mode
        once and says for each instance whether it succeeded.

        Args:
            solution: Result of `solve`, or of `step`, for the same x0 and params.
            x0: Initial states, as in `solve`.
            params: Parameters, as in `solve`.
            cotangent: Derivative of your loss with respect to z, ``[..., n_vars]`` or
                ``[n_vars]``.  None: one that moves all variables.
            step_from: Start of a result of `step`: the z where it started, or `MPCWarmStart(z,
                state)`.
        """
        packed = self._packed(x0, params)
        if not isinstance(solution, Solution):
            given = type(solution).__name__
            raise ProblemError(f"solution must be a Solution of `solve`, got {given}.")
        check_alive(solution, "The solution")
        if packed.own.shape[:-1] != solution.z.shape[:-1]:
            raise ProblemError(
                f"The solution has leading axes {list(solution.z.shape[:-1])} but the data have "
                f"{list(packed.own.shape[:-1])}: pass the x0 and params that it was solved for."
            )
        if cotangent is None:
            signs = np.where(np.random.default_rng(0).random(self.problem.n_vars) < 0.5, -1.0, 1.0)
            bars = jnp.asarray(signs, dtype=self.dtype)
        else:
            bars = check_array(cotangent, "cotangent", self.problem.n_vars, self.dtype)
        bars = jnp.broadcast_to(bars, solution.z.shape)
        if step_from is None:
            return self._solve.gradient_status(packed, solution.warm_start, solution, bars)
        start = self._start(packed, step_from)
        return self._step.gradient_status(packed, start, solution, bars)

    @in_auto_axes
    def step(
        self,
        z: ArrayLike,
        params: Params = None,
        state: QPState | None = None,
        *,
        x0: ArrayLike | None = None,
        donate: bool = False,
    ) -> tuple[Solution, QPState]:
        """One SQP iteration from z: the real-time iteration.

        Args:
            z: Trajectories ``[..., n_vars]``, of `z_guess` or of the last result.
            params: Parameters by name (x0 may be one of the names) or as an array, as in `solve`.
            state: What the last call returned; None for the first one.
            x0: Initial states, unless `params` has them.
            donate: Whether the solver may overwrite z and the state, as in `solve`.

        Returns:
            The result, and the state for the next call.
        """
        check_names(params)
        check_argument_flag("donate", donate)
        if has_tensors((z, params, state, x0)):
            z, params, state, x0 = to_jax((z, params, state, x0))
            return to_torch(self.step(z, params, state, x0=x0))
        self._refuse_interior_point("step")
        packed = self._packed(x0, params)
        given: Any = check_array(z, "z", self.problem.n_vars, self.dtype)
        if state is not None:
            if not isinstance(state, QPState):
                raise ProblemError(
                    f"state must be QPState, the second result of `step` or `warm_start.qp`; got "
                    f"{type(state).__name__}."
                )
            given = MPCWarmStart(given, state)
        start = self._start(packed, given)
        result = self._step(packed, start, donate=donate)
        return result, result.warm_start.qp

    def _refuse_interior_point(self, name: str) -> None:
        if self.settings.method == "interior_point":
            raise SettingsError(
                f'`{name}` belongs to the SQP iteration; use method="sqp", or `solve`.'
            )

    def _packed(self, x0: ArrayLike | None, params: Params) -> Parameters:
        """The parameters in the form in which the caller passed them."""
        packed = self._pack(x0, params)
        where, own, common = self._device, self._moved(packed.own), packed.common
        if where is not None and common is not None and not isinstance(common, Tracer):
            common = jax.device_put(common, everywhere(where))
        return replace(packed, own=own, common=common)

    def _start(self, packed: Parameters, given: Any) -> MPCWarmStart:
        """A warm start with the leading axes of the parameter vectors."""
        if given is None:
            return self.cold_start(self._guess(packed))
        if isinstance(given, Solution):
            raise ProblemError("warm_start is a Solution; pass its `warm_start` instead.")
        if not isinstance(given, MPCWarmStart):
            given = self.cold_start(given)
        arrays: list[jax.Array] = []
        leading = packed.own.shape[:-1]
        for name, (array, size) in self._start_arrays(given).items():
            array = check_array(array, name, size, self.dtype)
            if array.shape[:-1] not in ((), leading):
                raise ProblemError(
                    f"{name} has leading axes {list(array.shape[:-1])} but the data have "
                    f"{list(leading)}."
                )
            to = (*leading, size)
            arrays.append(self._moved(array if array.shape == to else jnp.broadcast_to(array, to)))
        return MPCWarmStart(arrays[0], QPState(*arrays[1:]))

    def _start_arrays(self, start: Any) -> dict[str, tuple[Any, int]]:
        """The arrays of a warm start by name, with the sizes that they must have."""
        if not isinstance(start, MPCWarmStart) or not isinstance(start.qp, QPState):
            given = type(start.qp if isinstance(start, MPCWarmStart) else start).__name__
            raise ProblemError(
                "A warm start is MPCWarmStart(z, QPState(d, s, y)), such as solution.warm_start or "
                f"solver.cold_start(z); got {given}."
            )
        n, m = self.problem.n_vars, self.problem.n_cons
        qp = start.qp
        found = {"z": (start.z, n), "d": (qp.d, n), "s": (qp.s, m), "y": (qp.y, m)}
        return {f"warm_start.{name}": both for name, both in found.items()}

    def _moved(self, array: jax.Array) -> jax.Array:
        if self._device is None or isinstance(array, Tracer):
            return array
        if isinstance(self._device, NamedSharding):
            check_divisible(array.shape[:-1], self._device)
        return jax.device_put(array, self._device)

    def _read(self, end: Iterate, history: History | None) -> Solution:
        """The solution from rows of instances."""

        def scalar(name: str) -> jax.Array:
            return getattr(end, name)[..., 0]

        return Solution(
            z=end.z,
            y=end.qp.y,
            cost=scalar("cost"),
            status=scalar("status"),
            iterations=scalar("iterations"),
            qp_iterations=scalar("qp_iterations"),
            primal_residual=scalar("primal"),
            dual_residual=scalar("dual"),
            kkt_residual=scalar("kkt"),
            step_length=scalar("alpha"),
            accepted=scalar("accepted") == 1,
            violation=scalar("violation"),
            theta=scalar("theta"),
            warm_start=MPCWarmStart(end.z, end.qp),
            history=history,
            layout=self._layout,
        )


def _rebuilt(place: tuple[str, int] | None, *given: Any) -> MPCSolver:
    """A solver that was pickled."""
    problem, settings, dtype, engine, *rest = given
    return MPCSolver(problem, settings, dtype, engine, device_at(place), *rest)


def _check_engine(engine: Any) -> None:
    """Refuses engines that do not exist or that have no derivatives."""
    engines = ["auto", "onchip", *differentiable_engines()]
    if engine not in engines:
        raise SettingsError(f"Unknown engine {engine!r}; choose one of {engines}.")
