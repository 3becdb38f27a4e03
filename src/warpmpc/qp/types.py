"""Settings and results of quadratic programs, and settings of the staged engine."""

from __future__ import annotations

import warnings
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import jax
import jax.numpy as jnp
import numpy as np

from warpmpc._checks import ArrayLike, check_choice, check_count, check_flag, check_real
from warpmpc._conventions import INFINITY as INFINITY
from warpmpc._conventions import RowClass as RowClass
from warpmpc._conventions import Status as Status
from warpmpc._errors import ProblemError, SettingsError
from warpmpc.engines.runtime.batching import LANES

_TOLERANCE = 1e-3  # OSQP's


@dataclass(frozen=True)
class ADMMSettings:
    """Settings of the ADMM iteration (OSQP's splitting); defaults are OSQP's.

    Attributes:
        rho: Step size of inequality rows.
        rho_equality: Factor on rho for equality rows; rows that are free get the smallest rho.
        sigma: Regularisation of the Hessian.
        relaxation: Over-relaxation, in (0, 2).
        max_iter: Most iterations.
        eps_abs: Absolute tolerance of the residuals.  None: a tenth of `SQPSettings.tol_kkt` in a
            solver that iterates until it converges, otherwise 1e-3.
        eps_rel: Relative tolerance of the residuals.  None: as for `eps_abs`.
        eps_prim_inf: Tolerance of primal infeasibility certificates.
        eps_dual_inf: Tolerance of dual infeasibility certificates.
        check_every: Iterations between termination checks; 0: always `max_iter` iterations.
        check_dualgap: Whether the duality gap has to be within the tolerances as well; without it
            the cost may be far off where residuals are small.
        polish: Whether solved instances take one step on their active set, where residuals fall
            by it.
        adaptive_rho_every: Iterations between adaptations of rho; 0: never.
        adaptive_rho_tolerance: Rho changes (K is factorised again) only by more than this factor.
        scaling: Passes of Ruiz equilibration per instance; 0: none.
        max_batch: Most instances solved at once, at least 32; a larger batch is split into parts
            of equal size, one after the other.  None: as many as the device's memory holds.
        sensitivity: How solutions are differentiated: "kkt" (the active set on the pattern of K)
            or "lsq" (regularised least squares on all optimality conditions; slower, for
            degenerate solutions).
    """

    rho: float = 0.1
    rho_equality: float = 1e3
    sigma: float = 1e-6
    relaxation: float = 1.6
    max_iter: int = 4000
    eps_abs: float | None = None
    eps_rel: float | None = None
    eps_prim_inf: float = 1e-4
    eps_dual_inf: float = 1e-4
    check_every: int = 25
    check_dualgap: bool = True
    polish: bool = False
    adaptive_rho_every: int = 50
    adaptive_rho_tolerance: float = 5.0
    scaling: int = 10
    max_batch: int | None = None
    sensitivity: Literal["kkt", "lsq"] = "kkt"

    def __post_init__(self) -> None:
        """Checks types, ranges and combinations; values of NumPy become Python's."""
        for name in ("rho", "rho_equality", "sigma"):
            check_real(self, name, "a positive finite number", lambda v: v > 0)
        for name in ("eps_prim_inf", "eps_dual_inf"):
            check_real(self, name, "a finite number, at least 0", lambda v: v >= 0)
        for name in ("eps_abs", "eps_rel"):
            if getattr(self, name) is not None:
                check_real(self, name, "a finite number, at least 0, or None", lambda v: v >= 0)
        check_real(self, "relaxation", "a number between 0 and 2", lambda v: 0 < v < 2)
        check_real(self, "adaptive_rho_tolerance", "a finite number, at least 1", lambda v: v >= 1)
        check_count(self, "max_iter", 1)
        for name in ("check_every", "adaptive_rho_every", "scaling"):
            check_count(self, name, 0)
        if self.max_batch is not None:
            check_count(self, "max_batch", 32, or_else="; None: what the memory holds")
        check_choice(self, "sensitivity", ("kkt", "lsq"))
        check_flag(self, "check_dualgap")
        check_flag(self, "polish")
        if self.check_every and self.adaptive_rho_every % self.check_every:
            raise SettingsError(
                f"adaptive_rho_every ({self.adaptive_rho_every}) must be a multiple of check_every "
                f"({self.check_every}): rho is adapted where residuals are known."
            )

    def resolved(self, tolerance: float = _TOLERANCE) -> ADMMSettings:
        """The same settings with all tolerances.

        Args:
            tolerance: Absolute and relative tolerance where none is given.
        """
        eps_abs = tolerance if self.eps_abs is None else self.eps_abs
        eps_rel = tolerance if self.eps_rel is None else self.eps_rel
        return replace(self, eps_abs=eps_abs, eps_rel=eps_rel)

    @property
    def absolute_tolerance(self) -> float:
        """`eps_abs`, or OSQP's value where none is given."""
        return _TOLERANCE if self.eps_abs is None else self.eps_abs

    @property
    def relative_tolerance(self) -> float:
        """`eps_rel`, or OSQP's value where none is given."""
        return _TOLERANCE if self.eps_rel is None else self.eps_rel


