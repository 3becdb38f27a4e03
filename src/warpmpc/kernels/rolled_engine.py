"""The rolled QP engine: the ADMM loop in one launch for any elimination, by tables.

The factorisation is that of `TableLDL`; the solves are the windowed sweeps, with the update of the
iteration at the end of each node.  One warp per tile.
"""

from __future__ import annotations

from collections.abc import Collection

import jax
import jax.numpy as jnp
import numpy as np

from warpmpc.kernels.admm_launch import launch_loop, loop_inputs, loop_integers, loop_tables
from warpmpc.kernels.admm_types import LoopData, LoopLimits, LoopState
from warpmpc.kernels.ffi import shared_memory_limit
from warpmpc.kernels.ldl_engine import TableLDL, launch_shape, window_tables
from warpmpc.kernels.ldl_kernels import window_scratch
from warpmpc.kernels.rolled_kernels import rolled_admm_kernel
from warpmpc.kernels.tiles import LANES
from warpmpc.symbolic.program import Program
from warpmpc.symbolic.schedule import LDLSchedule
from warpmpc.symbolic.window import WindowStream

_ROW_FLAG = 1 << 16  # beside the slot of an item: whether it is a row


class RolledKernels:
    """Kernels of one program, driven by tables."""

    def __init__(
        self,
        program: Program,
        schedule: LDLSchedule,
        window: WindowStream,
        n_vars: int,
        dtype: str,
        soft: Collection[int] = (),
    ):
        """Puts the tables on the device.

        Args:
            program: Which order nodes and values are in.
            schedule: Of the factorisation, of `program.in_program_order()`.
            window: Of the solves, likewise; it must fit (`ldl_engine.window_fits`).
            n_vars: Number of variables.
            dtype: "float32" or "float64".
            soft: Nodes that are soft rows.
        """
        self.soft_nodes = np.array(sorted(soft), dtype=np.int32)
        self.program, self.dtype, self._zero = program, dtype, window.zero
        self._ldl = TableLDL(schedule, dtype)
        scratch = window_scratch(window.n_slots, dtype, shared_memory_limit())
        assert scratch is not None, "the caller checks that the window fits"
        self._kernel = rolled_admm_kernel(dtype, scratch, self.soft_nodes.size > 0)
        self._tables = loop_tables(program, n_vars, self.soft_nodes)
        with jax.ensure_compile_time_eval():
            is_row = program.node_order >= n_vars
            self._window = [jnp.asarray(t) for t in rolled_window_tables(window, is_row)]

    def factor(self, K: jax.Array) -> jax.Array:
        """Factors of all tiles: L, then inverse pivots."""
        return self._ldl.factor(K, launch_shape(K.shape[0], self.dtype))

    def refactor(self, factor: jax.Array, K: jax.Array, todo: jax.Array) -> jax.Array:
        """New factors of the tiles marked in `todo`; others stay."""
        return self._ldl.refactor(factor, K, todo, launch_shape(K.shape[0], self.dtype))

    def iterate(
        self,
        factor: jax.Array,
        R: jax.Array,
        data: LoopData,
        state: LoopState,
        numbers: np.ndarray,
        begin: jax.Array,
        limits: LoopLimits,
    ) -> LoopState:
        """Iterates from iteration `begin` on; see `LoopData` for `R`, `numbers`: the tolerances."""
        inputs = loop_inputs(factor, R, data, numbers, begin, self._tables)
        integers = [self.program.n_L, self._zero, *loop_integers(limits, data)]
        threads = state.X.shape[0] * LANES
        return launch_loop(
            self._kernel, [*inputs, *self._window, *integers], state, limits, threads, LANES
        )


def rolled_window_tables(window: WindowStream, is_row: np.ndarray) -> list[np.ndarray]:
    """Tables of a window whose items also say which of them are rows."""
    tables = window_tables(window)
    for at, sweep in ((1, window.forward), (6, window.backward)):
        flags = _ROW_FLAG * is_row[sweep.items[:, 0]].astype(np.int32)
        tables[at] = sweep.items + np.stack([np.zeros_like(flags), flags], axis=1)
    return tables
