"""One SQP iteration on tiles, and the loop around it.

Linearise, solve the QP, test the optimality conditions, search along the direction.  Arrays are
``[tiles, rows, 32]``, scalars of instances ``[tiles, 1, 32]``.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import jax
import jax.numpy as jnp

from warpmpc.codegen.native.line_search import REPORT_ROWS
from warpmpc.engines.runtime.ffi import load_all
from warpmpc.mpc.line_search import Trial, choose, theta
from warpmpc.mpc.parameters import Parameters
from warpmpc.mpc.settings import SQPSettings, Tolerances
from warpmpc.mpc.sqp.subproblem import MOST_LOST, Subproblem, is_data_finite
from warpmpc.mpc.stage_evaluation import Evaluation, StageEvaluator
from warpmpc.mpc.types import History, MPCStatus, MPCWarmStart, QPState
from warpmpc.qp.loops.kernels import KernelLoop
from warpmpc.qp.products import QPMatrices, norm, total
from warpmpc.qp.qp_solver import QPSolver
from warpmpc.qp.scaling import QPData
from warpmpc.qp.types import Status


@jax.tree_util.register_dataclass
@dataclass(frozen=True, eq=False)
class Iterate:
    """State of the loop; see `Solution` for the scalars.

    `infeasible` is 1 where the last QP has no solution, or one before it had none and no QP was
    solved since; `lost` counts the QPs in a row that gave no step.
    """

    z: jax.Array
    qp: QPState
    status: jax.Array
    infeasible: jax.Array
    lost: jax.Array
    iterations: jax.Array
    qp_iterations: jax.Array
    primal: jax.Array
    dual: jax.Array
    kkt: jax.Array
    alpha: jax.Array
    accepted: jax.Array
    cost: jax.Array
    violation: jax.Array
    theta: jax.Array


@dataclass(frozen=True, eq=False)
class Direction:
    """Solution of the QP at an iterate; `broken`: the data of the QP are not finite."""

    state: QPState
    status: jax.Array
    iterations: jax.Array
    primal: jax.Array
    dual: jax.Array
    broken: jax.Array

    @property
    def usable(self) -> jax.Array:
        """Whether it is a direction at all.

        That of a QP without solution is: it leads to where the linearised rows are least violated.
        """
        return jnp.isfinite(self.state.d).all(axis=1, keepdims=True)

    @property
    def infeasible(self) -> jax.Array:
        """Whether the QP has no solution."""
        return is_infeasible(self.status)


@dataclass(frozen=True, eq=False)
class Verdict:
    """What decides whether an instance is converged; each field is one value per instance.

    Attributes:
        d_size: Largest entry of the direction.
        z_size: Largest entry of the iterate.
        accepted: Whether the line search accepted a step.
        worst: Largest violation of a hard constraint row at the iterate.
        kkt: `relative_kkt` at the iterate, with the multipliers of its QP.
        primal: Largest violation of A d = s by the solution of the QP.
    """

    d_size: jax.Array
    z_size: jax.Array
    accepted: jax.Array
    worst: jax.Array
    kkt: jax.Array
    primal: jax.Array

    def holds(self, tol: Tolerances, *, soft: bool) -> jax.Array:
        """Whether the optimality conditions hold, provided that the QP has a solution.

        `codegen.native.line_search.verdict` is the same for kernels.

        Args:
            tol: Tolerances.
            soft: Whether there are soft rows.
        """
        still = self.d_size <= tol.step * jnp.maximum(1, self.z_size)
        # Where no step is acceptable any more, the conditions alone decide.
        at_rest = still | jnp.logical_not(self.accepted)
        holds = at_rest & (self.worst <= tol.violation) & (self.kkt <= tol.kkt)
        # Multipliers of soft rows belong to s, and apply to z only where A d is s.
        return holds & (self.primal <= tol.violation) if soft else holds


def relative_kkt(stationarity: jax.Array, slack: jax.Array, unit: jax.Array) -> jax.Array:
    """Stationarity and complementarity, relative to the unit of the cost.

    Args:
        stationarity: Largest entry of the gradient of the Lagrangian.
        slack: Largest product of a multiplier and the distance to its bound.
        unit: See `mpc.sqp.subproblem.Subproblem.unit`.
    """
    return jnp.maximum(stationarity, slack) / unit


class SQPIteration:
    """The iteration for one problem."""

    def __init__(self, programs: StageEvaluator, qp: QPSolver, settings: SQPSettings):
        """Keeps the parts.

        Args:
            programs: Stage functions.
            qp: Solver for the pattern of their QPs.
            settings: Settings of the iteration.
        """
        self.programs, self.qp, self.settings = programs, qp, settings
        self._tol = settings.tolerances(programs.dtype)

    @cached_property
    def _subproblem(self) -> Subproblem:
        return Subproblem(self.programs.assembly, self.qp, self.settings)

    @property
    def matrices(self) -> QPMatrices:
        """Products with the matrices of the QPs."""
        return self.qp.matrices

    def begin(self, z: jax.Array, qp: QPState, unknown: jax.Array) -> Iterate:
        """The state before the first iteration; not finite instances do not take part.

        Args:
            z: Trajectories.
            qp: Where the first QPs start.
            unknown: Instances with a NaN among their parameters.
        """
        number = jnp.zeros((z.shape[0], 1, z.shape[2]), dtype=z.dtype)
        count = jnp.zeros(number.shape, dtype=jnp.int32)
        finite = self.has_trajectory(z) & ~unknown
        status = jnp.where(finite, MPCStatus.MAX_ITER, MPCStatus.NON_FINITE).astype(jnp.int32)
        nothing = jnp.full_like(number, jnp.nan)
        return Iterate(
            z=z,
            qp=self.started(qp),
            status=status,
            infeasible=count,
            lost=count,
            iterations=count,
            qp_iterations=count,
            primal=nothing,
            dual=nothing,
            kkt=nothing,
            alpha=number,
            accepted=count,
            cost=nothing,
            violation=nothing,
            theta=nothing,
        )

    def has_trajectory(self, z: jax.Array) -> jax.Array:
        """Instances with a trajectory to begin with: one that is finite."""
        return jnp.isfinite(z).all(axis=1, keepdims=True)

    def started(self, qp: QPState) -> QPState:
        """What the first QPs start from.

        Not finite multipliers are what an instance without a solution leaves behind.
        """
        known = [jnp.isfinite(a).all(axis=1, keepdims=True) for a in (qp.d, qp.s, qp.y)]
        return jax.tree.map(lambda a: jnp.where(known[0] & known[1] & known[2], a, 0), qp)

    def run(self, begin: Iterate, p: Parameters) -> tuple[Iterate, History | None]:
        """All iterations; with a fixed number no instance waits for any other."""
        settings, history = self.settings, None
        if settings.record:
            end, history = self._recorded(begin, p)
        elif settings.converges:
            count = jnp.asarray(0, dtype=jnp.int32)
            _, end = jax.lax.while_loop(
                lambda c: (c[0] < settings.max_iter) & (c[1].status == MPCStatus.MAX_ITER).any(),
                lambda c: (c[0] + 1, self.step(c[1], p)),
                (count, begin),
            )
        else:
            end = jax.lax.fori_loop(0, settings.max_iter, lambda _, now: self.step(now, p), begin)
        return final(end), history

    def _recorded(self, begin: Iterate, p: Parameters) -> tuple[Iterate, History]:
        """Runs all iterations and records what each of them did."""

        def step(now: Iterate, _: None) -> tuple[Iterate, History]:
            after = self.step(now, p)
            took_part = after.iterations > now.iterations
            rows = (after.cost, after.theta, after.alpha, after.accepted, after.kkt)
            recorded = [jnp.where(took_part, row, jnp.nan).astype(begin.z.dtype) for row in rows]
            return after, History(*recorded)

        end, history = jax.lax.scan(step, begin, None, length=self.settings.max_iter)
        # [iterations, tiles, 1, 32] to rows of tiles.
        return end, jax.tree.map(lambda a: jnp.moveaxis(a[:, :, 0], 0, 1), history)

    def step(self, now: Iterate, p: Parameters, *, always: bool = False) -> Iterate:
        """One iteration.

        Args:
            now: The state before.
            p: Parameters.
            always: Whether instances move that are converged already; with a fixed number of
                iterations they do.
        """
        self._load(now.z.shape[0], now.z.shape[2])
        always = always or not self.settings.converges
        active = now.status == MPCStatus.MAX_ITER
        if always:
            active = now.status != MPCStatus.NON_FINITE
        data = self._subproblem.damped(self.programs.linearize(now.z, p, now.qp.y), now.lost)
        unit = self._subproblem.unit(data)
        found = self.direction(data, now.qp, active, unit)
        usable = found.usable
        state = jax.tree.map(lambda a: jnp.where(usable, a, 0), found.state)
        trial, all_points = self._trial(now.z, state, data, p)
        # Multipliers of a QP without solution grow without bound: they say how much feasibility
        # matters, but are no start for the next QP.
        state = replace(state, y=jnp.where(found.infeasible, 0, state.y))
        choice = choose(trial, self.settings)
        verdict = Verdict(
            d_size=norm(state.d),
            z_size=norm(now.z),
            accepted=choice.accepted,
            worst=trial.here.worst[0],
            kkt=self._kkt_residual(data, state, unit),
            primal=found.primal,
        )
        holds = verdict.holds(self._tol, soft=data.soft is not None)
        converged = usable & ~found.infeasible & holds
        no_step = ~converged & ~(usable & choice.accepted)
        again = no_step & ~found.broken & (now.lost < _most_lost(found.infeasible))
        again &= (found.status != Status.INVALID_BOUNDS) & self.settings.converges & (not always)
        state = jax.tree.map(lambda a: jnp.where(again, 0, a), state)
        moves = usable & (~converged | always) & ~again
        position = jnp.where(moves & (choice.alpha > 0), choice.index + 1, 0)
        alpha = jnp.where(position > 0, choice.alpha, 0)
        at_new = jax.tree.map(
            lambda a: jnp.take_along_axis(a, position[None], axis=0)[0], all_points
        )
        status = status_of(usable, found.status, converged, choice.accepted, found.broken)
        still_infeasible = (now.infeasible == 1) & (found.status != Status.SOLVED)
        still_infeasible &= self.settings.converges
        after = Iterate(
            z=jnp.where(position > 0, now.z + alpha * state.d, now.z),
            qp=state,
            status=jnp.where(again, jnp.int32(MPCStatus.MAX_ITER), status),
            infeasible=(found.infeasible | still_infeasible).astype(jnp.int32),
            lost=jnp.where(again, now.lost + 1, 0),
            iterations=now.iterations + 1,
            qp_iterations=now.qp_iterations + found.iterations,
            primal=found.primal,
            dual=found.dual,
            kkt=verdict.kkt,
            alpha=alpha,
            accepted=(choice.accepted & usable).astype(jnp.int32),
            cost=at_new.cost,
            violation=at_new.worst,
            theta=theta(at_new, self.settings),
        )
        return jax.tree.map(lambda new, old: jnp.where(active, new, old), after, now)

    def _load(self, tiles: int, lanes: int) -> None:
        """Compiles all kernels of an iteration at the same time, the shortest first."""
        loop = self.qp.loop
        of_loop = loop.to_load(tiles) if isinstance(loop, KernelLoop) else []
        load_all([*of_loop, *self.programs.to_load()], lanes)

    def phase_cycles(self, p: Parameters, start: MPCWarmStart) -> dict[str, float] | None:
        """Mean cycles of the phases inside one launch; None where a solve is several launches.

        Args:
            p: Parameters of a batch, batch first.
            start: Start of the solve, batch first.
        """
        del p, start
        return None

    def direction(
        self, data: QPData, state: QPState, active: jax.Array, unit: jax.Array
    ) -> Direction:
        """Solves the QP in the engine's layout; `unit` is the unit of its cost."""
        if self.settings.restarts_qp:
            state = QPState(jnp.zeros_like(state.d), jnp.zeros_like(state.s), state.y)
        posed = self._subproblem.posed(data, state, unit)
        ours, begin = state.d.shape[2], posed.start
        lanes = 1 if self.qp.lanes == 1 else ours
        given = (posed.data, (begin.d, begin.s, begin.y), active)
        x, y, _, (s, *rest) = self.qp.iterate(*jax.tree.map(lambda a: regrouped(a, lanes), given))
        x, s, y, status, iterations, primal, dual = (regrouped(a, ours) for a in (x, s, y, *rest))
        broken = ~is_data_finite(data)
        dual = dual * posed.unit
        return Direction(posed.solution(x, s, y), status, iterations, primal, dual, broken)

    def _trial(
        self, z: jax.Array, state: QPState, data: QPData, p: Parameters
    ) -> tuple[Trial, Evaluation]:
        """Evaluates the ladder in one launch; also all points, the iterate first."""
        steps = jnp.asarray([0.0, *self.settings.line_search.ladder], dtype=z.dtype)
        points = z[None] + steps[:, None, None, None] * state.d[None]
        flat = self.programs.evaluate(points.reshape(-1, *z.shape[1:]), p)
        everywhere = jax.tree.map(
            lambda a: a.reshape(steps.size, *z.shape[:1], 1, z.shape[2]), flat
        )
        here = jax.tree.map(lambda a: a[:1], everywhere)
        there = jax.tree.map(lambda a: a[1:], everywhere)
        slope = total(data.q * state.d) + self._penalty_change(data, state)
        return Trial(here, there, slope[None], norm(state.y)[None]), everywhere

    def _penalty_change(self, data: QPData, state: QPState) -> jax.Array | float:
        """What the QP expects the penalties of soft rows to change by."""
        rows = self.programs.soft_rows
        if data.soft is None:
            return 0.0
        Ad = self.matrices.A.product(data.A, state.d)[:, rows]
        lower, upper = data.lower[:, rows], data.upper[:, rows]
        weights = jnp.split(data.soft, 4, axis=1)
        return total(_penalty(Ad, lower, upper, weights) - _penalty(0 * Ad, lower, upper, weights))

    def _kkt_residual(self, data: QPData, state: QPState, unit: jax.Array) -> jax.Array:
        """Stationarity and complementarity at the iterate, with the multipliers of its QP."""
        y = state.y
        slope = norm(data.q + self.matrices.AT.product(data.A, y))
        distance = jnp.where(y > 0, data.upper, data.lower)
        known = (y != 0) & self._subproblem.is_hard & jnp.isfinite(distance)
        return relative_kkt(slope, norm(y * jnp.where(known, distance, 0)), unit)


