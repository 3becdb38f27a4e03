"""The launch that all ADMM kernels share: argument order, what changes in place, scratch memory."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import warp as wp

from warpmpc.engines.runtime.admm_types import LoopData, LoopLimits, LoopState
from warpmpc.engines.runtime.ffi import launch
from warpmpc.engines.runtime.tiles import LANES
from warpmpc.symbolic.storage_order import StoredElimination, product_terms


def loop_tables(program: StoredElimination, n_vars: int, soft: np.ndarray) -> list[jax.Array]:
    """Tables of products; a soft row is marked by two more than its place in `soft`."""
    nodes, terms = product_terms(program, n_vars)
    nodes[soft, 3] = 2 + np.arange(soft.size)
    with jax.ensure_compile_time_eval():
        return [jnp.asarray(table) for table in (nodes, terms)]


def loop_inputs(
    factor: jax.Array,
    R: jax.Array,
    data: LoopData,
    numbers: np.ndarray,
    begin: jax.Array,
    tables: list[jax.Array],
) -> list[jax.Array]:
    """Arrays that every ADMM kernel reads, in their order."""
    arrays = [factor, data.K, data.Q, data.U, R, data.S, data.size, data.cost]
    return [*arrays, *tables, jnp.asarray(numbers, dtype=factor.dtype), begin.reshape(1)]


def loop_integers(limits: LoopLimits, data: LoopData) -> list[int]:
    """Integers that every ADMM kernel reads, in their order."""
    return [limits.check_every, limits.span, limits.max_iter, int(data.scaled)]


def launch_loop(
    kernel: wp.Kernel,
    inputs: list[jax.Array | int],
    state: LoopState,
    limits: LoopLimits,
    threads: int,
    block: int,
) -> LoopState:
    """Runs a kernel that changes the state in place."""
    tiles, n, _ = state.X.shape
    remembered = n if limits.check_every > 0 else 1  # certificates need the iterate before
    *changed, _, _ = launch(
        kernel,
        [*inputs, state.X, state.status, state.iterations, state.report],
        {"W_out": (tiles, n, LANES), "V_out": (tiles, remembered, LANES)},
        threads=threads,
        block=block,
        in_out=("X_io", "status_io", "iterations_io", "report_io"),
    )
    return LoopState(*changed)
