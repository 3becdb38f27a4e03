"""When an ADMM iteration stops: residuals and infeasibility certificates of the unscaled QP."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from warpmpc.qp.conditioning import INFINITY, QPData, Residuals
from warpmpc.qp.products import QPMatrices, total
from warpmpc.qp.types import ADMMSettings, Status


def norm(array: jax.Array) -> jax.Array:
    """Largest absolute value of each instance, ``[groups, 1, lanes]``."""
    return jnp.abs(array).max(axis=1, keepdims=True, initial=0)


def residuals(
    data: QPData, matrices: QPMatrices, x: jax.Array, s: jax.Array, y: jax.Array
) -> Residuals:
    """Residuals of unscaled iterates."""
    Ax, Px, ATy = (
        matrices.A.product(data.A, x),
        matrices.P.product(data.P, x),
        matrices.AT.product(data.A, y),
    )
    return Residuals(
        primal=norm(Ax - s),
        primal_scale=jnp.maximum(norm(Ax), norm(s)),
        dual=norm(Px + data.q + ATy),
        dual_scale=jnp.maximum(jnp.maximum(norm(Px), norm(ATy)), norm(data.q)),
    )


def is_solved(r: Residuals, settings: ADMMSettings) -> jax.Array:
    """Whether both residuals are within tolerance."""
    primal = r.primal <= settings.eps_abs + settings.eps_rel * r.primal_scale
    dual = r.dual <= settings.eps_abs + settings.eps_rel * r.dual_scale
    return primal & dual


def is_primal_infeasible(
    data: QPData, matrices: QPMatrices, dy: jax.Array, settings: ADMMSettings
) -> jax.Array:
    """Whether the change of y certifies that no x satisfies the rows."""
    # Only directions that absent bounds allow can be part of a certificate.
    no_upper, no_lower = data.upper > INFINITY, data.lower < -INFINITY
    dy = jnp.where(no_upper, jnp.minimum(dy, 0), dy)
    dy = jnp.where(no_lower, jnp.maximum(dy, 0), dy)
    size = norm(dy)
    upper, lower = jnp.where(no_upper, 0, data.upper), jnp.where(no_lower, 0, data.lower)
    support = upper * jnp.maximum(dy, 0) + lower * jnp.minimum(dy, 0)
    gap = total(support)
    small = norm(matrices.AT.product(data.A, dy)) <= settings.eps_prim_inf * size
    return (size > settings.eps_prim_inf) & (gap < 0) & small


def is_dual_infeasible(
    data: QPData, matrices: QPMatrices, dx: jax.Array, settings: ADMMSettings
) -> jax.Array:
    """Whether the change of x certifies that the cost is unbounded below."""
    size = norm(dx)
    limit = settings.eps_dual_inf * size
    descent = total(data.q * dx) < 0
    flat = norm(matrices.P.product(data.P, dx)) <= limit
    Adx = matrices.A.product(data.A, dx)
    rises = (Adx > limit) & (data.upper < INFINITY)
    falls = (Adx < -limit) & (data.lower > -INFINITY)
    stays = ~(rises | falls).any(axis=1, keepdims=True)
    return (size > settings.eps_dual_inf) & descent & flat & stays


def bad_bounds(data: QPData) -> jax.Array:
    """Whether some row of an instance has lower > upper, or a bound no number can satisfy."""
    crossed = data.lower > data.upper
    unreachable = (data.lower > INFINITY) | (data.upper < -INFINITY)
    return (crossed | unreachable).any(axis=1, keepdims=True)


def initial_status(data: QPData) -> jax.Array:
    """Status before the first iteration: instances that must not be iterated are marked."""
    values = (data.P, data.q, data.A)
    finite = [jnp.isfinite(v).all(axis=1, keepdims=True) for v in values]
    nan = jnp.isnan(data.lower).any(axis=1, keepdims=True) | jnp.isnan(data.upper).any(
        axis=1, keepdims=True
    )
    broken = ~(finite[0] & finite[1] & finite[2]) | nan
    status = jnp.where(bad_bounds(data), Status.INVALID_BOUNDS, Status.MAX_ITER)
    return jnp.where(broken, Status.NON_FINITE, status).astype(jnp.int32)
