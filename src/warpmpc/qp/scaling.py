"""Scaling and step sizes of a QP: Ruiz equilibration, rho per row, adaptation of rho.

Reads: unscaled data in ``[groups, rows, lanes]``.  Produces: `Scaling` and rho vectors.  Constants
are OSQP's.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import jax
import jax.numpy as jnp
import numpy as np

from warpmpc._conventions import (
    BOUND_LARGE,
    EQUALITY_TOLERANCE,
    INFINITY,
    RHO_MIN,
    SCALE_MIN,
    RowClass,
)
from warpmpc.qp.products import QPMatrices, rounded, total
from warpmpc.qp.soft import Penalties
from warpmpc.qp.types import ADMMSettings, Status
from warpmpc.symbolic.pattern import SparsePattern

RHO_MAX = 1e6
_SCALE_MAX = 1e4
# Rho of equalities where curvature is judged; rounding of so large a sum hides small curvatures.
_FIRM = {"float32": 1e3, "float64": 1e8}


@jax.tree_util.register_dataclass
@dataclass(frozen=True, eq=False)
class QPData:
    """Data of a batch of QPs, ``[groups, rows, lanes]`` each.

    `soft` holds the penalties of soft rows: linear lower, linear upper, quadratic lower and
    quadratic upper ones, each for all soft rows; None without soft rows.
    """

    P: jax.Array
    q: jax.Array
    A: jax.Array
    lower: jax.Array
    upper: jax.Array
    soft: jax.Array | None = None


@jax.tree_util.register_dataclass
@dataclass(frozen=True, eq=False)
class Scaling:
    """Scaled variables are x / `x`, rows are multiplied by `con`, the cost by `cost`."""

    x: jax.Array
    con: jax.Array
    cost: jax.Array


@jax.tree_util.register_dataclass
@dataclass(frozen=True, eq=False)
class Residuals:
    """Residuals and what they are measured against, ``[groups, 1, lanes]`` each."""

    primal: jax.Array
    primal_scale: jax.Array
    dual: jax.Array
    dual_scale: jax.Array


class Equilibration:
    """Ruiz scaling of QPs with one pattern."""

    def __init__(
        self, P_pattern: SparsePattern, P_entries: np.ndarray, A_pattern: SparsePattern, n_P: int
    ):
        """Keeps which row and column each stored value belongs to.

        Args:
            P_pattern: Upper triangle of P.
            P_entries: Position of its entries in the caller's list of values.
            A_pattern: Pattern of A.
            n_P: Length of the caller's list of values of P.
        """
        self._P_row, self._P_col = np.zeros(n_P, dtype=np.int32), np.zeros(n_P, dtype=np.int32)
        self._P_row[P_entries], self._P_col[P_entries] = P_pattern.row_idx, P_pattern.col_idx
        self._A_row, self._A_col = A_pattern.row_idx, A_pattern.col_idx

    def apply(self, data: QPData, scaling: Scaling) -> QPData:
        """The scaled QP, but for penalties of soft rows."""
        x, con = scaling.x, scaling.con
        return QPData(
            P=data.P * scaling.cost * x[:, self._P_row] * x[:, self._P_col],
            q=data.q * scaling.cost * x,
            A=data.A * con[:, self._A_row] * x[:, self._A_col],
            lower=data.lower * con,
            upper=data.upper * con,
        )

    def ruiz(self, data: QPData, matrices: QPMatrices, passes: int) -> Scaling:
        """Equilibrates the columns of the KKT matrix, then the cost, `passes` times."""
        groups, _, lanes = data.q.shape
        one = jnp.ones((groups, 1, lanes), dtype=data.q.dtype)
        scaling = Scaling(jnp.ones_like(data.q), jnp.ones_like(data.lower), one)

        def once(_: int, scaling: Scaling) -> Scaling:
            scaled = self.apply(data, scaling)
            column = jnp.maximum(matrices.P.row_norms(scaled.P), matrices.AT.row_norms(scaled.A))
            x = scaling.x / jnp.sqrt(_limit(column))
            con = scaling.con / jnp.sqrt(_limit(matrices.A.row_norms(scaled.A)))
            scaled = self.apply(data, Scaling(x, con, scaling.cost))
            mean = total(matrices.P.row_norms(scaled.P)) / data.q.shape[1]
            largest = jnp.abs(scaled.q).max(axis=1, keepdims=True)
            cost = scaling.cost / _limit(jnp.maximum(mean, _limit(largest)))
            return Scaling(x, con, cost)

        return jax.lax.fori_loop(0, passes, once, scaling)


def _limit(norm: jax.Array) -> jax.Array:
    return jnp.where(norm < SCALE_MIN, 1.0, jnp.minimum(norm, _SCALE_MAX)).astype(norm.dtype)


def row_factors(
    scaled: QPData,
    settings: ADMMSettings,
    classes: np.ndarray | None = None,
    is_soft: np.ndarray | None = None,
) -> tuple[jax.Array, jax.Array]:
    """Factor of each row on its instance's rho, and which rows are free (their rho is fixed).

    Args:
        scaled: Scaled data; what kind a row is follows from its bounds.
        settings: Settings with the factor of equalities.
        classes: `RowClass` of each row instead, for all instances.
        is_soft: Rows that are no equalities, whatever their bounds.
    """
    if classes is None:
        equal = scaled.upper - scaled.lower < EQUALITY_TOLERANCE
        free = (scaled.lower < -BOUND_LARGE) & (scaled.upper > BOUND_LARGE)
        if is_soft is not None:
            equal = equal & ~is_soft[None, :, None]
    else:
        equal, free = (
            jnp.broadcast_to(jnp.asarray(classes == kind)[None, :, None], scaled.lower.shape)
            for kind in (RowClass.EQUALITY, RowClass.FREE)
        )
    return jnp.where(equal, settings.rho_equality, 1.0).astype(scaled.q.dtype), free


def rho_rows(rho: jax.Array | float, factors: jax.Array, free: jax.Array) -> jax.Array:
    """Rho of every row from the rho of its instance ``[groups, 1, lanes]``."""
    return jnp.where(free, RHO_MIN, rho * factors).astype(factors.dtype)


def adapted_rho(rho: jax.Array, r: Residuals, settings: ADMMSettings) -> jax.Array:
    """Rho that balances the residuals, each relative to what termination allows it.

    OSQP's rule divides by the scales alone.  Where a solution is zero, as those of the last QPs of
    an SQP iteration, the primal scale vanishes and rho would grow without bound.
    """
    tiny = 1e-10
    absolute, relative = settings.absolute_tolerance, settings.relative_tolerance
    if not absolute and not relative:
        absolute, relative = tiny, 1.0
    primal = r.primal / (absolute + relative * r.primal_scale)
    dual = r.dual / (absolute + relative * r.dual_scale)
    return jnp.clip(rho * jnp.sqrt(primal / (dual + tiny)), RHO_MIN, RHO_MAX)


@dataclass(frozen=True, eq=False)
class Projection:
    """The step from v to s: clip to the bounds; soft rows then give way.

    Attributes:
        lower: Lower bounds of all rows.
        upper: Upper bounds of all rows.
        proximal: Coefficients of the proximal map, or None without soft rows.
    """

    lower: jax.Array
    upper: jax.Array
    proximal: Penalties | None = None

    def __call__(self, v: jax.Array) -> jax.Array:
        """Projected rows s."""
        s = jnp.clip(v, self.lower, self.upper)
        if self.proximal is None:
            return s
        below, above = self.excess(v)
        return s + above - below

    def excess(self, v: jax.Array) -> tuple[jax.Array, jax.Array]:
        """How far s lies below the lower and above the upper bound."""
        assert self.proximal is not None
        beyond = v - jnp.clip(v, self.lower, self.upper)
        return self.proximal.lower.excess(-beyond), self.proximal.upper.excess(beyond)


@dataclass(frozen=True, eq=False)
class ScaledQP:
    """A batch of QPs as an ADMM loop sees it.

    Attributes:
        data: Unscaled data.
        scaled: Scaled data.
        scaling: How they relate.
        factors: Factor of each row on rho.
        free: Rows whose rho is fixed.
        identical: Whether nothing is scaled.
        penalties: Penalties of all rows, unscaled; None without soft rows.
    """

    data: QPData
    scaled: QPData
    scaling: Scaling
    factors: jax.Array
    free: jax.Array
    identical: bool
    penalties: Penalties | None = None

    def projection(self, rho: jax.Array) -> Projection:
        """How scaled s follows from scaled v, for this rho of the instances."""
        bounds = self.scaled.lower, self.scaled.upper
        if self.penalties is None:
            return Projection(*bounds)
        return Projection(*bounds, self._scaled(self.penalties).proximal(self.rho(rho)))

    def _scaled(self, penalties: Penalties) -> Penalties:
        return penalties.scaled(self.scaling.con, self.scaling.cost)

    @property
    def scaled_penalties(self) -> Penalties | None:
        """Penalties of the scaled problem; None without soft rows."""
        return None if self.penalties is None else self._scaled(self.penalties)

    @property
    def judged(self) -> QPData:
        """The scaled problem for certificates: what is no bound before scaling is none in it."""
        lower = jnp.where(self.data.lower < -INFINITY, -jnp.inf, self.scaled.lower)
        upper = jnp.where(self.data.upper > INFINITY, jnp.inf, self.scaled.upper)
        return replace(self.scaled, lower=lower, upper=upper)

    def scaled_change(self, x: jax.Array, y: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Changes of x and y of the scaled problem."""
        return x / self.scaling.x, self.scaling.cost * y / self.scaling.con

    def penalty(self, v: jax.Array, rho: jax.Array) -> jax.Array | float:
        """What violations of soft rows add to the unscaled objective."""
        if self.penalties is None:
            return 0.0
        excess = self.projection(rho).excess(v)
        return self._scaled(self.penalties).cost(excess) / self.scaling.cost

    def rho(self, rho: jax.Array | float) -> jax.Array:
        """Rho of every row."""
        return rho_rows(rho, self.factors, self.free)

    def firm_rho(self, rho: jax.Array) -> jax.Array:
        """Rho of every row, so large for equalities that they allow no other directions."""
        rows, data = self.rho(rho), self.data
        equal = data.lower == data.upper
        if self.penalties is not None:
            equal &= ~self.penalties.lower.soft & ~self.penalties.upper.soft
        return jnp.where(equal, jnp.maximum(rows, _FIRM[str(rows.dtype)]), rows)

    def scaled_start(self, x: jax.Array, s: jax.Array, y: jax.Array) -> tuple[jax.Array, ...]:
        """Scaled x, s and y."""
        scaling = self.scaling
        return x / scaling.x, scaling.con * s, scaling.cost * y / scaling.con

    def unscaled(
        self, x: jax.Array, v: jax.Array, rho: jax.Array
    ) -> tuple[jax.Array, jax.Array, jax.Array]:
        """Unscaled x, s and y."""
        project = self.projection(rho)
        s = project(v)
        y = self.unscaled_dual(self.rho(rho) * (v - s))
        x, s = self.scaling.x * x, s / self.scaling.con
        if self.penalties is not None:
            # Beyond its bound is a row that gives way, and no other by rounding.
            below, above = project.excess(v)
            inside = jnp.clip(s, self.data.lower, self.data.upper)
            s = jnp.where((below > 0) | (above > 0), s, inside)
        return x, s, y

    def unscaled_dual(self, y: jax.Array) -> jax.Array:
        """Multipliers of the unscaled problem."""
        return self.scaling.con * y / self.scaling.cost

    def balanced(
        self, rho: jax.Array, v: jax.Array, r: Residuals, may: jax.Array, settings: ADMMSettings
    ) -> tuple[jax.Array, jax.Array, jax.Array]:
        """Which instances change rho, and new rho and v.

        Args:
            rho: Rho of each instance.
            v: Values of v of each row.
            r: Residuals of the unscaled problem.
            may: Which instances may change it.
            settings: Settings with the tolerances and the factor by which rho changes at least.
        """
        wanted, tolerance = adapted_rho(rho, r, settings), settings.adaptive_rho_tolerance
        change = may & ((wanted > tolerance * rho) | (wanted < rho / tolerance))
        new = jnp.where(change, wanted, rho).astype(rho.dtype)
        s = self.projection(rho)(v)
        # y stays what it was; v changes because y = rho (v - s).  No other v changes a bit.
        moved = s + rounded((v - s) * (self.rho(rho) / self.rho(new)))
        return change, new, jnp.where(change, moved, v)


