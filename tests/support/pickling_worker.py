"""What a worker process of `test_pickling` does; it imports as little as possible before."""

from __future__ import annotations

import jax

jax.config.update("jax_enable_x64", True)  # before a solver of float64 is unpickled


def solve_elsewhere(solver, x0, qp, data, penalties):
    """Solutions of solvers that came from another process, and how many kernels were compiled."""
    from warpmpc.engines.runtime.announcing import ANNOUNCER

    results = solver.solve(x0), qp.solve(*data, penalties=penalties)
    return *results, ANNOUNCER.built
