"""A small case of every LDL kernel, to be run under NVIDIA's compute-sanitizer.

    compute-sanitizer --tool memcheck --error-exitcode 1 python benchmarks/sanitize_ldl.py
    compute-sanitizer --tool racecheck --error-exitcode 1 python benchmarks/sanitize_ldl.py

Launches the kernels through Warp alone, so that the tools watch nothing else, and checks the
solutions, so that a clean report is one of a run that did the work.  Without CUDA: on the CPU.
"""

import numpy as np
import warp as wp

from warpmpc.engines.ldl.launch import (
    LaunchShape,
    factor_tables,
    solve_tables,
    window_tables,
)
from warpmpc.engines.ldl.schedule import build_schedule
from warpmpc.engines.ldl.source import factor_kernel, solve_kernel
from warpmpc.engines.ldl.window import build_window
from warpmpc.engines.ldl.window_source import window_kernel, window_scratch
from warpmpc.symbolic.elimination import eliminate
from warpmpc.symbolic.ordering import order
from warpmpc.symbolic.pattern import symmetric_upper
from warpmpc.systems.patterns import cartpole

TILES = 2
TOLERANCE = {"float32": 5e-6, "float64": 1e-12}


class Case:
    """64 quasi-definite matrices of a short cartpole problem, in tiles."""

    def __init__(self, dtype: str):
        """Draws values and analyses the pattern."""
        system = cartpole(horizon=4)
        self.pattern, _, _ = symmetric_upper(system.K)
        self.elimination = eliminate(self.pattern, order(self.pattern, "amd"))
        rng = np.random.default_rng(0)
        n, nnz = self.pattern.n_cols, self.pattern.nnz
        self.values = 0.3 * rng.standard_normal((TILES, nnz, 32))
        sign = np.where(np.arange(n) < system.P.shape[0], 2.0, -2.0)
        self.values[:, self.pattern.row_idx == self.pattern.col_idx] = sign[None, :, None]
        self.rhs = rng.standard_normal((TILES, n, 32))
        self.dtype, self.n = dtype, n
        self.n_factor = self.elimination.nnz_L + n

    def array(self, shape: tuple[int, ...]) -> wp.array:
        """An output filled with NaN: what a kernel does not write shows."""
        return wp.array(np.full(shape, np.nan, dtype=self.dtype))

    def residual(self, x: np.ndarray) -> float:
        """Largest relative residual over all problems, in float64."""
        full = np.zeros((TILES, 32, self.n, self.n))
        rows, cols = self.pattern.row_idx, self.pattern.col_idx
        full[:, :, rows, cols] = full[:, :, cols, rows] = self.values.transpose(0, 2, 1)
        product = np.einsum("tlij,tjl->til", full, x.astype(np.float64))
        return float(np.abs(product - self.rhs).max() / np.abs(self.rhs).max())


def on_device(tables: list[np.ndarray]) -> list[wp.array]:
    """Tables as Warp arrays."""
    return [wp.array(np.ascontiguousarray(table, dtype=np.int32)) for table in tables]


def solve_all(case: Case, warps: int, *, level_scheduling: bool) -> dict[str, float]:
    """Residual of each solve kernel after one factorisation."""
    shape = LaunchShape(warps=warps)
    threads, block = shape.threads(TILES, tiled=True)
    schedule = build_schedule(
        case.elimination, 16, level_scheduling=level_scheduling, unrolled=True
    )
    K, rhs = wp.array(case.values.astype(case.dtype)), wp.array(case.rhs.astype(case.dtype))
    scale = wp.array(np.ones(case.pattern.nnz, dtype=case.dtype))
    factor = case.array((TILES, case.n_factor, 32))
    everything = wp.array(np.ones(TILES * 32, dtype=np.int32))
    inputs = [K, everything, scale, *on_device(factor_tables(schedule)), warps]
    kernel = factor_kernel(case.dtype, tiled=True, registers=64).kernel()
    wp.launch(kernel, threads, inputs=inputs, outputs=[factor], block_dim=block)
    by_tables, by_window = case.array(case.rhs.shape), case.array(case.rhs.shape)
    inputs = [factor, rhs, *on_device(solve_tables(schedule)), warps]
    kernel = solve_kernel(case.dtype, tiled=True, registers=64).kernel()
    wp.launch(kernel, threads, inputs=inputs, outputs=[by_tables], block_dim=block)
    window = build_window(case.elimination, 16)
    scratch = window_scratch(window.n_slots, case.dtype, 227 * 1024)
    assert scratch is not None
    inputs = [factor, rhs, *on_device(window_tables(window)), window.zero]
    kernel = window_kernel(case.dtype, scratch=scratch).kernel()
    wp.launch(kernel, TILES * 32, inputs=inputs, outputs=[by_window], block_dim=32)
    return {
        "tables": case.residual(by_tables.numpy()),
        "window": case.residual(by_window.numpy()),
    }


def solve_batch_first(case: Case) -> float:
    """Residual of the baseline kernels, a thread per problem."""
    threads, block = LaunchShape().threads(TILES * 32, tiled=False)
    schedule = build_schedule(case.elimination, 16, level_scheduling=True, unrolled=True)
    K, rhs = (
        wp.array(values.transpose(0, 2, 1).reshape(TILES * 32, -1).astype(case.dtype))
        for values in (case.values, case.rhs)
    )
    scale = wp.array(np.ones(case.pattern.nnz, dtype=case.dtype))
    factor, x = case.array((TILES * 32, case.n_factor)), case.array((TILES * 32, case.n))
    everything = wp.array(np.ones(TILES * 32, dtype=np.int32))
    inputs = [K, everything, scale, *on_device(factor_tables(schedule)), 1]
    kernel = factor_kernel(case.dtype, tiled=False, registers=64).kernel()
    wp.launch(kernel, threads, inputs=inputs, outputs=[factor], block_dim=block)
    inputs = [factor, rhs, *on_device(solve_tables(schedule)), 1]
    kernel = solve_kernel(case.dtype, tiled=False, registers=64).kernel()
    wp.launch(kernel, threads, inputs=inputs, outputs=[x], block_dim=block)
    return case.residual(x.numpy().reshape(TILES, 32, -1).transpose(0, 2, 1))


def main() -> None:
    """Every kernel, dtype and schedule."""
    for dtype, tolerance in TOLERANCE.items():
        case = Case(dtype)
        found = {"batch-first": solve_batch_first(case)}
        for warps, levels in ((1, False), (4, True)):
            for name, residual in solve_all(case, warps, level_scheduling=levels).items():
                found[f"{warps} warps, {name}"] = residual
        for name, residual in found.items():
            print(f"{dtype}, {name}: relative residual {residual:.1e}")  # noqa: T201
            assert residual < tolerance


if __name__ == "__main__":
    main()
