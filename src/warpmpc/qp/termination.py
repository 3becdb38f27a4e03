"""When an ADMM iteration stops: residuals and infeasibility certificates of the unscaled QP."""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp

from warpmpc.qp.products import QPMatrices, norm, total
from warpmpc.qp.scaling import QPData, Residuals
from warpmpc.qp.soft import Penalties
from warpmpc.qp.types import INFINITY, ADMMSettings, Status


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
    primal = r.primal <= settings.absolute_tolerance + settings.relative_tolerance * r.primal_scale
    dual = r.dual <= settings.absolute_tolerance + settings.relative_tolerance * r.dual_scale
    return primal & dual


def is_primal_infeasible(
    data: QPData,
    matrices: QPMatrices,
    dy: jax.Array,
    settings: ADMMSettings,
    penalties: Penalties | None = None,
) -> jax.Array:
    """Whether the change of y certifies that no x satisfies the hard rows."""
    # Only directions that absent bounds allow can be part of a certificate.
    no_upper, no_lower = data.upper > INFINITY, data.lower < -INFINITY
    if penalties is not None:
        # A soft side can always give way: its multiplier is limited, or costs more than it gains.
        no_upper, no_lower = no_upper | penalties.upper.soft, no_lower | penalties.lower.soft
    dy = jnp.where(no_upper, jnp.minimum(dy, 0), dy)
    dy = jnp.where(no_lower, jnp.maximum(dy, 0), dy)
    size = norm(dy)
    upper, lower = jnp.where(no_upper, 0, data.upper), jnp.where(no_lower, 0, data.lower)
    support = upper * jnp.maximum(dy, 0) + lower * jnp.minimum(dy, 0)
    gap = total(support)
    small = norm(matrices.AT.product(data.A, dy)) <= settings.eps_prim_inf * size
    return (size > settings.eps_prim_inf) & (gap < 0) & small


def is_dual_infeasible(
    data: QPData,
    matrices: QPMatrices,
    dx: jax.Array,
    settings: ADMMSettings,
    penalties: Penalties | None = None,
) -> jax.Array:
    """Whether the change of x certifies that the cost is unbounded below.

    Along dx a bound must not be left, unless its side has a linear penalty only: then leaving it
    costs its slope for ever, and the linear cost must outweigh that.  A quadratic penalty grows
    beyond every linear cost and stops dx like a hard bound.
    """
    size = norm(dx)
    limit = settings.eps_dual_inf * size
    change = total(data.q * dx)
    flat = norm(matrices.P.product(data.P, dx)) <= limit
    Adx = matrices.A.product(data.A, dx)
    has_upper, has_lower = data.upper < INFINITY, data.lower > -INFINITY
    if penalties is not None:
        lower, upper = penalties.lower, penalties.upper
        rate = jnp.where(Adx > 0, has_upper * upper.slope, -(has_lower * lower.slope))
        change = change + total(rate * Adx)
        has_upper &= ~upper.soft | (upper.quadratic > 0)
        has_lower &= ~lower.soft | (lower.quadratic > 0)
    stays = ~(((Adx > limit) & has_upper) | ((Adx < -limit) & has_lower)).any(axis=1, keepdims=True)
    return (size > settings.eps_dual_inf) & (change < 0) & flat & stays


def verdict(
    before: jax.Array,
    r: Residuals,
    certificates: Callable[[], tuple[jax.Array, jax.Array]],
    is_last: jax.Array,
    settings: ADMMSettings,
) -> jax.Array:
    """Status after a check; the status of instances that are done already does not change.

    A solution takes precedence over certificates, and a certificate that the constraints cannot be
    satisfied over one that the cost is unbounded.  With a fixed number of iterations nothing stops
    early: only the last iterate is judged, and only as solved or not.

    Args:
        before: Status before the check.
        r: Residuals of the unscaled QP.
        certificates: Computes whether each instance is primal, and dual, infeasible.
        is_last: Whether this is the last iteration.
        settings: Settings with the tolerances.
    """
    running, solved, status = before == Status.MAX_ITER, is_solved(r, settings), before
    if not settings.check_every:
        return jnp.where(running & is_last & solved, Status.SOLVED, status)
    impossible, unbounded = certificates()
    for code, reached in (
        (Status.DUAL_INFEASIBLE, unbounded),
        (Status.PRIMAL_INFEASIBLE, impossible),
        (Status.SOLVED, solved),
    ):
        status = jnp.where(running & reached, code, status)
    return status
