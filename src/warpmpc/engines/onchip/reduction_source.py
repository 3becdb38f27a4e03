"""Straight-line native text of the solve for the separators of all lanes; see `engines.onchip.lane_source`.

Reads: a `LaneMemory`.  Produces: statements by which every lane's s becomes y.  The matrices are
those of `onchip_couple_native`: two blocks per level, one in the last, and the last inverse.
"""

from __future__ import annotations

from warpmpc.engines.onchip.memory import LaneMemory


def kept(name: str, i: int) -> str:
    """Number i that a lane keeps under a name."""
    return f"KEEP({i}, {name})"


def block_of_lanes(lines: list[str]) -> list[str]:
    """Statements that every lane executes."""
    return ["EACH_LANE {", *lines, "}"]


def reduction(memory: LaneMemory, *, folds: bool) -> list[str]:
    """All levels.

    Args:
        memory: Where the blocks lie.
        folds: Whether all levels but the last are one text.
    """
    nx, lines = range(memory.n_separators), []
    if folds:
        lines.append("ROLLED for (int level = 0; level + 1 < LEVELS; ++level) {")
        lines += [*_level(memory, None), "}"]
    else:
        for level in range(memory.levels - 1):
            lines += _level(memory, level)
    if memory.levels:
        lines += _last_level(memory)
    last = memory.n_blocks - 1
    solutions = []
    for i in nx:
        terms = [f"{_entry(memory, last, i, j)} * {kept('s', j)}" for j in nx]
        solutions.append(f"{kept('y', i)} = {' + '.join(terms)};")
    return [*lines, *block_of_lanes(solutions)]


def _level(memory: LaneMemory, level: int | None) -> list[str]:
    """Takes both neighbours at a distance from s; None: the distance is ``1 << level``."""
    nx = range(memory.n_separators)
    step = f"(1 << {'level' if level is None else level})"
    lines = [f"FROM_BEFORE({i}, before, s, {step})" for i in nx]
    lines += [f"FROM_BEHIND({i}, behind, s, {step})" for i in nx]
    products = []
    for side, name in enumerate(("before", "behind")):
        block = f"2 * level + {side}" if level is None else 2 * level + side
        products += _products(memory, block, name)
    return [*lines, *block_of_lanes(products)]


def _last_level(memory: LaneMemory) -> list[str]:
    """The same where a lane has one neighbour at most."""
    distance = 1 << memory.levels - 1
    across = [f"FROM_ACROSS({i}, before, s, {distance})" for i in range(memory.n_separators)]
    return [*across, *block_of_lanes(_products(memory, memory.n_blocks - 2, "before"))]


def _products(memory: LaneMemory, block: int | str, name: str) -> list[str]:
    nx = range(memory.n_separators)
    return [
        f"{kept('s', i)} -= {_entry(memory, block, i, j)} * {kept(name, j)};"
        for j in nx
        for i in nx
    ]


def _entry(memory: LaneMemory, block: int | str, i: int, j: int) -> str:
    """An entry of a block; a loop over all of them finds them in memory."""
    size, stored = memory.n_separators, memory.stored_blocks
    if isinstance(block, int) and block >= stored:
        return kept("u", ((block - stored) * size + i) * size + j)
    return f"MEM(W_ROWS + ({block}) * {size * size} + {i * size + j})"
