"""Status, warm starts and solutions of MPC problems."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum

import jax
import numpy as np

from warpmpc._errors import ProblemError
from warpmpc.problem.mpc_problem import MPCProblem


class MPCStatus(IntEnum):
    """Outcome of an SQP iteration or solve, per instance.

    CONVERGED: the optimality conditions hold within tolerance.
    MAX_ITER: they do not (yet); the iterate is usable.
    QP_INFEASIBLE: the last quadratic program has no solution.
    LINE_SEARCH_FAILED: no step length was acceptable in the last iteration.
    NON_FINITE: data or iterates are not finite.
    """

    CONVERGED = 0
    MAX_ITER = 1
    QP_INFEASIBLE = 2
    LINE_SEARCH_FAILED = 3
    NON_FINITE = 4


@jax.tree_util.register_dataclass
@dataclass(frozen=True, eq=False)
class QPState:
    """What one QP leaves for the next: its direction d, s (the projected A d) and multipliers y."""

    d: jax.Array
    s: jax.Array
    y: jax.Array


@jax.tree_util.register_dataclass
@dataclass(frozen=True, eq=False)
class MPCWarmStart:
    """Where a solve starts: a trajectory z, and the state of its QPs in qp."""

    z: jax.Array
    qp: QPState


class TrajectoryLayout:
    """Where variables stand in z; one object per solver, so that solutions can share it."""

    def __init__(self, problem: MPCProblem):
        """Reads the names of a problem."""
        self.problem = problem
        self.names, self.x_rows, self.u_rows = problem.names, problem.x_rows, problem.u_rows

    def rows(self, name: str) -> np.ndarray:
        """Rows of a named variable, ``[nodes, size]``."""
        if name not in self.names:
            raise ProblemError(f"No variable is named {name!r}; there are {sorted(self.names)}.")
        return self.names[name]


@jax.tree_util.register_dataclass
@dataclass(frozen=True, eq=False)
class History:
    """What every iteration did, ``[..., iterations]`` each; NaN after an instance has ended.

    Attributes:
        cost: At the new iterate.
        theta: Violation measure of the line search there.
        step_length: Step length taken.
        accepted: 1 where the line search accepted it.
        kkt_residual: At the iterate before the step.
    """

    cost: jax.Array
    theta: jax.Array
    step_length: jax.Array
    accepted: jax.Array
    kkt_residual: jax.Array


@jax.tree_util.register_dataclass
@dataclass(frozen=True, eq=False)
class Solution:
    """Result of `MPCSolver.solve` or `step`; leading axes are those of the data.

    Attributes:
        z: Trajectory of all variables; `x`, `u` and `solution["name"]` read parts of it.
        y: Multipliers of the rows, positive at upper bounds.
        cost: Of the trajectory, penalties of soft rows included.
        status: `MPCStatus` per instance.
        iterations: SQP iterations.
        qp_iterations: ADMM iterations in all.
        primal_residual: Of the last QP.
        dual_residual: Of the last QP.
        kkt_residual: Largest violation of stationarity and complementarity before the last step,
            relative to the gradient of the cost.
        step_length: Last step length.
        accepted: Whether the line search accepted it.
        violation: Largest violation of a row by the trajectory.
        theta: Violation measure of the line search at the trajectory.
        warm_start: For the next call.
        history: Of all iterations, with `SQPSettings(record=True)`.
        layout: Where variables stand in z.
    """

    z: jax.Array
    y: jax.Array
    cost: jax.Array
    status: jax.Array
    iterations: jax.Array
    qp_iterations: jax.Array
    primal_residual: jax.Array
    dual_residual: jax.Array
    kkt_residual: jax.Array
    step_length: jax.Array
    accepted: jax.Array
    violation: jax.Array
    theta: jax.Array
    warm_start: MPCWarmStart
    history: History | None
    layout: TrajectoryLayout = field(metadata={"static": True})

    def __getitem__(self, name: str) -> jax.Array:
        """A variable by name, ``[..., nodes, size]``."""
        return self.z[..., self.layout.rows(name)]

    @property
    def x(self) -> jax.Array:
        """States, ``[..., horizon + 1, n_x]``."""
        return self.z[..., _known(self.layout.x_rows, "states")]

    @property
    def u(self) -> jax.Array:
        """Inputs, ``[..., nodes with inputs, n_u]``."""
        return self.z[..., _known(self.layout.u_rows, "inputs")]


StepResult = Solution


def _known(rows: np.ndarray | None, what: str) -> np.ndarray:
    if rows is None:
        raise ProblemError(
            f"This problem does not say which variables are {what}; give its stages `n_x`, or read "
            '`solution.z` or `solution["name"]`.'
        )
    return rows
