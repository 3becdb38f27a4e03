"""CasADi SX functions as `ScalarProgram`.

Reads: the instruction list of a `casadi.Function`.  Produces: the same operations in the same
order; copies between work slots disappear, equal constants and equal operations are kept once.

Long programs are kept on disk (`kept_program`), so that later processes need not differentiate and
translate again; short ones are translated faster than they are read.
"""

from __future__ import annotations

import base64
import hashlib
import json
import zlib
from collections.abc import Callable
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

import casadi as ca
import numpy as np

from warpmpc._errors import CodegenError
from warpmpc.codegen import ir
from warpmpc.codegen.cache import load_text, store_text
from warpmpc.codegen.ir import ABSENT, BINARY, Op, ScalarProgram
from warpmpc.symbolic.derivatives import stage_model, vertex_elimination

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


# --- programs on disk ---

KIND, LOST = "program", "the program is derived again"
LONG = 5_000  # operations from which on a program is kept
_TYPES = {"constants": "<f8", "ops": "u1", "left": "<i4", "right": "<i4"}
_FIELDS = ("name", "input_names", "input_sizes", "output_names")


@cache
def derivation() -> str:
    """Hash of what derives and translates: a changed one finds no old programs."""
    total = hashlib.sha256(version("casadi").encode())
    for path in (stage_model.__file__, vertex_elimination.__file__, __file__, ir.__file__):
        total.update(Path(path).read_bytes())
    return total.hexdigest()


def kept_program(key: str, make: Callable[[], ScalarProgram]) -> ScalarProgram:
    """The program with this key, from disk or, if it is not there or damaged, made anew."""
    text = load_text(KIND, key, LOST)
    if text is not None:
        try:
            return decoded(text)
        except (ValueError, KeyError, TypeError, zlib.error, CodegenError):
            pass  # another version wrote it: it is replaced below
    program = make()
    if program.n_ops >= LONG:
        store_text(KIND, key, encoded(program))
    return program


def encoded(program: ScalarProgram) -> str:
    """A program as text."""
    arrays = {name: getattr(program, name) for name in _TYPES}
    arrays |= {f"output_{j}": values for j, values in enumerate(program.outputs)}
    content: dict[str, Any] = {name: getattr(program, name) for name in _FIELDS}
    for name, array in arrays.items():
        raw = array.astype(_TYPES.get(name, "<i4")).tobytes()
        content[name] = base64.b64encode(zlib.compress(raw, 1)).decode()
    return json.dumps(content) + "\n"


def decoded(text: str) -> ScalarProgram:
    """What `encoded` wrote."""
    content = json.loads(text)

    def array(name: str) -> np.ndarray:
        raw = zlib.decompress(base64.b64decode(content[name]))
        return np.frombuffer(raw, dtype=_TYPES.get(name, "<i4"))

    return ScalarProgram(
        name=content["name"],
        input_names=tuple(content["input_names"]),
        input_sizes=tuple(content["input_sizes"]),
        output_names=tuple(content["output_names"]),
        constants=array("constants"),
        ops=array("ops"),
        left=array("left"),
        right=array("right"),
        outputs=tuple(array(f"output_{j}") for j in range(len(content["output_names"]))),
    )
