"""The LDL' engine with its optimisations switched off, one more with each variant.

Add a line to `VARIANTS`; it is then measured, tabulated and plotted.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from functools import cache

import jax.numpy as jnp
import numpy as np

from warpmpc.engines.runtime.batching import to_tiles
from warpmpc.qp.ldl_solver import LDLSolver
from warpmpc.qp.linear_solvers.base import LDLSettings
from warpmpc.systems.patterns import ldl_benchmark
from warpmpc_bench.common.timing import CompiledProgram, Measured, build, measure
from warpmpc_bench.ldl.case import Case


@dataclass(frozen=True)
class Variant:
    """One way to run the engine: what it shows, and how to get it."""

    label: str
    settings: LDLSettings = field(default_factory=LDLSettings)
    ordering: str = "amd"


VARIANTS: dict[str, Variant] = {
    "full": Variant("all optimisations"),
    "stage_order": Variant("stage-wise ordering", ordering="stage"),
    "no_window": Variant("no window on chip", LDLSettings(window=False)),
    "no_levels": Variant(
        "and no level scheduling", LDLSettings(window=False, level_scheduling=False)
    ),
    "no_segments": Variant(
        "and no segments", LDLSettings(segments=1, window=False, level_scheduling=False)
    ),
    "batch_first": Variant(
        "and no tiles (naive)",
        LDLSettings(layout="batch_first", level_scheduling=False, segments=1),
    ),
}


@cache
def build_solver(name: str, dtype: str) -> LDLSolver:
    """The solver of a variant, built once."""
    variant, structure = VARIANTS[name], ldl_benchmark()
    return LDLSolver(
        structure.K,
        ordering=variant.ordering,
        dtype=dtype,
        stages=structure.stages,
        settings=variant.settings,
    )


def measure_solver(solver: LDLSolver, ordering: str, case: Case, repeats: int) -> Measured:
    """Times factor and solve through the public calls, checks the solution, counts bytes."""
    factor_program, factor = build(solver.factor, case.K_vals)
    solve_program, x = build(solver.solve, factor, case.rhs)
    accuracy = case.accuracy(x, factor.status)
    del x
    programs = {"factor": (factor_program, (case.K_vals,))}
    programs |= {"solve": (solve_program, (factor, case.rhs))}
    if solver.backend == "warp" and solver.settings.layout == "tiled":
        inner = (factor.values, to_tiles(jnp.asarray(case.rhs)))
        programs |= {"solve_tiles": (build(solver.engine.solve_tiles, *inner)[0], inner)}  # pyright: ignore[reportAttributeAccessIssue]
    times = {
        name: measure(program.call, *args, repeats=repeats, first_call_s=program.first_call_s)
        for name, (program, args) in programs.items()
    }
    settings = {"backend": solver.backend, "ordering": ordering}
    if solver.backend == "dense":  # counts and storage are those of a sparse factor
        return Measured(times, settings, accuracy)
    counts = solver.elimination.counts(case.K_vals.dtype.itemsize)
    return Measured(
        times,
        {**settings, "nnz_L": solver.nnz_L, **asdict(solver.settings)},
        accuracy,
        {name: counts[f"{name.removesuffix('_tiles')}_bytes"] for name in times},
        _memory(factor_program, solve_program, case, counts["storage_bytes"] * case.batch),
    )


def _memory(
    factor: CompiledProgram, solve: CompiledProgram, case: Case, storage_bytes: int
) -> dict[str, int] | None:
    """Peak over both steps; K and the right-hand sides stay on the device throughout."""
    if factor.memory_bytes is None or solve.memory_bytes is None:
        return None
    peak = max(factor.memory_bytes + case.rhs.nbytes, solve.memory_bytes + case.K_vals.nbytes)
    return {"peak_bytes": peak, "storage_bytes": storage_bytes}


def bytes_wanted(solver: LDLSolver, batch: int) -> int:
    """Memory that drawing and timing a batch may need: data, tiled copies, and two factors."""
    itemsize = np.dtype(solver.dtype).itemsize
    return int(2.5 * batch * solver.elimination.counts(itemsize)["storage_bytes"])
