"""Table-driven LDL' kernels: factorisation, and forward plus backward solve in one launch.

Reads: tables of `symbolic.schedule`, tiled (or batch-first) arrays.  Produces: L, the inverse pivots,
solutions.  `problem` below means the thread index; see `ldl_native` for how threads map to tiles.
"""

from functools import cache

import warp as wp

from warpmpc.kernels.ldl_native import FACTOR, SOLVE, specialise

_SCALARS = {"float32": wp.float32, "float64": wp.float64}


@cache
def factor_kernel(dtype: str, *, tiled: bool, registers: int | None = None) -> wp.Kernel:
    """Kernel that factorises every problem; see `FACTOR`."""
    real = wp.array3d(dtype=_SCALARS[dtype]) if tiled else wp.array2d(dtype=_SCALARS[dtype])
    table, index = wp.array2d(dtype=wp.int32), wp.array1d(dtype=wp.int32)
    vector = wp.array1d(dtype=_SCALARS[dtype])

    @wp.func_native(specialise(FACTOR, dtype, tiled=tiled))
    def factor_problem(
        K_in: real,
        scale_in: vector,
        segments_in: table,
        columns_in: table,
        entries_in: table,
        entry_ptr_in: index,
        rows_in: table,
        pairs_in: table,
        warps: wp.int32,
        thread: wp.int32,
        L_out: real,
        D_inv_out: real,
    ): ...

    @wp.kernel(module="unique", enable_backward=False, cuda_max_registers=registers)
    def factor(
        # In:
        K_in: real,
        scale_in: vector,
        segments_in: table,
        columns_in: table,
        entries_in: table,
        entry_ptr_in: index,
        rows_in: table,
        pairs_in: table,
        warps: wp.int32,
        # Out:
        L_out: real,
        D_inv_out: real,
    ):
        thread = wp.tid()
        factor_problem(
            K_in,
            scale_in,
            segments_in,
            columns_in,
            entries_in,
            entry_ptr_in,
            rows_in,
            pairs_in,
            warps,
            thread,
            L_out,
            D_inv_out,
        )

    return factor


@cache
def solve_kernel(dtype: str, *, tiled: bool, registers: int | None = None) -> wp.Kernel:
    """Kernel that solves with every factor; see `SOLVE`."""
    real = wp.array3d(dtype=_SCALARS[dtype]) if tiled else wp.array2d(dtype=_SCALARS[dtype])
    table, index = wp.array2d(dtype=wp.int32), wp.array1d(dtype=wp.int32)

    @wp.func_native(specialise(SOLVE, dtype, tiled=tiled))
    def solve_problem(
        L_in: real,
        D_inv_in: real,
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
        L_in: real,
        D_inv_in: real,
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
            L_in,
            D_inv_in,
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