def _most_lost(infeasible: jax.Array) -> jax.Array:
    """QPs in a row without a step after which an instance gives up.

    Damping does not change whether a QP has a solution: where it has none, one more is enough.
    """
    return jnp.where(infeasible, 1, MOST_LOST)


def final(end: Iterate) -> Iterate:
    """The state after the last iteration: the direction of a QP without solution was no solution.

    Before, such an instance goes on as long as its line search accepts steps.
    """
    hopeless = (end.status == MPCStatus.MAX_ITER) & (end.infeasible == 1)
    status = jnp.where(hopeless, MPCStatus.QP_INFEASIBLE, end.status)
    return replace(end, status=status.astype(jnp.int32))


def is_infeasible(qp_status: jax.Array) -> jax.Array:
    """Whether a QP has no solution; one whose iteration has diverged may have one."""
    found = jnp.zeros(qp_status.shape, dtype=bool)
    for code in (Status.PRIMAL_INFEASIBLE, Status.DUAL_INFEASIBLE, Status.INVALID_BOUNDS):
        found |= qp_status == code
    return found


def status_of(
    usable: jax.Array,
    qp_status: jax.Array,
    converged: jax.Array,
    accepted: jax.Array,
    broken: jax.Array,
) -> jax.Array:
    """The worst that happened in an iteration.

    A QP may be lost although its data, which `broken` speaks of, are finite: no step was found.
    """
    infeasible = is_infeasible(qp_status)
    reason = jnp.where(infeasible, MPCStatus.QP_INFEASIBLE, MPCStatus.LINE_SEARCH_FAILED)
    status = jnp.where(accepted, MPCStatus.MAX_ITER, reason)
    status = jnp.where(converged, MPCStatus.CONVERGED, status)
    crossed = qp_status == Status.INVALID_BOUNDS
    lost = jnp.where(broken, MPCStatus.NON_FINITE, MPCStatus.LINE_SEARCH_FAILED)
    unusable = jnp.where(crossed, MPCStatus.QP_INFEASIBLE, lost)
    return jnp.where(usable, status, unusable).astype(jnp.int32)


