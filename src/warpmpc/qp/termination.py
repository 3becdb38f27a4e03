"""When an ADMM iteration stops: residuals of the unscaled QP, certificates of the scaled one.

A certificate holds up to a tolerance.  In small units of variables or rows every direction meets an
absolute one, also of a problem with a solution.  So it is relative to the largest entry of each row
or column of A, in the scaled problem, where changes of all variables and rows compare.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import jax
import jax.numpy as jnp

from warpmpc.qp.products import QPMatrices, RowGather, norm, total
from warpmpc.qp.scaling import QPData, Residuals
from warpmpc.qp.soft import Penalties
from warpmpc.qp.types import INFINITY, ADMMSettings, Status

# Sums whose terms cancel to this share of their sizes are as good as zero.
_ROUNDING = {"float32": 1e-6, "float64": 1e-15}
_NOTHING = 1e-30  # smaller entries are none


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


@dataclass(frozen=True, eq=False)
class DualityGap:
    """The terms x'Px, q'x and y's of the gap of an instance, ``[groups, 1, lanes]`` each.

    y lies in the normal cone of the bounds at s, or is the slope of a penalty there.  So y's is the
    support function of the bounds at y, of soft rows that of the penalties and what they cost at s.
    """

    curved: jax.Array
    linear: jax.Array
    held: jax.Array

    def is_closed(self, settings: ADMMSettings) -> jax.Array:
        """Whether it is within tolerance."""
        gap = jnp.abs(self.curved + self.linear + self.held)
        size = jnp.maximum(jnp.abs(self.linear), jnp.abs(self.held))
        size = jnp.maximum(jnp.abs(self.curved), size)
        return gap <= settings.absolute_tolerance + settings.relative_tolerance * size


def duality_gap(
    data: QPData, matrices: QPMatrices, x: jax.Array, s: jax.Array, y: jax.Array
) -> DualityGap:
    """The gap of unscaled iterates."""
    Px = matrices.P.product(data.P, x)
    return DualityGap(total(Px * x), total(data.q * x), total(y * s))


def is_solved(r: Residuals, gap: DualityGap | None, settings: ADMMSettings) -> jax.Array:
    """Whether both residuals are within tolerance, and the gap where it is asked for."""
    primal = r.primal <= settings.absolute_tolerance + settings.relative_tolerance * r.primal_scale
    dual = r.dual <= settings.absolute_tolerance + settings.relative_tolerance * r.dual_scale
    within = primal & dual
    return within if gap is None else within & gap.is_closed(settings)


def is_reference(checks: jax.Array) -> jax.Array:
    """Whether certificates compare with the iterate after so many checks, until the next such one.

    Every direction may be a certificate, also the change over many iterations.  What an infeasible
    problem adds to y in each is always the same, and y is the sum: over a span that grows with it
    the change keeps its digits, over a single iteration float32 loses them.  So the references are
    the powers of two and one and a half times them: spans grow up to a third of all iterations.
    """
    lowest_bit = checks & -checks
    return (checks == lowest_bit) | (checks == 3 * lowest_bit)


def _sizes(rows: RowGather, values: jax.Array) -> jax.Array:
    """Largest entry of each row, to divide by."""
    return jnp.maximum(rows.row_norms(values), _NOTHING)


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
    enough = -_ROUNDING[str(dy.dtype)] * total(jnp.abs(support))
    combination = matrices.AT.product(data.A, dy) / _sizes(matrices.AT, data.A)
    small = norm(combination) <= settings.eps_prim_inf * size
    return (size > settings.eps_prim_inf) & (gap < enough) & small


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
    curvature = norm(matrices.P.product(data.P, dx))
    Adx = matrices.A.product(data.A, dx)
    has_upper, has_lower = data.upper < INFINITY, data.lower > -INFINITY
    if penalties is not None:
        lower, upper = penalties.lower, penalties.upper
        rate = jnp.where(Adx > 0, has_upper * upper.slope, -(has_lower * lower.slope))
        change = change + total(rate * Adx)
        has_upper &= ~upper.soft | (upper.quadratic > 0)
        has_lower &= ~lower.soft | (lower.quadratic > 0)
    rise = Adx / _sizes(matrices.A, data.A)
    leaves = ((rise > limit) & has_upper) | ((rise < -limit) & has_lower)
    stays = ~leaves.any(axis=1, keepdims=True)
    # Beside the slope as well: every P is flat if the cost is in small enough units.
    flat = (curvature <= limit) & (curvature <= -settings.eps_dual_inf * change)
    return (size > settings.eps_dual_inf) & (change < 0) & flat & stays


def verdict(
    before: jax.Array,
    solved: jax.Array,
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
        solved: Whether each instance is solved.
        certificates: Computes whether each instance is primal, and dual, infeasible.
        is_last: Whether this is the last iteration.
        settings: Settings with the tolerances.
    """
    running, status = before == Status.MAX_ITER, before
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
