"""Orders of elimination from both ends of the horizon to its middle.

Reads: the KKT pattern and stage labels.  Produces: for each node the position of its stage in an
order that has the first half ascending, then the second half descending, the middle stage last.
The halves do not touch, so they can be eliminated at the same time.

A row that couples two stages may count to either of them.  That decides what a half hands on to the
next stage, and so the fill: rows, if they count to the stage nearer to the middle, else variables.
The halves are mirror images: what is an early stage for one is a late one for the other.
"""

from __future__ import annotations

import numpy as np

from warpmpc._errors import PatternError
from warpmpc.symbolic.kkt import KKTPattern
from warpmpc.symbolic.pattern import IntArray
from warpmpc.symbolic.safe_ordering import holding_rows

LEAST_STAGES = 3


def two_sided_orders(
    kkt: KKTPattern, stages: IntArray, weak: IntArray
) -> list[list[tuple[IntArray, int]]]:
    """Orders to choose from, those to be preferred first.

    An order is the position of each node's stage, and how many stages the first half has.

    Args:
        kkt: Pattern of K.
        stages: Stage of each variable, then of each row.
        weak: Variables without a weight of their own; see `safe_ordering`.
    """
    labels = np.unique(stages, return_inverse=True)[1]
    last = int(labels.max(initial=0))
    if last + 1 < LEAST_STAGES:
        raise PatternError(
            f"Two sides need at least {LEAST_STAGES} stages, these are {last + 1}; use sides=1."
        )
    found = []
    # A weak variable that moves may get too far away from what its cost couples it with, so there
    # are orders in which it stays; they are the second choice.
    for moving in (weak, weak[:0]):
        early, late = last - _gathered(kkt, last - labels, moving), _gathered(kkt, labels, moving)
        pairs = ((late, early), (early, late))
        orders = [_meeting(up, down, last // 2, last) for up, down in pairs]
        found.append([order for order in orders if order is not None])
    if not any(found):
        raise PatternError("One half of the stages has nothing to eliminate; use sides=1.")
    return found


def _meeting(
    ascending: IntArray, descending: IntArray, middle: int, last: int
) -> tuple[IntArray, int] | None:
    """Positions from labels of the two halves; None if one of them is left without a stage."""
    is_first, is_second = ascending < middle, descending > middle
    if not is_first.any() or not (is_second & ~is_first).any():
        return None
    second = np.where(is_second, middle + last - descending, last)
    labels, positions = np.unique(np.where(is_first, ascending, second), return_inverse=True)
    return positions, int(np.count_nonzero(labels < middle))


def _gathered(kkt: KKTPattern, labels: IntArray, weak: IntArray) -> IntArray:
    """Labels with every row in the latest of its stages.

    A weak variable that only rows of later stages hold goes with the first of them: it must not be
    eliminated before they are.  Others stay; with a weight of their own they are better pivots than
    rows whose rho is large.
    """
    moved = _with_latest_rows(kkt, labels)
    rows, holds = holding_rows(kkt)
    entries = holds[:, weak].tocoo()
    first_holder = np.full(weak.size, moved.max(initial=0) + 1)
    np.minimum.at(first_holder, entries.col, moved[rows[entries.row]])
    held = weak[np.unique(entries.col)]
    moved[held] = np.maximum(moved[held], first_holder[np.unique(entries.col)])
    return _with_latest_rows(kkt, moved)


def _with_latest_rows(kkt: KKTPattern, labels: IntArray) -> IntArray:
    """The same labels of variables; a row without entries keeps its own as well."""
    K, n = kkt.K_pattern, kkt.n_vars
    entry = (K.row_idx < n) & (K.col_idx >= n)
    found = np.where(np.isin(np.arange(K.n_cols), K.col_idx[entry]), -1, labels)
    np.maximum.at(found, K.col_idx[entry], labels[K.row_idx[entry]])
    return found
