"""Rounds of stage programs: in each every lane evaluates a case for one of its stages, or none.

Reads: a `StagePlan` whose items are rounds of 32 lanes.  Produces: the table of its items, and text
that finds the case and the offsets of an item there.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from warpmpc.codegen.emit_native import Access
from warpmpc.codegen.stage_functions import StagePlan
from warpmpc.engines.onchip.lanes import LANES

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
