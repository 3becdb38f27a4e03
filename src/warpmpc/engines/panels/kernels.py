"""Warp kernels of the panel engine: factorisation and ADMM loop by panels."""

from functools import cache

import warp as wp

from warpmpc.engines.ldl.kernels import SCALARS
from warpmpc.engines.panels.factor_source import panel_factor_source
from warpmpc.engines.panels.loop_source import panel_admm_source


@cache
def panel_factor_kernel(dtype: str, warps: int, scratch: int, registers: int) -> wp.Kernel:
    """Kernel that factorises the tiles marked in `todo`; other tiles keep their factors.

    Args:
        dtype: "float32" or "float64".
        warps: Per tile.
        scratch: Numbers of shared memory per tile.
        registers: Most registers per thread.
    """
    scalar = SCALARS[dtype]
    real, table, index = wp.array3d(dtype=scalar), wp.array2d(dtype=int), wp.array1d(dtype=int)

    @wp.func_native(panel_factor_source(dtype, warps))
    def factor_problem(
        K_in: real,
        todo_in: index,
        panels_in: table,
        leaves_in: table,
        sources_in: index,
        working_in: table,
        records_in: table,
        begin_in: index,
        n_L: int,
        n_working: int,
        scratch: wp.tile[scalar, scratch],
        thread: int,
        factor_io: real,
    ): ...

    @wp.kernel(module="unique", enable_backward=False, cuda_max_registers=registers)
    def panel_factor(
        # In:
        K_in: real,
        todo_in: index,
        panels_in: table,
        leaves_in: table,
        sources_in: index,
        working_in: table,
        records_in: table,
        begin_in: index,
        n_L: wp.int32,
        n_working: wp.int32,
        # Out, or in and out:
        factor_io: real,
    ):
        thread = wp.tid()
        memory = wp.tile_empty(shape=scratch, dtype=scalar, storage="shared")
        factor_problem(
            K_in,
            todo_in,
            panels_in,
            leaves_in,
            sources_in,
            working_in,
            records_in,
            begin_in,
            n_L,
            n_working,
            memory,
            thread,
            factor_io,
        )

    return panel_factor


@cache
def panel_admm_kernel(
    dtype: str, warps: int, lead: int, scratch: int, registers: int, soft: bool
) -> wp.Kernel:
    """Kernel of the ADMM loop with its termination check.

    Args:
        dtype: "float32" or "float64".
        warps: That gather, per tile.
        lead: Records that each of them has in flight.
        scratch: Numbers of shared memory per tile.
        registers: Most registers per thread.
        soft: Whether there are soft rows.
    """
    scalar = SCALARS[dtype]
    real, whole = wp.array3d(dtype=scalar), wp.array3d(dtype=wp.int32)
    table, vector, index = (
        wp.array2d(dtype=wp.int32),
        wp.array1d(dtype=scalar),
        wp.array1d(dtype=int),
    )

    @wp.func_native(panel_admm_source(dtype, warps, lead, soft=soft))
    def iterate_problem(
        factor_in: real,
        K_in: real,
        Q_in: real,
        U_in: real,
        R_in: real,
        S_in: real,
        size_in: real,
        cost_in: real,
        nodes_in: table,
        terms_in: table,
        numbers_in: vector,
        begin_in: index,
        forward_records_in: table,
        forward_begin_in: index,
        forward_triangles_in: table,
        backward_records_in: table,
        backward_begin_in: index,
        backward_triangles_in: table,
        n_L: int,
        zero: int,
        window_rows: int,
        check_every: int,
        span: int,
        max_iter: int,
        scaled: int,
        scratch: wp.tile[scalar, scratch],
        thread: int,
        X_io: real,
        status_io: whole,
        iterations_io: whole,
        report_io: real,
        W_out: real,
        V_out: real,
    ): ...

    @wp.kernel(module="unique", enable_backward=False, cuda_max_registers=registers)
    def panel_admm(
        # In:
        factor_in: real,
        K_in: real,
        Q_in: real,
        U_in: real,
        R_in: real,
        S_in: real,
        size_in: real,
        cost_in: real,
        nodes_in: table,
        terms_in: table,
        numbers_in: vector,
        begin_in: index,
        forward_records_in: table,
        forward_begin_in: index,
        forward_triangles_in: table,
        backward_records_in: table,
        backward_begin_in: index,
        backward_triangles_in: table,
        n_L: wp.int32,
        zero: wp.int32,
        window_rows: wp.int32,
        check_every: wp.int32,
        span: wp.int32,
        max_iter: wp.int32,
        scaled: wp.int32,
        # In and out:
        X_io: real,
        status_io: whole,
        iterations_io: whole,
        report_io: real,
        # Out:
        W_out: real,
        V_out: real,
    ):
        thread = wp.tid()
        memory = wp.tile_empty(shape=scratch, dtype=scalar, storage="shared")
        iterate_problem(
            factor_in,
            K_in,
            Q_in,
            U_in,
            R_in,
            S_in,
            size_in,
            cost_in,
            nodes_in,
            terms_in,
            numbers_in,
            begin_in,
            forward_records_in,
            forward_begin_in,
            forward_triangles_in,
            backward_records_in,
            backward_begin_in,
            backward_triangles_in,
            n_L,
            zero,
            window_rows,
            check_every,
            span,
            max_iter,
            scaled,
            memory,
            thread,
            X_io,
            status_io,
            iterations_io,
            report_io,
            W_out,
            V_out,
        )

    return panel_admm
