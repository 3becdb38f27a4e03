"""Rounds of stage programs: in each every lane evaluates a case for one of its stages, or none.

Reads: a `StagePlan` whose items are rounds of 32 lanes.  Produces: the table of its items, and text
that finds the case and the offsets of an item there.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from warpmpc.codegen.emit_native import Access
from warpmpc.codegen.fused_module import switch
from warpmpc.codegen.stage_module import StagePlan
from warpmpc.symbolic.lanes import LANES


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


def asked_for(count: int, table: str) -> list[str]:
    """Asks for some numbers of a lane in a table `by_fours`."""
    return [f"FIRST_ENTRIES({i}, {table})" for i in range(-(-count // 4))]


def found(count: int, table: str) -> list[str]:
    """Waits for them; then they are what `entry` says."""
    return [f"ENTRIES({i}, {table})" for i in range(-(-count // 4))]


def entry(i: int) -> str:
    """Text of one of them."""
    return f"ENTRY({i // 4}, {'xyzw'[i % 4]}, {i % 4})"


def dispatched(plan: StagePlan, cases: Sequence[list[str]]) -> str:
    """The case of an item; ``row`` and ``next`` are the tables of this round and of the next."""
    width = item_width(plan)
    lines = found(width, "row")
    # Asked for before the choice, the number of the next case would be waited for at once.
    ahead = " ".join(f"NEXT_ENTRIES({i}, next)" for i in range(width // 4))
    lines += [f"const int r{i - 1} = {entry(i)};" for i in range(1, width)]
    bodies = [[ahead, *(line for line in case if "= ROW(" not in line)] for case in cases]
    return "\n".join([*lines, switch(entry(0), bodies, default=ahead)])
