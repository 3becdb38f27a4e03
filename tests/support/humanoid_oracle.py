"""The QP of a problem at a point and ADMM on it, stage by stage with CasADi, NumPy and SciPy.

Nothing is translated: CasADi differentiates and evaluates every stage, SciPy factorises.
"""

from __future__ import annotations

from dataclasses import dataclass

import casadi as ca
import numpy as np
import scipy.sparse as sp
from scipy.sparse.linalg import splu

from warpmpc import ADMMSettings
from warpmpc.problem.mpc_problem import MPCProblem


@dataclass(frozen=True)
class QP:
    """min 1/2 d'Pd + q'd subject to lower <= A d <= upper; patterns are structural."""

    P: sp.csc_matrix
    q: np.ndarray
    A: sp.csc_matrix
    lower: np.ndarray
    upper: np.ndarray


def _scipy(matrix: ca.DM) -> sp.coo_matrix:
    """All structural entries, zeros included."""
    rows, cols = matrix.sparsity().get_triplet()
    return sp.coo_matrix((np.array(matrix.nonzeros()), (rows, cols)), shape=matrix.shape)


def quadratic_program(problem: MPCProblem, z: np.ndarray, params: np.ndarray) -> QP:
    """Gauss-Newton QP of a problem whose cost consists of residuals."""
    P = sp.csc_matrix((problem.n_vars, problem.n_vars))
    q, blocks, lower, upper = np.zeros(problem.n_vars), [], [], []
    functions = [_stage_function(problem, group.stage) for group in problem.groups]
    for k, stage in enumerate(problem.stages):
        begin, end = problem.z_offset[k], problem.z_offset[k + 1]
        n_w = stage.n_z + stage.z_next.numel()
        w = z[begin : begin + n_w]
        cuts = [problem.n_x0, problem.n_x0 + problem.n_shared]
        given = np.split(params[problem.param_rows(k)], cuts)
        function = functions[problem.group_of[k]]
        r, R, weight, g, J, low, up = function(w[: end - begin], w[end - begin :], *given)
        R, weight, r = _scipy(R).tocsc(), np.array(weight).ravel(), np.array(r).ravel()
        place = sp.csc_matrix(
            (np.ones(n_w), (np.arange(n_w), begin + np.arange(n_w))), shape=(n_w, problem.n_vars)
        )
        P = P + place.T @ (R.T @ sp.diags(weight) @ R) @ place
        q += place.T @ (R.T @ (weight * r))
        shifted = _scipy(J)
        blocks.append(
            sp.coo_matrix(
                (shifted.data, (shifted.row, shifted.col + begin)),
                shape=(stage.n_g, problem.n_vars),
            )
        )
        lower.append(np.array(low - g).ravel())
        upper.append(np.array(up - g).ravel())
    return QP(P.tocsc(), q, sp.vstack(blocks).tocsc(), np.concatenate(lower), np.concatenate(upper))


def _stage_function(problem: MPCProblem, stage) -> ca.Function:
    w = ca.vertcat(stage.z, stage.z_next)
    outputs = [stage.residual, ca.jacobian(stage.residual, w), stage.weight]
    outputs += [stage.g, ca.jacobian(stage.g, w), stage.lower, stage.upper]
    inputs = [stage.z, stage.z_next, problem.x0, problem.shared, stage.p]
    return ca.Function("stage", inputs, outputs)


def admm(qp: QP, settings: ADMMSettings) -> tuple[np.ndarray, np.ndarray]:
    """OSQP's iteration from zero, a fixed number of times, unscaled; x and y."""
    n, m, a = qp.q.size, qp.lower.size, settings.relaxation
    x, s, y = np.zeros(n), np.zeros(m), np.zeros(m)
    rho = settings.rho * np.where(qp.upper - qp.lower < 1e-4, settings.rho_equality, 1.0)
    K = sp.bmat([[qp.P + settings.sigma * sp.eye(n), qp.A.T], [qp.A, sp.diags(-1 / rho)]])
    factor = splu(K.tocsc())
    for _ in range(settings.max_iter):
        w = s - y / rho
        solution = factor.solve(np.concatenate([settings.sigma * x - qp.q, w]))
        relaxed = a * (w + solution[n:] / rho) + (1 - a) * s
        x = a * solution[:n] + (1 - a) * x
        s = np.clip(relaxed + y / rho, qp.lower, qp.upper)
        y = y + rho * (relaxed - s)
    return x, y
