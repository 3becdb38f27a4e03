"""The main job in small: a batch of KKT systems, two of them broken on purpose, solved and checked.

Reads: a batch size.  Produces: `DemoResult`, which the command line prints and
`warpmpc_bench.demos.ldl_figure` draws.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from warpmpc._conventions import FactorStatus
from warpmpc._errors import SettingsError
from warpmpc.qp.ldl_solver import LDLSolver
from warpmpc_bench.common.checking import rows_of
from warpmpc_bench.common.timing import Timing, build, measure
from warpmpc_bench.ldl.baselines import BASELINES, QDLDL_BATCH
from warpmpc_bench.ldl.case import ACCURACY_LIMIT, Case, relative_residuals, upper_matrices
from warpmpc_bench.ldl.variants import build_solver

DTYPE = "float32"
CHECKED = 1024  # instances whose residual is computed, at most
SMALLEST_BATCH = 4  # two broken instances with others beside them


@dataclass(frozen=True, eq=False)
class DemoResult:
    """What the demo found.

    Attributes:
        batch: Number of systems.
        device: Name of the device.
        solver: The solver, for its dimensions.
        status: `FactorStatus` per instance of the batch with two broken matrices.
        broken: Instances that were broken on purpose.
        unharmed: Whether all other solutions are bit for bit those of the intact batch.
        residuals: Relative residuals of intact instances, from float64 arithmetic.
        times: Timing of "factor" and "solve" for the whole batch.
        qdldl_per_s: Rates of QDLDL on one core by the same names; None if it is not installed.
    """

    batch: int
    device: str
    solver: LDLSolver
    status: np.ndarray
    broken: dict[str, int]
    unharmed: bool
    residuals: np.ndarray
    times: dict[str, Timing]
    qdldl_per_s: dict[str, float] | None

    @property
    def limit(self) -> float:
        """Largest residual that counts as solved."""
        return ACCURACY_LIMIT[DTYPE]

    @property
    def correct(self) -> bool:
        """Whether exactly the broken instances failed and all others are right."""
        failed = set(np.flatnonzero(self.status != FactorStatus.OK).tolist())
        as_planned = failed == set(self.broken.values())
        return as_planned and self.unharmed and bool(self.residuals.max() <= self.limit)

    def per_s(self, name: str) -> float:
        """Factorisations or solves per second."""
        return self.batch / self.times[name].median_s


def run_demo(batch: int) -> DemoResult:
    """Factorises and solves a batch of the factorisation benchmark on the default device."""
    if batch < SMALLEST_BATCH:
        raise SettingsError(f"The demo needs a batch of at least {SMALLEST_BATCH}, got {batch}.")
    case, solver = Case(batch, DTYPE), build_solver("full", DTYPE)
    factor_program, factor = build(solver.factor, case.K_vals)
    solve_program, x = build(solver.solve, factor, case.rhs)

    broken = {"zero pivot": batch // 3, "not finite": 2 * batch // 3}
    spoilt = factor_program.call(_break(solver, jnp.asarray(case.K_vals), broken))
    x_spoilt = solve_program.call(spoilt, case.rhs)
    others = np.setdiff1d(np.arange(batch), list(broken.values()))
    return DemoResult(
        batch=batch,
        device=jax.devices()[0].device_kind,
        solver=solver,
        status=np.asarray(spoilt.status),
        broken=broken,
        unharmed=np.array_equal(np.asarray(x)[others], np.asarray(x_spoilt)[others]),
        residuals=_residuals(case, x),
        times={
            "factor": measure(factor_program.call, case.K_vals),
            "solve": measure(solve_program.call, factor, case.rhs),
        },
        qdldl_per_s=_qdldl_rates(batch),
    )


def _break(solver: LDLSolver, K_vals: jax.Array, broken: dict[str, int]) -> jax.Array:
    """Zeroes the first pivot of one matrix and puts a NaN into another."""
    first_pivot = int(solver.elimination.K_to_D[0])
    K_vals = K_vals.at[broken["zero pivot"], first_pivot].set(0)
    return K_vals.at[broken["not finite"], 0].set(jnp.nan)


def _residuals(case: Case, x: Any) -> np.ndarray:
    n_checked = min(CHECKED, case.batch)
    instances = np.unique(np.linspace(0, case.batch - 1, n_checked).round().astype(int))
    matrices = upper_matrices(rows_of(case.K_vals, instances))
    found, rhs = rows_of(x, instances), rows_of(case.rhs, instances)
    return np.array(relative_residuals(matrices, found, rhs))


def _qdldl_rates(batch: int) -> dict[str, float] | None:
    baseline, samples = BASELINES["qdldl"], min(batch, QDLDL_BATCH)
    if baseline.obstacle():
        return None
    measured = baseline.measure(Case(samples, "float64", on_host=True), 5)
    return {name: samples / timing.median_s for name, timing in measured.times.items()}
