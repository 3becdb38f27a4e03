"""One iteration of the interior-point method, for all instances of some tiles."""

from __future__ import annotations

from dataclasses import dataclass, replace

import jax
import jax.numpy as jnp

from warpmpc.mpc.interior_point.constants import BARRIER, INERTIA, RESTORATION
from warpmpc.mpc.interior_point.errors import Errors
from warpmpc.mpc.interior_point.filter import Filter
from warpmpc.mpc.interior_point.linear_system import NewtonSystem
from warpmpc.mpc.interior_point.newton import Direction, NewtonStep
from warpmpc.mpc.interior_point.point import Point, Rows, multipliers
from warpmpc.mpc.interior_point.problem_functions import NewtonData, ProblemFunctions
from warpmpc.mpc.interior_point.restoration import Restoration, restarted
from warpmpc.mpc.interior_point.search import Found, LineSearch
from warpmpc.mpc.settings import Tolerances
from warpmpc.mpc.stage_evaluation import Vectors
from warpmpc.mpc.types import History, MPCStatus
from warpmpc.qp.products import norm, total

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
        tol: Tolerances,
        max_iter: int,
    ):
        """Keeps the parts.

        Args:
            functions: Functions of the problem.
            system: Pattern and linear solver of K.
            tol: Tolerances.
            max_iter: Most iterations.
        """
        self._functions, self._system = functions, system
        self._tol, self._max_iter = tol, max_iter
        self.floor = BARRIER.floor * tol.kkt

    def __call__(self, now: State, p: Vectors) -> State:
        """One iteration of the instances that are running; others keep their bits."""
        rows, restoration = now.rows, now.restoration
        point = restoration.point(now.point, rows)
        data = restoration.data(self._functions.newton(point.z, p, point.y))
        errors = Errors.at(point, rows, data)
        status = self._verdict(now, data, errors)
        active = status == RUNNING
        mu = jnp.where(restoration.which, point.mu, errors.reduced(point.mu, self.floor))
        known = now.known.emptied(mu != point.mu)
        used_mu = restoration.mu(mu, errors.violation)
        barrier = (used_mu, jnp.maximum(BARRIER.tau_min, 1 - used_mu))
        newton = NewtonStep(
            self._system, (point, rows, restoration), data, barrier, _first_delta(now), active
        )
        step = newton.direction(point.violation(rows))
        search = LineSearch(self._functions, (point, rows, restoration, p), used_mu, active)
        found = search.run(newton, step, data.q, known)
        usable = newton.factorised.right & _is_finite(step.y) & found.point.is_finite
        accepted, delta = found.accepted, newton.factorised.delta
        remembered = known.remembering(
            search.here.theta,
            search.here.phi,
            now.iterations % known.theta.shape[1],
            ~found.descent & ~restoration.which,
        )
        # No step was acceptable: the shortest one is taken, and the next direction is damped.
        damped = jnp.maximum(INERTIA.up * delta, INERTIA.first)
        moved = self._moved(point, found, step, newton.longest_dual(step), used_mu, rows)
        after = replace(
            now,
            point=replace(moved, mu=mu),
            known=remembered.where(~accepted & ~restoration.which, known.emptied(~accepted)),
            delta=jnp.where(accepted, delta, damped),
            iterations=now.iterations + 1,
            factorisations=now.factorisations + newton.factorised.tries,
            refused=jnp.where(accepted, 0, now.refused + 1),
            alpha=found.alpha,
            accepted=accepted.astype(jnp.int32),
        )
        if now.history is not None:
            row = (found.point.cost, search.here.theta, found.alpha, after.accepted, errors.kkt)
            after = replace(after, history=_recorded(now.history, row, now.iterations))
        after = self._restored(now, after, remembered, errors)
        moves = active & usable
        after = jax.tree.map(lambda new, old: jnp.where(moves, new, old), after, now)
        status = jnp.where(active, _end(usable, after.refused, data), status)
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

    def _restored(self, now: State, after: State, remembered: Filter, errors: Errors) -> State:
        """The state after a step, where instances enter or leave restoration.

        Args:
            now: The state before.
            after: The state after.
            remembered: The filter with the iterate before.
            errors: Errors before.
        """
        restoring = now.restoration.which
        theta = total(jnp.abs(after.point.violation(now.rows)))
        aged, stalled = now.restoration.aged(theta)
        stalled &= norm(now.point.y) > RESTORATION.multipliers * errors.scale
        failed = ((after.refused >= RESTORATION.after) | stalled) & ~restoring
        enters = failed & (errors.violation > self._tol.violation)
        leaves = restoring & (after.accepted == 1) & (theta <= aged.target)
        after = replace(after, restoration=aged)

        def changed() -> State:
            before = total(jnp.abs(now.point.violation(now.rows)))
            restoration = aged.left(leaves).entered(enters, before)
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

        return jax.lax.cond((enters | leaves).any(), changed, lambda: after)

    @staticmethod
    def _moved(
        now: Point,
        found: Found,
        step: Direction,
        dual: jax.Array,
        mu: jax.Array,
        rows: Rows,
    ) -> Point:
        """The trial point with its multipliers."""
        there, n_slack = found.point, now.s.shape[1]
        sides = tuple(
            side.with_multipliers(there.s, change, dual, mu)
            for side, change in zip(there.sides, step.sides, strict=True)
        )
        y = now.y + found.alpha * step.y
        of_slack = jnp.where(rows.fixed, y[:, :n_slack], 0)
        y = multipliers(jnp.concatenate([of_slack, y[:, n_slack:]], axis=1), sides, n_slack)
        return replace(there, sides=sides, y=y)


def _first_delta(now: State) -> jax.Array:
    """Regularisation that the iteration begins with: a share of the last one, or none."""
    least = INERTIA.least * INERTIA.first
    delta = jnp.where(now.delta > least, INERTIA.down * now.delta, 0)
    return now.restoration.delta(delta)


def _end(usable: jax.Array, refused: jax.Array, data: NewtonData) -> jax.Array:
    """Status after a step: running, unless there was none."""
    numbers = _is_finite(data.slope) & _is_finite(data.P) & _is_finite(data.A)
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
