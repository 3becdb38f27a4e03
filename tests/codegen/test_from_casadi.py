"""CasADi's instructions as programs: every operation is translated, known, or refused in words."""

import casadi as ca
import numpy as np
import pytest
from codegen_cases import OPERATIONS, all_operations, expression

from warpmpc._errors import CodegenError
from warpmpc.codegen.from_casadi import translate
from warpmpc.codegen.ir import BINARY, Op
from warpmpc.systems.synthetic import synthetic_function

X, Y = ca.SX.sym("x"), ca.SX.sym("y")
# What CasADi's SX functions cannot contain: matrix operations of MX.
MX_ONLY = """
    FIND LOW MAP MTIMES SOLVE TRANSPOSE DETERMINANT INVERSE DOT BILIN RANK1 HORZCAT VERTCAT DIAGCAT
    HORZSPLIT VERTSPLIT DIAGSPLIT RESHAPE SUBREF SUBASSIGN GETNONZEROS GETNONZEROS_PARAM ADDNONZEROS
    ADDNONZEROS_PARAM SETNONZEROS SETNONZEROS_PARAM PROJECT ASSERTION MONITOR NORM2 NORM1 NORMINF
    NORMF MMIN MMAX HORZREPMAT HORZREPSUM EINSTEIN BSPLINE CONVEXIFY SPARSITY_CAST LOGSUMEXP DUMP
    KRON KRON_CONTRACT
"""
LEAVES = {"CONST", "INPUT", "OUTPUT"}
COPIES = {"ASSIGN", "LIFT"}
REFUSED = {"CALL", "PRINTME", "PARAMETER"}


def test_nothing_of_casadi_is_forgotten():
    casadi = {name.removeprefix("OP_") for name in dir(ca) if name.startswith("OP_")}
    translated = {op.name for op in Op} | {"CONSTPOW"}
    known = translated | LEAVES | COPIES | REFUSED | set(MX_ONLY.split())
    assert casadi <= known


def test_every_operation_has_a_test():
    assert list(OPERATIONS) == list(Op)


@pytest.mark.parametrize("op", list(Op), ids=lambda op: op.name)
def test_one_operation(op):
    program = translate(ca.Function("f", [X, Y], [expression(op, X, Y)]))
    assert [Op(code) for code in program.ops] == [op]
    assert (program.right[0] >= 0) == (op in BINARY)


def test_power_with_constant_exponent():
    program = translate(ca.Function("f", [X], [X**1.7]))
    assert [Op(code) for code in program.ops] == [Op.POW]
    np.testing.assert_array_equal(program.constants, [1.7])


def test_copies_disappear():
    program = translate(ca.Function("f", [X, Y], [ca.SX.binary(ca.OP_LIFT, X, Y), X]))
    assert program.n_ops == 0
    assert [values.tolist() for values in program.outputs] == [[0], [0]]


def test_structural_nonzeros_only():
    a = ca.SX.sym("a", ca.Sparsity.lower(3))
    b = ca.SX(3, 3)
    b[0, 0], b[2, 1] = a[0, 0] + 1, a[2, 1]
    program = translate(ca.Function("f", [a], [b]))
    assert program.input_sizes == (6,)
    assert program.output_sizes == (2,)
    assert program.n_ops == 1


def test_equal_operations_and_constants_are_kept_once():
    function = ca.Function("f", [X, Y], [ca.sin(X + 2) + ca.sin(X + 2) * 2])
    program = translate(function)
    assert [Op(code) for code in program.ops].count(Op.SIN) == 1
    assert program.constants.size == 1


def test_constants_without_a_number():
    function = ca.Function("f", [X], [X * np.nan, X + np.inf, X - np.inf, ca.fmin(X, np.nan)])
    constants = translate(function).constants
    assert np.isnan(constants).sum() == 1
    assert np.isposinf(constants).sum() == 1


def test_leaves_as_outputs():
    program = translate(ca.Function("f", [X, Y], [ca.vertcat(Y, 3, X)]))
    assert program.n_ops == 0
    assert program.constants.tolist() == [3]
    assert program.outputs[0].tolist() == [1, 2, 0]


def test_names_come_along():
    program = translate(ca.Function("fun", [X, Y], [X * Y], ["left", "right"], ["product"]))
    assert (program.name, program.input_names, program.output_names) == (
        "fun",
        ("left", "right"),
        ("product",),
    )


def test_the_same_program_every_time():
    assert translate(synthetic_function(500)).hash == translate(synthetic_function(500)).hash


def test_no_outputs_and_no_inputs():
    assert translate(ca.Function("f", [X], [])).outputs == ()
    assert translate(ca.Function("f", [], [ca.SX(2)])).n_inputs == 0


def test_all_operations_in_one_program():
    assert translate(all_operations()).n_ops == len(Op)


class TestRefusals:
    def test_mx(self):
        x = ca.MX.sym("x")
        function = ca.Function("f", [x], [ca.sin(x)])
        with pytest.raises(CodegenError, match=r"'f' is an MX function; call `\.expand\(\)`"):
            translate(function)
        assert translate(function.expand()).n_ops == 1

    def test_function_of_another_kind(self):
        table = ca.interpolant("table", "linear", [[0, 1, 2]], [0, 1, 4])
        with pytest.raises(CodegenError, match="write it as SX expressions"):
            translate(table)

    def test_no_function(self):
        with pytest.raises(CodegenError, match=r"Expected a casadi\.Function, got SX"):
            translate(X)

    def test_call(self):
        inner = ca.Function("inner", [X], [ca.sin(X)], {"never_inline": True})
        function = ca.Function("outer", [X], [inner(X)])
        with pytest.raises(CodegenError, match="'outer' contains OP_CALL, which calls another"):
            translate(function)

    def test_printing(self):
        with pytest.raises(CodegenError, match="contains OP_PRINTME, which prints"):
            translate(ca.Function("f", [X, Y], [X.printme(Y)]))

    def test_free_variables(self):
        function = ca.Function("f", [X], [X + Y], {"allow_free": True})
        with pytest.raises(CodegenError, match=r"free variables.*y.*make them inputs"):
            translate(function)
