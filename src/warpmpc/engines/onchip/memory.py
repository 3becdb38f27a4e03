"""Memory of one problem while a warp works on it: rows of 32 values, one per lane.

Reads: a `LaneLayout` and its elimination.  Produces: `LaneMemory`: sections of rows, the row of
every node and of every entry of K, and offsets that stage programs read from and write to.

    X     x of variables, v of rows
    Z     the point: variables alone
    Q     linear cost of variables, a bound of rows
    U     upper bound of rows with two bounds
    RHO   1/rho of rows that may be of any kind
    H     penalties of soft rows
    R     right-hand side, between QPs multipliers
    W     entries of K, later the reduction in their place
    PAR   parameters, if there is room; they are shared by all lanes

Before and after all QPs Q and W are copies of the caller's arrays.

Nodes stand in the order of their elimination, separators last.
"""

from __future__ import annotations

from copy import copy
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from warpmpc.engines.onchip.lanes import LANES, LaneElimination, LaneLayout, Node, Pair, pair
from warpmpc.symbolic.derivatives.kkt_stages import contributors
from warpmpc.symbolic.derivatives.stage_model import RowKind, constants_of
from warpmpc.symbolic.pattern import IntArray

TWO_BOUNDS = (RowKind.BOTH, RowKind.UNKNOWN)


@dataclass(frozen=True)
class Section:
    """Rows of the memory."""

    first: int
    count: int


