"""Derivatives of one SQP step and of a whole solve in forward and reverse mode, on tiles.

A step is z + alpha d: d is the solution of a QP whose data depend on z and the parameters.  Alpha
counts as a constant, and so do the multipliers in an exact Hessian.

A solution satisfies the optimality conditions of the nonlinear problem, so does the QP at it with
the exact Hessian of the Lagrangian (its solution is d = 0); the derivatives of both with respect to
parameters are the same.  Reverse mode is one adjoint solve with that Hessian, then back through
the stage functions; forward mode is the transpose.  The start of the iteration has no influence.
"""

from __future__ import annotations

from functools import cached_property

import jax
import jax.numpy as jnp

from warpmpc.engines.runtime.batching import LANES
from warpmpc.mpc.batching import reverse_values
from warpmpc.mpc.correction import Correction
from warpmpc.mpc.parameters import Parameters
from warpmpc.mpc.settings import SQPSettings
from warpmpc.mpc.sqp.general import regrouped
from warpmpc.mpc.sqp.subproblem import Subproblem
from warpmpc.mpc.stage_evaluation import StageEvaluator
from warpmpc.mpc.types import GradientStatus, MPCStatus, MPCWarmStart, Solution
from warpmpc.qp.products import total
from warpmpc.qp.qp_solver import QPSolver
from warpmpc.qp.scaling import QPData
from warpmpc.qp.sensitivity.active_set import KKTSensitivity, Sensitivity
from warpmpc.qp.sensitivity.row_state import Point
from warpmpc.symbolic.derivatives.stage_model import HessianRule

Arrays = tuple[jax.Array, ...]


class StepSensitivity:
    """Through one iteration."""

    of_start = True

    def __init__(self, programs: StageEvaluator, qp: QPSolver):
        """Keeps the parts of the iteration."""
        self._programs, self._qp = programs, qp

    @property
    def values_per_instance(self) -> int:
        """Values in memory while cotangents of one instance are computed."""
        return reverse_values(self._programs, self._qp.sensitivity.values_per_instance)

    @property
    def values_forward(self) -> int:
        """Values that forward mode needs: changes of the data of the QP are in memory as well."""
        return self.values_per_instance + self._qp.structure.n_data

    @staticmethod
    def keeps(solution: Solution) -> Arrays:
        """What the way back needs of the result."""
        qp, scalars = solution.warm_start.qp, (solution.step_length, solution.status)
        return solution.z, qp.d, qp.s, solution.y, *(scalar[..., None] for scalar in scalars)

    def forward(self, p: Parameters, start: MPCWarmStart, kept: Arrays, moves: Arrays) -> Arrays:
        """Changes of z, y and the cost for those of all parameters and of the start."""
        z_new, *_, alpha, _ = kept
        p_dot, z_dot = moves
        programs = self._programs.for_split(p.split)
        of_z, of_p = programs.cost_pull_back(z_new, p)
        tangent = programs.push_forward(start.z, p, start.qp.y, z_dot, p_dot)
        point = self._point(p, start, kept)
        d_dot, y_dot = _forward(self._qp.sensitivity, point, tangent)
        z_dot = jnp.where(point.valid, z_dot + alpha * d_dot, 0)
        cost_dot = total(of_z * z_dot) + total(of_p * p_dot)
        return z_dot, y_dot, jnp.where(point.valid, cost_dot, 0)

    def _point(self, p: Parameters, start: MPCWarmStart, kept: Arrays) -> Point:
        """The QP of the step, and its solution."""
        _, d, s, y, _, status = kept
        valid = (status != MPCStatus.NON_FINITE) & (status != MPCStatus.QP_INFEASIBLE)
        data = self._programs.for_split(p.split).linearize(start.z, p, start.qp.y)
        return Point(data, d, y, valid, None if data.soft is None else s)

    def reverse(self, p: Parameters, start: MPCWarmStart, kept: Arrays, bars: Arrays) -> Arrays:
        """Cotangents of all parameters and of the trajectory before the step."""
        z_new, *_, alpha, _ = kept
        z_bar, y_bar, cost_bar = bars
        programs = self._programs.for_split(p.split)
        of_z, of_p = programs.cost_pull_back(z_new, p)
        z_bar = z_bar + cost_bar * of_z
        point = self._point(p, start, kept)
        valid = point.valid
        found = (alpha * z_bar, y_bar)
        bars_of_qp = _reverse(self._qp.sensitivity, point, found)
        more_z, more_p = programs.pull_back(start.z, p, start.qp.y, bars_of_qp)
        z_back = jnp.where(valid, z_bar + more_z, 0)
        p_back = jnp.where(valid, cost_bar * of_p + more_p, 0)
        return p_back, z_back

    def check(
        self, p: Parameters, start: MPCWarmStart, kept: Arrays, bars: Arrays
    ) -> tuple[jax.Array]:
        """`GradientStatus` of instances, for cotangents of the trajectory and the multipliers."""
        *_, alpha, _ = kept
        z_bar, y_bar = bars
        point = self._point(p, start, kept)
        return (_checked(self._qp.sensitivity, point, (alpha * z_bar, y_bar)),)


