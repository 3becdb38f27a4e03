"""One iteration of the interior-point method, for all instances of some tiles."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp

from warpmpc.mpc.interior_point.constants import BARRIER, INERTIA, RESTORATION
from warpmpc.mpc.interior_point.control import when
from warpmpc.mpc.interior_point.errors import Errors
from warpmpc.mpc.interior_point.filter import Filter
from warpmpc.mpc.interior_point.linear_system import Factorised, NewtonSystem
from warpmpc.mpc.interior_point.point import Point, Rows
from warpmpc.mpc.interior_point.problem_functions import NewtonData, ProblemFunctions
from warpmpc.mpc.interior_point.restoration import Restoration, restarted
from warpmpc.mpc.interior_point.row_work import Here, RowWork, Taken
from warpmpc.mpc.interior_point.search import LineSearch
from warpmpc.mpc.settings import Tolerances
from warpmpc.mpc.stage_evaluation import Vectors
from warpmpc.mpc.types import History, MPCStatus

RUNNING = -1
_MOST_REFUSED = 10  # iterations in a row without an acceptable step, after which one gives up


@jax.tree_util.register_dataclass
@dataclass(frozen=True, eq=False)
class State:
    """An iterate with all that the next iteration has to know.

    Attributes:
        point: The iterate.
        rows: What is known of its rows.
        known: The filter.
        delta: Last regularisation.
        restoration: Which instances are in restoration.
        status: `RUNNING`, or `MPCStatus`.
        iterations: Steps taken.
        factorisations: Matrices factorised.
        refused: Iterations in a row without an acceptable step.
        kkt: Error of stationarity and complementarity at the point, or before its last step.
        violation: Largest residual of a row there.
        stationarity: Error of stationarity there.
        alpha: Last step length.
        accepted: 1 if it was acceptable.
        history: What every iteration did, or None.
    """

    point: Point
    rows: Rows
    known: Filter
    delta: jax.Array
    restoration: Restoration
    status: jax.Array
    iterations: jax.Array
    factorisations: jax.Array
    refused: jax.Array
    kkt: jax.Array
    violation: jax.Array
    stationarity: jax.Array
    alpha: jax.Array
    accepted: jax.Array
    history: History | None

    @classmethod
    def begin(cls, point: Point, rows: Rows, usable: jax.Array, recorded: int) -> State:
        """The state before the first iteration.

        Args:
            point: The first iterate.
            rows: What is known of its rows.
            usable: Instances whose data are numbers.
            recorded: Length of the history, or 0.
        """
        nothing = jnp.zeros_like(point.cost)
        count = jnp.zeros(nothing.shape, dtype=jnp.int32)
        unknown = jnp.full_like(nothing, jnp.nan)
        status = jnp.where(rows.crossed, MPCStatus.QP_INFEASIBLE, RUNNING)
        status = jnp.where(usable, status, MPCStatus.NON_FINITE).astype(jnp.int32)
        history = None
        if recorded:
            empty = jnp.full((nothing.shape[0], recorded, nothing.shape[2]), jnp.nan, nothing.dtype)
            history = History(empty, empty, empty, empty, empty)
        return cls(
            point=point,
            rows=rows,
            known=Filter.empty(nothing),
            delta=nothing,
            restoration=Restoration.none(nothing),
            status=status,
            iterations=count,
            factorisations=count,
            refused=count,
            kkt=unknown,
            violation=unknown,
            stationarity=unknown,
            alpha=nothing,
            accepted=count,
            history=history,
        )

    def with_report(self, which: jax.Array, status: jax.Array, errors: Errors) -> State:
        """The state with status and errors of some instances."""
        return replace(
            self,
            status=status,
            kkt=jnp.where(which, errors.kkt, self.kkt),
            violation=jnp.where(which, errors.violation, self.violation),
            stationarity=jnp.where(which, errors.stationarity, self.stationarity),
        )


class Iteration:
    """The iteration of one problem."""

    def __init__(
        self,
        functions: ProblemFunctions,
        system: NewtonSystem,
        work: RowWork,
        tol: Tolerances,
        max_iter: int,
    ):
        """Keeps the parts.

        Args:
            functions: Functions of the problem.
            system: Pattern and linear solver of K.
            work: What is done row by row.
            tol: Tolerances.
            max_iter: Most iterations.
        """
        self._functions, self._system, self._work = functions, system, work
        self._tol, self._max_iter = tol, max_iter
        self.floor = BARRIER.floor * tol.kkt

    def __call__(self, now: State, p: Vectors) -> State:
        """One iteration of the instances that are running; others keep their bits."""
        rows, restoration = now.rows, now.restoration
        point = restoration.point(now.point, rows)
        data = restoration.data(self._functions.newton(point.z, p, point.y))
        errors = self._work.errors(point, rows, data)
        status = self._verdict(now, data, errors)
        active = status == RUNNING
        mu = jnp.where(restoration.which, point.mu, errors.reduced(point.mu, self.floor))
        known = now.known.emptied(mu != point.mu)
        used_mu = restoration.mu(mu, errors.violation)
        tau = jnp.maximum(BARRIER.tau_min, 1 - used_mu)
        here = Here(point, rows, restoration, data.q, used_mu, tau)
        eliminated = self._work.eliminated(here)
        factorised = Factorised(self._system, data, eliminated.G, _first_delta(now), active)
        rhs = jnp.concatenate([-data.slope, eliminated.low], axis=1)
        step = self._work.step(here, factorised.solve(rhs))
        search = LineSearch(self._functions, self._work, here, p, active)
        found, primal = search.run(factorised, eliminated, step, known)
        usable = factorised.right & step.is_finite & found.is_finite
        moves, accepted, delta = active & usable, found.accepted, factorised.delta
        taken = Taken(step, primal, found.alpha, found.cost, found.g, moves)
        moved = self._work.taken(here, now.point, taken)
        remembered = known.remembering(
            eliminated.measures.theta,
            eliminated.measures.phi,
            now.iterations % known.theta.shape[1],
            ~found.descent & ~restoration.which,
        )
        # No step was acceptable: the shortest one is taken, and the next direction is damped.
        damped = jnp.maximum(INERTIA.up * delta, INERTIA.first)
        change: dict[str, Any] = {
            "known": remembered.where(~accepted & ~restoration.which, known.emptied(~accepted)),
            "delta": jnp.where(accepted, delta, damped),
            "iterations": now.iterations + 1,
            "factorisations": now.factorisations + factorised.tries,
            "refused": jnp.where(accepted, 0, now.refused + 1),
            "alpha": found.alpha,
            "accepted": accepted.astype(jnp.int32),
        }
        if now.history is not None:
            row = (found.cost, eliminated.measures.theta, found.alpha, accepted, errors.kkt)
            change |= {"history": _recorded(now.history, row, now.iterations)}
        kept = {
            name: jax.tree.map(
                lambda new, old: jnp.where(moves, new, old), value, getattr(now, name)
            )
            for name, value in change.items()
        }
        after = replace(now, point=replace(moved, mu=jnp.where(moves, mu, now.point.mu)), **kept)
        thetas = eliminated.theta, found.theta
        after = self._restored(now, after, remembered, errors, thetas, moves)
        status = jnp.where(active, _end(active, usable, after.refused, data), status)
        return after.with_report(now.status == RUNNING, status, errors)

    def _verdict(self, now: State, data: NewtonData, errors: Errors) -> jax.Array:
        """Status of the instances at their iterates, before the step."""
        restoring = now.restoration.which
        over = now.iterations >= self._max_iter
        status = jnp.where(over, MPCStatus.MAX_ITER, RUNNING)
        stuck = now.restoration.is_stationary(data, errors.violation)
        stuck &= errors.violation > self._tol.violation
        status = jnp.where(stuck, MPCStatus.QP_INFEASIBLE, status)
        converged = errors.holds(self._tol) & ~restoring
        status = jnp.where(converged, MPCStatus.CONVERGED, status)
        return jnp.where(now.status == RUNNING, status, now.status).astype(jnp.int32)

    def _restored(
        self,
        now: State,
        after: State,
        remembered: Filter,
        errors: Errors,
        thetas: tuple[jax.Array, jax.Array],
        moves: jax.Array,
    ) -> State:
        """The state after a step, where instances enter or leave restoration.

        Args:
            now: The state before.
            after: The state after.
            remembered: The filter with the iterate before.
            errors: Errors before.
            thetas: Sums of violations before and after.
            moves: Instances that took the step.
        """
        restoring, (theta_before, theta) = now.restoration.which, thetas
        aged, stalled = now.restoration.aged(theta)
        stalled &= errors.multipliers > RESTORATION.multipliers * errors.scale
        failed = ((after.refused >= RESTORATION.after) | stalled) & ~restoring & moves
        enters = failed & (errors.violation > self._tol.violation)
        leaves = restoring & (after.accepted == 1) & (theta <= aged.target) & moves
        aged = jax.tree.map(lambda new, old: jnp.where(moves, new, old), aged, now.restoration)

        def changed(after: State) -> State:
            restoration = aged.left(leaves).entered(enters, theta_before)
            # The step that nothing could be said for is not taken.
            kept = jax.tree.map(
                lambda new, old: jnp.where(enters, old, new), after.point, now.point
            )
            fresh = restarted(kept, restoration.mu(after.point.mu, errors.violation))
            change = enters | leaves
            point = jax.tree.map(lambda new, old: jnp.where(change, new, old), fresh, kept)
            return replace(
                after,
                point=point,
                restoration=restoration,
                known=after.known.where(enters, remembered),
                delta=jnp.where(change, 0, after.delta),
                refused=jnp.where(change, 0, after.refused),
            )

        return when((enters | leaves).any(), changed, replace(after, restoration=aged))


def _first_delta(now: State) -> jax.Array:
    """Regularisation that the iteration begins with: a share of the last one, or none."""
    least = INERTIA.least * INERTIA.first
    delta = jnp.where(now.delta > least, INERTIA.down * now.delta, 0)
    return now.restoration.delta(delta)


def _end(active: jax.Array, usable: jax.Array, refused: jax.Array, data: NewtonData) -> jax.Array:
    """Status after a step: running, unless there was none."""

    def are_numbers() -> jax.Array:
        return _is_finite(data.slope) & _is_finite(data.P) & _is_finite(data.A)

    some_lost = (active & ~usable).any()
    numbers = jax.lax.cond(some_lost, are_numbers, lambda: jnp.ones_like(usable))
    lost = jnp.where(numbers, MPCStatus.LINE_SEARCH_FAILED, MPCStatus.NON_FINITE)
    status = jnp.where(refused >= _MOST_REFUSED, MPCStatus.LINE_SEARCH_FAILED, RUNNING)
    return jnp.where(usable, status, lost).astype(jnp.int32)


def _is_finite(array: jax.Array) -> jax.Array:
    return jnp.isfinite(array).all(axis=1, keepdims=True)


def _recorded(history: History, row: tuple[jax.Array, ...], at: jax.Array) -> History:
    """The history with one more row."""
    names = ("cost", "theta", "step_length", "accepted", "kkt_residual")
    found = {}
    for name, value in zip(names, row, strict=True):
        old = getattr(history, name)
        here = jnp.arange(old.shape[1])[None, :, None] == at
        found[name] = jnp.where(here, value.astype(old.dtype), old)
    return History(**found)