class LaneMemory:
    """Rows of all sections.

    Attributes:
        layout: Distribution of the problem over the lanes.
        elimination: Elimination of the interior of a lane.
        place: Row of each node within X, Q and R.
        literals: Entries of K that have one constant value in all lanes.
        entries: Rows within W of all other entries of P and A.
        incoming: Rows within W of what the previous lane adds to entries and linear costs.
        kept_blocks: Blocks of the reduction that lanes keep in registers; these are the last ones.
        held: Size of each array of parameters that has a copy here.
    """

    def __init__(self, layout: LaneLayout, elimination: LaneElimination):
        """Assigns all rows.

        Args:
            layout: Distribution of the problem over the lanes.
            elimination: Elimination of the interior of a lane.
        """
        self.layout, self.elimination = layout, elimination
        self.kept_blocks, self.held = 0, dict[str, int]()
        self.nodes = [*elimination.order, *layout.separators]
        self.place = {node: i for i, node in enumerate(self.nodes)}
        self.literals = _literals(layout)
        named = {(a, b) for _, a, b in layout.couplings}
        stored = sorted(named - set(self.literals))
        self.entries = {entry: i for i, entry in enumerate(stored)}
        self.incoming = {what: len(stored) + i for i, what in enumerate(self._crossing())}
        self.dump = len(stored) + len(self.incoming)  # a row that is never read

    def _crossing(self) -> list[Pair | Node]:
        """Entries and variables that a stage of the previous lane contributes to."""
        found: dict[Pair | Node, None] = {}
        for lane, target in (*self._P_owners, *self._q_owners):
            for k in target[1]:
                if self.layout.place(k)[0] < lane:
                    found[target[0]] = None
        return sorted(found, key=repr)

    @cached_property
    def _P_owners(self) -> list[tuple[int, tuple[Pair, list[int]]]]:
        """For each entry of P its lane, its nodes, and the stages that contribute."""
        at = self.layout.assembly
        entries = contributors(at, at.P_places, "P", at.P_pattern.nnz)
        couplings = self.layout.couplings[: at.P_pattern.nnz]
        return [
            (lane, ((a, b), [k for k, *_ in of_entry]))
            for (lane, a, b), of_entry in zip(couplings, entries, strict=True)
        ]

    @cached_property
    def _q_owners(self) -> list[tuple[int, tuple[Node, list[int]]]]:
        at = self.layout.assembly
        entries = contributors(at, at.q_places, "q", self.layout.problem.n_vars)
        return [
            (lane, (node, [k for k, *_ in of_entry]))
            for (lane, node), of_entry in zip(self.layout.var_nodes, entries, strict=True)
        ]

    @cached_property
    def rows(self) -> list[Node]:
        """Nodes that are rows."""
        return [node for node in self.nodes if node.is_row]

    @cached_property
    def row_number(self) -> dict[Node, int]:
        """Number of each node among those that are rows."""
        return {node: i for i, node in enumerate(self.rows)}

    @cached_property
    def upper(self) -> dict[Node, int]:
        """Row within U of each node with two bounds."""
        two = [n for n in self.rows if self.layout.row_slot(n).kind in TWO_BOUNDS]
        return {node: i for i, node in enumerate(two)}

    @cached_property
    def rho(self) -> dict[Node, int]:
        """Row within RHO of each node that may be of any kind."""
        unknown = [n for n in self.rows if self.layout.row_slot(n).kind is RowKind.UNKNOWN]
        return {node: i for i, node in enumerate(unknown)}

    @cached_property
    def soft(self) -> dict[tuple[Node, int], int]:
        """Rows within H: for each soft node its linear (0, 1) and quadratic (2, 3) penalties.

        Even parts belong to the lower bound; a bound that does not exist has no penalty.
        """
        parts = {RowKind.LOWER: (0, 2), RowKind.UPPER: (1, 3)}
        wanted = [
            (node, part)
            for node in self.rows
            if self.layout.row_slot(node).soft
            for part in parts.get(self.layout.row_slot(node).kind, (0, 1, 2, 3))
        ]
        return {what: i for i, what in enumerate(wanted)}

    @property
    def n_interior(self) -> int:
        """Interior nodes."""
        return len(self.elimination.order)

    @property
    def n_separators(self) -> int:
        """Separators of a lane."""
        return len(self.layout.separators)

    @cached_property
    def levels(self) -> int:
        """Steps of the parallel cyclic reduction."""
        return max(self.layout.n_lanes - 1, 0).bit_length()

    @property
    def n_blocks(self) -> int:
        """Blocks of the reduction: two per level but one in the last, and the last inverse."""
        return max(2 * self.levels, 1)

    @property
    def stored_blocks(self) -> int:
        """Blocks of the reduction in this memory."""
        return self.n_blocks - self.kept_blocks

    def keeping(self, blocks: int) -> LaneMemory:
        """The same memory with some blocks of the reduction in registers."""
        return self._changed(kept_blocks=blocks)

    def holding(self, parameters: dict[str, int]) -> LaneMemory:
        """The same memory with copies of arrays of parameters, given with their sizes."""
        return self._changed(held=parameters)

    def _changed(self, **attributes: Any) -> LaneMemory:
        other = copy(self)
        other.__dict__.pop("sections", None)  # the one cached part that depends on them
        other.__dict__.update(attributes)
        return other

    @property
    def held_at(self) -> dict[str, int]:
        """First value within PAR of each array of parameters that has a copy."""
        return {name: section.first for name, section in _one_after_the_other(self.held).items()}

    @cached_property
    def sections(self) -> dict[str, Section]:
        """All sections, in order."""
        n = len(self.nodes)
        counts = {
            "X": n,
            "Z": n - len(self.rows),
            "Q": n,
            "U": len(self.upper),
            "RHO": len(self.rho),
            "H": len(self.soft),
            "R": self.n_interior,
            "W": max(self.dump + 1, self.stored_blocks * self.n_separators**2, n),
            "PAR": -(-sum(self.held.values()) // LANES),
        }
        return _one_after_the_other(counts)

    @property
    def n_rows(self) -> int:
        """Rows of all sections."""
        return sum(section.count for section in self.sections.values())

    @property
    def n_vars(self) -> int:
        """Variables of the problem."""
        return self.layout.problem.n_vars

    @property
    def n_cons(self) -> int:
        """Rows of the problem."""
        return self.layout.problem.n_cons

    @cached_property
    def _variables(self) -> list[Node]:
        return [node for node in self.nodes if not node.is_row]

    @cached_property
    def _point_rows(self) -> dict[Node, int]:
        return {node: i for i, node in enumerate(self._variables)}

    def row_of(self, section: str, node: Node) -> int:
        """Row of a variable within X or Z."""
        return self._point_rows[node] if section == "Z" else self.place[node]

    def offset(self, section: str, row: int, lanes_ahead: int = 0) -> int:
        """Offset of a row, counted from the first value of the lane."""
        return (self.sections[section].first + row) * LANES + lanes_ahead

    def of_point(self, index: int, k: int) -> int:
        """Offset of a variable of the problem, seen from the lane of stage k."""
        lane, node = self.layout.var_nodes[index]
        return self.offset("Z", self.row_of("Z", node), lane - self.layout.place(k)[0])

    def of_direction(self, of_point: int) -> int:
        """Offset of x of the variable at an offset."""
        row, ahead = divmod(of_point, LANES)
        node = self._variables[row - self.sections["Z"].first]
        return self.offset("X", self.place[node], ahead)

    def of_row(self, section: str, index: int, k: int) -> int:
        """Offset of v or y of a row of the problem, seen from the lane of stage k."""
        lane, node = self.layout.row_nodes[index]
        return self.offset(section, self.place[node], lane - self.layout.place(k)[0])

    def of_entry(self, index: int, k: int) -> int:
        """Where stage k adds to an entry of P, or (after those) writes an entry of A."""
        lane, a, b = self.layout.couplings[index]
        here = self.layout.place(k)[0]
        if lane != here:
            return self.offset("W", self.incoming[(a, b)], lane - here)
        return self.offset("W", self.entries.get((a, b), self.dump))

    def of_cost(self, index: int, k: int) -> int:
        """Where stage k adds to the linear cost of a variable."""
        lane, node = self.layout.var_nodes[index]
        here = self.layout.place(k)[0]
        if lane != here:
            return self.offset("W", self.incoming[node], lane - here)
        return self.offset("Q", self.place[node])

    def of_bound(self, index: int, *, upper: bool) -> int:
        """Where a bound of a row is written; a bound that is not needed goes to an unused row."""
        node = self.layout.row_nodes[index][1]
        kind = self.layout.row_slot(node).kind
        if upper and node in self.upper:
            return self.offset("U", self.upper[node])
        wanted = kind is RowKind.UPPER if upper else kind is not RowKind.UPPER
        return self.offset("Q", self.place[node]) if wanted else self.offset("W", self.dump)

    def of_penalty(self, index: int, part: int) -> int:
        """Where a penalty of a soft row is written."""
        node = self.layout.row_nodes[index][1]
        found = self.soft.get((node, part))
        return self.offset("W", self.dump) if found is None else self.offset("H", found)

    @cached_property
    def node_index(self) -> IntArray:
        """Variable, or number of variables plus row, of each node in each lane; -1: none."""
        table = np.full((len(self.nodes), LANES), -1, dtype=np.int32)
        owners = [*self.layout.var_nodes, *self.layout.row_nodes]
        for index, (lane, node) in enumerate(owners):
            table[self.place[node], lane] = index
        return table

    @cached_property
    def in_copy(self) -> IntArray:
        """Place in a copy of the caller's arrays of the value of each node in each lane.

        Rows begin with a row of the memory.  Places after the arrays belong to nodes that a lane
        does not have, so that no test is needed.  Within each row of the memory the values are
        permuted, see `COPY` of `engines.onchip.head_template`; otherwise the lanes would use only a
        few banks.
        """
        place = np.empty_like(self.node_index)
        is_row = np.array([node.is_row for node in self.nodes])
        room = LANES * self.sections["Z"].count
        for some, count, first in ((~is_row, self.n_vars, 0), (is_row, self.n_cons, room)):
            index = self.node_index[some]
            found = index - (index >= self.n_vars) * self.n_vars
            lacking = np.nonzero(index.T < 0)[::-1]  # lane by lane
            found[lacking] = count + np.arange(len(lacking[0]))
            place[some] = first + found
        return place ^ (place // LANES % LANES)

    @cached_property
    def diagonals(self) -> list[list[int]]:
        """Rows within W of the diagonal entries of variables, by words of `absent`."""
        rows = [self.entries[(n, n)] for n in self.nodes if (n, n) in self.entries]
        return [rows[i : i + 32] for i in range(0, len(rows), 32)]

    @cached_property
    def absent(self) -> IntArray:
        """For each lane a bit per diagonal entry: whether the lane has no such variable."""
        nodes = [n for n in self.nodes if (n, n) in self.entries]
        words = np.zeros((len(self.diagonals), LANES), dtype=np.uint32)
        for i, node in enumerate(nodes):
            missing = self.node_index[self.place[node]] < 0
            words[i // 32] |= missing.astype(np.uint32) << np.uint32(i % 32)
        return words.view(np.int32)


def _one_after_the_other(counts: dict[str, int]) -> dict[str, Section]:
    ends = np.cumsum(list(counts.values())).tolist()
    return {
        name: Section(end - count, count)
        for (name, count), end in zip(counts.items(), ends, strict=True)
    }


def _literals(layout: LaneLayout) -> dict[Pair, float]:
    """Entries of A with the same constant in all lanes that have the row.

    Where a lane does not have the entry, the constant does no harm if it has neither the row nor
    the variable: then both are nothing but zeros.
    """
    at = layout.assembly
    values = _constants(layout)
    found: dict[Pair, dict[int, float | None]] = {}
    first = at.P_pattern.nnz
    for value, (lane, a, b) in zip(values, layout.couplings[first:], strict=True):
        found.setdefault((a, b), {})[lane] = value
    there = {*layout.var_nodes, *layout.row_nodes}
    literals = {}
    for (a, b), by_lane in found.items():
        row, variable = (a, b) if a.is_row else (b, a)
        ahead = int(variable.stage >= layout.per_lane)
        own = Node(variable.stage - ahead * layout.per_lane, False, variable.index)
        absent = set(range(LANES)) - set(by_lane)
        distinct = set(by_lane.values())
        harmless = not any((lane + ahead, own) in there or (lane, row) in there for lane in absent)
        if len(distinct) == 1 and None not in distinct and harmless:
            literals[pair(a, b)] = distinct.pop()
    return literals


def _constants(layout: LaneLayout) -> list[float | None]:
    """For each entry of A its value, if it is the same constant everywhere."""
    at = layout.assembly
    of_group = [constants_of(model.qp_expressions()["A"]) for model in at.models]
    entries = contributors(at, at.A_rows, "A", at.A_pattern.nnz)
    return [of_group[entry[0][1]][entry[0][3]] if len(entry) == 1 else None for entry in entries]
