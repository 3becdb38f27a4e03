"""Native text of what lanes take from the caller's arrays and give back to them.

Reads: a `LaneMemory`.  Produces: statements for `codegen.onchip_native`.  Arrays are copied by
whole lines, to and from memory that is free then: Q, which has room for all nodes of all lanes.
There every lane finds its own numbers; the table of `nodes` says where, see `LaneMemory.staged`.
All is read before anything is written: for the compiler any two places might be the same.
"""

from __future__ import annotations

from warpmpc.codegen.lane_reduction import block_of_lanes
from warpmpc.symbolic.lane_memory import LaneMemory

# Arrays of the caller that are exchanged together: those of variables and rows, and the sections
# where they lie between QPs.
_PAIRS = (("d_of", "s_of", "X", "X"), ("z_of", "y_of", "Z", "R"))


def _block(lines: list[str]) -> list[str]:
    return [*block_of_lanes(lines), "SYNC"]


def _copies(memory: LaneMemory, of_variables: str, of_rows: str) -> list[tuple[str, int, int, int]]:
    """Arrays with the first row of their copy, its rows, and the numbers of the array."""
    rows = memory.sections["Z"].count
    return [
        (of_variables, 0, rows, memory.n_vars),
        (of_rows, rows, len(memory.rows), memory.n_cons),
    ]


def _fours(memory: LaneMemory) -> range:
    """Numbers of the table are loaded by fours."""
    return range(-(-len(memory.nodes) // 4))


def _places(memory: LaneMemory) -> list[str]:
    """Places of all nodes in the copy."""
    count = len(memory.nodes)
    lines = [f"ENTRIES({i}, nodes)" for i in _fours(memory)]
    places = [f"ENTRY({i // 4}, {'xyzw'[i % 4]}, {i % 4})" for i in range(count)]
    return [*lines, *(f"const int at{i} = {place};" for i, place in enumerate(places))]


def _asked_for_places(memory: LaneMemory) -> list[str]:
    """Asks for them; anew every time, see ``nothing``: registers are for other numbers."""
    return [f"FIRST_ENTRIES({i}, nodes + nothing)" for i in _fours(memory)]


def _rows(memory: LaneMemory, of_variables: str, of_rows: str) -> list[str]:
    """Where the numbers of all nodes lie."""
    return [
        f"MEM({of_rows}_ROWS + {i})"
        if node.is_row
        else f"MEM({of_variables}_ROWS + {memory.row_of(of_variables, node)})"
        for i, node in enumerate(memory.nodes)
    ]


def asked_for(memory: LaneMemory) -> list[str]:
    """Asks for d, s, z and y, and where their numbers are in the copy."""
    arrays = [copy for pair in _PAIRS for copy in _copies(memory, *pair[:2])]
    takes = [f"TAKE({array}, {rows}, {count})" for array, _, rows, count in arrays]
    return [*takes, *_asked_for_places(memory)]


def taken(memory: LaneMemory) -> list[str]:
    """Takes d, s, z and y; adds something that is not zero if one of them is not finite."""
    lines = []
    for variables, rows, *sections in _PAIRS:
        copies = _copies(memory, variables, rows)
        lines += _block([f"PUT({', '.join(map(str, copy))})" for copy in copies])
        to = _rows(memory, *sections)
        found = [f"const SCALAR x{i} = STAGED_AT(at{i});" for i in range(len(to))]
        left = [f"{row} = x{i}; OF_LANE(odd) += x{i} * 0;" for i, row in enumerate(to)]
        lines += _block([*_places(memory), *found, *left])
    return lines


def given_back(memory: LaneMemory) -> list[str]:
    """Gives d, s, z and y back."""
    lines = ["{", *_asked_for_places(memory)]
    for variables, rows, *sections in _PAIRS:
        of = _rows(memory, *sections)
        found = [f"const SCALAR x{i} = {row};" for i, row in enumerate(of)]
        left = [f"STAGED_AT(at{i}) = x{i};" for i in range(len(of))]
        lines += _block([*_places(memory), *found, *left])
        copies = _copies(memory, variables, rows)
        lines += _block([f"GIVE({array}, {first}, {count})" for array, first, _, count in copies])
    return [*lines, "}"]


def moved(memory: LaneMemory) -> list[str]:
    """Moves z along d."""
    return [
        f"MEM(Z_ROWS + {memory.row_of('Z', node)}) += taken * MEM(X_ROWS + {i});"
        for i, node in enumerate(memory.nodes)
        if not node.is_row
    ]
