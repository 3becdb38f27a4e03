"""Jacobians of long expressions by elimination of vertices.

Reads: expressions and the variables to differentiate for.  Produces: the sparse Jacobian, with far
fewer operations than forward or reverse mode where values pass through bottlenecks, as in rigid
body dynamics or between the steps of an integrator.

Every operation is a vertex, and its derivative with respect to an operand is an edge to it.  To
remove a vertex is to join its operands to those that read it: each pair costs a multiplication and,
if there is such an edge already, an addition.  In the end edges lead from the variables to the
expressions alone, and they are the entries of the Jacobian.  Any order is correct; forward mode
removes what was computed first, reverse mode what was computed last.  Here that vertex comes first
whose removal leaves the fewest edges more, as in sparse elimination.

CasADi's own Jacobian is kept where nothing would be saved, and for rows with operations that have
no entry in `_SLOPES`, such as choices: products of derivatives would turn an infinite slope of the
branch that is not taken into NaN.
"""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache

import casadi as ca

_WORTH = 0.8  # the largest share of CasADi's operations that may be left

_ONE, _MINUS_ONE = -1, -2  # factors that cost no multiplication
_UNITS = {_ONE: ca.SX(1), _MINUS_ONE: ca.SX(-1)}
_SLOPES: dict[int, Callable[[ca.SX, ca.SX, ca.SX], Sequence[ca.SX | int]]] = {
    # Value r of an operation and operands a, b -> derivatives with respect to a and b.
    ca.OP_ADD: lambda r, a, b: (_ONE, _ONE),
    ca.OP_SUB: lambda r, a, b: (_ONE, _MINUS_ONE),
    ca.OP_MUL: lambda r, a, b: (b, a),
    ca.OP_DIV: lambda r, a, b: (1 / b, -r / b),
    ca.OP_NEG: lambda r, a, b: (_MINUS_ONE,),
    ca.OP_SQ: lambda r, a, b: (2 * a,),
    ca.OP_TWICE: lambda r, a, b: (ca.SX(2),),
    ca.OP_INV: lambda r, a, b: (-r * r,),
    ca.OP_SQRT: lambda r, a, b: (1 / (2 * r),),
    ca.OP_SIN: lambda r, a, b: (ca.cos(a),),
    ca.OP_COS: lambda r, a, b: (-ca.sin(a),),
    ca.OP_TAN: lambda r, a, b: (1 + r * r,),
    ca.OP_EXP: lambda r, a, b: (r,),
    ca.OP_LOG: lambda r, a, b: (1 / a,),
    ca.OP_TANH: lambda r, a, b: (1 - r * r,),
    ca.OP_ATAN2: lambda r, a, b: (b / (a * a + b * b), -a / (a * a + b * b)),
}


def jacobian(expressions: ca.SX, variables: ca.SX) -> ca.SX:
    """The Jacobian of a column, with CasADi's structural nonzeros.

    Args:
        expressions: A column.
        variables: A column of symbols.
    """
    usual = ca.jacobian(expressions, variables)
    rows, columns = _curved_part(usual)
    # Without what differs from stage to stage: the same interval is differentiated once.
    part, active = ca.cse(expressions[rows]), variables[columns]
    free = ca.Function("free", [active], [part], {"allow_free": True}).free_sx()
    inputs = [active, ca.vertcat(ca.SX(0, 1), *free)]
    function, entries = _derivative(_recorded(ca.Function("given", inputs, [part])))
    if not entries:  # nothing is saved
        return usual
    found = usual[rows, columns]
    found.nz[list(entries)] = function(*inputs)
    result = ca.SX(usual)
    result[rows, columns] = found
    return result


def _curved_part(jacobian: ca.SX) -> tuple[list[int], list[int]]:
    """Rows with an entry that is not constant, and columns with entries in these rows."""
    rows, columns = jacobian.sparsity().get_triplet()
    curved = {row for k, row in enumerate(rows) if not jacobian.nz[k].is_constant()}
    return sorted(curved), sorted({j for i, j in zip(rows, columns, strict=True) if i in curved})


@dataclass(frozen=True)
class _Tape:
    """A function with two inputs and one output as CasADi lists it; equal ones have equal tapes.

    Attributes:
        sizes: Entries of the inputs and of the output.
        steps: For each instruction its operation, output, inputs and constant.
    """

    sizes: tuple[int, int, int]
    steps: tuple[tuple[int, tuple[int, ...], tuple[int, ...], float], ...]


