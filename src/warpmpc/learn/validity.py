"""Which samples are worth imitating: bounds from noise-free closed loops of the expert.

The filters are those of the published data set: finite, solved well enough, inside of a box around
the states of the best rollouts, and in a rollout that is not much more expensive than those.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from warpmpc.learn.controllers import RECORDED
from warpmpc.mpc.types import MPCStatus

LOW, HIGH = 10.0, 90.0  # percentiles
MARGIN, SPREADS, LEAST_SPREAD = 0.25, 2.0, 0.1


@dataclass(frozen=True)
class Bounds:
    """Limits of valid samples.

    Attributes:
        low: Least value of each state.
        high: Largest value of each state.
        cost: Largest cost of a rollout; infinite if the task has no cost.
    """

    low: tuple[float, ...]
    high: tuple[float, ...]
    cost: float

    def to_json(self) -> dict[str, Any]:
        """For the manifest; floats survive JSON exactly."""
        cost = self.cost if np.isfinite(self.cost) else None
        return {"low": list(self.low), "high": list(self.high), "cost": cost}

    @classmethod
    def from_json(cls, content: dict[str, Any]) -> Bounds:
        """Reads the bounds from the manifest."""
        cost = np.inf if content["cost"] is None else content["cost"]
        return cls(tuple(content["low"]), tuple(content["high"]), cost)


def find_bounds(x: np.ndarray, cost: np.ndarray | None) -> Bounds:
    """Limits from closed loops.

    Args:
        x: States ``[batch, steps + 1, n_x]`` of noise-free rollouts.
        cost: Cost of each; None: it does not count.
    """
    x = np.asarray(x, dtype=np.float64)
    good = np.isfinite(x).all(axis=(1, 2))
    threshold = np.inf
    if cost is not None:
        good &= np.isfinite(cost)
        if good.any():
            p90 = float(np.percentile(cost[good], HIGH))
            threshold = p90 + MARGIN + SPREADS * max(abs(p90), LEAST_SPREAD)
            good &= cost <= threshold
    if not good.any():  # nothing is valid, which is represented by an empty box
        none = (float("inf"),) * x.shape[2]
        return Bounds(none, tuple(-v for v in none), threshold)
    low, high = np.percentile(x[good].reshape(-1, x.shape[2]), [LOW, HIGH], axis=0)
    margin = MARGIN + SPREADS * np.maximum(high - low, LEAST_SPREAD)
    return Bounds(tuple((low - margin).tolist()), tuple((high + margin).tolist()), threshold)


def valid_samples(
    x: np.ndarray,
    seen: dict[str, np.ndarray],
    cost: np.ndarray | None,
    bounds: Bounds,
    limits: tuple[float, float],
) -> np.ndarray:
    """Which pairs may be learned from, ``[batch, steps]``.

    Args:
        x: States at which the expert was asked, ``[batch, steps, n_x]``.
        seen: What the expert recorded, by the names of `RECORDED`.
        cost: Cost of each rollout; None: it does not count.
        bounds: Bounds from noise-free rollouts.
        limits: Largest theta, and largest residual.
    """
    theta, primal, dual, status = (np.asarray(seen[name])[..., 0] for name in RECORDED[1:])
    valid = np.isfinite(seen["label"]).all(axis=-1)
    with np.errstate(invalid="ignore"):
        valid &= ((x >= np.array(bounds.low)) & (x <= np.array(bounds.high))).all(axis=-1)
        valid &= theta <= limits[0]
        valid &= (primal <= limits[1]) & (dual <= limits[1])
        valid &= ~np.isin(status, (MPCStatus.NON_FINITE, MPCStatus.QP_INFEASIBLE))
        if cost is not None:
            valid &= (np.isfinite(cost) & (cost <= bounds.cost))[:, None]
    return valid
