"""The table-driven LDL' engine on device arrays in internal layout.

Reads: an `LDLSchedule`.  Produces: `factor` and `solve` on tiles ``[tiles, rows, 32]`` (or on
batch-first arrays in the baseline layout), callable under `jax.jit` and `jax.vmap`.
"""

from __future__ import annotations

from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np

from warpmpc.kernels.ffi import fold_vmap, launch
from warpmpc.kernels.ldl_kernels import factor_kernel, solve_kernel
from warpmpc.kernels.tiles import LANES
from warpmpc.symbolic.schedule import FactorSchedule, LDLSchedule, SolveSchedule


@dataclass(frozen=True)
class LaunchShape:
    """Launch geometry: warps that share one tile, and threads per block when it is one warp."""

    warps: int = 1
    block: int = 64
    registers: int | None = None

    def threads(self, n_problems: int, *, tiled: bool) -> tuple[int, int]:
        """Number of threads (a multiple of the block) and threads per block."""
        block = LANES * self.warps if self.warps > 1 else self.block
        wanted = n_problems * LANES * self.warps if tiled else n_problems
        return -(-wanted // block) * block, block


class TableLDL:
    """Factorises and solves with the tables of one schedule."""

    def __init__(
        self, schedule: LDLSchedule, dtype: str, *, tiled: bool, scale: np.ndarray | None = None
    ):
        """Puts the tables of a schedule on the device.

        Args:
            schedule: What to do in which order.
            dtype: "float32" or "float64".
            tiled: Tiles of 32 problems, or the batch-first baseline.
            scale: Factor on each stored entry of K (default ones).
        """
        elimination = schedule.elimination
        self.dtype, self.tiled = dtype, tiled
        self.n, self.n_L = elimination.n, max(elimination.nnz_L, 1)
        nnz_K = int(max(elimination.K_to_D.max(), elimination.K_to_L.max(initial=-1))) + 1
        scale = np.ones(nnz_K) if scale is None else scale
        with jax.ensure_compile_time_eval():
            self._factor_tables = [
                jnp.asarray(scale, dtype=dtype),
                *(jnp.asarray(t) for t in _factor_tables(schedule)),
            ]
            node = elimination.perm
            self._solve_tables = [
                jnp.asarray(table)
                for part in (schedule.forward, schedule.backward)
                for table in _solve_tables(part, node)
            ]

    def factor(self, K: jax.Array, shape: LaunchShape) -> tuple[jax.Array, jax.Array]:
        """L and inverse pivots of every problem; pivots are stored in the caller's order."""

        def call(K: jax.Array) -> tuple[jax.Array, ...]:
            outputs = {"L_out": self._like(K, self.n_L), "D_inv_out": self._like(K, self.n)}
            inputs = [K, *self._factor_tables, shape.warps]
            threads, block = shape.threads(K.shape[0], tiled=self.tiled)
            kernel = factor_kernel(self.dtype, tiled=self.tiled, registers=shape.registers)
            return launch(kernel, inputs, outputs, threads=threads, block=block)

        L, D_inv = fold_vmap(call)(K)
        return L, D_inv

    def solve(
        self, L: jax.Array, D_inv: jax.Array, rhs: jax.Array, shape: LaunchShape
    ) -> jax.Array:
        """Solution for one right-hand side per problem, in the caller's order."""

        def call(L: jax.Array, D_inv: jax.Array, rhs: jax.Array) -> tuple[jax.Array, ...]:
            inputs = [L, D_inv, rhs, *self._solve_tables, shape.warps]
            threads, block = shape.threads(L.shape[0], tiled=self.tiled)
            kernel = solve_kernel(self.dtype, tiled=self.tiled, registers=shape.registers)
            outputs = {"x_out": self._like(L, self.n)}
            return launch(kernel, inputs, outputs, threads=threads, block=block)

        return fold_vmap(call)(L, D_inv, rhs)[0]

    def _like(self, array: jax.Array, rows: int) -> tuple[int, ...]:
        return (array.shape[0], rows, LANES) if self.tiled else (array.shape[0], rows)


def _at_least_one_row(table: np.ndarray) -> np.ndarray:
    """Zero-sized buffers are not portable across FFI versions."""
    return table if len(table) else np.full((1, *table.shape[1:]), -1, dtype=table.dtype)


def _factor_tables(schedule: LDLSchedule) -> list[np.ndarray]:
    """Tables in the order of the kernel's arguments; nodes become the caller's indices."""
    elimination, part = schedule.elimination, schedule.factor
    node = elimination.perm
    rows = part.rows.table.copy()
    rows[:, 1] = np.where(rows[:, 0] >= 0, node[rows[:, 1]], -1)
    columns = np.stack([node[part.items], elimination.K_to_D[part.items]], axis=1)
    entries = np.stack([part.entries, elimination.K_to_L[part.entries]], axis=1)
    tables = [_factor_segments(part), columns, entries, part.entry_ptr, rows, part.pairs.table]
    return [_at_least_one_row(table).astype(np.int32) for table in tables]


def _factor_segments(part: FactorSchedule) -> np.ndarray:
    bounds = part.rows.bounds
    columns = [bounds[:-1], bounds[1:], part.parallel, part.barrier]
    columns += [part.rows.widths, part.rows.starts, part.pairs.widths, part.pairs.starts]
    return np.stack([np.asarray(column, dtype=np.int32) for column in columns], axis=1)


def _solve_tables(part: SolveSchedule, node: np.ndarray) -> list[np.ndarray]:
    padded = part.padded
    table = padded.table.copy()
    table[:, 1] = np.where(table[:, 0] >= 0, node[table[:, 1]], -1)
    columns = [padded.bounds[:-1], padded.bounds[1:], part.parallel, part.barrier]
    columns += [padded.widths, padded.starts]
    segments = np.stack([np.asarray(column, dtype=np.int32) for column in columns], axis=1)
    return [segments, node[part.items].astype(np.int32), _at_least_one_row(table)]
