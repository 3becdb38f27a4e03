"""Generated Warp modules that evaluate stage functions on tiles.

Reads: programs with the rows that their arguments have at each stage.  Produces: the source of a
Python module with one kernel, and the table of rows that the kernel reads.

A warp evaluates one stage of one tile.  The row of an element at a stage is an entry of the table
plus a constant in the source: elements that move alike from stage to stage share an entry, so that
a stage needs a handful of entries however many elements it has, and the source does not depend on
the horizon.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import numpy as np

from warpmpc.codegen import emit_native, kernel_source
from warpmpc.codegen.emit_native import Access, Place, struct_source
from warpmpc.codegen.ir import IntArray, ScalarProgram
from warpmpc.codegen.kernel_source import Argument, KernelSource, arguments
from warpmpc.codegen.native import preamble as native_preamble
from warpmpc.codegen.native.preamble import PREAMBLE
from warpmpc.codegen.sharing import LONG, Values, elements_within


@dataclass(frozen=True, eq=False)
class StageCase:
    """One program and the stages that it belongs to.

    Attributes:
        program: One input per input array and one output per output array; size 0 if unused.
        stages: Stages, in the order of the rows below.
        in_rows: For each input array the rows of its elements, ``[n_stages, n_in_i]``.
        out_rows: For each output array the rows of its elements, ``[n_stages, n_out_j]``.
    """

    program: ScalarProgram
    stages: np.ndarray
    in_rows: tuple[np.ndarray, ...]
    out_rows: tuple[np.ndarray, ...]


@dataclass(frozen=True, eq=False)
class StagePlan:
    """Cases and table entries, from which the source of a module and its table are made.

    Attributes:
        cases: Programs with their stages.
        accesses: For each case the places of its arguments, in terms of its table entries.
        table: For each stage (case, first entry), then all entries.
        n_items: Stages over all cases.
    """

    cases: tuple[StageCase, ...]
    accesses: tuple[Access, ...]
    table: IntArray
    n_items: int


def shared_cases(cases: Sequence[StageCase], long: int = LONG) -> list[StageCase]:
    """Cases where a long program that contains another one runs that one, and the rest alone.

    Stages may then belong to two cases.  Results keep their bits: each output is the same
    expression.

    Args:
        cases: Programs with their stages.
        long: Operations from which on programs are compared.
    """
    many = [case for case in cases if case.program.n_ops >= long]
    if len(many) < 2:
        return list(cases)
    values = Values()
    numbers = {id(case): values.of(case.program) for case in many}
    found = []
    for case in cases:
        others = [other for other in many if case in many and other is not case]
        found += next(
            (
                parts
                for other in others
                if (parts := _divided(case, other, numbers[id(other)], numbers[id(case)]))
            ),
            [case],
        )
    return found


def _divided(
    case: StageCase, other: StageCase, inner: list[IntArray], outer: list[IntArray]
) -> list[StageCase]:
    """The stages of a case with the program of another one, and what is missing; or nothing."""
    sizes = (case.program.output_sizes, other.program.output_sizes)
    # The stage before a smaller last one has fewer variables: the first ones of every input.
    own, given = other.program.input_sizes, case.program.input_sizes
    if any(size > most for size, most in zip(own, given, strict=True)) or sizes[0] == sizes[1]:
        return []  # equal ones are joined by `merged_cases`
    within = elements_within(inner, outer)
    if within is None:
        return []
    rest = [
        np.setdiff1d(np.arange(size, dtype=np.int32), elements)
        for size, elements in zip(sizes[0], within, strict=True)
    ]
    first = _columns(case.in_rows, [np.arange(size, dtype=np.int32) for size in own])
    return [
        replace(case, program=program, in_rows=in_rows, out_rows=_columns(case.out_rows, elements))
        for program, in_rows, elements in (
            (other.program, first, within),
            (case.program.part(rest), case.in_rows, rest),
        )
    ]


def _columns(rows: tuple[np.ndarray, ...], elements: Sequence[IntArray]) -> tuple[np.ndarray, ...]:
    return tuple(np.asarray(r)[:, e] for r, e in zip(rows, elements, strict=True))


def merged_cases(cases: Sequence[StageCase]) -> list[StageCase]:
    """Removes inputs that are not read, and merges cases that compute the same.

    The stage before a smaller last one differs from others in variables that it does not use.
    """
    found: dict[str, StageCase] = {}
    for case in cases:
        program, kept = case.program.pruned()
        rows = zip(case.in_rows, kept, strict=True)
        case = StageCase(
            program,
            np.asarray(case.stages),
            tuple(np.asarray(of_input)[:, elements] for of_input, elements in rows),
            tuple(np.asarray(of_output) for of_output in case.out_rows),
        )
        known = found.get(program.hash)
        found[program.hash] = case if known is None else _joined(known, case)
    return list(found.values())


def _joined(first: StageCase, second: StageCase) -> StageCase:
    """Both cases as one, with the program of the first."""
    pairs = [
        tuple(
            np.concatenate(rows) for rows in zip(getattr(first, x), getattr(second, x), strict=True)
        )
        for x in ("in_rows", "out_rows")
    ]
    stages = np.concatenate([first.stages, second.stages])
    return StageCase(first.program, stages, *pairs)


def plan_stages(cases: Sequence[StageCase], n_items: int | None = None) -> StagePlan:
    """Shares table entries between elements and puts the stages of all cases in one order.

    Args:
        cases: Programs with their stages.
        n_items: If given, items are all numbers below it; those without a case get -1.
    """
    accesses, entries, items = [], [], []
    start = 2 * (sum(len(case.stages) for case in cases) if n_items is None else n_items)
    for number, case in enumerate(cases):
        access, bases = _access(case)
        accesses.append(access)
        for a, stage in enumerate(np.asarray(case.stages).tolist()):
            items.append((stage, number, start + a * bases.shape[1]))
        entries.append(bases.ravel())
        start += bases.size
    if n_items is not None:
        missing = set(range(n_items)) - {stage for stage, *_ in items}
        items += [(stage, -1, 0) for stage in missing]
    # Neighbouring warps work on neighbouring stages: what they read is contiguous.
    items.sort()
    head = np.array([item[1:] for item in items], dtype=np.int64).ravel()
    table = np.concatenate([head, *entries]).astype(np.int32)
    return StagePlan(tuple(cases), tuple(accesses), table, len(items))


def _access(case: StageCase) -> tuple[Access, np.ndarray]:
    """Places of all arguments of a case and its table entries, ``[n_stages, n_entries]``."""
    columns: list[np.ndarray] = []
    places: list[tuple[Place, ...]] = []
    for given in (*case.in_rows, *case.out_rows):
        rows = np.asarray(given, dtype=np.int64)
        first, group = _moving_alike(rows)
        offsets = rows[0] - rows[0, first][group]
        places.append(tuple(zip((len(columns) + group).tolist(), offsets.tolist(), strict=True)))
        columns += list(rows[:, first].T)
    n_stages, n_inputs = len(case.stages), len(case.in_rows)
    bases = np.array(columns, dtype=np.int64).reshape(-1, n_stages).T
    return Access(tuple(places[:n_inputs]), tuple(places[n_inputs:])), bases


def _moving_alike(rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Groups elements whose rows differ by the same number at all stages.

    A single stage does not show what moves alike; there only neighbours form a group, so that the
    distance between others, such as the size of all other stages, does not enter the source.

    Returns:
        First element of each group, and the group of each element.
    """
    if not rows.shape[1]:
        return np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64)
    moves = rows - rows[:1]
    if len(rows) == 1:
        moves = np.cumsum(np.diff(rows, axis=1, prepend=rows[:, :1] - 1) != 1, axis=1)
    _, first, group = np.unique(moves, axis=1, return_index=True, return_inverse=True)
    return first, group.ravel()


