"""Other MPC solvers on the same closed loops, where their packages are present.

Add an entry to `BASELINES`.  A baseline that cannot run says why; that becomes a row, too.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import numpy as np

from warpmpc_bench.common.baseline import Baseline, on_one_core
from warpmpc_bench.common.timing import Measured, measure
from warpmpc_bench.mpc.accuracy import mean_max
from warpmpc_bench.mpc.measure import MPCCase

IPOPT_BATCH = 4
IPOPT_STEPS = 20  # a closed loop is so long, unless the benchmark has fewer
SOLVED = 0.95  # share of the solves that have to converge
VIOLATION = 1e-6  # rows of a plan may have it


@dataclass(frozen=True)
class BaselineAccuracy:
    """How good the closed loops of another solver were.

    Attributes:
        correct: Whether the row may be shown.
        failed: Names of the checks that failed.
        limits: Limits of all checks.
        loop: "steps", "solved" (share of the solves), mean and largest "plan_violation",
            "state_violation", "input_excess" and "final_error"; "satisfied" (share of the
            instances) and "success" (share; None where the loop is too short to tell).
    """

    correct: bool
    failed: list[str]
    limits: dict[str, float]
    loop: dict[str, Any]


def judge_loop(
    case: MPCCase, x: np.ndarray, u: np.ndarray, solved: np.ndarray, violation: np.ndarray
) -> BaselineAccuracy:
    """Judges closed loops of another solver by the metrics of the system.

    Args:
        case: The instances.
        x: States ``[batch, steps + 1, n_x]``.
        u: Inputs ``[batch, steps, n_u]``.
        solved: Which solves converged, ``[batch, steps]``.
        violation: Largest violation of a row of each plan, ``[batch, steps]``.
    """
    system, steps = case.system, u.shape[1]
    metrics = system.judged(x, u)
    loop = {
        "steps": steps,
        "solved": float(solved.mean()),
        "plan_violation": mean_max(violation),
        "state_violation": mean_max(metrics["violation"]),
        **{name: mean_max(metrics[name]) for name in ("input_excess", "final_error")},
        "satisfied": mean_max(metrics["satisfied"])[0],
        "success": mean_max(metrics["success"])[0] if steps >= system.steps else None,
    }
    checks = {
        "finite": bool(np.isfinite(x).all() and np.isfinite(u).all()),
        "solved": loop["solved"] >= SOLVED,
        "plan_violation": bool(violation[solved].max(initial=0.0) <= VIOLATION),
    }
    failed = [name for name, fine in checks.items() if not fine]
    limits = {"solved": SOLVED, "plan_violation": VIOLATION}
    return BaselineAccuracy(not failed, failed, limits, loop)


def measure_ipopt(case: MPCCase, repeats: int) -> Measured:
    """Solves every problem to convergence by IPOPT, through CasADi, on one CPU core."""
    from warpmpc_bench.mpc.ipopt import OPTIONS, WholeProgram, closed_loops

    steps = min(case.steps, IPOPT_STEPS)
    start = time.perf_counter()
    program = WholeProgram(case.system.problem)
    built_s = time.perf_counter() - start
    x0 = np.asarray(case.x0, dtype=np.float64)
    loop = closed_loops(case.system, program, x0, steps)
    first = time.perf_counter() - start

    def again() -> None:
        closed_loops(case.system, program, x0, steps)

    timing = measure(again, repeats=repeats, first_call_s=first)
    call_s = timing.median_s / (case.batch * steps)
    return Measured(
        times={"solve": timing},
        settings={
            "engine": "ipopt",
            **OPTIONS,
            "steps": steps,
            "iterations_per_solve": float(loop.iterations.mean()),
        },
        accuracy=judge_loop(case, loop.x, loop.u, loop.solved, loop.violation),
        units=steps,
        details={
            "compile": {"total_s": built_s},
            "latency": {"step_ms": 1e3 * timing.median_s / steps, "call_ms": 1e3 * call_s},
        },
    )


BASELINES: dict[str, Baseline] = {
    "ipopt": on_one_core(
        "IPOPT through CasADi, one CPU core", measure_ipopt, "casadi", IPOPT_BATCH, 10**8
    ),
}
