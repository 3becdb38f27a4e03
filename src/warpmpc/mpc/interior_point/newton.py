"""The Newton step on the optimality conditions of the barrier problem.

Slacks, multipliers of bounds and elastic variables are eliminated by hand, so that every linear
system has the pattern of K; of a row with a slack only the diagonal entry -G changes.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import jax
import jax.numpy as jnp

from warpmpc.mpc.interior_point.constants import DELTA_C, FREE
from warpmpc.mpc.interior_point.linear_system import Factorised, NewtonSystem
from warpmpc.mpc.interior_point.point import Point, Rows, over_rows
from warpmpc.mpc.interior_point.problem_functions import NewtonData
from warpmpc.mpc.interior_point.restoration import Restoration
from warpmpc.mpc.interior_point.sides import SideStep, longest_step


@jax.tree_util.register_dataclass
@dataclass(frozen=True, eq=False)
class Direction:
    """A step of everything.

    Attributes:
        z: Step of the variables.
        s: Step of the slacks.
        y: Step of the multipliers of rows.
        sides: Steps of the sides.
        longest: Largest step that keeps slacks and elastic variables positive.
    """

    z: jax.Array
    s: jax.Array
    y: jax.Array
    sides: tuple[SideStep, ...]
    longest: jax.Array


@jax.tree_util.register_dataclass
@dataclass(frozen=True, eq=False)
class Elimination:
    """What is left of the eliminated unknowns: ``ds = (dy + pull) * compliance`` row by row.

    Attributes:
        pull: Right-hand side of the slacks' equations.
        compliance: Change of a slack per change of its row's multiplier; zero without a slack.
        G: Minus the diagonal entries of the rows in K.
    """

    pull: jax.Array
    compliance: jax.Array
    G: jax.Array

    @classmethod
    def of(cls, now: Point, rows: Rows, mu: jax.Array, weight: jax.Array) -> Elimination:
        """Eliminates.

        Args:
            now: The iterate.
            rows: What is known of the rows.
            mu: Barrier parameter.
            weight: Weight of the residual of a row per multiplier: 1 in restoration, else 0.
        """
        found = [(side, side.newton(now.s, mu)) for side in now.sides]
        forces = [(side, r + side.z) for side, (r, _) in found]
        forces = [(side, -force if side.upper else force) for side, force in forces]
        pull = now.y[:, : now.s.shape[1]] + over_rows(now.s, forces)
        stiff = over_rows(now.s, [(side, S) for side, (_, S) in found])
        slack = stiff > 0
        compliance = jnp.where(slack, jnp.minimum(1 / jnp.where(slack, stiff, 1), FREE), 0)
        delta_c = DELTA_C[str(now.s.dtype)]
        of_slack = jnp.where(slack, compliance, jnp.where(rows.fixed, delta_c, FREE))
        equal = jnp.full_like(now.y[:, now.s.shape[1] :], delta_c)
        pull = jnp.where(slack, pull, 0)
        return cls(pull, compliance, jnp.concatenate([of_slack, equal], axis=1) + weight)


class NewtonStep:
    """Steps at one iterate: several right-hand sides, one factorisation."""

    def __init__(
        self,
        system: NewtonSystem,
        at: tuple[Point, Rows, Restoration],
        data: NewtonData,
        barrier: tuple[jax.Array, jax.Array],
        delta: jax.Array,
        active: jax.Array,
    ):
        """Factorises.

        Args:
            system: Pattern and linear solver of K.
            at: The iterate, its rows, and which instances are in restoration.
            data: Derivatives at the iterate.
            barrier: The barrier parameter, and the share of the way to a bound that a step may go.
            delta: Regularisation to begin with.
            active: Instances that take part.
        """
        (self._now, rows, self._restoration), (self._mu, self._tau) = at, barrier
        self._slope, self._n_vars = data.slope, data.slope.shape[1]
        weight = self._restoration.on.astype(self._mu.dtype)
        self._eliminated = Elimination.of(self._now, rows, self._mu, weight)
        values = (data.P, data.A, self._eliminated.G)
        self.factorised = Factorised(system, values, delta, active)

    def direction(self, violation: jax.Array) -> Direction:
        """The step that removes a violation of the rows, to first order.

        In restoration it is balanced against the multipliers, which are the residuals.
        """
        now, given = self._now, self._eliminated
        violation = jnp.where(self._restoration.which, 0, violation)
        n_slack = now.s.shape[1]
        moved = given.pull * given.compliance
        low = jnp.concatenate([moved - violation[:, :n_slack], -violation[:, n_slack:]], axis=1)
        found = self.factorised.solve(jnp.concatenate([-self._slope, low], axis=1))
        dz, dy = found[:, : self._n_vars], found[:, self._n_vars :]
        ds = (dy[:, :n_slack] + given.pull) * given.compliance
        sides = tuple(side.step(now.s, ds, self._mu) for side in now.sides)
        pairs = [p for side, step in zip(now.sides, sides, strict=True)
                 for p in side.primal(now.s, step)]  # fmt: skip
        return Direction(dz, ds, dy, sides, longest_step(pairs, self._tau))

    def longest_dual(self, direction: Direction) -> jax.Array:
        """Largest step that keeps the multipliers of bounds positive."""
        steps = zip(self._now.sides, direction.sides, strict=True)
        return longest_step([p for side, step in steps for p in side.dual(step)], self._tau)


def moved(now: Point, step: Direction, alpha: jax.Array) -> Point:
    """The primal variables after a step; cost and rows are those of the old point."""
    sides = tuple(
        side.advanced(change, alpha) for side, change in zip(now.sides, step.sides, strict=True)
    )
    return replace(now, z=now.z + alpha * step.z, s=now.s + alpha * step.s, sides=sides)
