"""How much memory single calls of `MPCSolver.solve` need for a huge batch, and how long they take.

    python benchmarks/huge_mpc.py [--system cartpole] [--batch 1000000] [--engine onchip]
        [--calls 3] [--json FILE]

First a cold solve, ``solver.solve(x0)``, then solves that get the last warm start to overwrite it.
The allocator's peak cannot be reset: one process measures one batch, and its figures are those of
the calls only if nothing before them needed more (the row says what that was).  Controls of a
sample, of the cold call and of the last one, are compared with the same iterations in float64 on
another engine; exits 1 if they differ.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from warpmpc import MPCSolver, MPCWarmStart, Solution
from warpmpc_bench.common.checking import spread
from warpmpc_bench.common.record import append_row, machine
from warpmpc_bench.common.timing import allocator_peak_bytes
from warpmpc_bench.mpc.accuracy import CONTROL_LIMITS
from warpmpc_bench.mpc.setup import MPCSetup

DTYPE, SAMPLE = "float32", 256


def measure(setup: MPCSetup, batch: int, engine: str, calls: int) -> dict[str, Any]:
    """One row: memory, times, and deviation of the controls from float64."""
    system = setup.make()
    solver = MPCSolver(system.problem, system.settings, dtype=DTYPE, engine=engine)
    x0 = jax.block_until_ready(jnp.asarray(system.sample(batch), dtype=DTYPE))
    where = spread(batch, SAMPLE)
    peaks = {"before_bytes": allocator_peak_bytes()}
    begin = time.perf_counter()
    solution = jax.block_until_ready(solver.solve(x0))
    seconds = [time.perf_counter() - begin]
    peaks["cold_peak_bytes"] = allocator_peak_bytes()
    controls, results = [_controls(solution, where)], _result_bytes(solution)
    starts: list[MPCWarmStart | None] = [None]
    for call in range(calls):
        start = solution.warm_start
        if call + 1 == calls:
            starts.append(jax.tree.map(lambda a: np.asarray(a[where], np.float64), start))
        begin = time.perf_counter()
        solution = jax.block_until_ready(solver.solve(x0, None, start, donate=True))
        seconds.append(time.perf_counter() - begin)
    peaks["warm_peak_bytes"] = allocator_peak_bytes()
    if calls:
        controls.append(_controls(solution, where))
    found = np.stack(controls)
    deviation = np.abs(found - _exact_controls(setup, np.asarray(x0)[where], starts))
    deviation /= max(np.ptp(found), np.abs(found).max())
    median, p95 = np.quantile(deviation, [0.5, 0.95])
    iterations = solver.settings.max_iter
    warm_s = statistics.median(seconds[1:]) if calls else None
    return {
        "benchmark": "huge",
        "generator": f"{setup}.sample({batch})",
        "system": setup.system,
        "horizon": system.problem.horizon,
        "sqp_iterations": iterations,
        "admm_iterations": solver.qp.settings.max_iter,
        "engine": solver.engine,
        "dtype": DTYPE,
        "batch": batch,
        "bytes_per_instance": solver.bytes_per_instance,
        "result_bytes": results,
        "memory": peaks,
        "first_call_s": seconds[0],
        "warm_s": warm_s,
        "per_s": None if warm_s is None else batch * iterations / warm_s,
        "control": {"median": float(median), "p95": float(p95), "max": float(deviation.max())},
        "correct": bool(median <= CONTROL_LIMITS[DTYPE][0] and p95 <= CONTROL_LIMITS[DTYPE][1]),
    }


def _controls(solution: Solution, where: np.ndarray) -> np.ndarray:
    """First inputs of some instances; nothing of the whole batch is gathered for them."""
    rows = solution.layout.u_rows
    assert rows is not None
    return np.asarray(solution.z[where], dtype=np.float64)[:, rows[0]]


def _result_bytes(solution: Solution) -> int:
    """Bytes of all arrays; z and y are those of the warm start."""
    return sum({id(leaf): leaf.nbytes for leaf in jax.tree.leaves(solution)}.values())


def _exact_controls(
    setup: MPCSetup, x0: np.ndarray, starts: Sequence[MPCWarmStart | None]
) -> np.ndarray:
    """Results of solves from each of the starts, in float64."""
    with jax.enable_x64(True):
        system = setup.make()
        solver = MPCSolver(system.problem, system.settings, dtype="float64", engine="sparse")
        given = jnp.asarray(x0, dtype="float64")
        all_of_them = np.arange(len(x0))
        return np.stack([_controls(solver.solve(given, None, s), all_of_them) for s in starts])


def main() -> int:
    """Measures and stores one row."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--system", default="cartpole")
    parser.add_argument("--horizon", type=int)
    parser.add_argument("--batch", type=int, default=1_000_000)
    parser.add_argument("--engine", default="onchip")
    parser.add_argument("--calls", type=int, default=3)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    setup = MPCSetup(options.system, options.horizon)
    row = {**machine(), **measure(setup, options.batch, options.engine, options.calls)}
    if options.json is not None:
        append_row(options.json, row)
    figures = ("engine", "batch", "result_bytes", "memory", "first_call_s", "warm_s", "per_s")
    for name in (*figures, "control", "correct"):
        sys.stdout.write(f"{name}: {row[name]}\n")
    return 0 if row["correct"] else 1


if __name__ == "__main__":
    raise SystemExit(main())
