"""The factorisation benchmark: rates, accuracy and memory over batch size, variant and baseline.

Reads: `BenchSettings`.  Produces: one row per step of the plan, in order; a step that cannot run is
a row that says so.  The command line prints, stores and plots the rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import ClassVar

from warpmpc.qp.ldl_solver import LDLSolver
from warpmpc.systems.ldl_benchmark import nominal
from warpmpc_bench.common.baseline import Baseline
from warpmpc_bench.common.record import Row
from warpmpc_bench.common.runner import Runner
from warpmpc_bench.common.sweep import Step, Sweep, steps_of
from warpmpc_bench.common.timing import Measured
from warpmpc_bench.ldl.baselines import BASELINES
from warpmpc_bench.ldl.case import Case
from warpmpc_bench.ldl.variants import VARIANTS, build_solver, bytes_wanted, measure_solver


@dataclass(frozen=True)
class BenchSettings(Sweep):
    """What to measure; variants are names from `VARIANTS`."""

    choices: ClassVar[tuple[str, ...]] = tuple(VARIANTS)
    rivals: ClassVar[Mapping[str, Baseline]] = BASELINES
    default_batches: ClassVar[dict[str, tuple[int, ...]]] = {
        "gpu": (512, 2048, 8192, 32768, 100_000, 300_000),
        "cpu": (32, 256, 1024),
    }


def plan(settings: BenchSettings) -> list[Step]:
    """All rows of a run."""
    return steps_of(settings, dict.fromkeys(settings.names, settings.sizes))


def run(settings: BenchSettings) -> Iterator[Row]:
    """Measures step by step; yields one row per step of `plan`."""
    return LDLRunner(settings.repeats, BASELINES).rows(plan(settings))


class LDLRunner(Runner):
    """Factorisations and solves of one KKT pattern."""

    benchmark = "ldl"
    timings = ("factor", "solve", "solve_tiles")
    references: ClassVar[dict[str, str]] = {"speedup_over_qdldl": "qdldl"}

    def system(self, step: Step) -> Row:
        """Dimensions of K."""
        K = nominal()
        return {"name": "ldl_benchmark", "dimension": K.shape[0], "nnz_K": K.nnz}

    def label(self, step: Step) -> str:
        """Builds the variants of the table."""
        return VARIANTS[step.solver].label

    def draw(self, step: Step, *, on_host: bool) -> Case:
        """Different matrices."""
        return Case(step.batch, step.dtype, on_host=on_host)

    def measure(self, step: Step, case: Case) -> Measured:
        """Factor and solve."""
        ordering = VARIANTS[step.solver].ordering
        return measure_solver(self._solver(step), ordering, case, self._repeats)

    def bytes_wanted(self, step: Step) -> int:
        """Data, tiled copies and two factors."""
        return bytes_wanted(self._solver(step), step.batch)

    def _solver(self, step: Step) -> LDLSolver:
        return build_solver(step.solver, step.dtype)
