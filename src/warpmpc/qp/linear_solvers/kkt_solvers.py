"""Engines for the linear system of an ADMM iteration.

Every engine prepares itself from P, A and rho and then solves
[[P + sigma I, A'], [A, -1/rho]] [x; nu] = rhs as often as needed.  Arrays are ``[groups, rows,
lanes]``: tiles of 32 for the sparse engine, one lane for the others.  Register a new engine in
`qp.loops.registry`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np

from warpmpc.engines.runtime.tiles import LANES
from warpmpc.qp.linear_solvers.base import LDLSettings, LinearSystem
from warpmpc.qp.linear_solvers.ldl_warp import WarpLDL
from warpmpc.qp.products import QPMatrices, rounded
from warpmpc.symbolic.elimination import eliminate
from warpmpc.symbolic.float32_ordering import RepresentativeSystem, safe_amd
from warpmpc.symbolic.kkt import KKTPattern
from warpmpc.symbolic.pattern import IntArray


@dataclass(frozen=True, eq=False)
class KKTSystem:
    """What an engine needs to know of the pattern.

    Attributes:
        kkt: Pattern of K and its maps.
        P_entries: Position in the caller's P values of each upper entry of P.
        matrices: Products with P and A.
        sigma: Regularisation.
        dtype: "float32" or "float64".
        soft_rows: Rows of A that are soft.
        light: Variables with a stored diagonal of P that is known to be too small.
        representative: Numbers of K, if they are known; stage-wise orders are tried on them.
    """

    kkt: KKTPattern
    P_entries: IntArray
    matrices: QPMatrices
    sigma: float
    dtype: str
    soft_rows: IntArray
    light: IntArray
    representative: RepresentativeSystem | None = None

    @property
    def light_variables(self) -> IntArray:
        """Variables without enough weight of their own: only sigma, or little, on the diagonal."""
        without = np.setdiff1d(np.arange(self.kkt.n_vars), self.P_diagonal[1])
        return np.union1d(without, self.light).astype(np.int32)

    @property
    def P_diagonal(self) -> tuple[IntArray, IntArray]:
        """Stored diagonal entries of P: position in the caller's values, and variable."""
        stored = np.isin(self.kkt.P_to_K, self.kkt.sigma_to_K)
        return self.P_entries[stored], self.kkt.K_pattern.col_idx[self.kkt.P_to_K[stored]]

    def assemble(
        self, P: jax.Array, A: jax.Array, rho: jax.Array, order: IntArray | None = None
    ) -> jax.Array:
        """Values of the upper triangle of K, or those listed in `order`: one gather, no scatter."""
        n_P, n_A = P.shape[1], A.shape[1]
        source = np.full(self.kkt.K_pattern.nnz, n_P + n_A + rho.shape[1], dtype=np.int32)
        source[self.kkt.P_to_K] = self.P_entries
        source[self.kkt.A_to_K] = n_P + np.arange(n_A)
        source[self.kkt.rho_to_K] = n_P + n_A + np.arange(rho.shape[1])
        shift = np.zeros((1, source.size, 1))
        shift[0, self.kkt.sigma_to_K] = self.sigma
        if order is not None:
            source, shift = source[order], shift[:, order]
        zero = jnp.zeros((P.shape[0], 1, P.shape[2]), dtype=P.dtype)
        values = jnp.concatenate([P, A, -1 / rho, zero], axis=1)[:, source]
        return rounded(values) + jnp.asarray(shift, dtype=P.dtype)


class KKTEngine(Protocol):
    """Prepares and solves; `state` is any pytree.

    `values_per_instance` counts the numbers that `prepare` and `solve` keep in memory at a time.
    """

    lanes: int
    values_per_instance: int

    def prepare(self, P: jax.Array, A: jax.Array, rho: jax.Array) -> Any:
        """Whatever `solve` needs for these numbers."""
        ...

    def renew(
        self, state: Any, P: jax.Array, A: jax.Array, rho: jax.Array, change: jax.Array
    ) -> Any:
        """The same after rho of the instances marked in `change` has changed."""
        ...

    def solve(self, state: Any, rhs: jax.Array, guess: jax.Array) -> jax.Array:
        """Solution [x; nu]; `guess` is the last x, for iterative engines."""
        ...


class _Anew:
    """For engines that cannot prepare some instances only."""

    def renew(
        self, state: Any, P: jax.Array, A: jax.Array, rho: jax.Array, change: jax.Array
    ) -> Any:
        """Prepares all."""
        del state, change
        return self.prepare(P, A, rho)

    def prepare(self, P: jax.Array, A: jax.Array, rho: jax.Array) -> Any:
        """See `KKTEngine`."""
        raise NotImplementedError


