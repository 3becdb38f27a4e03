"""Chunks compute what the whole program computes, with few values between them."""

from itertools import pairwise

import casadi as ca
import pytest

from warpmpc.codegen.emit_native import ChunkPlan, plan_chunks
from warpmpc.codegen.from_casadi import translate
from warpmpc.codegen.ir import ScalarProgram
from warpmpc.systems.synthetic import synthetic_function

LENGTHS = [1, 7, 50, 333, 100_000]


def wide_function() -> ca.Function:
    """Many values alive at once: all are computed before any is used."""
    x = ca.SX.sym("x", 40)
    squares = [x[i] * x[i] for i in range(40)]
    products = [squares[i] * x[(i + 7) % 40] for i in range(40)]
    return ca.Function("wide", [x], [ca.vertcat(*products, ca.sum1(ca.vertcat(*squares)), 1, x[3])])


PROGRAMS = {"synthetic": translate(synthetic_function(500)), "wide": translate(wide_function())}


def reads_are_there(program: ScalarProgram, plan: ChunkPlan) -> dict[tuple[int, int], int]:
    """Runs the plan with the indices of values in place of values; returns the outputs."""
    slots: dict[int, int] = {}
    outputs: dict[tuple[int, int], int] = {}
    first = program.n_leaves
    for chunk in plan.chunks:
        here = set(range(first))
        for value, slot in chunk.reads:
            assert slots[slot] == value, "another value took the slot"
            here.add(value)
        for op in range(chunk.begin, chunk.end):
            operands = [v for v in (program.left[op], program.right[op]) if v >= 0]
            assert here.issuperset(int(v) for v in operands)
            here.add(first + op)
        for value, slot in chunk.writes:
            assert value in here
            slots[slot] = value
        for j, element, value in chunk.outputs:
            assert value in here
            outputs[j, element] = value
    return outputs


@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("name", PROGRAMS)
def test_every_value_is_where_it_is_read(name, length):
    program = PROGRAMS[name]
    outputs = reads_are_there(program, plan_chunks(program, length))
    wanted = {
        (j, i): value
        for j, values in enumerate(program.outputs)
        for i, value in enumerate(values.tolist())
    }
    assert outputs == wanted


@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("name", PROGRAMS)
def test_chunks_are_consecutive_and_short(name, length):
    program = PROGRAMS[name]
    chunks = plan_chunks(program, length).chunks
    assert chunks[0].begin == 0
    assert chunks[-1].end == program.n_ops
    for before, after in pairwise(chunks):
        assert before.end == after.begin
    assert all(1 <= chunk.end - chunk.begin <= length for chunk in chunks)
    assert len(chunks) <= 2 * program.n_ops / length + 1


def test_cuts_are_where_little_is_alive():
    """Two long chains, one after the other: between them only one value is alive."""
    x = ca.SX.sym("x", 2)
    a = x[0]
    for _ in range(60):
        a = ca.sin(a)
    parts = [ca.cos(a + i) for i in range(20)]
    program = translate(ca.Function("f", [x], [ca.sum1(ca.vertcat(*parts))]))
    plan = plan_chunks(program, 80)
    assert len(plan.chunks) == 2
    assert plan.chunks[1].begin <= 61
    assert plan.n_slots == 1


def test_slots_are_reused():
    program = PROGRAMS["synthetic"]
    plan = plan_chunks(program, 20)
    written = sum(len(chunk.writes) for chunk in plan.chunks)
    assert plan.n_slots < written / 4
    assert plan.n_slots <= 40  # eight states and what a round needs


def test_no_operations():
    x = ca.SX.sym("x", 2)
    program = translate(ca.Function("f", [x], [x, ca.SX(3)]))
    plan = plan_chunks(program, 10)
    assert [chunk.outputs for chunk in plan.chunks] == [((0, 0, 0), (0, 1, 1), (1, 0, 2))]
