"""Training data as arrays: split by rollout, statistics, and parts that fit on the device."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from warpmpc.learn.dataset import Dataset
from warpmpc.learn.errors import DataError
from warpmpc.learn.settings import TrainSettings

STD_FLOOR = 1e-3


@dataclass(frozen=True)
class Statistics:
    """Mean, standard deviation and extremes of the training pairs.

    Attributes:
        x_mean: Mean of the states.
        x_std: Standard deviation of the states, at least `STD_FLOOR`.
        u_mean: Mean of the labels.
        u_std: Standard deviation of the labels over the training data.
        x_low: Least states.
        x_high: Largest states.
    """

    x_mean: np.ndarray
    x_std: np.ndarray
    u_mean: np.ndarray
    u_std: np.ndarray
    x_low: np.ndarray
    x_high: np.ndarray


def is_validation(rollouts: np.ndarray, settings: TrainSettings) -> np.ndarray:
    """Which rollouts are for validation: a hash of number and seed, so all pairs of one agree."""
    mixed = rollouts.astype(np.uint64) + np.uint64((settings.seed + 1) * 0x9E3779B97F4A7C15 % 2**64)
    with np.errstate(over="ignore"):
        for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
            mixed = (mixed ^ (mixed >> np.uint64(shift))) * np.uint64(factor)
    mixed ^= mixed >> np.uint64(31)
    return mixed < np.uint64(int(settings.validation * 2**64))


class Parts:
    """The data in parts that fit on the device: one part, if all of it fits.

    A part is a dictionary of "x", "u" and, with derivatives, "du_dx", standardised.  All training
    parts have the same number of rows, so that they share one program; rows are repeated to fill
    the last one.
    """

    def __init__(self, data: Dataset, settings: TrainSettings):
        """Splits the shards into groups and reads their statistics."""
        self._data, self._settings = data, settings
        row = data.shards[0].dtype.itemsize
        limit = max(settings.device_bytes // row, 1)
        self.groups: list[list[int]] = [[]]
        filled = 0
        for i, shard in enumerate(data.shards):
            if filled and filled + len(shard) > limit:
                self.groups.append([])
                filled = 0
            self.groups[-1].append(i)
            filled += len(shard)
        self.statistics, counts = self._scan()
        self.rows = max(counts)
        self.validation = self._standardised(validation=True)

    def __len__(self) -> int:
        """Number of training parts."""
        return len(self.groups)

    def training(self, group: int) -> dict[str, np.ndarray]:
        """A training part."""
        records = self._records(self.groups[group], validation=False)
        full = np.resize(np.arange(len(records)), self.rows)
        return self._arrays(records[full])

    def _scan(self) -> tuple[Statistics, list[int]]:
        """Statistics of the training pairs, group by group, and the pairs in each."""
        total: dict[str, Any] = {}
        counts = []
        for group in self.groups:
            records = self._records(group, validation=False)
            counts.append(len(records))
            for name in ("x", "u"):
                values = records[name].astype(np.float64)
                sums = (values.sum(axis=0), (values**2).sum(axis=0))
                before = total.get(name, (0.0, 0.0))
                total[name] = (before[0] + sums[0], before[1] + sums[1])
            if len(records):
                low, high = records["x"].min(axis=0), records["x"].max(axis=0)
                total["low"] = np.minimum(low, total.get("low", low))
                total["high"] = np.maximum(high, total.get("high", high))
        n = sum(counts)
        if min(counts) < 1 or not any(map(self._has_validation, self.groups)):
            raise DataError(
                f"{n} training pairs are too few to be split by rollout; make more rollouts."
            )
        moments: dict[str, np.ndarray] = {}
        for name in ("x", "u"):
            mean = total[name][0] / n
            std = np.sqrt(np.maximum(total[name][1] / n - mean**2, 0))
            moments[f"{name}_mean"] = mean.astype(np.float32)
            moments[f"{name}_std"] = np.maximum(std, STD_FLOOR).astype(np.float32)
        return Statistics(**moments, x_low=total["low"], x_high=total["high"]), counts

    def _has_validation(self, group: list[int]) -> bool:
        return len(self._records(group, validation=True)) > 0

    def _standardised(self, *, validation: bool) -> dict[str, np.ndarray]:
        everything = [self._records(group, validation=validation) for group in self.groups]
        records = np.concatenate(everything)
        most = max(self._settings.device_bytes // records.dtype.itemsize, 1)
        return self._arrays(records[:most])

    def _records(self, group: list[int], *, validation: bool) -> np.ndarray:
        found = []
        for i in group:
            shard = self._data.shards[i]
            records = shard.read()
            rollouts = records["rollout"] + shard.round * 2**32  # rounds of DAgger count anew
            found.append(records[is_validation(rollouts, self._settings) == validation])
        return np.concatenate(found)

    def _arrays(self, records: np.ndarray) -> dict[str, np.ndarray]:
        s = self.statistics
        arrays = {
            "x": ((records["x"] - s.x_mean) / s.x_std).astype(np.float32),
            "u": ((records["u"] - s.u_mean) / s.u_std).astype(np.float32),
        }
        if self._settings.sobolev:
            slopes = records["du_dx"] * s.x_std / s.u_std[:, None]
            arrays["du_dx"] = slopes.astype(np.float32)
        return arrays
