"""Straight-line scalar programs: what every emitter reads.

Reads: nothing.  Produces: `ScalarProgram`, made by `codegen.from_casadi` and turned into JAX by
`codegen.emit_jax` and into native source by `codegen.emit_native`.

Values are numbered: first the inputs, one after the other, then the constants, then one value per
operation.  An operation reads values with smaller numbers only.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import IntEnum
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from warpmpc._errors import CodegenError

IntArray = NDArray[np.int32]
ABSENT = -1  # second operand of an operation with one operand


class Op(IntEnum):
    """Elementary operations; names are CasADi's.  Numbers enter the content hash: only append."""

    ADD = 0
    SUB = 1
    MUL = 2
    DIV = 3
    NEG = 4
    EXP = 5
    LOG = 6
    POW = 7
    SQRT = 8
    SQ = 9
    TWICE = 10
    SIN = 11
    COS = 12
    TAN = 13
    ASIN = 14
    ACOS = 15
    ATAN = 16
    LT = 17
    LE = 18
    EQ = 19
    NE = 20
    NOT = 21
    AND = 22
    OR = 23
    FLOOR = 24
    CEIL = 25
    FMOD = 26
    FABS = 27
    SIGN = 28
    COPYSIGN = 29
    IF_ELSE_ZERO = 30
    ERF = 31
    FMIN = 32
    FMAX = 33
    INV = 34
    SINH = 35
    COSH = 36
    TANH = 37
    ASINH = 38
    ACOSH = 39
    ATANH = 40
    ATAN2 = 41
    ERFINV = 42
    LOG1P = 43
    EXPM1 = 44
    HYPOT = 45
    REMAINDER = 46


_BINARY_NAMES = """
    ADD SUB MUL DIV POW LT LE EQ NE AND OR FMOD COPYSIGN IF_ELSE_ZERO FMIN FMAX ATAN2 HYPOT
    REMAINDER
"""
BINARY = frozenset(Op[name] for name in _BINARY_NAMES.split())


@dataclass(frozen=True, eq=False)
class ScalarProgram:
    """A function of some vectors, written as one operation after the other.

    Attributes:
        name: What the function is called in generated code.
        input_names: One per input.
        input_sizes: Values (structural nonzeros) per input.
        output_names: One per output.
        constants: Every constant once.
        ops: `Op` of each operation.
        left: First operand of each operation, a value number.
        right: Second operand, or `ABSENT`.
        outputs: For each output the value numbers of its structural nonzeros.
    """

    name: str
    input_names: tuple[str, ...]
    input_sizes: tuple[int, ...]
    output_names: tuple[str, ...]
    constants: NDArray[np.float64]
    ops: NDArray[np.uint8]
    left: IntArray
    right: IntArray
    outputs: tuple[IntArray, ...]

    def __post_init__(self):
        """Refuses a program that reads a value before it exists."""
        n, first = self.ops.size, self.n_leaves
        number = first + np.arange(n)
        binary = np.isin(self.ops, [int(op) for op in BINARY])
        if np.any(self.left < 0) or np.any(self.left >= number):
            raise CodegenError(f"{self.name}: an operation reads a value before it exists.")
        if np.any(binary != (self.right >= 0)) or np.any(self.right >= number):
            raise CodegenError(f"{self.name}: wrong second operand of an operation.")
        for values in self.outputs:
            if values.size and (values.min() < 0 or values.max() >= first + n):
                raise CodegenError(f"{self.name}: an output is a value that does not exist.")

    @property
    def n_inputs(self) -> int:
        """Values of all inputs."""
        return sum(self.input_sizes)

    @property
    def n_leaves(self) -> int:
        """Inputs and constants: the number of the first operation's value."""
        return self.n_inputs + self.constants.size

    @property
    def n_ops(self) -> int:
        """Operations."""
        return int(self.ops.size)

    @property
    def output_sizes(self) -> tuple[int, ...]:
        """Values (structural nonzeros) per output."""
        return tuple(int(values.size) for values in self.outputs)

    def pruned(self) -> tuple[ScalarProgram, tuple[IntArray, ...]]:
        """The same program without unused inputs, and which elements of each input remain."""
        used = np.zeros(self.n_leaves + self.n_ops, dtype=bool)
        for values in (self.left, self.right[self.right >= 0], *self.outputs):
            used[values] = True
        used[self.n_inputs :] = True
        number = np.append(np.cumsum(used) - 1, ABSENT).astype(np.int32)  # ABSENT is the last index
        ends = np.cumsum(self.input_sizes, dtype=np.int64)
        parts = np.split(used[: self.n_inputs], ends[:-1]) if self.input_sizes else []
        kept = tuple(np.flatnonzero(part).astype(np.int32) for part in parts)
        program = replace(
            self,
            input_sizes=tuple(int(elements.size) for elements in kept),
            left=number[self.left],
            right=number[self.right],
            outputs=tuple(number[values] for values in self.outputs),
        )
        return program, kept

    def part(self, kept: Sequence[IntArray]) -> ScalarProgram:
        """The same program with some elements of each output only, and the operations they need."""
        outputs = [values[elements] for values, elements in zip(self.outputs, kept, strict=True)]
        needed = np.zeros(self.n_leaves + self.n_ops, dtype=bool)
        needed[: self.n_leaves] = True
        for values in outputs:
            needed[values] = True
        left, right = self.left.tolist(), self.right.tolist()
        for number in range(self.n_ops - 1, -1, -1):
            if needed[self.n_leaves + number]:
                needed[left[number]] = True
                if right[number] != ABSENT:
                    needed[right[number]] = True
        number = np.append(np.cumsum(needed) - 1, ABSENT).astype(np.int32)
        ops = needed[self.n_leaves :]
        return replace(
            self,
            ops=self.ops[ops],
            left=number[self.left[ops]],
            right=number[self.right[ops]],
            outputs=tuple(number[values] for values in outputs),
        )

    @cached_property
    def hash(self) -> str:
        """Hash of what is computed; names do not matter."""
        digest = hashlib.sha256(repr((self.input_sizes, self.output_sizes)).encode())
        arrays: Sequence[np.ndarray] = (
            self.constants.astype("<f8"),
            self.ops,
            self.left.astype("<i4"),
            self.right.astype("<i4"),
            *(values.astype("<i4") for values in self.outputs),
        )
        for array in arrays:
            digest.update(array.tobytes())
        return digest.hexdigest()
