"""The first iterate: slacks inside their bounds, multipliers near the central path.

A cold start has no multipliers.  The slacks of a warm start, which has, are pushed less far from
their bounds, and mu begins at the mean complementarity of what it brings.
"""

from __future__ import annotations

from dataclasses import replace

import jax
import jax.numpy as jnp

from warpmpc._conventions import INFINITY
from warpmpc.mpc.interior_point.constants import BARRIER, FILTER, FIXED
from warpmpc.mpc.interior_point.point import Point, Rows, multipliers, over_rows, violation
from warpmpc.mpc.interior_point.problem_functions import (
    ProblemFunctions,
    RowBounds,
    RowOrder,
    where_finite,
)
from warpmpc.mpc.interior_point.sides import Elastic, Side, on_path
from warpmpc.mpc.stage_evaluation import Vectors
from warpmpc.qp.products import norm, total


class Start:
    """Makes first iterates of one problem."""

    def __init__(self, functions: ProblemFunctions, order: RowOrder, floor: float):
        """Keeps the parts.

        Args:
            functions: Functions of the problem.
            order: Order of its rows.
            floor: Smallest barrier parameter.
        """
        self._functions, self._order, self._floor = functions, order, floor

    def __call__(self, z: jax.Array, y: jax.Array, p: Vectors) -> tuple[Point, Rows]:
        """The first iterate.

        Args:
            z: Trajectories.
            y: Multipliers in the order of `RowOrder`; zero for a cold start.
            p: Parameters.
        """
        n_slack = self._order.n_slack
        cost, g = self._functions.values(z, p)
        bounds = self._functions.bounds(z, p)
        lower, upper = bounds.lower[:, :n_slack], bounds.upper[:, :n_slack]
        soft = jnp.arange(n_slack)[None, :, None] < self._order.n_soft
        fixed = (upper - lower <= FIXED) & (upper >= lower) & ~soft
        warm = norm(y) > 0
        s = jnp.where(fixed, lower, self._pushed(g[:, :n_slack], bounds, warm))
        mu = jnp.full_like(cost, BARRIER.mu_init)
        sides = self._sides(bounds, fixed)
        sides = tuple(self._begun(side, s, y, mu) for side in sides)
        mu = jnp.where(warm, self._warm_mu(sides, s), mu)
        sides = tuple(on_path(side, s, mu) for side in sides)
        has = over_rows(s, [(side, side.has) for side in sides]) > 0
        crossed = (bounds.lower > bounds.upper).any(axis=1, keepdims=True)
        masks = fixed.astype(s.dtype), (has | fixed).astype(s.dtype)
        rows = Rows(bounds.lower[:, n_slack:], *masks, crossed)
        y = multipliers(jnp.where(warm, y, 0), sides, n_slack)
        # Multipliers of free rows are zero.
        y = jnp.concatenate([jnp.where(rows.some > 0, y[:, :n_slack], 0), y[:, n_slack:]], axis=1)
        theta = total(jnp.abs(violation(g, s, rows)))
        point = Point(z, s, y, sides, cost, g, mu, FILTER.theta_max * jnp.maximum(1, theta))
        return point, rows

    def _pushed(self, g: jax.Array, bounds: RowBounds, warm: jax.Array) -> jax.Array:
        """Slacks of hard rows some way inside their bounds; others stay where the rows are."""
        n_slack, n_soft = self._order.n_slack, self._order.n_soft
        lower, upper = bounds.lower[:, :n_slack], bounds.upper[:, :n_slack]
        has_lower, has_upper = lower > -INFINITY, upper < INFINITY
        if bounds.soft is not None:
            unlimited = jnp.isfinite(jnp.split(bounds.soft, 4, axis=1)[0])
            unlimited_upper = jnp.isfinite(jnp.split(bounds.soft, 4, axis=1)[1])
            pad = ((0, 0), (0, n_slack - n_soft), (0, 0))
            has_lower &= ~jnp.pad(unlimited, pad)
            has_upper &= ~jnp.pad(unlimited_upper, pad)
        width = jnp.where(has_lower & has_upper, upper - lower, jnp.inf)
        share = jnp.where(warm, BARRIER.push_warm, BARRIER.push)
        limit = BARRIER.push_width * width

        def push(bound: jax.Array) -> jax.Array:
            return jnp.minimum(share * jnp.maximum(1, jnp.abs(bound)), limit)

        lo, hi = jnp.where(has_lower, lower, 0), jnp.where(has_upper, upper, 0)
        s = jnp.where(has_lower, jnp.maximum(g, lo + push(lo)), g)
        return jnp.where(has_upper, jnp.minimum(s, hi - push(hi)), s)

    def _sides(self, bounds: RowBounds, fixed: jax.Array) -> list[Side]:
        """Sides without multipliers: those of soft rows, some of which may be hard, come first."""
        n_soft, n_slack = self._order.n_soft, self._order.n_slack
        found: list[Side] = []
        for first, last in ((0, n_soft), (n_soft, n_slack)):
            if first == last:
                continue
            for upper, given in ((False, bounds.lower), (True, bounds.upper)):
                bound = given[:, first:last]
                has = (bound < INFINITY) if upper else (bound > -INFINITY)
                has = has & ~fixed[:, first:last]
                bound = jnp.where(has, bound, 0)
                elastic = self._elastic(bounds, has, upper=upper) if first < n_soft else None
                nothing = jnp.zeros_like(bound)
                there = has.astype(bound.dtype)
                found.append(Side(nothing, there, bound, elastic, first, last, upper))
        return found

    @staticmethod
    def _elastic(bounds: RowBounds, has: jax.Array, *, upper: bool) -> Elastic:
        """Elastic variables without values."""
        assert bounds.soft is not None
        weights = jnp.split(bounds.soft, 4, axis=1)
        linear, quadratic = weights[int(upper)], weights[2 + int(upper)]
        soft = has & (linear < INFINITY)
        nothing = jnp.zeros_like(linear)
        linear, quadratic = (where_finite(jnp.where(soft, a, 0)) for a in (linear, quadratic))
        return Elastic(nothing, nothing, linear, quadratic, soft.astype(linear.dtype))

    @staticmethod
    def _begun(side: Side, s: jax.Array, y: jax.Array, mu: jax.Array) -> Side:
        """The side with elastic variables that make room, and multipliers of the start."""
        elastic, given = side.elastic, side.of(y)
        given = jnp.maximum(given if side.upper else -given, 0)
        if elastic is None:
            return replace(side, z=jnp.where(side.there, given, 0))
        e = jnp.where(elastic.gives, jnp.maximum(-side.gap(s), 0) + BARRIER.elastic, 0)
        return replace(side, z=jnp.where(side.there, given, 0), elastic=replace(elastic, e=e))

    def _warm_mu(self, sides: tuple[Side, ...], s: jax.Array) -> jax.Array:
        """Mean complementarity."""
        if not sides:
            return jnp.full((s.shape[0], 1, s.shape[2]), self._floor, dtype=s.dtype)
        products = sum(total(jnp.where(side.there, side.z * side.room(s), 0)) for side in sides)
        count = sum(total(side.has) for side in sides)
        return jnp.clip(products / jnp.maximum(count, 1), self._floor, BARRIER.mu_init)
