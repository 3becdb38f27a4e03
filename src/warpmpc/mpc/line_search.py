"""Line searches: which step length of a ladder an SQP iteration takes.

Reads: cost and violation at the iterate and at all trial points.  Produces: `Choice`.  Arrays of a
`Trial` are ``[steps, tiles, 1, 32]``, the largest step first; the first axis is 1 where all steps
share a value.  A line search is one `LineSearch` in `LINE_SEARCHES`; its name there is what
`LineSearchSettings.kind` takes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp
import numpy as np

from warpmpc.codegen.native.line_search import (
    FULL_CONDITION,
    SearchRule,
    filter_condition,
    merit_condition,
)

if TYPE_CHECKING:  # settings check names against the registry of this module
    from warpmpc.mpc.settings import SQPSettings
    from warpmpc.mpc.stage_evaluation import Evaluation


@jax.tree_util.register_dataclass
@dataclass(frozen=True, eq=False)
class Trial:
    """What a line search knows.

    Attributes:
        here: Evaluation at the iterate, ``[1, tiles, 1, 32]``.
        there: Evaluations at all trial points, ``[steps, tiles, 1, 32]``.
        slope: Change of the cost along the direction to first order (m0).
        weight: Largest multiplier, for merit functions.
    """

    here: Evaluation
    there: Evaluation
    slope: jax.Array
    weight: jax.Array


@jax.tree_util.register_dataclass
@dataclass(frozen=True, eq=False)
class Choice:
    """Step lengths, their place in the ladder, and whether they were accepted."""

    alpha: jax.Array
    index: jax.Array
    accepted: jax.Array


@dataclass(frozen=True)
class LineSearch:
    """One way to accept steps.

    Attributes:
        accepts: JAX rule: from the trial, the step lengths ``[steps, 1, 1, 1]`` and the settings to
            whether each trial point is accepted, ``[steps, tiles, 1, 32]``.
        native: Builds the same rule as a C++ condition, from the settings and the dtype; see
            `codegen.native.line_search` for the names in it.  None: there is no such rule, and the
            general iteration is used, which only needs the JAX rule.
        full_step_only: Whether 1 is the only step length.
    """

    accepts: Callable[[Trial, jax.Array, SQPSettings], jax.Array]
    native: Callable[[SQPSettings, str], str] | None = None
    full_step_only: bool = False


def theta(evaluation: Evaluation, settings: SQPSettings) -> jax.Array:
    """The violation measure: scaled 2-norm of all violations."""
    return settings.line_search.scale * jnp.sqrt(evaluation.squares)


def filter_accepts(trial: Trial, steps: jax.Array, settings: SQPSettings) -> jax.Array:
    """Cost or violation must fall; far from feasibility only the violation counts."""
    del steps
    s = settings.line_search
    theta_0, theta_i = theta(trial.here, settings), theta(trial.there, settings)
    cost_0, cost_i = _with_slack(trial.here.cost, settings), trial.there.cost
    less_violated = theta_i < (1 - s.gamma) * theta_0
    near = (theta_i < settings.theta_min) & (theta_0 < settings.theta_min)
    if settings.converges:
        armijo = cost_i < cost_0 + _bought(trial) + s.armijo * jnp.minimum(trial.slope, 0)
    else:
        near &= trial.slope < 0
        armijo = cost_i < cost_0 + s.armijo * trial.slope
    either = (cost_i < cost_0 - s.gamma * theta_0) | less_violated
    return jnp.where(theta_i > s.theta_max, less_violated, jnp.where(near, armijo, either))


def _bought(trial: Trial) -> jax.Array:
    """How much cost the violations before and after a step can account for.

    A step that removes a violation v raises the cost by y'v, and QPs are solved inexactly: near a
    solution this is more than what the step promises.
    """
    return trial.weight * (trial.here.absolute + trial.there.absolute)


def _filter_condition(settings: SQPSettings, dtype: str) -> str:
    s = settings.line_search
    return filter_condition(
        dtype,
        gamma=s.gamma,
        armijo=s.armijo,
        theta_min=settings.theta_min,
        theta_max=s.theta_max,
        converges=settings.converges,
    )


def merit_accepts(trial: Trial, steps: jax.Array, settings: SQPSettings) -> jax.Array:
    """The l1 merit function falls by a share of what its slope promises."""
    s = settings.line_search
    weight = s.merit_margin * trial.weight
    merit_0 = _with_slack(trial.here.cost, settings) + weight * trial.here.absolute
    merit_i = trial.there.cost + weight * trial.there.absolute
    slope = jnp.minimum(trial.slope - weight * trial.here.absolute, 0)
    return merit_i <= merit_0 + s.armijo * steps * slope


def _merit_condition(settings: SQPSettings, dtype: str) -> str:
    s = settings.line_search
    return merit_condition(dtype, armijo=s.armijo, margin=s.merit_margin)


def full_accepts(trial: Trial, steps: jax.Array, settings: SQPSettings) -> jax.Array:
    """Every step is accepted; `choose` still refuses points that are not finite."""
    del steps, settings
    return jnp.ones(trial.there.cost.shape, dtype=bool)


def _full_condition(settings: SQPSettings, dtype: str) -> str:
    del settings, dtype
    return FULL_CONDITION


LINE_SEARCHES: dict[str, LineSearch] = {
    "filter": LineSearch(filter_accepts, _filter_condition),
    "merit": LineSearch(merit_accepts, _merit_condition),
    "full": LineSearch(full_accepts, _full_condition, full_step_only=True),
}


def _with_slack(cost: jax.Array, settings: SQPSettings) -> jax.Array:
    """The cost, raised by what may be rounding: at a minimum no step lowers it any further."""
    eps = float(np.finfo(cost.dtype).eps)
    return cost + settings.rounding * eps * jnp.abs(cost) if settings.rounding else cost


def choose(trial: Trial, settings: SQPSettings) -> Choice:
    """The largest accepted step; if there is none, the smallest one or no step at all."""
    ladder = jnp.asarray(settings.line_search.ladder, dtype=trial.slope.dtype)
    steps = ladder[:, None, None, None]
    there = trial.there
    accepted = LINE_SEARCHES[settings.line_search.kind].accepts(trial, steps, settings)
    accepted &= jnp.isfinite(there.cost) & jnp.isfinite(there.squares)
    some = accepted.any(axis=0)
    index = jnp.where(some, jnp.argmax(accepted, axis=0), ladder.size - 1)
    alpha = ladder[index]
    if settings.fallback == "stay":
        alpha = jnp.where(some, alpha, 0)
    return Choice(alpha, index, some)


def without_native_rule(settings: SQPSettings) -> str | None:
    """Why kernels cannot search along a direction with these settings, or None."""
    kind = settings.line_search.kind
    if LINE_SEARCHES[kind].native is not None:
        return None
    return f'line search "{kind}" has no native condition'


def native_rule(settings: SQPSettings, dtype: str) -> SearchRule:
    """The line search of the settings for kernels; see `without_native_rule`."""
    s = settings.line_search
    native = LINE_SEARCHES[s.kind].native
    assert native is not None  # engines are refused otherwise
    return SearchRule(
        ladder=s.ladder,
        accepts=native(settings, dtype),
        scale=s.scale,
        slack=settings.rounding * float(np.finfo(dtype).eps),
        takes_smallest=settings.fallback == "smallest",
    )
