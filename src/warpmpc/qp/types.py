"""Settings, results and status of quadratic programs."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import IntEnum
from typing import Literal

import jax

from warpmpc._errors import SettingsError


class Status(IntEnum):
    """Outcome of a solve, per instance."""

    SOLVED = 0
    MAX_ITER = 1
    PRIMAL_INFEASIBLE = 2
    DUAL_INFEASIBLE = 3
    NON_FINITE = 4
    INVALID_BOUNDS = 5


@dataclass(frozen=True)
class ADMMSettings:
    """Settings of the ADMM iteration (OSQP's splitting); defaults are OSQP's.

    Attributes:
        rho: Step size of inequality rows.
        rho_equality: Factor on rho for equality rows; rows that are free get the smallest rho.
        sigma: Regularisation of the Hessian.
        relaxation: Over-relaxation, in (0, 2).
        max_iter: Most iterations.
        eps_abs: Absolute tolerance of the residuals.
        eps_rel: Relative tolerance of the residuals.
        eps_prim_inf: Tolerance of primal infeasibility certificates.
        eps_dual_inf: Tolerance of dual infeasibility certificates.
        check_every: Iterations between termination checks; 0: always `max_iter` iterations.
        adaptive_rho_every: Iterations between adaptations of rho; 0: never.
        adaptive_rho_tolerance: Rho changes (K is factorised again) only by more than this factor.
        scaling: Passes of Ruiz equilibration per instance; 0: none.
        sensitivity: How solutions are differentiated: "kkt" (the active set on the pattern of K)
            or "lsq" (regularised least squares on all optimality conditions; slower, for
            degenerate solutions).
    """

    rho: float = 0.1
    rho_equality: float = 1e3
    sigma: float = 1e-6
    relaxation: float = 1.6
    max_iter: int = 4000
    eps_abs: float = 1e-3
    eps_rel: float = 1e-3
    eps_prim_inf: float = 1e-4
    eps_dual_inf: float = 1e-4
    check_every: int = 25
    adaptive_rho_every: int = 50
    adaptive_rho_tolerance: float = 5.0
    scaling: int = 10
    sensitivity: Literal["kkt", "lsq"] = "kkt"

    def __post_init__(self) -> None:
        """Checks ranges and combinations."""
        for name in ("rho", "rho_equality", "sigma"):
            value = getattr(self, name)
            _require(math.isfinite(value) and value > 0, name, value, "positive and finite")
        for name in ("eps_abs", "eps_rel", "eps_prim_inf", "eps_dual_inf"):
            value = getattr(self, name)
            _require(math.isfinite(value) and value >= 0, name, value, "finite and at least 0")
        for name, least in (
            ("max_iter", 1),
            ("check_every", 0),
            ("adaptive_rho_every", 0),
            ("scaling", 0),
        ):
            value = getattr(self, name)
            _require(
                isinstance(value, int) and value >= least, name, value, f"an integer >= {least}"
            )
        _require(0 < self.relaxation < 2, "relaxation", self.relaxation, "between 0 and 2")
        if self.sensitivity not in ("kkt", "lsq"):
            raise SettingsError(f'sensitivity must be "kkt" or "lsq", got {self.sensitivity!r}.')
        tolerance = self.adaptive_rho_tolerance
        _require(tolerance >= 1, "adaptive_rho_tolerance", tolerance, "at least 1")
        if self.check_every and self.adaptive_rho_every % self.check_every:
            raise SettingsError(
                f"adaptive_rho_every ({self.adaptive_rho_every}) must be a multiple of check_every "
                f"({self.check_every}): rho is adapted where residuals are known."
            )


def _require(fine: bool, name: str, value: object, what: str) -> None:
    if not fine:
        raise SettingsError(f"{name} must be {what}, got {value!r}.")


@jax.tree_util.register_dataclass
@dataclass(frozen=True, eq=False)
class QPWarmStart:
    """Where an iteration starts: unscaled x, s (the projected A x) and multipliers y."""

    x: jax.Array
    s: jax.Array
    y: jax.Array


@jax.tree_util.register_dataclass
@dataclass(frozen=True, eq=False)
class QPSolution:
    """Solution of a batch of QPs; leading axes are those of the data.

    Attributes:
        x: Minimisers.
        y: Multipliers of the rows, positive at upper bounds.  For infeasible instances x and y hold
            the last iterate.
        objective: Half x'Px + q'x.
        status: `Status` per instance.
        iterations: Iterations until termination.
        primal_residual: Largest violation of A x = s, unscaled.
        dual_residual: Largest entry of P x + q + A'y, unscaled.
        warm_start: For the next call.
    """

    x: jax.Array
    y: jax.Array
    objective: jax.Array
    status: jax.Array
    iterations: jax.Array
    primal_residual: jax.Array
    dual_residual: jax.Array
    warm_start: QPWarmStart
