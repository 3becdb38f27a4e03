"""Solves whose XLA programs are compiled without optimisation: half the time, the same results."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from warpmpc import MPCSolver, Solution


def solve_quickly(solver: MPCSolver, x0: np.ndarray) -> Solution:
    """`solver.solve(x0)` for a test that solves once."""
    x0 = jnp.asarray(x0, dtype=solver.dtype)
    options = {"xla_backend_optimization_level": 0}
    return jax.jit(solver.solve).lower(x0).compile(compiler_options=options)(x0)
