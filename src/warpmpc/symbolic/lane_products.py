"""Products of P and A with a solution, by tables: what residuals are made of.

Reads: a `LaneMemory`.  Produces: `LaneProducts`: for every node the entries of its row of K and
where their factors lie, in the memory of the lane, the one before, or the one behind.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from warpmpc.symbolic.lane_memory import LaneMemory
from warpmpc.symbolic.lanes import Node, Pair
from warpmpc.symbolic.pattern import IntArray
from warpmpc.symbolic.row_kinds import RowKind

# Bounds of a row that has no row in U.
ONE_BOUND = {RowKind.EQUALITY: -1, RowKind.LOWER: -2, RowKind.UPPER: -3}
NODE_FIELDS = 8  # begin, split, end, upper, four penalties
TERM_FIELDS = 4  # entry, factor, lane, nothing
Terms = dict[Node, list[tuple[int, int, int, int]]]


@dataclass(frozen=True, eq=False)
class LaneProducts:
    """Tables of all products.

    Attributes:
        nodes: For each node: first term, first term with multipliers, end of its terms; row within
            U or a value of `ONE_BOUND`; rows within H of its penalties, -1 without.  Rows have no
            terms with multipliers; there is their row within RHO instead, or -1 for 1/rho of
            inequalities, -2 for that of equalities.
        terms: For each term: offset of the entry (below zero: -1 - place among the literals),
            offset of the factor, and the lane that one of them belongs to: -1 before, 1 behind.
        literals: Entries that are constants.
    """

    nodes: IntArray
    terms: IntArray
    literals: np.ndarray


def lane_products(memory: LaneMemory) -> LaneProducts:
    """Tables for the memory of one problem.

    Terms of rows are those of A d.  Terms of variables are those of P d, then those of A'y.
    """
    literals = {entry: i for i, entry in enumerate(memory.literals)}
    with_d: Terms = {node: [] for node in memory.nodes}
    with_y: Terms = {node: [] for node in memory.nodes}
    for a, b in sorted({(a, b) for _, a, b in memory.layout.couplings}):
        for entry in _entries(memory, literals, (a, b)):
            _add(memory, entry, (a, b), with_d, with_y)
    nodes, terms = [], []
    for node in memory.nodes:
        begin = len(terms)
        split = _rho_field(memory, node) if node.is_row else begin + len(with_d[node])
        terms += with_d[node] + with_y[node]
        nodes.append([begin, split, len(terms), *_row_fields(memory, node)])
    return LaneProducts(
        np.array(nodes, dtype=np.int32).reshape(-1, NODE_FIELDS),
        np.array(terms, dtype=np.int32).reshape(-1, TERM_FIELDS),
        np.array(list(memory.literals.values())),
    )


def _entries(memory: LaneMemory, literals: dict[Pair, int], key: Pair) -> list[int]:
    """Offsets of what an entry is the sum of."""
    if key in literals:
        return [-1 - literals[key]]
    rows = [table[key] for table in (memory.entries, memory.incoming) if key in table]
    return [memory.offset("W", row) for row in rows]


def _add(memory: LaneMemory, entry: int, key: Pair, with_d: Terms, with_y: Terms) -> None:
    """Adds an entry to the rows of both of its nodes."""
    a, b = key
    for this, other in ((a, b), (b, a)):
        if this == other and with_d[this] and with_d[this][-1][0] == entry:
            continue  # a diagonal entry counts once
        here, lane, at = _seen_from(memory, this, other)
        moved = entry + lane if entry >= 0 and here else entry
        section = "R" if other.is_row else "X"
        factor = memory.offset(section, memory.place[at], lane)
        table = with_y if other.is_row else with_d
        table[_own(memory, this)].append((moved, factor, lane, 0))


def _own(memory: LaneMemory, node: Node) -> Node:
    """A node as the lane that it belongs to sees it."""
    if node.stage < memory.layout.per_lane:
        return node
    return Node(node.stage - memory.layout.per_lane, node.is_row, node.index)


def _seen_from(memory: LaneMemory, this: Node, other: Node) -> tuple[bool, int, Node]:
    """Whether the entry belongs to another lane; which lane the other node is in; that node."""
    per_lane = memory.layout.per_lane
    if this.stage >= per_lane:  # this node is in the next lane: entry and other node are before it
        return True, -1, other
    return False, int(other.stage >= per_lane), _own(memory, other)


def _rho_field(memory: LaneMemory, node: Node) -> int:
    slot = memory.layout.row_slot(node)
    # A soft row is no equality, whatever its bounds: see `qp.conditioning`.
    known = -2 if slot.kind is RowKind.EQUALITY and not slot.soft else -1
    return memory.rho.get(node, known)


def _row_fields(memory: LaneMemory, node: Node) -> list[int]:
    if not node.is_row:
        return [0, -1, -1, -1, -1]
    kind = memory.layout.row_slot(node).kind
    upper = memory.upper[node] if node in memory.upper else ONE_BOUND[kind]
    return [upper, *(memory.soft.get((node, part), -1) for part in range(4))]
