"""Constants of the interior-point method; names and values are those of IPOPT where it has them.

Wächter and Biegler, "On the implementation of an interior-point filter line-search algorithm for
large-scale nonlinear programming", Mathematical Programming 106 (2006), is cited as WB below.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class BarrierConstants:
    """When the barrier parameter mu falls, and how close to a bound a step may go (WB, 2.1).

    Attributes:
        mu_init: Where a cold start begins.
        kappa_mu: Largest factor of a reduction.
        theta_mu: Exponent of a reduction.
        kappa_eps: Mu falls once the barrier problem is solved to this multiple of mu.
        tau_min: Smallest share of the way to a bound that a step may go.
        floor: Smallest mu as a share of the tolerance.
        push: Distance from its bounds that a row begins with, relative to the bound.
        push_warm: The same for a warm start.
        push_width: Most of this distance as a share of the distance of two bounds.
        kappa_sigma: Multipliers stay within this factor of mu over the distance.
        elastic: Slack that the elastic variable of a soft row begins with.
    """

    mu_init: float = 0.1
    kappa_mu: float = 0.2
    theta_mu: float = 1.5
    kappa_eps: float = 10.0
    tau_min: float = 0.99
    floor: float = 0.1
    push: float = 1e-2
    push_warm: float = 1e-3
    push_width: float = 1e-2
    kappa_sigma: float = 1e10
    elastic: float = 1e-2


@dataclass(frozen=True)
class InertiaConstants:
    """How the diagonal of H grows until K has the right inertia (WB, 3.1).

    Attributes:
        first: First delta.
        up: Factor from one trial to the next.
        down: Share of the last delta that the next iteration begins with.
        least: Below this share of `first`, delta begins with zero.
        most: Beyond it the instance is given up.
    """

    first: float = 1e-4
    up: float = 8.0
    down: float = 1 / 3
    least: float = 1e-3
    most: float = 1e12


@dataclass(frozen=True)
class FilterConstants:
    """When a step is acceptable (WB, 2.3).

    Attributes:
        size: Points that the filter remembers.
        theta_max: Largest violation, relative to that at the start (at least 1).
        theta_min: Below this share of the same, a step of descent has to lower the barrier cost.
        gamma_theta: Share by which the violation must fall.
        gamma_phi: Share of the violation by which the barrier cost must fall.
        eta: Share of the predicted decrease that a step of descent must reach.
        s_theta: Exponent of the violation in the switching condition.
        s_phi: Exponent of the slope there.
        halvings: Step lengths that are tried: one, a half, a quarter, ...
        rounding: Increase of the barrier cost taken for rounding, in units of machine precision.
    """

    size: int = 24
    theta_max: float = 1e4
    theta_min: float = 1e-4
    gamma_theta: float = 1e-5
    gamma_phi: float = 1e-8
    eta: float = 1e-8
    s_theta: float = 1.1
    s_phi: float = 2.3
    halvings: int = 12
    rounding: float = 10.0


@dataclass(frozen=True)
class RestorationConstants:
    """When the violation alone is minimised, and when that ends.

    Attributes:
        after: Iterations in a row without an acceptable step, after which it begins.
        span: It also begins where the violation has not fallen by `share` in so many iterations,
            and multipliers have grown large.
        multipliers: Largest multiplier over the gradient of the cost that is not large.
        share: Share of the violation at which it ends.
        mu: Largest barrier parameter over the square of the violation.
        least_mu: Smallest barrier parameter.
        delta: Smallest regularisation.
        stationary: Largest gradient of the violation that counts as none, over the largest entry
            of A times the violation.
    """

    after: int = 2
    span: int = 20
    multipliers: float = 1e3
    share: float = 0.9
    mu: float = 1e-2
    least_mu: float = 1e-12
    delta: float = 1e-8
    stationary: float = 1e-4


BARRIER, INERTIA, FILTER = BarrierConstants(), InertiaConstants(), FilterConstants()
RESTORATION = RestorationConstants()
FREE = 1e20  # regularisation of a row without bounds: its multiplier stays zero
FIXED = 1e-9  # rows whose bounds are closer have no room for a barrier: they are equalities
# Regularisation of equality rows; it acts on increments, so solutions are not biased.  In float32
# smaller ones drown in rounding, and pivots of the wrong sign feign a wrong inertia.
DELTA_C = {"float32": 1e-4, "float64": 1e-8}
# Steps of iterative refinement: float32 needs one, because K becomes ill-conditioned.
REFINEMENTS = {"float32": 1, "float64": 0}
# Violations that count as none in the line search, where rounding hides smaller ones.
NO_VIOLATION = {"float32": 1e-5, "float64": 1e-7}


def machine_precision(dtype: str) -> float:
    """Distance from 1 to the next number."""
    return float(np.finfo(dtype).eps)
