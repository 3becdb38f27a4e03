"""Settings of the SQP iteration and of its line search."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import Literal

from warpmpc._checks import DTYPES, check_choice, check_count, check_flag, check_real
from warpmpc._errors import SettingsError
from warpmpc.mpc.line_search import LINE_SEARCHES
from warpmpc.qp.types import ADMMSettings


@dataclass(frozen=True)
class Tolerances:
    """When an instance counts as converged."""

    step: float
    kkt: float
    violation: float


DEFAULT_TOLERANCES = {
    "float32": Tolerances(step=1e-3, kkt=1e-3, violation=1e-4),
    "float64": Tolerances(step=1e-6, kkt=1e-6, violation=1e-6),
}
_MOST_STEPS = 1000
# QPs have to be solved more accurately than the problem they approximate.
_QP_SHARE = 0.1
_MOST_ITERATIONS = {"sqp": 50, "interior_point": 500}


# A fixed number of iterations and nothing else, so that the fast engines take these QPs.
_FIXED_QP = ADMMSettings(max_iter=25, check_every=0, adaptive_rho_every=0, scaling=0)


@dataclass(frozen=True)
class LineSearchSettings:
    """How far along the direction of the QP an iteration goes.

    Step lengths are the ladder 1, decay, decay^2, ... down to `step_min`; all are evaluated at
    once, and the largest acceptable one is taken.

    Attributes:
        kind: "filter" (the cost or the violation must fall), "merit" (their weighted sum must
            fall: l1 merit function), "full" (always the whole step), or another name in
            `mpc.line_search.LINE_SEARCHES`.
        decay: Ratio of neighbouring step lengths.
        step_min: No step length below it is tried.
        scale: Factor of the violation theta = scale * |violations|_2.
        theta_max: Above it only a smaller violation counts.
        theta_min: Below it, before and after the step, only the cost counts (Armijo).  None: 1e-3
            with a fixed number of iterations, as published, 1e-6 otherwise: small violations must
            be allowed to vanish at the price of a higher cost.
        gamma: Margin by which cost or violation must fall.
        armijo: Share of the predicted decrease that the cost must reach; of the merit function in
            "merit".
        merit_margin: The weight of violations in the merit function is the largest multiplier
            times this factor.
        rounding: Increase of the cost that is still taken for rounding, in units of machine
            precision times its size; 0: none, as published.  None: 0 with a fixed number of
            iterations, 10 otherwise.
        fallback: What happens if no step length is acceptable: "smallest" (take the smallest one)
            or "stay".  None: smallest with a fixed number of iterations, stay otherwise.
    """

    kind: str = "filter"
    decay: float = 0.5
    step_min: float = 1e-3
    scale: float = 0.1
    theta_max: float = 1e-1
    theta_min: float | None = None
    gamma: float = 1e-3
    armijo: float = 1e-4
    merit_margin: float = 1.5
    rounding: float | None = None
    fallback: Literal["smallest", "stay"] | None = None

    def __post_init__(self) -> None:
        """Checks types and ranges."""
        check_choice(self, "kind", tuple(LINE_SEARCHES))
        for name in ("decay", "gamma", "armijo"):
            check_real(self, name, "a number between 0 and 1", lambda v: 0 < v < 1)
        check_real(self, "step_min", "a number above 0, at most 1", lambda v: 0 < v <= 1)
        steps = math.log(self.step_min) / math.log(self.decay)
        if steps > _MOST_STEPS:
            raise SettingsError(
                f"decay={self.decay} and step_min={self.step_min} give {steps:.0f} step lengths, "
                f"all of which are evaluated; at most {_MOST_STEPS} are possible."
            )
        for name in ("scale", "theta_max"):
            check_real(self, name, "a positive finite number", lambda v: v > 0)
        if self.theta_min is not None:
            check_real(self, "theta_min", "a positive finite number, or None", lambda v: v > 0)
        check_real(self, "merit_margin", "a finite number, at least 1", lambda v: v >= 1)
        if self.rounding is not None:
            check_real(self, "rounding", "a finite number, at least 0, or None", lambda v: v >= 0)
        if self.fallback is not None:
            check_choice(self, "fallback", ("smallest", "stay"))

    @property
    def ladder(self) -> tuple[float, ...]:
        """Step lengths, the largest first."""
        if LINE_SEARCHES[self.kind].full_step_only:
            return (1.0,)
        steps = [1.0]
        while steps[-1] * self.decay >= self.step_min:
            steps.append(steps[-1] * self.decay)
        return tuple(steps)


def _default(name: str) -> object:
    """Default of a setting."""
    return SQPSettings.__dataclass_fields__[name].default


@dataclass(frozen=True)
class SQPSettings:
    """Settings of `MPCSolver`.

    Attributes:
        mode: "converge" (iterate until the optimality conditions hold, at most `max_iter` times)
            or "fixed" (always `max_iter` iterations; with 1 the real-time iteration).
        method: "sqp", or "interior_point" (one Newton step on the whole problem per iteration
            instead of a QP: for converged solutions).  The latter uses `max_iter`, `tol_kkt`,
            `tol_violation`, `hessian`, `regularization` and `record`, and refuses all else.
        max_iter: Most iterations, or their number.  None: 50, for the interior-point method 500.
        tol_step: Largest entry of a step that counts as none; None: 1e-3 in float32, 1e-6 in
            float64.
        tol_kkt: Tolerance of stationarity and complementarity, relative to the unit of the cost;
            None: 1e-3 in float32, 1e-6 in float64.
        tol_violation: Largest violation of a row; None: 1e-4 in float32, 1e-6 in float64.
        hessian: "gauss_newton" (of residuals, and the exact Hessian of cost expressions) or
            "exact" (of the Lagrangian: converges where constraints are curved).  None: exact if
            the iteration runs until it converges, else Gauss-Newton.
        convexify: What is done with a Hessian that may be indefinite: "project" (negative
            eigenvalues become zero) or "gershgorin" (diagonals grow).
        regularization: Added to the diagonal of the Hessian (Levenberg).
        scaling: "auto" (a problem whose variables, rows or cost are far from one is solved in units
            in which they are not) or "none".  Results are in the units of the problem; tolerances
            and `regularization` are in those.  None: auto if the SQP iteration runs until it
            converges, otherwise none; auto is refused there.
        line_search: Settings of the line search.
        qp: Settings of the QPs.  None: the defaults of `ADMMSettings` if the iteration runs until
            it converges, else those of `real_time`: 25 iterations of QPs that are not scaled.
            Tolerances that are not given are a tenth of `tol_kkt` if the iteration runs until it
            converges.
        qp_start: Where the ADMM iteration of a QP starts: "last" (direction, s and multipliers of
            the QP before, as published) or "multipliers" (zero, with the multipliers before: after
            a full step the next direction is small).  None: last with a fixed number of
            iterations, multipliers otherwise.
        record: Whether solutions keep the history of all iterations.
        fused: Whether an iteration is three launches (linearise and factorise, ADMM, line search)
            without matrices in memory: for small stages, a fixed number of iterations, QPs that
            are not scaled and whose rho stays.  None: where it is possible.
    """

    mode: Literal["converge", "fixed"] = "converge"
    method: Literal["sqp", "interior_point"] = "sqp"
    max_iter: int = None  # pyright: ignore[reportAssignmentType]  (a number after __post_init__)
    tol_step: float | None = None
    tol_kkt: float | None = None
    tol_violation: float | None = None
    hessian: Literal["gauss_newton", "exact"] | None = None
    convexify: Literal["project", "gershgorin"] = "project"
    regularization: float = 0.0
    scaling: Literal["auto", "none"] | None = None
    line_search: LineSearchSettings = field(default_factory=LineSearchSettings)
    qp: ADMMSettings | None = None
    qp_start: Literal["last", "multipliers"] | None = None
    record: bool = False
    fused: bool | None = None

    def __post_init__(self) -> None:
        """Checks types, ranges and combinations."""
        self._check_choices()
        if self.max_iter is None:
            object.__setattr__(self, "max_iter", _MOST_ITERATIONS[self.method])
        check_count(self, "max_iter", 1)
        check_flag(self, "record")
        if self.fused is not None:
            check_flag(self, "fused")
        check_real(self, "regularization", "a finite number, at least 0", lambda v: v >= 0)
        for name in ("tol_step", "tol_kkt", "tol_violation"):
            if getattr(self, name) is not None:
                check_real(self, name, "a positive finite number, or None", lambda v: v > 0)
        if not isinstance(self.line_search, LineSearchSettings):
            given = type(self.line_search).__name__
            raise SettingsError(f"line_search must be LineSearchSettings, got {given}.")
        if self.qp is not None and not isinstance(self.qp, ADMMSettings):
            raise SettingsError(f"qp must be ADMMSettings or None, got {type(self.qp).__name__}.")
        if self.method == "interior_point":
            self._check_interior_point()
        if self.scaling == "auto" and not self._may_scale:
            raise SettingsError(
                'scaling="auto" needs an SQP iteration that runs until it converges; leave it out, '
                'or use mode="converge" with method="sqp".'
            )

    def _check_choices(self) -> None:
        """Refuses names that do not exist."""
        choices: dict[str, tuple[str | None, ...]] = {
            "mode": ("converge", "fixed"),
            "method": tuple(_MOST_ITERATIONS),
            "hessian": ("gauss_newton", "exact", None),
            "convexify": ("project", "gershgorin"),
            "scaling": ("auto", "none", None),
            "qp_start": ("last", "multipliers", None),
        }
        for name, allowed in choices.items():
            if None not in allowed or getattr(self, name) is not None:
                check_choice(self, name, tuple(choice for choice in allowed if choice))

    def _check_interior_point(self) -> None:
        """Refuses settings that the interior-point method would ignore."""
        if self.mode != "converge":
            raise SettingsError(
                'method="interior_point" iterates until it converges; use mode="converge", or '
                'method="sqp" for a fixed number of iterations.'
            )
        for name in ("tol_step", "convexify", "line_search", "qp", "qp_start", "fused"):
            default = LineSearchSettings() if name == "line_search" else _default(name)
            if getattr(self, name) != default:
                raise SettingsError(
                    f'{name} has no effect with method="interior_point"; leave it out, or use '
                    'method="sqp".'
                )

    @property
    def _may_scale(self) -> bool:
        return self.converges and self.method == "sqp"

    @property
    def changes_units(self) -> bool:
        """Whether a badly scaled problem is solved in other units."""
        return self._may_scale and self.scaling != "none"

    @property
    def converges(self) -> bool:
        """Whether the number of iterations depends on the instance."""
        return self.mode == "converge"

    @classmethod
    def real_time(cls, sqp: int = 1, admm: int = 25) -> SQPSettings:
        """Settings for control loops: fixed numbers of iterations, on the fastest engines.

        Nothing is tested in between, so that the time of a solve does not depend on the data.

        Args:
            sqp: SQP iterations per solve.
            admm: ADMM iterations per QP.
        """
        return cls(mode="fixed", max_iter=sqp, qp=replace(_FIXED_QP, max_iter=admm))

    @classmethod
    def accurate(cls) -> SQPSettings:
        """Settings for solutions that are kept: many iterations until the problem converges."""
        return cls(max_iter=200, qp=ADMMSettings(max_iter=20_000))

    def tolerances(self, dtype: str) -> Tolerances:
        """The tolerances, those of the dtype where none are given."""
        if dtype not in DTYPES:
            raise SettingsError(f"dtype must be one of {DTYPES}, got {dtype!r}.")
        default = DEFAULT_TOLERANCES[dtype]
        return Tolerances(
            step=self.tol_step or default.step,
            kkt=self.tol_kkt or default.kkt,
            violation=self.tol_violation or default.violation,
        )

    def qp_settings(self, dtype: str) -> ADMMSettings:
        """Settings of the QPs, those that suit the tolerances where none are given."""
        tolerances = self.tolerances(dtype)
        if not self.converges:
            return (self.qp or _FIXED_QP).resolved()
        return (self.qp or ADMMSettings()).resolved(_QP_SHARE * tolerances.kkt)

    def resolved(self, dtype: str = "float32") -> SQPSettings:
        """What a solver of this dtype makes of these settings: the same, without hidden defaults.

        Only what depends on the problem and the machine stays None: `fused` and `qp.max_batch`.
        """
        tolerances = self.tolerances(dtype)
        if self.method == "interior_point":
            found = {"tol_kkt": tolerances.kkt, "tol_violation": tolerances.violation}
            return replace(self, hessian=self.hessian_kind, scaling="none", **found)
        line_search = replace(
            self.line_search,
            theta_min=self.theta_min,
            rounding=self.rounding,
            fallback=self.fallback,
        )
        return replace(
            self,
            tol_step=tolerances.step,
            tol_kkt=tolerances.kkt,
            tol_violation=tolerances.violation,
            hessian=self.hessian_kind,
            scaling="auto" if self.changes_units else "none",
            line_search=line_search,
            qp=self.qp_settings(dtype),
            qp_start="multipliers" if self.restarts_qp else "last",
        )

    @property
    def hessian_kind(self) -> Literal["gauss_newton", "exact"]:
        """Which Hessian."""
        return self.hessian or ("exact" if self.converges else "gauss_newton")

    @property
    def fallback(self) -> Literal["smallest", "stay"]:
        """What happens if no step length is acceptable."""
        return self.line_search.fallback or ("stay" if self.converges else "smallest")

    @property
    def theta_min(self) -> float:
        """Below it only the cost counts."""
        return self.line_search.theta_min or (1e-6 if self.converges else 1e-3)

    @property
    def restarts_qp(self) -> bool:
        """Whether a QP starts from direction zero."""
        default = "multipliers" if self.converges else "last"
        return (self.qp_start or default) == "multipliers"

    @property
    def rounding(self) -> float:
        """Increase of the cost that is taken for rounding, in units of machine precision."""
        given = self.line_search.rounding
        return (10.0 if self.converges else 0.0) if given is None else given


def checked_settings(settings: SQPSettings | None) -> SQPSettings:
    """The settings, or defaults."""
    if settings is None:
        return SQPSettings()
    if not isinstance(settings, SQPSettings):
        raise SettingsError(f"settings must be SQPSettings, got {type(settings).__name__}.")
    return settings
