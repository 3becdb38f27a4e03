"""Tables of the tests of `QPSolver`: problem families, row kinds, OSQP as oracle, solvers.

A `QPBatch` has one pattern and values per instance.  Every draw has a seed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np
import osqp
import scipy.sparse as sp

from warpmpc import ADMMSettings, QPSolver, Status
from warpmpc_bench.qp.oracle import Instance

ARGUMENTS = ("P_vals", "q", "A_vals", "lower", "upper")
INF = np.inf


class QP(Instance):
    """One instance; P is its upper triangle."""

    def residuals(self, x: np.ndarray, s: np.ndarray, y: np.ndarray) -> tuple[float, float]:
        """Primal and dual residual, largest entries."""
        dual = self.full_P @ x + self.q + self.A.T @ y
        return float(np.abs(self.A @ x - s).max()), float(np.abs(dual).max())


@dataclass(frozen=True, eq=False)
class QPBatch:
    """Instances that share the patterns of P (upper) and A."""

    P: sp.csc_matrix
    A: sp.csc_matrix
    P_vals: np.ndarray
    q: np.ndarray
    A_vals: np.ndarray
    lower: np.ndarray
    upper: np.ndarray

    @property
    def args(self) -> tuple[np.ndarray, ...]:
        return tuple(getattr(self, name) for name in ARGUMENTS)

    @property
    def size(self) -> int:
        return self.q.shape[0]

    def map(self, function: Callable[[np.ndarray], Any]) -> QPBatch:
        """The batch with a function applied to all five arrays."""
        return replace(self, **{name: function(getattr(self, name)) for name in ARGUMENTS})

    def copy(self) -> QPBatch:
        return self.map(np.copy)

    def instance(self, b: int) -> QP:
        def matrix(pattern: sp.csc_matrix, vals: np.ndarray) -> sp.csc_matrix:
            return sp.csc_matrix((vals, pattern.indices, pattern.indptr), shape=pattern.shape)

        P, A = matrix(self.P, self.P_vals[b]), matrix(self.A, self.A_vals[b])
        return QP(P, self.q[b], A, self.lower[b], self.upper[b])

    @property
    def instances(self) -> list[QP]:
        return [self.instance(b) for b in range(self.size)]


def stack(instances: list[QP]) -> QPBatch:
    """A batch from instances with equal patterns."""
    first = instances[0]
    for one in instances:
        for given, wanted in ((one.P, first.P), (one.A, first.A)):
            given.sort_indices()
            assert np.array_equal(given.indices, wanted.indices)
            assert np.array_equal(given.indptr, wanted.indptr)
    return QPBatch(
        first.P,
        first.A,
        np.stack([one.P.data for one in instances]),
        np.stack([one.q for one in instances]),
        np.stack([one.A.data for one in instances]),
        np.stack([one.lower for one in instances]),
        np.stack([one.upper for one in instances]),
    )


def _upper(P: Any) -> sp.csc_matrix:
    return sp.csc_matrix(sp.triu(P))


def _mask(shape: tuple[int, int], density: float) -> np.ndarray:
    """Where a family's data matrix has entries: the same for all instances of a size."""
    present = np.random.default_rng([7, *shape]).random(shape) < density
    present[np.arange(max(shape)) % shape[0], np.arange(max(shape)) % shape[1]] = True
    return present


def _normal(rng: np.random.Generator, shape: tuple[int, int], density: float) -> sp.csc_matrix:
    rows, cols = np.nonzero(_mask(shape, density))
    return sp.csc_matrix((rng.normal(size=rows.size), (rows, cols)), shape=shape)


