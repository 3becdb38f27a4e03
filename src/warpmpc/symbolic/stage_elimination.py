"""Elimination stage by stage: a short list of templates, each repeated over a run of stages.

Reads: the KKT pattern and a stage label per node of K.  Produces: a `StageElimination`, from which
code for one stage is generated that loops over a run of equal stages.

One-sided orders eliminate the stages in ascending or in descending order of their labels, whichever
fills less; the stages then form one chain.  Two-sided orders go from both ends of the horizon to
its middle: the first half of the stages ascends, the second half descends, and the middle stage
comes last.  The two halves do not touch, so they form two chains that can be walked at the same
time.

A row that couples two stages may count to either of them.  This decides what a half hands on to the
next stage, and so the fill: rows if they count to the stage nearer to the middle, else variables.
The halves are mirror images: an early stage of one is a late stage of the other.

In stored order, nodes stand in elimination order.  Entries of L follow column by column, first
those inside the stage, then those that reach the next stage.  Values of K follow column by column,
with the diagonal first.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

from warpmpc._errors import PatternError
from warpmpc.symbolic.derivatives.representative_kkt import RepresentativeSystem
from warpmpc.symbolic.derivatives.stage_model import RowKind
from warpmpc.symbolic.elimination import Elimination, StoredElimination, eliminate
from warpmpc.symbolic.ordering import safe_stagewise
from warpmpc.symbolic.pattern import IntArray, KKTPattern

LEAST_STAGES = 3
# Additional fill that handing on rows is worth: in float32, where equalities have a large rho,
# handing on variables costs two digits.
_WORTH = 1.25
# Error of a solve in float32.  Orders that control well stay below 1e-5, others exceed 1e-4.
_LARGEST_ERROR = 2e-5
# Ratio of errors up to which less fill is preferred: about half a digit.
_NEARLY_LEAST = 3.0
Pair = tuple[int, int]


@dataclass(frozen=True)
class StageTemplate:
    """The elimination of one stage; nodes are numbered in the order of elimination.

    Attributes:
        is_row: Whether each node is a row (else it is a variable).
        slots: Position of each node among the nodes that columns of the stage before change (the
            frontier, in the order of K), and -1 for all others.
        columns: Targets of the entries of L of each node: a later node of the stage, or ``~slot``
            for a node of the next stage.
        in_K: Whether each of these entries is an entry of K (else it is fill).
        joins: Like `slots`, for the other chain if it ends in this stage; else empty.
    """

    is_row: tuple[bool, ...]
    slots: tuple[int, ...]
    columns: tuple[tuple[int, ...], ...]
    in_K: tuple[tuple[bool, ...], ...]
    joins: tuple[int, ...] = ()

    @property
    def n_nodes(self) -> int:
        """Number of nodes of the stage."""
        return len(self.is_row)

    @property
    def n_L(self) -> int:
        """Number of entries of L in the columns of the stage."""
        return sum(len(column) for column in self.columns)

    @property
    def n_K(self) -> int:
        """Number of values of K in the columns of the stage, diagonals included."""
        return self.n_nodes + sum(sum(column) for column in self.in_K)

    @property
    def multiply_adds(self) -> int:
        """Number of multiply-adds of the elimination."""
        return sum(len(column) * (len(column) + 1) // 2 for column in self.columns)

    def is_leaf(self, node: int) -> bool:
        """Whether a node is a row that no earlier column changes, so that its pivot is -1/rho."""
        untouched = not any(node in column for column in self.columns)
        entered = self.slots[node] >= 0 or (bool(self.joins) and self.joins[node] >= 0)
        return self.is_row[node] and untouched and not entered

    def leaving(self) -> set[int]:
        """Slots of the nodes of the next stage that this stage changes."""
        return {~target for column in self.columns for target in column if target < 0}

    def leaving_pairs(self) -> set[Pair]:
        """Pairs of slots of the next stage that this stage couples, the larger one first."""
        pairs: set[Pair] = set()
        for column in self.columns:
            ahead = sorted(~target for target in column if target < 0)
            pairs |= {(high, low) for high in ahead for low in ahead if low <= high}
        return pairs


@dataclass(frozen=True)
class StageRun:
    """Consecutive stages with one template.

    Attributes:
        template: Elimination of each of the stages.
        count: Number of stages.
        node: First node of the first stage.
        L: First entry of L of the first stage.
        K: First value of K of the first stage.
    """

    template: StageTemplate
    count: int
    node: int
    L: int
    K: int


Chain = tuple[StageRun, ...]


@dataclass(frozen=True, eq=False)
class StageElimination(StoredElimination):
    """The whole elimination in stored order.

    Attributes:
        chains: One or two chains: runs of stages of which each changes the next one.  With two
            chains, the second one ends with a run of one stage that the last stage of the first
            chain changes as well.  Apart from that they do not touch and may be walked at the same
            time.
        L_order: Position in `elimination` of each entry of L.
    """

    chains: tuple[Chain, ...]
    L_order: IntArray

    @property
    def runs(self) -> Chain:
        """Runs of all chains in stored order."""
        return tuple(run for chain in self.chains for run in chain)

    @property
    def sides(self) -> int:
        """Number of chains."""
        return len(self.chains)

    @property
    def split(self) -> int:
        """First node of the last chain."""
        return self.chains[-1][0].node

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
        """Multiply-adds in the straight-line code for the elimination and both solves."""
        return sum(run.template.multiply_adds + 2 * run.template.n_L for run in self.runs)


def build_stage_elimination(
    kkt: KKTPattern,
    stages: IntArray,
    light: IntArray,
    representative: RepresentativeSystem | None = None,
) -> StageElimination:
    """Orders the stages in the better direction and finds the templates.

    Args:
        kkt: Pattern of K.
        stages: Stage of each variable, then of each row; rows and cost may couple a stage with
            the next one only.
        light: Variables without a weight of their own; see `symbolic.ordering`.
        representative: A system to try orders on, so that fewer light variables wait where
            float32 allows it.
    """
    return _best(kkt, one_sided_orders(stages), light, representative)


def build_two_sided_elimination(
    kkt: KKTPattern,
    stages: IntArray,
    light: IntArray,
    representative: RepresentativeSystem | None = None,
) -> StageElimination:
    """Orders the stages from both ends to the middle, which makes two chains.

    Args:
        kkt: Pattern of K.
        stages: As in `build_stage_elimination`.
        light: As in `build_stage_elimination`.
        representative: As in `build_stage_elimination`.
    """
    return _best(kkt, two_sided_orders(kkt, stages), light, representative)


def check_coupling(kkt: KKTPattern, stages: IntArray) -> None:
    """Raises if some entry of K joins stages that are not neighbours.

    Args:
        kkt: Pattern of K.
        stages: Stage of each variable, then of each row.
    """
    _fitting(kkt, one_sided_orders(stages))


def stage_kinds(
    program: StageElimination, run: StageRun, kinds: Sequence[RowKind]
) -> list[RowKind]:
    """Kind of each node of the stages of a run; `UNKNOWN` for variables and where stages differ.

    Args:
        program: The elimination.
        run: Stages with one template.
        kinds: Kinds of the rows of the problem, or an empty sequence.
    """
    size, n_vars = run.template.n_nodes, program.n_nodes - len(kinds)
    nodes = program.node_order[run.node : run.node + run.count * size].reshape(run.count, size)
    found = []
    for i in range(size):
        rows = nodes[:, i] - n_vars
        of_node = {kinds[row] for row in rows.tolist()} if kinds and rows.min() >= 0 else set()
        found.append(of_node.pop() if len(of_node) == 1 else RowKind.UNKNOWN)
    return found


@dataclass(frozen=True, eq=False)
class StageOrder:
    """One order of the stages.

    Attributes:
        positions: Position of the stage of each node of K; no position is left out.
        split: Number of stages in the first of two halves, or 0 for a single chain.
        handicap: Factor on the fill when orders are compared.
    """

    positions: IntArray
    split: int = 0
    handicap: float = 1.0

    @property
    def following(self) -> IntArray:
        """The stage that each stage changes: the next one, or the last one at the end of a half."""
        last = int(self.positions.max(initial=0))
        following = np.arange(1, last + 2)
        if self.split:
            following[self.split - 1] = last
        return following

    def couples_neighbours(self, kkt: KKTPattern) -> bool:
        """Whether all entries of K join neighbouring stages at most."""
        K = kkt.K_pattern
        first, second = self.positions[K.row_idx], self.positions[K.col_idx]
        low, high = np.minimum(first, second), np.maximum(first, second)
        return bool(np.all((low == high) | (self.following[low] == high)))


def one_sided_orders(stages: IntArray) -> list[StageOrder]:
    """The ascending and the descending order of the stages."""
    positions = np.unique(stages, return_inverse=True)[1]
    return [StageOrder(positions), StageOrder(positions.max(initial=0) - positions)]


def two_sided_orders(kkt: KKTPattern, stages: IntArray) -> list[StageOrder]:
    """Orders from both ends to the middle that hand on rows or variables.

    Args:
        kkt: Pattern of K.
        stages: Stage of each variable, then of each row.
    """
    labels = np.unique(stages, return_inverse=True)[1]
    last = int(labels.max(initial=0))
    if last + 1 < LEAST_STAGES:
        raise PatternError(
            f"Two sides need at least {LEAST_STAGES} stages, these are {last + 1}; use sides=1."
        )
    early, late = last - _with_latest_rows(kkt, last - labels), _with_latest_rows(kkt, labels)
    orders = [_meeting(late, early, 1.0), _meeting(early, late, _WORTH)]
    found = [order for order in orders if order is not None]
    if not found:
        raise PatternError("One half of the stages has nothing to eliminate; use sides=1.")
    return found


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
    """Finds runs of equal stages; there are none if stages are not eliminated one by one."""
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


def _best(
    kkt: KKTPattern,
    orders: list[StageOrder],
    light: IntArray,
    representative: RepresentativeSystem | None,
) -> StageElimination:
    """The elimination with the least fill among the orders that fit and are accurate enough."""
    fitting = _fitting(kkt, orders)
    waiting = [light] if representative is None else [light, *representative.fewer_light]
    found = [
        (eliminate(kkt.K_pattern, safe_stagewise(kkt, order.positions, some)), order)
        for some in waiting
        for order in fitting
    ]
    safe = found[: len(fitting)]
    elimination, order = (
        _accurate(found, safe, representative) if representative else min(safe, key=_weighted)
    )
    return _program(elimination, order, kkt.n_vars)


def _fitting(kkt: KKTPattern, orders: list[StageOrder]) -> list[StageOrder]:
    """The orders that couple neighbours only; if there is none, the stages are wrong."""
    fitting = [order for order in orders if order.couples_neighbours(kkt)]
    if not fitting:
        raise PatternError(
            "The stages couple beyond their neighbours: some row or cost term joins stages more "
            'than one apart.  Check `stages`, or use engine="sparse", which takes any pattern.'
        )
    return fitting


def _weighted(candidate: tuple[Elimination, StageOrder]) -> float:
    return candidate[1].handicap * candidate[0].nnz_L


def _accurate(
    found: list[tuple[Elimination, StageOrder]],
    safe: list[tuple[Elimination, StageOrder]],
    representative: RepresentativeSystem,
) -> tuple[Elimination, StageOrder]:
    """The elimination with the least fill whose float32 error is small enough.

    If there is none, it is the one with the least fill whose error is nearly the least.  If no
    error is known, it is the one with the least fill in which all light variables wait.
    """
    errors: list[float] = []
    by_fill = sorted(found, key=_weighted)  # where fill is equal, more variables should wait
    for candidate in by_fill:
        errors.append(representative.error(candidate[0]))
        if errors[-1] < _LARGEST_ERROR:
            return candidate
    least = min(errors)
    if least == np.inf:
        return min(safe, key=_weighted)
    return by_fill[next(i for i, error in enumerate(errors) if error <= _NEARLY_LEAST * least)]


def _program(elimination: Elimination, order: StageOrder, n_vars: int) -> StageElimination:
    first, split = find_stage_blocks(elimination, order.positions).first, order.split
    slots = _slots(elimination, first, split)
    L_order, columns = _columns(elimination, first, split, slots)
    counts = elimination.L_pattern.col_counts
    fill = elimination.K_to_L[L_order] < 0
    ptr = np.append(0, np.cumsum(counts))
    K_order = [
        np.append(elimination.K_to_D[j], elimination.K_to_L[L_order[a:b]][~fill[a:b]])
        for j, (a, b) in enumerate(pairwise(ptr.tolist()))
    ]
    K_ptr = np.append(0, np.cumsum([values.size for values in K_order]))
    n_stages = first.size - 1
    runs: list[StageRun] = []
    for k, (begin, end) in enumerate(pairwise(first.tolist())):
        joined, span = bool(split) and k == n_stages - 1, range(begin, end)
        template = StageTemplate(
            is_row=tuple(bool(elimination.perm[j] >= n_vars) for j in span),
            slots=tuple(slots[int(0 < split <= k), begin:end].tolist()),
            columns=tuple(tuple(columns[ptr[j] : ptr[j + 1]].tolist()) for j in span),
            in_K=tuple(tuple((~fill[ptr[j] : ptr[j + 1]]).tolist()) for j in span),
            joins=tuple(slots[0, begin:end].tolist()) if joined else (),
        )
        if runs and runs[-1].template == template and k != split and not joined:
            runs[-1] = replace(runs[-1], count=runs[-1].count + 1)
        else:
            runs.append(StageRun(template, 1, begin, int(ptr[begin]), int(K_ptr[begin])))
    at = sum(run.node < first[split] for run in runs)
    return StageElimination(
        elimination=elimination,
        K_order=np.concatenate(K_order).astype(np.int32),
        chains=(tuple(runs[:at]), tuple(runs[at:])) if split else (tuple(runs),),
        L_order=L_order,
    )


def _stage_of_node(elimination: Elimination, first: IntArray) -> IntArray:
    return np.searchsorted(first, np.arange(elimination.n), side="right") - 1


def _slots(elimination: Elimination, first: IntArray, split: int) -> IntArray:
    """For each chain, the position of each node among those of its stage that the chain changes.

    Positions count in the order of K and are -1 for all other nodes; the shape is ``[2, nodes]``.
    """
    L, stage = elimination.L_pattern, _stage_of_node(elimination, first)
    crosses = stage[L.row_idx] > stage[L.col_idx]
    slots = np.full((2, elimination.n), -1)
    for chain in range(2):
        of_chain = (stage[L.col_idx] >= split) == bool(chain) if split else chain == 0
        entered = np.unique(L.row_idx[crosses & of_chain])
        entered = entered[np.lexsort((elimination.perm[entered], stage[entered]))]
        begins = np.searchsorted(stage[entered], stage[entered])
        slots[chain, entered] = np.arange(entered.size) - begins
    return slots


def _columns(
    elimination: Elimination, first: IntArray, split: int, slots: IntArray
) -> tuple[IntArray, IntArray]:
    """Entries of L in stored order and their targets, relative to the stage of their column."""
    L, stage = elimination.L_pattern, _stage_of_node(elimination, first)
    inside = stage[L.row_idx] == stage[L.col_idx]
    chain = (stage[L.col_idx] >= split).astype(int) if split else 0
    name = np.where(inside, L.row_idx - first[stage[L.col_idx]], slots[chain, L.row_idx])
    L_order = np.lexsort((name, ~inside, L.col_idx)).astype(np.int32)
    return L_order, np.where(inside, name, ~name)[L_order]


def _meeting(ascending: IntArray, descending: IntArray, handicap: float) -> StageOrder | None:
    """The order from the labels of both halves, or None if one half has no stage."""
    last = int(max(ascending.max(), descending.max()))
    middle = last // 2
    is_first, is_second = ascending < middle, descending > middle
    if not is_first.any() or not is_second.any():
        return None
    second = np.where(is_second, middle + last - descending, last)
    labels, positions = np.unique(np.where(is_first, ascending, second), return_inverse=True)
    return StageOrder(positions, int(np.count_nonzero(labels < middle)), handicap)


def _with_latest_rows(kkt: KKTPattern, labels: IntArray) -> IntArray:
    """Labels with every row in the latest stage of its variables; empty rows keep theirs."""
    K, n = kkt.K_pattern, kkt.n_vars
    entry = (K.row_idx < n) & (K.col_idx >= n)
    found = np.where(np.isin(np.arange(K.n_cols), K.col_idx[entry]), -1, labels)
    np.maximum.at(found, K.col_idx[entry], labels[K.row_idx[entry]])
    return found


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
    """Columns of L and K of one stage, and the nodes that earlier stages change.

    All positions are relative to the start of the stage.

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
