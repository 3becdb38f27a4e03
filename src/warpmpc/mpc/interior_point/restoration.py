"""Feasibility restoration: where no step is acceptable, only the violation is minimised.

For an instance in restoration half the sum of squares of the residuals c of the rows takes the
place of the cost: a Gauss-Newton method with the same barrier, whose system has the pattern of K.
With ``lambda = c`` its Newton equations are ``[[delta I, A'], [A, -(G + I)]]``: all that changes
are the values.  It ends where the violation has fallen by a share, or at a point where it cannot
fall: the problem is locally infeasible.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import jax
import jax.numpy as jnp

from warpmpc.mpc.interior_point.constants import RESTORATION
from warpmpc.mpc.interior_point.point import Point, Rows
from warpmpc.mpc.interior_point.problem_functions import NewtonData
from warpmpc.mpc.interior_point.sides import on_path
from warpmpc.qp.products import norm


@jax.tree_util.register_dataclass
@dataclass(frozen=True, eq=False)
class Restoration:
    """Which instances are in restoration, and where it ends.

    Attributes:
        on: 1 for instances in restoration.
        target: Violation to be reached: in restoration, and otherwise after some iterations.
        age: Iterations since the target was set.
    """

    on: jax.Array
    target: jax.Array
    age: jax.Array

    @classmethod
    def none(cls, like: jax.Array) -> Restoration:
        """No instance is."""
        count = jnp.zeros(like.shape, dtype=jnp.int32)
        return cls(count, jnp.full_like(like, jnp.inf), count)

    @property
    def which(self) -> jax.Array:
        """Instances in restoration."""
        return self.on == 1

    def entered(self, which: jax.Array, theta: jax.Array) -> Restoration:
        """The state with more instances in it, at their violation."""
        target = jnp.where(which, RESTORATION.share * theta, self.target)
        return replace(self, on=jnp.where(which, 1, self.on), target=target)

    def left(self, which: jax.Array) -> Restoration:
        """The state without some instances."""
        return replace(self, on=jnp.where(which, 0, self.on))

    def aged(self, theta: jax.Array) -> tuple[Restoration, jax.Array]:
        """One iteration later, and instances whose violation has not fallen for too long.

        Args:
            theta: Violation after the iteration.
        """
        due = (self.age + 1 >= RESTORATION.span) & ~self.which
        target = jnp.where(due, RESTORATION.share * theta, self.target)
        age = jnp.where(due, 0, self.age + 1)
        return replace(self, target=target, age=age), due & (theta > self.target)

    def point(self, now: Point, rows: Rows) -> Point:
        """The iterate with residuals in the place of multipliers."""
        return replace(now, y=jnp.where(self.which, now.violation(rows), now.y))

    def data(self, data: NewtonData) -> NewtonData:
        """Derivatives of the problem that is solved: in restoration those of half the squares."""
        slope = jnp.where(self.which, data.slope - data.q, data.slope)
        q = jnp.where(self.which, slope, data.q)
        return NewtonData(jnp.where(self.which, 0, data.P), q, data.A, slope)

    def mu(self, mu: jax.Array, violation: jax.Array) -> jax.Array:
        """The barrier parameter: in restoration one that is small against the violation."""
        small = jnp.maximum(RESTORATION.mu * violation**2, RESTORATION.least_mu)
        return jnp.where(self.which, jnp.minimum(mu, small), mu)

    def delta(self, delta: jax.Array) -> jax.Array:
        """The first regularisation, which is never zero in restoration."""
        return jnp.where(self.which, jnp.maximum(delta, RESTORATION.delta), delta)

    def is_stationary(self, data: NewtonData, violation: jax.Array) -> jax.Array:
        """Whether the violation cannot fall to first order."""

        def flat() -> jax.Array:
            size = norm(data.A) * violation
            return norm(data.slope) <= RESTORATION.stationary * size

        nowhere = jnp.zeros(violation.shape, dtype=bool)
        return self.which & jax.lax.cond(self.which.any(), flat, lambda: nowhere)


def restarted(point: Point, mu: jax.Array) -> Point:
    """The point with multipliers for a new start on the problem itself."""
    sides = tuple(
        on_path(replace(side, z=jnp.zeros_like(side.z)), point.s, mu) for side in point.sides
    )
    return replace(point, sides=sides, y=jnp.zeros_like(point.y))
