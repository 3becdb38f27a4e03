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

_SHORT = 0.1  # a step length below it means that the line search holds an instance back


def _not_finite(batch: HostBatch, b: int, point: Evaluation | None) -> str:
    """Where the first number comes from that is none."""
    for what in _origins(batch, b, point):
        return what
    if not batch.complete:
        return "not known: a parameter may be NaN; pass x0 and params to `diagnose` as well"
    cause = (
        "cost, rows and their first derivatives are finite: the QP was lost to rounding or a "
        "second derivative is not finite"
    )
    return _with_advice(cause, [*_float64(batch), *_sparse(batch), *_gauss_newton(batch)])


def _with_advice(cause: str, ways: list[str]) -> str:
    """A cause, and what could be tried that is not set already."""
    return f"{cause}; try {', or '.join(ways)}" if ways else cause


def _float64(batch: HostBatch) -> list[str]:
    return ["float64"] if batch.solution.z.dtype == np.float32 else []


def _sparse(batch: HostBatch) -> list[str]:
    engine = batch.solution.layout.engine
    return [] if engine == "sparse" else ['engine="sparse"']


def _gauss_newton(batch: HostBatch) -> list[str]:
    settings = batch.solution.layout.settings
    is_set = settings is not None and settings.hessian_kind == "gauss_newton"
    return [] if is_set else ['hessian="gauss_newton"']


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
        cause = f"almost converged (KKT residual {kkt:.2g}), the rest is rounding"
        return _with_advice(cause, _float64(batch))
    ways = [*_float64(batch), *_gauss_newton(batch), "another guess"]
    if point is not None and (named := _violated(batch, point)):
        cause = f"rows stay violated: {named}; if they contradict each other make them soft"
        return _with_advice(cause, ways)
    cause = f"nothing improves along the direction (KKT residual {kkt:.2g})"
    return _with_advice(cause, ways)


def _unfinished(batch: HostBatch, b: int, point: Evaluation | None) -> str:
    """Which criteria of convergence are not met at the end of the iterations."""
    solution, settings = batch.solution, batch.solution.layout.settings
    violation, kkt = (float(getattr(solution, n)[b]) for n in ("violation", "kkt_residual"))
    rows = f"rows are violated by {violation:.2g}" if violation > batch.tolerance else "rows hold"
    if settings is None or not settings.converges:
        fixed = "" if settings is None else "the settings fix the number of iterations: "
        return f"{fixed}{rows}, the KKT residual is {kkt:.2g}"
    tol = settings.tolerances(solution.z.dtype.name)
    step = float(np.abs(solution.warm_start.qp.d[b]).max())
    at_rest = tol.step * max(1.0, float(np.abs(solution.z[b]).max()))
    missing = [
        f"{what} is {value:.2g}, above {name}={limit:.2g}"
        for what, value, name, limit in (
            ("the violation of rows", violation, "tol_violation", tol.violation),
            ("the KKT residual", kkt, "tol_kkt", tol.kkt),
            ("the last direction", step, "tol_step", at_rest),
        )
        if value > limit
    ]
    if not missing:
        return f"the criteria were met only after the last test: raise max_iter={settings.max_iter}"
    return f"{'; '.join(missing)} after {solution.iterations[b]} iterations; {_remedy(batch, b)}"


def _remedy(batch: HostBatch, b: int) -> str:
    """What keeps the iterations of an instance from converging."""
    solution, settings = batch.solution, batch.solution.layout.settings
    assert settings is not None
    admm = settings.qp_settings(solution.z.dtype.name)
    usual = DEFAULT_TOLERANCES[solution.z.dtype.name]
    near = solution.kkt_residual[b] <= 0.01 * usual.kkt and solution.violation[b] <= usual.violation
    if near and _float64(batch):
        return "float32 may not get any nearer: try float64"
    if solution.qp_iterations[b] >= 0.9 * admm.max_iter * solution.iterations[b]:
        return (
            f"its QPs stop at their limit, ADMMSettings(max_iter={admm.max_iter}): scale variables "
            "and rows to order 1, or raise that limit"
        )
    if solution.step_length[b] < _SHORT:
        ways = [*_gauss_newton(batch), "another guess"]
        return _with_advice(f"steps are short ({solution.step_length[b]:.2g})", ways)
    return f"it is still moving: raise max_iter={settings.max_iter}, or start from a better guess"


CAUSES = {
    MPCStatus.NON_FINITE: _not_finite,
    MPCStatus.QP_INFEASIBLE: _infeasible,
    MPCStatus.LINE_SEARCH_FAILED: _stuck,
    MPCStatus.MAX_ITER: _unfinished,
}
