"""Solves whose XLA programs are compiled without optimisation: half the time, the same results."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from warpmpc import MPCSolver, Solution


def solve_quickly(
    solver: MPCSolver, x0: np.ndarray, params: dict[str, np.ndarray] | None = None
) -> Solution:
    """`solver.solve(x0, params)` for a test that solves once."""
    given = jax.tree.map(lambda a: jnp.asarray(a, dtype=solver.dtype), (x0, params))
    options = {"xla_backend_optimization_level": 0}
    return jax.jit(solver.solve).lower(*given).compile(compiler_options=options)(*given)