def _penalty(
    s: jax.Array, lower: jax.Array, upper: jax.Array, weights: list[jax.Array]
) -> jax.Array:
    """Penalty of soft rows with values s; sides that stay hard cost nothing here."""
    below, above = jnp.maximum(lower - s, 0), jnp.maximum(s - upper, 0)
    cost = jnp.zeros_like(s)
    for linear, quadratic, excess in (
        (weights[0], weights[2], below),
        (weights[1], weights[3], above),
    ):
        soft = jnp.isfinite(linear)
        cost += jnp.where(
            soft, jnp.where(soft, linear, 0) * excess + 0.5 * quadratic * excess**2, 0
        )
    return cost


def regrouped(array: Any, lanes: int) -> Any:
    """``[groups, rows, lanes]`` with other lanes, from 1 or to 1."""
    if array.shape[2] == lanes:
        return array
    if lanes == 1:
        return array.transpose(0, 2, 1).reshape(array.shape[0] * array.shape[2], array.shape[1], 1)
    return array.reshape(array.shape[0] // lanes, lanes, array.shape[1]).transpose(0, 2, 1)


class Reports:
    """What kernels report of their iterations, as the state and history of the SQP loop."""

    def __init__(self, settings: SQPSettings, dtype: str, *, soft: bool = False):
        """Takes the tolerances.

        Args:
            settings: Settings of the iteration.
            dtype: "float32" or "float64".
            soft: Whether there are soft rows.
        """
        self._tol, self._scale = settings.tolerances(dtype), settings.line_search.scale
        self._converges = settings.converges
        self._soft = soft

    def iterate(
        self,
        begin: Iterate,
        new: tuple[jax.Array, QPState],
        report: jax.Array,
        spent: tuple[jax.Array, jax.Array, jax.Array | int],
        active: jax.Array,
        converged: jax.Array | None = None,
    ) -> Iterate:
        """The state after some iterations, as `SQPIteration` would have found it.

        Args:
            begin: The state before.
            new: z, and what the last QP leaves.
            report: `REPORT_ROWS` of the last iteration, ``[groups, rows, lanes]``.
            spent: Status of the last QP, iterations of all QPs, and number of QPs.
            active: Instances that take part; others stay.
            converged: Instances that the kernel found to be converged; None: it did not ask.
        """
        row = {name: report[:, i : i + 1] for i, name in enumerate(REPORT_ROWS)}
        qp_status, qp_iterations, count = spent
        usable, accepted = row["usable"] > 0, row["accepted"] > 0
        infeasible, broken = is_infeasible(qp_status), qp_status == Status.NON_FINITE
        verdict = Verdict(
            d_size=row["d_size"],
            z_size=row["z_size"],
            accepted=accepted,
            worst=row["worst_before"],
            kkt=self._kkt(row),
            primal=row["primal"],
        )
        if converged is None:
            converged = usable & ~infeasible & verdict.holds(self._tol, soft=self._soft)
        after = replace(
            begin,
            z=new[0],
            qp=new[1],
            status=status_of(usable, qp_status, converged, accepted, broken),
            infeasible=infeasible.astype(jnp.int32),
            iterations=begin.iterations + count,
            qp_iterations=begin.qp_iterations + qp_iterations,
            primal=row["primal"],
            dual=row["dual"],
            kkt=verdict.kkt,
            alpha=row["alpha"],
            accepted=accepted.astype(jnp.int32),
            cost=row["cost"],
            violation=row["worst"],
            theta=self._scale * jnp.sqrt(row["squares"]),
        )
        return jax.tree.map(lambda new, old: jnp.where(active, new, old), after, begin)

    def history(self, reports: jax.Array) -> History:
        """History of all iterations, from ``[iterations, groups, rows, lanes]``."""
        row = {name: reports[:, :, i] for i, name in enumerate(REPORT_ROWS)}
        theta = self._scale * jnp.sqrt(row["squares"])
        return History(row["cost"], theta, row["alpha"], row["accepted"], self._kkt(row))

    def _kkt(self, row: dict[str, jax.Array]) -> jax.Array:
        """Where kernels run until they converge, they report the unit of the cost."""
        unit = row["gradient"] if self._converges else jnp.maximum(1, row["gradient"])
        return relative_kkt(row["stationarity"], row["slack"], unit)
