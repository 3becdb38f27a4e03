"""Symbolic analysis of one benchmark pattern, gathered for figures and tables.

Reads: a `KKTStructure` and an ordering.  Produces: `PatternAnalysis`; everything that
`warpmpc info --pattern` prints and `plot_pattern` draws comes from it.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from warpmpc._errors import SettingsError
from warpmpc.engines.ldl.schedule import (
    LDLSchedule,
    Phase,
    build_phases,
    build_schedule,
    dependency_levels,
)
from warpmpc.symbolic.elimination import Elimination, eliminate
from warpmpc.symbolic.ordering import order
from warpmpc.symbolic.pattern import IntArray, symmetric_upper
from warpmpc.symbolic.segments import optimal_segments, padded_work
from warpmpc.symbolic.stage_elimination import StageBlocks, find_stage_blocks
from warpmpc.systems.patterns import KKTStructure, structure

NARROW = 2  # levels with at most this many columns are fused into one sequential run


@dataclass(frozen=True, eq=False)
class Levels:
    """One triangular solve: the level of each column and the phases the levels are run in."""

    level: IntArray
    phases: list[Phase]

    @property
    def counts(self) -> IntArray:
        """Columns per level."""
        return np.bincount(self.level)

    @property
    def fused(self) -> IntArray:
        """Whether each level is part of a sequential run."""
        in_run = np.zeros(self.level.size, dtype=bool)
        for phase in self.phases:
            in_run[phase.items] = not phase.parallel
        fused = np.zeros(self.counts.size, dtype=bool)
        fused[self.level[in_run]] = True
        return fused


@dataclass(frozen=True, eq=False)
class PatternAnalysis:
    """Results of the symbolic layer for one KKT pattern.

    Attributes:
        structure: The analysed system.
        ordering: Name of the ordering.
        segments: Budget of segments.
        elimination: The symbolic factorisation.
        blocks: Repeating stages and frontiers.
    """

    structure: KKTStructure
    ordering: str
    segments: int
    elimination: Elimination
    blocks: StageBlocks

    @property
    def n_vars(self) -> int:
        """Number of variables; the nodes after them are multiplier rows."""
        return int(self.structure.P.shape[0])

    @property
    def n_cons(self) -> int:
        """Number of constraint rows."""
        return int(self.structure.A.shape[0])

    @property
    def nnz_K_full(self) -> int:
        """Entries of K with both triangles."""
        return 2 * self.elimination.K_pattern.nnz - self.elimination.n

    @property
    def fill(self) -> int:
        """Entries of L that K does not have."""
        return int((self.elimination.K_to_L < 0).sum())

    @cached_property
    def forward(self) -> Levels:
        """Levels of the forward solve."""
        level = dependency_levels(self.elimination.L_pattern)
        return Levels(level, build_phases(level, self.elimination.L_pattern.row_counts, NARROW))

    @cached_property
    def backward(self) -> Levels:
        """Levels of the transposed solve, as late as possible: the order in which it is run."""
        level = self.forward.level.max(initial=0) - self.forward.level
        return Levels(level, build_phases(level, self.elimination.L_pattern.col_counts, NARROW))

    @cached_property
    def schedule(self) -> LDLSchedule:
        """The level schedule under the segment budget."""
        return build_schedule(self.elimination, self.segments, level_scheduling=True)

    @cached_property
    def segment_bounds(self) -> IntArray:
        """Cheapest cut of the columns of L, in elimination order, by their counts."""
        return optimal_segments(self.elimination.L_pattern.col_counts, self.segments)

    @property
    def segment_padding(self) -> float:
        """Share of the segmented column work that is padding."""
        work = padded_work(self.elimination.L_pattern.col_counts, self.segment_bounds)
        return 1 - self.elimination.nnz_L / work if work else 0.0

    def summary(self) -> dict[str, object]:
        """All figures as plain numbers, ready for JSON."""
        begin, end = self.blocks.longest_run
        return {
            "pattern": self.structure.name,
            "ordering": self.ordering,
            "n": self.n_vars,
            "m": self.n_cons,
            "dimension": self.elimination.n,
            "nnz_P": int(self.structure.P.nnz),
            "nnz_A": int(self.structure.A.nnz),
            "nnz_K_upper": self.elimination.K_pattern.nnz,
            "nnz_K_full": self.nnz_K_full,
            "nnz_L": self.elimination.nnz_L,
            "fill": self.fill,
            "levels": int(self.forward.counts.size),
            "phases_forward": len(self.forward.phases),
            "phases_backward": len(self.backward.phases),
            **self.elimination.counts(),
            "segment_budget": self.segments,
            "segments": int(self.segment_bounds.size - 1),
            "segments_padded_share": self.segment_padding,
            "schedule_padded_share": self.schedule.padded_share(),
            "stages": int(self.blocks.labels.size),
            "repeating_stages": end - begin,
            "repeating_from": int(self.blocks.labels[begin]) if end > begin else None,
            "frontiers": sorted({int(front.size) for front in self.blocks.frontiers}),
        }


def analyse(
    pattern: str | KKTStructure, ordering: str = "amd", segments: int = 16
) -> PatternAnalysis:
    """Orders, eliminates and cuts one benchmark pattern.

    Args:
        pattern: A name from `warpmpc.systems.patterns`, or a structure.
        ordering: A name from `warpmpc.symbolic.ordering`.
        segments: Budget of segments.
    """
    if segments < 1:
        raise SettingsError(f"The segment budget must be at least 1, got {segments}.")
    system = structure(pattern) if isinstance(pattern, str) else pattern
    K_pattern, _, _ = symmetric_upper(system.K)
    elimination = eliminate(K_pattern, order(K_pattern, ordering, system.stages))
    blocks = find_stage_blocks(elimination, system.stages)
    return PatternAnalysis(system, ordering, segments, elimination, blocks)
