"""A problem as the interior-point method sees it: the order of its rows, and its functions.

Reads: a `StageEvaluator`.  Produces: `RowOrder` and `ProblemFunctions`.  Rows are reordered, so
that those with penalties, all rows with slacks and the equalities are slices of one array: soft
rows first, then other rows with slacks, then equalities.  Kernels write and read rows at these
places, so that nothing is ever moved.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from warpmpc._conventions import EQUALITY_TOLERANCE
from warpmpc.mpc.stage_evaluation import StageEvaluator, Vectors, added, cost_arrays
from warpmpc.qp.products import total
from warpmpc.symbolic.derivatives.stage_model import RowKind, StageModel, row_kinds


class RowOrder:
    """The order of rows.

    Attributes:
        n_soft: Number of soft rows, which come first.
        n_slack: Number of rows with slacks: soft ones, then others that are no equalities by form.
        n_rows: Number of all rows.
        order: Row of the problem at each place.
        place: Place of each row of the problem.
    """

    def __init__(self, evaluator: StageEvaluator):
        """Sorts the rows of a problem."""
        kinds = row_kinds(evaluator.problem, EQUALITY_TOLERANCE)
        soft = np.isin(np.arange(len(kinds)), evaluator.soft_rows)
        equal = np.array([kind is RowKind.EQUALITY for kind in kinds], dtype=bool) & ~soft
        self.n_soft, self.n_rows = int(soft.sum()), len(kinds)
        self.n_slack = self.n_rows - int(equal.sum())
        groups = [np.flatnonzero(rows) for rows in (soft, ~soft & ~equal, equal)]
        self.order = np.concatenate(groups).astype(np.int32)
        self.place = np.argsort(self.order).astype(np.int32)


@jax.tree_util.register_dataclass
@dataclass(frozen=True, eq=False)
class NewtonData:
    """What a Newton step needs of a point: values of P and A, both gradients.

    `slope` is the gradient of the Lagrangian, q that of the cost.
    """

    P: jax.Array
    q: jax.Array
    A: jax.Array
    slope: jax.Array


@jax.tree_util.register_dataclass
@dataclass(frozen=True, eq=False)
class RowBounds:
    """Bounds of all rows; penalties of soft rows as in `QPData.soft`, or None."""

    lower: jax.Array
    upper: jax.Array
    soft: jax.Array | None


class ProblemFunctions:
    """Kernels over all stages and tiles; rows are in the order of `RowOrder`."""

    def __init__(self, evaluator: StageEvaluator, rows: RowOrder):
        """Plans three kernels; each is built with its first use.

        Args:
            evaluator: The stages with their derivatives.
            rows: The order of rows.
        """
        self._evaluator = evaluator
        at = evaluator.assembly
        self._g_rows = [rows.place[table] for table in at.g_rows]
        self._newton = self._newton_kernels()
        counts = evaluator.problem.horizon + 1, rows.n_rows
        outputs: dict[str, tuple[int, Any]] = {
            "cost": (counts[0], at.stage_rows),
            "g": (counts[1], self._g_rows),
        }
        self._values = evaluator.kernels("values", StageModel.values, evaluator.cost_rows, outputs)
        self._soft = rows.n_soft > 0
        bounds: dict[str, tuple[int, Any]] = dict.fromkeys(
            ("lower", "upper"), (rows.n_rows, self._g_rows)
        )
        if self._soft:
            bounds["soft"] = (4 * rows.n_soft, at.penalty_rows)
        self._bounds = evaluator.kernels(
            "bounds",
            lambda model, name: model.bounds(name, soft=self._soft),
            evaluator.cost_rows,
            bounds,
        )

    def _newton_kernels(self) -> Any:
        evaluator, at = self._evaluator, self._evaluator.assembly
        w_rows, overlap = at.w_joined
        outputs: dict[str, tuple[int, Any]] = {
            "P": (at.P_overlap.n_rows, at.P_rows),
            "q": (at.q_overlap.n_rows, at.q_rows),
            "A": (at.A_pattern.nnz, at.A_rows),
            "slope": (overlap.n_rows, w_rows),
        }
        inputs = {**evaluator.cost_rows, "y": self._g_rows}
        return evaluator.kernels("newton", StageModel.newton, inputs, outputs)

    def newton(self, z: jax.Array, p: Vectors, y: jax.Array) -> NewtonData:
        """Derivatives at a point with its multipliers."""
        at = self._evaluator.assembly
        P, q, A, slope = self._newton(*cost_arrays(z, p), y)
        overlaps = at.P_overlap, at.q_overlap, at.w_joined[1]
        P, q, slope = (added(*pair) for pair in zip((P, q, slope), overlaps, strict=True))
        return NewtonData(P, q, A, slope)

    def values(self, z: jax.Array, p: Vectors) -> tuple[jax.Array, jax.Array]:
        """Cost without penalties, and rows."""
        cost, g = self._values(*cost_arrays(z, p))
        return total(cost), g

    def bounds(self, z: jax.Array, p: Vectors) -> RowBounds:
        """Bounds and penalties, which depend on the parameters alone."""
        lower, upper, *soft = self._bounds(*cost_arrays(z, p))
        return RowBounds(lower, upper, soft[0] if soft else None)


def where_finite(array: jax.Array, otherwise: float = 0.0) -> jax.Array:
    """The array with another number where an entry is not finite."""
    return jnp.where(jnp.isfinite(array), array, otherwise)
