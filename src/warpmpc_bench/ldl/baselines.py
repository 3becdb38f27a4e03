"""Other solvers on the same batches, where their packages are present.

Add an entry to `BASELINES`.  A baseline that cannot run says why; that becomes a row, too.
"""

from __future__ import annotations

import time
from importlib.util import find_spec
from typing import Any

import numpy as np
import scipy.sparse as sp

from warpmpc.qp.ldl_solver import LDLSolver
from warpmpc.systems.ldl_benchmark import nominal
from warpmpc_bench.common.baseline import Baseline, needs, on_one_core
from warpmpc_bench.common.timing import Measured, measure
from warpmpc_bench.ldl.case import Case, upper_matrices
from warpmpc_bench.ldl.variants import measure_solver

QDLDL_BATCH = 512


def measure_qdldl(case: Case, repeats: int) -> Measured:
    """QDLDL on one CPU core, one matrix after the other; the ordering is computed once.

    The matrices exist as SciPy objects before the clock starts, and only upper triangles are
    passed, which spares QDLDL's wrapper its costly extraction of the triangle.
    """
    import qdldl

    start = time.perf_counter()
    matrices = upper_matrices(np.asarray(case.K_vals, dtype=np.float64))
    rhs = np.asarray(case.rhs, dtype=np.float64)
    solver = qdldl.Solver(matrices[0], upper=True)
    x = np.zeros_like(rhs)
    for b, matrix in enumerate(matrices):
        solver.update(matrix, upper=True)
        x[b] = solver.solve(rhs[b])
    first = time.perf_counter() - start

    def factor() -> None:
        for matrix in matrices:
            solver.update(matrix, upper=True)

    def solve() -> None:
        for b in rhs:
            solver.solve(b)

    times = {
        "factor": measure(factor, repeats=repeats, first_call_s=first),
        "solve": measure(solve, repeats=repeats, first_call_s=first),
    }
    return Measured(times, {"backend": "qdldl", "ordering": "amd"}, case.accuracy(x))


def measure_dense(case: Case, repeats: int) -> Measured:
    """Batched LU with partial pivoting of the full matrices in JAX."""
    solver = LDLSolver(nominal(), ordering="natural", backend="dense", dtype=case.dtype)
    return measure_solver(solver, "natural", case, repeats)


def measure_cudss(case: Case, repeats: int) -> Measured:
    """CuDSS through nvmath-python: symmetric systems, the batch as a list of matrices.

    With CuPy the operands live on the device; without, nvmath-python copies them there once, and
    every solve returns its result to the host.
    """
    from nvmath.sparse import advanced as nv  # pyright: ignore[reportMissingImports]

    start, on_device = time.perf_counter(), find_spec("cupy") is not None
    a, b = _cudss_operands(case, on_device=on_device)
    options = nv.DirectSolverOptions(
        sparse_system_type=nv.DirectSolverMatrixType.SYMMETRIC,
        sparse_system_view=nv.DirectSolverMatrixViewType.LOWER,
        blocking=True,
    )
    with nv.DirectSolver(a, b, options=options) as solver:
        solver.plan()
        solver.factorize()
        x = np.stack([row.get() if on_device else np.asarray(row) for row in solver.solve()])
        first = time.perf_counter() - start
        times = {
            "factor": measure(solver.factorize, repeats=repeats, first_call_s=first),
            "solve": measure(solver.solve, repeats=repeats, first_call_s=first),
        }
    settings = {"backend": "cudss", "operands": "device" if on_device else "host"}
    return Measured(times, settings, case.accuracy(x))


def _cudss_operands(case: Case, *, on_device: bool) -> tuple[list[Any], list[Any]]:
    """Matrices and right-hand sides; columns of the upper triangle are rows of the lower one."""
    K, values, rhs = nominal(), np.asarray(case.K_vals), np.asarray(case.rhs)
    if not on_device:
        rows = [sp.csr_matrix((row, K.indices, K.indptr), shape=K.shape) for row in values]
        return rows, list(rhs)
    import cupy as cp  # pyright: ignore[reportMissingImports]
    from cupyx.scipy.sparse import csr_matrix  # pyright: ignore[reportMissingImports]

    indices, pointer = cp.asarray(K.indices), cp.asarray(K.indptr)
    rows = [csr_matrix((row, indices, pointer), shape=K.shape) for row in cp.asarray(values)]
    return rows, list(cp.asarray(rhs))


_DENSE_COPIES = 5  # the matrix while it is filled and mirrored, its factor, a working copy
_FACTOR_SIZE = 12 * nominal().nnz  # generous: values, indices and factor of one instance
BASELINES: dict[str, Baseline] = {
    "qdldl": on_one_core(
        "QDLDL, one CPU core", measure_qdldl, "qdldl", QDLDL_BATCH, 8 * _FACTOR_SIZE
    ),
    "dense": Baseline(
        "dense LU in JAX",
        measure_dense,
        needs("jax", "jax"),
        {"gpu": 128, "cpu": 8},
        lambda itemsize: _DENSE_COPIES * itemsize * nominal().shape[0] ** 2,
    ),
    "cudss": Baseline(
        "cuDSS",
        measure_cudss,
        needs("nvmath", "nvmath-python", cuda=True),
        {"gpu": 2048, "cpu": 2048},
        lambda itemsize: itemsize * _FACTOR_SIZE,
    ),
}