def _recorded(function: ca.Function) -> _Tape:
    steps = []
    for k in range(function.n_instructions()):
        op = function.instruction_id(k)
        constant = function.instruction_constant(k) if op == ca.OP_CONST else 0.0
        places = (function.instruction_output(k), function.instruction_input(k))
        steps.append((op, *map(tuple, places), constant))
    sizes = (function.numel_in(0), function.numel_in(1), function.numel_out(0))
    return _Tape(sizes, tuple(steps))


@lru_cache(maxsize=16)
def _derivative(tape: _Tape) -> tuple[ca.Function, tuple[int, ...]]:
    """Function to some entries of the Jacobian, and which of CasADi's nonzeros they are.

    There are none if too little would be saved.  Stages of one problem often differ in their
    symbols only, so the last results are kept.
    """
    graph = _Graph(tape)
    usual = ca.jacobian(graph.outputs, graph.inputs[0])
    places = zip(*usual.sparsity().get_triplet(), strict=True)
    wanted = {
        place: k
        for k, place in enumerate(places)
        if place[0] in graph.rows and not usual.nz[k].is_constant()
    }
    found = _Elimination(graph).entries()
    nothing = ca.Function("nothing", graph.inputs, [ca.SX(0, 1)])
    if not wanted.keys() <= found.keys():
        return nothing, ()
    entries = tuple(wanted.values())
    functions = [
        ca.Function("entries", graph.inputs, [values])
        for values in (usual.nz[list(entries)], ca.vertcat(*(found[place] for place in wanted)))
    ]
    theirs, ours = (function.n_instructions() for function in functions)
    return (functions[1], entries) if ours < _WORTH * theirs else (nothing, ())


class _Graph:
    """Operations of a tape, numbered as they are computed, and their derivatives.

    Attributes:
        inputs: Symbols of both inputs.
        outputs: The output as an expression of them.
        factors: Derivatives that are neither 1 nor -1.
        slopes: For each operation that depends on the first input the derivative with respect to
            each operand that does: a place in `factors`, `_ONE` or `_MINUS_ONE`.
        columns: Entry of the first input by the number of what reads it.
        rows: Number of the operation of each output that can be eliminated.
    """

    def __init__(self, tape: _Tape):
        names = zip("wp", tape.sizes[:2], strict=True)
        self.inputs = [ca.SX.sym(name, size) for name, size in names]
        self.outputs = ca.SX(tape.sizes[2], 1)
        self.factors: list[ca.SX] = []
        self.slopes: dict[int, dict[int, int]] = {}
        self.columns: dict[int, int] = {}
        self.rows: dict[int, int] = {}
        self._rough: set[int] = set()
        self._values: dict[int, ca.SX] = {}  # what each place of CasADi's memory holds
        self._number: dict[int, int] = {}  # and which operation has computed it
        for number, (op, into, of, constant) in enumerate(tape.steps):
            if op == ca.OP_OUTPUT:
                self._read(into[1], of[0])
            elif op == ca.OP_INPUT:
                if of[0] == 0:
                    self.columns[number] = of[1]
                    self.slopes[number] = {}
                self._store(into[0], number, self.inputs[of[0]][of[1]])
            elif op == ca.OP_CONST:
                self._store(into[0], number, ca.SX(constant))
            else:
                self._operate(number, op, into[0], of)

    def _store(self, place: int, number: int, value: ca.SX) -> None:
        self._values[place], self._number[place] = value, number

    def _read(self, row: int, place: int) -> None:
        number = self._number[place]
        self.outputs[row] = self._values[place]
        if number in self.slopes and number not in self._rough:
            self.rows[row] = number

    def _operate(self, number: int, op: int, place: int, of: tuple[int, ...]) -> None:
        a, b = self._values[of[0]], self._values[of[-1]]
        value = ca.SX.unary(op, a) if len(of) == 1 else ca.SX.binary(op, a, b)
        operands = [self._number[i] for i in of]
        if any(i in self.slopes for i in operands):
            edges = self.slopes[number] = {}
            rough = op not in _SLOPES or any(i in self._rough for i in operands)
            if rough:
                self._rough.add(number)
            for i, slope in zip(operands, () if rough else _SLOPES[op](value, a, b), strict=False):
                if i in self.slopes:
                    edges[i] = self._joined(edges.get(i), slope)
        self._store(place, number, value)

    def _joined(self, known: int | None, slope: ca.SX | int) -> int:
        """A slope, and the one of the same operand on the other side."""
        if isinstance(slope, int) and known is None:
            return slope
        terms = [_UNITS[x] if x in _UNITS else self.factors[x] for x in (known,) if x is not None]
        self.factors.append(sum(terms, _UNITS[slope] if isinstance(slope, int) else slope))
        return len(self.factors) - 1


