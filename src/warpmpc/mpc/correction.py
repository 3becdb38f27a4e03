"""Newton steps on the optimality conditions at a solution, before derivatives are taken there.

Reads: solutions within the tolerances of the iteration.  Produces: z and multipliers nearer to the
exact solution, and the QP there.

Derivatives jump where a row becomes active, and a row that is nearly active is on the wrong side
within the tolerances of float32.  A Newton step on stationarity and on the active rows is one
linear system, that of the derivatives; it makes the point so accurate that a sign decides about
each row: one whose multiplier changes its sign is released, one that is violated afterwards becomes
active.
Arrays are ``[tiles, rows, 32]``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from warpmpc.engines.runtime.batching import LANES
from warpmpc.mpc.settings import Tolerances
from warpmpc.mpc.sqp.general import regrouped
from warpmpc.qp.polish import on_their_sides
from warpmpc.qp.products import norm
from warpmpc.qp.scaling import QPData
from warpmpc.qp.sensitivity.active_set import Sensitivity
from warpmpc.qp.sensitivity.row_state import Point, RowState, weighted

_STEPS = 3
_FARTHEST = 10  # a longer step, in units of the tolerance of steps, belongs to another solution
_ROUNDING = 8  # violations up to so many units of rounding are none
_LEAST = 1e-30  # share of the unit of the cost that marks a row as active

Linearize = Callable[[jax.Array, jax.Array], QPData]
Unit = Callable[[QPData], jax.Array]


@jax.tree_util.register_dataclass
@dataclass(frozen=True, eq=False)
class Corrected:
    """A point, the QP there, and its error over the tolerances, ``[tiles, 1, 32]``."""

    z: jax.Array
    y: jax.Array
    data: QPData
    error: jax.Array


class Correction:
    """The steps for one problem without soft rows."""

    def __init__(self, sensitivity: Sensitivity, unit: Unit, tol: Tolerances):
        """Keeps the linear solver.

        Args:
            sensitivity: The linear solver for QPs with the exact Hessian.
            unit: The unit of the cost of a QP.
            tol: Tolerances of the iteration.
        """
        self._sensitivity, self._unit, self._tol = sensitivity, unit, tol
        self._matrices = sensitivity.matrices

    def __call__(
        self, linearize: Linearize, z: jax.Array, y: jax.Array, valid: jax.Array
    ) -> Corrected:
        """Corrects the instances in `valid`; a step counts only if the point stays a solution.

        Args:
            linearize: The QP with the exact Hessian at z and y.
            z: Solutions.
            y: Multipliers.
            valid: Instances that have a solution.
        """

        def at(z: jax.Array, y: jax.Array) -> Corrected:
            data = linearize(z, y)
            return Corrected(z, y, data, self._error(data, y))

        def once(now: tuple[Corrected, jax.Array, jax.Array]) -> tuple[Any, ...]:
            here, going, count = now
            z, y = self._step(here, going)
            there = at(z, y)
            most = jnp.maximum(here.error, 1)  # within the tolerances errors need not fall
            near = norm(z - here.z) <= _FARTHEST * self._tol.step * jnp.maximum(1, norm(here.z))
            taken = going & near & (there.error <= most)
            changed = ((there.y != 0) != (here.y != 0)).any(axis=1, keepdims=True)
            going = taken & (changed | (there.error < 0.5 * here.error))
            here = jax.tree.map(lambda new, old: jnp.where(taken, new, old), there, here)
            return here, going, count + 1

        begin = (at(z, y), valid, jnp.zeros((), dtype=jnp.int32))
        end, *_ = jax.lax.while_loop(lambda now: (now[2] < _STEPS) & now[1].any(), once, begin)
        return end

    def _step(self, here: Corrected, going: jax.Array) -> tuple[jax.Array, jax.Array]:
        """One Newton step on the active set, which changes by what it finds."""
        data, M = here.data, self._matrices
        y = jnp.where(going, here.y, 0)
        point = Point(data, jnp.zeros_like(here.z), y, going)
        rows = self._sensitivity.rows(point)
        bound = weighted(rows.lower, data.lower) + weighted(rows.upper, data.upper)
        top = -(data.q + M.AT.product(data.A, y))
        given = (point, top, jnp.where(rows.active, bound, 0))
        at, *rest = jax.tree.map(lambda a: regrouped(a, self._sensitivity.lanes), given)
        d, dy = (regrouped(a, LANES) for a in self._sensitivity.solve(at, *rest))
        y = on_their_sides(y + dy, data, rows)
        return here.z + d, self._joined(y, here, d, rows)

    def _joined(self, y: jax.Array, here: Corrected, d: jax.Array, rows: RowState) -> jax.Array:
        """Multipliers with a mark for rows that the step has violated."""
        Ad = self._matrices.A.product(here.data.A, d)
        rounding = _ROUNDING * jnp.finfo(d.dtype).eps * jnp.maximum(1, norm(here.z))
        above = ~rows.active & (Ad - here.data.upper > rounding)
        below = ~rows.active & (here.data.lower - Ad > rounding)
        mark = jnp.asarray(_LEAST, dtype=y.dtype) * self._unit(here.data)
        return jnp.where(above, mark, jnp.where(below, -mark, y))

    def _error(self, data: QPData, y: jax.Array) -> jax.Array:
        """Largest error of the optimality conditions, over its tolerance."""
        slope = norm(data.q + self._matrices.AT.product(data.A, y))
        bound = jnp.where(y > 0, data.upper, data.lower)
        slack = norm(y * weighted((y != 0).astype(y.dtype), bound))
        beyond = norm(jnp.maximum(jnp.maximum(data.lower, -data.upper), 0))
        kkt = jnp.maximum(slope, slack) / (self._unit(data) * self._tol.kkt)
        return jnp.maximum(kkt, beyond / self._tol.violation)
