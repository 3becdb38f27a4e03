"""The table-driven LDL' engine on device arrays in internal layout.

Reads: an `LDLSchedule`.  Produces: `factor` and `solve` on tiles ``[tiles, rows, 32]`` (or on
batch-first arrays in the baseline layout), callable under `jax.jit` and `jax.vmap`.
"""

from __future__ import annotations

from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np

from warpmpc._errors import CodegenError
from warpmpc.codegen.kernel_source import KernelSource
from warpmpc.engines.ldl.schedule import FactorSchedule, LDLSchedule
from warpmpc.engines.ldl.source import factor_kernel, solve_kernel
from warpmpc.engines.ldl.window import WindowStream
from warpmpc.engines.ldl.window_source import window_kernel, window_scratch
from warpmpc.engines.runtime.batching import LANES, fold_vmap
from warpmpc.engines.runtime.ffi import has_async_copies, run, shared_memory_limit

REGISTER_FILE, MAX_REGISTERS = 65536, 255  # per multiprocessor and per thread, since Kepler


@dataclass(frozen=True)
class LaunchShape:
    """Launch geometry: warps that share one tile, and threads per block when it is one warp.

    Attributes:
        warps: Warps per tile; more than one are a block of their own.
        block: Threads per block if a tile has one warp.
        registers: Most registers per thread that a kernel should use.
    """

    warps: int = 1
    block: int = 64
    registers: int = MAX_REGISTERS

    @property
    def threads_per_block(self) -> int:
        """The least number of threads that share a multiprocessor's registers."""
        return LANES * self.warps if self.warps > 1 else self.block

    @property
    def register_limit(self) -> int:
        """`registers`, or the largest number with which one block can start at all."""
        return min(self.registers, REGISTER_FILE // self.threads_per_block)

    def threads(self, n_problems: int, *, tiled: bool) -> tuple[int, int]:
        """Number of threads (a multiple of the block) and threads per block."""
        block = self.threads_per_block
        wanted = n_problems * LANES * self.warps if tiled else n_problems
        return -(-wanted // block) * block, block


DEFAULT_SHAPE = LaunchShape()
# Measured on an H200: with fewer warps than this the device idles, with more they evict each
# other's data; these register limits leave room for them.
SEGMENTS = 256
_WARPS_WANTED = 4096
_REGISTERS = {"float32": 64, "float64": 128}


def launch_shape(tiles: int, dtype: str, *, warps: int | None = None) -> LaunchShape:
    """Shape for level-scheduled kernels on tiles, or with as many warps per tile as given."""
    if warps is None:
        per_tile = max(_WARPS_WANTED // tiles, 1)
        warps = min(max(1 << (per_tile.bit_length() - 1), 2), 16)
    return LaunchShape(warps, registers=_REGISTERS[dtype])


class TableLDL:
    """Factorises and solves with the tables of one schedule."""

    def __init__(
        self,
        schedule: LDLSchedule,
        dtype: str,
        *,
        tiled: bool = True,
        window: WindowStream | None = None,
        scale: np.ndarray | None = None,
    ):
        """Puts the tables of a schedule on the device.

        Args:
            schedule: Order and operands of all operations.
            dtype: "float32" or "float64".
            tiled: Tiles of 32 problems, or the batch-first baseline.
            window: Solve with this stream instead of the schedule's tables (tiles only).
            scale: Factor on each stored entry of K (default ones).
        """
        if not schedule.unrolled:
            raise CodegenError(
                "Kernels need a schedule with unrolled widths: build_schedule(..., unrolled=True)."
            )
        elimination = schedule.elimination
        self.dtype, self.tiled = dtype, tiled
        self.n, self.n_factor = elimination.n, elimination.nnz_L + elimination.n
        nnz_K = int(max(elimination.K_to_D.max(), elimination.K_to_L.max(initial=-1))) + 1
        scale = np.ones(nnz_K) if scale is None else scale
        self._window, self._scratch = window, 0
        if window:
            scratch = window_scratch(window.n_slots, dtype, shared_memory_limit())
            if scratch is None:
                raise CodegenError(
                    f"A window of {window.n_slots} unknowns exceeds shared memory; solve by tables "
                    "instead (window=None)."
                )
            self._scratch = scratch
        for_solve = window_tables(window) if window else solve_tables(schedule)
        with jax.ensure_compile_time_eval():
            self._factor_tables = [
                jnp.asarray(scale, dtype=dtype),
                *(jnp.asarray(table) for table in factor_tables(schedule)),
            ]
            self._solve_tables = [jnp.asarray(table) for table in for_solve]

    def factor(self, K: jax.Array, shape: LaunchShape = DEFAULT_SHAPE) -> jax.Array:
        """Factor of every problem: entries of L, then inverse pivots in the caller's order."""

        def call(K: jax.Array) -> jax.Array:
            everything = jnp.ones(K.shape[0], dtype=jnp.int32)
            outputs = {"factor_io": self._like(K, self.n_factor)}
            return self._factor({"K_in": K, "todo_in": everything}, outputs, shape)

        return fold_vmap(call)(K)

    def refactor(
        self, factor: jax.Array, K: jax.Array, todo: jax.Array, shape: LaunchShape = DEFAULT_SHAPE
    ) -> jax.Array:
        """New factors of the tiles marked in `todo`; other tiles keep theirs."""
        return self._factor({"K_in": K, "todo_in": todo, "factor_io": factor}, {}, shape)

    def _factor(
        self,
        given: dict[str, jax.Array],
        outputs: dict[str, tuple[int, ...]],
        shape: LaunchShape,
    ) -> jax.Array:
        kernel = factor_kernel(self.dtype, tiled=self.tiled, registers=shape.register_limit)
        threads, block = shape.threads(given["K_in"].shape[0], tiled=self.tiled)
        tables = _named(kernel, 2, self._factor_tables)
        arguments = {**given, **tables, "warps": shape.warps}
        return run(kernel, arguments, outputs, threads=threads, block=block)["factor_io"]

    def solve(
        self, factor: jax.Array, rhs: jax.Array, shape: LaunchShape = DEFAULT_SHAPE
    ) -> jax.Array:
        """Solution for one right-hand side per problem, in the caller's order."""
        if self._window:
            kernel = window_kernel(self.dtype, scratch=self._scratch)
            # A warp per tile, alone in its block because shared memory is per block.
            shape, static = LaunchShape(block=LANES), {"zero": self._window.zero}
        else:
            kernel = solve_kernel(self.dtype, tiled=self.tiled, registers=shape.register_limit)
            static = {"warps": shape.warps}
        tables = _named(kernel, 2, self._solve_tables)

        def call(factor: jax.Array, rhs: jax.Array) -> jax.Array:
            given = {"factor_in": factor, "rhs_in": rhs, **tables, **static}
            outputs = {"x_out": self._like(factor, self.n)}
            threads, block = shape.threads(factor.shape[0], tiled=self.tiled)
            return run(kernel, given, outputs, threads=threads, block=block)["x_out"]

        return fold_vmap(call)(factor, rhs)

    def _like(self, array: jax.Array, rows: int) -> tuple[int, ...]:
        return (array.shape[0], rows, LANES) if self.tiled else (array.shape[0], rows)


def _named(kernel: KernelSource, first: int, tables: list[jax.Array]) -> dict[str, jax.Array]:
    """Tables by the names that a kernel declares from its argument `first` on."""
    names = [argument.name for argument in kernel.inputs[first : first + len(tables)]]
    return dict(zip(names, tables, strict=True))


def window_fits(window: WindowStream, dtype: str) -> bool:
    """Whether the default device has the instructions and shared memory that a window needs."""
    return (
        has_async_copies()
        and window_scratch(window.n_slots, dtype, shared_memory_limit()) is not None
    )


def _at_least_one_row(table: np.ndarray) -> np.ndarray:
    """Zero-sized buffers are not portable across FFI versions."""
    return table if len(table) else np.full((1, *table.shape[1:]), -1, dtype=table.dtype)


def factor_tables(schedule: LDLSchedule) -> list[np.ndarray]:
    """Tables of `factor_kernel` in the order of its arguments, nodes as the caller's indices."""
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


def solve_tables(schedule: LDLSchedule) -> list[np.ndarray]:
    """Tables of `solve_kernel` in the order of its arguments."""
    tables: list[np.ndarray] = []
    node = schedule.elimination.perm
    for part in (schedule.forward, schedule.backward):
        padded = part.padded
        table = padded.table.copy()
        table[:, 1] = np.where(table[:, 0] >= 0, node[table[:, 1]], -1)
        columns = [padded.bounds[:-1], padded.bounds[1:], part.parallel, part.barrier]
        columns += [padded.widths, padded.starts]
        segments = np.stack([np.asarray(column, dtype=np.int32) for column in columns], axis=1)
        tables += [segments, node[part.items].astype(np.int32), _at_least_one_row(table)]
    return tables


def window_tables(window: WindowStream) -> list[np.ndarray]:
    """Tables of `window_kernel` in the order of its arguments."""
    sweeps = (window.forward, window.backward)
    return [
        table
        for sweep in sweeps
        for table in (sweep.segments, sweep.items, sweep.rows, sweep.slots, sweep.brings)
    ]
