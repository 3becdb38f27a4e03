"""Tables of the tests of `LDLSolver`: engines, tolerances, solvers that are compiled once."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cache

import numpy as np
import scipy.sparse as sp
from cases import PATTERNS, KCase, quasi_definite
from oracles import relative_residuals

from warpmpc import FactorStatus, LDLSettings, LDLSolver

MAX_RESIDUAL = {"float32": 5e-6, "float64": 1e-12}
DTYPES = list(MAX_RESIDUAL)


@dataclass(frozen=True)
class Engine:
    """A backend with settings."""

    backend: str
    settings: LDLSettings = field(default_factory=LDLSettings)


# Segments of "jax" are compiled one by one: few keep the tests short.
ENGINES: dict[str, Engine] = {
    "warp": Engine("warp"),
    "warp_window": Engine("warp", LDLSettings(window=True, segments=3)),
    "warp_tables": Engine("warp", LDLSettings(window=False)),
    "warp_columns": Engine("warp", LDLSettings(window=False, level_scheduling=False)),
    "warp_plain": Engine("warp", LDLSettings(window=False, level_scheduling=False, segments=1)),
    "warp_batch_first": Engine("warp", LDLSettings(layout="batch_first")),
    "jax": Engine("jax", LDLSettings(segments=4)),
    "jax_columns": Engine("jax", LDLSettings(segments=4, level_scheduling=False)),
    "dense": Engine("dense"),
}
ENGINE_NAMES = list(ENGINES)
WARP_ENGINES = [name for name in ENGINES if name.startswith("warp")]
BACKENDS = ["warp", "jax", "dense"]  # one engine of each


def make_solver(case: KCase, engine: str, dtype: str, **options) -> LDLSolver:
    backend, settings = ENGINES[engine].backend, ENGINES[engine].settings
    return LDLSolver(case.K, backend=backend, dtype=dtype, settings=settings, **options)


@cache
def solver_for(name: str, engine: str = "warp", dtype: str = "float64") -> LDLSolver:
    """Solver of a named pattern, one per test process."""
    return make_solver(PATTERNS[name](), engine, dtype)


@dataclass(frozen=True, eq=False)
class Batch:
    """Quasi-definite systems in one dtype: upper pattern, values, right-hand sides."""

    K: sp.csc_matrix
    values: np.ndarray
    rhs: np.ndarray


def systems(case: str | KCase, dtype: str = "float64", batch: int = 3, seed: int = 0) -> Batch:
    K, values = quasi_definite(case, seed, batch)
    rhs = np.random.default_rng([seed, 1]).normal(size=(batch, K.shape[0]))
    return Batch(K, values.astype(dtype), rhs.astype(dtype))


def check_solver(solver: LDLSolver, given: Batch) -> None:
    """All instances are factorised, and the residuals are within the promise."""
    factor = solver.factor(given.values)
    batch = given.values.shape[0]
    assert factor.status.shape == (batch,)
    assert np.all(np.asarray(factor.status) == FactorStatus.OK)
    assert np.all(np.asarray(factor.ok))
    solution = solver.solve(factor, given.rhs)
    assert solution.shape == given.rhs.shape
    assert solution.dtype == solver.dtype
    residuals = relative_residuals(given.K, given.values, np.asarray(solution), given.rhs)
    assert residuals.max() < MAX_RESIDUAL[solver.dtype]
