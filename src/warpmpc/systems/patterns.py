"""KKT structures of the benchmark problems: patterns and stage labels without values.

Produces: `KKTStructure` for the linear MPC, its adjoint, the factorisation benchmark, cartpole and
quadrotor (with and without obstacles).  SciPy only; the symbolic layer turns them into K.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import scipy.sparse as sp

from warpmpc._errors import ProblemError


@dataclass(frozen=True, eq=False)
class KKTStructure:
    """Patterns of P (upper) and A, and the stage of every variable and row.

    Attributes:
        name: Name of the system.
        P: Upper pattern of the Hessian.
        A: Pattern of the constraint Jacobian.
        var_stage: Stage of each variable.
        con_stage: Stage of each constraint row.
    """

    name: str
    P: sp.csc_matrix
    A: sp.csc_matrix
    var_stage: np.ndarray
    con_stage: np.ndarray

    @property
    def stages(self) -> np.ndarray:
        """Stage of every node of K: variables, then rows."""
        return np.concatenate([self.var_stage, self.con_stage])

    @property
    def K(self) -> sp.csc_matrix:
        """Upper pattern of K = [[P + sigma I, A'], [A, -1/rho]]."""
        n, m = self.P.shape[0], self.A.shape[0]
        top = sp.hstack([abs(self.P) + sp.identity(n), abs(self.A).T])
        bottom = sp.hstack([sp.csc_matrix((m, n)), sp.identity(m)])
        return sp.csc_matrix(sp.triu(sp.vstack([top, bottom])))


Row = list[tuple[int, int]]  # (stage, index in the stage's z) of each nonzero


def _from_rows(name: str, n_nodes: int, n_z: int, rows: list[tuple[int, Row]]) -> KKTStructure:
    """Structure with equal-sized z per node, diagonal P, and rows listed as (stage, entries)."""
    entries = [(i, k * n_z + j) for i, (_, row) in enumerate(rows) for k, j in row]
    i, j = np.array(entries).T
    A = sp.csc_matrix((np.ones(len(entries)), (i, j)), shape=(len(rows), n_nodes * n_z))
    return KKTStructure(
        name,
        sp.csc_matrix(sp.identity(n_nodes * n_z)),
        A,
        np.repeat(np.arange(n_nodes), n_z),
        np.array([k for k, _ in rows]),
    )


def _staged(
    name: str, dynamics: list[list[int]], path: list[list[int]], terminal: list[list[int]], N: int
) -> KKTStructure:
    """Initial state, x_{k+1} - f(z_k), path and terminal rows; z_k = (x_k, u_k) at all nodes."""
    n_x, n_z = len(dynamics), 1 + max(max(cols) for cols in dynamics + path + terminal)
    rows: list[tuple[int, Row]] = [(0, [(0, i)]) for i in range(n_x)]
    for k in range(N):
        rows += [(k, [*((k, j) for j in cols), (k + 1, i)]) for i, cols in enumerate(dynamics)]
        rows += [(k, [(k, j) for j in cols]) for cols in path]
    rows += [(N, [(N, j) for j in cols]) for cols in terminal]
    return _from_rows(name, N + 1, n_z, rows)


def cartpole(horizon: int = 100) -> KKTStructure:
    """Cartpole swing-up with rail rows; z = (x, v, theta, omega, u)."""
    dynamics = [[0, 1], [1, 2, 3, 4], [2, 3], [1, 2, 3, 4]]
    return _staged("cartpole", dynamics, [[4], [0]], [[4], [0]], horizon)


QUADROTOR_DYNAMICS = [
    [0, 6],
    [1, 7],
    [2, 8],
    [3, 4, 9, 10, 11],
    [3, 4, 10, 11],
    [3, 4, 5, 10, 11],
    [3, 4, 5, 6, 15],
    [3, 4, 5, 7, 15],
    [3, 4, 8, 15],
    [9, 10, 11, 12],
    [9, 10, 11, 13],
    [11, 14],
]
MOTORS = [[12, 13, 14, 15]] * 4
OBSTACLES = [[0, 1]] * 4
NO_INPUT = [[12], [13], [14], [15]]


def quadrotor(horizon: int = 40) -> KKTStructure:
    """Quadrotor with motor limits; z = (p, angles, v, omega, inputs)."""
    return _staged("quadrotor", QUADROTOR_DYNAMICS, MOTORS, NO_INPUT, horizon)


def quadrotor_obstacles(horizon: int = 40) -> KKTStructure:
    """Quadrotor with four cylinders to avoid."""
    path, terminal = MOTORS + OBSTACLES, NO_INPUT + OBSTACLES
    return _staged("quadrotor_obstacles", QUADROTOR_DYNAMICS, path, terminal, horizon)


def _shooting(
    name: str, A_d: np.ndarray, B_d: np.ndarray, N: int, *, initial_rows: bool, weighted: np.ndarray
) -> KKTStructure:
    """All states, then all inputs; dynamics rows (first the initial state), then identity rows.

    `weighted` tells for each entry of (x, u) whether the diagonal of P stores it.
    """
    n_x, n_u = B_d.shape
    previous = sp.eye(N + 1, N + 1, k=-1)
    states = sp.identity(n_x * (N + 1)) + sp.kron(previous, A_d)
    inputs = sp.kron(sp.eye(N + 1, N, k=-1), B_d)
    dynamics = sp.csr_matrix(sp.hstack([states, inputs]))
    state_stage = np.repeat(np.arange(N + 1), n_x)
    # A dynamics row belongs to the stage it starts from, the initial rows to stage 0.
    row_stage = np.maximum(state_stage - 1, 0)
    if not initial_rows:
        dynamics, row_stage = dynamics[n_x:], row_stage[n_x:]
    var_stage = np.concatenate([state_stage, np.repeat(np.arange(N), n_u)])
    stored = np.flatnonzero(np.concatenate([np.tile(weighted[:n_x], N + 1)] + [weighted[n_x:]] * N))
    n_vars = var_stage.size
    P = sp.csc_matrix((np.ones(stored.size), (stored, stored)), shape=(n_vars, n_vars))
    A = sp.csc_matrix(sp.vstack([dynamics, sp.identity(n_vars)]))
    A.eliminate_zeros()  # `kron` stores the zeros of dense enough blocks
    return KKTStructure(name, P, A, var_stage, np.concatenate([row_stage, var_stage]))


LINEAR_WEIGHTED = np.array([0, 0, 1, 1, 1, 1, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1], dtype=bool)


def linear(horizon: int = 40) -> KKTStructure:
    """Linear quadcopter MPC of the OSQP documentation; P stores only its nonzero diagonal."""
    A_d = np.eye(12)
    coupled = [(0, 6), (1, 7), (2, 8), (3, 0), (3, 6), (3, 9), (4, 1), (4, 7), (4, 10), (5, 11)]
    for i, j in [*coupled, (9, 0), (9, 6), (10, 1), (10, 7)]:
        A_d[i, j] = 1
    everything = np.ones((12, 4))
    return _shooting(
        "linear", A_d, everything, horizon, initial_rows=True, weighted=LINEAR_WEIGHTED
    )


def ldl_benchmark(horizon: int = 24) -> KKTStructure:
    """The system of the factorisation benchmark: tridiagonal dynamics of 12 states, 4 inputs."""
    s, u = np.meshgrid(np.arange(12), np.arange(4), indexing="ij")
    A_d = np.eye(12) + np.eye(12, k=1) + np.eye(12, k=-1)
    B_d = (((s + u) % 3 == 0) | (u == s % 4)).astype(float)
    weighted = np.ones(16, dtype=bool)
    return _shooting("ldl_benchmark", A_d, B_d, horizon, initial_rows=False, weighted=weighted)


def linear_adjoint(horizon: int = 40) -> KKTStructure:
    """Regularised adjoint system of the linear MPC, [[(1 + eps) I, M], [M', -eps I]]."""
    forward = linear(horizon)
    n_vars, n_equal = forward.P.shape[0], 12 * (horizon + 1)
    in_state = np.tile(np.arange(12), horizon + 1)
    has_lower = np.concatenate([np.isin(in_state, (0, 1, 5)), np.ones(4 * horizon, dtype=bool)])
    has_upper = np.concatenate([np.isin(in_state, (0, 1)), np.ones(4 * horizon, dtype=bool)])
    bounded = np.concatenate([np.flatnonzero(has_lower), np.flatnonzero(has_upper)])
    G = sp.csr_matrix(sp.identity(n_vars))[bounded]
    E = sp.csr_matrix(forward.A)[:n_equal]
    M = sp.bmat([[forward.P, G.T, E.T], [G, sp.identity(bounded.size), None], [E, None, None]])
    labels = [forward.var_stage, forward.var_stage[bounded], forward.con_stage[:n_equal]]
    half = np.concatenate(labels)
    # K of (P = I, A = M') is exactly the adjoint matrix.
    return KKTStructure(
        "linear_adjoint", sp.csc_matrix(sp.identity(half.size)), sp.csc_matrix(M.T), half, half
    )


STRUCTURES: dict[str, Callable[[], KKTStructure]] = {
    "linear": linear,
    "linear_adjoint": linear_adjoint,
    "ldl_benchmark": ldl_benchmark,
    "cartpole": cartpole,
    "quadrotor": quadrotor,
    "quadrotor_obstacles": quadrotor_obstacles,
}


def structure(name: str) -> KKTStructure:
    """The KKT structure of a benchmark system by name."""
    if name not in STRUCTURES:
        raise ProblemError(f"Unknown pattern {name!r}; choose one of {sorted(STRUCTURES)}.")
    return STRUCTURES[name]()
