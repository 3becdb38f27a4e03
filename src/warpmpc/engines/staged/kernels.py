"""Warp kernels of the staged QP engine, built around generated text; see `staged_native`."""

from functools import cache

import warp as wp

from warpmpc.engines.ldl.kernels import SCALARS
from warpmpc.engines.staged.loop_source import staged_admm_source, staged_factor_source
from warpmpc.engines.staged.stage_source import SideLayout


@cache
def staged_factor_kernel(
    generated: str, dtype: str, registers: int, layout: SideLayout
) -> wp.Kernel:
    """Kernel that eliminates the tiles marked in `todo`; other tiles keep their factors.

    Args:
        generated: Text of `engines.staged.stage_source.factor_source`.
        dtype: "float32" or "float64".
        registers: Most registers per thread.
        layout: Of the chains.
    """
    real, flags = wp.array3d(dtype=SCALARS[dtype]), wp.array1d(dtype=wp.int32)

    @wp.func_native(staged_factor_source(generated, dtype, layout))
    def factor_problem(
        K_in: real, todo_in: flags, n_L: int, prefetch: int, thread: int, factor_io: real
    ): ...

    @wp.kernel(module="unique", enable_backward=False, cuda_max_registers=registers)
    def staged_factor(
        # In:
        K_in: real,
        todo_in: flags,
        n_L: wp.int32,
        prefetch: wp.int32,
        # In and out:
        factor_io: real,
    ):
        thread = wp.tid()
        factor_problem(K_in, todo_in, n_L, prefetch, thread, factor_io)

    return staged_factor


@cache
def staged_admm_kernel(
    generated: str, dtype: str, registers: int, layout: SideLayout, soft: bool = False
) -> wp.Kernel:
    """Kernel of the ADMM loop with its termination check.

    Args:
        generated: Text of one iteration, from `engines.staged.stage_source.iteration_source`.
        dtype: "float32" or "float64".
        registers: Most registers per thread.
        layout: Of the chains.
        soft: Whether there are soft rows.
    """
    scalar = SCALARS[dtype]
    real, whole = wp.array3d(dtype=scalar), wp.array3d(dtype=wp.int32)
    table, vector, index = (
        wp.array2d(dtype=wp.int32),
        wp.array1d(dtype=scalar),
        wp.array1d(dtype=int),
    )

    @wp.func_native(staged_admm_source(generated, dtype, layout, soft=soft))
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
        n_L: int,
        prefetch: int,
        check_every: int,
        span: int,
        max_iter: int,
        scaled: int,
        thread: int,
        X_io: real,
        status_io: whole,
        iterations_io: whole,
        report_io: real,
        W_out: real,
        V_out: real,
    ): ...

    @wp.kernel(module="unique", enable_backward=False, cuda_max_registers=registers)
    def staged_admm(
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
        n_L: wp.int32,
        prefetch: wp.int32,
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
            n_L,
            prefetch,
            check_every,
            span,
            max_iter,
            scaled,
            thread,
            X_io,
            status_io,
            iterations_io,
            report_io,
            W_out,
            V_out,
        )

    return staged_admm
