"""`ScalarProgram` as native C++ source, for NVRTC on CUDA and Warp's clang on the CPU.

Reads: a program and where its inputs and outputs lie.  Produces: a local struct whose static
functions evaluate the program.  A long program is cut into chunks, so that compilers see functions
of bounded length: `plan_chunks` finds what each one reads and leaves for later ones.  The source
needs `codegen.native.preamble` before it.

Names in the source: ``v12`` is the value of operation 12, ``x0_3`` element 3 of input 0, ``k2``
constant 2, ``r4`` entry 4 of the table of rows, ``carried[5]`` what a chunk leaves for later ones.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from warpmpc.codegen.ir import ABSENT, IntArray, Op, ScalarProgram
from warpmpc.codegen.native.preamble import QUICK

# Compile time of a function grows faster than its length; between chunks values go through memory.
CHUNK_LENGTH = 1000
# A sine is a hundred instructions on CUDA: inlined everywhere it fills the instruction cache, and
# compiling takes ten times as long.
INLINED_USES = 16

_EXPRESSIONS = {
    Op.ADD: "{a} + {b}",
    Op.SUB: "{a} - {b}",
    Op.MUL: "{a} * {b}",
    Op.DIV: "DIVIDED({a}, {b})",
    Op.NEG: "-{a}",
    Op.SQ: "{a} * {a}",
    Op.TWICE: "{a} + {a}",
    Op.INV: "DIVIDED((Pack)1, {a})",
    Op.LT: "{a} < {b} ? (Pack)1 : (Pack)0",
    Op.LE: "{a} <= {b} ? (Pack)1 : (Pack)0",
    Op.EQ: "{a} == {b} ? (Pack)1 : (Pack)0",
    Op.NE: "{a} != {b} ? (Pack)1 : (Pack)0",
    Op.NOT: "{a} == 0 ? (Pack)1 : (Pack)0",
    Op.AND: "(({a} != 0) & ({b} != 0)) ? (Pack)1 : (Pack)0",
    Op.OR: "(({a} != 0) | ({b} != 0)) ? (Pack)1 : (Pack)0",
    Op.IF_ELSE_ZERO: "{a} != 0 ? {b} : (Pack)0",
    Op.SIGN: "{a} < 0 ? (Pack)-1 : ({a} > 0 ? (Pack)1 : {a})",
}

Place = tuple[int, int]


@dataclass(frozen=True)
class Access:
    """Where the arguments of a program lie in a tile.

    A place is an entry of the table of rows and what is added to it.

    Attributes:
        inputs: For each input the place of each element.
        outputs: The same for each output.
    """

    inputs: tuple[tuple[Place, ...], ...]
    outputs: tuple[tuple[Place, ...], ...]


def literal(number: float, dtype: str) -> str:
    """A constant with all its digits: the compiler reads the same number."""
    with np.errstate(over="ignore"):  # what float32 cannot hold is infinite there
        rounded = np.float32(number) if dtype == "float32" else np.float64(number)
    if np.isnan(rounded):
        return "(SCALAR)NAN"
    if np.isinf(rounded):
        return "(SCALAR)INFINITY" if rounded > 0 else "(SCALAR)-INFINITY"
    return f"{rounded!s}{'f' if dtype == 'float32' else ''}"


def struct_source(
    program: ScalarProgram, label: str, access: Access, dtype: str, length: int = CHUNK_LENGTH
) -> str:
    """Struct `label` with a function ``run``: base of each input and each output, table of rows."""
    plan = plan_chunks(program, length)
    inputs = [f"in{i}" for i in range(len(program.input_sizes))]
    outputs = [f"out{j}" for j in range(len(program.outputs))]
    parameters = [f"const SCALAR* __restrict__ {name}" for name in inputs]
    parameters += [f"SCALAR* __restrict__ {name}" for name in outputs]
    parameters.append("const int* __restrict__ rows")
    arguments, declared = [*inputs, *outputs, "rows"], parameters
    several = len(plan.chunks) > 1
    if several:
        arguments, declared = [*arguments, "carried"], [*parameters, "Pack* __restrict__ carried"]
    attribute, writer = "PART" if several else "WHOLE", _Writer(program, access, dtype)
    calls = [f"part{number}({', '.join(arguments)});" for number in range(len(plan.chunks))]
    if several:
        calls = [f"CARRIED({plan.n_slots})", *calls, "RELEASE_CARRIED"]
    lines = [f"// {program.name}: {program.n_ops} operations, content {program.hash[:16]}"]
    lines.append(f"struct {label} {{")
    for number, chunk in enumerate(plan.chunks):
        lines += _function(f"{attribute} void part{number}", declared, writer.body(chunk))
    lines += _function("CUDA_CALLABLE void run", parameters, calls)
    return "\n".join([*lines, "};"])


def inline_source(
    program: ScalarProgram, dtype: str, read: Callable[[int, int], str]
) -> tuple[list[str], list[list[str]]]:
    """A whole program as statements inside other source, and the names of its outputs there.

    Args:
        program: Short enough not to be cut.
        dtype: "float32" or "float64".
        read: Expression of an element of an input.
    """
    of = _Statements(program, dtype)
    values = [*program.left, *program.right, *(v for out in program.outputs for v in out)]
    leaves = sorted({int(v) for v in values if ABSENT != v < program.n_leaves})
    lines = [of.leaf(value, read) for value in leaves]
    lines += [of.operation(number) for number in range(program.n_ops)]
    return lines, [[of.names[value] for value in out.tolist()] for out in program.outputs]


def _function(name: str, parameters: list[str], body: list[str]) -> list[str]:
    lines = [f"    static {name}("]
    lines += [f"        {parameter}," for parameter in parameters[:-1]]
    lines += [f"        {parameters[-1]}) {{", *(f"        {line}" for line in body), "    }"]
    return lines


class _Statements:
    """Declares the values of a program one by one."""

    def __init__(self, program: ScalarProgram, dtype: str):
        self._program = program
        sizes = enumerate(program.input_sizes)
        self.arguments = [(i, element) for i, size in sizes for element in range(size)]
        self.names = [f"x{i}_{element}" for i, element in self.arguments]
        self.names += [f"k{index}" for index in range(program.constants.size)]
        self.names += [f"v{number}" for number in range(program.n_ops)]
        self._called = {Op(op) for op in np.flatnonzero(np.bincount(program.ops) > INLINED_USES)}
        self._literals = [literal(number, dtype) for number in program.constants.tolist()]

    def leaf(self, value: int, read: Callable[[int, int], str]) -> str:
        """A constant, or an element of an input as `read` says."""
        beyond = value - self._program.n_inputs
        text = read(*self.arguments[value]) if beyond < 0 else f"(Pack){self._literals[beyond]}"
        return f"const Pack {self.names[value]} = {text};"

    def operation(self, number: int) -> str:
        """What operation `number` computes."""
        program = self._program
        op, left, right = Op(program.ops[number]), program.left[number], program.right[number]
        return f"const Pack v{number} = {self._expression(op, int(left), int(right))};"

    def _expression(self, op: Op, left: int, right: int) -> str:
        a, b = self.names[left], "" if right == ABSENT else self.names[right]
        if op in _EXPRESSIONS:
            return _EXPRESSIONS[op].format(a=a, b=b)
        name = op.name.lower()
        struct = "Quick" if name in QUICK else "Called" if op in self._called else "Math"
        return f"{struct}::{name}({a}{', ' if b else ''}{b})"


class _Writer:
    """Writes the operations of a program, chunk by chunk."""

    def __init__(self, program: ScalarProgram, access: Access, dtype: str):
        self._program, self._access = program, access
        self._of = _Statements(program, dtype)

    def body(self, chunk: Chunk) -> list[str]:
        """Statements of one chunk."""
        program, names = self._program, self._of.names
        span = slice(chunk.begin, chunk.end)
        left, right = (a[span].tolist() for a in (program.left, program.right))
        used = {*left, *right, *(value for *_, value in chunk.outputs)} - {ABSENT}
        leaves = sorted(value for value in used if value < program.n_leaves)
        lines = self._rows(leaves, chunk)
        lines += [self._of.leaf(value, self._read) for value in leaves]
        lines += [f"const Pack {names[value]} = carried[{slot}];" for value, slot in chunk.reads]
        lines += [self._of.operation(number) for number in range(chunk.begin, chunk.end)]
        lines += [f"carried[{slot}] = {names[value]};" for value, slot in chunk.writes]
        for j, element, value in chunk.outputs:
            place = place_source(self._access.outputs[j][element])
            lines.append(f"AT(out{j}, {place}) = {names[value]};")
        return lines

    def _read(self, i: int, element: int) -> str:
        return f"GET(in{i}, {place_source(self._access.inputs[i][element])})"

    def _rows(self, leaves: list[int], chunk: Chunk) -> list[str]:
        """Declares the entries of the table that a chunk needs."""
        n_inputs, access = self._program.n_inputs, self._access
        arguments = (self._of.arguments[value] for value in leaves if value < n_inputs)
        slots = {access.inputs[i][element][0] for i, element in arguments}
        slots |= {access.outputs[j][element][0] for j, element, _ in chunk.outputs}
        return [f"const int r{slot} = ROW({slot});" for slot in sorted(slots)]


def place_source(place: Place) -> str:
    """The row at a place."""
    slot, offset = place
    return f"r{slot} + {offset}" if offset >= 0 else f"r{slot} - {-offset}"


@dataclass(frozen=True, eq=False)
class Chunk:
    """Consecutive operations that become one function.

    Attributes:
        begin: First operation.
        end: Behind the last operation.
        reads: Value and slot of what earlier chunks left, in order of slots.
        writes: Value and slot of what this chunk leaves for later ones.
        outputs: Output, element and value of what is final after this chunk.
    """

    begin: int
    end: int
    reads: tuple[tuple[int, int], ...]
    writes: tuple[tuple[int, int], ...]
    outputs: tuple[tuple[int, int, int], ...]


@dataclass(frozen=True, eq=False)
class ChunkPlan:
    """All chunks of a program and the number of slots between them."""

    chunks: tuple[Chunk, ...]
    n_slots: int


def plan_chunks(program: ScalarProgram, length: int) -> ChunkPlan:
    """Cuts a program into chunks of at most `length` operations, where few values are alive.

    Slots are reused as soon as the last chunk that reads them is through.
    """
    last = _last_use(program)
    cuts = _cuts(program, last, length)
    home = (np.searchsorted(cuts, np.arange(program.n_ops), side="right") - 1).astype(np.int32)
    until = _last_chunk(program, home)
    slots, n_slots = _assign_slots(home, until)
    return ChunkPlan(_chunks(program, cuts, home, until, slots), n_slots)


def _operands(program: ScalarProgram) -> tuple[IntArray, IntArray]:
    """Reader and read operation of every use of an operation by another one."""
    reader = np.tile(np.arange(program.n_ops, dtype=np.int32), 2)
    read = np.concatenate([program.left, program.right]) - program.n_leaves
    inner = read >= 0
    return reader[inner], read[inner].astype(np.int32)


def _last_use(program: ScalarProgram) -> IntArray:
    """Last operation that reads each operation; outputs are stored at once and not read again."""
    last = np.arange(program.n_ops, dtype=np.int32)
    reader, read = _operands(program)
    np.maximum.at(last, read, reader)
    return last


def _cuts(program: ScalarProgram, last: IntArray, length: int) -> IntArray:
    """First operation of each chunk."""
    n = program.n_ops
    # Alive at a cut before operation c: defined before c, read at c or later.
    change = np.zeros(n + 2, dtype=np.int64)
    np.add.at(change, np.arange(n) + 1, 1)
    np.add.at(change, last + 1, -1)
    alive = np.cumsum(change)
    # At least half the length, or chunks become many; ties go to the longest chunk.
    cuts, least = [0], max(1, length // 2)
    while n - cuts[-1] > length:
        window = alive[cuts[-1] + least : cuts[-1] + length + 1]
        cuts.append(cuts[-1] + length - int(np.argmin(window[::-1])))
    return np.array(cuts, dtype=np.int32)


def _last_chunk(program: ScalarProgram, home: IntArray) -> IntArray:
    """Last chunk that reads each operation; its own chunk if no other one does."""
    until = home.astype(np.int32)
    reader, read = _operands(program)
    np.maximum.at(until, read, home[reader].astype(np.int32))
    return until


def _assign_slots(home: IntArray, until: IntArray) -> tuple[dict[int, int], int]:
    """Slot of each operation that is read in a later chunk, and how many slots there are."""
    slots: dict[int, int] = {}
    busy: list[tuple[int, int]] = []  # (last chunk that reads it, slot)
    free: list[int] = []
    n_slots = 0
    for op in np.flatnonzero(until > home).tolist():
        while busy and busy[0][0] < home[op]:
            heapq.heappush(free, heapq.heappop(busy)[1])
        slot = heapq.heappop(free) if free else n_slots
        n_slots = max(n_slots, slot + 1)
        slots[op] = slot
        heapq.heappush(busy, (int(until[op]), slot))
    return slots, n_slots


def _chunks(
    program: ScalarProgram,
    cuts: IntArray,
    home: IntArray,
    until: IntArray,
    slots: dict[int, int],
) -> tuple[Chunk, ...]:
    n_chunks, first = cuts.size, program.n_leaves
    reads: list[set[int]] = [set() for _ in range(n_chunks)]
    writes: list[list[tuple[int, int]]] = [[] for _ in range(n_chunks)]
    outputs: list[list[tuple[int, int, int]]] = [[] for _ in range(n_chunks)]
    for reader, read in zip(*_operands(program), strict=True):
        if home[reader] != home[read]:
            reads[home[reader]].add(int(read))
    for op, slot in slots.items():
        writes[home[op]].append((first + op, slot))
    for j, values in enumerate(program.outputs):
        for element, value in enumerate(values.tolist()):
            # Leaves are final from the start.
            outputs[home[value - first] if value >= first else 0].append((j, element, value))
    ends = [*cuts[1:].tolist(), program.n_ops]
    return tuple(
        Chunk(
            begin=int(cuts[i]),
            end=ends[i],
            reads=tuple(sorted(((first + op, slots[op]) for op in reads[i]), key=lambda r: r[1])),
            writes=tuple(writes[i]),
            outputs=tuple(outputs[i]),
        )
        for i in range(n_chunks)
    )
