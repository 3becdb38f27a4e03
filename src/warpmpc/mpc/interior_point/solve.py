"""Solves of batches by the interior-point method: from warm starts to iterates of `MPCSolver`."""

from __future__ import annotations

from dataclasses import dataclass

import jax
import jax.numpy as jnp

from warpmpc.engines.runtime.batching import LANES, vector_lanes
from warpmpc.mpc.interior_point.iteration import Iteration, State
from warpmpc.mpc.interior_point.linear_system import KKTLayout, NewtonSystem
from warpmpc.mpc.interior_point.pool import Job, Pool
from warpmpc.mpc.interior_point.problem_functions import ProblemFunctions, RowOrder
from warpmpc.mpc.interior_point.row_work import ROW_WORK
from warpmpc.mpc.interior_point.start import Start
from warpmpc.mpc.line_search import theta
from warpmpc.mpc.parameters import Parameters
from warpmpc.mpc.settings import SQPSettings
from warpmpc.mpc.sqp.general import Iterate
from warpmpc.mpc.stage_evaluation import StageEvaluator
from warpmpc.mpc.types import History, MPCWarmStart, QPState


@jax.tree_util.register_dataclass
@dataclass(frozen=True, eq=False)
class _End:
    """What is kept of a finished instance."""

    z: jax.Array
    y: jax.Array
    status: jax.Array
    iterations: jax.Array
    factorisations: jax.Array
    kkt: jax.Array
    violation: jax.Array
    stationarity: jax.Array
    alpha: jax.Array
    accepted: jax.Array
    history: History | None

    @classmethod
    def of(cls, state: State) -> _End:
        """The results of a state."""
        return cls(
            z=state.point.z,
            y=state.point.y,
            status=state.status,
            iterations=state.iterations,
            factorisations=state.factorisations,
            kkt=state.kkt,
            violation=state.violation,
            stationarity=state.stationarity,
            alpha=state.alpha,
            accepted=state.accepted,
            history=state.history,
        )


class InteriorPointSolve:
    """The method for one problem and one way to divide parameters into own and common ones.

    It takes the place of an `SQPIteration` in `MPCSolver`.
    """

    def __init__(self, programs: StageEvaluator, system: NewtonSystem, settings: SQPSettings):
        """Keeps the parts; kernels are compiled with the first solve.

        Args:
            programs: Stage functions with the Hessian that the method uses.
            system: Pattern and linear solver of K.
            settings: Settings.
        """
        self._programs, self._settings = programs, settings
        self._order = order = RowOrder(programs)
        functions = ProblemFunctions(programs, order)
        tol = settings.tolerances(programs.dtype)
        work = ROW_WORK[system.engine](order, programs.dtype)
        iterate = Iteration(functions, system, work, tol, settings.max_iter)
        self._start = Start(functions, order, iterate.floor)
        lanes = vector_lanes(programs.dtype) if system.solver.any_lanes else LANES
        self._pool = Pool(self._begun, iterate, _End.of, lanes)

    def begin(self, z: jax.Array, qp: QPState, unknown: jax.Array) -> Job:
        """Where the instances start.

        Args:
            z: Trajectories.
            qp: Whose multipliers are used; those that are not finite count as none.
            unknown: Instances with a parameter that is no number.
        """
        known = jnp.isfinite(qp.y).all(axis=1, keepdims=True)
        y = jnp.where(known, qp.y, 0)[:, self._order.order]
        usable = jnp.isfinite(z).all(axis=1, keepdims=True) & ~unknown
        return Job(z, y, usable)

    def _begun(self, job: Job, p: Parameters) -> State:
        point, rows = self._start(job.z, job.y, p)
        recorded = self._settings.max_iter if self._settings.record else 0
        return State.begin(point, rows, job.usable, recorded)

    def run(self, begin: Job, p: Parameters) -> tuple[Iterate, History | None]:
        """All iterations of all instances."""
        end = self._pool.run(begin, p)
        at_end = self._programs.evaluate(end.z, p)
        y = end.y[:, self._order.place]
        nothing = jnp.zeros_like(y)
        found = Iterate(
            z=end.z,
            qp=QPState(jnp.zeros_like(end.z), nothing, y),
            status=end.status,
            infeasible=jnp.zeros_like(end.status),
            lost=jnp.zeros_like(end.status),
            iterations=end.iterations,
            qp_iterations=end.factorisations,
            primal=end.violation,
            dual=end.stationarity,
            kkt=end.kkt,
            alpha=end.alpha,
            accepted=end.accepted,
            cost=at_end.cost,
            violation=at_end.worst,
            theta=theta(at_end, self._settings),
        )
        return found, end.history

    def phase_cycles(self, p: Parameters, start: MPCWarmStart) -> dict[str, float] | None:
        """None: a solve is several launches; see `SQPIteration.phase_cycles`."""
        del p, start
        return None


def kkt_layout(programs: StageEvaluator, order: RowOrder) -> KKTLayout:
    """The pattern of K of a problem."""
    at, problem = programs.assembly, programs.problem
    stages = problem.var_stage, problem.con_stage
    return KKTLayout(at.P_pattern, at.A_pattern, order, stages)
