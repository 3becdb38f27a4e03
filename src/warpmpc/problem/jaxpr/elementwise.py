"""Elementwise primitives of `jax.lax` as operations on CasADi columns.

Truth values are the numbers 0 and 1, as in CasADi.  Floating-point widths are ignored: everything
is a real number.  Values are taken to be finite, so that ``x != x`` is false.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import casadi as ca
import numpy as np
from jax import lax

from warpmpc.problem.jaxpr.values import (
    Equation,
    RefusalError,
    Symbolic,
    Value,
    broadcast,
    flat_of,
    joint_positions,
    symbolic,
    take_from,
)

# Limits exponents in branches that are not taken: squares of exp(20) fit into float32.
_EXP_LIMIT = 20.0


def _logistic(x: ca.SX) -> ca.SX:
    """The logistic function by tanh, because 1 / (1 + exp(-x)) overflows in its derivatives."""
    return 0.5 + 0.5 * ca.tanh(0.5 * x)


def logaddexp(x: ca.SX, y: ca.SX) -> ca.SX:
    """The function log(exp(x) + exp(y)), whose derivatives are all correct where x = y.

    JAX's own form goes through max and abs, whose kinks cancel in the value only; JAX corrects the
    derivatives by a rule that CasADi does not see.  The branch that is not taken stays finite.
    """
    over = x - y
    large_x = x + ca.log1p(ca.exp(ca.fmin(-over, _EXP_LIMIT)))
    large_y = y + ca.log1p(ca.exp(ca.fmin(over, _EXP_LIMIT)))
    return ca.if_else(over > 0, large_x, large_y)


def _truncate(x: ca.SX) -> ca.SX:
    return ca.sign(x) * ca.floor(ca.fabs(x))


def _round_away(x: ca.SX) -> ca.SX:
    whole = ca.floor(ca.fabs(x))
    return ca.sign(x) * (whole + (ca.fabs(x) - whole >= 0.5))


def _round_even(x: ca.SX) -> ca.SX:
    whole = ca.floor(x)
    rest = x - whole
    odd = ca.fmod(whole, 2) != 0
    return whole + ca.logic_or(rest > 0.5, ca.logic_and(rest == 0.5, odd))


# Functions of any number of columns.
_PLAIN: dict[str, Callable[..., ca.SX]] = {
    "abs": ca.fabs,
    "acos": ca.acos,
    "acosh": ca.acosh,
    "add": lambda x, y: x + y,
    "add_any": lambda x, y: x + y,
    "asin": ca.asin,
    "asinh": ca.asinh,
    "atan": ca.atan,
    "atan2": ca.atan2,
    "atanh": ca.atanh,
    "cbrt": lambda x: ca.sign(x) * ca.fabs(x) ** (1 / 3),
    "ceil": ca.ceil,
    "clamp": lambda low, x, high: ca.fmin(ca.fmax(x, low), high),
    "cos": ca.cos,
    "cosh": ca.cosh,
    "eq": lambda x, y: x == y,
    "eq_to": lambda x, y: x == y,
    "erf": ca.erf,
    "erf_inv": ca.erfinv,
    "erfc": lambda x: 1 - ca.erf(x),
    "exp": ca.exp,
    "exp2": lambda x: ca.exp(math.log(2) * x),
    "expm1": ca.expm1,
    "floor": ca.floor,
    "ge": lambda x, y: x >= y,
    "gt": lambda x, y: x > y,
    "is_finite": lambda x: ca.fabs(x) < math.inf,
    "le": lambda x, y: x <= y,
    "le_to": lambda x, y: x <= y,
    "log": ca.log,
    "log1p": ca.log1p,
    "logistic": _logistic,
    "lt": lambda x, y: x < y,
    "lt_to": lambda x, y: x < y,
    "max": ca.fmax,
    "min": ca.fmin,
    "mul": lambda x, y: x * y,
    "ne": lambda x, y: x != y,
    "neg": lambda x: -x,
    "pow": lambda x, y: x**y,
    "rem": ca.fmod,
    "rsqrt": lambda x: 1 / ca.sqrt(x),
    "sign": ca.sign,
    "sin": ca.sin,
    "sinh": ca.sinh,
    "sqrt": ca.sqrt,
    "square": lambda x: x * x,
    "sub": lambda x, y: x - y,
    "tan": ca.tan,
    "tanh": ca.tanh,
}

# These are bitwise in JAX, and so the same only for truth values.
_LOGICAL: dict[str, Callable[..., ca.SX]] = {
    "and": ca.logic_and,
    "not": ca.logic_not,
    "or": ca.logic_or,
    "xor": lambda x, y: x != y,
}

# NumPy's functions with the same bits as JAX's, for arrays: JAX would compile each of them.
ON_NUMBERS: dict[str, Callable[..., np.ndarray]] = {
    "add": np.add,
    "and": np.bitwise_and,
    "eq": np.equal,
    "ge": np.greater_equal,
    "gt": np.greater,
    "le": np.less_equal,
    "lt": np.less,
    "mul": np.multiply,
    "ne": np.not_equal,
    "neg": np.negative,
    "not": np.invert,
    "or": np.bitwise_or,
    "sub": np.subtract,
}

# Primitives that return their operand.  CasADi differentiates through `stop_gradient`.
_SAME = (
    "copy",
    "copy_p",
    "device_put",
    "name",
    "optimization_barrier",
    "reduce_precision",
    "sharding_constraint",
    "stop_gradient",
)


def _shape(eqn: Equation) -> tuple[int, ...]:
    return tuple(eqn.outvars[0].aval.shape)


def _kind(variable: Equation) -> str:
    """NumPy's letter for the dtype: b, i, u or f."""
    return np.dtype(variable.aval.dtype).kind


