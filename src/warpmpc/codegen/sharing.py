"""Long programs that compute all that another one computes, and a little more.

Reads: two programs with the same inputs.  Produces: where the outputs of the one are among those of
the other, so that both can share code.  The first stage of an optimal control problem is the usual
case: its rows are those of the next stages and the initial state.
"""

from __future__ import annotations

from collections import defaultdict, deque

import numpy as np

from warpmpc.codegen.ir import ABSENT, IntArray, Op, ScalarProgram

# Each function of a kernel is compiled once per program; below this, that takes no time.
LONG = 10_000

_SYMMETRIC = frozenset({Op.ADD, Op.MUL, Op.EQ, Op.NE, Op.AND, Op.OR})
Key = tuple[object, ...]


class Values:
    """Numbers for what programs compute: equal for equal expressions of the same inputs."""

    def __init__(self) -> None:
        """Knows nothing yet."""
        self._known: dict[Key, int] = {}

    def of(self, program: ScalarProgram) -> list[IntArray]:
        """The number of each element of each output of a program."""
        sizes = enumerate(program.input_sizes)
        number = [self._number(("input", i, e)) for i, size in sizes for e in range(size)]
        # As bytes a NaN equals itself, and zeros of different sign differ.
        number += [self._number(("constant", c.tobytes())) for c in program.constants]
        operations = (program.ops.tolist(), program.left.tolist(), program.right.tolist())
        for op, left, right in zip(*operations, strict=True):
            a, b = number[left], ABSENT if right == ABSENT else number[right]
            if op in _SYMMETRIC and b < a:
                a, b = b, a
            number.append(self._number((op, a, b)))
        found = np.array(number, dtype=np.int32)
        return [found[values] for values in program.outputs]

    def _number(self, key: Key) -> int:
        return self._known.setdefault(key, len(self._known))


def elements_within(inner: list[IntArray], outer: list[IntArray]) -> list[IntArray] | None:
    """For each output the elements of the outer program that are those of the inner one.

    Args:
        inner: Numbers of the outputs of a program, by `Values`.
        outer: Those of another one.

    Returns:
        None if the outer program does not compute all of them.
    """
    found = []
    for wanted, given in zip(inner, outer, strict=True):
        places: dict[int, deque[int]] = defaultdict(deque)
        for element, number in enumerate(given.tolist()):
            places[number].append(element)
        elements = [places[number].popleft() for number in wanted.tolist() if places[number]]
        if len(elements) < wanted.size:
            return None
        found.append(np.array(elements, dtype=np.int32))
    return found
