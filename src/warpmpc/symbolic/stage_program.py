"""A stage-wise elimination as a short list of stage templates, each repeated over a run of stages.

Reads: the KKT pattern and stage labels.  Produces: `StageProgram`, from which code for one
stage is generated and looped over a run.  Stages are eliminated in ascending or in descending order
of their labels, whichever fills less.

Program order: nodes in elimination order; entries of L column by column, first those inside the
stage, then those that reach the next stage; values of K column by column, the diagonal first.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import groupby, pairwise

import numpy as np

from warpmpc._errors import PatternError
from warpmpc.symbolic.elimination import Elimination, eliminate
from warpmpc.symbolic.kkt import KKTPattern
from warpmpc.symbolic.pattern import IntArray
from warpmpc.symbolic.program import Program
from warpmpc.symbolic.safe_ordering import safe_stagewise
from warpmpc.symbolic.stage_blocks import find_stage_blocks

Pair = tuple[int, int]


@dataclass(frozen=True)
class StageTemplate:
    """Elimination of one stage; nodes are numbered in the order in which they are eliminated.

    Attributes:
        is_row: Whether a node is a multiplier row (else a variable).
        slots: Position of a node among those that columns of the stage before change (its
            frontier, in the order of K); -1 for all others.
        columns: Targets of each node's entries of L: a later node of the stage, or ``~slot`` for a
            node of the next stage.
        in_K: Whether each of these entries is an entry of K (else fill).
    """

    is_row: tuple[bool, ...]
    slots: tuple[int, ...]
    columns: tuple[tuple[int, ...], ...]
    in_K: tuple[tuple[bool, ...], ...]

    @property
    def n_nodes(self) -> int:
        """Nodes of the stage."""
        return len(self.is_row)

    @property
    def n_L(self) -> int:
        """Entries of L in the columns of the stage."""
        return sum(len(column) for column in self.columns)

    @property
    def n_K(self) -> int:
        """Values of K in the columns of the stage, diagonals included."""
        return self.n_nodes + sum(sum(column) for column in self.in_K)

    @property
    def multiply_adds(self) -> int:
        """Of the elimination."""
        return sum(len(column) * (len(column) + 1) // 2 for column in self.columns)

    def is_leaf(self, node: int) -> bool:
        """Whether a row is eliminated before anything has changed it: its pivot is -1/rho."""
        untouched = not any(node in column for column in self.columns)
        return self.is_row[node] and untouched and self.slots[node] < 0

    def leaving(self) -> set[int]:
        """Slots of the nodes of the next stage that this stage changes."""
        return {~target for column in self.columns for target in column if target < 0}

    def leaving_pairs(self) -> set[Pair]:
        """Pairs of these slots that it couples; the larger one first."""
        pairs: set[Pair] = set()
        for column in self.columns:
            ahead = sorted(~target for target in column if target < 0)
            pairs |= {(high, low) for high in ahead for low in ahead if low <= high}
        return pairs


@dataclass(frozen=True)
class StageRun:
    """`count` consecutive stages with one template, and where the first of them starts."""

    template: StageTemplate
    count: int
    node: int
    L: int
    K: int


@dataclass(frozen=True, eq=False)
class StageProgram(Program):
    """The whole elimination in program order.

    Attributes:
        runs: Templates in order.
        L_order: Position in `elimination` of each entry of L.
    """

    runs: tuple[StageRun, ...]
    L_order: IntArray

    @property
    def carried(self) -> tuple[int, ...]:
        """All slots through which some stage changes the next one."""
        return tuple(sorted(set().union(*(run.template.leaving() for run in self.runs))))

    @property
    def carried_pairs(self) -> tuple[Pair, ...]:
        """Pairs of slots that some stage couples in the next one."""
        return tuple(sorted(set().union(*(run.template.leaving_pairs() for run in self.runs))))

    @property
    def code_size(self) -> int:
        """Multiply-adds of straight-line code for all runs: elimination and both solves."""
        return sum(run.template.multiply_adds + 2 * run.template.n_L for run in self.runs)


def build_stage_program(kkt: KKTPattern, stages: IntArray, weak: IntArray) -> StageProgram:
    """Orders by stages in the better direction and finds the templates.

    Args:
        kkt: Pattern of K.
        stages: Stage of each variable, then of each row; rows and cost may couple a stage with
            the next one only.
        weak: Variables without a weight of their own; see `safe_ordering`.
    """
    candidates = []
    for labels in (stages, -stages):
        elimination = eliminate(kkt.K_pattern, safe_stagewise(kkt, labels, weak))
        candidates.append((elimination.nnz_L, elimination, labels))
    _, elimination, labels = min(candidates, key=lambda candidate: candidate[0])
    return _program(elimination, labels, kkt.n_vars)


def _program(elimination: Elimination, stages: IntArray, n_vars: int) -> StageProgram:
    first = find_stage_blocks(elimination, stages).first
    slots = _slots(elimination, first)
    L_order, columns = _columns(elimination, first, slots)
    counts = elimination.L_pattern.col_counts
    fill = elimination.K_to_L[L_order] < 0
    ptr = np.append(0, np.cumsum(counts))
    K_order = [
        np.append(elimination.K_to_D[j], elimination.K_to_L[L_order[a:b]][~fill[a:b]])
        for j, (a, b) in enumerate(pairwise(ptr.tolist()))
    ]
    K_ptr = np.append(0, np.cumsum([values.size for values in K_order]))
    templates = []
    for begin, end in pairwise(first.tolist()):
        span = range(begin, end)
        templates.append(
            StageTemplate(
                is_row=tuple(bool(elimination.perm[j] >= n_vars) for j in span),
                slots=tuple(slots[begin:end].tolist()),
                columns=tuple(tuple(columns[ptr[j] : ptr[j + 1]].tolist()) for j in span),
                in_K=tuple(tuple((~fill[ptr[j] : ptr[j + 1]]).tolist()) for j in span),
            )
        )
    runs, k = [], 0
    for template, group in groupby(templates):
        count, node = len(list(group)), int(first[k])
        runs.append(StageRun(template, count, node, int(ptr[node]), int(K_ptr[node])))
        k += count
    return StageProgram(
        elimination=elimination,
        K_order=np.concatenate(K_order).astype(np.int32),
        runs=tuple(runs),
        L_order=L_order,
    )


def _stage_of_node(elimination: Elimination, first: IntArray) -> IntArray:
    return np.searchsorted(first, np.arange(elimination.n), side="right") - 1


def _slots(elimination: Elimination, first: IntArray) -> IntArray:
    """Position of each node in the frontier of its stage, counted in the order of K; or -1."""
    L, stage = elimination.L_pattern, _stage_of_node(elimination, first)
    entered = np.unique(L.row_idx[stage[L.row_idx] > stage[L.col_idx]])
    entered = entered[np.lexsort((elimination.perm[entered], stage[entered]))]
    slots = np.full(elimination.n, -1)
    slots[entered] = np.arange(entered.size) - np.searchsorted(stage[entered], stage[entered])
    return slots


def _columns(
    elimination: Elimination, first: IntArray, slots: IntArray
) -> tuple[IntArray, IntArray]:
    """Entries of L in program order and their targets, relative to the stage of their column."""
    L, stage = elimination.L_pattern, _stage_of_node(elimination, first)
    ahead = stage[L.row_idx] - stage[L.col_idx]
    if np.any(ahead > 1):
        raise PatternError(
            "The stages couple beyond their neighbours: some row or cost term joins stages more "
            'than one apart.  Check `stages`, or use engine="sparse", which takes any pattern.'
        )
    name = np.where(ahead == 0, L.row_idx - first[stage[L.col_idx]], slots[L.row_idx])
    L_order = np.lexsort((name, ahead, L.col_idx)).astype(np.int32)
    return L_order, np.where(ahead == 0, name, ~name)[L_order]
