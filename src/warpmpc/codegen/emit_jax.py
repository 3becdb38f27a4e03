"""`ScalarProgram` as a JAX function: the reference that runs everywhere.

Reads: a program.  Produces: a function of one array ``[..., n_in]`` per input that returns one
array ``[..., n_out]`` per output.
"""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import lax

from warpmpc.codegen.ir import Op, ScalarProgram

Arrays = tuple[jax.Array, ...]


def _number(condition: jax.Array, like: jax.Array) -> jax.Array:
    return lax.convert_element_type(condition, like.dtype)


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


EMIT: dict[Op, Callable[..., jax.Array]] = {
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
    Op.FMIN: jnp.fmin,
    Op.FMAX: jnp.fmax,
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
    """Function of one array ``[..., n_in]`` per input; returns one ``[..., n_out]`` per output."""

    def function(*arrays: jax.Array) -> Arrays:
        leading = jnp.broadcast_shapes(*(array.shape[:-1] for array in arrays))
        dtype = jnp.result_type(*arrays) if arrays else jnp.result_type(float)
        values: list[jax.Array] = []
        for array in arrays:
            full = jnp.broadcast_to(array, (*leading, array.shape[-1])).astype(dtype)
            values += [full[..., element] for element in range(array.shape[-1])]
        values += [lax.full(leading, constant, dtype) for constant in program.constants]
        operations = zip(
            program.ops.tolist(), program.left.tolist(), program.right.tolist(), strict=True
        )
        for op, left, right in operations:
            operands = (values[left],) if right < 0 else (values[left], values[right])
            values.append(EMIT[Op(op)](*operands))
        return tuple(
            jnp.stack([values[value] for value in output], axis=-1)
            if output.size
            else jnp.zeros((*leading, 0), dtype)
            for output in program.outputs
        )

    return function
