"""`ScalarProgram` as a JAX function: the reference that runs everywhere.

Reads: a program.  Produces: a function of one array ``[..., n_in]`` per input that returns one
array ``[..., n_out]`` per output, under `jax.jit`, `jax.vmap` and `jax.grad`.

XLA merges operations into loops over the batch, and computes a value that several loops need in
each of them.  In a long program that doubles the work again and again: compile time explodes within
some thousand operations.  What XLA calls expensive it computes once, and a division counts as such;
so values that are worth keeping are divided by a one that only the code generator behind XLA
recognises.  The bits stay the same, the division is gone from the machine code, and compile time
grows linearly: 2 ms per operation, also for a stage of the humanoid with 31 000 of them.  That is
XLA on the CPU; on CUDA it takes 5 seconds for 2000 operations and more than a minute for 5000.
Long programs are therefore a matter of `codegen.emit_native`, and a warning says so there.

Deviations from CasADi: subnormal numbers count as zero, as everywhere in XLA, and `erfinv` has all
its digits where CasADi's is wrong by up to 3e-6.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from warpmpc._errors import ProblemError
from warpmpc.codegen.ir import ABSENT, Op, ScalarProgram

Arrays = tuple[jax.Array, ...]

# Operations that a loop may repeat, and that a loop may have.
_REPEATED, _LONGEST = 20, 100
# Operations that XLA compiles for CUDA within a minute.
_LONG_ON_CUDA = 4000


def _number(condition: jax.Array, like: jax.Array) -> jax.Array:
    """One or zero.  A converted condition would not do: XLA takes infinity times it for zero."""
    return lax.select(condition, jnp.ones_like(like), jnp.zeros_like(like))


def _is_true(x: jax.Array) -> jax.Array:
    """What C takes for true: everything but zero, NaN included."""
    return lax.ne(x, jnp.zeros_like(x))


def _remainder(x: jax.Array, y: jax.Array) -> jax.Array:
    """IEEE remainder: x minus the multiple of y that is nearest, ties to even."""
    size = lax.abs(y)
    rest = lax.abs(lax.rem(x, size + size))
    half = size * 0.5
    nearer = rest - size
    nearer = jnp.where(nearer >= half, nearer - size, nearer)
    rest = jnp.where(rest > half, nearer, rest)
    return jnp.where(jnp.signbit(x), -rest, rest)


def _smaller(x: jax.Array, y: jax.Array) -> jax.Array:
    """The extremum as C defines it: a NaN loses against a number."""
    return lax.select(lax.bitwise_or(lax.lt(x, y), lax.ne(y, y)), x, y)


def _larger(x: jax.Array, y: jax.Array) -> jax.Array:
    return lax.select(lax.bitwise_or(lax.lt(y, x), lax.ne(y, y)), x, y)


_EMIT: dict[Op, Callable[..., jax.Array]] = {
    Op.ADD: lax.add,
    Op.SUB: lax.sub,
    Op.MUL: lax.mul,
    Op.DIV: lax.div,
    Op.NEG: lax.neg,
    Op.EXP: lax.exp,
    Op.LOG: lax.log,
    Op.POW: lax.pow,
    Op.SQRT: lax.sqrt,
    Op.SQ: lambda x: lax.mul(x, x),
    Op.TWICE: lambda x: lax.add(x, x),
    Op.SIN: lax.sin,
    Op.COS: lax.cos,
    Op.TAN: lax.tan,
    Op.ASIN: lax.asin,
    Op.ACOS: lax.acos,
    Op.ATAN: lax.atan,
    Op.LT: lambda x, y: _number(lax.lt(x, y), x),
    Op.LE: lambda x, y: _number(lax.le(x, y), x),
    Op.EQ: lambda x, y: _number(lax.eq(x, y), x),
    Op.NE: lambda x, y: _number(lax.ne(x, y), x),
    Op.NOT: lambda x: _number(lax.bitwise_not(_is_true(x)), x),
    Op.AND: lambda x, y: _number(lax.bitwise_and(_is_true(x), _is_true(y)), x),
    Op.OR: lambda x, y: _number(lax.bitwise_or(_is_true(x), _is_true(y)), x),
    Op.FLOOR: lax.floor,
    Op.CEIL: lax.ceil,
    Op.FMOD: lax.rem,
    Op.FABS: lax.abs,
    Op.SIGN: lax.sign,
    Op.COPYSIGN: jnp.copysign,
    Op.IF_ELSE_ZERO: lambda x, y: lax.select(_is_true(x), y, jnp.zeros_like(y)),
    Op.ERF: lax.erf,
    Op.FMIN: _smaller,
    Op.FMAX: _larger,
    Op.INV: lambda x: lax.div(jnp.ones_like(x), x),
    Op.SINH: lax.sinh,
    Op.COSH: lax.cosh,
    Op.TANH: lax.tanh,
    Op.ASINH: lax.asinh,
    Op.ACOSH: lax.acosh,
    Op.ATANH: lax.atanh,
    Op.ATAN2: lax.atan2,
    Op.ERFINV: lax.erf_inv,
    Op.LOG1P: lax.log1p,
    Op.EXPM1: lax.expm1,
    Op.HYPOT: jnp.hypot,
    Op.REMAINDER: _remainder,
}


def jax_function(program: ScalarProgram) -> Callable[..., Arrays]:
    """Function of one array ``[..., n_in]`` per input; returns one ``[..., n_out]`` per output.

    Leading axes broadcast against each other.
    """
    kept = _kept(program)
    operations = [array.tolist() for array in (program.ops, program.left, program.right, kept)]

    def function(*arrays: jax.Array) -> Arrays:
        _warn_if_slow(program)
        values, like = _leaves(program, arrays)
        one = _hidden_one(values[0]) if program.n_inputs else like
        for op, left, right, keep in zip(*operations, strict=True):
            operands = (values[left],) if right == ABSENT else (values[left], values[right])
            value = _EMIT[Op(op)](*operands)
            values.append(lax.div(value, one) if keep else value)
        return tuple(_stacked(values, output.tolist(), like) for output in program.outputs)

    return function


def _warn_if_slow(program: ScalarProgram) -> None:
    """Says before XLA begins that it will take long."""
    if program.n_ops > _LONG_ON_CUDA and jax.default_backend() == "gpu":
        warnings.warn(
            f"{program.name} has {program.n_ops} operations: XLA needs minutes to hours to compile "
            "them for a GPU.  Evaluate it natively, as MPCSolver does, or on the CPU: "
            'jax.default_device(jax.devices("cpu")[0]) and JAX_PLATFORMS=cpu.',
            RuntimeWarning,
            stacklevel=3,
        )


def _kept(program: ScalarProgram) -> np.ndarray:
    """Operations whose values XLA should compute once and keep.

    Everything else is repeated wherever it is read; `size` is how much that is.
    """
    read = np.concatenate([program.left, program.right, *program.outputs])
    uses = np.bincount(read[read >= 0], minlength=program.n_leaves + program.n_ops)
    size, kept = [0] * program.n_leaves, []
    operands = zip(program.left.tolist(), program.right.tolist(), strict=True)
    for count, (left, right) in zip(uses[program.n_leaves :].tolist(), operands, strict=True):
        total = 1 + size[left] + (size[right] if right != ABSENT else 0)
        kept.append((count > 1 and total > _REPEATED) or total > _LONGEST)
        size.append(0 if kept[-1] else total)
    return np.array(kept, dtype=bool)


def _leaves(program: ScalarProgram, arrays: Arrays) -> tuple[list[jax.Array], jax.Array]:
    """Inputs and constants, each with the leading axes of all arrays; and a one of that shape."""
    if len(arrays) != len(program.input_sizes):
        raise ProblemError(
            f"{program.name} takes {len(program.input_sizes)} arrays "
            f"{program.input_names}, got {len(arrays)}."
        )
    for name, size, array in zip(program.input_names, program.input_sizes, arrays, strict=True):
        if array.ndim == 0 or array.shape[-1] != size:
            raise ProblemError(
                f"{program.name}: {name} has shape {array.shape}; its last axis must have length "
                f"{size}, the structural nonzeros in column-major order."
            )
    dtype = jnp.result_type(float, *arrays)
    leading = jnp.broadcast_shapes(*(array.shape[:-1] for array in arrays))
    values = []
    for array in arrays:
        full = jnp.broadcast_to(array, (*leading, array.shape[-1])).astype(dtype)
        values += [lax.index_in_dim(full, i, -1, keepdims=False) for i in range(array.shape[-1])]
    values += [lax.full(leading, constant, dtype) for constant in program.constants.tolist()]
    return values, lax.full(leading, 1, dtype)


def _hidden_one(x: jax.Array) -> jax.Array:
    """One, whatever x: XLA cannot prove it, because x might be NaN; LLVM can."""
    return lax.max(lax.convert_element_type(lax.ne(x, x), x.dtype), jnp.ones_like(x))


def _stacked(values: list[jax.Array], output: list[int], like: jax.Array) -> jax.Array:
    """Values of an output; what occurs several times is stacked once, as stacking takes long."""
    if not output:
        return jnp.zeros((*like.shape, 0), like.dtype)
    place = {value: i for i, value in enumerate(dict.fromkeys(output))}
    stacked = jnp.stack([values[value] for value in place], axis=-1)
    if len(place) == len(output):
        return stacked
    return jnp.take(stacked, np.array([place[value] for value in output]), axis=-1)
