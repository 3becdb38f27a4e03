"""Native source of what lanes read from global memory and write back.

Reads: a `LaneMemory`, names of the inputs at a point, and a `StagePlan` whose items are rounds of 32
lanes.  Produces: tables of items, and statements for `engines.onchip.solve_template`.

In a round of stage programs every lane evaluates a case for one of its stages, or none; the table
of items says which case, and with which offsets.  Input i is ``in{i}``; the point itself and
multipliers are rows of lanes, parameters are read from memory or from a copy.

Arrays of the caller are copied by whole lines, to and from sections that are free then and have
room for all nodes of all lanes.  There every lane finds its own values; the table of `nodes` says
where, see `LaneMemory.in_copy`.  All is read before anything is written, because the compiler has
to assume that any two places are the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from warpmpc.codegen.emit_native import Access
from warpmpc.codegen.stage_functions import StagePlan
from warpmpc.engines.onchip.lanes import LANES
from warpmpc.engines.onchip.memory import LaneMemory
from warpmpc.engines.onchip.reduction_source import block_of_lanes

ROUND = "round"  # what is asked for is the next round


def item_table(plan: StagePlan) -> np.ndarray:
    """Case of each item, -1 for none, and its entries: ``[round, entries / 4, lane, 4]``.

    Four numbers of a lane are one load; what the lanes of a round load lies side by side.
    """
    head = plan.table[: 2 * plan.n_items].reshape(-1, 2)
    table = np.zeros((plan.n_items, item_width(plan)), dtype=np.int32)
    table[:, 0] = head[:, 0]
    counts = [_used(access) for access in plan.accesses]
    for item, (case, begin) in enumerate(head.tolist()):
        if case >= 0:
            table[item, 1 : 1 + counts[case]] = plan.table[begin : begin + counts[case]]
    return by_fours(table)


def by_fours(table: np.ndarray) -> np.ndarray:
    """``[rounds * lane, entries]`` as ``[round, entries / 4, lane, 4]``."""
    return np.swapaxes(table.reshape(-1, LANES, table.shape[1] // 4, 4), 1, 2)


def _used(access: Access) -> int:
    """Table entries of a case."""
    slots = [slot for places in (*access.inputs, *access.outputs) for slot, _ in places]
    return 1 + max(slots, default=-1)


def item_width(plan: StagePlan) -> int:
    """Numbers of an item in the table."""
    longest = max((_used(access) for access in plan.accesses), default=0)
    return -(-(1 + longest) // 4) * 4


def _fours(count: int) -> range:
    """Numbers of the loads that so many numbers of a lane take."""
    return range(-(-count // 4))


def declared(count: int, name: str) -> str:
    """Room for some numbers of a lane that are asked for under a name."""
    return " ".join(f"AHEAD({name}, {i})" for i in _fours(count))


def asked_for(count: int, name: str, table: str) -> str:
    """Asks for some numbers of a lane in a table `by_fours`."""
    return " ".join(f"ASK({name}, {i}, {table})" for i in _fours(count))


def forgotten(count: int, name: str) -> str:
    """Says that nobody needs them any more."""
    return " ".join(f"FORGET_ENTRIES({name}, {i})" for i in _fours(count))


def found(count: int, name: str, table: str) -> list[str]:
    """Waits for them; then they are what `entry` says."""
    return [f"ENTRIES({name}, {i}, {table})" for i in _fours(count)]


def entry(i: int) -> str:
    """Text of one of them."""
    return f"ENTRY({i // 4}, {'xyzw'[i % 4]}, {i % 4})"


def dispatched(plan: StagePlan, cases: Sequence[list[str]]) -> str:
    """The case of an item.

    The text around it declares ``row``, the table of this round, and whether there are ``more``.
    """
    width = item_width(plan)
    lines = found(width, ROUND, "row")
    lines.append(f"if (more) {{ {asked_for(width, ROUND, f'row + {LANES * width}')} }}")
    lines += [f"const int r{i - 1} = {entry(i)};" for i in range(1, width)]
    # What most lanes have comes first.  A jump by a table would wait for the table.
    lines.append(f"int kind = {entry(0)};")
    for i in sorted(range(len(cases)), key=lambda i: -len(plan.cases[i].stages)):
        body = (line for line in cases[i] if "= ROW(" not in line)
        lines += [f"if (kind == {i}) {{", *body, "} else { PIN(kind)"]
    return "\n".join([*lines, "}" * len(cases)])


class _Copied(NamedTuple):
    """Arrays of the caller that are copied together."""

    section: str  # of the copy
    variables: str  # array of the variables
    rows: str  # array of the rows
    of_variables: str  # section of the variables between QPs
    of_rows: str  # section of the rows


_PLACES = "places"  # what is asked for: where nodes are in the copy
_COPIED = (_Copied("Q", "d_of", "s_of", "X", "X"), _Copied("W", "z_of", "y_of", "Z", "R"))


def _block(lines: list[str]) -> list[str]:
    return [*block_of_lanes(lines), "SYNC"]


def _arrays(memory: LaneMemory, copied: _Copied) -> list[tuple[str, int, int, int]]:
    """Arrays with the first row of their copy, its rows, and the numbers of the array."""
    rows = memory.sections["Z"].count
    return [
        (copied.variables, 0, rows, memory.n_vars),
        (copied.rows, rows, len(memory.rows), memory.n_cons),
    ]


def _held(memory: LaneMemory) -> list[tuple[str, int, int, int]]:
    """The same of parameters that have a copy, with its first number in place of its row."""
    at = memory.held_at
    return [(f"{n}_of", at[n], -(-count // LANES), count) for n, count in memory.held.items()]


def _lines(how: str, memory: LaneMemory) -> list[str]:
    """PUT or GIVE_BACK of all arrays."""
    return [
        f"{how}({copied.section}, {array}, {first}, {rows}, {count})"
        for copied in _COPIED
        for array, first, rows, count in _arrays(memory, copied)
    ]


def _own(memory: LaneMemory, copied: _Copied) -> list[str]:
    """Where the numbers of all nodes lie."""
    return [
        f"MEM({copied.of_rows}_ROWS + {i})"
        if node.is_row
        else f"MEM({copied.of_variables}_ROWS + {memory.row_of(copied.of_variables, node)})"
        for i, node in enumerate(memory.nodes)
    ]


def _in_copy(memory: LaneMemory, copied: _Copied) -> list[str]:
    """The same in the copy."""
    return [f"COPY_AT({copied.section}, {entry(i)})" for i in range(len(memory.nodes))]


def _moved(to: list[str], taken_from: list[str]) -> list[str]:
    """Assigns all of them, once all have been read."""
    lines = [f"const SCALAR x{i} = {place};" for i, place in enumerate(taken_from)]
    return [*lines, *(f"{place} = x{i};" for i, place in enumerate(to))]


def places_forgotten(memory: LaneMemory) -> str:
    """Says that nobody needs what was asked for before."""
    return forgotten(len(memory.nodes), _PLACES)


def places_asked_for(memory: LaneMemory) -> str:
    """Asks where nodes are; anew every time, see ``nothing``: registers are for other numbers."""
    return asked_for(len(memory.nodes), _PLACES, "nodes + nothing")


def _places(memory: LaneMemory) -> list[str]:
    return found(len(memory.nodes), _PLACES, "nodes")


def arrays_asked_for(memory: LaneMemory) -> list[str]:
    """Asks for parameters, d, s, z and y, and where their numbers are in the copy."""
    arrays = [array for copied in _COPIED for array in _arrays(memory, copied)]
    takes = [
        f"TAKE({array}, {rows}, {count})" for array, _, rows, count in (*_held(memory), *arrays)
    ]
    return [*takes, declared(len(memory.nodes), _PLACES), places_asked_for(memory)]


def taken(memory: LaneMemory) -> list[str]:
    """Takes parameters, d, s, z and y.

    Of the last four what is not finite leaves its mark, see ``odd`` and ``lost``.
    """
    held = [f"HOLD({array}, {first}, {n}, {count})" for array, first, n, count in _held(memory)]
    lines = _places(memory)
    for copied in _COPIED:
        lines += ["{", *_moved(_own(memory, copied), _in_copy(memory, copied))]
        for i, node in enumerate(memory.nodes):
            is_z = copied.of_variables == "Z" and not node.is_row
            lines.append(f"OF_LANE({'lost' if is_z else 'odd'}) += x{i} * 0;")
        lines.append("}")
    return [*_block([*held, *_lines("PUT", memory)]), *_block(lines)]


def given_back(memory: LaneMemory) -> list[str]:
    """Gives d, s, z and y back; `places_asked_for` comes before."""
    lines = _places(memory)
    for copied in _COPIED:
        lines += ["{", *_moved(_in_copy(memory, copied), _own(memory, copied)), "}"]
    return [*_block(lines), *block_of_lanes(_lines("GIVE_BACK", memory))]


def moved(memory: LaneMemory) -> list[str]:
    """Moves z along d."""
    return [
        f"MEM(Z_ROWS + {memory.row_of('Z', node)}) += taken * MEM(X_ROWS + {i});"
        for i, node in enumerate(memory.nodes)
        if not node.is_row
    ]


OF_LANES = ("z", "y")


class OnchipInputs:
    """The inputs of one problem."""

    def __init__(self, names: Sequence[str], memory: LaneMemory):
        """Keeps both.

        Args:
            names: Of all inputs, in order.
            memory: Where copies of parameters lie, if there are any.
        """
        self._names, self._m = names, memory
        self._parameters = [(i, name) for i, name in enumerate(names) if name not in OF_LANES]

    def pointers(self) -> str:
        """Declares ``p_of``, ..., the arrays of the caller, and where stages read them."""
        lines = []
        for i, name in self._parameters:
            own = f"({name}_in.shape[0] > 1 ? problem : 0) * {name}_in.shape[1]"
            lines.append(f"const SCALAR* __restrict__ {name}_of = {name}_in.data + {own};")
            at = self._m.held_at.get(name)
            where = f"{name}_of" if at is None else f"PARAMETERS + {at}"
            lines.append(f"const SCALAR* in{i} = {where};")
        return "\n".join(lines)

    def asked_later(self) -> str:
        """Asks for the arrays of a problem that follows, if they are its own."""
        lines = []
        for _, name in self._parameters:
            count = f"{name}_in.shape[1]"
            asked = f"ASK_LATER({name}_of + FOLLOWING * {count}, {count})"
            lines.append(f"if ({name}_in.shape[0] > 1) {{ {asked} }}")
        return "\n".join(lines)

    def reads(self) -> dict[str, str]:
        """Text of one number of each input, for `fused_module.inlined`."""
        texts = {}
        for i, name in enumerate(self._names):
            if name in OF_LANES:
                texts[f"in{i}"] = "*(base + {place})"
            elif name in self._m.held:
                texts[f"in{i}"] = f"*(in{i} + {{place}})"
            else:
                texts[f"in{i}"] = f"READ(in{i}, {{place}})"
        return texts
