"""Data of the linear MPC: the quadcopter of the OSQP documentation as a batch of QPs.

Produces: P, A and q on the pattern of `systems.patterns.linear`, bounds for given initial states,
stage labels, and the random initial states and cotangents of the benchmarks.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
import scipy.sparse as sp

from warpmpc._errors import ProblemError
from warpmpc.systems import patterns

N_X, N_U, HORIZON = 12, 4, 40
SPREAD = 0.15  # standard deviation of the entries of an initial state
HOVER, LEAST_THRUST, MOST_THRUST = 10.5916, 9.6, 13.0  # inputs are differences to hovering
ANGLE_LIMIT, HEIGHT_LIMIT = np.pi / 6, -1.0
STATE_WEIGHT = np.array([0, 0, 10, 10, 10, 10, 0, 0, 0, 5, 5, 5], dtype=np.float64)
INPUT_WEIGHT = 0.1
REFERENCE = np.eye(N_X)[2]
Array = TypeVar("Array", np.ndarray, jax.Array)


@dataclass(frozen=True, eq=False)
class LinearMPC:
    """QPs that differ in the initial state: min half x'Px + q'x, lower <= A x <= upper.

    Variables are x_0 to x_N, then u_0 to u_(N-1); rows are the dynamics, the initial state first,
    then one row per variable.

    Attributes:
        P: Upper triangle with its values; only weighted entries are stored.
        A: With its values; all entries of B_d are stored, zeros included.
        q: Linear cost.
        lower: Lower bounds for the initial state 0.
        upper: Upper bounds for the initial state 0.
        stages: Stage of each variable, then of each row.
    """

    P: sp.csc_matrix
    A: sp.csc_matrix
    q: np.ndarray
    lower: np.ndarray
    upper: np.ndarray
    stages: np.ndarray

    def bounds(self, x_init: Array) -> tuple[Array, Array]:
        """Lower and upper bounds ``[batch, m]`` from initial states ``[batch, 12]``.

        The arrays are of the kind (NumPy, JAX) and dtype of `x_init`.
        """
        if x_init.ndim != 2 or x_init.shape[1] != N_X:
            raise ProblemError(f"x_init needs the shape [batch, {N_X}], got {list(x_init.shape)}.")
        xp: Any = np if isinstance(x_init, np.ndarray) else jnp
        batch = x_init.shape[0]
        rest = (xp.asarray(side[N_X:], dtype=x_init.dtype) for side in (self.lower, self.upper))
        full = (xp.broadcast_to(side[None], (batch, side.size)) for side in rest)
        lower, upper = (xp.concatenate([-x_init, side], axis=1) for side in full)
        return lower, upper


def dynamics() -> tuple[np.ndarray, np.ndarray]:
    """A_d and B_d of x_{k+1} = A_d x_k + B_d u_k."""
    A = np.diag(np.repeat([1.0, 0.9846], [9, 3]))
    A[[0, 1, 2], [6, 7, 8]] = 0.1
    A[3, [0, 6, 9]] = 0.0488, 0.0016, 0.0992
    A[4, [1, 7, 10]] = -0.0488, -0.0016, 0.0992
    A[5, 11] = 0.0992
    A[9, [0, 6]] = 0.9734, 0.0488
    A[10, [1, 7]] = -0.9734, -0.0488
    B = np.zeros((N_X, N_U))
    B[[0, 3, 6, 9]] = np.outer([0.0726, 0.0006, 1.4512, 0.0236], [0, -1, 0, 1])
    B[[1, 4, 7, 10]] = np.outer([0.0726, -0.0006, 1.4512, -0.0236], [-1, 0, 1, 0])
    B[[2, 8]] = np.outer([0.0152, 0.3049], [-1, 1, -1, 1])
    B[[5, 11]] = np.outer([0.0106, 0.2107], [1, 1, 1, 1])
    return A, B


@cache
def build(horizon: int = HORIZON) -> LinearMPC:
    """The QP with its values; do not write to its arrays."""
    if horizon < 1:
        raise ProblemError(f"horizon must be at least 1, got {horizon}.")
    structure = patterns.linear(horizon)
    weight = np.concatenate([np.tile(STATE_WEIGHT, horizon + 1), np.full(N_U * horizon, 0.0)])
    q = -weight * np.concatenate([np.tile(REFERENCE, horizon + 1), np.zeros(N_U * horizon)])
    weight[N_X * (horizon + 1) :] = INPUT_WEIGHT
    lower, upper = _nominal_bounds(horizon)
    return LinearMPC(
        _on_pattern(structure.P, np.diag(weight)),
        _on_pattern(structure.A, _constraints(horizon)),
        q,
        lower,
        upper,
        structure.stages,
    )


def _constraints(horizon: int) -> np.ndarray:
    """A as a dense matrix."""
    A_d, B_d = dynamics()
    states = np.kron(np.eye(horizon + 1, k=-1), A_d) - np.eye(N_X * (horizon + 1))
    inputs = np.kron(np.eye(horizon + 1, horizon, k=-1), B_d)
    rows = np.hstack([states, inputs])
    return np.vstack([rows, np.eye(rows.shape[1])])


def _nominal_bounds(horizon: int) -> tuple[np.ndarray, np.ndarray]:
    """Bounds of all rows for the initial state 0."""
    low, high = np.full(N_X, -np.inf), np.full(N_X, np.inf)
    low[[0, 1]], high[[0, 1]], low[5] = -ANGLE_LIMIT, ANGLE_LIMIT, HEIGHT_LIMIT
    bounds: list[np.ndarray] = []
    for state, thrust in ((low, LEAST_THRUST), (high, MOST_THRUST)):
        inputs = np.full(N_U * horizon, thrust - HOVER)
        fixed = np.zeros(N_X * (horizon + 1))
        bounds.append(np.concatenate([fixed, np.tile(state, horizon + 1), inputs]))
    return bounds[0], bounds[1]


def _on_pattern(pattern: sp.csc_matrix, dense: np.ndarray) -> sp.csc_matrix:
    """Values of a dense matrix where the pattern has entries, zeros among them."""
    columns = np.repeat(np.arange(pattern.shape[1]), np.diff(pattern.indptr))
    values = dense[pattern.indices, columns]
    return sp.csc_matrix((values, pattern.indices, pattern.indptr), shape=pattern.shape)


def sample(batch: int, seed: int | None = None) -> np.ndarray:
    """Random initial states ``[batch, 12]`` in float64.

    Args:
        batch: Number of instances.
        seed: ``1 + batch`` by default, as in the forward benchmark; that of gradients uses
            `gradient_seed`.
    """
    if batch < 1:
        raise ProblemError(f"A batch needs at least one instance, got {batch}.")
    rng = np.random.default_rng(1 + batch if seed is None else seed)
    return SPREAD * rng.standard_normal((batch, N_X))


def gradient_seed(batch: int) -> int:
    """Seed of the initial states in the gradient benchmark."""
    return 11 + batch


def sample_cotangents(batch: int, horizon: int = HORIZON) -> tuple[np.ndarray, np.ndarray]:
    """Cotangents of x and y of the gradient benchmark, ``[batch, n]`` and ``[batch, m]``."""
    problem = build(horizon)
    rng = np.random.default_rng(3011 + batch)
    m, n = problem.A.shape
    return rng.standard_normal((batch, n)), rng.standard_normal((batch, m))
