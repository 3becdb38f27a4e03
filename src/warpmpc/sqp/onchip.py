"""All SQP iterations in one launch: the iteration of `SQPIteration`, one warp per problem.

Reads: the stage functions of a problem with few states.  Produces: `OnchipIteration` on arrays
``[batch, rows, 1]``.  DESIGN: lanes of a warp own consecutive stages, see `symbolic.lanes`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from warpmpc._errors import SettingsError
from warpmpc.codegen.from_casadi import translate
from warpmpc.codegen.fused_search_text import REPORT_ROWS
from warpmpc.codegen.lane_text import LaneText
from warpmpc.codegen.onchip_text import STATIC_SHARED, OnchipNumbers, OnchipPlans, OnchipText
from warpmpc.codegen.stage_module import StageCase, merged_cases, plan_stages
from warpmpc.kernels.ffi import has_gpu, shared_memory_limit
from warpmpc.kernels.onchip_engine import OnchipCounts, OnchipKernel
from warpmpc.kernels.tiles import LANES
from warpmpc.qp.conditioning import BOUND_LARGE, EQUALITY_TOLERANCE
from warpmpc.qp.qp_solver import QPSolver
from warpmpc.qp.tile_loop import inverse_rho
from warpmpc.sqp.fused import search_rule
from warpmpc.sqp.iteration import Iterate, SQPIteration, final
from warpmpc.sqp.parameters import Parameters
from warpmpc.sqp.reports import Reports
from warpmpc.sqp.settings import SQPSettings
from warpmpc.sqp.stage_programs import StagePrograms
from warpmpc.sqp.types import History, MPCStatus, QPState
from warpmpc.symbolic.kkt_stages import StageFunctions
from warpmpc.symbolic.lane_memory import LaneMemory
from warpmpc.symbolic.lanes import LaneLayout, eliminate_lane
from warpmpc.symbolic.qp_report import report_steps
from warpmpc.symbolic.row_kinds import row_kinds

_LOG = logging.getLogger(__name__)
# Longer stage programs would have to be cut into chunks.
_LONGEST_PROGRAM = 3000
_REGISTERS = 255  # per thread
# Addresses, loop counters, temporaries: what a lane needs beside the numbers that are counted.
_OVERHEAD = 30


class OnchipIteration(SQPIteration):
    """The iteration for one problem."""

    def __init__(self, programs: StagePrograms, qp: QPSolver, settings: SQPSettings):
        """Lays out the lanes and builds the programs of all stages.

        Args:
            programs: Stage functions.
            qp: Solver for the pattern of their QPs; only its settings matter here.
            settings: Of the iteration.
        """
        super().__init__(programs, qp, settings)
        self.memory = lane_memory(programs)
        plans = _StagePlans(programs, self.memory)
        text = OnchipText(
            self.memory,
            plans.all(),
            search_rule(settings, programs.dtype),
            _numbers(qp, programs.dtype),
        )
        self.kernel = OnchipKernel(self.memory, text, plans.tables, programs.dtype)
        self._reports = Reports(settings, programs.dtype)

    def started(self, qp: QPState) -> QPState:
        """What the first QPs start from: the kernel itself looks whether it is finite."""
        return qp

    def run(self, begin: Iterate, p: Parameters) -> tuple[Iterate, History | None]:
        """All iterations."""
        end, history = self._solve(begin, p, self.settings.max_iter)
        return final(end), history

    def step(self, now: Iterate, p: Parameters, *, always: bool = False) -> Iterate:
        """One iteration; with a fixed number of them all instances move."""
        del always
        return self._solve(now, p, 1)[0]

    def _solve(self, begin: Iterate, p: Parameters, count: int) -> tuple[Iterate, History | None]:
        settings, active = self.settings, begin.status != MPCStatus.NON_FINITE
        counts = OnchipCounts(
            count, self.qp.settings.max_iter, settings.record, settings.restarts_qp
        )
        arrays = self.programs.point_arrays(begin.z, p, begin.qp.y)
        point = dict(zip(self.programs.point_rows, arrays, strict=True))
        state = (begin.qp.d, begin.qp.s, begin.qp.y)
        found = self.kernel.solve(point, state, active, counts)
        batch, size = begin.z.shape[0], len(REPORT_ROWS)
        reports = found.report.reshape(batch, -1, size, 1)
        spent = (found.status[:, :1], found.status[:, 1:], count)
        new = (found.z, QPState(*found.state))
        # Instances that do not take part are as they were: nobody has to keep their old arrays.
        begin = replace(begin, z=new[0], qp=new[1])
        end = self._reports.iterate(begin, new, reports[:, -1], spent, active)
        if not settings.record:
            return end, None
        rows = jnp.where(active[:, None], reports, jnp.nan)
        history = self._reports.history(jnp.moveaxis(rows, 1, 0))
        return end, jax.tree.map(lambda a: jnp.moveaxis(a, 0, 1), history)


def uses_onchip(
    engine: str, programs: StagePrograms, qp: QPSolver, settings: SQPSettings, *, free: bool
) -> bool:
    """Whether solves are single launches; raises where that is wanted but impossible.

    Args:
        engine: What the caller wants.
        programs: Stage functions.
        qp: Solver for the pattern of their QPs.
        settings: Of the iteration.
        free: Whether the caller leaves the choice of kernels to us.
    """
    if engine == "onchip":
        reason = onchip_obstacle(programs, qp, settings)
        if reason is not None:
            raise SettingsError(
                f'engine="onchip" is not possible because {reason}; use engine="auto".'
            )
        return True
    if engine != "auto" or not free or settings.fused is not None or not has_gpu():
        return False
    reason = onchip_obstacle(programs, qp, settings) or onchip_drawback(programs)
    _LOG.info("engine auto: %s", f"not onchip, because {reason}" if reason else "onchip")
    return reason is None


def onchip_obstacle(programs: StagePrograms, qp: QPSolver, settings: SQPSettings) -> str | None:
    """Why a solve cannot be one launch, or None."""
    admm = qp.settings
    reasons = (
        (settings.converges, "the number of SQP iterations is not fixed"),
        (bool(settings.fused), "fused=True asks for three launches per iteration"),
        (bool(admm.scaling), "QPs are scaled"),
        (bool(admm.adaptive_rho_every), "rho is adapted"),
        (bool(admm.check_every), "QPs end at a tolerance (check_every)"),
        (programs.has_blocks, "Hessian blocks are projected"),
    )
    known = next((reason for holds, reason in reasons if holds), None)
    if known is not None:
        return known
    longest = max((f.n_instructions() for f in programs.linearize_functions[0]), default=0)
    if longest > _LONGEST_PROGRAM:
        return f"a stage has {longest} operations, more than {_LONGEST_PROGRAM}"
    needed = _shared_bytes(programs)
    limit = shared_memory_limit()
    if needed > limit:
        return (
            f"a problem needs {needed / 1024:.0f} KB of shared memory, "
            f"{(needed - limit) / 1024:.0f} KB more than a multiprocessor has"
        )
    return None


def onchip_drawback(programs: StagePrograms) -> str | None:
    """Why single launches would not be the fastest way, or None."""
    memory = lane_memory(programs)
    width = np.dtype(programs.dtype).itemsize // 4
    values = sum(LaneText(memory, programs.dtype).counted_values().values())
    registers = width * values + _OVERHEAD
    if registers > _REGISTERS:
        return f"a lane needs about {registers} registers, {registers - _REGISTERS} too many"
    needed = _shared_bytes(programs)
    if needed > STATIC_SHARED:
        return (
            f"a problem needs {needed / 1024:.0f} KB of shared memory, more than the "
            f"{STATIC_SHARED // 1024} KB that leave room for several"
        )
    return None


def _shared_bytes(programs: StagePrograms) -> int:
    return lane_memory(programs).n_rows * LANES * np.dtype(programs.dtype).itemsize


def lane_memory(programs: StagePrograms) -> LaneMemory:
    """Where the numbers of a problem lie."""
    layout = LaneLayout(programs.assembly, row_kinds(programs.problem, EQUALITY_TOLERANCE))
    return LaneMemory(layout, eliminate_lane(layout))


def _numbers(qp: QPSolver, dtype: str) -> OnchipNumbers:
    settings = qp.settings
    row, equal, free = inverse_rho(settings, dtype)
    return OnchipNumbers(
        sigma=settings.sigma,
        relaxation=settings.relaxation,
        inverse_rho=(row, equal, free),
        same=EQUALITY_TOLERANCE,
        absent=BOUND_LARGE,
        check_every=settings.check_every,
        eps=(settings.eps_abs, settings.eps_rel),
    )


class _StagePlans:
    """Stage programs with offsets in the memory of a lane for what they read and write."""

    def __init__(self, programs: StagePrograms, memory: LaneMemory):
        self._programs, self._m = programs, memory
        self._at = programs.assembly
        self._linearize = plan_stages(self._linearizations())
        self._evaluate = plan_stages(self._evaluations())
        self._report = plan_stages(self._reports())

    @property
    def tables(self) -> list[np.ndarray]:
        """Of the three plans."""
        return [plan.table for plan in (self._linearize, self._evaluate, self._report)]

    def all(self) -> OnchipPlans:
        """The plans."""
        return OnchipPlans(
            linearize=self._linearize,
            outputs=self._programs.linearize_functions[1],
            evaluate=self._evaluate,
            report=self._report,
            names=list(self._programs.point_rows),
        )

    def _point(self, name: str) -> Callable[[int, int], int]:
        """Offset of an element of an input, seen from the lane of a stage."""
        memory = self._m
        if name == "y":
            return lambda index, k: memory.of_row("R", index, k)
        return lambda index, _: index  # z and parameters are not in this memory

    def _points(self, group: int, names: Sequence[str]) -> tuple[np.ndarray, ...]:
        stages, rows = self._at.stages[group], self._programs.point_rows
        return tuple(_offsets(rows[name][group], stages, self._point(name)) for name in names)

    def _linearizations(self) -> list[StageCase]:
        functions, outputs = self._programs.linearize_functions
        point = list(self._programs.point_rows)
        return merged_cases(
            [
                StageCase(
                    translate(function),
                    self._at.stages[i],
                    self._points(i, point),
                    tuple(self._written(name, i) for name in outputs),
                )
                for i, function in enumerate(functions)
            ]
        )

    def _written(self, name: str, group: int) -> np.ndarray:
        """Offsets of what a stage contributes to the QP."""
        at, memory, stages = self._at, self._m, self._at.stages[group]
        n_P = at.P_pattern.nnz
        if name == "soft":
            rows = at.g_rows[group][:, at.models[group].stage.soft_rows]
            parts = [_offsets(rows, stages, _penalty(memory, part)) for part in range(4)]
            return np.concatenate(parts, axis=1)
        tables: dict[str, tuple[Any, Callable[[int, int], int]]] = {
            "P": (at.P_places, memory.of_entry),
            "q": (at.q_places, memory.of_cost),
            "A": (at.A_rows, lambda index, k: memory.of_entry(n_P + index, k)),
            "lower": (at.g_rows, lambda index, _: memory.of_bound(index, upper=False)),
            "upper": (at.g_rows, lambda index, _: memory.of_bound(index, upper=True)),
        }
        rows, offset = tables[name]
        return _offsets(rows[group], stages, offset)

    def _evaluations(self) -> list[StageCase]:
        """The offsets of d follow those of the point."""
        names = [name for name in self._programs.point_rows if name != "y"]
        found = []
        for i, function in enumerate(self._programs.evaluate_functions()):
            program, kept = translate(function).pruned()
            rows = [r[:, k] for r, k in zip(self._points(i, names), kept, strict=True)]
            direction = _offsets(
                np.asarray(self._at.w_rows[i])[:, kept[0]],
                self._at.stages[i],
                self._m.of_direction,
            )
            found.append(StageCase(program, self._at.stages[i], (*rows, direction), ()))
        return found

    def _reports(self) -> list[StageCase]:
        at, memory = self._at, self._m
        functions, outputs = self._programs.linearize_functions
        stages = StageFunctions(functions, outputs, self._programs.point_rows)
        readers = [self._point(name) for name in self._programs.point_rows]
        readers += [
            memory.of_direction,
            lambda index, k: memory.of_row("X", index, k),
            memory.of_rho,
        ]
        cases = [
            StageCase(
                translate(step.function),
                step.stages,
                tuple(
                    _offsets(rows, step.stages, reader)
                    for rows, reader in zip(step.in_rows, readers, strict=True)
                ),
                (),
            )
            for step in report_steps(at, stages, at.w_rows, at.g_rows)
        ]
        return merged_cases(cases)


def _penalty(memory: LaneMemory, part: int) -> Callable[[int, int], int]:
    return lambda index, _: memory.of_penalty(index, part)


def _offsets(rows: Any, stages: Any, offset: Callable[[int, int], int]) -> np.ndarray:
    """Offsets of the elements of all stages of a case."""
    table = np.asarray(rows)
    found = [[offset(int(i), int(k)) for i in row] for row, k in zip(table, stages, strict=True)]
    return np.array(found, dtype=np.int64).reshape(table.shape)
