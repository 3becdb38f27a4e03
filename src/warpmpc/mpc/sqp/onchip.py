"""All SQP iterations in one launch: the iteration of `SQPIteration`, one warp per problem.

Reads: the stage functions of a problem with few states.  Produces: `OnchipIteration` on arrays
``[batch, rows, 1]``.  DESIGN: lanes of a warp own consecutive stages, see `engines.onchip.lanes`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import jax
import jax.numpy as jnp

from warpmpc.codegen.native.line_search import REPORT_ROWS, SQPTolerances
from warpmpc.engines.ldl.launch import MAX_REGISTERS
from warpmpc.engines.onchip.check_source import OnchipChecks
from warpmpc.engines.onchip.lane_source import LaneSource, registers_of
from warpmpc.engines.onchip.lanes import LaneLayout, eliminate_lane
from warpmpc.engines.onchip.launch import (
    OnchipCounts,
    OnchipKernel,
    Solved,
    needed_registers,
    problems_at_once,
    problems_held,
    shared_bytes,
)
from warpmpc.engines.onchip.memory import LaneMemory
from warpmpc.engines.onchip.solve_source import (
    CONVERGED,
    GOES_ON,
    HOPELESS,
    STATIC_SHARED,
    OnchipConstants,
    OnchipEnd,
    OnchipSource,
)
from warpmpc.engines.onchip.solve_template import NO_PART, PHASES
from warpmpc.engines.runtime.ffi import shared_memory_limit
from warpmpc.mpc.line_search import native_rule
from warpmpc.mpc.parameters import Parameters
from warpmpc.mpc.settings import SQPSettings
from warpmpc.mpc.sqp.general import Iterate, Reports, SQPIteration, final
from warpmpc.mpc.sqp.onchip_stages import OnchipStages
from warpmpc.mpc.sqp.subproblem import FIRST_DAMPING, GROWTH, MOST_LOST
from warpmpc.mpc.stage_evaluation import StageEvaluator
from warpmpc.mpc.types import History, MPCStatus, MPCWarmStart, QPState
from warpmpc.qp.qp_solver import QPSolver
from warpmpc.qp.scaling import BOUND_LARGE, EQUALITY_TOLERANCE
from warpmpc.qp.structure import inverse_rho
from warpmpc.qp.types import ADMMSettings
from warpmpc.symbolic.derivatives.stage_model import row_kinds

# Longer stage programs would have to be cut into chunks.
_LONGEST_PROGRAM = 3000
_MOST_AT_ONCE = 8  # as many as have all registers that a lane can have
_MOST_HELD = 8  # rows of parameters that every solve copies
_AT_LEAST_AT_ONCE = 4  # as many as an H200 holds of problems of 48 KB


class OnchipIteration(SQPIteration):
    """The iteration for one problem."""

    def __init__(self, programs: StageEvaluator, qp: QPSolver, settings: SQPSettings):
        """Lays out the lanes and builds the programs of all stages.

        Args:
            programs: Stage functions.
            qp: Solver for the pattern of their QPs; only its settings matter here.
            settings: Settings of the iteration.
        """
        super().__init__(programs, qp, settings)
        self.memory = lane_memory(programs)
        plans = OnchipStages(programs, self.memory)
        text = OnchipSource(
            self.memory,
            plans.plans,
            native_rule(settings, programs.dtype),
            replace(_numbers(qp, programs.dtype), end=_end(settings, programs.dtype)),
        )
        self.kernel = OnchipKernel(self.memory, text, plans.tables, programs.dtype)
        self._reports = Reports(settings, programs.dtype, soft=programs.soft_rows.size > 0)

    def has_trajectory(self, z: jax.Array) -> jax.Array:
        """All instances: the kernel reads their trajectories anyway, and reports unusable ones."""
        return jnp.ones((z.shape[0], 1, z.shape[2]), dtype=bool)

    def started(self, qp: QPState) -> QPState:
        """Start of the first QPs: the kernel itself tests whether it is finite."""
        return qp

    def run(self, begin: Iterate, p: Parameters) -> tuple[Iterate, History | None]:
        """All iterations."""
        end, history = self._solve(begin, p, self._counts(self.settings.max_iter))
        return final(end), history

    def step(self, now: Iterate, p: Parameters, *, always: bool = False) -> Iterate:
        """One iteration, in which all instances move."""
        del always
        return self._solve(now, p, replace(self._counts(1), ends=False))[0]

    def phase_cycles(self, p: Parameters, start: MPCWarmStart) -> dict[str, float]:
        """Mean cycles of `PHASES` in one solve; zeros on the CPU, which has no such clock.

        Args:
            p: Parameters of a batch, batch first.
            start: Start of the solve, batch first.
        """
        counts = replace(self._counts(self.settings.max_iter), profile=True)

        def cycles(p: Parameters, start: MPCWarmStart) -> jax.Array:
            p, start = jax.tree.map(lambda a: a[..., None], (p, start))
            found = self._launch(self.begin(start.z, start.qp, p.unknown()), p, counts)
            cycles = found.status[:, 2 : 2 + len(PHASES)]
            return 64 * cycles.astype(start.z.dtype).mean(axis=(0, 2))

        return dict(zip(PHASES, map(float, jax.jit(cycles)(p, start)), strict=True))

    def _counts(self, count: int) -> OnchipCounts:
        settings = self.settings
        return OnchipCounts(
            count,
            self.qp.settings.max_iter,
            settings.record,
            settings.restarts_qp,
            ends=settings.converges,
        )

    def _launch(self, begin: Iterate, p: Parameters, counts: OnchipCounts) -> Solved:
        arrays = self.programs.point_arrays(begin.z, p, begin.qp.y)
        point = dict(zip(self.programs.point_rows, arrays, strict=True))
        state = (begin.qp.d, begin.qp.s, begin.qp.y)
        active = begin.status != MPCStatus.NON_FINITE
        return self.kernel.solve(point, state, active, counts)

    def _solve(
        self, begin: Iterate, p: Parameters, counts: OnchipCounts
    ) -> tuple[Iterate, History | None]:
        found = self._launch(begin, p, counts)
        active = found.status[:, :1] != NO_PART
        batch, size = begin.z.shape[0], len(REPORT_ROWS)
        reports, last = found.report.reshape(batch, -1, size, 1), found.report[:, -size:]
        done, flags, converged = counts.sqp, None, None
        if counts.ends:
            done, flags = found.status[:, -2:-1], found.status[:, -1:]
            converged = flags & CONVERGED > 0
        spent = (found.status[:, :1], found.status[:, 1:2], done)
        new = (found.z, QPState(*found.state))
        if counts.record:
            place = jnp.arange(counts.sqp)[None, :, None]
            took_part = active & (place < done)
            reports = jnp.where(took_part[..., None], reports, jnp.nan)
            # After the last one reports are NaN; earlier ones do not count.
            last = jnp.where((place == done - 1)[..., None], reports, 0).sum(axis=1)
        # Instances that do not take part are unchanged, so their old arrays need not be kept.
        status = jnp.where(active, begin.status, jnp.int32(MPCStatus.NON_FINITE))
        begin = replace(begin, z=new[0], qp=new[1], status=status)
        end = self._reports.iterate(begin, new, last, spent, active, converged)
        if flags is not None:
            status = jnp.where(flags & GOES_ON > 0, jnp.int32(MPCStatus.MAX_ITER), end.status)
            infeasible = (active & (flags & HOPELESS > 0)).astype(jnp.int32)
            end = replace(end, status=status, infeasible=infeasible)
        if not counts.record:
            return end, None
        history = self._reports.history(jnp.moveaxis(reports, 1, 0))
        return end, jax.tree.map(lambda a: jnp.moveaxis(a, 0, 1), history)


def onchip_obstacle(programs: StageEvaluator, memory: Callable[[], LaneMemory]) -> str | None:
    """Why stages or their memory do not fit a warp, or None.

    Args:
        programs: Stage functions.
        memory: Lays out the lanes; called if all else allows a single launch.
    """
    # One program gives both: cost and violations at the first point come with the QP.
    both = zip(programs.linearize_functions[0], programs.evaluate_functions, strict=True)
    longest = max((f.n_instructions() + g.n_instructions() for f, g in both), default=0)
    if longest > _LONGEST_PROGRAM:
        return f"a stage has {longest} operations, more than {_LONGEST_PROGRAM}"
    needed, limit = shared_bytes(memory(), programs.dtype), shared_memory_limit()
    if needed > limit:
        return (
            f"a problem needs {needed / 1024:.1f} KB of shared memory, "
            f"{(needed - limit) / 1024:.1f} KB more than a multiprocessor has"
        )
    return None


def onchip_drawback(memory: LaneMemory, dtype: str) -> str | None:
    """Why single launches would not be the fastest way, or None."""
    registers = needed_registers(memory, dtype)
    if registers > MAX_REGISTERS:
        return f"a lane needs about {registers} registers, {registers - MAX_REGISTERS} too many"
    needed = shared_bytes(memory, dtype)
    if needed > STATIC_SHARED and _problems_at_once(memory, dtype) < _AT_LEAST_AT_ONCE:
        return (
            f"a problem needs {needed / 1024:.0f} KB of shared memory, more than the "
            f"{STATIC_SHARED // 1024} KB that leave room for several"
        )
    return None


def lane_memory(programs: StageEvaluator) -> LaneMemory:
    """Memory of a problem.

    Blocks of the reduction are in registers that are left, if that makes room for more problems.
    Parameters have a copy in shared memory if that takes no room from problems.
    """
    memory = _without_parameters(programs)
    holding = memory.holding(programs.parameter_sizes)
    room, room_left = (_room(m, programs.dtype) for m in (memory, holding))
    is_short = holding.sections["PAR"].count <= _MOST_HELD
    return holding if is_short and room == room_left and room[0] else memory


def _room(memory: LaneMemory, dtype: str) -> tuple[int, bool]:
    """Problems that a multiprocessor holds; whether one exceeds the static shared memory."""
    return problems_held(memory, dtype), shared_bytes(memory, dtype) > STATIC_SHARED


def _without_parameters(programs: StageEvaluator) -> LaneMemory:
    """The memory without parameters."""
    layout = LaneLayout(programs.assembly, row_kinds(programs.problem, EQUALITY_TOLERANCE))
    memory = LaneMemory(layout, eliminate_lane(layout))
    text, block = LaneSource(memory, programs.dtype), memory.n_separators**2
    if text.folds or not block:
        return memory
    left = MAX_REGISTERS - needed_registers(memory, programs.dtype)
    block *= registers_of(programs.dtype)
    most = max(0, min(left // block, memory.n_blocks))
    some = [memory.keeping(count) for count in range(most + 1)]
    # The first one of those that leave most room.
    return max(some, key=lambda m: _problems_at_once(m, programs.dtype))


def _problems_at_once(memory: LaneMemory, dtype: str) -> int:
    """Problems that one multiprocessor holds, even if lanes take all registers."""
    return min(problems_at_once(memory, dtype), _MOST_AT_ONCE)


def _numbers(qp: QPSolver, dtype: str) -> OnchipConstants:
    settings = qp.settings
    row, equal, free = inverse_rho(settings, dtype)
    return OnchipConstants(
        sigma=settings.sigma,
        relaxation=settings.relaxation,
        inverse_rho=(row, equal, free),
        same=EQUALITY_TOLERANCE,
        absent=BOUND_LARGE,
        checks=_checks(settings),
    )


def _end(settings: SQPSettings, dtype: str) -> OnchipEnd | None:
    if not settings.converges:
        return None
    given = settings.tolerances(dtype)
    tolerances = SQPTolerances(given.step, given.kkt, given.violation)
    return OnchipEnd(tolerances, MOST_LOST, FIRST_DAMPING, GROWTH)


def _checks(settings: ADMMSettings) -> OnchipChecks | None:
    if not settings.check_every:
        return None
    return OnchipChecks(
        settings.check_every,
        settings.absolute_tolerance,
        settings.relative_tolerance,
        settings.eps_prim_inf,
        settings.eps_dual_inf,
        settings.check_dualgap,
    )
