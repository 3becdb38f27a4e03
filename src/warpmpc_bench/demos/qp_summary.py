"""What `warpmpc demo qp` prints."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from warpmpc_bench.demos.qp import QPDemoResult


def format_demo(result: QPDemoResult) -> str:
    """The result as text."""
    import numpy as np

    from warpmpc.qp.types import Status
    from warpmpc_bench.common.report import demo_result, facts, rate, status_note
    from warpmpc_bench.demos.qp import SLACK

    counts = Counter(Status(code).name for code in result.status.tolist())
    listed = ", ".join(f"{count} {name}" for name, count in sorted(counts.items()))
    planted = ", ".join(f"{kind.name} in {where}" for where, kind in result.planted.items())
    harm = "bit-identical to" if result.unharmed else "DIFFERENT FROM"
    iterations, seconds = result.iterations, result.time.median_s
    rows = {
        "problem": "quadcopter of the OSQP documentation, 652 variables, 1144 rows, horizon 40",
        "engine": f"{result.engine} (chosen because the stages are known)",
        "status": f"{listed} (planted: {planted}){status_note(sorted(counts))}",
        "neighbours": f"all other solutions are {harm} those without the hopeless instances",
        "iterations": f"median {np.median(iterations):.0f}, most {iterations.max()}",
        "residuals": f"at most {result.excess.max():.2f} times the tolerance in float64 "
        f"(limit {SLACK:.0f})",
        "time": f"{seconds * 1e3:.3g} ms for the batch, {rate(result.per_s).strip()} per second",
        "result": demo_result(correct=result.correct),
    }
    title = f"{result.batch} linear MPC problems, float32, on {result.device}"
    return facts(title, rows)
