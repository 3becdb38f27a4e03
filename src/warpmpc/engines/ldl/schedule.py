"""Execution schedules: in which order, how wide, and what in parallel.

Reads: an `Elimination`.  Produces: `LDLSchedule`, the padded tables that the engines walk.  Every
operation is a gather: one item (a row of a triangular solve, an entry of L) reads its operands and
writes one value, so items whose operands are ready can run side by side in any order, and the order
of summation inside an item never changes.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from warpmpc.symbolic.elimination import Elimination
from warpmpc.symbolic.pattern import IntArray, SparsePattern
from warpmpc.symbolic.segments import optimal_segments


def dependency_levels(L_pattern: SparsePattern) -> IntArray:
    """Level of each column in the forward solve: one more than its deepest dependency."""
    depth = np.zeros(L_pattern.n_cols, dtype=np.int32)
    for col in range(L_pattern.n_cols):  # ascending: depth[col] is already final
        rows = L_pattern.rows_of(col)
        depth[rows] = np.maximum(depth[rows], depth[col] + 1)
    return depth


def transposed_levels(L_pattern: SparsePattern) -> IntArray:
    """Level of each column in the transposed (backward) solve."""
    depth = np.zeros(L_pattern.n_cols, dtype=np.int32)
    for col in range(L_pattern.n_cols - 1, -1, -1):
        rows = L_pattern.rows_of(col)
        depth[col] = depth[rows].max(initial=-1) + 1
    return depth


@dataclass(frozen=True, eq=False)
class Phase:
    """Items that run one after the other, or side by side if `parallel`."""

    items: IntArray
    parallel: bool


def build_phases(levels: IntArray, widths: IntArray, narrow: int) -> list[Phase]:
    """One parallel phase per wide level; runs of levels with at most `narrow` items are fused.

    Inside a parallel phase items are sorted by width, so that segments cut them tightly.
    """
    order = np.lexsort((-widths, levels)).astype(np.int32)
    counts = np.bincount(levels)
    ends = np.cumsum(counts)
    phases: list[Phase] = []
    tail_from = 0
    for level, (count, end) in enumerate(zip(counts.tolist(), ends.tolist(), strict=True)):
        last_of_tail = level + 1 == counts.size or counts[level + 1] > narrow
        if count > narrow:
            phases.append(Phase(order[end - count : end], parallel=True))
            tail_from = end
        elif last_of_tail:
            phases.append(Phase(order[tail_from:end], parallel=False))
            tail_from = end
    return phases


@dataclass(frozen=True, eq=False)
class Padded:
    """Operand lists of a sequence of items, padded segment by segment.

    Attributes:
        bounds: First item of each segment, and the number of items.
        widths: Padded width of each segment.
        starts: Where each segment begins in `table`.
        table: Pairs of operands, shape ``[slots, 2]``; -1 pads.
    """

    bounds: IntArray
    widths: IntArray
    starts: IntArray
    table: IntArray

    def segment(self, s: int) -> IntArray:
        """Operands of one segment as ``[items, width, 2]``."""
        n_items = int(self.bounds[s + 1] - self.bounds[s])
        size = n_items * int(self.widths[s])
        first = int(self.starts[s])
        return self.table[first : first + size].reshape(n_items, int(self.widths[s]), 2)


def unrolled_width(widths: IntArray) -> IntArray:
    """Widths that kernels are unrolled for: 0, 1, 2, 4, or a multiple of 8."""
    small = np.select([widths <= 0, widths <= 1, widths <= 2], [0, 1, 2], 4)
    return np.where(widths <= 4, small, -(-widths // 8) * 8)


def pad_operands(
    ptr: IntArray, operands: IntArray, items: IntArray, bounds: IntArray, *, unrolled: bool
) -> Padded:
    """Lays out ``operands[ptr[item]:ptr[item + 1]]`` of the items, segment by segment."""
    counts = np.diff(ptr)[items].astype(np.int64)
    n_segments = len(bounds) - 1
    widths = np.array([counts[bounds[s] : bounds[s + 1]].max(initial=0) for s in range(n_segments)])
    widths = unrolled_width(widths) if unrolled else widths
    sizes = np.diff(bounds) * widths
    starts = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
    segment = np.repeat(np.arange(n_segments), np.diff(bounds))
    # Slot of the first operand of each item, then of every operand.
    first = (
        starts[segment] + (np.arange(items.size) - np.asarray(bounds)[segment]) * widths[segment]
    )
    inside = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
    source = np.repeat(np.asarray(ptr, dtype=np.int64)[items], counts) + inside
    table = np.full((int(starts[-1]), 2), -1, dtype=np.int32)
    table[np.repeat(first, counts) + inside] = operands[source]
    return Padded(
        np.asarray(bounds, dtype=np.int32),
        widths.astype(np.int32),
        starts[:-1].astype(np.int32),
        table,
    )


@dataclass(frozen=True, eq=False)
class SolveSchedule:
    """One triangular solve: rows in execution order, with their operands (entry of L, node)."""

    items: IntArray
    padded: Padded
    parallel: IntArray  # per segment
    barrier: IntArray  # per segment: later segments may depend on it
    levels: int


@dataclass(frozen=True, eq=False)
class FactorSchedule:
    """Left-looking factorisation: columns in execution order.

    A column first divides its row of L by the pivots (`rows`: entry of L, eliminated node), which
    yields its pivot, and then computes its entries (`pairs`: two entries of L).
    """

    items: IntArray
    entries: IntArray  # positions in L, column after column in execution order
    entry_ptr: IntArray  # entries of each item
    rows: Padded
    pairs: Padded  # bounds count entries
    parallel: IntArray
    barrier: IntArray


@dataclass(frozen=True, eq=False)
class LDLSchedule:
    """Factorisation, forward and backward solve of one elimination."""

    elimination: Elimination
    factor: FactorSchedule
    forward: SolveSchedule
    backward: SolveSchedule
    unrolled: bool  # widths are those that kernels unroll

    def padded_share(self) -> float:
        """Share of table slots that are padding."""
        tables = [self.factor.rows, self.factor.pairs, self.forward.padded, self.backward.padded]
        slots = sum(t.table.shape[0] for t in tables)
        used = sum(int((t.table[:, 0] >= 0).sum()) for t in tables)
        return 1 - used / slots if slots else 0.0


def build_schedule(
    elimination: Elimination,
    segments: int,
    *,
    level_scheduling: bool,
    narrow_solve: int = 2,
    narrow_factor: int = 0,
    unrolled: bool = False,
) -> LDLSchedule:
    """Cuts and orders the work of one elimination.

    Args:
        elimination: The symbolic factorisation.
        segments: Budget of segments per program, beyond the cuts that levels force.
        level_scheduling: Group independent columns; otherwise strictly one after the other.
        narrow_solve: Levels with at most this many columns are fused into sequential runs.
        narrow_factor: The same for the factorisation.
        unrolled: Round widths up to what kernels unroll.
    """
    L, cutting = elimination.L_pattern, Cutting(segments, unrolled)
    by_row, position = elimination.L_rows
    forward_levels, backward_levels = dependency_levels(L), transposed_levels(L)
    rows = np.stack([position, by_row.row_idx], axis=1)
    columns = np.stack([np.arange(L.nnz, dtype=np.int32), L.row_idx], axis=1)
    if level_scheduling:
        factor_phases = build_phases(forward_levels, _pair_widths(elimination), narrow_factor)
        forward_phases = build_phases(forward_levels, L.row_counts, narrow_solve)
        # As late as possible: columns that no other column needs come last, in a few wide levels,
        # instead of hanging one by one on the levels of the long narrow part.
        latest = forward_levels.max(initial=0) - forward_levels
        backward_phases = build_phases(latest, L.col_counts, narrow_solve)
    else:
        ascending = np.arange(elimination.n, dtype=np.int32)
        factor_phases = forward_phases = [Phase(ascending, parallel=False)]
        backward_phases = [Phase(ascending[::-1], parallel=False)]
    return LDLSchedule(
        elimination,
        _factor_schedule(elimination, factor_phases, cutting, by_row.col_ptr, rows),
        _solve_schedule(forward_phases, cutting, by_row.col_ptr, rows, forward_levels),
        _solve_schedule(backward_phases, cutting, L.col_ptr, columns, backward_levels),
        unrolled,
    )


@dataclass(frozen=True)
class Cutting:
    """How items are cut into segments: the budget, and whether widths suit unrolled loops."""

    budget: int
    unrolled: bool

    def widths(self, counts: IntArray) -> IntArray:
        """Cost of an item with each count of operands."""
        return unrolled_width(counts) if self.unrolled else counts


def _solve_schedule(
    phases: list[Phase], cutting: Cutting, ptr: IntArray, operands: IntArray, levels: IntArray
) -> SolveSchedule:
    items = np.concatenate([phase.items for phase in phases])
    breaks = np.cumsum([0] + [phase.items.size for phase in phases])
    widths = cutting.widths(np.diff(ptr)[items])
    bounds = optimal_segments(widths, cutting.budget, breaks=breaks[:-1])
    return SolveSchedule(
        items=items,
        padded=pad_operands(ptr, operands, items, bounds, unrolled=cutting.unrolled),
        parallel=_is_parallel(phases, breaks, bounds),
        barrier=np.isin(bounds[1:], breaks),
        levels=int(levels.max(initial=-1)) + 1,
    )


def _pair_widths(elimination: Elimination) -> IntArray:
    """Largest number of updates of any entry of each column."""
    counts = np.append(np.diff(elimination.updates.ptr), 0)
    ptr = elimination.L_pattern.col_ptr
    widths = np.maximum.reduceat(counts, np.minimum(ptr[:-1], counts.size - 1))
    return np.where(np.diff(ptr) > 0, widths, 0)


def _factor_schedule(
    elimination: Elimination,
    phases: list[Phase],
    cutting: Cutting,
    row_ptr: IntArray,
    rows: IntArray,
) -> FactorSchedule:
    L, updates = elimination.L_pattern, elimination.updates
    items = np.concatenate([phase.items for phase in phases])
    breaks = np.cumsum([0] + [phase.items.size for phase in phases])
    n_entries = L.col_counts[items]
    # A column without entries still costs its pivot: weight one.
    widths = cutting.widths(_pair_widths(elimination)[items])
    bounds = optimal_segments(widths, cutting.budget, np.maximum(n_entries, 1), breaks[:-1])
    entry_ptr = np.concatenate([[0], np.cumsum(n_entries)]).astype(np.int32)
    first = np.repeat(L.col_ptr[items] - entry_ptr[:-1], n_entries)
    entries = (np.arange(L.nnz) + first).astype(np.int32)
    pairs = np.stack([updates.left, updates.right], axis=1)
    return FactorSchedule(
        items=items,
        entries=entries,
        entry_ptr=entry_ptr,
        rows=pad_operands(row_ptr, rows, items, bounds, unrolled=cutting.unrolled),
        pairs=pad_operands(
            updates.ptr, pairs, entries, entry_ptr[bounds], unrolled=cutting.unrolled
        ),
        parallel=_is_parallel(phases, breaks, bounds),
        barrier=np.isin(bounds[1:], breaks),
    )


def _is_parallel(phases: list[Phase], breaks: IntArray, bounds: IntArray) -> IntArray:
    phase_of = np.searchsorted(breaks, bounds[:-1], side="right") - 1
    return np.array([phases[p].parallel for p in phase_of], dtype=bool)