class SolveSensitivity:
    """Through the optimality conditions at a solution."""

    of_start = False

    def __init__(self, programs: StageEvaluator, qp: QPSolver, settings: SQPSettings):
        """Keeps the problem; the exact Hessian is built with the first derivative."""
        self._programs, self._qp, self._settings = programs, qp, settings

    @staticmethod
    def keeps(solution: Solution) -> Arrays:
        """What the way back needs of the result."""
        return solution.z, solution.y, solution.status[..., None]

    @property
    def values_per_instance(self) -> int:
        """Values in memory while cotangents of one instance are computed."""
        # Corrected solutions have a QP before a step and one after it.
        more = 0 if self._correction is None else 2 * self._qp.structure.n_data
        return reverse_values(self._programs, self._exact[1].values_per_instance + more)

    @property
    def values_forward(self) -> int:
        """Values that forward mode needs: changes of the data of the QP are in memory as well."""
        return self.values_per_instance + self._qp.structure.n_data

    @cached_property
    def _exact(self) -> tuple[StageEvaluator, Sensitivity]:
        """Stage functions with the exact Hessian, and the sensitivity of QPs that have it."""
        rule = HessianRule(kind="exact", convexify="none")
        programs = StageEvaluator(self._programs.problem, rule, self._programs.dtype)
        return programs, self._qp.sensitivity_of(programs.assembly.P_pattern)

    @cached_property
    def _correction(self) -> Correction | None:
        """None where the solutions are none, or where a row has more states than two."""
        exact, sensitivity = self._exact
        known = isinstance(sensitivity, KKTSensitivity) and not exact.soft_rows.size
        if not (known and self._settings.converges):
            return None
        unit = Subproblem(exact.assembly, self._qp, self._settings).unit
        return Correction(sensitivity, unit, self._settings.tolerances(exact.dtype))

    def forward(self, p: Parameters, start: MPCWarmStart, kept: Arrays, moves: Arrays) -> Arrays:
        """Changes of z, y and the cost for those of all parameters."""
        del start
        (p_dot,) = moves
        exact, sensitivity = self._exact
        programs = exact.for_split(p.split)
        (z, y), point = self._point(p, kept)
        of_z, of_p = programs.cost_pull_back(z, p)
        tangent = programs.push_forward_params(z, p, y, p_dot)
        z_dot, y_dot = _forward(sensitivity, point, tangent)
        cost_dot = total(of_z * z_dot) + total(of_p * p_dot)
        return z_dot, y_dot, jnp.where(point.valid, cost_dot, 0)

    def _point(self, p: Parameters, kept: Arrays) -> tuple[Arrays, Point]:
        """The corrected solution, and the QP there, whose direction is zero."""
        z, y, status = kept
        valid, exact = self._valid(status), self._exact[0].for_split(p.split)
        if self._correction is None:
            data = exact.linearize(z, p, y)
        else:
            found = self._correction(lambda z, y: exact.linearize(z, p, y), z, y, valid)
            z, y, data = found.z, found.y, found.data
        return (z, y), Point(data, jnp.zeros_like(z), y, valid)

    def reverse(self, p: Parameters, start: MPCWarmStart, kept: Arrays, bars: Arrays) -> Arrays:
        """Cotangents of all parameters."""
        del start
        z_bar, y_bar, cost_bar = bars
        exact, sensitivity = self._exact
        programs = exact.for_split(p.split)
        (z, y), point = self._point(p, kept)
        of_z, of_p = programs.cost_pull_back(z, p)
        z_bar = z_bar + cost_bar * of_z
        bars_of_qp = _reverse(sensitivity, point, (z_bar, y_bar))
        more = programs.pull_back_params(z, p, y, bars_of_qp)
        return (jnp.where(point.valid, cost_bar * of_p + more, 0),)

    def check(
        self, p: Parameters, start: MPCWarmStart, kept: Arrays, bars: Arrays
    ) -> tuple[jax.Array]:
        """`GradientStatus` of instances, for cotangents of the trajectory and the multipliers."""
        del start
        return (_checked(self._exact[1], self._point(p, kept)[1], bars),)

    def _valid(self, status: jax.Array) -> jax.Array:
        """Converged; or iterated as often as the caller fixed beforehand."""
        if self._settings.converges:
            return status == MPCStatus.CONVERGED
        return (status != MPCStatus.NON_FINITE) & (status != MPCStatus.QP_INFEASIBLE)


def _checked(sensitivity: Sensitivity, point: Point, bars: Arrays) -> jax.Array:
    """`GradientStatus` of QPs, in tiles."""
    at, *found = jax.tree.map(lambda a: regrouped(a, sensitivity.lanes), (point, *bars))
    solved = regrouped(sensitivity.is_solved(at, *found), LANES)
    reason = jnp.where(solved, GradientStatus.VALID, GradientStatus.UNSOLVED)
    return jnp.where(point.valid, reason, GradientStatus.NOT_CONVERGED).astype(jnp.int32)


def _forward(sensitivity: Sensitivity, point: Point, tangent: QPData) -> Arrays:
    """Changes of x and y of a QP from those of its data, in tiles; zero where not valid."""
    at, moves = jax.tree.map(lambda a: regrouped(a, sensitivity.lanes), (point, tangent))
    x, y, _ = (regrouped(a, LANES) for a in sensitivity.forward(at, moves))
    return tuple(jnp.where(point.valid, array, 0) for array in (x, y))


def _reverse(
    sensitivity: Sensitivity, point: Point, bars: tuple[jax.Array, jax.Array]
) -> dict[str, jax.Array]:
    """Cotangents of the data of a QP from those of its x and y, in tiles."""
    at, x_bar, y_bar = jax.tree.map(lambda a: regrouped(a, sensitivity.lanes), (point, *bars))
    found: QPData = sensitivity.reverse(at, x_bar, y_bar, jnp.zeros_like(x_bar[:, :1]))
    tiles = jax.tree.map(lambda a: regrouped(a, LANES), found)
    return {name: getattr(tiles, name) for name in ("P", "q", "A", "lower", "upper", "soft")}