@jax.tree_util.register_dataclass
@dataclass(frozen=True, eq=False)
class QPWarmStart:
    """Where an iteration starts: unscaled x, s (the projected A x) and multipliers y.

    The warm start of a solution has all three.  `from_xy` and `from_xv` make one from less; what is
    unknown is NaN until `QPSolver.solve` fills it in, so all have one structure: a loop can begin
    with either and go on with those of its solutions.  An instance without a usable x, or with
    other values that are not finite, starts at zero.
    """

    x: jax.Array
    s: jax.Array
    y: jax.Array

    @classmethod
    def from_xy(cls, x: ArrayLike, y: ArrayLike) -> QPWarmStart:
        """From a point and multipliers, of any other solver; s becomes A x, as in OSQP."""
        x, y = _array(x, "x"), _array(y, "y")
        return cls(x, _unknown(y), y)

    @classmethod
    def from_xv(cls, x: ArrayLike, v: ArrayLike) -> QPWarmStart:
        """From a point and v = s + y / rho: s becomes v clipped to the bounds, y = rho (v - s).

        A soft row gives way beyond its bounds as its penalty says.
        Rho is that of the row before any adaptation: `ADMMSettings.rho`, times `rho_equality` for
        equalities, 1e-6 for free rows.
        """
        x, v = _array(x, "x"), _array(v, "v")
        return cls(x, v, _unknown(v))


def _array(given: ArrayLike, name: str) -> jax.Array:
    """An array of real numbers; `QPSolver.solve` checks its shape and dtype."""
    dtype = getattr(given, "dtype", None)
    if isinstance(given, jax.Array | np.ndarray) and np.dtype(dtype).kind not in "OSUMmc":
        array = jnp.asarray(given)
        # What is unknown is NaN, which integers do not have.
        return array if jnp.issubdtype(array.dtype, jnp.inexact) else array.astype(float)
    what = type(given).__name__ if dtype is None else f"dtype {dtype}"
    raise ProblemError(f"{name} must be a NumPy or JAX array of real numbers, got {what}.")


def _unknown(like: jax.Array) -> jax.Array:
    return jnp.full_like(like, jnp.nan)


@jax.tree_util.register_dataclass
@dataclass(frozen=True, eq=False)
class QPSolution:
    """Solution of a batch of QPs; leading axes are those of the data.

    Attributes:
        x: Minimisers.
        y: Multipliers of the rows, positive at upper bounds.  For infeasible instances x and y hold
            the last iterate.
        objective: Half x'Px + q'x, and the penalties of soft rows.
        status: `Status` per instance.
        iterations: Iterations until termination.
        primal_residual: Largest violation of A x = s, unscaled; s of a soft row may lie beyond its
            bounds.
        dual_residual: Largest entry of P x + q + A'y, unscaled.
        warm_start: Start for the next call.
    """

    x: jax.Array
    y: jax.Array
    objective: jax.Array
    status: jax.Array
    iterations: jax.Array
    primal_residual: jax.Array
    dual_residual: jax.Array
    warm_start: QPWarmStart


@dataclass(frozen=True)
class StagedSettings:
    """How the kernels of the staged engine are generated and launched; None: chosen by a model.

    Attributes:
        code: "unrolled" (straight-line code per stage) or "panels" (the panel engine, which works
            from tables and takes stages of any size).  "rolled" is its former name.
        registers: Most registers per thread of the ADMM loop.
        block: Threads per block of the loop and of the factorisation.
        prefetch: Whether a warp prefetches the next stage into the L2 cache.
        sides: Threads per problem: 1, or 2 that walk the stages from both ends to the middle.
        tune: None: what `QPSolver.tune` has measured on this device takes the place of the model;
            True: what was not measured yet is, when a batch size comes first; False: only the
            model.
    """

    code: Literal["unrolled", "panels", "rolled"] | None = None
    registers: int | None = None
    block: int | None = None
    prefetch: bool | None = None
    sides: Literal[1, 2] | None = None
    tune: bool | None = None
    SHAPE: ClassVar[tuple[str, ...]] = ("registers", "block", "prefetch", "sides")

    def __post_init__(self) -> None:
        """Checks ranges."""
        if self.code == "rolled":
            warnings.warn('code="rolled" is now called "panels".', DeprecationWarning, stacklevel=3)
            object.__setattr__(self, "code", "panels")
        if not (self.code is None or isinstance(self.code, str)) or (
            self.code not in (None, "unrolled", "panels")
        ):
            raise SettingsError(f'code must be "unrolled", "panels" or None, got {self.code!r}.')
        ranges = (("registers", 24, 255, 1), ("block", LANES, 1024, LANES), ("sides", 1, 2, 1))
        for name, least, most, step in ranges:
            value = getattr(self, name)
            if value is None:
                continue
            whole = isinstance(value, int | np.integer) and not isinstance(value, bool)
            if not whole or not least <= value <= most or value % step:
                multiple = f", a multiple of {step}" if step > 1 else ""
                raise SettingsError(
                    f"{name} must be None or an integer from {least} to {most}{multiple}, "
                    f"got {value!r}."
                )
        for name in ("prefetch", "tune"):
            value = getattr(self, name)
            if value is not None and not isinstance(value, bool):
                raise SettingsError(f"{name} must be True, False or None, got {value!r}.")
        if self.sides == 2 and self.block not in (None, 2 * LANES):
            raise SettingsError(
                f"With sides=2 a block is one tile of {2 * LANES} threads; leave block None."
            )

    @property
    def shape(self) -> dict[str, int]:
        """What is fixed of the shape of the kernels."""
        given = {name: getattr(self, name) for name in self.SHAPE}
        return {name: value for name, value in given.items() if value is not None}

    def refuse_unrolled_only(self) -> None:
        """The panel engine has one launch shape: settings that it would ignore raise."""
        given = [*self.shape, *(["tune"] if self.tune is not None else [])]
        if given:
            raise SettingsError(
                f"Panels have no choice of {', '.join(given)}; leave them None or use "
                'code="unrolled".'
            )
