"""SQP iterations in three launches each: linearise and factorise, ADMM, line search.

Reads: the stage functions of a problem and a staged QP engine.  Produces: `ThreeLaunchIteration`,
the same iteration as `SQPIteration` without K, A or any other matrix in memory but the factors.  It
exists for a fixed number of iterations and for QPs that need neither scaling nor another rho.
"""

from __future__ import annotations

from copy import copy
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from warpmpc.codegen.from_casadi import translate
from warpmpc.codegen.native.line_search import REPORT_ROWS
from warpmpc.codegen.stage_functions import StageCase, merged_cases
from warpmpc.engines.runtime.admm_loop import UNCHECKED, LoopData, LoopLimits, LoopState
from warpmpc.engines.runtime.batching import LANES
from warpmpc.engines.runtime.ffi import load_all
from warpmpc.engines.staged.launch import StagedKernels
from warpmpc.engines.three_launch.launches import ThreeLaunchKernels, ThreeLaunchPrograms
from warpmpc.mpc.line_search import native_rule
from warpmpc.mpc.parameters import Parameters
from warpmpc.mpc.settings import SQPSettings
from warpmpc.mpc.sqp.general import Iterate, Reports, SQPIteration, final
from warpmpc.mpc.stage_evaluation import StageEvaluator
from warpmpc.mpc.types import History, MPCStatus, QPState
from warpmpc.qp.loops.kernels import KernelLoop, NodeOrder, loop_constants
from warpmpc.qp.qp_solver import QPSolver
from warpmpc.qp.scaling import BOUND_LARGE, EQUALITY_TOLERANCE
from warpmpc.qp.structure import inverse_rho
from warpmpc.qp.types import Status
from warpmpc.symbolic.derivatives.kkt_stages import KKTStep, StageFunctions, kkt_steps
from warpmpc.symbolic.derivatives.qp_residuals import report_steps
from warpmpc.symbolic.derivatives.stage_model import row_kinds
from warpmpc.symbolic.stage_elimination import StageElimination, StageTemplate

# Longer stage programs are cut into chunks, which only separate launches can be.
_LONGEST_PROGRAM = 3000


@jax.tree_util.register_dataclass
@dataclass(frozen=True, eq=False)
class _Carry:
    """What goes from one iteration to the next, in program order; `report` is of the last one."""

    z: jax.Array
    state: tuple[jax.Array, jax.Array]
    report: jax.Array
    status: jax.Array
    qp_iterations: jax.Array


class ThreeLaunchIteration(SQPIteration):
    """The iteration for one problem; how it begins is a matter of `SQPIteration`."""

    def __init__(self, programs: StageEvaluator, qp: QPSolver, settings: SQPSettings):
        """See `mpc.sqp.choice` for what it cannot do.

        Args:
            programs: Stage functions.
            qp: Solver for the pattern of their QPs.
            settings: Settings of the iteration.
        """
        super().__init__(programs, qp, settings)
        self._launches: dict[bytes, ThreeLaunches] = {}
        self._kinds = row_kinds(programs.problem, EQUALITY_TOLERANCE)

    def run(self, begin: Iterate, p: Parameters) -> tuple[Iterate, History | None]:
        """All iterations."""
        end, history = self._at(begin.z.shape[0], begin.z.shape[2]).run(
            begin, p, self.settings.max_iter
        )
        return final(end), history

    def step(self, now: Iterate, p: Parameters, *, always: bool = False) -> Iterate:
        """One iteration; with a fixed number of them all instances move."""
        del always
        return self._at(now.z.shape[0], now.z.shape[2]).run(now, p, 1)[0]

    def _at(self, tiles: int, lanes: int = LANES) -> ThreeLaunches:
        """The launches for a number of tiles; they depend on the order of the elimination."""
        loop = self.qp.loop
        kernels = loop.staged_at(tiles) if isinstance(loop, KernelLoop) else None
        assert kernels is not None  # see `three_launch_obstacle`
        key = kernels.program.node_order.tobytes()
        if key not in self._launches:
            given = (self.programs, self.qp, self.settings, kernels.program)
            self._launches[key] = ThreeLaunches(*given)
        return self._launches[key].around(kernels.with_kinds(self._kinds), tiles, lanes)


