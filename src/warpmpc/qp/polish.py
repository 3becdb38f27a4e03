"""Polishing: one solve on the active set of a solution, accepted where residuals fall.

The rows with a multiplier are equations at the solution.  A Newton step on them and on stationarity
is one linear system, that of derivatives (`qp.sensitivity`): same pattern, same guarded refinement.
The step is taken from where the iteration ended, so its right-hand side is the residuals, and
digits that are right already are not lost again.
"""

from __future__ import annotations

from dataclasses import dataclass

import jax
import jax.numpy as jnp

from warpmpc._errors import SettingsError
from warpmpc.qp.linear_solvers.kkt_solvers import KKTEngine
from warpmpc.qp.products import total
from warpmpc.qp.scaling import QPData, Residuals
from warpmpc.qp.sensitivity.active_set import KKTSensitivity
from warpmpc.qp.sensitivity.row_state import Point, RowState, weighted
from warpmpc.qp.structure import QPStructure
from warpmpc.qp.termination import residuals

_ENOUGH = 10  # residuals of so many units of rounding need not fall


@jax.tree_util.register_dataclass
@dataclass(frozen=True, eq=False)
class Polished:
    """Where instances are after polishing; all arrays are those of the unscaled problem."""

    x: jax.Array
    s: jax.Array
    y: jax.Array
    objective: jax.Array
    primal: jax.Array
    dual: jax.Array


class Polish:
    """Polishes solutions of QPs with one pattern."""

    def __init__(self, engine: KKTEngine, structure: QPStructure):
        """Keeps the linear solver.

        Args:
            engine: Linear solver for the pattern of K.
            structure: Patterns of the QPs.
        """
        self._steps = KKTSensitivity(engine, structure)
        self._matrices = structure.matrices
        self.lanes, self.values_per_instance = engine.lanes, self._steps.values_per_instance

    def __call__(self, data: QPData, given: Polished, solved: jax.Array) -> Polished:
        """Polishes the instances in `solved` where it helps; others keep every bit."""
        x, y = (jnp.where(solved, array, 0) for array in (given.x, given.y))
        at, M = Point(data, x, y, solved), self._matrices
        rows = self._steps.rows(at)
        bound = weighted(rows.lower, data.lower) + weighted(rows.upper, data.upper)
        top = -(M.P.product(data.P, x) + data.q + M.AT.product(data.A, y))
        bottom = jnp.where(rows.active, bound - M.A.product(data.A, x), 0)
        dx, dy = self._steps.solve(at, top, bottom)
        x = x + dx
        y = on_their_sides(y + dy, data, rows)
        inside = jnp.clip(M.A.product(data.A, x), data.lower, data.upper)
        s = jnp.where(rows.active, bound, inside)
        before = residuals(data, M, given.x, given.s, given.y)
        after = residuals(data, M, x, s, y)
        better = solved & _improves(before, after)
        Px = M.P.product(data.P, x)
        found = Polished(x, s, y, total((0.5 * Px + data.q) * x), after.primal, after.dual)
        return jax.tree.map(lambda new, old: jnp.where(better, new, old), found, given)


def on_their_sides(y: jax.Array, data: QPData, rows: RowState) -> jax.Array:
    """Multipliers with the sign of the bound that their row is at; none elsewhere."""
    one_sided = jnp.where(rows.upper > 0, jnp.maximum(y, 0), jnp.minimum(y, 0))
    return jnp.where(rows.active, jnp.where(data.lower == data.upper, y, one_sided), 0)


def _improves(before: Residuals, after: Residuals) -> jax.Array:
    """Whether both residuals fall, but for one that is rounding already; not finite ones do not."""

    def falls(old: jax.Array, new: jax.Array, scale: jax.Array) -> tuple[jax.Array, jax.Array]:
        rounding = _ENOUGH * jnp.finfo(old.dtype).eps * scale
        return new < old, (new < old) | (new <= rounding)

    of_primal = falls(before.primal, after.primal, before.primal_scale)
    of_dual = falls(before.dual, after.dual, before.dual_scale)
    return (of_primal[0] | of_dual[0]) & of_primal[1] & of_dual[1]


def check_polish(structure: QPStructure, engine: str, *, exact: bool) -> None:
    """Raises if solutions cannot be polished.

    Args:
        structure: Patterns and settings of the QPs.
        engine: Name of the engine, for messages.
        exact: Whether the engine has an exact linear solver.
    """
    if structure.soft is not None:
        raise SettingsError("polish=True does not know soft rows; leave one of the two out.")
    if not exact:
        raise SettingsError(
            f'Engine "{engine}" is too inexact to polish: use engine="sparse", or polish=False.'
        )
