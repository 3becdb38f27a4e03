"""Both triangular solves by panels of nodes, for several warps that share one tile.

Reads: an `Elimination` in program order.  Produces: `PanelSweep` for each direction: a list of
records for each warp, and the triangles inside the panels for one warp more.

Eliminated stage by stage, a problem with wide stages has hardly any independent nodes: of the
humanoid's 4938 nodes 3053 depend on nothing (`leaves`), and the rest is one chain of 1829 levels.
So warps share rows instead of levels.  The nodes of the chain form panels of eight.  The sums that
a panel gathers from earlier nodes are one item per node, and all independent; then one warp solves
the triangle inside the panel.  Meanwhile others gather for the next panel what comes before this
one:

    epoch 2q + 2    items of panel q, as far as they need no panel behind q - 2
    epoch 2q + 3    the rest of these items, from panel q - 1
    epoch 2q + 4    triangle of panel q
    epoch 2q + 6    panel q is finished: its values leave

Between epochs all warps meet.  Inside an epoch every slot of the window is written by one warp at
most, and then read by no other one; the order of every sum is that of its item.  So neither the
number of warps nor their timing can change a result.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass

import numpy as np

from warpmpc.symbolic.elimination import Elimination
from warpmpc.symbolic.pattern import IntArray

PANEL = 8  # nodes of a panel
LINES = 8  # rows of memory that one record fetches
TRIANGLE = PANEL * (PANEL - 1) // 2
# A record: lines, the slots they are multiplied with, then flags, node, slot, and number of lines.
FLAGS = 2 * LINES
RECORD = FLAGS + 4
FROM_START, FROM_SLOT, TO_SLOT, FINISH, IS_ROW, SYNC = 1, 2, 4, 8, 16, 256
# A line is a row of one of these arrays, whose number is stored above the row.
FACTOR, WORK, STATE, LOWER, UPPER, INVERSE_RHO = range(6)
ARRAY_SHIFT = 28
NO_LINE = -1
_NO_PANEL = -3  # panel of a leaf, which is known long before the first panel


@dataclass(frozen=True, eq=False)
class PanelItem:
    """A sum: values of `nodes` times `entries` of L, subtracted from a start.

    Attributes:
        epoch: Epoch in which it is computed.
        node: Node that the sum belongs to.
        begins: FROM_START or FROM_SLOT.
        keeps: Whether the sum goes to the slot of the node.
        finishes: Whether it is the node's value, so that its results are written.
        entries: Entries of L.
        nodes: Nodes that the entries multiply.
    """

    epoch: int
    node: int
    begins: int
    keeps: bool
    finishes: bool
    entries: IntArray
    nodes: IntArray


@dataclass(frozen=True, eq=False)
class PanelItems:
    """One sweep before its items are assigned to warps.

    Attributes:
        forward: Whether it is the forward sweep.
        items: Items in the order of their epochs.
        triangles: For each panel its entries of L row by row, -1 where there is none, and then the
            slots of its nodes.
        slots: Slot of each node; -1: none.  The slot after all others holds zero, and the one after
            that receives values that are not needed.
        zero: The slot that holds zero.
    """

    forward: bool
    items: list[PanelItem]
    triangles: IntArray
    slots: IntArray
    zero: int

    @property
    def n_epochs(self) -> int:
        """Epochs of the sweep."""
        return 2 * len(self.triangles) + 5


@dataclass(frozen=True, eq=False)
class PanelSweep:
    """One sweep for a number of warps.

    Attributes:
        records: Records of all warps, one after the other.
        begin: First record of each warp, and the number of records.
        triangles: As in `PanelItems`.
    """

    records: IntArray
    begin: IntArray
    triangles: IntArray


@dataclass(frozen=True, eq=False)
class PanelNodes:
    """Kinds of the nodes of a program.

    Attributes:
        n_L: Entries of L; the factor has the inverse pivots behind them.
        is_row: Whether a node is a row.
        soft: Place of a soft row among the soft rows; -1 for all other nodes.
    """

    n_L: int
    is_row: IntArray
    soft: IntArray


@dataclass(frozen=True, eq=False)
class _Operands:
    """All products of a sweep: `reader` subtracts ``L[entry] * value[node]``."""

    reader: IntArray
    entry: IntArray
    node: IntArray


def panel_items(elimination: Elimination) -> tuple[PanelItems, PanelItems]:
    """Items of the forward and of the backward sweep; both have a window of the same size."""
    L, (by_row, position) = elimination.L_pattern, elimination.L_rows
    is_leaf = by_row.col_counts == 0
    chain = np.flatnonzero(~is_leaf)
    ahead = _Operands(by_row.col_idx, position, by_row.row_idx)
    # Backward, in the order in which operands become known.
    back = _Operands(L.col_idx[::-1], np.arange(L.nnz)[::-1], L.row_idx[::-1])
    plans = (_Plan(chain, ahead, is_leaf), _Plan(chain[::-1], back, is_leaf))
    zero = max(plan.n_slots for plan in plans)
    return plans[0].items(zero, forward=True), plans[1].items(zero, forward=False)


class _Plan:
    """Epochs and slots of one sweep."""

    def __init__(self, chain: IntArray, operands: _Operands, is_leaf: IntArray):
        self._chain, self._operands, self._is_leaf = chain, operands, is_leaf
        n = is_leaf.size
        self._panel, self._place = np.full(n, _NO_PANEL), np.zeros(n, dtype=np.int64)
        self._panel[chain] = np.arange(chain.size) // PANEL
        self._place[chain] = np.arange(chain.size) % PANEL
        self._n_panels = max(-(-chain.size // PANEL), 1)
        self._epoch = self._reading()
        first, last = np.full(n, 2 * self._n_panels + 8), np.full(n, -1)
        np.minimum.at(first, operands.node, self._epoch)
        np.maximum.at(last, operands.node, self._epoch)
        # A leaf is fetched before its first use; a node of the chain has a sum before a value.
        self._fetched = np.where(last < 0, 0, np.maximum((first & ~1) - 2, 0))
        starts = np.where(is_leaf, self._fetched, 2 * self._panel + 2)
        ends = np.where(is_leaf, last, np.maximum(last, 2 * self._panel + 6))
        self.slots, self.n_slots = _assign_slots(starts, ends)

    def _reading(self) -> IntArray:
        """Epoch of each product."""
        reader, node = self._operands.reader, self._operands.node
        panel, known = self._panel[reader], self._panel[node]
        epoch = 2 * panel + 2 + np.clip(known - panel + 2, 0, 2)
        # A leaf (backward) reads when the last of its operands is known, in the next long epoch.
        latest = np.full(self._is_leaf.size, _NO_PANEL)
        np.maximum.at(latest, reader, known)
        return np.where(self._is_leaf[reader], 2 * latest[reader] + 6, epoch)

    def items(self, zero: int, *, forward: bool) -> PanelItems:
        """All items; leaves are fetched by the forward and solved by the backward sweep."""
        reader, epoch = self._operands.reader, self._epoch
        inside = self._panel[reader] == self._panel[self._operands.node]
        given = np.flatnonzero(~inside)
        given = given[np.lexsort((given, epoch[given], reader[given]))]
        cuts = np.flatnonzero(np.diff(reader[given]) | np.diff(epoch[given])) + 1
        groups = {
            (int(reader[group[0]]), int(epoch[group[0]])): group
            for group in np.split(given, cuts)
            if group.size
        }
        items = []
        for node in self._chain.tolist():
            begin = 2 * int(self._panel[node]) + 2
            items.append(self._item(groups, node, begin, FROM_START, keeps=True))
            if (node, begin + 1) in groups:
                items.append(self._item(groups, node, begin + 1, FROM_SLOT, keeps=True))
            items.append(self._item(groups, node, begin + 4, FROM_SLOT, finishes=True))
        when = self._fetched if forward else np.zeros_like(self._fetched)
        if not forward:
            when[reader] = epoch  # only leaves use this
        for node in np.flatnonzero(self._is_leaf).tolist():
            keeps = self.slots[node] >= 0
            items.append(
                self._item(groups, node, int(when[node]), FROM_START, keeps=keeps, finishes=True)
            )
        items.sort(key=lambda item: (item.epoch, item.node))
        return PanelItems(forward, items, self._triangles(inside, zero), self.slots, zero)

    def _item(
        self,
        groups: dict[tuple[int, int], IntArray],
        node: int,
        epoch: int,
        begins: int,
        *,
        keeps: bool = False,
        finishes: bool = False,
    ) -> PanelItem:
        group = groups.get((node, epoch), np.zeros(0, dtype=np.int64))
        entries, nodes = self._operands.entry[group], self._operands.node[group]
        return PanelItem(epoch, node, begins, bool(keeps), finishes, entries, nodes)

    def _triangles(self, inside: IntArray, zero: int) -> IntArray:
        entries = np.full((self._n_panels, PANEL, PANEL), NO_LINE)
        reader, node = self._operands.reader[inside], self._operands.node[inside]
        at = (self._panel[reader], self._place[reader], self._place[node])
        entries[at] = self._operands.entry[inside]
        low = np.tril_indices(PANEL, -1)
        padding = self._n_panels * PANEL - self._chain.size
        slots = np.append(self.slots[self._chain], np.full(padding, zero + 1))
        parts = [entries[:, low[0], low[1]], slots.reshape(self._n_panels, PANEL)]
        return np.concatenate(parts, axis=1).astype(np.int32)


def _assign_slots(starts: IntArray, ends: IntArray) -> tuple[IntArray, int]:
    """Slots of nodes from epoch `starts` to epoch `ends` (-1: never needed), and their number.

    A slot is free again in the epoch after, so that no two warps meet in it.
    """
    slots = np.full(starts.size, -1)
    busy: list[tuple[int, int]] = []
    free: list[int] = []
    n_slots = 0
    for node in np.argsort(starts, kind="stable").tolist():
        if ends[node] < 0:
            continue
        while busy and busy[0][0] < starts[node]:
            heapq.heappush(free, heapq.heappop(busy)[1])
        if not free:
            heapq.heappush(free, n_slots)
            n_slots += 1
        slots[node] = heapq.heappop(free)
        heapq.heappush(busy, (int(ends[node]), int(slots[node])))
    return slots, n_slots


def deal(sweep: PanelItems, nodes: PanelNodes, warps: int) -> PanelSweep:
    """Assigns the items of each epoch to warps, the longest first, to the least loaded warp."""
    records = [_records(sweep, nodes, item) for item in sweep.items]
    mine: list[list[IntArray]] = [[] for _ in range(warps)]
    met = [0] * warps  # epochs that a warp has completed
    load = [0] * warps
    by_size = sorted(range(len(records)), key=lambda i: (sweep.items[i].epoch, -len(records[i]), i))
    epoch = -1
    for i in by_size:
        if sweep.items[i].epoch != epoch:
            epoch, load = sweep.items[i].epoch, [0] * warps
        warp = load.index(min(load))
        load[warp] += len(records[i])
        _meet(mine[warp], epoch - met[warp], sweep.zero)
        met[warp] = epoch
        mine[warp].append(records[i])
    for warp in range(warps):
        _meet(mine[warp], sweep.n_epochs - met[warp], sweep.zero)
    lists = [np.concatenate(parts) for parts in mine]
    begin = np.cumsum([0] + [len(part) for part in lists])
    return PanelSweep(np.concatenate(lists), begin.astype(np.int32), sweep.triangles)


def _meet(records: list[IntArray], times: int, zero: int) -> None:
    """Lets a warp wait for the others after its own work."""
    if times and not records:
        records.append(_empty(1, zero))
    if times:
        records[-1][-1, FLAGS] += SYNC * times


def _empty(count: int, zero: int) -> IntArray:
    records = np.zeros((count, RECORD), dtype=np.int32)
    records[:, :LINES] = NO_LINE
    records[:, LINES:FLAGS] = zero
    return records


def _records(sweep: PanelItems, nodes: PanelNodes, item: PanelItem) -> IntArray:
    """An item as records: its start and products, then what it needs to finish."""
    node, zero = item.node, sweep.zero
    start = [WORK << ARRAY_SHIFT | node] if item.begins == FROM_START else []
    lines = np.append(start, item.entries).astype(np.int64)
    slots = np.append([zero] * len(start), sweep.slots[item.nodes]).astype(np.int64)
    last = _finish(sweep, nodes, node) if item.finishes else []
    # A leaf has nothing to sum up forward: the record that finishes it holds its start.
    merged = bool(last) and item.entries.size == 0 and (sweep.forward or not start)
    n_sums = 0 if merged else -(-max(lines.size, 1) // LINES)
    records = _empty(n_sums + bool(last), zero)
    flags = records[:, FLAGS:]
    if n_sums:
        padded = np.full(n_sums * LINES, NO_LINE)
        padded[: lines.size] = lines
        records[:n_sums, :LINES] = padded.reshape(n_sums, LINES)
        padded = np.full(n_sums * LINES, zero)
        padded[: lines.size] = slots
        records[:n_sums, LINES:FLAGS] = padded.reshape(n_sums, LINES)
        flags[:n_sums, 3] = np.clip(lines.size - LINES * np.arange(n_sums), 0, LINES)
    if last:
        records[-1, : len(last)] = last
        if merged and start:
            records[-1, 0] = start[0]
        flags[-1, 0] |= FINISH | (IS_ROW if nodes.is_row[node] else 0)
    flags[0, 0] |= item.begins
    flags[-1, 0] |= TO_SLOT if item.keeps else 0
    flags[:, 1], flags[:, 2] = node, sweep.slots[node] if sweep.slots[node] >= 0 else zero + 1
    return records


def _finish(sweep: PanelItems, nodes: PanelNodes, node: int) -> list[int]:
    """Lines that finishing a node needs: its inverse pivot, or what its update reads."""
    if sweep.forward:
        return [NO_LINE, nodes.n_L + node]
    lines = [STATE << ARRAY_SHIFT | node, LOWER << ARRAY_SHIFT | node]
    if nodes.is_row[node]:
        lines += [UPPER << ARRAY_SHIFT | node, INVERSE_RHO << ARRAY_SHIFT | node]
    if nodes.soft[node] >= 0:
        first = nodes.is_row.size + 4 * int(nodes.soft[node])
        lines += [INVERSE_RHO << ARRAY_SHIFT | first + part for part in range(4)]
    return lines
