"""Why an instance ended as it did, in a sentence that says what to do about it.

Reads: a `HostBatch` and the problem at the trajectory of one instance.  Produces: text, by one
function per outcome in `CAUSES`.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from warpmpc.mpc.diagnosis.host_batch import HostBatch
from warpmpc.mpc.settings import DEFAULT_TOLERANCES
from warpmpc.mpc.types import MPCStatus
from warpmpc.problem.evaluation import Evaluation
from warpmpc.problem.mpc_problem import MPCProblem, stage_function


def _not_finite(batch: HostBatch, b: int, point: Evaluation | None) -> str:
    """Where the first number comes from that is none."""
    for what in _origins(batch, b, point):
        return what
    if not batch.complete:
        return "not known: a parameter may be NaN; pass x0 and params to `diagnose` as well"
    return (
        "cost, rows and their first derivatives are finite: the QP was lost to rounding or a "
        'second derivative is not finite; try float64, engine="sparse" or hessian="gauss_newton"'
    )


def _origins(batch: HostBatch, b: int, point: Evaluation | None) -> Iterator[str]:
    problem = batch.problem
    if batch.params is not None:
        for i in np.flatnonzero(np.isnan(batch.params[b])):
            yield f"{_parameter_name(problem, int(i))} is NaN"
    z = np.asarray(batch.solution.z[b])
    for i in np.flatnonzero(~np.isfinite(z)):
        name = variable_name(problem, int(i))
        yield f"{name} is {z[i]} at node {problem.var_stage[i]}: check x0, the guess or warm start"
    if point is None:
        return
    for k in np.flatnonzero(~np.isfinite(point.cost)):
        yield f"the cost of node {k} is {point.cost[k]}{_endless_parameters(batch, b)}"
    for i in np.flatnonzero(~np.isfinite(point.g)):
        yield f"{batch.row(int(i))} is {point.g[i]}{_endless_parameters(batch, b)}"
    if batch.params is not None and np.isfinite(z).all():
        for k, what in endless_derivatives(problem, z, batch.params[b]):
            yield (
                f"the derivative of the {what} of node {k} is not finite: look for sqrt, norms, "
                "divisions and logarithms at the edge of their domain"
            )


def endless_derivatives(
    problem: MPCProblem, z: np.ndarray, params: np.ndarray
) -> Iterator[tuple[int, str]]:
    """Nodes whose cost, residuals or rows have a derivative that is not finite, and which of them.

    Args:
        problem: The problem.
        z: Trajectory ``[n_vars]``.
        params: Parameter vector ``[n_params]``.
    """
    functions = [stage_function(g.stage, problem.x0, problem.shared) for g in problem.groups]
    jacobians = [function.jacobian() for function in functions]
    cuts = [problem.n_x0, problem.n_x0 + problem.n_shared]
    for k, stage in enumerate(problem.stages):
        own, after = problem.z_offset[k], problem.z_offset[k + 1]
        at = np.split(params[problem.param_rows(k)], cuts)
        inputs = [z[own:after], z[after : after + stage.z_next.numel()], *at]
        group = problem.group_of[k]
        blocks = jacobians[group].call([*inputs, *functions[group].call(inputs)])
        for number, what in ((0, "cost"), (1, "residual"), (3, "rows")):
            of_z = blocks[number * len(inputs) : number * len(inputs) + 2]
            if not all(np.isfinite(np.asarray(block)).all() for block in of_z):
                yield k, what


def _endless_parameters(batch: HostBatch, b: int) -> str:
    """Parameters that are infinite, which only bounds may be."""
    if batch.params is None:
        return ""
    endless = np.flatnonzero(np.isinf(batch.params[b])).tolist()
    names = [_parameter_name(batch.problem, i) for i in endless]
    return f"; infinite: {', '.join(names[:3])}" if names else ""


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


def _infeasible(batch: HostBatch, b: int, point: Evaluation | None) -> str:
    """Which rows contradict each other."""
    if point is None:
        return "the last QP has no solution"
    for i in np.flatnonzero(point.lower > point.upper):
        low, high = point.lower[i], point.upper[i]
        return f"the bounds of {batch.row(int(i))} cross: {low:.4g} > {high:.4g}"
    named = _violated(batch, point)
    if not named:
        return "the rows hold, but linearised they contradict each other: no QP has a solution"
    return f"the last QP has no solution; violated: {named}"


def _violated(batch: HostBatch, point: Evaluation) -> str:
    """The rows that are violated most."""
    excess = batch.violations(point)
    order = np.argsort(-excess)[:3]
    named = [f"{batch.row(i)} by {excess[i]:.2g}" for i in order if excess[i] > batch.tolerance]
    return ", ".join(named)


def _stuck(batch: HostBatch, b: int, point: Evaluation | None) -> str:
    """Why no step length was acceptable."""
    solution = batch.solution
    if point is not None:
        for k in np.flatnonzero(~np.isfinite(point.cost)):
            return f"the cost of node {k} is {point.cost[k]}{_endless_parameters(batch, b)}"
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
    advice = 'try float64, hessian="gauss_newton", or another guess'
    if point is not None and (named := _violated(batch, point)):
        return (
            f"rows stay violated: {named}; if they contradict each other make them soft, else "
            f"{advice}"
        )
    return f"nothing improves along the direction (KKT residual {kkt:.2g}); {advice}"


def _unfinished(batch: HostBatch, b: int, point: Evaluation | None) -> str:
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
