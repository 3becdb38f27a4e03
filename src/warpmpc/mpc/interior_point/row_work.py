"""What the method does row by row between linear systems: the readable form, and the native one.

Slacks, multipliers of bounds and elastic variables are eliminated by hand, so that every linear
system has the pattern of K; of a row with a slack only the diagonal entry -G changes.

`GeneralRows` is JAX and serves every case; `NativeRows` calls the kernels of
`engines.interior_point`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Protocol

import jax
import jax.numpy as jnp

from warpmpc.engines.interior_point.launch import RowKernels
from warpmpc.engines.interior_point.source import Constants, RowsSource
from warpmpc.mpc.interior_point.constants import BARRIER, DELTA_C, FREE
from warpmpc.mpc.interior_point.errors import Errors
from warpmpc.mpc.interior_point.filter import Measures
from warpmpc.mpc.interior_point.point import Point, Rows, multipliers, over_rows
from warpmpc.mpc.interior_point.problem_functions import NewtonData, RowOrder
from warpmpc.mpc.interior_point.restoration import Restoration
from warpmpc.mpc.interior_point.sides import SideStep, longest_step
from warpmpc.qp.products import total


@jax.tree_util.register_dataclass
@dataclass(frozen=True, eq=False)
class Here:
    """The iterate that a step begins at.

    Attributes:
        point: The iterate; in restoration its multipliers are the residuals of the rows.
        rows: What is known of its rows.
        restoration: Which instances are in restoration.
        q: Gradient of the cost; in restoration that of half the squares.
        mu: Barrier parameter.
        tau: Share of the way to a bound that a step may go.
    """

    point: Point
    rows: Rows
    restoration: Restoration
    q: jax.Array
    mu: jax.Array
    tau: jax.Array


@jax.tree_util.register_dataclass
@dataclass(frozen=True, eq=False)
class Eliminated:
    """What is left of the rows in the linear system, and how good the iterate is.

    Attributes:
        G: Minus the diagonal entries of the rows in K.
        low: Right-hand side of the rows.
        measures: Violation and barrier cost, which the line search compares.
        theta: Sum of violations; also in restoration, where that of `measures` is zero.
    """

    G: jax.Array
    low: jax.Array
    measures: Measures
    theta: jax.Array


@jax.tree_util.register_dataclass
@dataclass(frozen=True, eq=False)
class Direction:
    """A step.

    Attributes:
        x: Steps of the variables, then of the multipliers of rows.
        s: Steps of the slacks; those of sides follow from them.
        longest: Largest step that keeps slacks and elastic variables positive.
        longest_dual: Largest step that keeps the multipliers of bounds positive.
        slope: Directional derivative of the barrier cost.
        is_finite: Whether the steps of multipliers are numbers.
    """

    x: jax.Array
    s: jax.Array
    longest: jax.Array
    longest_dual: jax.Array
    slope: jax.Array
    is_finite: jax.Array


@jax.tree_util.register_dataclass
@dataclass(frozen=True, eq=False)
class Trial:
    """A trial point without its cost and its rows.

    Attributes:
        z: Variables.
        s: Slacks.
        barrier: Penalties and barrier.
        is_finite: Whether the variables are numbers.
    """

    z: jax.Array
    s: jax.Array
    barrier: jax.Array
    is_finite: jax.Array


@jax.tree_util.register_dataclass
@dataclass(frozen=True, eq=False)
class Measured:
    """How good a trial point is; `theta` is as in `Eliminated`, `is_finite` of all of the point."""

    measures: Measures
    theta: jax.Array
    is_finite: jax.Array


@jax.tree_util.register_dataclass
@dataclass(frozen=True, eq=False)
class Taken:
    """The step to take.

    Attributes:
        step: The Newton step, which multipliers follow.
        primal: The step of variables and slacks: the same one, or a corrected one.
        alpha: Step length of the variables.
        cost: Cost after it.
        g: Rows after it.
        moves: Instances that take it.
    """

    step: Direction
    primal: Direction
    alpha: jax.Array
    cost: jax.Array
    g: jax.Array
    moves: jax.Array


class RowWork(Protocol):
    """What is done row by row."""

    def errors(self, point: Point, rows: Rows, data: NewtonData) -> Errors:
        """Errors of the optimality conditions."""
        ...

    def eliminated(self, here: Here) -> Eliminated:
        """What is left of the rows in the linear system."""
        ...

    def step(self, here: Here, x: jax.Array) -> Direction:
        """The step that belongs to a solution of the linear system."""
        ...

    def trial(self, here: Here, step: Direction, alpha: jax.Array) -> Trial:
        """The point after a part of a step."""
        ...

    def measured(self, here: Here, trial: Trial, cost: jax.Array, g: jax.Array) -> Measured:
        """How good it is."""
        ...

    def taken(self, here: Here, before: Point, taken: Taken) -> Point:
        """The next iterate; `before` is what instances keep that do not move."""
        ...


def _barrier_cost(point: Point, mu: jax.Array) -> jax.Array:
    terms = [term for side in point.sides for term in side.cost(point.s, mu)]
    return total(jnp.concatenate(terms, axis=1)) if terms else jnp.zeros_like(mu)


class GeneralRows:
    """The work in JAX."""

    def errors(self, point: Point, rows: Rows, data: NewtonData) -> Errors:
        """Errors of the optimality conditions."""
        return Errors.at(point, rows, data)

    def eliminated(self, here: Here) -> Eliminated:
        """What is left of the rows in the linear system."""
        now, rows, (pull, compliance, bounded) = here.point, here.rows, self._slack_steps(here)
        n_slack = now.s.shape[1]
        delta_c = DELTA_C[str(now.s.dtype)]
        regular = jnp.where(rows.fixed > 0, delta_c, FREE)
        of_slack = jnp.where(bounded, compliance, regular)
        equal = jnp.full_like(now.y[:, n_slack:], delta_c)
        weight = here.restoration.on.astype(now.s.dtype)
        G = jnp.concatenate([of_slack, equal], axis=1) + weight
        # In restoration the violation is balanced against the multipliers, which are the residuals.
        violation = jnp.where(here.restoration.which, 0, now.violation(rows))
        moved = pull * compliance
        low = jnp.concatenate([moved - violation[:, :n_slack], -violation[:, n_slack:]], axis=1)
        found = self._measured(here, now, _barrier_cost(now, here.mu))
        return Eliminated(G, low, found.measures, found.theta)

    def step(self, here: Here, x: jax.Array) -> Direction:
        """The step that belongs to a solution of the linear system."""
        now, n_vars, n_slack = here.point, here.q.shape[1], here.point.s.shape[1]
        pull, compliance, _ = self._slack_steps(here)
        dz, dy = x[:, :n_vars], x[:, n_vars:]
        ds = (dy[:, :n_slack] + pull) * compliance
        steps = list(zip(now.sides, self._sides(here, ds), strict=True))
        primal = [pair for side, step in steps for pair in side.primal(now.s, step)]
        dual = [pair for side, step in steps for pair in side.dual(step)]
        slopes = [term for side, step in steps for term in side.slope(now.s, step, here.mu)]
        of_slacks = jnp.where(here.restoration.which, -now.y[:, :n_slack] * ds, 0)
        slope = total(jnp.concatenate([here.q * dz, of_slacks, *slopes], axis=1))
        finite = jnp.isfinite(dy).all(axis=1, keepdims=True)
        longest = longest_step(primal, here.tau), longest_step(dual, here.tau)
        return Direction(x, ds, *longest, slope, finite)

    def trial(self, here: Here, step: Direction, alpha: jax.Array) -> Trial:
        """The point after a part of a step."""
        there = self._moved(here, step, alpha)
        finite = jnp.isfinite(there.z).all(axis=1, keepdims=True)
        return Trial(there.z, there.s, _barrier_cost(there, here.mu), finite)

    def measured(self, here: Here, trial: Trial, cost: jax.Array, g: jax.Array) -> Measured:
        """How good it is."""
        there = replace(here.point, z=trial.z, s=trial.s, cost=cost, g=g)
        found = self._measured(here, there, trial.barrier)
        finite = found.is_finite & trial.is_finite & jnp.isfinite(cost)
        return replace(found, is_finite=finite & jnp.isfinite(g).all(axis=1, keepdims=True))

    def taken(self, here: Here, before: Point, taken: Taken) -> Point:
        """The next iterate."""
        now, mu, n_slack = here.point, here.mu, here.point.s.shape[1]
        there = self._moved(here, taken.primal, taken.alpha)
        steps = zip(there.sides, self._sides(here, taken.step.s), strict=True)
        dual = taken.step.longest_dual
        sides = tuple(side.with_multipliers(there.s, step, dual, mu) for side, step in steps)
        y = now.y + taken.alpha * taken.step.x[:, here.q.shape[1] :]
        of_slack = jnp.where(here.rows.fixed > 0, y[:, :n_slack], 0)
        y = multipliers(jnp.concatenate([of_slack, y[:, n_slack:]], axis=1), sides, n_slack)
        new = replace(there, sides=sides, y=y, cost=taken.cost, g=taken.g)
        return jax.tree.map(lambda a, b: jnp.where(taken.moves, a, b), new, before)

    @staticmethod
    def _slack_steps(here: Here) -> tuple[jax.Array, jax.Array, jax.Array]:
        """(pull, compliance) of ``ds = (dy + pull) * compliance``, and which rows have a bound."""
        now, mu = here.point, here.mu
        found = [(side, side.newton(now.s, mu)) for side in now.sides]
        forces = [(side, r + side.z) for side, (r, _) in found]
        forces = [(side, -force if side.upper else force) for side, force in forces]
        pull = now.y[:, : now.s.shape[1]] + over_rows(now.s, forces)
        stiff = over_rows(now.s, [(side, S) for side, (_, S) in found])
        bounded = stiff > 0
        compliance = jnp.where(bounded, jnp.minimum(1 / jnp.where(bounded, stiff, 1), FREE), 0)
        return jnp.where(bounded, pull, 0), compliance, bounded

    @staticmethod
    def _sides(here: Here, ds: jax.Array) -> tuple[SideStep, ...]:
        """Steps of all sides."""
        return tuple(side.step(here.point.s, ds, here.mu) for side in here.point.sides)

    def _moved(self, here: Here, step: Direction, alpha: jax.Array) -> Point:
        """Primal variables after a step; cost and rows are those of the old point."""
        now, n_vars = here.point, here.q.shape[1]
        pairs = zip(now.sides, self._sides(here, step.s), strict=True)
        sides = tuple(side.advanced(change, alpha) for side, change in pairs)
        z, s = now.z + alpha * step.x[:, :n_vars], now.s + alpha * step.s
        return replace(now, z=z, s=s, sides=sides)

    @staticmethod
    def _measured(here: Here, point: Point, barrier: jax.Array) -> Measured:
        """Violation and barrier cost; in restoration the violation is all of the cost."""
        violation, which = point.violation(here.rows), here.restoration.which
        theta, half_squares = total(jnp.abs(violation)), 0.5 * total(violation**2)
        phi = jnp.where(which, half_squares, point.cost) + barrier
        return Measured(Measures(jnp.where(which, 0, theta), phi), theta, jnp.isfinite(theta))


class NativeRows:
    """The work in kernels."""

    def __init__(self, order: RowOrder, dtype: str):
        """Declares the kernels.

        Args:
            order: The order of rows.
            dtype: "float32" or "float64".
        """
        constants = Constants(DELTA_C[dtype], FREE, BARRIER.kappa_sigma)
        soft, hard = order.n_soft > 0, order.n_slack > order.n_soft
        self._kernels = RowKernels(RowsSource(soft, hard, dtype, constants))

    def errors(self, point: Point, rows: Rows, data: NewtonData) -> Errors:
        """Errors of the optimality conditions."""
        arrays = {**_of_point(point, rows), "q": data.q, "slope_of_L": data.slope}
        return Errors(*_each(self._kernels.errors(arrays)))

    def eliminated(self, here: Here) -> Eliminated:
        """What is left of the rows in the linear system."""
        G, low, report = self._kernels.eliminated(_of_here(here))
        theta, phi, violations = _each(report)
        return Eliminated(G, low, Measures(theta, phi), violations)

    def step(self, here: Here, x: jax.Array) -> Direction:
        """The step that belongs to a solution of the linear system."""
        ds, report = self._kernels.step({**_of_here(here), "x": x})
        longest, longest_dual, slope, poison = _each(report)
        return Direction(x, ds, longest, longest_dual, slope, poison == 0)

    def trial(self, here: Here, step: Direction, alpha: jax.Array) -> Trial:
        """The point after a part of a step."""
        given = {**_of_here(here), "x": step.x, "moves": step.s, "alpha": alpha}
        z, s, report = self._kernels.trial(given)
        barrier, poison = _each(report)
        return Trial(z, s, barrier, poison == 0)

    def measured(self, here: Here, trial: Trial, cost: jax.Array, g: jax.Array) -> Measured:
        """How good it is."""
        poison = jnp.where(trial.is_finite, 0, jnp.nan).astype(cost.dtype)
        barrier = jnp.concatenate([trial.barrier, poison], axis=1)
        of_trial = {"slacks": trial.s, "rows": g, "cost": cost, "barrier_cost": barrier}
        report = self._kernels.measured({**_of_here(here), **of_trial})
        theta, phi, violations, poison = _each(report)
        return Measured(Measures(theta, phi), violations, poison == 0)

    def taken(self, here: Here, before: Point, taken: Taken) -> Point:
        """The next iterate."""
        moves = taken.moves.astype(here.mu.dtype)
        given = {
            **_of_here(here),
            "duals_before": before.y,
            "x": taken.step.x,
            "moves": taken.step.s,
            "x_taken": taken.primal.x,
            "moves_taken": taken.primal.s,
            "steps": jnp.concatenate([taken.alpha, taken.step.longest_dual, moves], axis=1),
        }
        found = self._kernels.taken(given)
        sides = []
        for i, side in enumerate(before.sides):
            elastic = side.elastic
            if elastic is not None:
                elastic = replace(elastic, e=found[f"e{i}"], w=found[f"w{i}"])
            sides.append(replace(side, z=found[f"z{i}"], elastic=elastic))
        return replace(
            before,
            z=found["z"],
            s=found["s"],
            y=found["y"],
            sides=tuple(sides),
            cost=jnp.where(taken.moves, taken.cost, before.cost),
            g=jnp.where(taken.moves, taken.g, before.g),
        )


def _each(report: jax.Array) -> list[jax.Array]:
    """Rows of a report."""
    return jnp.split(report, report.shape[1], axis=1)


def _of_point(point: Point, rows: Rows) -> dict[str, jax.Array]:
    """Arrays of an iterate as kernels name them."""
    arrays = {
        "z": point.z,
        "slacks": point.s,
        "duals": point.y,
        "cost": point.cost,
        "rows": point.g,
        "target": rows.target,
        "fixed": rows.fixed,
        "some": rows.some,
    }
    for i, side in enumerate(point.sides):
        arrays |= {f"z{i}": side.z, f"has{i}": side.has, f"bound{i}": side.bound}
        if side.elastic is not None:
            names = ("e", "w", "linear", "quadratic", "soft")
            arrays |= {f"{name}{i}": getattr(side.elastic, name) for name in names}
    return arrays


def _of_here(here: Here) -> dict[str, jax.Array]:
    """Arrays of a point with what a step needs."""
    return {
        **_of_point(here.point, here.rows),
        "q": here.q,
        "barrier": jnp.concatenate([here.mu, here.tau], axis=1),
        "restoring": here.restoration.on.astype(here.mu.dtype),
    }


def native_rows(order: RowOrder, dtype: str) -> RowWork:
    """The work in kernels."""
    return NativeRows(order, dtype)


def general_rows(order: RowOrder, dtype: str) -> RowWork:
    """The work in JAX."""
    del order, dtype
    return GeneralRows()


# By name of a linear solver: the dense one is the oracle, and so are its rows.
ROW_WORK: dict[str, Callable[[RowOrder, str], RowWork]] = {
    "staged": native_rows,
    "sparse": native_rows,
    "dense": general_rows,
}
