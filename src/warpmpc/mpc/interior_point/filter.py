"""The filter: which steps are acceptable (WB, 2.3).

A step has to lower either the violation theta of the rows or the barrier cost phi, against the
iterate and against all points that the filter remembers.
"""

from __future__ import annotations

from dataclasses import dataclass

import jax
import jax.numpy as jnp

from warpmpc.mpc.interior_point.constants import FILTER, NO_VIOLATION, machine_precision


@jax.tree_util.register_dataclass
@dataclass(frozen=True, eq=False)
class Filter:
    """Points that were left behind, ``[tiles, size, 32]`` each; infinite where there are none."""

    theta: jax.Array
    phi: jax.Array

    @classmethod
    def empty(cls, like: jax.Array) -> Filter:
        """A filter without points, for instances like those of ``[tiles, 1, 32]``."""
        nothing = jnp.full((like.shape[0], FILTER.size, like.shape[2]), jnp.inf, like.dtype)
        return cls(nothing, nothing)

    def emptied(self, which: jax.Array) -> Filter:
        """The filter without the points of some instances."""
        return jax.tree.map(lambda a: jnp.where(which, jnp.inf, a), self)

    def where(self, which: jax.Array, other: Filter) -> Filter:
        """The other filter for some instances."""
        return jax.tree.map(lambda a, b: jnp.where(which, b, a), self, other)

    def allows(self, theta: jax.Array, phi: jax.Array) -> jax.Array:
        """Whether a point is better than each of the points in one of the two."""
        return ((theta < self.theta) | (phi < self.phi)).all(axis=1, keepdims=True)

    def remembering(
        self, theta: jax.Array, phi: jax.Array, slot: jax.Array, which: jax.Array
    ) -> Filter:
        """The filter with the margins of another point, in place of the oldest one.

        Args:
            theta: Violation of the point.
            phi: Barrier cost of the point.
            slot: Place of the point.
            which: Instances whose filter learns it.
        """
        here = (jnp.arange(FILTER.size)[None, :, None] == slot) & which
        theta_bound = (1 - FILTER.gamma_theta) * theta
        phi_bound = phi - FILTER.gamma_phi * theta
        return Filter(
            jnp.where(here, theta_bound, self.theta), jnp.where(here, phi_bound, self.phi)
        )


@jax.tree_util.register_dataclass
@dataclass(frozen=True, eq=False)
class Measures:
    """Violation and barrier cost of a point."""

    theta: jax.Array
    phi: jax.Array


class Acceptance:
    """The rule for steps from one iterate."""

    def __init__(self, here: Measures, slope: jax.Array, theta_max: jax.Array, known: Filter):
        """Keeps what steps are compared with.

        Args:
            here: Measures of the iterate.
            slope: Directional derivative of the barrier cost.
            theta_max: Largest acceptable violation.
            known: The filter.
        """
        self.here, self._slope, self._theta_max, self._filter = here, slope, theta_max, known
        dtype = str(here.phi.dtype)
        self._rounding = FILTER.rounding * machine_precision(dtype) * jnp.abs(here.phi)
        self._nothing = NO_VIOLATION[dtype]
        least = FILTER.theta_min / FILTER.theta_max * theta_max
        self._small = here.theta <= least

    def __call__(self, alpha: jax.Array, there: Measures) -> tuple[jax.Array, jax.Array]:
        """Whether a step is acceptable, and whether it is one of descent.

        Args:
            alpha: Step length.
            there: Measures of the trial point.
        """
        theta_0, phi_0 = self.here.theta, self.here.phi
        theta, phi, slope, rounding = there.theta, there.phi, self._slope, self._rounding
        finite = jnp.isfinite(theta) & jnp.isfinite(phi) & (theta <= self._theta_max)
        gain = alpha * jnp.abs(slope) ** FILTER.s_phi
        switching = (slope < 0) & self._small & (gain > theta_0**FILTER.s_theta)
        armijo = phi <= phi_0 + FILTER.eta * alpha * slope + rounding
        lower_theta = theta <= (1 - FILTER.gamma_theta) * theta_0
        either = lower_theta | (phi <= phi_0 - FILTER.gamma_phi * theta_0 + rounding)
        # Violations that rounding may hide count as none: only the cost decides.
        none = jnp.maximum(theta, theta_0) <= self._nothing
        either = jnp.where(none, phi <= phi_0 + rounding, either)
        free = self._filter.allows(theta, phi) | none
        return finite & free & jnp.where(switching, armijo, either), switching & armijo
