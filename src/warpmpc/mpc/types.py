"""Status, warm starts and solutions of MPC problems.

Also where a solve starts: guesses from x0 and parameters, trajectories shifted by one node.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from warpmpc._checks import check_alive
from warpmpc._conventions import GradientStatus as GradientStatus
from warpmpc._conventions import MPCStatus as MPCStatus
from warpmpc._errors import ProblemError
from warpmpc.codegen.emit_jax import jax_function
from warpmpc.codegen.from_casadi import translate
from warpmpc.mpc.settings import SQPSettings
from warpmpc.problem.mpc_problem import MPCProblem, guess_function


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
    """Where variables stand in z, and what solved them; solutions of a solver share one object.

    Attributes:
        problem: The problem.
        settings: Settings of the solver; None: not known.
        engine: Engine that the caller asked for; None: not known.
        names: Rows of each named variable.
        x_rows: Rows of the states, or None.
        u_rows: Rows of the inputs, or None.
    """

    def __init__(
        self, problem: MPCProblem, settings: SQPSettings | None = None, engine: str | None = None
    ):
        """Reads the names of a problem."""
        self.problem, self.settings, self.engine = problem, settings, engine
        self.names, self.x_rows, self.u_rows = problem.names, problem.x_rows, problem.u_rows

    def __eq__(self, other: object) -> bool:
        """Whether problems and settings are equal: solutions of processes go together then."""
        if self is other:
            return True
        if not isinstance(other, TrajectoryLayout) or hash(self) != hash(other):
            return False
        same = (self.settings, self.engine) == (other.settings, other.engine)
        return same and self.problem.hash == other.problem.hash

    def __hash__(self) -> int:
        """Hash of the sizes; JAX needs it in every call."""
        return hash((self.problem.n_vars, self.problem.n_cons, self.engine))

    def rows(self, name: str) -> np.ndarray:
        """Rows of a named variable, ``[nodes, size]``."""
        if not isinstance(name, str) or name not in self.names:
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
        cost: Cost of the trajectory, penalties of soft rows included.
        status: `MPCStatus` per instance.
        iterations: SQP iterations.
        qp_iterations: ADMM iterations in all.
        primal_residual: Primal residual of the last QP.
        dual_residual: Dual residual of the last QP.
        kkt_residual: Largest violation of stationarity and complementarity before the last step,
            relative to the unit of the cost, which is described in docs/mpc.md.
        step_length: Last step length.
        accepted: Whether the line search accepted it.
        violation: Largest violation of a row by the trajectory.
        theta: Violation measure of the line search at the trajectory.
        warm_start: For the next call.
        history: History of all iterations, with `SQPSettings(record=True)`.
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

    def __getstate__(self) -> dict[str, Any]:
        """What is pickled: everything, if it is still there."""
        check_alive(self, "The solution")
        return dict(vars(self))

    def __getitem__(self, name: str) -> jax.Array:
        """A variable by name, ``[..., nodes, size]``."""
        check_alive(self.z, "The solution")
        return self.z[..., self.layout.rows(name)]

    @property
    def x(self) -> jax.Array:
        """States, ``[..., horizon + 1, n_x]``."""
        check_alive(self.z, "The solution")
        return self.z[..., _known(self.layout.x_rows, "states")]

    @property
    def u(self) -> jax.Array:
        """Inputs, ``[..., nodes with inputs, n_u]``."""
        check_alive(self.z, "The solution")
        return self.z[..., _known(self.layout.u_rows, "inputs")]


StepResult = Solution


def _known(rows: np.ndarray | None, what: str) -> np.ndarray:
    if rows is None:
        raise ProblemError(
            f"This problem does not say which variables are {what}; give its stages `n_x`, or read "
            '`solution.z` or `solution["name"]`.'
        )
    return rows


class Guess:
    """The initial guess of a problem as a JAX function of its parameter vector."""

    def __init__(self, problem: MPCProblem, dtype: str):
        """Translates each guess that occurs once.

        Args:
            problem: With a guess in every stage.
            dtype: "float32" or "float64".
        """
        self._problem, self._dtype = problem, dtype
        nodes: dict[int, list[int]] = {}
        for k, stage in enumerate(problem.stages):
            nodes.setdefault(id(stage), []).append(k)
        self._parts = []
        for ks in nodes.values():
            function = guess_function(problem.stages[ks[0]], problem.x0, problem.shared)
            self._parts.append((np.array(ks), jax_function(translate(function))))

    def __call__(self, params: jax.Array) -> jax.Array:
        """Trajectories ``[..., n_vars]`` from parameter vectors ``[..., n_params]``."""
        problem = self._problem
        found, places = [], []
        for ks, function in self._parts:
            rows = np.stack([problem.param_rows(k) for k in ks])
            cuts = [problem.n_x0, problem.n_x0 + problem.n_shared]
            tau = jnp.asarray(ks / max(problem.horizon, 1), dtype=self._dtype)[:, None]
            tau = jnp.broadcast_to(tau, (*params.shape[:-1], ks.size, 1))
            (values,) = function(*jnp.split(params[..., rows], cuts, axis=-1), tau)
            found.append(values.reshape(*params.shape[:-1], -1).astype(self._dtype))
            places.append((problem.z_offset[ks][:, None] + np.arange(values.shape[-1])).ravel())
        # Reading from the right place is part of another kernel on a GPU; writing to it is not.
        return jnp.concatenate(found, axis=-1)[..., np.argsort(np.concatenate(places))]


class Shift:
    """Moves a warm start by one node: what was planned for the next node is now for this one.

    Where a neighbour has no counterpart (the last node, a first stage with more rows) the old
    values stay.
    """

    def __init__(self, problem: MPCProblem):
        """Builds the tables."""
        self._z = _shifted(problem.z_offset)
        self._rows = _shifted_rows(problem)

    def __call__(self, start: MPCWarmStart) -> MPCWarmStart:
        """The shifted warm start."""
        qp = start.qp
        moved = QPState(qp.d[..., self._z], qp.s[..., self._rows], qp.y[..., self._rows])
        return MPCWarmStart(start.z[..., self._z], moved)


def _shifted(offsets: np.ndarray) -> np.ndarray:
    """For each entry, the entry of the same place in the next node if there is one."""
    table = np.arange(offsets[-1])
    for k in range(offsets.size - 2):
        here, after = offsets[k + 1] - offsets[k], offsets[k + 2] - offsets[k + 1]
        common = min(here, after)
        table[offsets[k] : offsets[k] + common] = offsets[k + 1] + np.arange(common)
    return table


def _shifted_rows(problem: MPCProblem) -> np.ndarray:
    """For each row, the row of the same name in the next node if there is one.

    Names without a meaning ("g[0]") correspond only in stages of one group.
    """
    table = np.arange(problem.n_cons)
    for k in range(problem.horizon):
        here, after = problem.stages[k], problem.stages[k + 1]
        same = problem.group_of[k] == problem.group_of[k + 1]
        place = {name: i for i, name in enumerate(after.row_names)}
        for i, name in enumerate(here.row_names):
            if name in place and (same or not name.startswith("g[")):
                table[problem.g_offset[k] + i] = problem.g_offset[k + 1] + place[name]
    return table
