"""Distribution of an MPC problem over the 32 lanes of a warp, with one pattern for all lanes.

Reads: an `MPCProblem` with its `Assembly`.  Produces: `LaneLayout`, which maps every variable and
    row
to a lane and a node of the shared pattern, and every entry of K to an entry of that pattern.

Lane i owns some consecutive stages.  Variables of its first stage that the previous stage is
coupled to are *separators*; all other nodes are *interior*.  Without the separators, lanes are
independent. Stages may differ: the shared pattern is the union over all lanes, and entries that a
lane does not have are zero there.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from warpmpc.symbolic.derivatives.assembly import Assembly
from warpmpc.symbolic.derivatives.stage_model import RowKind

LANES = 32


class Node(NamedTuple):
    """A node of the pattern that lanes share.

    Attributes:
        stage: Stage within the lane; the number after the last one stands for the separators of the
            next lane.
        is_row: Whether it is a row and not a variable.
        index: Place among the variables, or the rows, of the stage.
    """

    stage: int
    is_row: bool
    index: int  # pyright: ignore[reportIncompatibleMethodOverride]


Pair = tuple[Node, Node]


class RowSlot(NamedTuple):
    """Properties that rows of different lanes share if they are one node.

    Attributes:
        kind: Which bounds the rows have.
        soft: Whether the rows are soft.
    """

    kind: RowKind
    soft: bool


def pair(a: Node, b: Node) -> Pair:
    """An entry of a symmetric pattern."""
    return (a, b) if a <= b else (b, a)


class LaneLayout:
    """Which lane owns which stages, and where everything is in the shared pattern.

    Attributes:
        per_lane: Stages of a lane.
        n_lanes: Lanes with stages; the last one may have fewer.
        z_sizes: Most variables of each stage of a lane.
        rows: For each stage of a lane, the kinds of its rows.
        separators: Variables of the first stage that the previous stage is coupled to.
        edges: Off-diagonal entries of the shared pattern.
    """

    def __init__(self, assembly: Assembly, kinds: Sequence[RowKind], n_lanes: int = LANES):
        """Assigns all nodes.

        Args:
            assembly: Assembly of the problem.
            kinds: Kinds of all rows.
            n_lanes: Lanes of a warp.
        """
        self.assembly, self.problem = assembly, assembly.problem
        count = self.problem.horizon + 1
        self.per_lane = -(-count // n_lanes)
        self.n_lanes = -(-count // self.per_lane)
        sizes = np.diff(self.problem.z_offset)
        self.z_sizes = [int(sizes[s :: self.per_lane].max()) for s in range(self.per_lane)]
        self._row_slots(kinds)
        self.separators = self._separators()
        self.edges = self._edges()

    def place(self, k: int) -> tuple[int, int]:
        """Lane of a stage of the problem, and its place among the stages of the lane."""
        return divmod(k, self.per_lane)

    @cached_property
    def var_nodes(self) -> list[tuple[int, Node]]:
        """Lane and node of each variable."""
        found = []
        for k in range(self.problem.horizon + 1):
            lane, s = self.place(k)
            size = int(self.problem.z_offset[k + 1] - self.problem.z_offset[k])
            found += [(lane, Node(s, False, i)) for i in range(size)]
        return found

    @cached_property
    def row_nodes(self) -> list[tuple[int, Node]]:
        """Lane and node of each row."""
        return [
            (self.place(int(k))[0], Node(self.place(int(k))[1], True, slot))
            for k, slot in zip(self.problem.con_stage, self._slot_of_row.tolist(), strict=True)
        ]

    def _row_slots(self, kinds: Sequence[RowKind]) -> None:
        """Rows of equal name and kind are one node; else rows of one kind with equal variables."""
        problem, soft = self.problem, set(self.assembly.soft_rows.tolist())
        self.rows: list[list[RowSlot]] = [[] for _ in range(self.per_lane)]
        self._slot_of_row = np.zeros(problem.n_cons, dtype=np.int64)
        marks: list[list[set[object]]] = [[] for _ in range(self.per_lane)]
        patterns = self._row_patterns()
        # The most common stages come first, because they determine the slots.
        often = np.bincount(problem.group_of)
        for k in sorted(range(problem.horizon + 1), key=lambda k: -often[problem.group_of[k]]):
            s, first = self.place(k)[1], int(problem.g_offset[k])
            free = set(range(len(self.rows[s])))
            for i, name in enumerate(problem.stages[k].row_names):
                slot = RowSlot(kinds[first + i], first + i in soft)
                signs = ((name, slot), (patterns[first + i], slot))
                at = next((j for sign in signs for j in sorted(free) if sign in marks[s][j]), None)
                if at is None:
                    at = len(self.rows[s])
                    self.rows[s].append(slot)
                    marks[s].append(set())
                free.discard(at)
                marks[s][at].update(signs)
                self._slot_of_row[first + i] = at

    def _row_patterns(self) -> list[tuple[int, ...]]:
        """Variables of each row, relative to the first one of its stage."""
        A, problem = self.assembly.A_pattern, self.problem
        found: list[list[int]] = [[] for _ in range(problem.n_cons)]
        for row, col in zip(A.row_idx.tolist(), A.col_idx.tolist(), strict=True):
            found[row].append(col - int(problem.z_offset[problem.con_stage[row]]))
        return [tuple(sorted(row)) for row in found]

    @cached_property
    def couplings(self) -> list[tuple[int, Node, Node]]:
        """Lane and nodes of all entries of P and of A; nodes of the next lane have its stage."""
        P, A = self.assembly.P_pattern, self.assembly.A_pattern
        nodes = self.var_nodes
        pairs = [(nodes[i], nodes[j]) for i, j in zip(P.row_idx, P.col_idx, strict=True)]
        pairs += [(self.row_nodes[i], nodes[j]) for i, j in zip(A.row_idx, A.col_idx, strict=True)]
        return [self._coupling(a, b) for a, b in pairs]

    def _coupling(self, a: tuple[int, Node], b: tuple[int, Node]) -> tuple[int, Node, Node]:
        if a[0] == b[0]:
            return a[0], *pair(a[1], b[1])
        (lane, first), (_, second) = sorted((a, b), key=lambda node: node[0])
        ahead = Node(self.per_lane + second.stage, second.is_row, second.index)
        return lane, *pair(first, ahead)

    def _separators(self) -> list[Node]:
        first = {b for _, _, b in self.couplings if b.stage >= self.per_lane}
        return sorted(Node(0, False, node.index) for node in first)

    def ahead(self, node: Node) -> Node:
        """A separator as the previous lane addresses it."""
        return Node(self.per_lane, False, node.index)

    def _edges(self) -> set[Pair]:
        return {(a, b) for _, a, b in self.couplings if a != b}

    @cached_property
    def interior(self) -> list[Node]:
        """All nodes of a lane but its separators."""
        nodes = []
        for s, (n_z, rows) in enumerate(zip(self.z_sizes, self.rows, strict=True)):
            nodes += [Node(s, False, i) for i in range(n_z)]
            nodes += [Node(s, True, i) for i in range(len(rows))]
        return [node for node in nodes if node not in set(self.separators)]

    def row_slot(self, node: Node) -> RowSlot:
        """Kind of a row, and whether it is soft."""
        return self.rows[node.stage][node.index]


@dataclass(frozen=True, eq=False)
class LaneElimination:
    """Elimination of the interior of a lane.

    Attributes:
        order: Interior nodes in the order of their elimination.
        columns: For each of them, the nodes that it changes: later interior ones, then separators
            of the lane, then those of the next lane.
        n_L: Entries of L inside the interior; other entries are not stored.
    """

    order: list[Node]
    columns: list[list[Node]]
    n_L: int


def eliminate_lane(layout: LaneLayout) -> LaneElimination:
    """Eliminates stage by stage; within a stage the node with the fewest neighbours, rows first."""
    beyond = [*layout.separators, *map(layout.ahead, layout.separators)]
    near: dict[Node, set[Node]] = {node: set() for node in (*layout.interior, *beyond)}
    for a, b in layout.edges:
        near[a].add(b)
        near[b].add(a)
    inside, last = set(layout.interior), {node: i for i, node in enumerate(beyond)}
    order: list[Node] = []
    columns: list[list[Node]] = []
    for s in range(layout.per_lane):
        todo = {node for node in inside if node.stage == s}
        while todo:
            best = min(todo, key=lambda c: (len(near[c] & inside), not c.is_row, c.index))
            todo.remove(best)
            order.append(best)
            columns.append(sorted(near[best], key=lambda c: (c in last, last.get(c, 0), c)))
            for other in near[best]:
                near[other] |= near[best] - {other}
                near[other].discard(best)
            inside.discard(best)
            del near[best]
    place = {node: i for i, node in enumerate(order)}
    columns = [sorted(c, key=lambda n: place.get(n, len(order) + last.get(n, 0))) for c in columns]
    n_L = sum(node in place for column in columns for node in column)
    return LaneElimination(order, columns, n_L)
