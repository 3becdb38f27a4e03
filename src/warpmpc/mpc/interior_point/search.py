"""The line search: full step first, then a second-order correction, then shorter steps."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp

from warpmpc.mpc.interior_point.constants import FILTER
from warpmpc.mpc.interior_point.filter import Acceptance, Filter, Measures
from warpmpc.mpc.interior_point.newton import Direction, NewtonStep, moved
from warpmpc.mpc.interior_point.point import Point, Rows
from warpmpc.mpc.interior_point.problem_functions import ProblemFunctions
from warpmpc.mpc.interior_point.restoration import Restoration, half_squares
from warpmpc.mpc.stage_evaluation import Vectors
from warpmpc.qp.products import total


@jax.tree_util.register_dataclass
@dataclass(frozen=True, eq=False)
class Found:
    """What the line search found so far.

    Attributes:
        point: The trial point.
        alpha: Its step length.
        accepted: Whether it is acceptable.
        descent: Whether it is a step of descent, which the filter need not remember.
    """

    point: Point
    alpha: jax.Array
    accepted: jax.Array
    descent: jax.Array

    def where(self, which: jax.Array, other: Found) -> Found:
        """The other one for some instances."""
        return jax.tree.map(lambda a, b: jnp.where(which, b, a), self, other)


def measures(point: Point, rows: Rows, restoration: Restoration, mu: jax.Array) -> Measures:
    """Violation and barrier cost; in restoration the violation is all of the cost."""
    terms = [term for side in point.sides for term in side.cost(point.s, mu)]
    barrier = total(jnp.concatenate(terms, axis=1)) if terms else 0
    cost = jnp.where(restoration.which, half_squares(point, rows), point.cost)
    theta = jnp.where(restoration.which, 0, total(jnp.abs(point.violation(rows))))
    return Measures(theta, cost + barrier)


def slope(
    point: Point, q: jax.Array, step: Direction, restoration: Restoration, mu: jax.Array
) -> jax.Array:
    """Directional derivative of the barrier cost.

    Args:
        point: The iterate; in restoration its multipliers are the residuals of the rows.
        q: Gradient of the cost.
        step: The direction.
        restoration: Which instances are in restoration.
        mu: Barrier parameter.
    """
    sides = zip(point.sides, step.sides, strict=True)
    terms = [term for side, change in sides for term in side.slope(point.s, change, mu)]
    of_slacks = jnp.where(restoration.which, -point.y[:, : point.s.shape[1]] * step.s, 0)
    return total(jnp.concatenate([q * step.z, of_slacks, *terms], axis=1))


class LineSearch:
    """The search from one iterate."""

    def __init__(
        self,
        functions: ProblemFunctions,
        given: tuple[Point, Rows, Restoration, Vectors],
        mu: jax.Array,
        active: jax.Array,
    ):
        """Keeps the parts.

        Args:
            functions: Functions of the problem.
            given: The iterate, its rows, which instances are in restoration, and the parameters.
            mu: Barrier parameter.
            active: Instances that take part.
        """
        self._functions, self._mu, self._active = functions, mu, active
        self._now, self._rows, self._restoration, self._p = given
        self.here = self._measures(self._now)

    def run(self, newton: NewtonStep, step: Direction, q: jax.Array, known: Filter) -> Found:
        """The step to take, and whether it is acceptable.

        Args:
            newton: For second-order corrections.
            step: The Newton step.
            q: Gradient of the cost.
            known: The filter.
        """
        downhill = slope(self._now, q, step, self._restoration, self._mu)
        accepts = Acceptance(self.here, downhill, self._now.theta_max, known)
        found = self._trial(step, step.longest, accepts)
        found = jax.lax.cond(
            (self._active & ~found.accepted).any(),
            lambda: self._corrected(found, newton, accepts),
            lambda: found,
        )
        return self._shortened(found, step, accepts)

    def _measures(self, point: Point) -> Measures:
        return measures(point, self._rows, self._restoration, self._mu)

    def _trial(self, step: Direction, alpha: jax.Array, accepts: Acceptance) -> Found:
        """One trial point."""
        there = moved(self._now, step, alpha)
        cost, g = self._functions.values(there.z, self._p)
        there = replace(there, cost=cost, g=g)
        accepted, descent = accepts(alpha, self._measures(there))
        return Found(there, alpha, accepted, descent)

    def _corrected(self, found: Found, newton: NewtonStep, accepts: Acceptance) -> Found:
        """A second-order correction where the full step is refused (WB, 2.4)."""
        before = self._now.violation(self._rows)
        after = found.point.violation(self._rows)
        step = newton.direction(found.alpha * before + after)
        other = self._trial(step, step.longest, accepts)
        return found.where(~found.accepted & other.accepted, other)

    def _shortened(self, found: Found, step: Direction, accepts: Acceptance) -> Found:
        """Half the step, and half of that, until it is acceptable."""

        def refused(carry: tuple[Any, Found]) -> jax.Array:
            count, found = carry
            return (count <= FILTER.halvings) & (self._active & ~found.accepted).any()

        def halved(carry: tuple[Any, Found]) -> tuple[Any, Found]:
            count, found = carry
            alpha = step.longest * 0.5 ** count.astype(step.z.dtype)
            other = self._trial(step, alpha, accepts)
            return count + 1, found.where(self._active & ~found.accepted, other)

        return jax.lax.while_loop(refused, halved, (jnp.asarray(1, dtype=jnp.int32), found))[1]
