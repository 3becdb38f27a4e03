"""Closed loops of the benchmark systems: the check runs of the paper's problems, and 1000 starts.

    python benchmarks/closed_loop_mpc.py [--json FILE] [--dtype float32] [--runs NAME,...]

Every row holds success and violations of the whole batch beside the time, so that a figure without
its correctness does not exist.  Rates include all phases and the simulated plant.
"""

from __future__ import annotations

import argparse
import dataclasses
import sys
import time
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import warpmpc as wm
from warpmpc import systems
from warpmpc_bench.common.record import append_row, machine

# name: system, batch, seed, (SQP iterations, ADMM iterations) or None for those of the system
RUNS: dict[str, tuple[str, int, int, tuple[int, int] | None]] = {
    "cartpole_64_5x25": ("cartpole", 64, 64, (5, 25)),
    "cartpole_32_10x50": ("cartpole", 32, 32, (10, 50)),
    "cartpole_1000": ("cartpole", 1000, 1000, (10, 50)),
    "cartpole_1000_seed_0": ("cartpole", 1000, 0, (10, 50)),
    "quadrotor_64": ("quadrotor", 64, 64, None),
    "quadrotor_1000": ("quadrotor", 1000, 1000, None),
    "obstacles_64": ("quadrotor_obstacles", 64, 0, None),
    "obstacles_1000": ("quadrotor_obstacles", 1000, 0, None),
}


def _settings(settings: wm.SQPSettings, iterations: tuple[int, int] | None) -> wm.SQPSettings:
    if iterations is None:
        return settings
    qp = dataclasses.replace(settings.qp or wm.ADMMSettings(), max_iter=iterations[1])
    return dataclasses.replace(settings, max_iter=iterations[0], qp=qp)


def measure(name: str, dtype: str) -> dict[str, Any]:
    """One closed loop, its metrics and its time after a first run."""
    system_name, batch, seed, iterations = RUNS[name]
    system = systems.make(system_name)
    settings = _settings(system.settings, iterations)
    solver = wm.MPCSolver(system.problem, settings, dtype=dtype)
    x0 = jnp.asarray(system.sample(batch, seed), dtype=dtype)
    seconds: list[float] = []
    for _ in range(2):
        begin = time.perf_counter()
        loop = wm.rollout(solver, system.simulate, x0, system.steps, shift=False)
        jax.block_until_ready(loop.x)
        seconds.append(time.perf_counter() - begin)
    metrics = system.metrics(np.asarray(loop.x), np.asarray(loop.u))
    summary = {key: [float(np.mean(value)), float(np.max(value))] for key, value in metrics.items()}
    theta = np.asarray(loop.theta)
    return {
        "benchmark": "closed_loop",
        "run": name,
        "system": system_name,
        "dtype": dtype,
        "engine": solver.engine,
        "batch": batch,
        "seed": seed,
        "steps": system.steps,
        "sqp_iterations": settings.max_iter,
        "admm_iterations": solver.qp.settings.max_iter,
        "first_s": seconds[0],
        "run_s": seconds[1],
        "sqp_iterations_per_s": batch * system.steps * settings.max_iter / seconds[1],
        "success": float(np.mean(metrics["success"])),
        "satisfied": float(np.mean(metrics["satisfied"])),
        "theta": [float(theta.mean()), float(theta.max())],
        "mean_step": float(np.mean(loop.step_length)),
        "accepted": float(np.mean(loop.accepted)),
        "metrics_mean_max": summary,
    }


def main() -> int:
    """Runs the requested systems."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path, default=None)
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--runs", default=",".join(RUNS))
    options = parser.parse_args()
    if options.dtype == "float64":
        jax.config.update("jax_enable_x64", True)
    for name in options.runs.split(","):
        row = {**machine(), **measure(name, options.dtype)}
        if options.json is not None:
            append_row(options.json, row)
        figures = ("success", "satisfied", "theta", "mean_step", "accepted", "sqp_iterations_per_s")
        sys.stdout.write(f"{name} {options.dtype} {[(f, row[f]) for f in figures]}\n")
        sys.stdout.write(f"    {row['metrics_mean_max']}\n")
        sys.stdout.flush()
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
