"""Optimal segmentation: consecutive items, each segment padded to its own widest item.

Reads: a work width per item.  Produces: the cut that minimises the sum of |segment| * max width
under a budget of segments, exactly, by dynamic programming.
"""

from __future__ import annotations

import numpy as np

from warpmpc._errors import SettingsError
from warpmpc.symbolic.pattern import IntArray


def optimal_segments(
    widths: IntArray,
    budget: int,
    weights: IntArray | None = None,
    breaks: IntArray | None = None,
) -> IntArray:
    """Boundaries ``[0, .., len(widths)]`` of the cheapest cut into at most `budget` segments.

    Args:
        widths: Non-negative work width of each item.
        budget: Number of segments allowed on top of the forced `breaks`.
        weights: Size of each item in ``|segment|`` (default one).
        breaks: Positions where a cut is forced.
    """
    widths = np.asarray(widths, dtype=np.int64)
    if budget < 1:
        raise SettingsError(f"The segment budget must be at least 1, got {budget}.")
    if not widths.size:
        return np.zeros(1, dtype=np.int32)
    weights = np.ones_like(widths) if weights is None else np.asarray(weights, dtype=np.int64)
    forced = np.zeros(widths.size, dtype=bool)
    if breaks is not None:
        forced[np.asarray(breaks, dtype=np.int64)] = True
    forced[0] = True
    # Some optimal cut lies only where the width changes: inside a run the cost is linear in the
    # position of the cut.  So runs of equal width become single items.
    starts = np.flatnonzero(forced | np.concatenate([[True], np.diff(widths) != 0]))
    run_weights = np.add.reduceat(weights, starts)
    cuts = _cheapest_cut(widths[starts], run_weights, forced[starts], budget)
    return np.append(starts, widths.size)[cuts].astype(np.int32)


def padded_work(widths: IntArray, bounds: IntArray, weights: IntArray | None = None) -> int:
    """The sum of |segment| * max width of a cut."""
    weights = np.ones_like(widths) if weights is None else weights
    if len(bounds) < 2:
        return 0
    size = np.add.reduceat(np.asarray(weights, dtype=np.int64), bounds[:-1])
    return int((size * np.maximum.reduceat(widths, bounds[:-1])).sum())


def _cheapest_cut(widths: IntArray, weights: IntArray, forced: IntArray, budget: int) -> list[int]:
    """Dynamic programme over end positions, all numbers of free cuts at once.

    ``best[j, k]`` is the cheapest cost of items before ``j`` with ``k`` cuts that were not forced.
    Possible starts of the last segment are kept in blocks that share the same maximum m up to ``j``
    (a stack with falling m); inside a block the best start does not depend on ``j`` because the
    cost is ``best[i, k or k - 1] - m * size(i) + m * size(j)``.
    """
    n_items, n_cuts = widths.size, min(budget, widths.size)
    # Memory traffic limits the programme, so small costs are kept in half the bytes.
    largest = max(int(weights.sum()), 1) * max(int(widths.max()), 1)
    dtype = np.int32 if largest < 1 << 28 else np.int64
    size = np.concatenate([[0], np.cumsum(weights)]).astype(dtype)
    best = np.full((n_items + 1, n_cuts), 2 * largest, dtype=dtype)
    origin = np.zeros((n_items + 1, n_cuts), dtype=np.int32)
    best[0, 0] = 0
    # Cost before a segment that starts at an item; a cut that is not forced uses up one.
    before = np.full((n_items, n_cuts), 2 * largest, dtype=dtype)
    block_first: list[int] = []
    block_width: list[int] = []
    block_cost = np.empty((n_items, n_cuts), dtype=dtype)
    block_start = np.empty((n_items, n_cuts), dtype=np.int32)
    every = np.arange(n_cuts)
    for item in range(n_items):
        first, width = item, int(widths[item])
        if forced[item]:
            block_first, block_width = [], []
            before[item] = best[item]
        else:
            before[item, 1:] = best[item, :-1]
        while block_width and block_width[-1] <= width:
            first = block_first.pop()
            block_width.pop()
        depth = len(block_first)
        cost = before[first : item + 1] - width * size[first : item + 1, None]
        choice = cost.argmin(axis=0)
        block_cost[depth] = cost[choice, every]
        block_start[depth] = first + choice
        block_first.append(first)
        block_width.append(width)
        through = np.array(block_width, dtype=dtype) * size[item + 1]
        ends = block_cost[: depth + 1] + through[:, None]
        choice = ends.argmin(axis=0)
        best[item + 1] = ends[choice, every]
        origin[item + 1] = block_start[choice, every]
    return _trace_back(best[-1], origin, forced)


def _trace_back(final: IntArray, origin: IntArray, forced: IntArray) -> list[int]:
    """Boundaries of the cheapest solution, fewest cuts first among equals."""
    k, at = int(final.argmin()), origin.shape[0] - 1
    cuts = [at]
    while at:
        at = int(origin[at, k])
        k -= 0 if forced[at] else 1
        cuts.append(at)
    return cuts[::-1]
