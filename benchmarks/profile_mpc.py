"""One solve per engine and batch size, for NVIDIA's profiler; some of it is checked in float64.

JAX_PLATFORMS=cpu ncu --kernel-name regex:"fused|staged|onchip" --csv --page raw \
        --metrics METRIC,... python benchmarks/profile_mpc.py > rows.csv
"""

from __future__ import annotations

import sys
from dataclasses import replace

import jax
import numpy as np
from warp_only import warp_only

from warpmpc import MPCSolver, StagedSettings, systems

CASES = (("cartpole", "staged"), ("quadrotor", "staged"), ("cartpole", "onchip"))
BATCHES = (10_000, 100_000)
TWO_SIDES = 16_384  # batches below have two threads per problem, as the model chooses on an H200
CHECKED = 32
LIMIT = 1e-2  # relative to the largest variable


def main(batches: tuple[int, ...]) -> None:
    """One SQP iteration of every case."""
    jax.config.update("jax_enable_x64", True)
    for name, engine in CASES:
        system = systems.make(name)
        settings = replace(system.settings, max_iter=1)
        double = MPCSolver(system.problem, settings, "float64", "sparse")
        for batch in batches:
            # With JAX on the CPU the library would choose for the CPU.
            sides = StagedSettings(sides=2 if batch < TWO_SIDES else 1)
            staged = sides if engine == "staged" else None
            solver = MPCSolver(system.problem, settings, "float32", engine, staged=staged)
            x0 = system.sample(batch, 0)
            with warp_only():
                found = np.asarray(solver.solve(x0.astype("float32")).z[:CHECKED])
                wanted = np.asarray(double.solve(x0[:CHECKED]).z)
            if not np.abs(found - wanted).max() < LIMIT * np.abs(wanted).max():
                raise SystemExit(f"wrong result: {name}, {engine}, {batch}")


if __name__ == "__main__":
    main(tuple(int(batch) for batch in sys.argv[1:]) or BATCHES)
