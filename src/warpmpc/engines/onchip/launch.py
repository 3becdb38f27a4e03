"""One launch per MPC solve: a warp keeps a whole problem on the multiprocessor.

Reads: `OnchipSource` and the tables of its `LaneMemory`.  Produces: `OnchipKernel`, callable under
`jax.jit` on arrays ``[batch, rows, 1]``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from warpmpc.codegen.kernel_source import Argument, KernelSource
from warpmpc.codegen.native.line_search import REPORT_ROWS
from warpmpc.engines.ldl.launch import MAX_REGISTERS, REGISTER_FILE
from warpmpc.engines.onchip.copy_source import OF_LANES, by_fours
from warpmpc.engines.onchip.lane_source import LaneSource, registers_of
from warpmpc.engines.onchip.lanes import LANES
from warpmpc.engines.onchip.memory import LaneMemory
from warpmpc.engines.onchip.solve_source import COUNTED, STATIC_SHARED, OnchipSource, onchip_head
from warpmpc.engines.onchip.solve_template import PHASES
from warpmpc.engines.runtime.ffi import has_gpu, launch, multiprocessors, shared_memory_limit

# Addresses, loop counters, temporaries: what a lane needs beside the numbers that are counted.
_OVERHEAD = 30
# Shared memory that CUDA and Warp take for themselves per block.
_RESERVED = 2048
_OF_WARP = 256  # bytes per problem that a kernel declares beside ours
_SCHEDULERS = 4  # a multiprocessor has so many, each with its warps and its part of the registers
# Registers below which phases other than ADMM spill: 16 warps have as many.
_FEWEST = 128


@dataclass(frozen=True)
class OnchipCounts:
    """How often things happen in a launch.

    Attributes:
        sqp: SQP iterations.
        admm: ADMM iterations of each QP.
        record: Whether every iteration reports.
        restart: Whether QPs start from direction zero.
        profile: Whether cycles of the phases are counted, see `PHASES`.
        ends: Whether converged and failed problems leave before the last iteration.
    """

    sqp: int
    admm: int
    record: bool
    restart: bool
    profile: bool = False
    ends: bool = False

    @property
    def n_status(self) -> int:
        """Rows of `Solved.status`."""
        return 2 + len(PHASES) * self.profile + COUNTED * self.ends


@dataclass(frozen=True, eq=False)
class Solved:
    """What a launch leaves, ``[batch, rows, 1]`` each.

    Attributes:
        z: Trajectories.
        state: d, s and y of the last QP.
        report: `REPORT_ROWS` of the last iteration, or of all.
        status: Status of the last QP (`NO_PART` if there was none: the problem is not active, or
            its z is not finite), the number of ADMM iterations, and where the cycles of `PHASES`
            were counted, these divided by 64.  Where problems may end early, two rows follow: the
            number of iterations, and 1 if the problem has converged.
    """

    z: jax.Array
    state: tuple[jax.Array, jax.Array, jax.Array]
    report: jax.Array
    status: jax.Array


class OnchipKernel:
    """The kernel of one problem; its source is generated and compiled with the first call."""

    def __init__(
        self, memory: LaneMemory, text: OnchipSource, tables: Sequence[np.ndarray], dtype: str
    ):
        """Puts the tables on the device.

        Args:
            memory: Rows of the shared memory.
            text: Writer of the source.
            tables: Tables of the programs: linearise, evaluate.
            dtype: "float32" or "float64".
        """
        self._memory, self._text, self._dtype = memory, text, dtype
        self._kernels: dict[tuple[int, ...], KernelSource] = {}
        with jax.ensure_compile_time_eval():
            self._tables = [_pointed(table, jnp.int32) for table in tables]
            lanes = (self._places(), memory.absent)
            self._lanes = [_pointed(table, jnp.int32) for table in lanes]

    def _places(self) -> np.ndarray:
        """`LaneMemory.in_copy` in bytes, as `engines.onchip.copy_source` reads it."""
        places = self._memory.in_copy * np.dtype(self._dtype).itemsize
        return by_fours(np.pad(places, ((0, -len(places) % 4), (0, 0))).T)

    @cached_property
    def shared_bytes(self) -> int:
        """Shared memory of one problem."""
        return shared_bytes(self._memory, self._dtype)

    def together(self, batch: int, *, ends: bool) -> int:
        """Problems per block.

        Warps at the same place fetch their instructions once, and warps of a block begin together:
        where line searches take different times, cars were a quarter faster.  With two blocks at a
        time, no warp waits for the slowest one of all.  A batch that does not fill the device is
        spread, and problems that may end early do not wait for others.

        Args:
            batch: Problems of a launch.
            ends: Whether problems may leave before the last iteration.
        """
        if ends or self._text.has_checks or not has_gpu():
            return 1
        held = problems_held(self._memory, self._dtype)
        fills = batch >= multiprocessors() * held
        return held // 2 if fills and held >= 2 and held % 2 == 0 else 1

    def kernel_source(
        self, counts: OnchipCounts, names: Sequence[str], together: int = 1
    ) -> KernelSource:
        """Declaration of the kernel; numbers of iterations are arguments and not part of it."""
        static = together * (self.shared_bytes + _OF_WARP) <= STATIC_SHARED
        memory, dtype = self._memory, self._dtype
        tables = ("linearize_in", "evaluate_in", "nodes_in", "absent_in")
        numbers = ("n_iterations", "n_admm")
        return KernelSource(
            name="onchip_solve",
            title="All SQP iterations of an MPC problem in one launch, one warp per problem.",
            dtype=self._dtype,
            inputs=[
                *(Argument(f"{name}_in") for name in names if name not in OF_LANES),
                Argument("active_in", "whole"),
                *(Argument(name, "table") for name in tables),
                *(Argument(name, "number") for name in numbers),
            ],
            outputs=[
                *(Argument(f"{name}_io") for name in ("z", "d", "s", "y")),
                Argument("report_out"),
                Argument("status_out", "whole"),
            ],
            body=self._text.body(
                self._dtype, record=counts.record, restart=counts.restart, ends=counts.ends
            ),
            parts=1,
            registers=most_registers(memory, dtype),
            plans=self._text.plans,
            head=onchip_head(
                memory, dtype, static=static, profile=counts.profile, together=together
            ),
            scratch=0 if static else together * memory.n_rows * LANES,
            merged=LANES,
        )

    def _kernel(self, counts: OnchipCounts, names: Sequence[str], together: int) -> KernelSource:
        kind = (counts.record, counts.restart, counts.profile, counts.ends, together)
        if kind not in self._kernels:
            self._kernels[kind] = self.kernel_source(counts, names, together)
        return self._kernels[kind]

    def solve(
        self,
        point: dict[str, jax.Array],
        state: tuple[jax.Array, jax.Array, jax.Array],
        active: jax.Array,
        counts: OnchipCounts,
    ) -> Solved:
        """Solves a batch.

        Args:
            point: z and parameters by name, ``[batch, rows, 1]``; common ones ``[1, rows, 1]``.
            state: d, s and y that the first QP starts from.
            active: Which instances take part if their z is finite, ``[batch, 1, 1]``.
            counts: Numbers of iterations.
        """
        names = list(point)
        batch = point["z"].shape[0]
        records = len(REPORT_ROWS) * (counts.sqp if counts.record else 1)
        given = [array for name, array in point.items() if name not in OF_LANES]
        together = self.together(batch, ends=counts.ends)
        z, d, s, y, report, status = launch(
            self._kernel(counts, names, together),
            [
                *given,
                active.astype(jnp.int32),
                *self._tables,
                *self._lanes,
                counts.sqp,
                counts.admm,
                point["z"],
                *state,
            ],
            {
                "report_out": (batch, records, 1),
                "status_out": (batch, counts.n_status, 1),
            },
            threads=-(-batch // together) * together * LANES,
            block=together * LANES,
            in_out=("z_io", "d_io", "s_io", "y_io"),
        )
        return Solved(z, (d, s, y), report, status)


def shared_bytes(memory: LaneMemory, dtype: str) -> int:
    """Shared memory of one problem."""
    return memory.n_rows * LANES * np.dtype(dtype).itemsize


def problems_at_once(memory: LaneMemory, dtype: str) -> int:
    """Problems that fit into the shared memory of a multiprocessor."""
    limit = shared_memory_limit() + _RESERVED // 2
    return limit // (shared_bytes(memory, dtype) + _RESERVED)


def needed_registers(memory: LaneMemory, dtype: str) -> int:
    """Estimate of the registers that a lane needs."""
    values = sum(LaneSource(memory, dtype).counted_values().values())
    return registers_of(dtype) * values + _OVERHEAD


def most_registers(memory: LaneMemory, dtype: str) -> int:
    """Registers that a lane may have: fewer if more problems fit then."""
    warps = max(-(-problems_at_once(memory, dtype) // _SCHEDULERS), 1)
    shared = REGISTER_FILE // (LANES * warps * _SCHEDULERS) // 8 * 8
    return min(max(shared, needed_registers(memory, dtype), _FEWEST), MAX_REGISTERS)


def problems_held(memory: LaneMemory, dtype: str) -> int:
    """Problems that fit into the shared memory and registers of a multiprocessor."""
    of_warp = LANES * (-(-most_registers(memory, dtype) // 8) * 8)
    by_registers = REGISTER_FILE // _SCHEDULERS // of_warp * _SCHEDULERS
    return min(problems_at_once(memory, dtype), by_registers)


def _pointed(array: np.ndarray, dtype: Any) -> jax.Array:
    """A table on the device; an empty one becomes one value, because kernels need a pointer."""
    return jnp.asarray(array.ravel() if array.size else np.zeros(1), dtype=dtype)
