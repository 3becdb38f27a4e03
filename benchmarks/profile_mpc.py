"""One solve per engine and batch size, for NVIDIA's profiler.

JAX_PLATFORMS=cpu ncu --kernel-name regex:"fused|staged|onchip" --csv --page raw \
        --metrics METRIC,... python benchmarks/profile_mpc.py > rows.csv
"""

from __future__ import annotations

import sys
from dataclasses import replace

import jax
import jax.numpy as jnp
from warp_only import warp_only

from warpmpc import MPCSolver, systems

CASES = (("cartpole", "staged"), ("quadrotor", "staged"), ("cartpole", "onchip"))
BATCHES = (10_000, 100_000)


def main(batches: tuple[int, ...]) -> None:
    """One SQP iteration of every case."""
    for name, engine in CASES:
        system = systems.make(name)
        settings = replace(system.settings, max_iter=1)
        solver = MPCSolver(system.problem, settings, "float32", engine)
        for batch in batches:
            x0 = jnp.asarray(system.sample(batch, 0), dtype="float32")
            with warp_only():
                jax.block_until_ready(solver.solve(x0))


if __name__ == "__main__":
    main(tuple(int(batch) for batch in sys.argv[1:]) or BATCHES)
