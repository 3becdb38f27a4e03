"""Programs check themselves; their hash identifies what they compute."""

from dataclasses import replace

import numpy as np
import pytest

from warpmpc._errors import CodegenError
from warpmpc.codegen.ir import ABSENT, BINARY, Op, ScalarProgram


def example() -> ScalarProgram:
    """(x0 + 2) * sin(x0 + 2) of an input with two values."""
    return ScalarProgram(
        name="example",
        input_names=("x",),
        input_sizes=(2,),
        output_names=("y",),
        constants=np.array([2.0]),
        ops=np.array([Op.ADD, Op.SIN, Op.MUL], dtype=np.uint8),
        left=np.array([0, 3, 3], dtype=np.int32),
        right=np.array([2, ABSENT, 4], dtype=np.int32),
        outputs=(np.array([5], dtype=np.int32),),
    )


def test_sizes():
    program = example()
    assert (program.n_inputs, program.n_leaves, program.n_ops) == (2, 3, 3)
    assert program.output_sizes == (1,)


def test_inputs_that_nothing_reads():
    """Only the second value of the input stays; everything is renumbered."""
    unused = replace(example(), left=np.array([1, 3, 3], dtype=np.int32))
    program, (kept,) = unused.pruned()
    assert kept.tolist() == [1]
    assert program.input_sizes == (1,)
    assert program.left.tolist() == [0, 2, 2]
    assert program.right.tolist() == [1, ABSENT, 3]
    assert program.outputs[0].tolist() == [4]
    again, (kept,) = program.pruned()
    assert again.hash == program.hash
    assert kept.tolist() == [0]


def test_an_input_that_is_an_output_is_read():
    program, (kept,) = replace(example(), outputs=(np.array([1, 5], dtype=np.int32),)).pruned()
    assert kept.tolist() == [0, 1]
    assert program.hash == replace(example(), outputs=program.outputs).hash


def test_names_do_not_enter_the_hash():
    assert replace(example(), name="other", input_names=("z",)).hash == example().hash


@pytest.mark.parametrize(
    "change",
    [
        {"constants": np.array([-2.0])},
        {"ops": np.array([Op.SUB, Op.SIN, Op.MUL], dtype=np.uint8)},
        {"left": np.array([1, 3, 3], dtype=np.int32)},
        {"outputs": (np.array([4], dtype=np.int32),)},
        {"outputs": (np.array([5, 5], dtype=np.int32),), "output_names": ("y",)},
    ],
)
def test_everything_else_enters_the_hash(change):
    assert replace(example(), **change).hash != example().hash


def test_zeros_differ():
    zero, minus = (replace(example(), constants=np.array([c])) for c in (0.0, -0.0))
    assert zero.hash != minus.hash


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"left": np.array([0, 4, 3])}, "reads a value before it exists"),
        ({"left": np.array([0, -1, 3])}, "reads a value before it exists"),
        ({"right": np.array([2, 0, 4])}, "wrong second operand"),
        ({"right": np.array([2, ABSENT, ABSENT])}, "wrong second operand"),
        ({"right": np.array([2, ABSENT, 5])}, "wrong second operand"),
        ({"outputs": (np.array([6]),)}, "output is a value that does not exist"),
        ({"outputs": (np.array([-1]),)}, "output is a value that does not exist"),
    ],
)
def test_broken_programs_are_refused(change, message):
    with pytest.raises(CodegenError, match=message):
        replace(example(), **change)


def test_binary_operations_are_operations():
    assert set(Op) > BINARY