@dataclass(frozen=True, eq=False)
class LoopEnd:
    """Where an ADMM loop ended: scaled x and v; everything else belongs to the unscaled QP.

    The objective is without the penalties of soft rows.
    """

    x: jax.Array
    v: jax.Array
    rho: jax.Array
    status: jax.Array
    iterations: jax.Array
    residuals: Residuals
    objective: jax.Array


def bad_bounds(data: QPData) -> jax.Array:
    """Whether an instance has lower > upper, a bound no number can satisfy, a negative penalty."""
    crossed = data.lower > data.upper
    unreachable = (data.lower > INFINITY) | (data.upper < -INFINITY)
    bad = (crossed | unreachable).any(axis=1, keepdims=True)
    return bad if data.soft is None else bad | (data.soft < 0).any(axis=1, keepdims=True)


def initial_status(data: QPData) -> jax.Array:
    """Status before the first iteration: instances that must not be iterated are marked."""
    values = (data.P, data.q, data.A)
    finite = [jnp.isfinite(v).all(axis=1, keepdims=True) for v in values]
    broken = ~(finite[0] & finite[1] & finite[2])
    for limits in (data.lower, data.upper, data.soft):
        if limits is not None:
            broken |= jnp.isnan(limits).any(axis=1, keepdims=True)
    status = jnp.where(bad_bounds(data), Status.INVALID_BOUNDS, Status.MAX_ITER)
    return jnp.where(broken, Status.NON_FINITE, status).astype(jnp.int32)
