"""Repeating structure of a stage-wise elimination.

Reads: an `Elimination` and a stage label per node of K.  Produces: runs of stages whose columns of
L are equal up to a shift, and the frontier (the nodes that carry values) across each boundary.
Code for one stage of a run can be looped over the run.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from warpmpc.symbolic.elimination import Elimination
from warpmpc.symbolic.pattern import IntArray


@dataclass(frozen=True, eq=False)
class StageBlocks:
    """How an elimination decomposes into stages.

    Attributes:
        labels: The stage labels, ascending.
        first: First column (elimination order) of each stage, and n; empty if the columns of some
            stage are not contiguous or not in stage order (as with AMD).
        runs: Half-open ranges of stage positions with identical elimination pattern.
        frontiers: For each boundary between consecutive stages, the columns behind it that are
            touched by columns before it.
    """

    labels: IntArray
    first: IntArray
    runs: list[tuple[int, int]]
    frontiers: list[IntArray]

    @property
    def longest_run(self) -> tuple[int, int]:
        """The run with most stages."""
        return max(self.runs, key=lambda run: run[1] - run[0], default=(0, 0))


def find_stage_blocks(elimination: Elimination, stages: IntArray) -> StageBlocks:
    """Finds runs of equal stages; no runs at all where stages are not eliminated one by one."""
    permuted = np.asarray(stages)[elimination.perm]
    labels = np.unique(permuted)
    if np.any(np.diff(permuted) < 0):
        return StageBlocks(labels, np.zeros(0, dtype=np.int32), [], [])
    first = np.append(np.searchsorted(permuted, labels), permuted.size).astype(np.int32)
    rank = _rank_in_stage(np.asarray(stages))[elimination.perm]
    signatures = [_signature(elimination, first, rank, k) for k in range(labels.size)]
    runs: list[tuple[int, int]] = []
    for k in range(labels.size):
        if runs and signatures[k] == signatures[runs[-1][0]]:
            runs[-1] = (runs[-1][0], k + 1)
        else:
            runs.append((k, k + 1))
    frontiers = [_frontier(elimination, int(boundary)) for boundary in first[1:-1]]
    return StageBlocks(labels, first, runs, frontiers)


def _rank_in_stage(stages: IntArray) -> IntArray:
    """Position of each node among the nodes of its stage, in the caller's order."""
    by_stage = np.argsort(stages, kind="stable")
    ordered = stages[by_stage]
    rank = np.empty(stages.size, dtype=np.int64)
    rank[by_stage] = np.arange(stages.size) - np.searchsorted(ordered, ordered)
    return rank


def _signature(
    elimination: Elimination, first: IntArray, rank: IntArray, k: int
) -> tuple[bytes, ...]:
    """Columns of L and K of one stage and what enters from before, relative to its start.

    Nodes of later stages are named by (stages ahead, rank in their stage): the terminal stage may
    eliminate the same states in another order without making the stage before it special.
    """
    L, begin, end = elimination.L_pattern, int(first[k]), int(first[k + 1])
    span = slice(L.col_ptr[begin], L.col_ptr[end])
    rows, in_K = L.row_idx[span].astype(np.int64), elimination.K_to_L[span] >= 0
    ahead = np.searchsorted(first, rows, side="right") - 1 - k
    name = np.where(ahead == 0, rows - begin, rank[rows])
    order = np.lexsort((name, ahead, L.col_idx[span]))
    entering = _frontier(elimination, begin) if k else np.zeros(0, dtype=np.int64)
    columns = (rank[begin:end], L.col_counts[begin:end])
    parts = (*columns, ahead[order], name[order], in_K[order], entering - begin)
    return tuple(np.asarray(part, dtype=np.int64).tobytes() for part in parts)


def _frontier(elimination: Elimination, boundary: int) -> IntArray:
    """Columns from `boundary` on that appear in columns before it."""
    rows = elimination.L_pattern.row_idx[: elimination.L_pattern.col_ptr[boundary]]
    return np.unique(rows[rows >= boundary])
