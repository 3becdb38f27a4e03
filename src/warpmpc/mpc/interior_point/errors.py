"""Errors of an iterate in the optimality conditions of the problem and of its barrier problem."""

from __future__ import annotations

from dataclasses import dataclass

import jax
import jax.numpy as jnp

from warpmpc.mpc.interior_point.constants import BARRIER
from warpmpc.mpc.interior_point.point import Point, Rows
from warpmpc.mpc.interior_point.problem_functions import NewtonData
from warpmpc.mpc.settings import Tolerances
from warpmpc.qp.products import norm


@jax.tree_util.register_dataclass
@dataclass(frozen=True, eq=False)
class Errors:
    """Errors of the optimality conditions, ``[tiles, 1, 32]`` each.

    Attributes:
        stationarity: Largest entry of the gradient of the Lagrangian, and of that of the elastic
            variables, over `scale`.
        violation: Largest residual of a row.
        slack: Largest product of a multiplier and the distance of its row from the bound that its
            sign belongs to, over `scale`.
        largest: Largest complementarity product of a side.
        smallest: Smallest one.
        scale: Size of the gradient of the cost, at least 1.
        multipliers: Largest multiplier of a row.
    """

    stationarity: jax.Array
    violation: jax.Array
    slack: jax.Array
    largest: jax.Array
    smallest: jax.Array
    scale: jax.Array
    multipliers: jax.Array

    @classmethod
    def at(cls, point: Point, rows: Rows, data: NewtonData) -> Errors:
        """The errors at an iterate."""
        scale = jnp.maximum(1, norm(data.q))
        stationarity, slack = norm(data.slope), jnp.zeros_like(scale)
        largest, smallest = jnp.zeros_like(scale), jnp.full_like(scale, jnp.inf)
        for side in point.sides:
            for product, there in side.products(point.s):
                largest = jnp.maximum(largest, norm(jnp.where(there, product, 0)))
                least = jnp.where(there, product, jnp.inf).min(axis=1, keepdims=True)
                smallest = jnp.minimum(smallest, least)
            if side.elastic is not None:
                stationarity = jnp.maximum(stationarity, norm(side.elastic.residual(side.z)))
            slack = jnp.maximum(slack, _slack(point, side))
        violation = norm(point.violation(rows))
        relative = stationarity / scale, violation, slack / scale
        return cls(*relative, largest, smallest, scale, norm(point.y))

    @property
    def kkt(self) -> jax.Array:
        """Stationarity and complementarity."""
        return jnp.maximum(self.stationarity, jnp.maximum(self.slack, self.largest / self.scale))

    def holds(self, tol: Tolerances) -> jax.Array:
        """Whether the optimality conditions of the problem hold."""
        return (self.kkt <= tol.kkt) & (self.violation <= tol.violation)

    def of_barrier(self, mu: jax.Array) -> jax.Array:
        """Error of the barrier problem with parameter mu."""
        off = jnp.maximum(self.largest - mu, mu - self.smallest) / self.scale
        return jnp.maximum(jnp.maximum(self.stationarity, self.violation), jnp.maximum(off, 0))

    def reduced(self, mu: jax.Array, floor: float) -> jax.Array:
        """The barrier parameter, smaller if its problem is solved (WB, eq. 7)."""
        for _ in range(3):
            due = self.of_barrier(mu) <= BARRIER.kappa_eps * mu
            lower = jnp.minimum(BARRIER.kappa_mu * mu, mu**BARRIER.theta_mu)
            mu = jnp.where(due, jnp.maximum(floor, lower), mu)
        return mu


def _slack(point: Point, side) -> jax.Array:
    """Complementarity of hard rows with their values in the place of slacks."""
    y, g = side.of(point.y), side.of(point.g)
    mine = side.there & ((y > 0) if side.upper else (y < 0))
    if side.elastic is not None:
        mine = mine & ~side.elastic.gives
    return norm(jnp.where(mine, y * (side.bound - g), 0))
