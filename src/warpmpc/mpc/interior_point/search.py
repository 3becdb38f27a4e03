"""The line search: full step first, then a second-order correction, then shorter steps."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from warpmpc.mpc.interior_point.constants import FILTER
from warpmpc.mpc.interior_point.control import when
from warpmpc.mpc.interior_point.filter import Acceptance, Filter
from warpmpc.mpc.interior_point.linear_system import Factorised
from warpmpc.mpc.interior_point.point import violation
from warpmpc.mpc.interior_point.problem_functions import ProblemFunctions
from warpmpc.mpc.interior_point.row_work import Direction, Eliminated, Here, Measured, RowWork
from warpmpc.mpc.stage_evaluation import Vectors


@jax.tree_util.register_dataclass
@dataclass(frozen=True, eq=False)
class Found:
    """What the line search found so far.

    Attributes:
        alpha: Step length.
        cost: Cost after the step.
        g: Rows after the step.
        theta: Sum of violations after the step.
        accepted: Whether the step is acceptable.
        descent: Whether it is a step of descent, which the filter need not remember.
        is_finite: Whether the point after the step has finite values.
    """

    alpha: jax.Array
    cost: jax.Array
    g: jax.Array
    theta: jax.Array
    accepted: jax.Array
    descent: jax.Array
    is_finite: jax.Array

    def where(self, which: jax.Array, other: Found) -> Found:
        """The other one for some instances."""
        return jax.tree.map(lambda a, b: jnp.where(which, b, a), self, other)


class LineSearch:
    """The search from one iterate."""

    def __init__(
        self,
        functions: ProblemFunctions,
        work: RowWork,
        here: Here,
        p: Vectors,
        active: jax.Array,
    ):
        """Keeps the parts.

        Args:
            functions: Functions of the problem.
            work: What is done row by row.
            here: The iterate.
            p: Parameters.
            active: Instances that take part.
        """
        self._functions, self._work, self._here = functions, work, here
        self._p, self._active = p, active

    def run(
        self, factorised: Factorised, eliminated: Eliminated, step: Direction, known: Filter
    ) -> tuple[Found, Direction]:
        """The step to take, and whether it is acceptable.

        Args:
            factorised: For second-order corrections.
            eliminated: The right-hand side that the step solves, and measures of the iterate.
            step: The Newton step.
            known: The filter.

        Returns:
            What was found, and the direction of the variables that it belongs to.
        """
        here = self._here
        accepts = Acceptance(eliminated.measures, step.slope, here.point.theta_max, known)
        full = self._trial(step, step.longest, accepts)

        def corrected(now: tuple[Found, Direction]) -> tuple[Found, Direction]:
            """A second-order correction where the full step is refused (WB, 2.4)."""
            found, _ = now
            there = self._work.trial(here, step, found.alpha)
            before = here.point.violation(here.rows)
            rest = found.alpha * before + violation(found.g, there.s, here.rows)
            low = eliminated.low + jnp.where(here.restoration.which, 0, before - rest)
            top = -factorised.slope
            solved = factorised.solve(jnp.concatenate([top, low], axis=1))
            other_step = self._work.step(here, solved)
            other = self._trial(other_step, other_step.longest, accepts)
            better = ~found.accepted & other.accepted
            mixed = jax.tree.map(lambda a, b: jnp.where(better, b, a), step, other_step)
            return found.where(better, other), mixed

        wanted = (self._active & ~full.accepted).any()
        found, primal = when(wanted, corrected, (full, step))
        return self._shortened(found, step, accepts), primal

    def _trial(self, step: Direction, alpha: jax.Array, accepts: Acceptance) -> Found:
        """One trial point."""
        trial = self._work.trial(self._here, step, alpha)
        cost, g = self._functions.values(trial.z, self._p)
        measured: Measured = self._work.measured(self._here, trial, cost, g)
        accepted, descent = accepts(alpha, measured.measures)
        return Found(alpha, cost, g, measured.theta, accepted, descent, measured.is_finite)

    def _shortened(self, found: Found, step: Direction, accepts: Acceptance) -> Found:
        """Half the step, and half of that, until it is acceptable."""

        def refused(carry: tuple[Any, Found]) -> jax.Array:
            count, found = carry
            return (count <= FILTER.halvings) & (self._active & ~found.accepted).any()

        def halved(carry: tuple[Any, Found]) -> tuple[Any, Found]:
            count, found = carry
            alpha = step.longest * 0.5 ** count.astype(step.x.dtype)
            other = self._trial(step, alpha, accepts)
            return count + 1, found.where(self._active & ~found.accepted, other)

        return jax.lax.while_loop(refused, halved, (jnp.asarray(1, dtype=jnp.int32), found))[1]
