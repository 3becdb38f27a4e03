"""Guarded refinement of the linear systems behind derivatives.

The factors belong to a matrix near K, not to K.  Plain refinement with them diverges where P is
indefinite on parts that the constraints fix.  Here every pass projects: its direction is made
orthogonal, under K, to those before, and the step along it is the one that leaves the smallest
residual (generalised conjugate residuals).  A pass counts only if the residual that is computed
afresh has fallen.  Arrays are ``[groups, rows, lanes]``.

The residual of a solution that is rounded is of the size of rounding, and along an unstable
trajectory such a residual means an error that is a thousand times as large.  So solutions and
residuals have twice the precision.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import jax
import jax.numpy as jnp

from warpmpc.qp.products import QPMatrices, exact_sum, rounded, total
from warpmpc.symbolic.pattern import SparsePattern

Map = Callable[[jax.Array], jax.Array]
Residual = Callable[[jax.Array, jax.Array, jax.Array], jax.Array]

DIRECTIONS = 8  # that later ones are made orthogonal to; the oldest gives way
_PASSES = 30
_ENOUGH = 2.0  # change of w, in units of its rounding, at which refinement ends
_STALL = 0.9  # a pass that leaves more of the residual is one without progress
_PATIENCE = 3  # passes without progress before refinement ends
_SCALING_PASSES = 8
_VALID = 1e-2  # largest relative residual, and relative error by its estimate


@jax.tree_util.register_dataclass
@dataclass(frozen=True, eq=False)
class _Pass:
    w: jax.Array
    low: jax.Array
    rest: jax.Array
    directions: jax.Array
    images: jax.Array
    idle: jax.Array
    count: jax.Array


def refined(
    apply: Map, residual: Residual, precondition: Map, rhs: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """Solves K w = rhs; also whether each instance is solved, ``[groups, 1, lanes]``.

    A system without a solution, because rows depend on each other, counts as solved where the
    residual is smallest.

    Args:
        apply: Product with K.
        residual: Difference of a right-hand side and the product with K of a sum of two vectors,
            the second one being the rounding error of the first one; in twice the precision.
        precondition: Solve with a matrix near K.
        rhs: Right-hand sides; those of zero have the solution zero.
    """
    size = _size(rhs)
    rhs = jnp.where(size > 0, rhs / jnp.where(size > 0, size, 1), 0)
    empty = jnp.zeros((DIRECTIONS, *rhs.shape), dtype=rhs.dtype)
    idle = jnp.where(size > 0, 0, _PATIENCE).astype(jnp.int32)
    nothing = jnp.zeros_like(rhs)
    begin = _Pass(nothing, nothing, rhs, empty, empty, idle, jnp.zeros((), dtype=jnp.int32))

    def once(now: _Pass) -> _Pass:
        return _pass(apply, residual, precondition, rhs, now)

    end = jax.lax.while_loop(
        lambda now: (now.count < _PASSES) & (now.idle < _PATIENCE).any(), once, begin
    )
    return end.w * size, _is_valid(apply, precondition, end)


def _pass(apply: Map, residual: Residual, precondition: Map, rhs: jax.Array, now: _Pass) -> _Pass:
    """One direction more."""
    direction = precondition(now.rest)
    image = apply(direction)
    usable = jnp.isfinite(image).all(axis=1, keepdims=True)
    done = _length(direction) <= _ENOUGH * jnp.finfo(rhs.dtype).eps * _length(now.w)
    direction, image = (jnp.where(usable, a, 0) for a in (direction, image))
    # Rounding leaves parts of the earlier directions; a second time removes them.
    for _ in range(2):
        shares = _dots(now.images, image)
        direction, image = (
            _without(direction, shares, now.directions),
            _without(image, shares, now.images),
        )
    length = _length(image)
    scale = jnp.where(length > 0, 1 / jnp.where(length > 0, length, 1), 0)
    direction, image = direction * scale, image * scale
    w, lost = exact_sum(now.w, rounded(total(now.rest * image) * direction))
    w, low = exact_sum(w, now.low + lost)
    rest = residual(rhs, w, low)
    before, after = _length(now.rest), _length(rest)
    better = (after < before) & (now.idle < _PATIENCE)
    new, old = (w, low, rest), (now.w, now.low, now.rest)
    w, low, rest = (jnp.where(better, *pair) for pair in zip(new, old, strict=True))
    idle = jnp.where(better & (after < _STALL * before), 0, now.idle + 1)
    idle = jnp.where(done | (after == 0), _PATIENCE, idle).astype(jnp.int32)
    place = now.count % DIRECTIONS
    return _Pass(
        w,
        low,
        rest,
        now.directions.at[place].set(direction),
        now.images.at[place].set(image),
        jnp.where(now.idle < _PATIENCE, idle, now.idle),
        now.count + 1,
    )


def has_small_residual(rest: jax.Array, rhs: jax.Array) -> jax.Array:
    """Whether a residual is small beside its right-hand side; not finite ones are not."""
    return _length(rest) <= _VALID * _length(rhs)


def _is_valid(apply: Map, precondition: Map, end: _Pass) -> jax.Array:
    """Whether the residual is small, and so what it would still change."""
    missing = precondition(end.rest)
    small = _length(end.rest) <= _VALID  # the right-hand side has size one
    near = _length(missing) <= _VALID * _length(end.w)
    least = _length(apply(end.rest)) <= _VALID * _VALID * _length(end.rest)
    return (small & near) | least


def equilibrated(
    P: jax.Array,
    A: jax.Array,
    matrices: QPMatrices,
    P_pattern: SparsePattern,
    A_pattern: SparsePattern,
) -> tuple[jax.Array, jax.Array]:
    """Factors of variables and rows that bring the entries of [[P, A'], [A, 0]] near one.

    They are powers of two, so that scaling does not round.

    Args:
        P: Values of P.
        A: Values of A; rows of zeros keep the factor one.
        matrices: Products with P and A.
        P_pattern: Where the values of P stand.
        A_pattern: Where those of A stand.
    """

    def once(_: int, factors: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        x, rows = factors
        P_now = P * x[:, P_pattern.row_idx] * x[:, P_pattern.col_idx]
        A_now = A * rows[:, A_pattern.row_idx] * x[:, A_pattern.col_idx]
        column = jnp.maximum(matrices.P.row_norms(P_now), matrices.AT.row_norms(A_now))
        return x * _inverse_root(column), rows * _inverse_root(matrices.A.row_norms(A_now))

    groups, _, lanes = P.shape
    ones = (
        jnp.ones((groups, size, lanes), dtype=P.dtype)
        for size in (A_pattern.n_cols, A_pattern.n_rows)
    )
    x, rows = jax.lax.fori_loop(0, _SCALING_PASSES, once, tuple(ones))
    return power_of_two(x), power_of_two(rows)


def _inverse_root(norms: jax.Array) -> jax.Array:
    usable = (norms > 0) & jnp.isfinite(norms)
    return jnp.where(usable, jax.lax.rsqrt(jnp.where(usable, norms, 1)), 1)


def power_of_two(values: jax.Array) -> jax.Array:
    """The largest powers of two that are not larger than positive values."""
    _, exponent = jnp.frexp(values)
    return jnp.ldexp(jnp.ones_like(values), exponent - 1)


def _size(values: jax.Array) -> jax.Array:
    """Power of two of about the length of each instance; 0 for zero."""
    largest = jnp.abs(values).max(axis=1, keepdims=True, initial=0)
    safe = power_of_two(jnp.where(largest > 0, largest, 1))
    found = power_of_two(jnp.maximum(_length(values / safe), 1)) * safe
    return jnp.where(largest > 0, found, 0)


def _length(values: jax.Array) -> jax.Array:
    return jnp.sqrt(total(values * values))


def _dots(many: jax.Array, one: jax.Array) -> jax.Array:
    """Inner products of each of several vectors with one, ``[several, groups, 1, lanes]``."""
    products = (many * one[None]).reshape(-1, *one.shape[1:])
    return total(products).reshape(many.shape[0], one.shape[0], 1, one.shape[2])


def _without(one: jax.Array, shares: jax.Array, many: jax.Array) -> jax.Array:
    """A vector without its shares of others, subtracted in a fixed order."""
    for share, other in zip(shares, many, strict=True):
        one = one - rounded(share * other)
    return one
