"""Factorisation by panels of four columns, for several warps that share one tile.

Reads: an `Elimination` in program order.  Produces: `PanelFactor`, which `deal` turns into tables.

Columns that no other column updates are `leaves`: a quotient each.  All others form panels of four
consecutive columns.  A panel is one pass over L: its four rows, times the pivots, are the working
rows in fast memory; every row of L below gathers its four entries from its own older entries, one
value of L for four products; then the small triangle of the panel completes them.  A value of K is
read once, and one of L written once.

Rows of a panel are independent of one another, so warps share them.  Warps synchronise when the
leaves that the panel needs, its working rows, and its own four rows are complete.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from warpmpc.symbolic.elimination import Elimination
from warpmpc.symbolic.pattern import IntArray

COLUMNS = 4  # columns of a panel
STEPS = 8  # products per record
# A record: entries of L, slots of working rows, values of K to start from, entries of L to write,
# then flags and which of the panel's own rows it is.
STARTS, TARGETS, FLAGS = 2 * STEPS, 2 * STEPS + COLUMNS, 2 * STEPS + 2 * COLUMNS
RECORD = FLAGS + 4
BEGIN, END, OWN = 1, 2, 4
# A panel: leaves from and to, working rows from and to, its nodes, its entries of L row by row.
NODES, INSIDE, PANEL_ROW = 4, 8, 16
NOTHING = -1
# Working rows that a panel should not exceed: two tiles of float32 fit into a multiprocessor.
_FEW_ROWS = 216


@dataclass(frozen=True, eq=False)
class PanelFactor:
    """The factorisation before its items are assigned to warps.

    Attributes:
        panels: See above; -1 stands for what a panel does not have.
        leaves: Node, value of K of its pivot, entries of L from and to.
        sources: Value of K of each entry of L, -1 where it is fill.
        working: For each working row its entries of L, one for each column, and its node; whole
            rows of eight.
        records: Records of all items.
        sizes: Number of records of each item.
        phase: Phase of each item: twice its panel, plus one unless it is one of the panel's own
            rows.
    """

    panels: IntArray
    leaves: IntArray
    sources: IntArray
    working: IntArray
    records: IntArray
    sizes: IntArray
    phase: IntArray

    @property
    def n_slots(self) -> int:
        """Most working rows of a panel."""
        return int((self.panels[:, 3] - self.panels[:, 2]).max(initial=0))


def panel_factor(elimination: Elimination) -> PanelFactor:
    """Cuts the factorisation of one elimination into panels."""
    L, (by_row, _) = elimination.L_pattern, elimination.L_rows
    is_leaf = by_row.col_counts == 0
    chain = np.flatnonzero(~is_leaf)
    # Even a diagonal matrix has one panel, to which its leaves belong.
    groups = _groups(elimination, chain) or [chain]
    panel_of = np.zeros(elimination.n, dtype=np.int64)
    panel_of[chain] = np.repeat(np.arange(len(groups)), [nodes.size for nodes in groups])
    leaves, leaf_ptr = _leaves(elimination, np.flatnonzero(is_leaf), panel_of, len(groups))
    panels = np.full((len(groups), PANEL_ROW), NOTHING)
    panels[:, 0], panels[:, 1] = leaf_ptr[:-1], leaf_ptr[1:]
    builder = _Builder(elimination)
    parts = [builder.panel(nodes) for nodes in groups]
    ends = np.cumsum([len(part.working) for part in parts])
    panels[:, 2], panels[:, 3] = np.append(0, ends[:-1]), ends
    low = np.tril_indices(COLUMNS, -1)
    for p, nodes in enumerate(groups):
        panels[p, NODES : NODES + nodes.size] = nodes
        rows, cols = (index[low[0] < nodes.size] for index in low)
        panels[p, INSIDE : INSIDE + rows.size] = L.positions(nodes[rows], nodes[cols])
    sizes = [part.sizes for part in parts]
    phase = [
        2 * p + (np.arange(part.sizes.size) >= nodes.size)
        for p, (part, nodes) in enumerate(zip(parts, groups, strict=True))
    ]
    return PanelFactor(
        panels=panels.astype(np.int32),
        leaves=leaves.astype(np.int32),
        sources=elimination.K_to_L,
        working=np.concatenate([part.working for part in parts]).astype(np.int32),
        records=np.concatenate([part.records for part in parts]).astype(np.int32),
        sizes=np.concatenate(sizes),
        phase=np.concatenate(phase),
    )


def _groups(elimination: Elimination, chain: IntArray) -> list[IntArray]:
    """Consecutive columns, at most four, with few enough working rows unless one alone has more."""
    by_row, _ = elimination.L_rows
    groups: list[IntArray] = []
    begin, seen = 0, set()
    for at, node in enumerate(chain.tolist()):
        row = set(by_row.rows_of(node).tolist())
        joined = seen | row
        full = at - begin == COLUMNS or len(joined) > _FEW_ROWS + (at - begin)
        if at > begin and full:
            groups.append(chain[begin:at])
            begin, joined = at, row
        seen = joined
    return [*groups, chain[begin:]] if chain.size else []


def _leaves(
    elimination: Elimination, leaves: IntArray, panel_of: IntArray, n_panels: int
) -> tuple[IntArray, IntArray]:
    """Leaves in the order of the panels that need them first, and where those of a panel begin."""
    parent, ptr = elimination.parent[leaves], elimination.L_pattern.col_ptr
    panel = np.where(parent >= 0, panel_of[parent], 0)
    order = np.argsort(panel, kind="stable")
    leaves, panel = leaves[order], panel[order]
    columns = [leaves, elimination.K_to_D[leaves], ptr[leaves], ptr[leaves + 1]]
    return np.stack(columns, axis=1), np.searchsorted(panel, np.arange(n_panels + 1))


@dataclass(frozen=True, eq=False)
class _Part:
    """Working rows, records and numbers of records per item of one panel."""

    working: IntArray
    records: IntArray
    sizes: IntArray


class _Builder:
    """Tables of one panel after the other."""

    def __init__(self, elimination: Elimination):
        self._elimination = elimination
        self._L, (self._by_row, self._position) = elimination.L_pattern, elimination.L_rows
        self._slot = np.full(elimination.n, NOTHING)

    def panel(self, nodes: IntArray) -> _Part:
        """All items: the rows of the panel itself, then those below."""
        # A panel's nodes are older than all it updates; what updates it is a leaf or older.
        used = [self._by_row.rows_of(node) for node in nodes.tolist()]
        older = np.setdiff1d(np.concatenate([*used, nodes[:0]]), nodes)
        working = np.full((older.size, 8), NOTHING)
        for c, node in enumerate(nodes.tolist()):
            working[:, c] = self._L.positions(np.full(older.size, node), older)
        working[:, COLUMNS] = older
        below = [self._L.rows_of(node) for node in nodes.tolist()]
        rows = np.append(nodes, np.setdiff1d(np.concatenate([*below, nodes[:0]]), nodes))
        records, sizes = self._gathers(rows, older)
        if rows.size:
            self._ends(records, sizes, rows, nodes)
        return _Part(working, records, sizes)

    def _gathers(self, rows: IntArray, older: IntArray) -> tuple[IntArray, IntArray]:
        """Products of all rows with the working rows, in whole records; -1 pads."""
        self._slot[older] = np.arange(older.size)
        ptr = self._by_row.col_ptr
        counts = ptr[rows + 1] - ptr[rows]
        item = np.repeat(np.arange(rows.size), counts)
        inside = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
        source = np.repeat(ptr[rows], counts) + inside
        slot = self._slot[self._by_row.row_idx[source]]
        self._slot[older] = NOTHING
        item, source, slot = (array[slot >= 0] for array in (item, source, slot))
        counts = np.bincount(item, minlength=rows.size)
        sizes = np.maximum(-(-counts // STEPS), 1)
        first = np.cumsum(sizes) - sizes
        place = np.arange(item.size) - np.repeat(np.cumsum(counts) - counts, counts)
        records = np.full((int(sizes.sum()), RECORD), NOTHING)
        records[:, STEPS:STARTS] = 0
        records[:, FLAGS:] = 0
        at = first[item] + place // STEPS
        records[at, place % STEPS] = self._position[source]
        records[at, STEPS + place % STEPS] = slot
        return records, sizes

    def _ends(self, records: IntArray, sizes: IntArray, rows: IntArray, nodes: IntArray) -> None:
        """Starts and targets of the rows."""
        given = self._elimination
        last = np.cumsum(sizes) - 1
        first = last - sizes + 1
        sources = np.append(given.K_to_L, NOTHING)  # an absent entry is the last one
        records[first, FLAGS] |= BEGIN
        records[last, FLAGS] |= END
        records[last[: nodes.size], FLAGS] |= OWN
        records[last[: nodes.size], FLAGS + 1] = np.arange(nodes.size)
        for c, node in enumerate(nodes.tolist()):
            entry = np.where(rows > node, self._L.positions(rows, np.full(rows.size, node)), -1)
            records[first, STARTS + c] = np.where(rows == node, given.K_to_D[node], sources[entry])
            records[last, TARGETS + c] = entry


def deal_factor(factor: PanelFactor, warps: int) -> tuple[IntArray, IntArray]:
    """Assigns the items of each phase to warps, the longest first, to the least loaded warp.

    Returns:
        Records, and the first record of each warp in each phase, ``[phases * warps + 1]``.
    """
    n_phases = 2 * len(factor.panels)
    order = np.lexsort((-factor.sizes, factor.phase))
    warp = np.zeros(order.size, dtype=np.int64)
    load, before = [0] * warps, -1
    sizes, phases = factor.sizes.tolist(), factor.phase.tolist()
    for item in order.tolist():
        if phases[item] != before:
            before, load = phases[item], [0] * warps
        chosen = load.index(min(load))
        warp[item] = chosen
        load[chosen] += sizes[item]
    key = factor.phase * warps + warp
    order = np.lexsort((np.arange(order.size), key))
    first = np.cumsum(factor.sizes) - factor.sizes
    count = factor.sizes[order]
    inside = np.arange(count.sum()) - np.repeat(np.cumsum(count) - count, count)
    records = factor.records[np.repeat(first[order], count) + inside]
    of_warp = np.bincount(key, weights=factor.sizes, minlength=n_phases * warps)
    return records, np.append(0, np.cumsum(of_warp)).astype(np.int32)
