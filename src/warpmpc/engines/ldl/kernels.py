"""Table-driven LDL' kernels: factorisation, and forward plus backward solve in one launch.

Reads: tables of `engines.ldl.schedule`, tiled (or batch-first) arrays.  Produces: factors (entries
of L, then inverse pivots) and solutions.  `engines.ldl.source` says how threads map to tiles.
"""

from functools import cache

import warp as wp

from warpmpc.engines.ldl.source import FACTOR, SOLVE, specialise
from warpmpc.engines.ldl.window import CHUNK
from warpmpc.engines.ldl.window_source import WINDOW_SOLVE

LEAD = 2  # chunks of the factor in flight per warp, beside the one in use
SCALARS = {"float32": wp.float32, "float64": wp.float64}
_WARPS_PER_SM = (1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 18, 20, 22, 24)


@cache
def factor_kernel(dtype: str, *, tiled: bool, registers: int) -> wp.Kernel:
    """Kernel that factorises the problems of the tiles marked in `todo_in`; see `FACTOR`.

    Batch-first problems are factorised whatever it says.
    """
    real = wp.array3d(dtype=SCALARS[dtype]) if tiled else wp.array2d(dtype=SCALARS[dtype])
    table, index = wp.array2d(dtype=wp.int32), wp.array1d(dtype=wp.int32)
    vector = wp.array1d(dtype=SCALARS[dtype])

    @wp.func_native(specialise(FACTOR, dtype, tiled=tiled))
    def factor_problem(
        K_in: real,
        todo_in: index,
        scale_in: vector,
        segments_in: table,
        columns_in: table,
        entries_in: table,
        entry_ptr_in: index,
        rows_in: table,
        pairs_in: table,
        warps: wp.int32,
        thread: wp.int32,
        factor_io: real,
    ): ...

    @wp.kernel(module="unique", enable_backward=False, cuda_max_registers=registers)
    def factor(
        # In:
        K_in: real,
        todo_in: index,
        scale_in: vector,
        segments_in: table,
        columns_in: table,
        entries_in: table,
        entry_ptr_in: index,
        rows_in: table,
        pairs_in: table,
        warps: wp.int32,
        # Out, or in and out:
        factor_io: real,
    ):
        thread = wp.tid()
        factor_problem(
            K_in,
            todo_in,
            scale_in,
            segments_in,
            columns_in,
            entries_in,
            entry_ptr_in,
            rows_in,
            pairs_in,
            warps,
            thread,
            factor_io,
        )

    return factor


@cache
def solve_kernel(dtype: str, *, tiled: bool, registers: int) -> wp.Kernel:
    """Kernel that solves by tables, unknowns in device memory; see `SOLVE`."""
    real = wp.array3d(dtype=SCALARS[dtype]) if tiled else wp.array2d(dtype=SCALARS[dtype])
    table, index = wp.array2d(dtype=wp.int32), wp.array1d(dtype=wp.int32)

    @wp.func_native(specialise(SOLVE, dtype, tiled=tiled))
    def solve_problem(
        factor_in: real,
        rhs_in: real,
        forward_segments_in: table,
        forward_node_in: index,
        forward_table_in: table,
        backward_segments_in: table,
        backward_node_in: index,
        backward_table_in: table,
        warps: wp.int32,
        thread: wp.int32,
        x_out: real,
    ): ...

    @wp.kernel(module="unique", enable_backward=False, cuda_max_registers=registers)
    def solve(
        # In:
        factor_in: real,
        rhs_in: real,
        forward_segments_in: table,
        forward_node_in: index,
        forward_table_in: table,
        backward_segments_in: table,
        backward_node_in: index,
        backward_table_in: table,
        warps: wp.int32,
        # Out:
        x_out: real,
    ):
        thread = wp.tid()
        solve_problem(
            factor_in,
            rhs_in,
            forward_segments_in,
            forward_node_in,
            forward_table_in,
            backward_segments_in,
            backward_node_in,
            backward_table_in,
            warps,
            thread,
            x_out,
        )

    return solve


@cache
def window_kernel(dtype: str, *, scratch: int) -> wp.Kernel:
    """Kernel that solves with the unknowns in a window of shared memory; see `WINDOW_SOLVE`.

    Args:
        dtype: "float32" or "float64".
        scratch: Numbers of shared memory per warp, from `window_scratch`.
    """
    scalar = SCALARS[dtype]
    real = wp.array3d(dtype=scalar)
    table, index = wp.array2d(dtype=wp.int32), wp.array1d(dtype=wp.int32)

    @wp.func_native(specialise(WINDOW_SOLVE, dtype, tiled=True, LEAD=LEAD))
    def solve_problem(
        factor_in: real,
        rhs_in: real,
        forward_segments_in: table,
        forward_items_in: table,
        forward_rows_in: table,
        forward_slots_in: table,
        forward_brings_in: index,
        backward_segments_in: table,
        backward_items_in: table,
        backward_rows_in: table,
        backward_slots_in: table,
        backward_brings_in: index,
        zero: wp.int32,
        scratch: wp.tile[scalar, scratch],
        thread: wp.int32,
        x_out: real,
    ): ...

    @wp.kernel(module="unique", enable_backward=False)
    def window_solve(
        # In:
        factor_in: real,
        rhs_in: real,
        forward_segments_in: table,
        forward_items_in: table,
        forward_rows_in: table,
        forward_slots_in: table,
        forward_brings_in: index,
        backward_segments_in: table,
        backward_items_in: table,
        backward_rows_in: table,
        backward_slots_in: table,
        backward_brings_in: index,
        zero: wp.int32,
        # Out:
        x_out: real,
    ):
        thread = wp.tid()
        memory = wp.tile_empty(shape=scratch, dtype=scalar, storage="shared")
        solve_problem(
            factor_in,
            rhs_in,
            forward_segments_in,
            forward_items_in,
            forward_rows_in,
            forward_slots_in,
            forward_brings_in,
            backward_segments_in,
            backward_items_in,
            backward_rows_in,
            backward_slots_in,
            backward_brings_in,
            zero,
            memory,
            thread,
            x_out,
        )

    return window_solve


def window_scratch(n_slots: int, dtype: str, limit: int) -> int | None:
    """Shared memory of the window kernel in numbers per warp; None if `limit` bytes are too few.

    Sizes are rounded up to what the same number of warps per multiprocessor can have, so that a
    handful of kernels serves all patterns.
    """
    item = 4 if dtype == "float32" else 8
    needed = ((2 * LEAD + 3) * CHUNK + n_slots) * 32 * item
    needed += (LEAD + 1) * CHUNK * 4 + (LEAD + 2) * CHUNK * 8
    # A multiprocessor has 1 KiB more than one block may use; each block costs it 1 KiB, and Warp
    # keeps 4 bytes per thread.
    fitting = [((limit + 1024) // warps - 1024 - 128) // 16 * 16 for warps in _WARPS_PER_SM]
    return next((size // item for size in reversed(fitting) if size >= needed), None)
