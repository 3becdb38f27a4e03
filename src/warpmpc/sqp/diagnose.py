"""`diagnose`: which instances of a solution failed and why, with rows and parameters by name.

Reads: a `Solution`, and x0 and parameters if the caller has them.  Produces: a `Diagnosis`.  Rows
are evaluated on the host by CasADi in float64, for the worst instances only.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from typing import Any

import jax
import numpy as np
from jax.core import Tracer

from warpmpc._errors import ProblemError
from warpmpc._types import ArrayLike
from warpmpc.problem.evaluation import Evaluation, evaluate
from warpmpc.problem.mpc_problem import MPCProblem
from warpmpc.sqp.diagnosis import Diagnosis, InstanceReport, ViolatedRow
from warpmpc.sqp.parameters import ParameterPacker, Params
from warpmpc.sqp.settings import DEFAULT_TOLERANCES
from warpmpc.sqp.types import History, MPCStatus, Solution

MOST_EXAMINED = 50  # instances whose rows are evaluated
# The worst outcome first.
SEVERITY = (
    MPCStatus.NON_FINITE,
    MPCStatus.QP_INFEASIBLE,
    MPCStatus.LINE_SEARCH_FAILED,
    MPCStatus.MAX_ITER,
    MPCStatus.CONVERGED,
)
_SCALARS = (
    *("iterations", "cost", "violation", "kkt_residual", "primal_residual", "dual_residual"),
    "step_length",
)


def diagnose(
    solution: Solution,
    x0: ArrayLike | None = None,
    params: Params = None,
    *,
    worst: int = 5,
) -> Diagnosis:
    """Says which instances failed and why.

    ```python
    solution = solver.solve(x0)
    print(wm.diagnose(solution, x0))
    ```

    Args:
        solution: Of `MPCSolver.solve` or `step`.
        x0: What the solver got.  None: the first state of each trajectory; violations of the
            initial state are not seen then.
        params: What the solver got; None: defaults.
        worst: How many instances are reported one by one.
    """
    batch = Batch.of(solution, x0, params)
    order = batch.worst_first()
    examined = order[:MOST_EXAMINED]
    points = {b: batch.evaluation(b) for b in examined.tolist()} if batch.params is not None else {}
    status = batch.status
    numbers = {b: point for b, point in points.items() if status[b] != MPCStatus.NON_FINITE}
    batch.compare(numbers)
    found, counts = np.unique(status, return_counts=True)
    return Diagnosis(
        batch=status.size,
        counts={MPCStatus(s).name: int(n) for s, n in zip(found, counts, strict=True)},
        failed=np.flatnonzero(status > MPCStatus.MAX_ITER),
        unfinished=np.flatnonzero(status == MPCStatus.MAX_ITER),
        worst=tuple(_report(batch, b, points.get(b)) for b in order[:worst].tolist()),
        rows=_violated_rows(batch, list(numbers.values())),
        examined=len(numbers),
        notes=tuple(batch.notes),
    )


@dataclass(frozen=True, eq=False)
class Batch:
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
    def of(solution: Solution, x0: ArrayLike | None, params: Params) -> Batch:
        """Checks what the caller passed."""
        if not isinstance(solution, Solution):
            raise ProblemError(
                f"A Solution of MPCSolver.solve or step is needed, got {type(solution).__name__}."
            )
        if any(isinstance(leaf, Tracer) for leaf in jax.tree.leaves(solution)):
            raise ProblemError(
                "The solution is part of a program that is being traced; return it from `jax.jit` "
                "and look at it outside."
            )
        leading = solution.status.ndim
        flat = jax.tree.map(lambda a: _flat(a, leading), solution)
        notes: list[str] = []
        problem = solution.layout.problem
        vectors = _parameter_vectors(problem, flat, x0, params, notes)
        tolerance = DEFAULT_TOLERANCES[flat.z.dtype.name].violation
        return Batch(flat, problem, vectors, not notes, tolerance, notes)

    @property
    def status(self) -> np.ndarray:
        """Of every instance."""
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
    return host.reshape(-1, *host.shape[leading:])


def _parameter_vectors(
    problem: MPCProblem, flat: Solution, x0: Any, params: Params, notes: list[str]
) -> np.ndarray | None:
    """What the instances were solved with, as far as it is known."""
    dtype = flat.z.dtype
    if x0 is None and not (isinstance(params, Mapping) and "x0" in params):
        rows = problem.x_rows
        if problem.n_x0 and (rows is None or rows.shape[1] != problem.n_x0):
            notes.append("Rows are not named: pass x0 to `diagnose` as well.")
            return None
        x0 = flat.z[:, rows[0]] if rows is not None and problem.n_x0 else None
        notes.append("x0 was not given: it is taken from the trajectories, params are defaults.")
    else:
        x0 = None if x0 is None else _flat(x0, np.ndim(x0) - 1)
    given = _cast(params, dtype)
    if given is None and np.isnan(problem.defaults[problem.n_x0 :]).any():
        notes.append("Rows are not named: some parameters have no default; pass params as well.")
        return None
    x0 = None if x0 is None else np.asarray(x0, dtype=dtype)
    if x0 is not None and x0.shape[0] == 1:
        x0 = x0[0]  # goes with any batch
    packed = ParameterPacker(problem, dtype.name)(x0, given, whole=True).own
    vectors = _flat(packed, np.ndim(packed) - 1).astype(np.float64)
    if vectors.shape[0] not in (1, flat.z.shape[0]):
        raise ProblemError(
            f"x0 and params are those of {vectors.shape[0]} instances, the solution has "
            f"{flat.z.shape[0]}; pass what the solver got."
        )
    return np.broadcast_to(vectors, (flat.z.shape[0], vectors.shape[1]))


def _cast(params: Params, dtype: np.dtype) -> Params:
    if isinstance(params, Mapping):
        return {name: np.asarray(value, dtype=dtype) for name, value in params.items()}
    return None if params is None else np.asarray(params, dtype=dtype)


def _violated_rows(batch: Batch, points: list[Evaluation]) -> tuple[ViolatedRow, ...]:
    """All rows of one name together, the most violated first."""
    if not points:
        return ()
    excess = np.stack([batch.violations(point) for point in points])
    names = np.array(batch.problem.row_names)
    rows = []
    for name in np.unique(names[(excess > batch.tolerance).any(axis=0)]).tolist():
        at = np.flatnonzero(names == name)
        own = excess[:, at]
        node = batch.problem.con_stage[at[own.max(axis=0).argmax()]]
        count = int((own > batch.tolerance).any(axis=1).sum())
        rows.append(ViolatedRow(name, int(node), float(own.max()), count))
    return tuple(sorted(rows, key=lambda row: -row.violation))


def _report(batch: Batch, b: int, point: Evaluation | None) -> InstanceReport:
    solution, row, node = batch.solution, None, None
    status = MPCStatus(int(batch.status[b]))
    if point is not None and status != MPCStatus.NON_FINITE:
        excess = batch.violations(point)
        worst = int(excess.argmax())
        if excess[worst] > batch.tolerance:
            row = batch.problem.row_names[worst]
            node = int(batch.problem.con_stage[worst])
    return InstanceReport(
        index=b,
        status=status,
        cause=CAUSES[status](batch, b, point),
        row=row,
        node=node,
        **{name: getattr(solution, name)[b].item() for name in _SCALARS},
        history=_history(solution.history, b),
    )


def _history(history: History | None, b: int) -> dict[str, np.ndarray]:
    """What was recorded of one instance, iterations that it took only."""
    if history is None:
        return {}
    took_part = ~np.isnan(np.asarray(history.step_length)[b])
    return {f.name: np.asarray(getattr(history, f.name))[b][took_part] for f in fields(history)}


def _not_finite(batch: Batch, b: int, point: Evaluation | None) -> str:
    """Where the first number comes from that is none."""
    for what in _origins(batch, b, point):
        return what
    if not batch.complete:
        return "not known: a parameter may be NaN; pass x0 and params to `diagnose` as well"
    return (
        "a derivative is not finite although cost and rows are: look for sqrt, norms, divisions "
        "and logarithms at the edge of their domain"
    )


def _origins(batch: Batch, b: int, point: Evaluation | None) -> Iterator[str]:
    problem = batch.problem
    if batch.params is not None:
        for i in np.flatnonzero(np.isnan(batch.params[b])):
            yield f"{_parameter_name(problem, int(i))} is NaN"
    z = batch.solution.z[b]
    for i in np.flatnonzero(~np.isfinite(z)):
        name = variable_name(problem, int(i))
        yield f"{name} is {z[i]} at node {problem.var_stage[i]}: check x0, the guess or warm start"
    if point is None:
        return
    for k in np.flatnonzero(~np.isfinite(point.cost)):
        yield f"the cost of node {k} is {point.cost[k]}"
    for i in np.flatnonzero(~np.isfinite(point.g)):
        yield f"{batch.row(int(i))} is {point.g[i]}"


def _parameter_name(problem: MPCProblem, i: int) -> str:
    if i < problem.n_x0:
        return f"x0[{i}]"
    for name, rows in problem.param_names.items():
        where = np.argwhere(rows == i)
        if where.size:
            return f"params[{name!r}]{where[0].tolist()}"
    return f"entry {i} of the parameter vector"


def variable_name(problem: MPCProblem, i: int) -> str:
    """The most specific name of a variable; its own one rather than "x" or "u"."""
    names = [name for name, rows in problem.names.items() if (rows == i).any()]
    if not names:
        return f"z[{i}]"
    size, _, name = min((problem.names[name].shape[1], name in ("x", "u"), name) for name in names)
    return name if size == 1 else f"{name}[{int(np.argwhere(problem.names[name] == i)[0][1])}]"


def _infeasible(batch: Batch, b: int, point: Evaluation | None) -> str:
    """Which rows contradict each other."""
    if point is None:
        return "the last QP has no solution"
    for i in np.flatnonzero(point.lower > point.upper):
        low, high = point.lower[i], point.upper[i]
        return f"the bounds of {batch.row(int(i))} cross: {low:.4g} > {high:.4g}"
    excess = batch.violations(point)
    order = np.argsort(-excess)[:3]
    named = [f"{batch.row(i)} by {excess[i]:.2g}" for i in order if excess[i] > batch.tolerance]
    if not named:
        return "the rows hold, but linearised they contradict each other: no QP has a solution"
    return f"the last QP has no solution; violated: {', '.join(named)}"


def _stuck(batch: Batch, b: int, point: Evaluation | None) -> str:
    """Why no step length was acceptable."""
    solution = batch.solution
    if point is not None:
        d, alpha = solution.warm_start.qp.d[b], solution.step_length[b]
        trial = batch.evaluation(b, np.asarray(solution.z[b] + (1 - alpha) * d))
        for k in np.flatnonzero(~np.isfinite(trial.cost)):
            return (
                f"the cost of node {k} is {trial.cost[k]} at the full step: the step leaves the "
                "domain of a function; bound what goes into it"
            )
    kkt = float(solution.kkt_residual[b])
    if kkt <= 10 * DEFAULT_TOLERANCES[solution.z.dtype.name].kkt:
        return f"almost converged (KKT residual {kkt:.2g}), the rest is rounding; try float64"
    return (
        f"neither cost nor violation fall along the direction (KKT residual {kkt:.2g}); try "
        "float64, regularization, or another guess"
    )


def _unfinished(batch: Batch, b: int, point: Evaluation | None) -> str:
    """What is missing at the end of the iterations."""
    violation, kkt = (float(getattr(batch.solution, n)[b]) for n in ("violation", "kkt_residual"))
    if violation > batch.tolerance:
        return f"rows are violated by {violation:.2g}, iterations ended; raise max_iter"
    return f"rows hold, the KKT residual is {kkt:.2g}; raise max_iter for more"


CAUSES = {
    MPCStatus.NON_FINITE: _not_finite,
    MPCStatus.QP_INFEASIBLE: _infeasible,
    MPCStatus.LINE_SEARCH_FAILED: _stuck,
    MPCStatus.MAX_ITER: _unfinished,
}
