"""Native source that copies between global memory and the memory of the lanes.

Reads: a `LaneMemory`, names of the inputs at a point, and a `StagePlan` whose items are rounds of 32
lanes.  Produces: tables of items, and statements for `engines.onchip.solve_template`.

In a round of stage programs, every lane evaluates a case for one of its stages, or none; the table
of items gives the case and its offsets.  Input i is ``in{i}``.  The point and the multipliers are
rows of lanes; parameters are read from global memory or from a copy.

Arrays of the caller are copied line by line into sections that are unused at that time and have
room for all nodes of all lanes, and back in the same way.  The table of `nodes` tells every lane
where its values are, see `LaneMemory.in_copy`.  All values are read before any is written, because
the compiler has to assume that any two places overlap.
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

ROUND = "round"  # entries of the next round, which are fetched ahead of time


def item_table(plan: StagePlan) -> np.ndarray:
    """Case of each item, -1 for none, and its entries: ``[round, entries / 4, lane, 4]``.

    One load fetches four values of a lane; the values that the lanes of a round load are contiguous.
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
    """Values of an item in the table."""
    longest = max((_used(access) for access in plan.accesses), default=0)
    return -(-(1 + longest) // 4) * 4


def _fours(count: int) -> range:
    """Loads that fetch a number of values of a lane."""
    return range(-(-count // 4))


def declared(count: int, name: str) -> str:
    """Declares registers for values of a lane that are fetched under a name."""
    return " ".join(f"AHEAD({name}, {i})" for i in _fours(count))


def fetch(count: int, name: str, table: str) -> str:
    """Fetches some values of a lane from a table made by `by_fours`."""
    return " ".join(f"ASK({name}, {i}, {table})" for i in _fours(count))


def discard(count: int, name: str) -> str:
    """Clears fetched values, so that they occupy no registers."""
    return " ".join(f"FORGET_ENTRIES({name}, {i})" for i in _fours(count))


def found(count: int, name: str, table: str) -> list[str]:
    """Waits for fetched values; `entry` then names them."""
    return [f"ENTRIES({name}, {i}, {table})" for i in _fours(count)]


def entry(i: int) -> str:
    """Expression of a fetched value."""
    return f"ENTRY({i // 4}, {'xyzw'[i % 4]}, {i % 4})"


def dispatched(plan: StagePlan, cases: Sequence[list[str]]) -> str:
    """Runs the case of an item.

    The surrounding source declares ``row``, the table of this round, and ``more``, whether another
    round follows.
    """
    width = item_width(plan)
    lines = found(width, ROUND, "row")
    lines.append(f"if (more) {{ {fetch(width, ROUND, f'row + {LANES * width}')} }}")
    lines += [f"const int r{i - 1} = {entry(i)};" for i in range(1, width)]
    # The most frequent case is tested first.  A jump table would have to wait for its load.
    lines.append(f"int kind = {entry(0)};")
    for i in sorted(range(len(cases)), key=lambda i: -len(plan.cases[i].stages)):
        body = (line for line in cases[i] if "= ROW(" not in line)
        lines += [f"if (kind == {i}) {{", *body, "} else { PIN(kind)"]
    return "\n".join([*lines, "}" * len(cases)])


class _Copied(NamedTuple):
    """Arrays of the caller that are copied together."""

    section: str  # section of the copy
    variables: str  # array of the variables
    rows: str  # array of the rows
    of_variables: str  # section of the variables between QPs
    of_rows: str  # section of the rows


_PLACES = "places"  # where nodes are in the copy, fetched ahead of time
_COPIED = (_Copied("Q", "d_of", "s_of", "X", "X"), _Copied("W", "z_of", "y_of", "Z", "R"))


def _block(lines: list[str]) -> list[str]:
    return [*block_of_lanes(lines), "SYNC"]


def _arrays(memory: LaneMemory, copied: _Copied) -> list[tuple[str, int, int, int]]:
    """Arrays with the first row of their copy, its number of rows, and the size of the array."""
    rows = memory.sections["Z"].count
    return [
        (copied.variables, 0, rows, memory.n_vars),
        (copied.rows, rows, len(memory.rows), memory.n_cons),
    ]


def _held(memory: LaneMemory) -> list[tuple[str, int, int, int]]:
    """Source for parameters that have a copy, with the first value in place of the first row."""
    at = memory.held_at
    return [(f"{n}_of", at[n], -(-count // LANES), count) for n, count in memory.held.items()]


def _lines(how: str, memory: LaneMemory) -> list[str]:
    """Applies PUT or GIVE_BACK to all arrays."""
    return [
        f"{how}({copied.section}, {array}, {first}, {rows}, {count})"
        for copied in _COPIED
        for array, first, rows, count in _arrays(memory, copied)
    ]


def _own(memory: LaneMemory, copied: _Copied) -> list[str]:
    """Places of the values of all nodes in the memory of the lane."""
    return [
        f"MEM({copied.of_rows}_ROWS + {i})"
        if node.is_row
        else f"MEM({copied.of_variables}_ROWS + {memory.row_of(copied.of_variables, node)})"
        for i, node in enumerate(memory.nodes)
    ]


def _in_copy(memory: LaneMemory, copied: _Copied) -> list[str]:
    """Places of the same values in the copy."""
    return [f"COPY_AT({copied.section}, {entry(i)})" for i in range(len(memory.nodes))]


def _moved(to: list[str], taken_from: list[str]) -> list[str]:
    """Assigns all values after all have been read."""
    lines = [f"const SCALAR x{i} = {place};" for i, place in enumerate(taken_from)]
    return [*lines, *(f"{place} = x{i};" for i, place in enumerate(to))]


def discard_places(memory: LaneMemory) -> str:
    """Clears the places fetched before."""
    return discard(len(memory.nodes), _PLACES)


def fetch_places(memory: LaneMemory) -> str:
    """Fetches the places of nodes, each time again, so that they occupy no registers in between.

    The macro variable ``nothing`` hides from the compiler that the loads are the same.
    """
    return fetch(len(memory.nodes), _PLACES, "nodes + nothing")


def _places(memory: LaneMemory) -> list[str]:
    return found(len(memory.nodes), _PLACES, "nodes")


def fetch_arrays(memory: LaneMemory) -> list[str]:
    """Fetches parameters, d, s, z and y, and the places of their values in the copy."""
    arrays = [array for copied in _COPIED for array in _arrays(memory, copied)]
    takes = [
        f"TAKE({array}, {rows}, {count})" for array, _, rows, count in (*_held(memory), *arrays)
    ]
    return [*takes, declared(len(memory.nodes), _PLACES), fetch_places(memory)]


def taken(memory: LaneMemory) -> list[str]:
    """Copies parameters, d, s, z and y into the memory of the lanes.

    Values of d, s, z and y that are not finite set ``odd`` or ``lost``.
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


def copy_back(memory: LaneMemory) -> list[str]:
    """Copies d, s, z and y back to the caller; `fetch_places` has to precede it."""
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
    """Pointers and reads of the inputs of one problem."""

    def __init__(self, names: Sequence[str], memory: LaneMemory):
        """Keeps the names and the memory.

        Args:
            names: Names of all inputs, in order.
            memory: Memory with copies of parameters, if there are any.
        """
        self._names, self._m = names, memory
        self._parameters = [(i, name) for i, name in enumerate(names) if name not in OF_LANES]

    def pointers(self) -> str:
        """Declares ``p_of``, ..., the arrays of the caller, and the pointers that stages read from."""
        lines = []
        for i, name in self._parameters:
            own = f"({name}_in.shape[0] > 1 ? problem : 0) * {name}_in.shape[1]"
            lines.append(f"const SCALAR* __restrict__ {name}_of = {name}_in.data + {own};")
            at = self._m.held_at.get(name)
            where = f"{name}_of" if at is None else f"PARAMETERS + {at}"
            lines.append(f"const SCALAR* in{i} = {where};")
        return "\n".join(lines)

    def prefetches(self) -> str:
        """Prefetches the arrays of a later problem, where each problem has its own."""
        lines = []
        for _, name in self._parameters:
            count = f"{name}_in.shape[1]"
            asked = f"ASK_LATER({name}_of + FOLLOWING * {count}, {count})"
            lines.append(f"if ({name}_in.shape[0] > 1) {{ {asked} }}")
        return "\n".join(lines)

    def reads(self) -> dict[str, str]:
        """Expression of one value of each input, for `codegen.kernel_source.inlined`."""
        texts = {}
        for i, name in enumerate(self._names):
            if name in OF_LANES:
                texts[f"in{i}"] = "*(base + {place})"
            elif name in self._m.held:
                texts[f"in{i}"] = f"*(in{i} + {{place}})"
            else:
                texts[f"in{i}"] = f"READ(in{i}, {{place}})"
        return texts
