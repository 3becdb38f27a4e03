"""Data of the factorisation benchmark: one nominal KKT matrix and random batches around it.

Produces: the matrix K = [[P + sigma I, A'], [A, -1/rho]] on the pattern of
`systems.patterns.ldl_benchmark`, and batches in which every entry of every matrix is different.
"""

from __future__ import annotations

from functools import cache, partial

import jax
import jax.numpy as jnp
import numpy as np
import scipy.sparse as sp

from warpmpc._errors import ProblemError

N_X, N_U, HORIZON = 12, 4, 24
SIGMA, RHO = 1e-6, 0.1
STATE_WEIGHT, TERMINAL_WEIGHT, INPUT_WEIGHT = 1.0, 5.0, 0.1
SPREAD = 0.25  # factors are 1 + SPREAD N(0, 1) off the diagonal and U(1 -+ SPREAD) on it
_CHUNK = 4096  # instances drawn at once; the values do not depend on it


def _dynamics() -> sp.csr_matrix:
    """Rows x_{t+1} + A_d x_t + B_t u_t, t by t; the variables are all states, then all inputs."""
    A_d = -np.eye(N_X) + 0.05 * np.eye(N_X, k=-1) - 0.03 * np.eye(N_X, k=1)
    states = sp.kron(sp.eye(HORIZON, HORIZON + 1, k=1), sp.identity(N_X))
    states = states + sp.kron(sp.eye(HORIZON, HORIZON + 1), sp.csr_matrix(A_d))
    s, u = np.meshgrid(np.arange(N_X), np.arange(N_U), indexing="ij")
    present = ((s + u) % 3 == 0) | (u == s % N_U)
    B = np.zeros((HORIZON, N_X, N_U))
    # The mask is row-major, so the draws come in the order t, s, u.
    drawn = np.random.default_rng(1).standard_normal((HORIZON, int(present.sum())))
    B[:, present] = -0.1 * (1 + 0.05 * drawn)
    return sp.csr_matrix(sp.hstack([states, sp.block_diag(list(B))]))


@cache
def nominal() -> sp.csc_matrix:
    """Upper triangle of the nominal K, dimension 1080 with 3156 entries."""
    n_states, n_inputs = N_X * (HORIZON + 1), N_U * HORIZON
    P = np.full(n_states + n_inputs, STATE_WEIGHT)
    P[n_states - N_X : n_states] = TERMINAL_WEIGHT
    P[n_states:] = INPUT_WEIGHT
    A = sp.vstack([_dynamics(), sp.identity(P.size)])
    corner = sp.identity(A.shape[0]) * (-1 / RHO)
    K = sp.csc_matrix(sp.bmat([[sp.diags(P + SIGMA), A.T], [None, corner]]))
    K.eliminate_zeros()
    K.sort_indices()
    return K


@cache
def _diagonal() -> np.ndarray:
    """Which values of K, in column-major order, lie on the diagonal."""
    K = nominal()
    return K.indices == np.repeat(np.arange(K.shape[1]), np.diff(K.indptr))


def sample(
    batch: int, seed: int | None = None, dtype: str = "float32"
) -> tuple[np.ndarray, np.ndarray]:
    """Random matrices and right-hand sides, on the host.

    Off-diagonal entries are the nominal ones times 1 + 0.25 N(0, 1), diagonal ones times
    U(0.75, 1.25).  Values are drawn in float32, so both dtypes get the same batch up to rounding.

    Args:
        batch: Number of instances.
        seed: Seed of the values, ``1 + batch`` by default; right-hand sides take ``seed + 1000``.
        dtype: "float32" or "float64".

    Returns:
        Values ``[batch, 3156]`` in column-major order of the upper triangle, and right-hand sides
        ``[batch, 1080]``.
    """
    _check_batch(batch)
    seed = 1 + batch if seed is None else seed
    K, diagonal = nominal(), _diagonal()
    values = np.random.default_rng(seed)
    K_vals = np.tile(K.data.astype(dtype), (batch, 1))
    for part in _chunks(batch):
        drawn = values.standard_normal((part.stop - part.start, (~diagonal).sum()), dtype="float32")
        K_vals[part, ~diagonal] *= 1 + SPREAD * drawn.astype(dtype)
    for part in _chunks(batch):
        drawn = values.random((part.stop - part.start, diagonal.sum()), dtype="float32")
        K_vals[part, diagonal] *= 1 + SPREAD * (2 * drawn.astype(dtype) - 1)
    shape = (batch, K.shape[0])
    rhs = np.random.default_rng(seed + 1000).standard_normal(shape, dtype="float32")
    return K_vals, rhs.astype(dtype)


def sample_on_device(key: jax.Array, batch: int, dtype: str) -> tuple[jax.Array, jax.Array]:
    """The same distribution drawn by JAX on its device, for batches too large for the host.

    Args:
        key: A key of `jax.random.key`.
        batch: Number of instances.
        dtype: "float32" or "float64".

    Returns:
        Values and right-hand sides as `sample` returns them (with other values).
    """
    _check_batch(batch)
    return _draw(key, batch, dtype)


@partial(jax.jit, static_argnames=("batch", "dtype"))
def _draw(key: jax.Array, batch: int, dtype: str) -> tuple[jax.Array, jax.Array]:
    K, diagonal = nominal(), _diagonal()
    keys, shape = jax.random.split(key, 3), (batch, K.nnz)
    on = jax.random.uniform(keys[0], shape, dtype, 1 - SPREAD, 1 + SPREAD)
    off = 1 + SPREAD * jax.random.normal(keys[1], shape, dtype)
    K_vals = jnp.where(diagonal[None], on, off) * jnp.asarray(K.data, dtype)[None]
    return K_vals, jax.random.normal(keys[2], (batch, K.shape[0]), dtype)


def _chunks(batch: int) -> list[slice]:
    return [slice(at, min(at + _CHUNK, batch)) for at in range(0, batch, _CHUNK)]


def _check_batch(batch: int) -> None:
    if batch < 1:
        raise ProblemError(f"A batch needs at least one instance, got {batch}.")
