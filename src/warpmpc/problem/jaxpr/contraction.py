"""Primitives that combine entries along axes: matrix products, reductions, cumulative sums."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable

import casadi as ca
import numpy as np

from warpmpc.problem.jaxpr.elementwise import logaddexp
from warpmpc.problem.jaxpr.values import (
    Equation,
    RefusalError,
    Symbolic,
    Value,
    entries,
    flat_of,
    from_matrices,
    matrices_of,
    positions,
    symbolic,
    take,
)

NO_ORDER = "its result jumps where the order of entries changes; use jnp.max, jnp.where or sums"
Combine = Callable[[ca.SX, ca.SX], ca.SX]

# The combination of two entries, and the result for no entry at all.
_REDUCTIONS: dict[str, tuple[Combine, float]] = {
    "reduce_and": (ca.logic_and, 1.0),
    "reduce_max": (ca.fmax, -math.inf),
    "reduce_min": (ca.fmin, math.inf),
    "reduce_or": (ca.logic_or, 0.0),
    "reduce_prod": (lambda x, y: x * y, 1.0),
    "reduce_sum": (lambda x, y: x + y, 0.0),
    "reduce_xor": (lambda x, y: x != y, 0.0),
}
_CUMULATIVE: dict[str, Combine] = {
    "cumlogsumexp": logaddexp,
    "cummax": ca.fmax,
    "cummin": ca.fmin,
    "cumprod": lambda x, y: x * y,
    "cumsum": lambda x, y: x + y,
}


def _blocks(value: Value, batch: list[int], rows: list[int], columns: list[int]) -> list[ca.SX]:
    """The array with its axes in three groups, as one matrix per index of the first group."""
    order = np.transpose(positions(value.shape), [*batch, *rows, *columns])
    sizes = [math.prod(value.shape[axis] for axis in axes) for axes in (batch, rows, columns)]
    return matrices_of(take(value, order.reshape(sizes)))


def _free(value: Value, used: tuple[int, ...]) -> list[int]:
    return [axis for axis in range(len(value.shape)) if axis not in used]


def _dot_general(eqn: Equation, values: list[Value]) -> Value:
    (sum_left, sum_right), (batch_left, batch_right) = eqn.params["dimension_numbers"]
    left, right = values
    rows = _free(left, (*sum_left, *batch_left))
    columns = _free(right, (*sum_right, *batch_right))
    lefts = _blocks(left, list(batch_left), rows, list(sum_left))
    rights = _blocks(right, list(batch_right), list(sum_right), columns)
    products = [ca.mtimes(*pair) for pair in zip(lefts, rights, strict=True)]
    return from_matrices(products, tuple(eqn.outvars[0].aval.shape))


def _reduce(eqn: Equation, values: list[Value]) -> Value:
    combine, empty = _REDUCTIONS[eqn.primitive.name]
    axes, flat = eqn.params["axes"], flat_of(values[0])
    kept = _free(values[0], axes)
    order = np.transpose(positions(values[0].shape), [*axes, *kept])
    shape = tuple(eqn.outvars[0].aval.shape)
    rows = order.reshape(math.prod(values[0].shape[axis] for axis in axes), math.prod(shape))
    if not len(rows):
        return np.full(shape, empty)
    result = entries(flat, rows[0])
    for row in rows[1:]:
        result = combine(result, entries(flat, row))
    return symbolic(result, shape)


def _accumulate(eqn: Equation, values: list[Value]) -> Value:
    combine, axis = _CUMULATIVE[eqn.primitive.name], eqn.params["axis"]
    flat, shape = flat_of(values[0]), values[0].shape
    rows = np.moveaxis(positions(shape), axis, 0).reshape(shape[axis], -1)
    result = ca.SX(flat)
    steps = rows[::-1] if eqn.params["reverse"] else rows
    for before, row in itertools.pairwise(steps):
        result[row.tolist(), 0] = combine(entries(result, before), entries(flat, row))
    return Symbolic(result, shape)


def _argmax(eqn: Equation, values: list[Value]) -> Value:
    """Translates argmax of truth values, which `jnp.select` uses; the first of equals counts."""
    axes, order = eqn.params["axes"], positions(values[0].shape)
    if np.dtype(eqn.invars[0].aval.dtype).kind != "b":
        raise RefusalError(NO_ORDER)
    (axis,), flat = axes, flat_of(values[0])
    rows = np.moveaxis(order, axis, 0)
    found = ca.SX.zeros(rows[0].size, 1)
    for number, row in reversed(list(enumerate(rows))):
        found = ca.if_else(entries(flat, row), number, found)
    return symbolic(found, tuple(eqn.outvars[0].aval.shape))


RULES = {
    **dict.fromkeys(_REDUCTIONS, _reduce),
    **dict.fromkeys(_CUMULATIVE, _accumulate),
    "argmax": _argmax,
    "dot_general": _dot_general,
}
