"""The engines of `QPSolver` on the linear MPC: solutions, and gradients by both methods.

Add a line to `VARIANTS`; it is then measured, tabulated and plotted.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, replace
from functools import cache, partial
from typing import Any

import jax
import numpy as np

from warpmpc.qp.qp_solver import QPSolver
from warpmpc.qp.types import QPSolution
from warpmpc.symbolic.elimination import eliminate
from warpmpc.symbolic.ordering import order
from warpmpc.symbolic.pattern import SparsePattern
from warpmpc.systems import linear_mpc, patterns
from warpmpc_bench.common.timing import Measured, build, measure
from warpmpc_bench.qp.case import SETTINGS, QPCase

STAGED = "staged"  # the engine that needs stage labels
NO_LIMIT = 10**9


@dataclass(frozen=True)
class Variant:
    """One way to run the solver.

    Attributes:
        label: Name in a legend.
        engine: Engine of `QPSolver`.
        gradient: Method of `ADMMSettings.sensitivity`; None: solutions only.
        largest: Largest batch worth measuring, by JAX platform.
        limit: Largest deviation of iterates, for an engine that is inexact on purpose.
    """

    label: str
    engine: str
    gradient: str | None = None
    largest: dict[str, int] = field(default_factory=lambda: {"gpu": NO_LIMIT, "cpu": NO_LIMIT})
    limit: float | None = None

    @property
    def timing(self) -> str:
        """Name of its timing."""
        return "gradient" if self.gradient else "solve"


_KKT, _LSQ = {"gpu": 10_000, "cpu": 256}, {"gpu": 10_000, "cpu": 32}
VARIANTS: dict[str, Variant] = {
    "staged": Variant("generated stage loops", STAGED),
    "sparse": Variant("table-driven LDL'", "sparse"),
    # 20 steps of conjugate gradients do not solve the system: close to the iterates, no more.
    "pcg": Variant("conjugate gradients", "pcg", largest={"gpu": 10_000, "cpu": 32}, limit=0.5),
    "dense": Variant("dense LU", "dense", largest={"gpu": 128, "cpu": 4}),
    "staged_kkt": Variant("and gradient by active set", STAGED, "kkt", _KKT),
    "sparse_kkt": Variant("and gradient by active set", "sparse", "kkt", _KKT),
    "staged_lsq": Variant("and gradient by least squares", STAGED, "lsq", _LSQ),
    "sparse_lsq": Variant("and gradient by least squares", "sparse", "lsq", _LSQ),
}
ENGINE_NAMES = tuple(name for name, variant in VARIANTS.items() if variant.gradient is None)


@cache
def build_solver(name: str, dtype: str, horizon: int) -> QPSolver:
    """The solver of a variant, built once."""
    variant, problem = VARIANTS[name], linear_mpc.build(horizon)
    settings = replace(SETTINGS, sensitivity=variant.gradient or "kkt")
    options: dict[str, Any] = {"stages": problem.stages} if variant.engine == STAGED else {}
    return QPSolver(
        problem.P, problem.A, settings=settings, dtype=dtype, engine=variant.engine, **options
    )


def measure_variant(name: str, case: QPCase, repeats: int) -> Measured:
    """Times a variant through the public call and checks what it found."""
    variant, solver = VARIANTS[name], build_solver(name, case.dtype, case.horizon)
    settings = {"engine": variant.engine, "gradient": variant.gradient, **asdict(solver.settings)}
    if variant.gradient is None:
        args = case.args
        program, solution = build(solver.solve, *args)
        accuracy = case.iterates(solution.x, solution.y, solution.status, variant.limit)
    else:
        args = (case.args, *case.cotangents)
        call = jax.value_and_grad(partial(_loss, solver), has_aux=True)
        program, ((_, solution), found) = build(call, *args)
        accuracy = case.iterates(solution.x, solution.y, solution.status, variant.limit)
        accuracy = case.gradients(accuracy, solution.x, solution.y, found, variant.gradient)
        del found
    del solution
    time = measure(program.call, *args, repeats=repeats, first_call_s=program.first_call_s)
    counted = counted_bytes(case.horizon, np.dtype(case.dtype).itemsize)
    storage = sum(array.nbytes for array in case.args)
    memory = {"peak_bytes": program.memory_bytes, "storage_bytes": storage}
    return Measured(
        {variant.timing: time},
        settings,
        accuracy,
        {} if variant.gradient else {"solve": counted["total"]},
        memory if program.memory_bytes is not None else None,  # pyright: ignore[reportArgumentType]
    )


def _loss(
    solver: QPSolver, args: Any, x_bar: jax.Array, y_bar: jax.Array
) -> tuple[jax.Array, QPSolution]:
    solution = solver.solve(*args)
    return (solution.x * x_bar).sum() + (solution.y * y_bar).sum(), solution


@cache
def nnz_L(horizon: int) -> int:
    """Entries of L with the minimum-degree ordering."""
    K = SparsePattern.from_scipy(patterns.linear(horizon).K)
    return eliminate(K, order(K, "amd")).nnz_L


@cache
def counted_bytes(horizon: int, itemsize: int) -> dict[str, int]:
    """Least traffic of one QP if the factor is written once and read in every iteration.

    Returns:
        Bytes by part: "data" (P, q, A and bounds read, x and y written), "factor" (L and D
        written), "iterations" (each reads L twice, D, q and the bounds once, reads and writes x
        and v), and their sum "total".
    """
    problem = linear_mpc.build(horizon)
    (m, n), L = problem.A.shape, nnz_L(horizon)
    data = problem.P.nnz + problem.A.nnz + n + 2 * m + (n + m)
    factor = L + (n + m)
    iteration = 2 * L + (n + m) + (n + 2 * m) + 2 * (n + m)
    counts = {"data": data, "factor": factor, "iterations": SETTINGS.max_iter * iteration}
    counts = {name: itemsize * count for name, count in counts.items()}
    return {**counts, "total": sum(counts.values())}


def bytes_wanted(name: str, batch: int, dtype: str, horizon: int) -> int:
    """Memory that drawing and timing a batch may need; dense engines hold full matrices."""
    itemsize, problem = np.dtype(dtype).itemsize, linear_mpc.build(horizon)
    size, counted = sum(problem.A.shape), counted_bytes(horizon, itemsize)
    if VARIANTS[name].engine == "dense":
        return 5 * batch * itemsize * size**2
    # Data and its tiled copy, factor, a dozen vectors; gradients as large as the data, and a system
    # of twice the dimension for least squares.
    one = 2 * counted["data"] + counted["factor"] + 12 * itemsize * size
    return batch * one * {None: 1, "kkt": 3, "lsq": 8}[VARIANTS[name].gradient]