class ThreeLaunches:
    """Iterations with the kernels of one elimination."""

    def __init__(
        self,
        programs: StageEvaluator,
        qp: QPSolver,
        settings: SQPSettings,
        program: StageElimination,
    ):
        """Builds the programs of all stages.

        Args:
            programs: Stage functions.
            qp: Solver for the pattern of their QPs.
            settings: Settings of the iteration.
            program: The elimination.
        """
        self.programs, self.qp, self.settings = programs, qp, settings
        self._program, self._admm = program, None
        self._order = NodeOrder(program, programs.problem.n_vars)
        checks = qp.settings.check_every
        self._limits = LoopLimits(checks or UNCHECKED, qp.settings.max_iter, qp.settings.max_iter)
        self._kernels = ThreeLaunchKernels(
            self._stages(),
            native_rule(settings, programs.dtype),
            programs.dtype,
            stores_K=checks > 0,
        )
        self._numbers = _numbers(qp, programs.dtype)
        self._reports = Reports(settings, programs.dtype)

    def around(self, kernels: StagedKernels, tiles: int, lanes: int) -> ThreeLaunches:
        """The launches around an ADMM loop of this elimination, compiled for a number of tiles."""
        load_all([*kernels.to_load(tiles), *self._kernels.to_load()], lanes)
        other = copy(self)
        other._admm = kernels
        return other

    def _stages(self) -> ThreeLaunchPrograms:
        programs, at, program = self.programs, self.programs.assembly, self._program
        point = dict(programs.point_rows)
        if "y" in point:  # multipliers stand in X
            point["y"] = [self._order.rows[rows] for rows in point["y"]]
        functions, outputs = programs.linearize_functions
        stages = StageFunctions(functions, outputs, point)
        steps = kkt_steps(program, self.qp.structure.kkt, at, stages)
        factor = _merged_by_template(steps)
        d_rows = [self._order.vars[rows] for rows in at.w_rows]
        g_rows = [self._order.rows[rows] for rows in at.g_rows]
        reports = report_steps(at, stages, d_rows, g_rows)
        return ThreeLaunchPrograms(
            elimination=program,
            templates=[template for template, _ in factor],
            factor=[case for _, case in factor],
            evaluate=self._evaluations({n: rows for n, rows in point.items() if n != "y"}),
            report=merged_cases(
                [StageCase(translate(r.function), r.stages, r.in_rows, ()) for r in reports]
            ),
            names=list(point),
            nodes=np.concatenate([self._order.vars, self._order.rows]),
        )

    def _evaluations(self, point: dict[str, Any]) -> list[StageCase]:
        """Cost and violations; the rows of the direction follow those of the point."""
        stages = self.programs.assembly.stages
        merged = merged_cases(
            [
                StageCase(translate(f), stages[i], tuple(rows[i] for rows in point.values()), ())
                for i, f in enumerate(self.programs.evaluate_functions)
            ]
        )
        return [
            replace(case, in_rows=(*case.in_rows, self._order.vars[case.in_rows[0]]))
            for case in merged
        ]

    def run(self, begin: Iterate, p: Parameters, count: int) -> tuple[Iterate, History | None]:
        """So many iterations."""
        active = begin.status != MPCStatus.NON_FINITE
        carry = self._begin(begin)
        if not self.settings.record:
            end = jax.lax.fori_loop(0, count, lambda _, c: self._step(c, p, active), carry)
            return self._iterate(begin, end, active, count), None

        def recorded(now: _Carry, _: None) -> tuple[_Carry, jax.Array]:
            after = self._step(now, p, active)
            return after, after.report

        end, reports = jax.lax.scan(recorded, carry, None, length=count)
        history = self._history(jnp.where(active[None], reports, jnp.nan))
        return self._iterate(begin, end, active, count), history

    def _begin(self, begin: Iterate) -> _Carry:
        d, s, y = begin.qp.d, begin.qp.s, begin.qp.y
        scalar = begin.status.shape
        return _Carry(
            z=begin.z,
            state=(self._order.join(d, y), self._order.join(jnp.zeros_like(d), s)),
            report=jnp.zeros((scalar[0], len(REPORT_ROWS), scalar[2]), dtype=begin.z.dtype),
            status=jnp.full(scalar, Status.MAX_ITER, dtype=jnp.int32),
            qp_iterations=jnp.zeros(scalar, dtype=jnp.int32),
        )

    def _step(self, now: _Carry, p: Parameters, active: jax.Array) -> _Carry:
        """Three launches."""
        assert self._admm is not None  # see `around`
        X, S = now.state
        if self.settings.restarts_qp:
            # Multipliers stay, x and s are those of a direction that is zero.
            X = X.at[:, self._order.vars].set(0)
            S = jnp.zeros_like(S)
        point = self.programs.point_arrays(now.z, p, now.state[0])
        found = self._kernels.factor(point, (X, S), active.astype(jnp.int32), self._numbers)
        nothing = jnp.zeros((X.shape[0], 1, X.shape[2]), dtype=X.dtype)
        data = LoopData(found.K, found.Q, found.U, S, nothing, nothing, scaled=False)
        state = LoopState.before(found.X, found.status, self._limits.check_every)
        end = self._admm.iterate(
            found.factor,
            found.R,
            data,
            state,
            loop_constants(self.qp.settings, self.programs.dtype),
            jnp.asarray(0, dtype=jnp.int32),
            self._limits,
        )
        z, after, report = self._kernels.search(point, found, end.X, end.status)
        spent = end.iterations
        if self._limits.check_every == UNCHECKED:
            spent = jnp.where(end.status == Status.MAX_ITER, self._limits.max_iter, 0)
        qp_iterations = now.qp_iterations + spent.astype(jnp.int32)
        return _Carry(z, after, report, end.status, qp_iterations)

    def _iterate(self, begin: Iterate, end: _Carry, active: jax.Array, count: int) -> Iterate:
        """What `SQPIteration` would have found."""
        (d, y), (_, s) = (self._order.split(nodes) for nodes in end.state)
        spent = (end.status, end.qp_iterations, count)
        return self._reports.iterate(begin, (end.z, QPState(d, s, y)), end.report, spent, active)

    def _history(self, reports: jax.Array) -> History:
        found = self._reports.history(reports)
        return jax.tree.map(lambda a: jnp.moveaxis(a, 0, 1), found)


