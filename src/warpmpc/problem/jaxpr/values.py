"""The values of the variables of a jaxpr: arrays, expressions, and values that were refused.

Arrays are row-major, as in JAX.  CasADi's matrices are column-major; they appear only at the
beginning and end of a translation and in `matrix_of` and `from_matrix`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import casadi as ca
import numpy as np

Shape = tuple[int, ...]


@dataclass(frozen=True, eq=False)
class Symbolic:
    """An array of expressions.

    Attributes:
        flat: Dense column of all entries in row-major order.
        shape: Shape of the array, as in JAX.
    """

    flat: ca.SX
    shape: Shape


@dataclass(frozen=True)
class Refused:
    """A value that could not be translated, which is an error only if an output needs it."""

    message: str


# Constants stay NumPy arrays (random keys stay JAX arrays), so no expressions are built for them.
Value = np.ndarray | Symbolic
# An equation of a jaxpr (a `JaxprEqn`, which JAX types as Any in places).
Equation = Any


class RefusalError(Exception):
    """Raised by a rule with the reason why an equation has no expression, and with advice."""


def symbolic(flat: ca.SX, shape: Shape) -> Symbolic:
    """Makes an array from its entries; a single entry fills the shape."""
    size = math.prod(shape)
    if flat.numel() != size:
        flat = ca.repmat(flat, size, 1)
    return Symbolic(flat if flat.is_dense() else ca.densify(flat), shape)


def flat_of(value: Value) -> ca.SX:
    """All entries as one dense column in row-major order."""
    if isinstance(value, Symbolic):
        return value.flat
    return ca.SX(ca.DM(np.asarray(value, dtype=np.float64).reshape(-1)))


def positions(shape: Shape, start: int = 0) -> np.ndarray:
    """Row-major position of every entry, counted from `start`."""
    return np.arange(start, start + math.prod(shape), dtype=np.int32).reshape(shape)


def entries(flat: ca.SX, where: np.ndarray) -> ca.SX:
    """The entries at the given positions as a column."""
    return flat[where.reshape(-1).tolist(), 0]


def take(value: Value, where: np.ndarray) -> Value:
    """The entries at the given positions, in the shape of `where`."""
    if not isinstance(value, Symbolic):
        return value.reshape(-1)[where]
    return Symbolic(entries(value.flat, where), where.shape)


def take_from(values: Sequence[Value], where: np.ndarray) -> Value:
    """Like `take`, from several arrays; positions count through all of them in order."""
    if not any(isinstance(value, Symbolic) for value in values):
        return np.concatenate([np.asarray(value).reshape(-1) for value in values])[where]
    flat = ca.vertcat(*(flat_of(value) for value in values))
    return Symbolic(entries(flat, where), where.shape)


def broadcast(value: Value, shape: Shape) -> ca.SX:
    """Entries of an array stretched to a shape, except for a single one, which CasADi stretches.

    Elementwise primitives accept an axis of length 1 for any length.
    """
    flat = flat_of(value)
    if value.shape == shape or flat.numel() == 1:
        return flat
    return entries(flat, np.broadcast_to(positions(value.shape), shape))


def joint_positions(shapes: Sequence[Shape]) -> list[np.ndarray]:
    """Positions of every entry of several arrays, for `take_from`."""
    sizes = [math.prod(shape) for shape in shapes]
    starts = np.cumsum([0, *sizes[:-1]])
    return [positions(shape, int(start)) for shape, start in zip(shapes, starts, strict=True)]


def matrix_of(value: Value) -> ca.SX:
    """An array with two axes as a CasADi matrix."""
    rows, columns = value.shape
    return ca.reshape(flat_of(value), columns, rows).T


def from_matrix(matrix: ca.SX) -> Symbolic:
    """A CasADi matrix as an array with two axes."""
    return symbolic(ca.vec(matrix.T), tuple(matrix.shape))


def matrices_of(value: Value) -> list[ca.SX]:
    """The last two axes as CasADi matrices, one for each index of the leading axes."""
    where = positions(value.shape).reshape(math.prod(value.shape[:-2]), *value.shape[-2:])
    return [matrix_of(take(value, block)) for block in where]


def from_matrices(matrices: Sequence[ca.SX], shape: Shape) -> Symbolic:
    """The inverse of `matrices_of`."""
    return symbolic(ca.vertcat(ca.SX(0, 1), *(ca.vec(matrix.T) for matrix in matrices)), shape)