def apply(function: Callable[..., ca.SX], values: list[Value], shape: tuple[int, ...]) -> Value:
    """A function of columns, entry by entry."""
    return symbolic(function(*(broadcast(value, shape) for value in values)), shape)


def _plain(eqn: Equation, values: list[Value]) -> Value:
    return apply(_PLAIN[eqn.primitive.name], values, _shape(eqn))


def _logical(eqn: Equation, values: list[Value]) -> Value:
    if _kind(eqn.outvars[0]) != "b":
        raise RefusalError("bits of integers that depend on the arguments; only booleans work")
    return apply(_LOGICAL[eqn.primitive.name], values, _shape(eqn))


def _same(eqn: Equation, values: list[Value]) -> list[Value]:
    return values


def _divide(eqn: Equation, values: list[Value]) -> Value:
    quotient = apply(lambda x, y: x / y, values, _shape(eqn))
    whole = _kind(eqn.outvars[0]) != "f"
    return apply(_truncate, [quotient], _shape(eqn)) if whole else quotient


def _integer_pow(eqn: Equation, values: list[Value]) -> Value:
    return symbolic(flat_of(values[0]) ** eqn.params["y"], _shape(eqn))


def _round(eqn: Equation, values: list[Value]) -> Value:
    to_even = eqn.params["rounding_method"] == lax.RoundingMethod.TO_NEAREST_EVEN
    return symbolic((_round_even if to_even else _round_away)(flat_of(values[0])), _shape(eqn))


def _convert(eqn: Equation, values: list[Value]) -> Value:
    flat, old, new = flat_of(values[0]), _kind(eqn.invars[0]), _kind(eqn.outvars[0])
    if new == "b" and old != "b":
        flat = flat != 0
    elif new in "iu" and old == "f":
        flat = _truncate(flat)
    return symbolic(flat, _shape(eqn))


def choose(which: Value, cases: list[Value], shape: tuple[int, ...]) -> Value:
    """Chooses among the cases entry by entry; a scalar `which` chooses for all entries."""
    if isinstance(which, Symbolic):
        number, chosen = broadcast(which, shape), broadcast(cases[-1], shape)
        for i, case in reversed(list(enumerate(cases[:-1]))):
            # If there are two cases, the number is a truth value.
            other = number if len(cases) == 2 else number != i
            chosen = ca.if_else(other, chosen, broadcast(case, shape))
        return symbolic(chosen, shape)
    sources = joint_positions([case.shape for case in cases])
    where = np.stack([np.broadcast_to(source, shape) for source in sources])
    number = np.broadcast_to(which.astype(np.int32), shape)
    return take_from(cases, np.take_along_axis(where, number[None], axis=0)[0])


def _select_n(eqn: Equation, values: list[Value]) -> Value:
    return choose(values[0], values[1:], _shape(eqn))


RULES = {
    **dict.fromkeys(_PLAIN, _plain),
    **dict.fromkeys(_LOGICAL, _logical),
    **dict.fromkeys(_SAME, _same),
    "convert_element_type": _convert,
    "div": _divide,
    "integer_pow": _integer_pow,
    "round": _round,
    "select_n": _select_n,
}
