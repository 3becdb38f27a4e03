"""Whether float32 can be trusted: statuses and gradients of random instances against float64.

    python benchmarks/trust_mpc.py --systems pendulum,cartpole,car --engines staged,sparse,onchip

Solves 512 random starts of each system with its settings for convergence, in float32 and in
float64, counts the statuses, and compares du0/dx0 where both reach the same solution.  The on-chip
engine takes neither scaled QPs nor projected blocks: it gets settings without them.  Appends one
row per system and engine to the file that --json names.
"""

from __future__ import annotations

import argparse
import logging
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from warpmpc import ADMMSettings, MPCSolver, MPCStatus, Solution, systems
from warpmpc.mpc.types import GradientStatus
from warpmpc_bench.common.record import append_row, machine

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results" / "trust_mpc.jsonl"
COUNT = 512
SAME = 1e-2  # largest difference of two equal solutions, over the largest variable
RELATIVE, ABSOLUTE = 1e-2, 1e-4  # gradients agree within these
_ONCHIP: dict[str, Any] = {
    "convexify": "gershgorin",
    "qp": ADMMSettings(scaling=0, adaptive_rho_every=0, max_iter=20_000),
}
_LOG = logging.getLogger("trust_mpc")


def starts(name: str, count: int, seed: int) -> np.ndarray:
    """Starts of a system; those of the pendulum swing up from everywhere."""
    if name != "pendulum":
        return systems.make(name).sample(count, seed)
    rng = np.random.default_rng(seed)
    return np.stack([rng.uniform(-3.5, 3.5, count), rng.uniform(-3, 3, count)], axis=1)


def solved(name: str, engine: str, dtype: str, x0: np.ndarray) -> dict[str, np.ndarray]:
    """Trajectories, statuses and gradients of the first inputs."""
    system = systems.make(name)
    settings = system.converged_settings
    if engine == "onchip":
        settings = replace(settings, **_ONCHIP)
    solver = MPCSolver(system.problem, settings, dtype=dtype, engine=engine)
    given = jnp.asarray(x0, dtype=dtype)

    def first(x0: jax.Array) -> tuple[jax.Array, Solution]:
        solution = solver.solve(x0)
        return solution.u[:, 0], solution

    u, pulled_back, solution = jax.vjp(first, given, has_aux=True)
    rows = solver.problem.u_rows
    assert rows is not None
    gradients, flags = [], []
    for i in range(u.shape[1]):
        gradients.append(pulled_back(jnp.zeros_like(u).at[:, i].set(1))[0])
        bar = np.zeros(solver.problem.n_vars, dtype=dtype)
        bar[rows[0, i]] = 1
        flags.append(solver.gradient_status(solution, given, cotangent=bar))
    return {
        "z": np.asarray(solution.z, dtype=np.float64),
        "status": np.asarray(solution.status),
        "gradient": np.stack([np.asarray(g, dtype=np.float64) for g in gradients], axis=1),
        "flagged": (np.stack([np.asarray(f) for f in flags]) != GradientStatus.VALID).any(axis=0),
    }


def statuses(found: dict[str, np.ndarray]) -> dict[str, int]:
    """Number of instances of each status."""
    return dict(Counter(MPCStatus(int(value)).name for value in found["status"]))


def compared(single: dict[str, np.ndarray], double: dict[str, np.ndarray]) -> dict[str, Any]:
    """How gradients in float32 agree with those in float64 at the same solutions."""
    both = (single["status"] == MPCStatus.CONVERGED) & (double["status"] == MPCStatus.CONVERGED)
    scale = np.maximum(1, np.abs(double["z"]).max(axis=1))
    same = both & (np.abs(single["z"] - double["z"]).max(axis=1) <= SAME * scale)
    wanted = double["gradient"][same]
    gap = np.abs(single["gradient"][same] - wanted).max(axis=(1, 2))
    size = np.abs(wanted).max(axis=(1, 2))
    flagged = (single["flagged"] | double["flagged"])[same]
    allowed = np.maximum(RELATIVE * size, ABSOLUTE)
    judged = gap[~flagged] / allowed[~flagged]
    return {
        "same": int(same.sum()),
        "flagged": int(flagged.sum()),
        "agree": float((judged <= 1).mean()) if judged.size else None,
        "worst": float(judged.max()) if judged.size else None,  # over what is allowed
        "beyond_ten": int((judged > 10).sum()),
    }


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--systems", default="pendulum,cartpole,car")
    parser.add_argument("--engines", default="staged,sparse,onchip")
    parser.add_argument("--count", type=int, default=COUNT)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path, default=RESULTS)
    args = parser.parse_args()
    logging.basicConfig(level=logging.WARNING, stream=sys.stderr, format="%(message)s")
    _LOG.setLevel(logging.INFO)
    jax.config.update("jax_enable_x64", True)
    for name in args.systems.split(","):
        x0 = starts(name, args.count, args.seed)
        for engine in args.engines.split(","):
            single, double = (solved(name, engine, d, x0) for d in ("float32", "float64"))
            row = {
                "benchmark": "trust_mpc",
                "system": name,
                "engine": engine,
                "count": args.count,
                "seed": args.seed,
                "float32": statuses(single),
                "float64": statuses(double),
                "gradients": compared(single, double),
                **machine(),
            }
            append_row(args.json, row)
            _LOG.info("%s", row)


if __name__ == "__main__":
    main()