class SparseEngine:
    """Batched LDL' on tiles."""

    lanes = LANES

    def __init__(self, system: KKTSystem):
        """Analyses K with an AMD that float32 bears."""
        pattern = system.kkt.K_pattern
        elimination = eliminate(pattern, safe_amd(system.kkt, system.light_variables))
        source, ones = np.arange(pattern.nnz, dtype=np.int32), np.ones(pattern.nnz)
        linear = LinearSystem(elimination, source, pattern.nnz, system.dtype, ones)
        self._system, self._ldl = system, WarpLDL(linear, LDLSettings())
        # K, and two factors while rho changes.
        self.values_per_instance = pattern.nnz + 2 * (elimination.nnz_L + elimination.n)

    def prepare(self, P: jax.Array, A: jax.Array, rho: jax.Array) -> jax.Array:
        """Factors of K."""
        return self._ldl.factor_tiles(self._system.assemble(P, A, rho))

    def renew(
        self, state: jax.Array, P: jax.Array, A: jax.Array, rho: jax.Array, change: jax.Array
    ) -> jax.Array:
        """New factors of tiles with a change; others stay."""
        todo = change.any(axis=(1, 2)).astype(jnp.int32)
        return self._ldl.refactor_tiles(state, self._system.assemble(P, A, rho), todo)

    def solve(self, state: jax.Array, rhs: jax.Array, guess: jax.Array) -> jax.Array:
        """One solve with the factors."""
        del guess
        return self._ldl.solve_tiles(state, rhs)


class DenseEngine(_Anew):
    """LU of the full matrices: the oracle."""

    lanes = 1

    def __init__(self, system: KKTSystem):
        """Keeps the pattern."""
        self._system = system
        self.values_per_instance = 4 * system.kkt.K_pattern.n_cols**2

    def prepare(self, P: jax.Array, A: jax.Array, rho: jax.Array) -> tuple[jax.Array, jax.Array]:
        """LU factors."""
        pattern = self._system.kkt.K_pattern
        values = self._system.assemble(P, A, rho)[..., 0]
        K = jnp.zeros((values.shape[0], *pattern.shape), dtype=values.dtype)
        K = K.at[:, pattern.row_idx, pattern.col_idx].set(values)
        K = K.at[:, pattern.col_idx, pattern.row_idx].set(values)
        return jax.scipy.linalg.lu_factor(K)

    def solve(
        self, state: tuple[jax.Array, jax.Array], rhs: jax.Array, guess: jax.Array
    ) -> jax.Array:
        """Triangular solves."""
        del guess
        return jax.vmap(jax.scipy.linalg.lu_solve)(state, rhs[..., 0])[..., None]


class PCGEngine(_Anew):
    """Conjugate gradients on P + sigma I + A' rho A with a Jacobi preconditioner."""

    lanes = 1
    iterations, tolerance = 20, 1e-7

    def __init__(self, system: KKTSystem):
        """Keeps the products."""
        self._system, pattern = system, system.kkt.K_pattern
        self.values_per_instance = 6 * pattern.nnz + 12 * pattern.n_cols

    def prepare(self, P: jax.Array, A: jax.Array, rho: jax.Array) -> tuple[jax.Array, ...]:
        """The data itself and the inverse diagonal."""
        return P, A, rho, 1 / self._diagonal(P, A, rho)

    def _diagonal(self, P: jax.Array, A: jax.Array, rho: jax.Array) -> jax.Array:
        kkt, system = self._system.kkt, self._system
        entries, column = system.P_diagonal
        diagonal = jnp.full((P.shape[0], kkt.n_vars, 1), system.sigma, dtype=P.dtype)
        diagonal = diagonal.at[:, column].add(P[:, entries])
        return diagonal + system.matrices.AT.product(A * A, rho)

    def solve(self, state: tuple[jax.Array, ...], rhs: jax.Array, guess: jax.Array) -> jax.Array:
        """Reduced system by conjugate gradients, multipliers from its solution."""
        P, A, rho, inverse = state
        n, M = self._system.kkt.n_vars, self._system.matrices
        sigma = self._system.sigma

        def apply(x: jax.Array) -> jax.Array:
            return M.P.product(P, x) + sigma * x + M.AT.product(A, rho * M.A.product(A, x))

        def dot(a: jax.Array, b: jax.Array) -> jax.Array:
            return (a * b).sum(axis=1, keepdims=True)

        b = rhs[:, :n] + M.AT.product(A, rho * rhs[:, n:])
        target = self.tolerance**2 * dot(b, b)

        def step(_: int, carry: tuple[jax.Array, ...]) -> tuple[jax.Array, ...]:
            x, r, d, rz = carry
            Ad = apply(d)
            running = dot(r, r) > target
            alpha = jnp.where(running, rz / jnp.where(running, dot(d, Ad), 1), 0)
            x, r = x + alpha * d, r - alpha * Ad
            z = inverse * r
            rz_next = dot(r, z)
            beta = jnp.where(running, rz_next / jnp.where(running, rz, 1), 0)
            return x, r, z + beta * d, rz_next

        r = b - apply(guess)
        z = inverse * r
        x, *_ = jax.lax.fori_loop(0, self.iterations, step, (guess, r, z, dot(r, z)))
        return jnp.concatenate([x, rho * (M.A.product(A, x) - rhs[:, n:])], axis=1)
