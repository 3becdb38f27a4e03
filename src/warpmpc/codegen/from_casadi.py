"""CasADi SX functions as `ScalarProgram`.

Reads: the instruction list of a `casadi.Function`.  Produces: the same operations in the same
order; copies between work slots disappear, equal constants and equal operations are kept once.
"""

from __future__ import annotations

import casadi as ca
import numpy as np

from warpmpc._errors import CodegenError
from warpmpc.codegen.ir import ABSENT, BINARY, Op, ScalarProgram

_OPS = {getattr(ca, f"OP_{op.name}"): op for op in Op} | {ca.OP_CONSTPOW: Op.POW}
# LIFT marks an intermediate value for other tools and is its first operand.
_COPIES = (ca.OP_ASSIGN, ca.OP_LIFT)
_NAMES = {getattr(ca, name): name for name in dir(ca) if name.startswith("OP_")}
_ADVICE = {
    ca.OP_CALL: (
        "calls another function; rebuild that one from SX expressions, or create it with the "
        'option {"always_inline": True}.'
    ),
    ca.OP_PRINTME: "prints while it evaluates; remove `printme` from the expression.",
}


def translate(function: ca.Function) -> ScalarProgram:
    """Straight-line program of an SX function, structural nonzeros only.

    Args:
        function: Made from SX expressions, of any length.

    Raises:
        CodegenError: The function is no SX function or contains something that has no elementary
            operation.
    """
    _check_function(function)
    builder = _Builder(function)
    for k in range(function.n_instructions()):
        builder.add(k)
    return builder.finish()


def _check_function(function: ca.Function) -> None:
    if not isinstance(function, ca.Function):
        raise CodegenError(
            f"Expected a casadi.Function, got {type(function).__name__}; "
            "make one with `casadi.Function(name, inputs, outputs)`."
        )
    name = function.name()
    if function.is_a("MXFunction"):
        raise CodegenError(
            f"{name!r} is an MX function; call `.expand()` on it, or build it from SX symbols."
        )
    if not function.is_a("SXFunction"):
        raise CodegenError(
            f"{name!r} is a function of class {function.class_name()}, which has no instructions "
            "to translate; write it as SX expressions."
        )
    if function.has_free():
        raise CodegenError(
            f"{name!r} has free variables {function.get_free()}; make them inputs of the function."
        )


class _Builder:
    """Translates one instruction after the other.

    Operations are numbered from zero while the number of constants is unknown; their operands are
    references: inputs and operations as they are counted, constants as ~index.
    """

    def __init__(self, function: ca.Function):
        self._function = function
        self._sizes = tuple(function.nnz_in(i) for i in range(function.n_in()))
        self._starts = np.concatenate([[0], np.cumsum(self._sizes, dtype=np.int64)])
        self._n_inputs = int(self._starts[-1])
        self._slots: dict[int, int] = {}
        self._constants: dict[bytes, int] = {}
        self._known: dict[tuple[int, int, int], int] = {}
        self._outputs = [
            np.zeros(function.nnz_out(j), dtype=np.int64) for j in range(function.n_out())
        ]

    def add(self, k: int) -> None:
        """Translates instruction k."""
        function, code = self._function, self._function.instruction_id(k)
        into = function.instruction_output(k)
        if code == ca.OP_INPUT:
            index, element = function.instruction_input(k)
            self._slots[into[0]] = int(self._starts[index]) + element
        elif code == ca.OP_CONST:
            # As bytes a NaN equals itself, and zeros of different sign differ.
            key = np.float64(function.instruction_constant(k)).tobytes()
            self._slots[into[0]] = ~self._constants.setdefault(key, len(self._constants))
        elif code == ca.OP_OUTPUT:
            index, element = into
            self._outputs[index][element] = self._slots[function.instruction_input(k)[0]]
        elif code in _COPIES:
            self._slots[into[0]] = self._slots[function.instruction_input(k)[0]]
        else:
            self._slots[into[0]] = self._operation(code, function.instruction_input(k))

    def _operation(self, code: int, slots: list[int]) -> int:
        op = _OPS.get(code)
        if op is None:
            name = _NAMES.get(code, f"operation {code}")
            advice = _ADVICE.get(code, "has no translation; write it with elementary operations.")
            raise CodegenError(f"{self._function.name()!r} contains {name}, which {advice}")
        left = self._slots[slots[0]]
        right = self._slots[slots[1]] if op in BINARY else self._absent
        return self._known.setdefault((int(op), left, right), self._n_inputs + len(self._known))

    # No reference, whatever the number of constants.
    _absent = -(2**31)

    def finish(self) -> ScalarProgram:
        """The program, once every instruction was added."""
        function = self._function
        table = np.array(list(self._known), dtype=np.int64).reshape(-1, 3)
        return ScalarProgram(
            name=function.name(),
            input_names=tuple(function.name_in()),
            input_sizes=self._sizes,
            output_names=tuple(function.name_out()),
            constants=np.frombuffer(b"".join(self._constants), dtype=np.float64),
            ops=table[:, 0].astype(np.uint8),
            left=self._numbered(table[:, 1]),
            right=self._numbered(table[:, 2]),
            outputs=tuple(self._numbered(values) for values in self._outputs),
        )

    def _numbered(self, references: np.ndarray) -> np.ndarray:
        """References as value numbers: inputs, constants, operations."""
        n_inputs, n_constants = self._n_inputs, len(self._constants)
        numbers = np.where(references >= n_inputs, references + n_constants, references)
        numbers = np.where(references < 0, n_inputs + ~references, numbers)
        return np.where(references == self._absent, ABSENT, numbers).astype(np.int32)