class _Elimination:
    """Removes vertex after vertex; what is to be computed is noted and done at the end."""

    def __init__(self, graph: _Graph):
        self._graph = graph
        self._steps: list[tuple[int, int, int]] = []  # operation and two factors
        # Negative numbers are those of the outputs.
        self._reads: dict[int, dict[int, int]] = {
            ~row: {number: _ONE} for row, number in graph.rows.items()
        }
        self._read_by: dict[int, set[int]] = {}
        waiting = list(self._reads)
        while waiting:
            reader = waiting.pop()
            for number in self._reads[reader]:
                if number not in self._read_by:
                    self._read_by[number] = set()
                    self._reads[number] = dict(graph.slopes[number])
                    waiting.append(number)
                self._read_by[number].add(reader)

    def entries(self) -> dict[tuple[int, int], ca.SX]:
        """Entries of the Jacobian by row and column."""
        inner = [number for number in self._read_by if number not in self._graph.columns]
        waiting = [(self._growth(number), number) for number in inner]
        heapq.heapify(waiting)
        while waiting:
            growth, number = heapq.heappop(waiting)
            now = self._growth(number)
            if now == growth:
                self._remove(number)
            else:
                heapq.heappush(waiting, (now, number))
        values, columns = self._values(), self._graph.columns
        return {
            (~end, columns[number]): values.nz[factor]
            for end, edges in self._reads.items()
            if end < 0
            for number, factor in edges.items()
        }

    def _growth(self, number: int) -> int:
        """How many edges more there are at most without a vertex."""
        below, above = len(self._reads[number]), len(self._read_by[number])
        return below * above - below - above

    def _remove(self, number: int) -> None:
        below = self._reads.pop(number)
        for reader in sorted(self._read_by.pop(number)):
            edges = self._reads[reader]
            outer = edges.pop(number)
            for operand, inner in below.items():
                factor = self._product(outer, inner)
                if operand in edges:
                    factor = self._noted(ca.OP_ADD, edges[operand], factor)
                edges[operand] = factor
                self._read_by[operand].add(reader)
        for operand in below:
            self._read_by[operand].discard(number)

    def _product(self, a: int, b: int) -> int:
        if a == _ONE or b == _ONE:
            return b if a == _ONE else a
        if a == _MINUS_ONE or b == _MINUS_ONE:
            other = b if a == _MINUS_ONE else a
            return _ONE if other == _MINUS_ONE else self._noted(ca.OP_NEG, other, other)
        return self._noted(ca.OP_MUL, a, b)

    def _noted(self, op: int, a: int, b: int) -> int:
        self._steps.append((op, a, b))
        return len(self._graph.factors) + len(self._steps) - 1

    def _values(self) -> ca.SX:
        """The value of each factor; those of the units stand last, where -1 and -2 find them."""
        first = len(self._graph.factors)
        units = [_UNITS[_MINUS_ONE], _UNITS[_ONE]]
        values = ca.vertcat(*self._graph.factors, ca.SX.zeros(len(self._steps)), *units)
        # Those that wait for equally many others are computed by one call of CasADi.
        depth = [0] * values.numel()
        together: dict[tuple[int, int], list[int]] = defaultdict(list)
        for number, (op, a, b) in enumerate(self._steps, start=first):
            depth[number] = 1 + max(depth[a], depth[b])
            together[depth[number], op].append(number)
        for (_, op), numbers in sorted(together.items()):
            steps = [self._steps[number - first] for number in numbers]
            a, b = (values.nz[[step[i] for step in steps]] for i in (1, 2))
            values.nz[numbers] = ca.SX.unary(op, a) if op == ca.OP_NEG else ca.SX.binary(op, a, b)
        return values