def portfolio(rng: np.random.Generator, size: int, density: float = 1.0) -> QP:
    """Assets x and factors f: risk and factor risk against return, on the simplex."""
    n, k = size, max(size // 10, 2)
    F = _normal(rng, (n, k), density)
    risk = sp.diags(rng.uniform(0.1, 1, n) * np.sqrt(k))
    P = _upper(2 * sp.block_diag([risk, sp.identity(k)]))
    A = sp.bmat([[F.T, -sp.identity(k)], [np.ones((1, n)), None], [sp.identity(n), None]])
    q = np.concatenate([-rng.normal(size=n), np.zeros(k)])
    lower = np.concatenate([np.zeros(k), [1.0], np.zeros(n)])
    upper = np.concatenate([np.zeros(k), [1.0], np.full(n, INF)])
    return QP(P, q, sp.csc_matrix(A), lower, upper)


def lasso(rng: np.random.Generator, size: int, density: float = 1.0) -> QP:
    """Least squares with a 1-norm: variables x, residual r, bound t on abs(x)."""
    n, m = size, 2 * size
    data = _normal(rng, (m, n), density)
    b = data @ np.where(rng.random(n) < 0.5, rng.normal(size=n), 0) + 0.1 * rng.normal(size=m)
    weight = 0.2 * np.abs(data.T @ b).max()
    eye = sp.identity(n)
    P = _upper(sp.block_diag([sp.csc_matrix((n, n)), sp.identity(m), sp.csc_matrix((n, n))]))
    A = sp.bmat([[data, -sp.identity(m), None], [eye, None, -eye], [eye, None, eye]])
    q = np.concatenate([np.zeros(n + m), np.full(n, weight)])
    lower = np.concatenate([b, np.full(n, -INF), np.zeros(n)])
    upper = np.concatenate([b, np.zeros(n), np.full(n, INF)])
    return QP(P, q, sp.csc_matrix(A), lower, upper)


def svm(rng: np.random.Generator, size: int, density: float = 1.0) -> QP:
    """Separating two clouds: weights x, slacks t of the points."""
    n, m = size, 2 * size
    label = np.where(np.arange(m) < m // 2, 1.0, -1.0)
    data = _normal(rng, (m, n), density)
    data.data += label[data.indices] / n
    P = _upper(sp.block_diag([sp.identity(n), sp.csc_matrix((m, m))]))
    A = sp.bmat([[sp.diags(label) @ data, -sp.identity(m)], [None, sp.identity(m)]])
    q = np.concatenate([np.zeros(n), np.full(m, 0.5)])
    lower = np.concatenate([np.full(m, -INF), np.zeros(m)])
    upper = np.concatenate([np.full(m, -1.0), np.full(m, INF)])
    return QP(P, q, sp.csc_matrix(A), lower, upper)


def huber(rng: np.random.Generator, size: int, density: float = 1.0) -> QP:
    """Robust fit: parameters x, small residual u, large residuals r - s."""
    n, m = size, 2 * size
    data, eye = _normal(rng, (m, n), density), sp.identity(m)
    outlier = np.where(rng.random(m) < 0.1, rng.uniform(0, 10, m), 0)
    b = data @ rng.normal(size=n) / np.sqrt(n) + 0.25 * rng.normal(size=m) + outlier
    zero = sp.csc_matrix((2 * m, 2 * m))
    P = _upper(sp.block_diag([sp.csc_matrix((n, n)), 2 * eye, zero]))
    A = sp.bmat([[data, -eye, -eye, eye], [None, None, eye, None], [None, None, None, eye]])
    q = np.concatenate([np.zeros(n + m), np.full(2 * m, 2.0)])
    lower = np.concatenate([b, np.zeros(2 * m)])
    upper = np.concatenate([b, np.full(2 * m, INF)])
    return QP(P, q, sp.csc_matrix(A), lower, upper)


def random_qp(rng: np.random.Generator, size: int, density: float = 0.3) -> QP:
    """Every kind of row around a feasible point."""
    n, m = size, 2 * size
    root = _normal(rng, (n, n), density / 2)
    A = _normal(rng, (m, n), density)
    lower, upper = bounds_around(rng, A @ rng.normal(size=n), rng.permutation(m) % 8)
    return QP(_upper(root @ root.T + 0.1 * sp.identity(n)), rng.normal(size=n), A, lower, upper)


def equality(rng: np.random.Generator, size: int, density: float = 0.3) -> QP:
    """Equalities only."""
    n, m = size, size // 2
    root, A = _normal(rng, (n, n), density / 2), _normal(rng, (m, n), density)
    b = A @ rng.normal(size=n)
    return QP(_upper(root @ root.T + 0.1 * sp.identity(n)), rng.normal(size=n), A, b, b)


def linear_mpc(rng: np.random.Generator, size: int, density: float = 1.0) -> QP:
    """Quadcopter of PROBLEMS.md section 1 at horizon `size`, random initial state."""
    return quadcopter(size, 0.15 * density * rng.normal(size=12))


FAMILIES: dict[str, Callable[..., QP]] = {
    "portfolio": portfolio,
    "lasso": lasso,
    "svm": svm,
    "huber": huber,
    "random": random_qp,
    "equality": equality,
    "linear_mpc": linear_mpc,
}


def bounds_around(
    rng: np.random.Generator, center: np.ndarray, kinds: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Bounds that `center` satisfies: 0 equality, 1 lower only, 2 upper only, 3 free, else both."""
    below, above = (center - rng.uniform(0.1, 1, center.size) for _ in range(2))
    above = 2 * center - above
    lower = np.select([kinds == 0, (kinds == 2) | (kinds == 3)], [center, -INF], below)
    upper = np.select([kinds == 0, (kinds == 1) | (kinds == 3)], [center, INF], above)
    return lower, upper


@cache
def family(name: str, size: int, batch: int, density: float = 1.0, seed: int = 0) -> QPBatch:
    """Instances of a family; do not write to its arrays, `copy` first."""
    build = FAMILIES[name]
    return stack([build(np.random.default_rng([seed, b]), size, density) for b in range(batch)])


def _dynamics() -> tuple[np.ndarray, np.ndarray]:
    """A_d and B_d of the quadcopter."""
    A = np.diag(np.repeat([1.0, 0.9846], [9, 3]))
    A[[0, 1, 2], [6, 7, 8]] = 0.1
    A[3, [0, 6, 9]] = 0.0488, 0.0016, 0.0992
    A[4, [1, 7, 10]] = -0.0488, -0.0016, 0.0992
    A[5, 11] = 0.0992
    A[9, [0, 6]] = 0.9734, 0.0488
    A[10, [1, 7]] = -0.9734, -0.0488
    B = np.zeros((12, 4))
    B[[0, 3, 6, 9]] = np.outer([0.0726, 0.0006, 1.4512, 0.0236], [0, -1, 0, 1])
    B[[1, 4, 7, 10]] = np.outer([0.0726, -0.0006, 1.4512, -0.0236], [-1, 0, 1, 0])
    B[[2, 8]] = np.outer([0.0152, 0.3049], [-1, 1, -1, 1])
    B[[5, 11]] = np.outer([0.0106, 0.2107], [1, 1, 1, 1])
    return A, B


def quadcopter(horizon: int, x_init: np.ndarray) -> QP:
    """Linear MPC: states, then inputs; dynamics rows, then one row per variable."""
    N, n_x, n_u = horizon, 12, 4
    A_d, B_d = _dynamics()
    n = (N + 1) * n_x + N * n_u
    weight = np.array([0, 0, 10, 10, 10, 10, 0, 0, 0, 5, 5, 5], dtype=float)
    diagonal = np.concatenate([np.tile(weight, N + 1), np.full(N * n_u, 0.1)])
    at = np.flatnonzero(diagonal)
    P = sp.csc_matrix((diagonal[at], (at, at)), shape=(n, n))
    reference = np.eye(n_x)[2]
    q = np.concatenate([np.tile(-weight * reference, N + 1), np.zeros(N * n_u)])
    entries = [(i, i, -1.0) for i in range((N + 1) * n_x)]
    for k in range(N):
        row, first_u = (k + 1) * n_x, (N + 1) * n_x + k * n_u
        entries += [(row + i, k * n_x + j, A_d[i, j]) for i, j in np.argwhere(A_d)]
        entries += [(row + i, first_u + j, B_d[i, j]) for i, j in np.ndindex(n_x, n_u)]
    entries += [((N + 1) * n_x + i, i, 1.0) for i in range(n)]
    rows, cols, values = (np.array(column) for column in zip(*entries, strict=True))
    # Zeros of B_d are stored: coo to csc keeps them.
    A = sp.csc_matrix((values, (rows, cols)), shape=((N + 1) * n_x + n, n))
    fixed = np.concatenate([-x_init, np.zeros(N * n_x)])
    angle = np.pi / 6
    low = np.concatenate([[-angle, -angle, -INF, -INF, -INF, -1.0], np.full(6, -INF)])
    high = np.concatenate([[angle, angle], np.full(10, INF)])
    lower = np.concatenate([fixed, np.tile(low, N + 1), np.full(N * n_u, 9.6 - 10.5916)])
    upper = np.concatenate([fixed, np.tile(high, N + 1), np.full(N * n_u, 13 - 10.5916)])
    return QP(P, q, A, lower, upper)


RING_VARS, RING_CONS = 8, 12


def ring_patterns() -> tuple[sp.csc_matrix, sp.csc_matrix]:
    """Small patterns whose rows and columns all have equally many entries: quick to compile."""
    n, m = RING_VARS, RING_CONS
    i = np.arange(n)
    P = sp.identity(n) + sp.csc_matrix((np.ones(n), (i, (i + 1) % n)), shape=(n, n))
    rows = np.repeat(np.arange(m), 4)
    cols = (2 * rows + np.tile([0, 1, 3, 6], m)) % n
    A = sp.csc_matrix((np.ones(4 * m), (rows, cols)), shape=(m, n))
    return _upper(P + P.T), A


@cache
def ring(batch: int, seed: int = 0) -> QPBatch:
    """Strictly convex QPs with rows of every kind, different in each instance."""
    P, A = ring_patterns()
    diagonal = P.indices == np.repeat(np.arange(RING_VARS), np.diff(P.indptr))
    instances = []
    for b in range(batch):
        rng = np.random.default_rng([seed, 77, b])
        P_b, A_b = P.copy(), A.copy()
        P_b.data = np.where(diagonal, rng.uniform(2, 3, P.nnz), rng.uniform(-0.8, 0.8, P.nnz))
        A_b.data = rng.normal(size=A.nnz)
        kinds = rng.permutation(np.r_[[0, 0, 1, 1, 2, 2, 3], np.full(RING_CONS - 7, 4)])
        lower, upper = bounds_around(rng, A_b @ rng.normal(size=RING_VARS), kinds)
        instances.append(QP(P_b, 4 * rng.normal(size=RING_VARS), A_b, lower, upper))
    return stack(instances)


_SOLVERS: dict[tuple[Any, ...], QPSolver] = {}


def solver_for(
    given: QPBatch,
    settings: ADMMSettings | None = None,
    engine: str = "sparse",
    dtype: str = "float64",
) -> QPSolver:
    """Solver of a batch's patterns, one per test process: its programs are compiled once."""
    settings = settings or ADMMSettings()
    patterns = [(M.shape, M.indptr.tobytes(), M.indices.tobytes()) for M in (given.P, given.A)]
    key = (*patterns, settings, engine, dtype)
    if key not in _SOLVERS:
        _SOLVERS[key] = QPSolver(given.P, given.A, settings=settings, dtype=dtype, engine=engine)
    return _SOLVERS[key]


def fixed(iterations: int, **changes: Any) -> ADMMSettings:
    """Settings of a number of plain iterations: no scaling, no adaptation, no termination."""
    return ADMMSettings(
        max_iter=iterations, check_every=0, adaptive_rho_every=0, scaling=0, **changes
    )


OSQP_STATUS = {
    osqp.SolverStatus.OSQP_SOLVED: Status.SOLVED,
    osqp.SolverStatus.OSQP_MAX_ITER_REACHED: Status.MAX_ITER,
    osqp.SolverStatus.OSQP_PRIMAL_INFEASIBLE: Status.PRIMAL_INFEASIBLE,
    osqp.SolverStatus.OSQP_DUAL_INFEASIBLE: Status.DUAL_INFEASIBLE,
    # What OSQP calls the last iterate when it is within ten times the tolerance.
    osqp.SolverStatus.OSQP_SOLVED_INACCURATE: Status.MAX_ITER,
    osqp.SolverStatus.OSQP_PRIMAL_INFEASIBLE_INACCURATE: Status.MAX_ITER,
    osqp.SolverStatus.OSQP_DUAL_INFEASIBLE_INACCURATE: Status.MAX_ITER,
}
OSQP_FIXED = {
    "scaling": 0,
    "adaptive_rho": 0,
    "check_termination": 0,
    # An iterate that looks infeasible by the end would be replaced by NaN.
    "eps_prim_inf": 1e-15,
    "eps_dual_inf": 1e-15,
}
OSQP_TIGHT = {"eps_abs": 1e-10, "eps_rel": 1e-10, "max_iter": 200_000}


@dataclass(frozen=True, eq=False)
class Reference:
    """What OSQP says."""

    x: np.ndarray
    y: np.ndarray
    status: Status
    objective: float
    iterations: int


def osqp_solve(
    qp: QP, start: tuple[np.ndarray, np.ndarray] | None = None, **settings: Any
) -> Reference:
    """OSQP without polishing; `start` is (x, y), and OSQP takes A x for the rows."""
    solver = osqp.OSQP()
    options = {"verbose": False, "polishing": False, **settings}
    solver.setup(qp.P, qp.q, qp.A, qp.lower, qp.upper, **options)
    if start is not None:
        solver.warm_start(x=start[0], y=start[1])
    result = solver.solve(raise_error=False)
    status = OSQP_STATUS[osqp.SolverStatus(result.info.status_val)]
    info = result.info
    return Reference(result.x, result.y, status, float(info.obj_val), info.iter)


SPOILED: dict[int, Status] = {
    1: Status.PRIMAL_INFEASIBLE,
    4: Status.DUAL_INFEASIBLE,
    6: Status.MAX_ITER,
    8: Status.INVALID_BOUNDS,
    9: Status.INVALID_BOUNDS,
    **dict.fromkeys(range(11, 16), Status.NON_FINITE),
    **dict.fromkeys((18, 32), Status.PRIMAL_INFEASIBLE),
}


def spoiled_ring() -> QPBatch:
    """`ring(33)` in which the instances of `SPOILED` have no solution, each for its own reason."""
    given = ring(33).copy()
    row = given.A.indices
    for b in (1, 18, 32):  # rows 0 and 4 have the same columns: two half-spaces that do not meet
        given.A_vals[b, row == 4] = given.A_vals[b, row == 0]
        given.lower[b, [0, 4]], given.upper[b, [0, 4]] = [-INF, 1.0], [-1.0, INF]
    given.P_vals[4], given.lower[4], given.upper[4] = 0, -INF, INF
    rng = np.random.default_rng(1)  # so badly scaled that 4000 iterations are not enough
    given.P_vals[6] *= 1e-9
    given.A_vals[6] *= 10.0 ** rng.uniform(-6, 6, given.A.nnz)
    center = given.instance(6).A @ rng.normal(size=RING_VARS)
    given.lower[6], given.upper[6] = bounds_around(rng, center, np.full(RING_CONS, 4))
    given.lower[8, 3], given.upper[8, 3] = 1.0, 0.5
    given.lower[9, 5] = given.upper[9, 5] = INF
    for b, name in zip(range(11, 16), ARGUMENTS, strict=True):
        getattr(given, name)[b, 2] = np.nan
    return given
