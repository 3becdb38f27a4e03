"""Both triangular solves as one stream whose unknowns fit into a small window.

Reads: an `Elimination`.  Produces: `WindowStream`: in which order the factor is consumed, and
which slot of a small scratch memory holds each unknown while it is still needed.  Order and slots
depend on the pattern alone, so a kernel fetches the factor far ahead of its use and never looks an
unknown up in device memory.  The factor is one list of rows: entries of L, then inverse pivots.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass

import numpy as np

from warpmpc.engines.ldl.schedule import unrolled_width
from warpmpc.symbolic.elimination import Elimination
from warpmpc.symbolic.pattern import IntArray, SparsePattern
from warpmpc.symbolic.segments import optimal_segments

BLOCK = 32  # rows among which the order may change
CHUNK = 8  # steps (or items) per fetch, and the most that a kernel unrolls


@dataclass(frozen=True, eq=False)
class Sweep:
    """One triangular solve as a flat list of steps; an item (row of L) takes a run of steps.

    Items take 1, 2, 4 or a multiple of 8 steps and start at a multiple of that, so that the steps
    of one batch lie in one chunk.  The first step of a forward item is its inverse pivot.

    Attributes:
        segments: Rows of (items, steps per item, first step), items in order.
        items: Node and slot of each item; whole chunks, and one more, of copies of the last item.
        rows: Row of the factor of each step, ``[chunks, CHUNK]``; -1 pads.
        slots: Slot of the unknown of each step, ``[chunks, CHUNK]``.
        brings: For each chunk of steps, whether the next chunk of items starts in it.
    """

    segments: IntArray
    items: IntArray
    rows: IntArray
    slots: IntArray
    brings: IntArray

    @property
    def padded_share(self) -> float:
        """Share of steps that are padding."""
        return float((self.rows < 0).mean())


@dataclass(frozen=True, eq=False)
class WindowStream:
    """Forward and backward sweep and the size of the window.

    The window has two slots beyond the live unknowns: slot `zero` holds zero and is read by padded
    steps, the last one receives unknowns that are not needed again.
    """

    forward: Sweep
    backward: Sweep
    zero: int

    @property
    def n_slots(self) -> int:
        """Slots of the window in all."""
        return self.zero + 2


@dataclass(frozen=True, eq=False)
class _Rows:
    """Operands of the rows of a sweep: `entries` of L and the `nodes` they multiply, by `ptr`."""

    order: IntArray
    ptr: IntArray
    entries: IntArray
    nodes: IntArray


def build_window(elimination: Elimination, segments: int) -> WindowStream:
    """Streams the solves of one elimination; the caller decides whether the window fits.

    Args:
        elimination: The symbolic factorisation.
        segments: Budget of segments per sweep; each is padded to its own widest row.
    """
    L, (by_row, position) = elimination.L_pattern, elimination.L_rows
    forward_order, backward_order = _group_by_width(by_row, L)
    forward = _Rows(forward_order, by_row.col_ptr, position, by_row.row_idx)
    backward = _Rows(backward_order, L.col_ptr, np.arange(L.nnz), L.row_idx)
    forward_slots, n_forward = _assign_slots(forward)
    backward_slots, n_backward = _assign_slots(backward)
    zero = max(n_forward, n_backward)
    pivots = elimination.nnz_L + elimination.perm
    return WindowStream(
        _sweep(forward, forward_slots, zero, elimination.perm, segments, pivots),
        _sweep(backward, backward_slots, zero, elimination.perm, segments, None),
        zero,
    )


def _group_by_width(by_row: SparsePattern, L: SparsePattern) -> tuple[IntArray, IntArray]:
    """Order of the forward and the backward sweep: blocks of rows, by level and width inside.

    Elimination orders alternate between rows with few and with many operands.  Independent rows of
    one block are brought together so that segments get longer, at the price of a few slots.  The
    backward sweep takes levels in reverse, so rows that no other row needs come last.
    """
    level = np.zeros(L.n_cols, dtype=np.int64)
    for row in range(L.n_cols):
        operands = by_row.rows_of(row)
        inside = operands[operands >= row - row % BLOCK]
        level[row] = level[inside].max(initial=-1) + 1
    block = np.arange(L.n_cols) // BLOCK
    forward = np.lexsort((by_row.col_counts, level, block))
    backward = np.lexsort((L.col_counts, -level, -block))
    return forward, backward


def _assign_slots(rows: _Rows) -> tuple[IntArray, int]:
    """Slot of each unknown from its computation to its last use (-1: never used), and their number.

    First fit on intervals: the lowest free slot, which is optimal in number.
    """
    n = rows.order.size
    time = np.empty(n, dtype=np.int64)
    time[rows.order] = np.arange(n)
    last_use = np.full(n, -1, dtype=np.int64)
    reader = np.repeat(np.arange(n), np.diff(rows.ptr))
    np.maximum.at(last_use, rows.nodes, time[reader])
    slots = np.full(n, -1, dtype=np.int64)
    released: list[list[int]] = [[] for _ in range(n)]
    free: list[int] = []
    n_slots = 0
    for now, node in enumerate(rows.order.tolist()):
        # A row reads its operands before it is written, so slots released now are free for it.
        for slot in released[now]:
            heapq.heappush(free, slot)
        if last_use[node] < 0:
            continue
        if not free:
            heapq.heappush(free, n_slots)
            n_slots += 1
        slots[node] = heapq.heappop(free)
        released[last_use[node]].append(int(slots[node]))
    return slots, n_slots


def _sweep(
    rows: _Rows, slots: IntArray, zero: int, perm: IntArray, budget: int, pivots: IntArray | None
) -> Sweep:
    """Lays the rows of a sweep out as steps; `pivots` (forward) come first in each row."""
    lead = 0 if pivots is None else 1
    counts = np.diff(rows.ptr)[rows.order] + lead
    widths = np.maximum(unrolled_width(counts), 1)
    bounds = optimal_segments(widths, budget)
    per_item = np.maximum.reduceat(widths, bounds[:-1])
    n_items = np.diff(bounds)
    starts = np.zeros(n_items.size, dtype=np.int64)
    end = 0
    for s, width in enumerate(per_item):
        starts[s] = end + -end % min(width, CHUNK)  # no batch straddles two chunks
        end = starts[s] + width * n_items[s]
    segment = np.repeat(np.arange(n_items.size), n_items)
    first = starts[segment] + (np.arange(rows.order.size) - bounds[segment]) * per_item[segment]
    n_steps = end + -end % CHUNK
    entry, where = np.full(n_steps, -1), np.full(n_steps, zero)
    n_operands = counts - lead
    inside = np.arange(n_operands.sum()) - np.repeat(np.cumsum(n_operands) - n_operands, n_operands)
    source = np.repeat(rows.ptr[rows.order], n_operands) + inside
    step = np.repeat(first + lead, n_operands) + inside
    entry[step], where[step] = rows.entries[source], slots[rows.nodes[source]]
    if pivots is not None:
        entry[first] = pivots[rows.order]
    target = np.where(slots[rows.order] >= 0, slots[rows.order], zero + 1)
    items = np.stack([perm[rows.order], target], axis=1)
    spare = -items.shape[0] % CHUNK
    return Sweep(
        segments=np.stack([n_items, per_item, starts], axis=1).astype(np.int32),
        # One item more than there are: kernels read the next item ahead.
        items=np.pad(items, ((0, spare + CHUNK), (0, 0)), mode="edge").astype(np.int32),
        rows=entry.reshape(-1, CHUNK).astype(np.int32),
        slots=where.reshape(-1, CHUNK).astype(np.int32),
        brings=_first_chunks(first, n_steps // CHUNK),
    )


def _first_chunks(starts: IntArray, n_chunks: int) -> IntArray:
    """Marks the chunks of steps in which every eighth item starts; never two in one chunk."""
    brings = np.zeros(n_chunks, dtype=np.int32)
    brings[starts[::CHUNK] // CHUNK] = 1
    return brings
