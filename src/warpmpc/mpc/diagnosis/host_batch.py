"""A solution on the host, with the parameters that it was solved with as far as they are known.

Reads: a `Solution`, and x0 and parameters if the caller has them.  Produces: `HostBatch`, which
`diagnose` and figures look at.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from jax.core import Tracer

from warpmpc._checks import ArrayLike, check_alive
from warpmpc._errors import ProblemError
from warpmpc.mpc.parameters import ParameterPacker, Params, check_names
from warpmpc.mpc.settings import DEFAULT_TOLERANCES
from warpmpc.mpc.types import MPCStatus, Solution
from warpmpc.problem.evaluation import Evaluation, evaluate
from warpmpc.problem.mpc_problem import MPCProblem

# The worst outcome first.
SEVERITY = (
    MPCStatus.NON_FINITE,
    MPCStatus.QP_INFEASIBLE,
    MPCStatus.LINE_SEARCH_FAILED,
    MPCStatus.MAX_ITER,
    MPCStatus.CONVERGED,
)


@dataclass(frozen=True, eq=False)
class HostBatch:
    """A solution on the host with one batch axis.

    Attributes:
        solution: Arrays of NumPy.
        problem: What was solved.
        params: Parameter vectors ``[batch, n_params]``; None: not known.
        complete: Whether x0 was given: then missing parameters have their defaults.
        tolerance: Violations up to it count as none.
        notes: What the reader should know.
    """

    solution: Solution
    problem: MPCProblem
    params: np.ndarray | None
    complete: bool
    tolerance: float
    notes: list[str]

    @staticmethod
    def of(solution: Solution, x0: ArrayLike | None, params: Params) -> HostBatch:
        """Checks what the caller passed."""
        if not isinstance(solution, Solution):
            raise ProblemError(
                f"A Solution of MPCSolver.solve or step is needed, got {type(solution).__name__}; "
                "of a closed loop, solve again from the state in question, such as loop.x[:, 7]."
            )
        if any(isinstance(leaf, Tracer) for leaf in jax.tree.leaves(solution)):
            raise ProblemError(
                "The solution is part of a program that is being traced; return it from `jax.jit` "
                "and look at it outside."
            )
        check_alive(solution, "The solution")
        leading = solution.status.ndim
        flat = jax.tree.map(lambda a: _flat(a, leading), solution)
        notes: list[str] = []
        problem = solution.layout.problem
        vectors = _parameter_vectors(problem, np.asarray(solution.z), x0, params, notes)
        tolerance = DEFAULT_TOLERANCES[flat.z.dtype.name].violation
        return HostBatch(flat, problem, vectors, not notes, tolerance, notes)

    @property
    def status(self) -> np.ndarray:
        """Status of every instance."""
        return np.asarray(self.solution.status)

    def worst_first(self) -> np.ndarray:
        """Indices of all instances that did not converge."""
        rank = np.argsort([int(status) for status in SEVERITY])[self.status]
        violation = np.nan_to_num(np.asarray(self.solution.violation), nan=np.inf)
        kkt = np.nan_to_num(np.asarray(self.solution.kkt_residual), nan=np.inf)
        order = np.lexsort((-kkt, -violation, rank))
        return order[self.status[order] != MPCStatus.CONVERGED]

    def evaluation(self, b: int, z: np.ndarray | None = None) -> Evaluation:
        """The problem of an instance at its trajectory, or elsewhere."""
        assert self.params is not None
        return evaluate(self.problem, self.solution.z[b] if z is None else z, self.params[b])

    def violations(self, at: Evaluation) -> np.ndarray:
        """Violation of every row; soft rows are allowed theirs."""
        excess = np.maximum(np.maximum(at.lower - at.g, at.g - at.upper), 0)
        excess[self._soft_rows()] = 0
        return np.nan_to_num(excess, nan=0.0)

    def compare(self, points: Mapping[int, Evaluation]) -> None:
        """Notes if rows evaluated here are not those that the solver saw."""
        for b, point in points.items():
            here, there = self.violations(point).max(initial=0), self.solution.violation[b]
            if abs(here - there) > 0.01 * there + self.tolerance:
                self.notes.append(
                    f"Instance {b} violates its rows by {there:.2g} as the solver says and by "
                    f"{here:.2g} as evaluated here: pass the x0 and params that the solver got."
                )
                return

    def _soft_rows(self) -> np.ndarray:
        offsets = self.problem.g_offset
        stages = enumerate(self.problem.stages)
        return np.concatenate([offsets[k] + stage.soft_rows for k, stage in stages]).astype(int)

    def row(self, i: int) -> str:
        """A row by name and node."""
        return f"{self.problem.row_names[i]} at node {self.problem.con_stage[i]}"


def _flat(array: Any, leading: int) -> np.ndarray:
    host = np.asarray(array)
    return host.reshape(math.prod(host.shape[:leading]), *host.shape[leading:])


def _parameter_vectors(
    problem: MPCProblem, z: np.ndarray, x0: Any, params: Params, notes: list[str]
) -> np.ndarray | None:
    """What the instances were solved with, ``[batch, n_params]``, as far as it is known."""
    if x0 is None and problem.n_x0 and not (isinstance(params, Mapping) and "x0" in params):
        rows = problem.x_rows
        if rows is None or rows.shape[1] != problem.n_x0:
            notes.append("Rows are not named: pass x0 to `diagnose` as well.")
            return None
        x0 = z[..., rows[0]]
        notes.append("x0 was not given: it is taken from the trajectories, params are defaults.")
    check_names(params)
    given = _cast(params, z.dtype)
    if given is None and np.isnan(problem.defaults[problem.n_x0 :]).any():
        notes.append("Rows are not named: some parameters have no default; pass params as well.")
        return None
    x0 = None if x0 is None else _array(x0, "x0", z.dtype)
    packed = ParameterPacker(problem, z.dtype.name)(x0, given, whole=True).own
    vectors, batch = _flat(packed, packed.ndim - 1), math.prod(z.shape[:-1])
    if vectors.shape[0] not in (1, batch):
        raise ProblemError(
            f"x0 and params are those of {vectors.shape[0]} instances, the solution has {batch}; "
            "pass what the solver got."
        )
    return np.broadcast_to(vectors, (batch, vectors.shape[1]))


def _cast(params: Params, dtype: np.dtype) -> Params:
    if isinstance(params, Mapping):
        return {name: _array(value, f"params[{name!r}]", dtype) for name, value in params.items()}
    return None if params is None else _array(params, "params", dtype)


def _array(given: Any, name: str, dtype: np.dtype) -> np.ndarray:
    try:
        return np.asarray(given, dtype=dtype)
    except (TypeError, ValueError):
        kind = type(given).__name__
        raise ProblemError(f"{name} must be a NumPy or JAX array, got {kind}.") from None
