"""Engines for the linear system of an ADMM iteration.

Every engine prepares itself from P, A and rho and then solves
[[P + sigma I, A'], [A, -1/rho]] [x; nu] = rhs as often as needed.  Arrays are ``[groups, rows,
lanes]``: tiles of 32 for the sparse engine, one lane for the others.  Register a new engine in
`qp.loops.registry`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np

from warpmpc.engines.runtime.batching import LANES
from warpmpc.qp.linear_solvers.base import LDLSettings, LinearSystem
from warpmpc.qp.linear_solvers.dense import full_matrix, lu_after
from warpmpc.qp.linear_solvers.inertia import Inertia, bends_down_densely
from warpmpc.qp.linear_solvers.ldl_warp import WarpLDL
from warpmpc.qp.structure import QPStructure
from warpmpc.symbolic.elimination import eliminate
from warpmpc.symbolic.ordering import safe_amd


class KKTEngine(Protocol):
    """Prepares and solves; `state` is any pytree.

    `values_per_instance` counts the values that `prepare` and `solve` keep in memory at a time.
    """

    lanes: int
    values_per_instance: int

    def prepare(self, P: jax.Array, A: jax.Array, rho: jax.Array) -> Any:
        """What `solve` needs for these values."""
        ...

    def renew(
        self, state: Any, P: jax.Array, A: jax.Array, rho: jax.Array, change: jax.Array
    ) -> Any:
        """A new state after rho of the instances marked in `change` has changed."""
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

    def __init__(self, structure: QPStructure):
        """Analyses K with an AMD that float32 bears."""
        pattern = structure.kkt.K_pattern
        elimination = eliminate(pattern, safe_amd(structure.kkt, structure.light_variables))
        source, ones = np.arange(pattern.nnz, dtype=np.int32), np.ones(pattern.nnz)
        linear = LinearSystem(elimination, source, pattern.nnz, structure.dtype, ones)
        self._structure, self._ldl = structure, WarpLDL(linear, LDLSettings())
        self._elimination = elimination
        # K, and two factors while rho changes.
        self.values_per_instance = pattern.nnz + 2 * (elimination.nnz_L + elimination.n)

    def prepare(self, P: jax.Array, A: jax.Array, rho: jax.Array) -> jax.Array:
        """Factors of K."""
        return self._ldl.factor_tiles(self._structure.assemble(P, A, rho))

    def renew(
        self, state: jax.Array, P: jax.Array, A: jax.Array, rho: jax.Array, change: jax.Array
    ) -> jax.Array:
        """New factors of tiles with a change; others stay."""
        todo = change.any(axis=(1, 2)).astype(jnp.int32)
        return self._ldl.refactor_tiles(state, self._structure.assemble(P, A, rho), todo)

    def bends_down(self, state: jax.Array, P: jax.Array, A: jax.Array, rho: jax.Array) -> jax.Array:
        """See `KnowsCurvature`."""
        elimination = self._elimination
        # Pivots lie in the order of K.
        inertia = Inertia(elimination, self._structure.n_vars, elimination.perm)
        diagonal = self._structure.assemble(P, A, rho)[:, elimination.K_to_D]
        return inertia.is_wrong(state, diagonal)

    def solve(self, state: jax.Array, rhs: jax.Array, guess: jax.Array) -> jax.Array:
        """One solve with the factors."""
        del guess
        return self._ldl.solve_tiles(state, rhs)


class DenseEngine(_Anew):
    """LU of the full matrices: the oracle."""

    lanes = 1

    def __init__(self, structure: QPStructure):
        """Keeps the pattern."""
        self._structure = structure
        self.values_per_instance = 4 * structure.kkt.K_pattern.n_cols**2

    def prepare(self, P: jax.Array, A: jax.Array, rho: jax.Array) -> tuple[jax.Array, ...]:
        """LU factors, and whether the problem is not convex, which pivoting does not tell."""
        structure = self._structure
        K = full_matrix(structure.kkt.K_pattern, structure.assemble(P, A, rho)[..., 0])
        if not structure.settings.check_every:
            return *jax.scipy.linalg.lu_factor(K), jnp.zeros(K.shape[:1], dtype=bool)
        bent = bends_down_densely(K, structure.n_vars, rho[..., 0])
        return *lu_after(bent, K), bent

    def bends_down(
        self, state: tuple[jax.Array, ...], P: jax.Array, A: jax.Array, rho: jax.Array
    ) -> jax.Array:
        """See `KnowsCurvature`."""
        del P, A, rho
        lu, _, bent = state
        # What follows from the answer waits for LU, too.
        return (bent & (lu[:, 0, 0] == lu[:, 0, 0]))[:, None, None]

    def solve(self, state: tuple[jax.Array, ...], rhs: jax.Array, guess: jax.Array) -> jax.Array:
        """Triangular solves."""
        del guess
        lu, pivots, _ = state
        return jax.vmap(jax.scipy.linalg.lu_solve)((lu, pivots), rhs[..., 0])[..., None]


_DIRECTIONS = 50  # that are tried for negative curvature without a factor
_ROUNDING = 100  # error of a product, in units of the machine precision


def _dot(a: jax.Array, b: jax.Array) -> jax.Array:
    return (a * b).sum(axis=1, keepdims=True)


class PCGEngine(_Anew):
    """Conjugate gradients on P + sigma I + A' rho A with a Jacobi preconditioner."""

    lanes = 1
    iterations, tolerance = 20, 1e-7

    def __init__(self, structure: QPStructure):
        """Keeps the products."""
        self._structure, pattern = structure, structure.kkt.K_pattern
        self.values_per_instance = 6 * pattern.nnz + 12 * pattern.n_cols

    def prepare(self, P: jax.Array, A: jax.Array, rho: jax.Array) -> tuple[jax.Array, ...]:
        """The data itself and the inverse diagonal."""
        return P, A, rho, 1 / self._diagonal(P, A, rho)

    def _operator(self, P: jax.Array, A: jax.Array, rho: jax.Array) -> Callable[..., jax.Array]:
        """The product with P + sigma I + A' rho A."""
        M, sigma = self._structure.matrices, self._structure.settings.sigma
        return lambda x: M.P.product(P, x) + sigma * x + M.AT.product(A, rho * M.A.product(A, x))

    def bends_down(
        self, state: tuple[jax.Array, ...], P: jax.Array, A: jax.Array, rho: jax.Array
    ) -> jax.Array:
        """See `KnowsCurvature`: one of the directions of conjugate gradients shows it, if any does.

        There are no pivots.  The directions begin with a random one, so none is overlooked because
        the data are orthogonal to it.
        """
        del state
        apply, terms = self._operator(P, A, rho), self._operator(jnp.abs(P), jnp.abs(A), rho)
        n = self._structure.kkt.n_vars
        first = np.random.default_rng(0).normal(size=(1, n, 1)).astype(P.dtype)
        first = jnp.broadcast_to(jnp.asarray(first), (P.shape[0], n, 1))

        def step(_: int, carry: tuple[jax.Array, ...]) -> tuple[jax.Array, ...]:
            r, d, rr, found = carry
            Ad = apply(d)
            slope, rounding = _dot(d, Ad), _ROUNDING * jnp.finfo(P.dtype).eps
            rounding = rounding * _dot(jnp.abs(d), terms(jnp.abs(d)))
            found |= slope < -rounding
            usable = ~found & (slope > rounding)
            r = r - jnp.where(usable, rr / jnp.where(usable, slope, 1), 0) * Ad
            rr_next = _dot(r, r)
            beta = jnp.where(usable, rr_next / jnp.where(rr > 0, rr, 1), 0)
            return r, jnp.where(usable, r + beta * d, d), rr_next, found

        bent = self._diagonal(P, A, rho).min(axis=1, keepdims=True) < 0
        start = (first, first, _dot(first, first), bent)
        return jax.lax.fori_loop(0, min(n, _DIRECTIONS), step, start)[-1]

    def _diagonal(self, P: jax.Array, A: jax.Array, rho: jax.Array) -> jax.Array:
        kkt, structure = self._structure.kkt, self._structure
        entries, column = structure.P_diagonal
        diagonal = jnp.full((P.shape[0], kkt.n_vars, 1), structure.settings.sigma, dtype=P.dtype)
        diagonal = diagonal.at[:, column].add(P[:, entries])
        return diagonal + structure.matrices.AT.product(A * A, rho)

    def solve(self, state: tuple[jax.Array, ...], rhs: jax.Array, guess: jax.Array) -> jax.Array:
        """Reduced system by conjugate gradients, multipliers from its solution."""
        P, A, rho, inverse = state
        n, M = self._structure.kkt.n_vars, self._structure.matrices
        apply = self._operator(P, A, rho)
        b = rhs[:, :n] + M.AT.product(A, rho * rhs[:, n:])
        target = self.tolerance**2 * _dot(b, b)

        def step(_: int, carry: tuple[jax.Array, ...]) -> tuple[jax.Array, ...]:
            x, r, d, rz = carry
            Ad = apply(d)
            running = _dot(r, r) > target
            alpha = jnp.where(running, rz / jnp.where(running, _dot(d, Ad), 1), 0)
            x, r = x + alpha * d, r - alpha * Ad
            z = inverse * r
            rz_next = _dot(r, z)
            beta = jnp.where(running, rz_next / jnp.where(running, rz, 1), 0)
            return x, r, z + beta * d, rz_next

        r = b - apply(guess)
        z = inverse * r
        x, *_ = jax.lax.fori_loop(0, self.iterations, step, (guess, r, z, _dot(r, z)))
        return jnp.concatenate([x, rho * (M.A.product(A, x) - rhs[:, n:])], axis=1)
