"""How the QP of an SQP iteration is posed to the QP solver.

Reads: the QP at an iterate, the multipliers so far, and how often QPs failed before.  Produces: an
equivalent QP that loses fewer digits, and the way back of its solution.  Arrays are
``[tiles, rows, 32]``.

Three things are done, all of them only where the iteration runs until it converges:

- After a QP that gave no step, the next one is damped, and its Hessian has no multipliers.
- If QPs are scaled, the multipliers of equality rows become part of the linear cost.  What the QP
  then solves for is their change, which vanishes at a solution; rounding in the linear systems is
  relative to it.
- If they are scaled one by one, the cost is measured in its own unit, a power of two, so that the
  absolute tolerance of the QP means the same for small costs and large ones.

QPs that are not scaled are solved as they are, like those of the on-chip engine.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import jax
import jax.numpy as jnp
import numpy as np

from warpmpc.mpc.settings import SQPSettings
from warpmpc.mpc.types import QPState
from warpmpc.qp.products import norm, total
from warpmpc.qp.qp_solver import QPSolver
from warpmpc.qp.scaling import QPData
from warpmpc.symbolic.derivatives.assembly import Assembly

MOST_LOST = 3  # QPs in a row without a step after which an instance gives up
# Damping after the first QP that was lost, relative to the largest entry of P, and its growth.
FIRST_DAMPING, GROWTH = 1e-4, 100.0


def cost_unit(gradient: jax.Array, roots: jax.Array, n: int) -> jax.Array:
    """What stationarity and complementarity are measured against, in the unit of the cost.

    That is the gradient of the cost, or what it would be at a distance of one from a minimum; it
    is proportional to the cost.  `codegen.native.line_search.UNIT` is the same for kernels.

    Args:
        gradient: Largest entry of the gradient of the cost.
        roots: Sum of the square roots of the diagonal of P.
        n: Number of variables.
    """
    typical = roots / n
    unit = jnp.maximum(gradient, typical * typical)
    return jnp.where(unit > 0, unit, 1)


@jax.tree_util.register_dataclass
@dataclass(frozen=True, eq=False)
class Posed:
    """A QP as the solver gets it.

    Attributes:
        data: The QP.
        start: Where the solver starts.
        known: Multipliers that are part of its linear cost.
        unit: What its cost was divided by.
    """

    data: QPData
    start: QPState
    known: jax.Array
    unit: jax.Array

    def solution(self, x: jax.Array, s: jax.Array, y: jax.Array) -> QPState:
        """The solution of the QP as it was before."""
        return QPState(x, s, self.known + self.unit * y)


class Subproblem:
    """Poses the QPs of one problem."""

    def __init__(self, assembly: Assembly, qp: QPSolver, settings: SQPSettings):
        """Finds the diagonal of P and the soft rows on the host.

        Args:
            assembly: Index tables of the problem.
            qp: Solver of the QPs.
            settings: Settings of the iteration.
        """
        P, n_cons = assembly.P_pattern, assembly.problem.n_cons
        self._diagonal = np.flatnonzero(P.row_idx == P.col_idx)
        self._matrices, self._converges = qp.matrices, settings.converges
        self._in_changes = settings.converges and qp.settings.scaling > 0
        # What is scaled once for all depends on the unit of its cost.
        self._has_unit = qp.structure.scales_each
        hard = ~np.isin(np.arange(n_cons), assembly.soft_rows)
        self.is_hard = hard[None, :, None]

    def unit(self, data: QPData) -> jax.Array:
        """What the optimality conditions are measured against.

        With a fixed number of iterations that is the gradient of the cost, at least one.
        """
        gradient = norm(data.q)
        if not self._converges:
            return jnp.maximum(1, gradient)
        roots = total(jnp.sqrt(jnp.maximum(data.P[:, self._diagonal], 0)))
        return cost_unit(gradient, roots, data.q.shape[1])

    def damped(self, data: QPData, lost: jax.Array) -> QPData:
        """The QP with a larger diagonal where QPs before it gave no step.

        Args:
            data: The QP.
            lost: Number of such QPs in a row.
        """
        if not self._converges or not self._diagonal.size:
            return data
        share = FIRST_DAMPING * GROWTH ** (lost.astype(data.P.dtype) - 1)
        more = jnp.where(lost > 0, share * norm(data.P), 0)
        return replace(data, P=data.P.at[:, self._diagonal].add(more))

    def posed(self, data: QPData, start: QPState, unit: jax.Array) -> Posed:
        """The QP for the solver.

        Args:
            data: The QP.
            start: Start of the solver.
            unit: The unit of the cost, from `unit`.
        """
        nothing, one = jnp.zeros_like(start.y), jnp.ones_like(unit)
        if not self._in_changes:
            return Posed(data, start, nothing, one)
        equal = (data.lower == data.upper) & self.is_hard
        known = jnp.where(equal & jnp.isfinite(start.y), start.y, 0)
        data = replace(data, q=data.q + self._matrices.AT.product(data.A, known))
        by = _power_of_two(unit) if self._has_unit else one
        if self._has_unit:
            soft = None if data.soft is None else data.soft / by
            data = replace(data, P=data.P / by, q=data.q / by, soft=soft)
        return Posed(data, replace(start, y=(start.y - known) / by), known, by)


def _power_of_two(value: jax.Array) -> jax.Array:
    """A power of two near a positive value, by which numbers are divided without rounding."""
    _, exponent = jnp.frexp(value)
    return jnp.ldexp(jnp.ones_like(value), jnp.clip(exponent, -60, 60))


def is_data_finite(data: QPData) -> jax.Array:
    """Whether the values of a QP are numbers: all but its bounds and penalties finite."""
    finite = [jnp.isfinite(a).all(axis=1, keepdims=True) for a in (data.P, data.q, data.A)]
    limits = (data.lower, data.upper, data.soft)
    known = [~jnp.isnan(a).any(axis=1, keepdims=True) for a in limits if a is not None]
    every = finite[0] & finite[1] & finite[2]
    for part in known:
        every &= part
    return every
