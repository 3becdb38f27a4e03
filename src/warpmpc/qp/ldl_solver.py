"""`LDLSolver`: batched LDL' factorisation and solves for one fixed pattern.

Checks everything a caller can get wrong before any kernel is built, folds extra leading axes into
the batch, and hands batch-first arrays to the chosen backend.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import scipy.sparse as sp

from warpmpc._checks import ArrayLike, check_array, check_dtype
from warpmpc._conventions import FactorStatus
from warpmpc._errors import ProblemError, SettingsError
from warpmpc.qp.linear_solvers.base import LDLBackend, LDLSettings, LinearSystem, refuse_unused
from warpmpc.qp.linear_solvers.dense import DenseLU
from warpmpc.qp.linear_solvers.ldl_jax import JaxLDL
from warpmpc.qp.linear_solvers.ldl_warp import WarpLDL
from warpmpc.symbolic.elimination import Elimination, eliminate
from warpmpc.symbolic.ordering import order
from warpmpc.symbolic.pattern import IntArray, SparsePattern, symmetric_upper

BACKENDS = {"warp": WarpLDL, "jax": JaxLDL, "dense": DenseLU}


@jax.tree_util.register_dataclass
@dataclass(frozen=True, eq=False)
class LDLFactor:
    """Factors of a batch of matrices.

    Attributes:
        values: Factors in the backend's own layout.
        status: `FactorStatus` per instance, shape of the batch.  Instances whose status is not 0
            give NaN in `solve`.
        origin: The analysis that it belongs to; only a solver with the same one can use it.
    """

    values: Any
    status: jax.Array
    origin: str = field(metadata={"static": True})

    @property
    def ok(self) -> jax.Array:
        """Whether each instance was factorised."""
        return self.status == FactorStatus.OK


class LDLSolver:
    """Factorises K = L D L' for many quasi-definite matrices that share one pattern.

    Examples:
        >>> solver = LDLSolver(K, ordering="amd")
        >>> factor = solver.factor(K_vals)  # [batch, nnz]
        >>> x = solver.solve(factor, rhs)  # [batch, n]
    """

    def __init__(
        self,
        K: sp.spmatrix | sp.sparray,
        ordering: str | IntArray = "amd",
        backend: str = "warp",
        dtype: str = "float32",
        *,
        stages: IntArray | None = None,
        scaling: np.ndarray | None = None,
        settings: LDLSettings | None = None,
    ):
        """Analyses the pattern; nothing is compiled yet.

        Args:
            K: Pattern of K, its upper triangle or the full symmetric matrix (SciPy).  The values of
                an instance are listed in column-major order with ascending rows, the order of
                `K.data` only for a CSC matrix with sorted indices; `values(K)` always has it.  Of a
                full matrix only the upper triangle is read.
            ordering: "amd", "stage" (needs `stages`), "natural", or a permutation new -> old.
            backend: "warp", "jax" or "dense".
            dtype: "float32" or "float64".
            stages: Stage label of each row of K, for ordering "stage".
            scaling: Positive vector s: factorise diag(s) K diag(s) instead.  Solutions are those of
                K; only the range of the values inside changes.
            settings: How the work is scheduled.
        """
        settings = LDLSettings() if settings is None else settings
        if not isinstance(settings, LDLSettings):
            raise SettingsError(f"settings must be LDLSettings, got {type(settings).__name__}.")
        if not isinstance(backend, str) or backend not in BACKENDS:
            raise SettingsError(f"Unknown backend {backend!r}; choose one of {sorted(BACKENDS)}.")
        refuse_unused(settings, backend, BACKENDS[backend].honours)
        self.dtype, self.backend, self.settings = check_dtype(dtype), backend, settings
        self.pattern = SparsePattern.from_scipy(K)
        upper, source, n_values = symmetric_upper(K)
        self.elimination: Elimination = eliminate(upper, order(upper, ordering, stages))
        self._scaling = _check_scaling(scaling, upper.n_cols)
        s = np.ones(upper.n_cols) if self._scaling is None else self._scaling
        value_scale = s[self.pattern.row_idx] * s[self.pattern.col_idx]
        limits = np.finfo(self.dtype)
        if value_scale.max() > limits.max or value_scale.min() < limits.tiny:
            raise ProblemError(
                f"scaling leaves the range of {self.dtype}: its pairwise products must lie between "
                f"{limits.tiny:.1e} and {limits.max:.1e}."
            )
        origin = (self.pattern.digest(), self.elimination.perm.tobytes(), s.tobytes())
        name = f"{origin!r} {self.dtype} {backend} {settings.layout}"
        self._origin = hashlib.sha256(name.encode()).hexdigest()[:16]
        system = LinearSystem(self.elimination, source, n_values, self.dtype, value_scale)
        self.engine: LDLBackend = BACKENDS[backend](system, settings)
        self._factor, self._solve = jax.jit(self._factor_batch), jax.jit(self._solve_batch)
        self._expected: dict[tuple[int, ...], list[tuple[Any, ...]]] = {}

    @property
    def n(self) -> int:
        """Dimension of K."""
        return self.elimination.n

    @property
    def nnz(self) -> int:
        """Number of values per instance."""
        return self.pattern.nnz

    @property
    def nnz_L(self) -> int:
        """Entries of L strictly below the diagonal."""
        return self.elimination.nnz_L

    def values(self, K: sp.spmatrix | sp.sparray) -> np.ndarray:
        """The values of a SciPy matrix in the order that `factor` expects; absent entries are 0.

        A solver built from the upper triangle reads the upper triangle of a full matrix, too.
        """
        SparsePattern.from_scipy(K)  # SciPy would sum entries given twice without a word
        matrix = sp.csc_matrix(K, copy=True)
        lower = sp.tril(matrix, k=-1)
        if lower.nnz and not (self.pattern.row_idx > self.pattern.col_idx).any():
            if abs(lower.T - sp.triu(matrix, k=1)).max() > 0:
                raise ProblemError(
                    "This solver was built from the upper triangle: pass the upper triangle "
                    "(scipy.sparse.triu) or a symmetric matrix."
                )
            matrix = sp.csc_matrix(sp.triu(matrix))
        given = SparsePattern.from_scipy(matrix)
        if given.shape != self.pattern.shape:
            raise ProblemError(
                f"Expected a matrix of shape {self.pattern.shape}, got {given.shape}."
            )
        matrix.sort_indices()
        position = self.pattern.positions(given.row_idx, given.col_idx)
        if (position < 0).any():
            at = int(np.flatnonzero(position < 0)[0])
            raise ProblemError(
                f"Entry ({given.row_idx[at]}, {given.col_idx[at]}) is not in the pattern of this "
                "solver; build the solver with a pattern that has it."
            )
        values = np.zeros(self.nnz, dtype=self.dtype)
        values[position] = matrix.data
        return values

    def factor(self, K_vals: ArrayLike) -> LDLFactor:
        """Factorises every instance.

        Args:
            K_vals: Values, shape ``[batch, nnz]`` or with any other leading axes.
        """
        return self._factor(check_array(K_vals, "K_vals", self.nnz, self.dtype))

    def solve(self, factor: LDLFactor, rhs: ArrayLike) -> jax.Array:
        """Solves K x = rhs for every instance; call it as often as there are right-hand sides.

        A factor keeps the layout of its batch: do not slice or map it along the batch.  `jax.vmap`
        over whole calls works, but pass a batch axis instead where you can: single instances under
        `vmap` fill a tile of 32 each.

        Args:
            factor: Result of `factor`.
            rhs: Right-hand sides, leading axes as those of the values, then n.
        """
        if not isinstance(factor, LDLFactor):
            raise ProblemError(
                f"solve() needs the result of factor(), got {type(factor).__name__}."
            )
        rhs = check_array(rhs, "rhs", self.n, self.dtype)
        if rhs.shape[:-1] != factor.status.shape:
            raise ProblemError(
                f"rhs has leading axes {rhs.shape[:-1]} but the factor {factor.status.shape}; "
                "pass one right-hand side per factorised matrix."
            )
        self._check_belongs(factor)
        return self._solve(factor, rhs)

    def factors(self, factor: LDLFactor) -> tuple[jax.Array, jax.Array]:
        """L (values in column-major order of its pattern) and D, in elimination order."""
        self._check_belongs(factor)
        leading = factor.status.shape
        L, D = self.engine.factors(factor.values, int(np.prod(leading)))
        return L.reshape(*leading, self.nnz_L), D.reshape(*leading, self.n)

    def _factor_batch(self, K_vals: jax.Array) -> LDLFactor:
        leading = K_vals.shape[:-1]
        values, status = self.engine.factor(K_vals.reshape(-1, self.nnz))
        return LDLFactor(values, status.reshape(leading), self._origin)

    def _solve_batch(self, factor: LDLFactor, rhs: jax.Array) -> jax.Array:
        flat = rhs.reshape(-1, self.n)
        s = None if self._scaling is None else jnp.asarray(self._scaling, dtype=self.dtype)
        x = self.engine.solve(factor.values, flat if s is None else flat * s[None])
        x = x if s is None else x * s[None]
        ok = factor.ok.reshape(-1, 1)
        return jnp.where(ok, x, jnp.nan).reshape(rhs.shape)

    def _check_belongs(self, factor: LDLFactor) -> None:
        """Kernels trust the shape of a factor, so a foreign one must not reach them."""
        leading = factor.status.shape
        if leading not in self._expected:
            K_vals = jax.ShapeDtypeStruct((*leading, self.nnz), self.dtype)
            self._expected[leading] = _shapes(jax.eval_shape(self._factor, K_vals))
        if factor.origin != self._origin or _shapes(factor) != self._expected[leading]:
            raise ProblemError(
                "This factor was not made by this solver, or under another `jax.vmap`: call "
                "factor() and solve() of the same solver under the same transformations."
            )


def _shapes(factor: LDLFactor) -> list[tuple[Any, ...]]:
    return [(leaf.shape, str(leaf.dtype)) for leaf in jax.tree.leaves(factor)]


def _check_scaling(scaling: np.ndarray | None, n: int) -> np.ndarray | None:
    if scaling is None:
        return None
    scaling = np.asarray(scaling)
    if scaling.dtype.kind not in "fiu":
        raise ProblemError(f"scaling must be {n} real numbers, got dtype {scaling.dtype}.")
    scaling = scaling.astype(np.float64)
    if scaling.shape != (n,) or not (np.isfinite(scaling).all() and (scaling > 0).all()):
        raise ProblemError(f"scaling must be {n} positive finite numbers, one per row of K.")
    return scaling
