"""A stage-wise elimination as a short list of stage templates, each repeated over a run of stages.

Reads: the KKT pattern and stage labels.  Produces: `StageElimination`, from which code for one
stage is generated and looped over a run.  Stages are eliminated in ascending or in descending order
of their labels, whichever fills less (one chain), or from both ends to the middle (two chains, see
`symbolic.stage_sides`).

Storage order: nodes in elimination order; entries of L column by column, first those inside the
stage, then those that reach the next stage; values of K column by column, the diagonal first.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

from warpmpc._errors import PatternError
from warpmpc.symbolic.elimination import Elimination, eliminate
from warpmpc.symbolic.float32_accuracy import RepresentativeSystem
from warpmpc.symbolic.float32_ordering import safe_stagewise
from warpmpc.symbolic.kkt import KKTPattern
from warpmpc.symbolic.pattern import IntArray
from warpmpc.symbolic.stage_blocks import find_stage_blocks
from warpmpc.symbolic.stage_sides import StageOrder, one_sided_orders, two_sided_orders
from warpmpc.symbolic.storage_order import StoredElimination

Pair = tuple[int, int]
# Of a solve in float32.  Orders that control well have less than 1e-5, others more than 1e-4.
_LARGEST_ERROR = 2e-5
# Half a digit is not worth more fill.
_NEARLY_LEAST = 3.0


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
