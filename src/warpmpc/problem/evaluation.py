"""Evaluation of a problem on the host by CasADi, in float64 and without any solver.

Reads: an `MPCProblem` and the values of one instance.  Produces: cost, rows and bounds, and the
initial guess.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import casadi as ca
import numpy as np

from warpmpc._errors import ProblemError
from warpmpc.problem.mpc_problem import MPCProblem, guess_function, stage_function


@dataclass(frozen=True, eq=False)
class Evaluation:
    """A problem at one point.

    Attributes:
        cost: Costs of all nodes, ``[N + 1]``, without penalties.
        penalty: Penalties of violated soft rows, ``[N + 1]``.
        g: Values of the constraint rows ``[n_cons]``.
        lower: Lower bounds of the rows.
        upper: Upper bounds of the rows.
    """

    cost: np.ndarray
    penalty: np.ndarray
    g: np.ndarray
    lower: np.ndarray
    upper: np.ndarray


def evaluate(problem: MPCProblem, z: Any, params: Any) -> Evaluation:
    """Evaluates cost and constraints of one instance.

    Args:
        problem: The problem.
        z: Trajectory ``[n_vars]``.
        params: Parameter vector ``[n_params]``: x0, shared parameters, parameters of the nodes.
    """
    z = _vector(z, problem.n_vars, "z")
    params = _vector(params, problem.n_params, "params")
    functions = [stage_function(g.stage, problem.x0, problem.shared) for g in problem.groups]
    costs, penalties, rows = [], [], []
    for k, stage in enumerate(problem.stages):
        own, after = problem.z_offset[k], problem.z_offset[k + 1]
        end = after + stage.z_next.numel()
        function = functions[problem.group_of[k]]
        outputs = [
            np.asarray(value).ravel(order="F")
            for value in function(z[own:after], z[after:end], *_parameters(problem, k, params))
        ]
        cost, residual, weight, g, lower, upper, penalty = outputs
        costs.append(cost[0] + 0.5 * weight @ residual**2)
        soft = stage.soft_rows
        penalties.append(_penalty(lower[soft] - g[soft], g[soft] - upper[soft], penalty))
        rows.append((g, lower, upper))
    g, lower, upper = (np.concatenate(part) for part in zip(*rows, strict=True))
    return Evaluation(np.array(costs), np.array(penalties), g, lower, upper)


def initial_guess(problem: MPCProblem, params: Any) -> np.ndarray:
    """Evaluates the guess of z, ``[n_vars]``, for a parameter vector ``[n_params]``."""
    params = _vector(params, problem.n_params, "params")
    functions: dict[int, ca.Function] = {}
    parts: list[np.ndarray] = []
    for k, stage in enumerate(problem.stages):
        if id(stage) not in functions:
            functions[id(stage)] = guess_function(stage, problem.x0, problem.shared)
        tau = k / max(problem.horizon, 1)
        value = functions[id(stage)](*_parameters(problem, k, params), tau)
        parts.append(np.asarray(value).ravel())
    return np.concatenate(parts)


def _parameters(problem: MPCProblem, k: int, params: np.ndarray) -> list[np.ndarray]:
    """x0, shared and own parameters of a node."""
    cuts = [problem.n_x0, problem.n_x0 + problem.n_shared]
    return np.split(params[problem.param_rows(k)], cuts)


def _penalty(below: np.ndarray, above: np.ndarray, penalties: np.ndarray) -> float:
    """Sum of the penalties of soft rows; infinite penalties count if the side is violated."""
    total = 0.0
    linear_quadratic = penalties.reshape(2, 2, -1)  # linear or quadratic, lower or upper, row
    for violation, (linear, quadratic) in zip(
        (below, above), linear_quadratic.swapaxes(0, 1), strict=True
    ):
        active = violation > 0
        v = violation[active]
        total += float(np.sum(linear[active] * v + quadratic[active] / 2 * v**2))
    return total


def _vector(value: Any, size: int, what: str) -> np.ndarray:
    array = np.asarray(value, dtype=np.float64)
    if array.shape != (size,):
        raise ProblemError(f"{what} has shape {array.shape} but must have the shape ({size},).")
    return array
