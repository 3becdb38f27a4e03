"""A second way to everything the QP benchmark checks: float64, SciPy, one instance at a time.

Produces: iterates of OSQP's method, the exact solution, and gradients by both methods, with sparse
LU with pivoting and without any code of the solver.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import scipy.sparse as sp
from scipy.sparse.linalg import SuperLU, splu

from warpmpc.qp.types import ADMMSettings

FREE_RHO = 1e-6
EQUALITY_GAP = 1e-4
_REGULARISATION = {"kkt": 1e-9, "lsq": 1e-6}
_REFINEMENTS = {"kkt": 20, "lsq": 100}
_ITERATIONS_TO_OPTIMUM, CONVERGED = 2000, 1e-7


@dataclass(frozen=True, eq=False)
class Instance:
    """One QP in float64; P is its upper triangle."""

    P: sp.csc_matrix
    q: np.ndarray
    A: sp.csc_matrix
    lower: np.ndarray
    upper: np.ndarray

    @cached_property
    def full_P(self) -> sp.csc_matrix:
        """Both triangles."""
        return sp.csc_matrix(self.P + sp.triu(self.P, 1).T)

    def objective(self, x: np.ndarray) -> float:
        """Half x'Px + q'x."""
        return float(0.5 * x @ (self.full_P @ x) + self.q @ x)

    def violation(self, x: np.ndarray) -> float:
        """Largest distance of A x to its bounds."""
        Ax = self.A @ x
        return float(np.maximum(np.maximum(self.lower - Ax, Ax - self.upper), 0).max())


def iterates(qp: Instance, settings: ADMMSettings) -> tuple[np.ndarray, np.ndarray]:
    """Minimisers and multipliers after `max_iter` plain iterations from zero.

    Rows are classified as OSQP does it: equalities, free rows, others.
    """
    n, sigma, omega = qp.q.size, settings.sigma, settings.relaxation
    free = np.isinf(qp.lower) & np.isinf(qp.upper)
    equal = ~free & (qp.upper - qp.lower < EQUALITY_GAP)
    rho = np.select([equal, free], [settings.rho_equality * settings.rho, FREE_RHO], settings.rho)
    factor = _factor(qp.full_P + sigma * sp.identity(n), qp.A, -1 / rho)
    x, s, y = np.zeros(n), np.zeros(rho.size), np.zeros(rho.size)
    for _ in range(settings.max_iter):
        solution = factor.solve(np.concatenate([sigma * x - qp.q, s - y / rho]))
        s_tilde = s + (solution[n:] - y) / rho
        x = omega * solution[:n] + (1 - omega) * x
        relaxed = omega * s_tilde + (1 - omega) * s
        v = relaxed + y / rho
        s = np.clip(v, qp.lower, qp.upper)
        y = rho * (v - s)  # exactly zero where no bound is active
    return x, y


def optimum(qp: Instance) -> np.ndarray | None:
    """The minimiser, by iterating until nothing is left to gain; None if that does not happen."""
    x, y = iterates(qp, ADMMSettings(max_iter=_ITERATIONS_TO_OPTIMUM))
    stationarity = np.abs(qp.full_P @ x + qp.q + qp.A.T @ y).max()
    return x if max(qp.violation(x), stationarity) < CONVERGED else None


def gradient(
    qp: Instance,
    point: tuple[np.ndarray, np.ndarray],
    cotangents: tuple[np.ndarray, np.ndarray],
    method: str,
) -> list[np.ndarray]:
    """Gradient of x_bar'x + y_bar'y at a given (x, y), by the method's own linear system.

    Args:
        qp: The instance.
        point: x and y to differentiate at, as the solver found them.
        cotangents: x_bar and y_bar.
        method: "kkt" or "lsq", as in `ADMMSettings.sensitivity`.

    Returns:
        Derivatives with respect to the values of P (upper), q, the values of A, lower and upper.
    """
    (x, y), (x_bar, y_bar) = point, cotangents
    active, equal = _active(qp, y), qp.lower == qp.upper
    solve = _solve_active if method == "kkt" else _solve_least_squares
    dx, dy = solve(qp, point, x_bar, np.where(active, y_bar, 0.0))
    half = np.where((y == 0) & equal, 0.5, 0.0)
    P_row, P_col = qp.P.indices, np.repeat(np.arange(x.size), np.diff(qp.P.indptr))
    A_row, A_col = qp.A.indices, np.repeat(np.arange(x.size), np.diff(qp.A.indptr))
    weight = np.where(P_row == P_col, 0.5, 1.0)
    return [
        -weight * (dx[P_row] * x[P_col] + dx[P_col] * x[P_row]),
        -dx,
        -y[A_row] * dx[A_col] - dy[A_row] * x[A_col],
        np.where(y < 0, 1.0, half) * dy,
        np.where(y > 0, 1.0, half) * dy,
    ]


def _active(qp: Instance, y: np.ndarray) -> np.ndarray:
    return (y != 0) | (qp.lower == qp.upper)


def _factor(P: Any, A: Any, corner: np.ndarray) -> SuperLU:
    """LU of [[P, A'], [A, diag(corner)]]."""
    return splu(sp.csc_matrix(sp.bmat([[P, A.T], [A, sp.diags(corner)]])))


def _solve_active(
    qp: Instance, point: tuple[np.ndarray, np.ndarray], top: np.ndarray, bottom: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """[[P, A_a'], [A_a, 0]] on the active rows, refined from a slight regularisation."""
    active = _active(qp, point[1])
    A = sp.csc_matrix(sp.diags(active.astype(float)) @ qp.A)
    eps, inactive = _REGULARISATION["kkt"], np.where(active, 0.0, -1.0)
    factor = _factor(qp.full_P + eps * sp.identity(top.size), A, inactive - eps)
    exact = sp.csr_matrix(sp.bmat([[qp.full_P, A.T], [A, sp.diags(inactive)]]))
    return _refined(factor, exact, np.concatenate([top, bottom]), "kkt", top.size)


def _solve_least_squares(
    qp: Instance, point: tuple[np.ndarray, np.ndarray], top: np.ndarray, bottom: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Least-squares r with J'r = (top, bottom); J is the Jacobian of all optimality conditions."""
    x, y = point
    Ax, equal = qp.A @ x, qp.lower == qp.upper
    nearest = np.maximum(
        np.where(np.isinf(qp.upper), -np.inf, Ax - qp.upper),
        np.where(np.isinf(qp.lower), -np.inf, qp.lower - Ax),
    )
    slack = np.where(_active(qp, y), 0.0, np.where(np.isfinite(nearest), nearest, -1.0))
    C = np.where(equal, 1.0, y)
    J_T = sp.bmat([[qp.full_P, qp.A.T @ sp.diags(C)], [qp.A, sp.diags(slack)]])
    size, eps = x.size + y.size, _REGULARISATION["lsq"]
    one = sp.identity(size)
    # Normal equations J J'r = J g without forming them: t = g - J'r, J t = 0.
    factor = _factor((1 + eps) * one, sp.csc_matrix(J_T.T), np.full(size, -eps))
    exact = sp.csr_matrix(sp.bmat([[one, J_T], [J_T.T, sp.csr_matrix((size, size))]]))
    rhs = np.concatenate([top, bottom, np.zeros(size)])
    _, r = _refined(factor, exact, rhs, "lsq", size)
    return r[: x.size], C * r[x.size :]


def _refined(
    factor: SuperLU, exact: sp.csr_matrix, rhs: np.ndarray, method: str, cut: int
) -> tuple[np.ndarray, np.ndarray]:
    """Solves with a regularised factor, refined against the exact matrix; both parts."""
    w = np.zeros_like(rhs)
    for _ in range(_REFINEMENTS[method]):
        w = w + factor.solve(rhs - exact @ w)
    return w[:cut], w[cut:]
