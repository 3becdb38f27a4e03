"""One batch of the factorisation benchmark on the device, and the check of its solutions.

Reads: `systems.ldl_benchmark`.  Produces: device arrays in which every matrix is different, and the
accuracy of a solution on a sample of instances, computed in float64 on the host.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from importlib.util import find_spec
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import scipy.sparse as sp

from warpmpc._conventions import FactorStatus
from warpmpc.systems import ldl_benchmark
from warpmpc_bench.common.checking import finite_max, rows_of, spread

HOST_BATCH = 8192  # larger batches are drawn on the device
CHECKED = 64  # instances whose residual is computed
COMPARED = 4  # so many instances are solved by QDLDL as well
ACCURACY_LIMIT = {"float32": 5e-6, "float64": 1e-12}


@dataclass(frozen=True)
class Accuracy:
    """How well a batch was solved.

    Attributes:
        residual: Largest ``||K x - b|| / ||b||`` (max norm) of the checked instances.
        difference: Largest ``||x - x_ref|| / ||x_ref||`` to QDLDL in float64; None without QDLDL.
        checked: Number of instances checked, first and last among them.
        failed: Number of instances of the whole batch whose status is not OK.
        limit: Largest allowed `residual`.
    """

    residual: float | None
    difference: float | None
    checked: int
    failed: int
    limit: float

    @property
    def correct(self) -> bool:
        """Whether all instances were factorised and the checked ones solved within the limit."""
        return self.failed == 0 and self.residual is not None and self.residual <= self.limit


class Case:
    """A batch with its values on the device, or on the host for solvers that run there."""

    def __init__(self, batch: int, dtype: str, *, on_host: bool = False):
        """Draws the batch; large ones on the device itself."""
        self.batch, self.dtype = batch, dtype
        if on_host or batch <= HOST_BATCH:
            self.generator = f"numpy.random.default_rng({1 + batch})"
            drawn = ldl_benchmark.sample(batch, dtype=dtype)
            self.K_vals, self.rhs = drawn if on_host else jax.device_put(drawn)
        else:
            self.generator = f"jax.random.key({1 + batch})"
            key = jax.random.key(1 + batch)
            self.K_vals, self.rhs = ldl_benchmark.sample_on_device(key, batch, dtype)
        jax.block_until_ready((self.K_vals, self.rhs))

    @cached_property
    def instances(self) -> np.ndarray:
        """Checked instances, spread over the batch."""
        return spread(self.batch, CHECKED)

    @cached_property
    def matrices(self) -> list[sp.csc_matrix]:
        """Upper triangles of the checked instances in float64, from the values on the device."""
        return upper_matrices(rows_of(self.K_vals, self.instances))

    @cached_property
    def _rhs_checked(self) -> np.ndarray:
        return rows_of(self.rhs, self.instances)

    @cached_property
    def _reference(self) -> list[tuple[int, np.ndarray]]:
        """Some of the checked instances with their solutions by QDLDL; none if it is missing."""
        if find_spec("qdldl") is None:
            return []
        import qdldl

        chosen = spread(self.instances.size, COMPARED)
        return [
            (at, qdldl.Solver(self.matrices[at], upper=True).solve(self._rhs_checked[at]))
            for at in chosen.tolist()
        ]

    def accuracy(self, x: Any, status: Any | None = None) -> Accuracy:
        """Checks solutions ``[batch, n]`` (JAX or NumPy) and the status of each instance."""
        found = rows_of(x, self.instances)
        residuals = relative_residuals(self.matrices, found, self._rhs_checked)
        differences = [np.abs(found[at] - x).max() / np.abs(x).max() for at, x in self._reference]
        failed = 0 if status is None else int((jnp.asarray(status) != FactorStatus.OK).sum())
        return Accuracy(
            finite_max(residuals),
            finite_max(differences),
            self.instances.size,
            failed,
            ACCURACY_LIMIT[self.dtype],
        )


def upper_matrices(K_vals: np.ndarray) -> list[sp.csc_matrix]:
    """SciPy matrices from rows of values."""
    K = ldl_benchmark.nominal()
    return [sp.csc_matrix((values, K.indices, K.indptr), shape=K.shape) for values in K_vals]


def relative_residuals(
    matrices: list[sp.csc_matrix], x: np.ndarray, rhs: np.ndarray
) -> list[float]:
    """``||K x - b|| / ||b||`` of each instance, in the max norm; matrices are upper triangles."""
    residuals: list[float] = []
    for K, found, b in zip(matrices, x, rhs, strict=True):
        product = K @ found + K.T @ found - K.diagonal() * found
        residuals.append(float(np.abs(product - b).max() / np.abs(b).max()))
    return residuals
