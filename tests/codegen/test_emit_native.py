"""Native source: constants to the last digit, readable names, chunks as functions."""

import re

import casadi as ca
import numpy as np
import pytest
from codegen_cases import OPERATIONS, all_operations

from warpmpc.codegen.emit_native import INLINED_USES, Access, literal, plan_chunks, struct_source
from warpmpc.codegen.from_casadi import translate
from warpmpc.codegen.ir import ScalarProgram
from warpmpc.codegen.native.preamble import PREAMBLE
from warpmpc.systems.synthetic import synthetic_function


def plain_access(program: ScalarProgram) -> Access:
    """Everything lies at its own number behind the first entry of the table."""
    places = [
        tuple(tuple((0, i) for i in range(size)) for size in sizes)
        for sizes in (program.input_sizes, program.output_sizes)
    ]
    return Access(*places)


def text_of(function: ca.Function, dtype: str = "float64", length: int = 1000) -> str:
    program = translate(function)
    return struct_source(program, "Case0", plain_access(program), dtype, length)


@pytest.mark.parametrize("number", [0.1, -1 / 3, 1e-300, 1e300, 5e-324, 123456789.0, 2.0, -0.0])
def test_literals_keep_every_digit(number):
    back = float(literal(number, "float64"))
    assert back == number
    assert np.signbit(back) == np.signbit(number)


@pytest.mark.parametrize("number", [0.1, -1 / 3, 1e-30, 1e30, 123456789.0, 2.0])
def test_literals_of_single_precision(number):
    text = literal(number, "float32")
    assert text.endswith("f")
    assert np.float32(text[:-1]) == np.float32(number)
    assert re.fullmatch(r"-?\d+(\.\d+)?(e[+-]\d+)?f", text)
    assert "." in text or "e" in text  # 2f is no number in C++


@pytest.mark.parametrize(
    ("number", "dtype", "text"),
    [
        (np.inf, "float64", "(SCALAR)INFINITY"),
        (-np.inf, "float32", "(SCALAR)-INFINITY"),
        (np.nan, "float64", "(SCALAR)NAN"),
        (1e300, "float32", "(SCALAR)INFINITY"),
    ],
)
def test_literals_that_are_no_numbers(number, dtype, text):
    assert literal(number, dtype) == text


def test_every_operation_has_text():
    text = text_of(all_operations())
    assert text.count("const Pack v") == len(OPERATIONS)


def test_the_header_says_what_it_is():
    function = synthetic_function(200)
    program = translate(function)
    first = text_of(function).splitlines()[0]
    assert first == f"// {program.name}: {program.n_ops} operations, content {program.hash[:16]}"


def test_only_what_is_used_is_read():
    x = ca.SX.sym("x", 100)
    text = text_of(ca.Function("f", [x], [x[7] * x[70]]))
    assert re.findall(r"GET\(in0, r0 \+ (\d+)\)", text) == ["7", "70"]


def test_one_function_per_chunk():
    function = synthetic_function(2000)
    plan = plan_chunks(translate(function), 300)
    text = text_of(function, length=300)
    assert len(plan.chunks) > 5
    assert text.count("static PART void part") == len(plan.chunks)
    assert f"CARRIED({plan.n_slots})" in text
    calls = re.findall(r"^ +part(\d+)\(in0, in1, out0, rows, carried\);$", text, re.MULTILINE)
    assert calls == [str(number) for number in range(len(plan.chunks))]


def test_a_short_program_is_one_function():
    text = text_of(synthetic_function(200))
    assert text.count("static WHOLE void part0") == 1
    assert "carried" not in text


def test_functions_that_occur_often_are_called():
    x = ca.SX.sym("x", INLINED_USES + 1)
    often, seldom = ca.sin(x), ca.cos(x[:INLINED_USES])
    text = text_of(ca.Function("f", [x], [often, seldom, ca.sqrt(x)]))
    assert text.count("Called::sin(") == INLINED_USES + 1
    assert text.count("Math::cos(") == INLINED_USES
    assert text.count("Quick::sqrt(") == INLINED_USES + 1


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_every_function_is_defined(dtype):
    used = re.findall(r"(Quick|Math)::(\w+)\(", text_of(all_operations()))
    text = PREAMBLE[dtype]
    assert len(used) > 20
    for struct, name in used:
        body = text.split(f"struct {struct} {{")[1].split("};")[0]
        assert re.search(rf"\b{name}\b", body), name


def test_places_before_the_entry():
    x = ca.SX.sym("x", 2)
    program = translate(ca.Function("f", [x], [x[0] + x[1]]))
    access = Access((((0, 0), (0, -3)),), (((1, 4),),))
    text = struct_source(program, "Case0", access, "float32")
    assert "GET(in0, r0 - 3)" in text
    assert "AT(out0, r1 + 4) = v0;" in text
    assert "const int r1 = ROW(1);" in text


def test_the_same_text_every_time():
    assert text_of(synthetic_function(500)) == text_of(synthetic_function(500))
