"""Orders of elimination by stages: from one end of the horizon, or from both ends to its middle.

Reads: the KKT pattern and stage labels.  Produces: for each node the position of its stage in the
order.  Of a two-sided order the first half of the stages is ascending, the second half descending,
and the middle stage is last.  The halves do not touch, so they can be eliminated at the same time.

A row that couples two stages may count to either of them.  That decides what a half hands on to the
next stage, and so the fill: rows, if they count to the stage nearer to the middle, else variables.
The halves are mirror images: what is an early stage for one is a late one for the other.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from warpmpc._errors import PatternError
from warpmpc.symbolic.kkt import KKTPattern
from warpmpc.symbolic.pattern import IntArray

LEAST_STAGES = 3
# Fill that handing on rows is worth: in float32, where equalities have a large rho, handing on
# variables costs two digits.
_WORTH = 1.25


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
