"""The ways to run `MPCSolver` that are measured: what the library chooses, and ablations of it.

Add a line to `VARIANTS`; it is then measured, tabulated and plotted.
"""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass, field, replace
from functools import cache
from typing import Any

from warpmpc.engines.runtime.batching import tile_count
from warpmpc.engines.staged.launch import StagedKernels
from warpmpc.mpc.solver import MPCSolver
from warpmpc.qp.loops.kernels import KernelLoop
from warpmpc.qp.types import StagedSettings
from warpmpc.systems.base import System
from warpmpc_bench.mpc.setup import MPCSetup

DEFAULT = "default"


@dataclass(frozen=True)
class Variant:
    """One way to run the solver.

    Attributes:
        label: Name in a legend.
        subject: What it varies: "engine", "fusion", "code", "registers", "sides" or
            "prefetch".
        options: Options of `MPCSolver`.
        settings: Fields of `SQPSettings` that differ from the settings of the system.
    """

    label: str
    subject: str
    options: dict[str, Any] = field(default_factory=dict)
    settings: dict[str, Any] = field(default_factory=dict)


def _staged(label: str, subject: str, **settings: Any) -> Variant:
    return Variant(label, subject, {"engine": "staged", "staged": StagedSettings(**settings)})


VARIANTS: dict[str, Variant] = {
    DEFAULT: Variant("as the library chooses", "choice"),
    "staged": Variant("streams the factor, three launches", "engine", {"engine": "staged"}),
    "onchip": Variant("one launch per solve, one warp per problem", "engine", {"engine": "onchip"}),
    "sparse": Variant("table-driven LDL', no stages", "engine", {"engine": "sparse"}),
    "panels": _staged("tables instead of unrolled stages", "code", code="panels"),
    "unfused": Variant(
        "one launch per function", "fusion", {"engine": "staged"}, settings={"fused": False}
    ),
    "registers_64": _staged("64 registers per thread", "registers", registers=64),
    "registers_128": _staged("128 registers", "registers", registers=128),
    "registers_255": _staged("255 registers", "registers", registers=255),
    "one_side": _staged("one thread per problem", "sides", sides=1),
    "two_sides": _staged("two threads per problem", "sides", sides=2),
    "prefetch": _staged("stages are asked for ahead of time", "prefetch", prefetch=True),
    "no_prefetch": _staged("no prefetch", "prefetch", prefetch=False),
}


@dataclass(frozen=True, eq=False)
class Built:
    """A solver, its system, and the seconds it took to make them."""

    system: System
    solver: MPCSolver
    seconds: float


@cache
def build_solver(name: str, setup: MPCSetup, dtype: str) -> Built:
    """The solver of a variant, built once; no kernel is compiled yet.

    Args:
        name: Name of the variant.
        setup: System and sizes.
        dtype: "float32" or "float64".
    """
    begin = time.perf_counter()
    system = setup.make()
    variant = VARIANTS[name]
    settings = replace(system.settings, **variant.settings)
    solver = system.solver(settings, dtype=dtype, **variant.options)
    return Built(system, solver, time.perf_counter() - begin)


def settings_of(name: str, built: Built, batch: int) -> dict[str, Any]:
    """What was run, for a row; "shape" is that of the ADMM kernel, where there is a choice."""
    solver, options = built.solver, dict(VARIANTS[name].options)
    staged = options.pop("staged", None)
    options |= {"engine": solver.engine, "staged": None if staged is None else asdict(staged)}
    tiles = tile_count(batch)
    loop = None if solver.engine == "onchip" else solver.qp.loop
    kernels = loop.kernels_at(tiles) if isinstance(loop, KernelLoop) else None
    return {
        **options,
        "shape": asdict(kernels.shape(tiles)) if isinstance(kernels, StagedKernels) else None,
        "sqp_iterations": solver.settings.max_iter,
        "admm_iterations": solver.qp.settings.max_iter,
        "sqp": asdict(solver.settings),
    }
