"""A stage-wise elimination as a short list of stage templates, each repeated over a run of stages.

Reads: the KKT pattern and stage labels.  Produces: `StageElimination`, from which code for one
stage is generated and looped over a run.  Stages are eliminated in ascending or in descending order
of their labels, whichever fills less (one chain), or from both ends to the middle (two chains, see
`symbolic.stage_elimination`).

Storage order: nodes in elimination order; entries of L column by column, first those inside the
stage, then those that reach the next stage; values of K column by column, the diagonal first.

Repeating structure of a stage-wise elimination.

Reads: an `Elimination` and a stage label per node of K.  Produces: runs of stages whose columns of
L are equal up to a shift, and the frontier (the nodes that carry values) across each boundary.
Code for one stage of a run can be looped over the run.

Orders of elimination by stages: from one end of the horizon, or from both ends to its middle.

Reads: the KKT pattern and stage labels.  Produces: for each node the position of its stage in the
order.  Of a two-sided order the first half of the stages is ascending, the second half descending,
and the middle stage is last.  The halves do not touch, so they can be eliminated at the same time.

A row that couples two stages may count to either of them.  That decides what a half hands on to the
next stage, and so the fill: rows, if they count to the stage nearer to the middle, else variables.
The halves are mirror images: what is an early stage for one is a late one for the other.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

from warpmpc._errors import PatternError
from warpmpc.symbolic.derivatives.stage_model import RowKind
from warpmpc.symbolic.elimination import Elimination, StoredElimination, eliminate
from warpmpc.symbolic.float32_ordering import RepresentativeSystem, safe_stagewise
from warpmpc.symbolic.kkt import KKTPattern
from warpmpc.symbolic.pattern import IntArray

LEAST_STAGES = 3


# Fill that handing on rows is worth: in float32, where equalities have a large rho, handing on
# variables costs two digits.
_WORTH = 1.25


# Of a solve in float32.  Orders that control well have less than 1e-5, others more than 1e-4.
_LARGEST_ERROR = 2e-5


# Half a digit is not worth more fill.
_NEARLY_LEAST = 3.0


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
        joins: Like `slots`, for the other chain where it ends in this stage; else empty.
    """

    is_row: tuple[bool, ...]
    slots: tuple[int, ...]
    columns: tuple[tuple[int, ...], ...]
    in_K: tuple[tuple[bool, ...], ...]
    joins: tuple[int, ...] = ()

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
        entered = self.slots[node] >= 0 or (bool(self.joins) and self.joins[node] >= 0)
        return self.is_row[node] and untouched and not entered

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


Chain = tuple[StageRun, ...]


@dataclass(frozen=True, eq=False)
class StageElimination(StoredElimination):
    """The whole elimination in program order.

    Attributes:
        chains: Runs of stages that change one another in order.  One chain, or two of which the
            second ends with a run of one stage that the last stage of the first changes as well;
            else they do not touch and may be walked at the same time.
        L_order: Position in `elimination` of each entry of L.
    """

    chains: tuple[Chain, ...]
    L_order: IntArray

    @property
    def runs(self) -> Chain:
        """Runs of all chains in program order."""
        return tuple(run for chain in self.chains for run in chain)

    @property
    def sides(self) -> int:
        """How many chains there are."""
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
        """Multiply-adds of straight-line code for all runs: elimination and both solves."""
        return sum(run.template.multiply_adds + 2 * run.template.n_L for run in self.runs)


def build_stage_elimination(
    kkt: KKTPattern,
    stages: IntArray,
    light: IntArray,
    representative: RepresentativeSystem | None = None,
) -> StageElimination:
    """Orders by stages in the better direction and finds the templates.

    Args:
        kkt: Pattern of K.
        stages: Stage of each variable, then of each row; rows and cost may couple a stage with
            the next one only.
        light: Variables without a weight of their own; see `safe_ordering`.
        representative: Numbers of K: not all light variables wait if float32 does not need it.
    """
    return _best(kkt, one_sided_orders(stages), light, representative)


def build_two_sided_elimination(
    kkt: KKTPattern,
    stages: IntArray,
    light: IntArray,
    representative: RepresentativeSystem | None = None,
) -> StageElimination:
    """Orders by stages from both ends to the middle: two chains.

    Args:
        kkt: Pattern of K.
        stages: As in `build_stage_elimination`.
        light: Likewise.
        representative: Likewise.
    """
    return _best(kkt, two_sided_orders(kkt, stages), light, representative)


