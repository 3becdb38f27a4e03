"""What `warpmpc demo ldl` prints."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from warpmpc_bench.demos.ldl import DemoResult


def format_demo(result: DemoResult) -> str:
    """The result as text."""
    import numpy as np

    from warpmpc_bench.common.report import demo_result, facts

    solver, residuals = result.solver, result.residuals
    fill = solver.nnz_L - (solver.nnz - solver.n)
    harm = "bit-identical to" if result.unharmed else "DIFFERENT FROM"
    rows = {
        "system": f"dimension {solver.n}, {solver.nnz} entries in the upper triangle of K",
        "L": f"nnz(L) = {solver.nnz_L}, of which {fill} fill, minimum-degree ordering",
        "status": _status_text(result),
        "neighbours": f"all other solutions are {harm} those without the broken matrices",
        "residual": f"median {np.median(residuals):.1e}, largest {residuals.max():.1e} of |b| "
        f"(limit {result.limit:.0e}; {residuals.size} systems checked in float64)",
        "factorise": _rate_text(result, "factor"),
        "solve": _rate_text(result, "solve"),
        "QDLDL": _qdldl_text(result),
        "result": demo_result(correct=result.correct),
    }
    title = f"{result.batch} KKT systems with one pattern, float32, on {result.device}"
    return facts(title, rows)


def _status_text(result: DemoResult) -> str:
    from warpmpc._conventions import FactorStatus
    from warpmpc_bench.common.report import status_note

    counts = Counter(FactorStatus(code).name for code in result.status.tolist())
    listed = ", ".join(f"{count} {name}" for name, count in sorted(counts.items()))
    planted = ", ".join(f"{what} in {where}" for what, where in result.broken.items())
    return f"{listed} (planted: {planted}){status_note(sorted(counts))}"


def _rate_text(result: DemoResult, name: str) -> str:
    from warpmpc_bench.common.report import rate

    seconds = result.times[name].median_s
    each = seconds / result.batch
    return f"{seconds * 1e3:.3g} ms for the batch, {each * 1e6:.3g} us each, " + (
        f"{rate(result.per_s(name)).strip()} per second"
    )


def _qdldl_text(result: DemoResult) -> str:
    rates = result.qdldl_per_s
    if rates is None:
        return "not installed, no comparison: `pip install qdldl`"
    each = {name: 1e6 / per_s for name, per_s in rates.items()}
    times = {name: result.per_s(name) / per_s for name, per_s in rates.items()}
    return (
        f"one CPU core: {each['factor']:.3g} us per factorisation, {each['solve']:.3g} us per "
        f"solve; warpmpc is {times['factor']:.3g} and {times['solve']:.3g} times as fast"
    )