def _merged_by_template(steps: list[KKTStep]) -> list[tuple[StageTemplate, StageCase]]:
    """Cases of the elimination; steps that compute and eliminate the same are one."""
    groups: dict[StageTemplate, list[StageCase]] = {}
    for step in steps:
        groups.setdefault(step.template, []).append(_factor_case(step))
    return [(template, case) for template, group in groups.items() for case in merged_cases(group)]


def _factor_case(step: KKTStep) -> StageCase:
    template = step.template
    starts = ((step.L, template.n_L), (step.nodes, template.n_nodes), (step.K, template.n_K))
    rows = tuple(first[:, None] + np.arange(size) for first, size in starts)
    return StageCase(translate(step.function), step.positions, step.in_rows, rows)


def _numbers(qp: QPSolver, dtype: str) -> np.ndarray:
    """Arguments `numbers` of `ThreeLaunchKernels.factor`."""
    inverses = inverse_rho(qp.settings, dtype)
    return np.array([qp.settings.sigma, *inverses, EQUALITY_TOLERANCE, BOUND_LARGE], dtype=dtype)


def three_launch_obstacle(programs: StageEvaluator, qp: QPSolver) -> str | None:
    """Why stages or the QP engine do not allow three launches, or None.

    Args:
        programs: Stage functions.
        qp: Solver for the pattern of their QPs.
    """
    loop = qp.loop
    if not isinstance(loop, KernelLoop) or loop.staged_at(1) is None:
        return "the QP engine has no unrolled stages"
    longest = max((f.n_instructions() for f in programs.linearize_functions[0]), default=0)
    return f"a stage has {longest} operations" if longest > _LONGEST_PROGRAM else None
