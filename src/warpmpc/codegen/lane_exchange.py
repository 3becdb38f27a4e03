"""Native text of what lanes take from the caller's arrays and give back to them.

Reads: a `LaneMemory`.  Produces: statements for `codegen.onchip_native`.  Arrays are copied by
whole lines, to and from memory that is free then: Q, which has room for all nodes of all lanes.
There every lane finds its own numbers; ``nodes`` says where, see `LaneMemory.staged`.
"""

from __future__ import annotations

from warpmpc.codegen.lane_reduction import block_of_lanes
from warpmpc.symbolic.lane_memory import LaneMemory

# Arrays of the caller that are exchanged together: those of variables and rows, and the sections
# where they lie between QPs.
_PAIRS = (("d_of", "s_of", "X", "X"), ("z_of", "y_of", "Z", "R"))


def _block(lines: list[str]) -> list[str]:
    return [*block_of_lanes(lines), "SYNC"]


def _places(memory: LaneMemory) -> list[str]:
    """Finds the places of all nodes; all at once, so that no load waits for another one.

    They are read anew every time, see ``nothing``: registers are for other numbers.
    """
    count = range(len(memory.nodes))
    lines = [f"int at{i} = READ(nodes, {i * 32} + lane + nothing);" for i in count]
    return [*lines, *(f"LOADED(at{i})" for i in count)]


def _copied(how: str, memory: LaneMemory, of_variables: str, of_rows: str) -> list[str]:
    beyond = memory.sections["Z"].count
    return [
        f"{how}({of_variables}, 0, {memory.n_vars})",
        f"{how}({of_rows}, {beyond}, {memory.n_cons})",
    ]


def _rows(memory: LaneMemory, of_variables: str, of_rows: str) -> list[str]:
    """Where the numbers of all nodes lie."""
    return [
        f"MEM({of_rows}_ROWS + {i})"
        if node.is_row
        else f"MEM({of_variables}_ROWS + {memory.row_of(of_variables, node)})"
        for i, node in enumerate(memory.nodes)
    ]


def taken(memory: LaneMemory) -> list[str]:
    """Takes d, s, z and y; adds something that is not zero if one of them is not finite."""
    lines = []
    for variables, rows, *sections in _PAIRS:
        lines += _block(_copied("TAKE", memory, variables, rows))
        found = [
            f"{{ const SCALAR x = at{i} < 0 ? (SCALAR)0 : STAGE[at{i} < 0 ? 0 : at{i}];"
            f" {row} = x; OF_LANE(odd) += x * 0; }}"
            for i, row in enumerate(_rows(memory, *sections))
        ]
        lines += _block([*_places(memory), *found])
    return lines


def given_back(memory: LaneMemory) -> list[str]:
    """Gives d, s, z and y back."""
    lines = []
    for variables, rows, *sections in _PAIRS:
        left = [
            f"if (at{i} >= 0) STAGE[at{i}] = {row};"
            for i, row in enumerate(_rows(memory, *sections))
        ]
        lines += _block([*_places(memory), *left])
        lines += _block(_copied("GIVE", memory, variables, rows))
    return lines


def moved(memory: LaneMemory) -> list[str]:
    """Moves z along d."""
    return [
        f"MEM(Z_ROWS + {memory.row_of('Z', node)}) += taken * MEM(X_ROWS + {i});"
        for i, node in enumerate(memory.nodes)
        if not node.is_row
    ]
