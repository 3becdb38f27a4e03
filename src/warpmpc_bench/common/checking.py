"""Samples of a batch for checks on the host: which instances, their values, the worst of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np


def spread(batch: int, count: int) -> np.ndarray:
    """At most `count` instances spread over a batch, first and last among them."""
    return np.unique(np.linspace(0, batch - 1, count).round().astype(int))


def rows_of(array: Any, instances: np.ndarray) -> np.ndarray:
    """Some rows of a device array, in float64 on the host."""
    return np.asarray(array[instances]).astype(np.float64)


def finite_max(values: Sequence[float]) -> float | None:
    """The largest number; None if there is none or one is not finite, since JSON has no NaN."""
    return float(max(values)) if len(values) and np.isfinite(values).all() else None