def module_key(
    name: str, plan: StagePlan, arrays: tuple[Sequence[str], Sequence[str]], dtype: str
) -> str:
    """Hash of everything that the source depends on, the generator included."""
    digest = hashlib.sha256(repr((_generator(), name, arrays, dtype)).encode())
    for case, access in zip(plan.cases, plan.accesses, strict=True):
        digest.update(repr((case.program.name, case.program.hash, access)).encode())
    return digest.hexdigest()


@cache
def _generator() -> str:
    """Hash of the files that generate the source: a changed generator finds no old modules."""
    modules = (emit_native, kernel_source, native_preamble)
    files = (*(module.__file__ for module in modules), __file__)
    return hashlib.sha256(b"".join(Path(str(file)).read_bytes() for file in files)).hexdigest()


_BODY = r"""
{structs}

const int tile = (thread >> 5) / n_items, item = (thread >> 5) % n_items;
if (tile >= {first_output}.shape[0]) return;
const int* __restrict__ rows = table_in.data;
const int kind = ROW(2 * item), begin = ROW(2 * item + 1);
rows += begin;
#define BASE(array) \
    ((array).data + (Offset)(tile % (array).shape[0]) * (array).shape[1] * TILE + lane)
#if defined(__CUDA_ARCH__)
const int lane = thread & 31;
#else
if (thread & 31) return;  // one thread does the whole tile
for (int lane = 0; lane < TILE; lane += WIDTH)
#endif
switch (kind) {{
{calls}
}}"""


def stage_source(
    name: str,
    plan: StagePlan,
    arrays: tuple[Sequence[str], Sequence[str]],
    dtype: str,
    title: str = "",
    *,
    changes: bool = False,
) -> KernelSource:
    """The kernel `name`, which takes the inputs, the table, n_items and the outputs.

    Args:
        name: Name of the kernel.
        plan: What it evaluates.
        arrays: Names of the input arrays and of the output arrays.
        dtype: "float32" or "float64".
        title: One line for readers of the generated file.
        changes: Whether the output arrays exist already, and other rows of them are kept.
    """
    suffix = "io" if changes else "out"
    inputs, outputs = [f"{array}_in" for array in arrays[0]], [f"{a}_{suffix}" for a in arrays[1]]
    return KernelSource(
        name=name,
        title=title or name,
        dtype=dtype,
        inputs=[
            *arguments("real", *inputs),
            Argument("table_in", "table"),
            Argument("n_items", "number"),
        ],
        outputs=arguments("real", *outputs),
        head=PREAMBLE[dtype],
        merged=32,
        any_lanes=True,
        body=lambda: _body(plan, inputs, outputs, dtype),
        plans=[plan],
        content=module_key(name, plan, (inputs, outputs), dtype),
    )


def _body(plan: StagePlan, inputs: Sequence[str], outputs: Sequence[str], dtype: str) -> str:
    bases = ", ".join(f"BASE({array})" for array in (*inputs, *outputs))
    structs, calls = [], []
    for number, (case, access) in enumerate(zip(plan.cases, plan.accesses, strict=True)):
        structs.append(struct_source(case.program, f"Case{number}", access, dtype))
        calls.append(f"case {number}: Case{number}::run({bases}, rows); break;")
    return _BODY.format(
        structs="\n\n".join(structs), first_output=outputs[0], calls="\n".join(calls)
    )
