"""Number of warps that share a tile in the panel engine, and their share of a multiprocessor.

A sweep is a chain of short steps, so its speed depends on the rows of the factor that are in
flight. Tiles at once, warps per tile and records ahead of each warp all add to that number, and all
of them need shared memory.  It is given first to tiles, as far as the batch has them, because tiles
do not wait for each other; then to warps, which shorten the chain of a tile; then to records ahead.

The limits below were measured on an H200 with the humanoid's shape (272 slots; the rows are in
benchmarks/results/rolled_h200.jsonl).  They count per multiprocessor, so that they hold for windows
and batches of other sizes.
"""

from __future__ import annotations

from dataclasses import dataclass

from warpmpc.engines.ldl.launch import MAX_REGISTERS, REGISTER_FILE
from warpmpc.engines.panels import factor_plan as panel_factor
from warpmpc.engines.panels import sweep_plan as panel_sweeps
from warpmpc.engines.panels.factor_source import OWN_ROWS
from warpmpc.engines.panels.loop_source import MAILBOX
from warpmpc.engines.runtime.batching import LANES
from warpmpc.engines.runtime.ffi import multiprocessors, shared_memory_limit

WARPS = (8, 4, 2, 1)
FACTOR_WARPS = (16, 8)  # for a tile that is alone on its multiprocessor, and for others
_MOST_TILES = 4  # on one multiprocessor; more would leave each too little shared memory
# Warps that gather, on one multiprocessor.  Three tiles at once: 8 warps with 2 records ahead take
# 217 ms for 25 iterations of 16384 problems, 4 warps with 4 records 248 ms.  Four tiles: 4 with 2,
# 205 ms.
_MOST_WARPS = 24
# Records ahead.  One tile at once: 8 warps take 68 ms (batch 4096; 53 ms: 512) with 4 ahead, 90 ms
# (80 ms) with 2, and no less with 8, which cost twice the shared memory: a warp reads what a record
# refers to one record before it copies it, and this load waits for the copies before it.
_LEADS = (4, 2)
_LEAST_REGISTERS, _MOST_REGISTERS = 64, 128
_BLOCKS = (8, 4, 3, 2, 1)  # numbers of blocks that may share a multiprocessor
_ITEM = {"float32": 4, "float64": 8}
_RESERVED = 1024  # bytes of shared memory that every block costs


@dataclass(frozen=True)
class PanelShape:
    """How the kernels of the panel engine are compiled and launched.

    Attributes:
        warps: Warps per tile that gather; the loop has one more for the triangles.
        lead: Records that each of them has in flight.
        factor_warps: Warps per tile of the factorisation.
    """

    warps: int
    lead: int
    factor_warps: int


def tiles_at_once(tiles: int) -> int:
    """Tiles that should share a multiprocessor."""
    return min(-(-tiles // multiprocessors()), _MOST_TILES)


def panel_shape(n_slots: int, tiles: int, dtype: str) -> PanelShape | None:
    """Shape for a number of tiles; None if the window does not fit.

    Args:
        n_slots: Slots of the window.
        tiles: Number of tiles in all.
        dtype: "float32" or "float64".
    """
    for wanted in range(tiles_at_once(tiles), 0, -1):
        for warps in WARPS:
            for lead in _LEADS:
                few = warps * wanted <= _MOST_WARPS
                if few and loop_bytes(n_slots, warps, lead, dtype) <= _share(wanted, warps + 1):
                    alone = wanted == 1 and dtype == "float32"
                    return PanelShape(warps, lead, FACTOR_WARPS[0 if alone else 1])
    return None


def loop_bytes(n_slots: int, warps: int, lead: int, dtype: str) -> int:
    """Shared memory of one tile in the ADMM loop."""
    line = LANES * _ITEM[dtype]
    place = panel_sweeps.LINES * line + 4 * (panel_sweeps.RECORD - panel_sweeps.LINES)
    triangle = panel_sweeps.TRIANGLE * line + 4 * panel_sweeps.PANEL
    return window_rows(n_slots, warps) * line + 64 + warps * (lead + 1) * place + 2 * triangle


def window_rows(n_slots: int, warps: int) -> int:
    """Rows of shared memory for the window, in which warps also leave the results of a check."""
    return max(n_slots, warps * MAILBOX)


def factor_bytes(n_working: int, dtype: str) -> int:
    """Shared memory of one tile in the factorisation."""
    return (n_working * panel_factor.COLUMNS + OWN_ROWS) * LANES * _ITEM[dtype]


def factor_fits(n_working: int, dtype: str) -> bool:
    """Whether one tile can be factorised by panels."""
    return factor_bytes(n_working, dtype) <= _share(1, max(FACTOR_WARPS))


def scratch_numbers(needed: int, warps: int, dtype: str) -> int:
    """Values of shared memory for a block that needs a number of bytes.

    Rounded up to what as many blocks per multiprocessor can have, so that a handful of kernels
    serves all patterns.
    """
    return max(_share(_blocks(needed, warps), warps), needed) // 16 * 16 // _ITEM[dtype]


def register_limit(needed: int, warps: int, tiles: int) -> int:
    """Registers per thread that let as many tiles run on a multiprocessor as shared memory admits.

    Args:
        needed: Bytes of shared memory per tile.
        warps: Warps per tile.
        tiles: Number of tiles in all.
    """
    blocks = min(-(-tiles // multiprocessors()), _blocks(needed, warps))
    fitting = REGISTER_FILE // (warps * LANES * blocks) // 8 * 8
    return min(max(fitting, _LEAST_REGISTERS), _MOST_REGISTERS)


def factor_registers(warps: int, dtype: str) -> int:
    """Registers per thread of the factorisation: two tiles of float32 run on one multiprocessor."""
    most = _MOST_REGISTERS if dtype == "float32" else MAX_REGISTERS
    return min(REGISTER_FILE // (warps * LANES), most)


def _blocks(needed: int, warps: int) -> int:
    """Blocks that share a multiprocessor, at least one."""
    return next((count for count in _BLOCKS if _share(count, warps) >= needed), 1)


def _share(blocks: int, warps: int) -> int:
    """Bytes for each block of a multiprocessor; Warp takes 4 more per thread."""
    whole = shared_memory_limit() + _RESERVED
    return (whole // blocks - _RESERVED - 4 * LANES * warps) // 16 * 16
