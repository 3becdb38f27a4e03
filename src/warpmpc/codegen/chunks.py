"""Division of long programs, so that compilers see functions of bounded length.

Reads: a `ScalarProgram`.  Produces: `Chunk` by `Chunk`, what each one computes, what it needs from
earlier ones and what later ones need from it.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass

import numpy as np

from warpmpc.codegen.ir import IntArray, ScalarProgram


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
