"""NumPy interpreters of the tables of `engines.panels.sweep_plan` and `engines.panels.factor_plan`.

They run epoch by epoch (phase by phase) and keep book of which warp touches what, so that a table
whose result would depend on the timing of warps is found even where the values are right.
"""

from __future__ import annotations

from collections import defaultdict

import numpy as np

from warpmpc.engines.panels import factor_plan as pf
from warpmpc.engines.panels import sweep_plan as ps


class Book:
    """Who reads and writes which place between two meetings."""

    def __init__(self):
        self.reads, self.writes = defaultdict(set), defaultdict(set)

    def check(self) -> None:
        """What one warp writes no other one touches."""
        for place, writers in self.writes.items():
            assert len(writers | self.reads[place]) == 1, f"{place}: {writers}, {self.reads[place]}"


def run_sweep(
    items: ps.PanelItems, sweep: ps.PanelSweep, factor: np.ndarray, start: np.ndarray
) -> tuple[np.ndarray, list[int]]:
    """Values of all nodes after one sweep, and the nodes in the order in which they finish.

    Args:
        items: Items that the sweep was made from.
        sweep: Tables.
        factor: Entries of L, then inverse pivots.
        start: Right-hand side; forward results are divided by the pivots.
    """
    window = np.full(items.zero + 2, np.nan)
    window[items.zero] = 0
    end, finished = np.full(start.size, np.nan), []
    warps = sweep.begin.size - 1
    at, met, acc = sweep.begin[:-1].tolist(), [0] * warps, 0.0
    for epoch in range(items.n_epochs):
        book = Book()
        for warp in range(warps):
            while met[warp] == epoch and at[warp] < sweep.begin[warp + 1]:
                record = sweep.records[at[warp]]
                at[warp] += 1
                lines, slots = record[: ps.LINES], record[ps.LINES : ps.FLAGS]
                flags, node, slot, used = record[ps.FLAGS :].tolist()
                begun = bool(flags & ps.FROM_START)
                if begun:
                    assert lines[0] == ps.WORK << ps.ARRAY_SHIFT | node
                    assert np.isnan(end[node]), "started after it was finished"
                    acc = start[node]
                if flags & ps.FROM_SLOT:
                    book.reads[slot].add(warp)
                    acc = window[slot]
                if not flags & ps.FINISH:
                    assert (lines[used:] == ps.NO_LINE).all()
                    for line, operand in zip(lines[begun:used], slots[begun:used], strict=True):
                        book.reads[int(operand)].add(warp)
                        acc = acc - factor[line] * window[operand]
                if flags & ps.TO_SLOT:
                    book.writes[slot].add(warp)
                    window[slot] = acc
                if flags & ps.FINISH:
                    finished.append(node)
                    end[node] = acc * factor[lines[1]] if items.forward else acc
                met[warp] += flags // ps.SYNC
        _triangle(sweep, epoch, factor, window, book)
        book.check()
    assert met == [items.n_epochs] * warps
    assert at == sweep.begin[1:].tolist()
    return end, finished


def _triangle(
    sweep: ps.PanelSweep, epoch: int, factor: np.ndarray, window: np.ndarray, book: Book
) -> None:
    """The warp behind all others, where it has something to do."""
    q = epoch // 2 - 2
    if epoch % 2 or not 0 <= q < len(sweep.triangles):
        return
    entries, slots = np.split(sweep.triangles[q], [ps.TRIANGLE])
    below = iter(entries.tolist())
    spare = window.size - 1
    for r, slot in enumerate(slots.tolist()):
        for other in slots[:r]:
            entry = next(below)
            if entry >= 0:
                window[slot] -= factor[entry] * window[other]
        if slot != spare:
            book.reads[slot].add("triangle")
            book.writes[slot].add("triangle")


def run_panel_factor(
    plan: pf.PanelFactor, warps: int, K: np.ndarray, n_L: int, n: int
) -> tuple[np.ndarray, np.ndarray]:
    """L and D; every number is NaN before it is written, and written once."""
    records, begin = pf.deal_factor(plan, warps)
    begin = begin.reshape(-1)
    L, D = np.full(n_L, np.nan), np.full(n, np.nan)
    for p, panel in enumerate(plan.panels):
        for node, pivot, first, last in plan.leaves[panel[0] : panel[1]]:
            D[node] = K[pivot]
            L[first:last] = K[plan.sources[first:last]] / K[pivot]
        rows = plan.working[panel[2] : panel[3]]
        older = np.where(rows[:, : pf.COLUMNS] >= 0, L[rows[:, : pf.COLUMNS]], 0)
        working = older * D[rows[:, pf.COLUMNS]][:, None]
        own, book = np.full((pf.COLUMNS, pf.COLUMNS), np.nan), Book()
        for warp in range(warps):
            at = 2 * p * warps + warp
            for row, acc in _gathered(records[begin[at] : begin[at + 1]], K, L, working):
                own[row[pf.FLAGS + 1]] = acc
                book.writes[int(row[pf.FLAGS + 1])].add(warp)
        book.check()
        count = int((panel[pf.NODES : pf.NODES + pf.COLUMNS] >= 0).sum())
        small, pivots = _ldl(own[:count, :count])
        D[panel[pf.NODES : pf.NODES + count]] = pivots
        rows, cols = np.tril_indices(count, -1)
        inside = panel[pf.INSIDE : pf.INSIDE + rows.size]
        there = inside >= 0
        assert np.all(small[rows, cols][~there] == 0)
        written = {int(entry): small[r, c] for entry, r, c in zip(inside, rows, cols, strict=True)}
        for warp in range(warps):
            at = (2 * p + 1) * warps + warp
            for row, acc in _gathered(records[begin[at] : begin[at + 1]], K, L, working):
                values = np.linalg.solve(small, acc[:count]) / pivots
                targets = row[pf.TARGETS : pf.TARGETS + count]
                assert np.all(values[targets < 0] == 0)
                written |= dict(zip(targets.tolist(), values.tolist(), strict=True))
        written.pop(-1, None)
        # Not before: inside a phase no warp may read what another one writes.
        entries = np.array(list(written), dtype=int)
        assert np.isnan(L[entries]).all()
        L[entries] = list(written.values())
    return L, D


def _gathered(records, K, L, working):
    """Rows that end, each with what is left of its four entries."""
    acc = np.zeros(pf.COLUMNS)
    for row in records:
        if row[pf.FLAGS] & pf.BEGIN:
            starts = row[pf.STARTS : pf.STARTS + pf.COLUMNS]
            acc = np.where(starts >= 0, K[starts], 0.0)
        for entry, slot in zip(row[: pf.STEPS], row[pf.STEPS : pf.STARTS], strict=True):
            acc = acc - L[entry] * working[slot] if entry >= 0 else acc
        if row[pf.FLAGS] & pf.END:
            yield row, acc


def _ldl(matrix: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Entries of the lower triangle of a small matrix."""
    L, D = np.eye(len(matrix)), np.zeros(len(matrix))
    for r in range(len(matrix)):
        for c in range(r):
            L[r, c] = (matrix[r, c] - L[r, :c] * D[:c] @ L[c, :c]) / D[c]
        D[r] = matrix[r, r] - L[r, :r] ** 2 @ D[:r]
    return L, D
