"""Arrays of a solve in the units of the user and in those of a scaled problem.

Reads: `Units` of a problem.  Produces: starts in the units that the iteration works in, its results
in those of the user, and cotangents likewise.  Arrays are ``[tiles, rows, lanes]``.
"""

from __future__ import annotations

import logging
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np

from warpmpc.engines.runtime.batching import LANES, tile_count
from warpmpc.engines.runtime.ffi import host
from warpmpc.mpc.parameters import Parameters
from warpmpc.mpc.sensitivity import Arrays, SolveSensitivity, StepSensitivity
from warpmpc.mpc.sqp.general import Iterate, regrouped
from warpmpc.mpc.stage_evaluation import StageEvaluator
from warpmpc.mpc.types import History, MPCWarmStart, QPState
from warpmpc.symbolic.derivatives.units import Units

_LOG = logging.getLogger(__name__)


class UnitChange:
    """The change between the units of a user and those of a scaled problem."""

    def __init__(self, units: Units, programs: StageEvaluator):
        """Makes constants of a dtype.

        Args:
            units: The factors.
            programs: Stage functions in the units of the user.
        """
        self.units, self._programs = units, programs
        dtype = programs.dtype
        sizes = [np.log2(part) for part in (units.z, units.rows)]
        _LOG.info(
            "scaled problem: variables by 2^%d to 2^%d, rows by 2^%d to 2^%d, cost by 2^%d",
            *(bound for part in sizes for bound in (part.min(), part.max())),
            np.log2(units.cost),
        )

        def column(values: np.ndarray) -> np.ndarray:
            return values.astype(dtype)[None, :, None]

        self._z, self._rows, self._y = column(units.z), column(units.rows), column(units.y)
        self._cost = float(units.cost)

    def start(self, start: MPCWarmStart) -> MPCWarmStart:
        """A start in the units of the scaled problem."""
        qp = start.qp
        scaled = QPState(qp.d / self._z, qp.s * self._rows, qp.y / self._y)
        return MPCWarmStart(start.z / self._z, scaled)

    def end(self, end: Iterate, p: Parameters) -> Iterate:
        """Results in the units of the user; residuals and theta stay relative to the scales."""
        qp = QPState(end.qp.d * self._z, end.qp.s / self._rows, end.qp.y * self._y)
        found = replace(end, z=end.z * self._z, qp=qp, cost=end.cost / self._cost)
        return replace(found, violation=self._violation(found, p))

    def history(self, history: History | None) -> History | None:
        """The history with the cost of the user."""
        return None if history is None else replace(history, cost=history.cost / self._cost)

    def kept(self, arrays: Arrays) -> Arrays:
        """What sensitivities keep of a result, in the units of the scaled problem.

        That is z, y and the status of a solve, and z, d, s, y, step length and status of a step.
        """
        if len(arrays) == 3:
            z, y, status = arrays
            return z / self._z, y / self._y, status
        z, d, s, y, *rest = arrays
        return z / self._z, d / self._z, s * self._rows, y / self._y, *rest

    def bars(self, bars: Arrays) -> Arrays:
        """Cotangents of scaled z, y and perhaps the cost from those of the user's ones."""
        z, y, *cost = bars
        return z * self._z, y * self._y, *(part / self._cost for part in cost)

    def changes(self, moves: Arrays) -> Arrays:
        """Changes of the user's z, y and cost from those of scaled ones."""
        return self.bars(moves)

    def start_bar(self, z_bar: jax.Array) -> jax.Array:
        """Cotangent of the user's trajectory from that of the scaled one; changes likewise."""
        return z_bar / self._z

    def _violation(self, end: Iterate, p: Parameters) -> jax.Array:
        """Largest violation of a row; NaN where the iteration has none."""
        programs, groups = self._programs.for_split(p.split), end.z.shape[0]
        if end.z.shape[2] > 1 or (groups == 1 and host() is not None):
            worst = programs.evaluate(end.z, p).worst
        else:
            spare = tile_count(groups) * LANES - groups

            def tiles(array: jax.Array) -> jax.Array:
                if array.shape[0] == 1 and groups != 1:  # common to all instances
                    return jnp.broadcast_to(array, (1, array.shape[1], LANES))
                return regrouped(jnp.pad(array, ((0, spare), (0, 0), (0, 0)), mode="edge"), LANES)

            at = jax.tree.map(tiles, (end.z, p))
            worst = regrouped(programs.evaluate(*at).worst, 1)[:groups]
        return jnp.where(jnp.isnan(end.violation), jnp.nan, worst)


class SensitivityInUnits:
    """Derivatives of a solve or step of a scaled problem, in the units of the user."""

    def __init__(self, inner: StepSensitivity | SolveSensitivity, change: UnitChange):
        """Keeps both.

        Args:
            inner: Derivatives of the scaled problem.
            change: The change of units.
        """
        self._inner, self._change = inner, change
        self.of_start, self.keeps = inner.of_start, inner.keeps

    @property
    def values_per_instance(self) -> int:
        """Values in memory while cotangents of one instance are computed."""
        return self._inner.values_per_instance

    @property
    def values_forward(self) -> int:
        """Values in memory while changes of one instance are computed."""
        return self._inner.values_forward

    def forward(self, p: Parameters, start: MPCWarmStart, kept: Arrays, moves: Arrays) -> Arrays:
        """Changes of z, y and the cost."""
        p_dot, *of_start = moves
        given = (p_dot, *map(self._change.start_bar, of_start))
        return self._change.changes(self._inner.forward(*self._at(p, start, kept), given))

    def reverse(self, p: Parameters, start: MPCWarmStart, kept: Arrays, bars: Arrays) -> Arrays:
        """Cotangents of all parameters, and of the trajectory before a step."""
        p_bar, *of_start = self._inner.reverse(*self._at(p, start, kept), self._change.bars(bars))
        return p_bar, *map(self._change.start_bar, of_start)

    def check(
        self, p: Parameters, start: MPCWarmStart, kept: Arrays, bars: Arrays
    ) -> tuple[jax.Array]:
        """`GradientStatus` of instances."""
        return self._inner.check(*self._at(p, start, kept), self._change.bars(bars))

    def _at(
        self, p: Parameters, start: MPCWarmStart, kept: Arrays
    ) -> tuple[Parameters, MPCWarmStart, Arrays]:
        return p, self._change.start(start), self._change.kept(kept)