def stage_kinds(
    program: StageElimination, run: StageRun, kinds: Sequence[RowKind]
) -> list[RowKind]:
    """Kind of each node of a run's stages; `UNKNOWN` where they differ, and for variables.

    Args:
        program: The elimination.
        run: Stages with one template.
        kinds: Of the rows of the problem, or nothing.
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
        positions: Of the stage of each node of K; no position is left out.
        split: How many stages the first of two halves has; 0: there is one chain only.
        handicap: Factor on the fill when orders are compared.
    """

    positions: IntArray
    split: int = 0
    handicap: float = 1.0

    @property
    def following(self) -> IntArray:
        """Which stage each stage changes: the next one; both halves change the last."""
        last = int(self.positions.max(initial=0))
        following = np.arange(1, last + 2)
        if self.split:
            following[self.split - 1] = last
        return following

    def couples_neighbours(self, kkt: KKTPattern) -> bool:
        """Whether no entry of K joins stages that are not neighbours."""
        K = kkt.K_pattern
        first, second = self.positions[K.row_idx], self.positions[K.col_idx]
        low, high = np.minimum(first, second), np.maximum(first, second)
        return bool(np.all((low == high) | (self.following[low] == high)))


def one_sided_orders(stages: IntArray) -> list[StageOrder]:
    """Ascending and descending."""
    positions = np.unique(stages, return_inverse=True)[1]
    return [StageOrder(positions), StageOrder(positions.max(initial=0) - positions)]


def two_sided_orders(kkt: KKTPattern, stages: IntArray) -> list[StageOrder]:
    """From both ends, handing on rows or variables.

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


def _best(
    kkt: KKTPattern,
    orders: list[StageOrder],
    light: IntArray,
    representative: RepresentativeSystem | None,
) -> StageElimination:
    """The program with least fill, of the orders that couple neighbours only and are accurate."""
    fitting = [order for order in orders if order.couples_neighbours(kkt)]
    if not fitting:
        raise PatternError(
            "The stages couple beyond their neighbours: some row or cost term joins stages more "
            'than one apart.  Check `stages`, or use engine="sparse", which takes any pattern.'
        )
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


def _weighted(candidate: tuple[Elimination, StageOrder]) -> float:
    return candidate[1].handicap * candidate[0].nnz_L


def _accurate(
    found: list[tuple[Elimination, StageOrder]],
    safe: list[tuple[Elimination, StageOrder]],
    representative: RepresentativeSystem,
) -> tuple[Elimination, StageOrder]:
    """The least fill that float32 bears; else with nearly the least error, else that is safe."""
    errors: list[float] = []
    by_fill = sorted(found, key=_weighted)  # of equal fill, the one where more variables wait
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
    """For each chain, the position of each node among those of its stage that the chain enters.

    Counted in the order of K, -1 for all others; ``[2, nodes]``.
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
    """Entries of L in program order and their targets, relative to the stage of their column."""
    L, stage = elimination.L_pattern, _stage_of_node(elimination, first)
    inside = stage[L.row_idx] == stage[L.col_idx]
    chain = (stage[L.col_idx] >= split).astype(int) if split else 0
    name = np.where(inside, L.row_idx - first[stage[L.col_idx]], slots[chain, L.row_idx])
    L_order = np.lexsort((name, ~inside, L.col_idx)).astype(np.int32)
    return L_order, np.where(inside, name, ~name)[L_order]


def _meeting(ascending: IntArray, descending: IntArray, handicap: float) -> StageOrder | None:
    """Order from labels of the two halves; None if one of them is left without a stage."""
    last = int(max(ascending.max(), descending.max()))
    middle = last // 2
    is_first, is_second = ascending < middle, descending > middle
    if not is_first.any() or not is_second.any():
        return None
    second = np.where(is_second, middle + last - descending, last)
    labels, positions = np.unique(np.where(is_first, ascending, second), return_inverse=True)
    return StageOrder(positions, int(np.count_nonzero(labels < middle)), handicap)


def _with_latest_rows(kkt: KKTPattern, labels: IntArray) -> IntArray:
    """Every row in the latest stage of its variables; one without entries keeps its label."""
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
