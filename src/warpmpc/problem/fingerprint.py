"""Content of stages as text: equal for stages that one program can evaluate.

Reads: stages and the symbols they share.  Produces: digests for grouping and for caches.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

import casadi as ca
import numpy as np

from warpmpc.problem import expressions as ex
from warpmpc.problem.stage import Stage


def stage_function(stage: Stage, x0: ca.SX, shared: ca.SX) -> ca.Function:
    """(z, z_next, x0, shared, p) -> (cost, residual, weight, g, lower, upper, penalties)."""
    inputs = [stage.z, stage.z_next, x0, shared, stage.p]
    outputs = stage.expressions()
    names = ["z", "z_next", "x0", "shared", "p"]
    return ca.Function("stage", inputs, list(outputs.values()), names, list(outputs))


def guess_function(stage: Stage, x0: ca.SX, shared: ca.SX) -> ca.Function:
    """(x0, shared, p, tau) -> guess of z."""
    inputs = [x0, shared, stage.p, stage.tau]
    return ca.Function("guess", inputs, [stage.guess], ["x0", "shared", "p", "tau"], ["z"])


def function_digest(function: ca.Function) -> str:
    """Digest of an SX function: sizes, operations, their operands and constants; no names.

    The program depends on how an expression was built, not on the identity of its symbols.
    """
    shapes = [function.size_in(i) for i in range(function.n_in())]
    patterns = [function.sparsity_out(i).get_triplet() for i in range(function.n_out())]
    sizes = [function.size_out(i) for i in range(function.n_out())]
    codes = ex.operation_codes(function)
    # How many operands an operation has follows from its code, so they need no separators.
    operands: list[int] = []
    for i in range(len(codes)):
        operands += function.instruction_input(i)
        operands += function.instruction_output(i)
    program = (np.array(codes), np.array(operands), ex.program_constants(function, codes))
    return digest([repr((shapes, sizes, patterns)), *(array_digest(part) for part in program)])


def stage_digest(stage: Stage, x0: ca.SX, shared: ca.SX) -> str:
    """Digest of all that is evaluated in an iteration; the guess and the row names are not."""
    function = stage_function(stage, x0, shared)
    rest = (stage.soft_rows.tolist(), stage.n_x, stage.n_u)
    return digest([function_digest(function), repr(rest)])


def array_digest(array: np.ndarray) -> str:
    """Digest of shape, type and values."""
    content = hashlib.sha256(np.ascontiguousarray(array).tobytes()).hexdigest()
    return digest([str(array.shape), array.dtype.str, content])


def digest(parts: Iterable[str]) -> str:
    """SHA-256 of a sequence of texts."""
    total = hashlib.sha256()
    for part in parts:
        total.update(part.encode() + b"\n")
    return total.hexdigest()
