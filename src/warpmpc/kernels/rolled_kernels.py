"""Warp kernel of the rolled ADMM loop; see `staged_native`."""

from functools import cache

import warp as wp

from warpmpc.kernels.ldl_kernels import LEAD, SCALARS
from warpmpc.kernels.staged_native import rolled_admm_text


@cache
def rolled_admm_kernel(dtype: str, scratch: int, soft: bool = False) -> wp.Kernel:
    """Kernel of the ADMM loop by windowed sweeps.

    Args:
        dtype: "float32" or "float64".
        scratch: Numbers of shared memory per warp, from `window_scratch`.
        soft: Whether there are soft rows.
    """
    scalar = SCALARS[dtype]
    real, whole = wp.array3d(dtype=scalar), wp.array3d(dtype=wp.int32)
    table, vector, index = (
        wp.array2d(dtype=wp.int32),
        wp.array1d(dtype=scalar),
        wp.array1d(dtype=int),
    )

    @wp.func_native(rolled_admm_text(dtype, LEAD, soft=soft))
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
        n_L: wp.int32,
        zero: wp.int32,
        check_every: wp.int32,
        span: wp.int32,
        max_iter: wp.int32,
        scaled: wp.int32,
        scratch: wp.tile[scalar, scratch],
        thread: wp.int32,
        X_io: real,
        status_io: whole,
        iterations_io: whole,
        report_io: real,
        W_out: real,
        V_out: real,
    ): ...

    # As many as leave room for the warps that shared memory admits.
    @wp.kernel(module="unique", enable_backward=False, cuda_max_registers=128)
    def rolled_admm(
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
        n_L: wp.int32,
        zero: wp.int32,
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
            n_L,
            zero,
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

    return rolled_admm
