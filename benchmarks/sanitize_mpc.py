"""Fused SQP iterations and on-chip solves of odd batches, for compute-sanitizer.

    export JAX_PLATFORMS=cpu
    compute-sanitizer --tool memcheck --error-exitcode 1 python benchmarks/sanitize_mpc.py
    compute-sanitizer --tool racecheck --error-exitcode 1 python benchmarks/sanitize_mpc.py

Arguments are indices of cases, from 0; without any all are solved.  Also checks the results against
float64, so that a clean report is one of kernels that work.
"""

from __future__ import annotations

import logging
import sys
from dataclasses import replace

import jax
import numpy as np
from warp_only import warp_only

from warpmpc import MPCSolver, StagedSettings, systems
from warpmpc.engines.onchip.launch import OnchipKernel

BATCHES, ON_CHIP = (1, 33), (1, 5)  # where each problem is a warp of its own
ITERATIONS = {"sqp_iter": 2, "admm_iter": 4}  # the tools take a thousand times as long
LIMIT = 1e-2  # relative to the largest variable
# System, horizon, sides (0: one warp per problem), iterations between checks of residuals, problems
# of a block.
CASES = (
    ("pendulum", 12, 1, 0, 1),
    ("pendulum", 12, 2, 2, 1),
    ("pendulum", 40, 0, 0, 1),
    ("pendulum", 40, 0, 2, 1),
    ("car", 50, 0, 0, 1),
    ("cartpole", 160, 0, 2, 1),  # more shared memory than a kernel may declare
    ("quadrotor", 6, 2, 0, 1),
    ("car", 50, 0, 0, 4),
)
_LOG = logging.getLogger("sanitize_mpc")


def main(numbers: list[int]) -> None:
    """Solves some cases, or all."""
    logging.basicConfig(format="%(message)s")
    _LOG.setLevel(logging.INFO)
    jax.config.update("jax_enable_x64", True)
    for name, horizon, sides, checks, together in [CASES[i] for i in numbers] or CASES:
        # Batches that fill a device are too large for the tools.
        OnchipKernel.together = lambda _, __, ends, count=together: count
        system = systems.make(name, horizon=horizon, **ITERATIONS)
        qp = replace(system.settings.qp_settings("float32"), check_every=checks)
        settings = replace(system.settings, qp=qp)
        double = MPCSolver(system.problem, settings, "float64", "sparse")
        if sides:
            settings, staged = replace(settings, fused=True), StagedSettings(sides=sides)
            single = MPCSolver(system.problem, settings, "float32", "staged", staged=staged)
        else:
            single = MPCSolver(system.problem, settings, "float32", "onchip")
        for batch in BATCHES if sides else ON_CHIP:
            x0 = system.sample(batch, 0)
            with warp_only():
                wanted = np.asarray(double.solve(x0).z)
                found = jax.block_until_ready(single.solve(x0.astype("float32")).z)
            error, size = np.abs(np.asarray(found) - wanted).max(), np.abs(wanted).max()
            _LOG.info("%s, %d sides, checks %d, %d: %.1e", name, sides, checks, batch, error)
            if not error < LIMIT * size:
                raise SystemExit("wrong result")


if __name__ == "__main__":
    main([int(number) for number in sys.argv[1:]])
