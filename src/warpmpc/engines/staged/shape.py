"""Which registers, block and prefetch suit the staged kernels: a model of one wave of warps.

Measured on an H200 (docs/qp.md): the loop streams from memory, so what counts is how many loads are
in flight.  With few tiles each thread should have many registers, to hold many loads; with many
tiles, as many warps as possible should run at once.  Asking the L2 cache for the next stage helps
while what all warps ask for fits into it, and hurts when it does not.
"""

from __future__ import annotations

from dataclasses import dataclass

from warpmpc.engines.ldl.launch import MAX_REGISTERS, REGISTER_FILE
from warpmpc.engines.runtime.ffi import l2_bytes, multiprocessors
from warpmpc.engines.runtime.tiles import LANES
from warpmpc.symbolic.stage_elimination import StageElimination

_BLOCK = TWO_SIDED_BLOCK = 2 * LANES  # with two sides a block is one tile
_STEP = 8  # registers are allocated in eights
_SCHEDULERS = 4  # per multiprocessor, each with its own quarter of the registers
# Fewer registers than this spill what a stage needs.
_LEAST = {"float32": 64, "float64": 128}
_FACTOR = {"float32": 168, "float64": 255}
_ITEM = {"float32": 4, "float64": 8}
_STATIC_SHARED_MEMORY = 48 * 1024  # without asking for more


@dataclass(frozen=True)
class StagedShape:
    """How a kernel of the staged engine is compiled and launched.

    Attributes:
        registers: Most registers per thread.
        block: Threads per block.
        prefetch: Whether a warp asks the L2 cache for the next stage ahead of time.
        sides: Threads per problem: one per chain of the program.
    """

    registers: int
    block: int
    prefetch: bool
    sides: int = 1

    @property
    def register_limit(self) -> int:
        """`registers`, or as many as let one block start at all."""
        return min(self.registers, REGISTER_FILE // self.block)

    def threads(self, tiles: int) -> int:
        """Threads in all, a multiple of the block."""
        return -(-tiles * self.sides * LANES // self.block) * self.block


def loop_shape(program: StageElimination, tiles: int, dtype: str) -> StagedShape:
    """Shape of the ADMM loop: all warps in one wave if that leaves enough registers."""
    per_scheduler = -(-tiles * program.sides // (multiprocessors() * _SCHEDULERS))
    fitting = REGISTER_FILE // (_SCHEDULERS * LANES * per_scheduler) // _STEP * _STEP
    registers = min(max(fitting, _LEAST[dtype]), MAX_REGISTERS)
    return StagedShape(registers, _BLOCK, _prefetch(program, tiles, dtype), program.sides)


def factor_shape(program: StageElimination, tiles: int, dtype: str) -> StagedShape:
    """Shape of the factorisation."""
    return StagedShape(_FACTOR[dtype], _BLOCK, _prefetch(program, tiles, dtype), program.sides)


def sides_for(tiles: int) -> int:
    """Threads per problem: two while all of them run at once with as many registers as they like.

    A walk over the stages takes its time however few problems there are.  Two threads halve it as
    long as memory and schedulers have time to spare.
    """
    at_once = multiprocessors() * (REGISTER_FILE // (LANES * (MAX_REGISTERS + 1)))
    return 2 if 2 * tiles <= at_once else 1


def mailbox_fits(exchanged: int, dtype: str) -> bool:
    """Whether so many numbers per problem fit into the shared memory of every device."""
    return exchanged * LANES * _ITEM[dtype] <= _STATIC_SHARED_MEMORY


def _prefetch(program: StageElimination, tiles: int, dtype: str) -> bool:
    """Whether what all warps ask for ahead of one stage fits into half of the L2 cache."""
    largest = max(run.template.n_L + 5 * run.template.n_nodes for run in program.runs)
    return tiles * largest * LANES * _ITEM[dtype] < l2_bytes() // 2
