"""What every LDL' engine offers, and the settings they share.

Reads: a `LinearSystem` (pattern, elimination, dtype).  A backend turns batch-first values into a
factor and right-hand sides into solutions; `LDLSolver` does all checking before it gets here.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from numbers import Integral
from typing import Any, ClassVar, Literal, Protocol

import jax
import jax.numpy as jnp
import numpy as np

from warpmpc._conventions import FactorStatus
from warpmpc._errors import SettingsError
from warpmpc.symbolic.elimination import Elimination
from warpmpc.symbolic.pattern import IntArray

LAYOUTS = ("tiled", "batch_first")


def _is_count(value: object, least: int, most: int | None) -> bool:
    """None or an integer in range; True and 2.0 are neither."""
    if value is None:
        return True
    if not isinstance(value, Integral) or isinstance(value, bool):
        return False
    return int(value) >= least and (most is None or int(value) <= most)


@dataclass(frozen=True)
class LDLSettings:
    """How a factorisation and its solves are carried out; the results agree to rounding.

    Attributes:
        segments: Budget of segments: consecutive items padded to the widest of their segment
            (1 switches segmentation off; None: what suits the backend).
        level_scheduling: Work on independent columns side by side.
        window: Solve with the live unknowns in on-chip memory and the factor streaming by (one warp
            per tile, one row after the other); None: wherever they fit.
        layout: "tiled" (32 problems interleaved), or "batch_first" as a baseline to measure.
        warps_per_tile: Warps that share the 32 problems of a tile (None: by batch size).
    """

    segments: int | None = None
    level_scheduling: bool = True
    window: bool | None = None
    layout: Literal["tiled", "batch_first"] = "tiled"
    warps_per_tile: int | None = None

    def __post_init__(self) -> None:
        """Checks types, ranges and combinations."""
        if not isinstance(self.level_scheduling, bool):
            raise SettingsError(f"level_scheduling must be a bool, got {self.level_scheduling!r}.")
        if not (self.window is None or isinstance(self.window, bool)):
            raise SettingsError(f"window must be True, False or None, got {self.window!r}.")
        if not _is_count(self.segments, 1, None):
            raise SettingsError(
                f"segments must be a positive integer or None, got {self.segments!r}."
            )
        if not _is_count(self.warps_per_tile, 1, 32):
            raise SettingsError(
                "warps_per_tile must be an integer from 1 to 32 or None, "
                f"got {self.warps_per_tile!r}."
            )
        if self.layout not in LAYOUTS:
            raise SettingsError(f"layout must be one of {LAYOUTS}, got {self.layout!r}.")
        if not self.level_scheduling and self.warps_per_tile not in (None, 1):
            raise SettingsError(
                "Without level scheduling one warp does all the work of a tile: leave "
                "`warps_per_tile` at its default."
            )
        if self.layout == "batch_first" and (self.window or self.warps_per_tile not in (None, 1)):
            raise SettingsError(
                'layout "batch_first" works on one problem per thread: leave `window` and '
                "`warps_per_tile` at their defaults."
            )


@dataclass(frozen=True, eq=False)
class LinearSystem:
    """One symmetric pattern, analysed.

    Attributes:
        elimination: Symbolic factorisation of the upper triangle.
        source: Position in the caller's list of values of each entry of the upper triangle.
        n_values: Length of the caller's list of values.
        dtype: "float32" or "float64".
        value_scale: Factor on each of the caller's values (ones without scaling).
    """

    elimination: Elimination
    source: IntArray
    n_values: int
    dtype: str
    value_scale: np.ndarray


class LDLBackend(Protocol):
    """Factorises and solves batches; arrays are batch-first and already checked."""

    honours: ClassVar[frozenset[str]]  # settings that make a difference here

    def factor(self, K_vals: jax.Array) -> tuple[Any, jax.Array]:
        """Factor (any pytree) and status of each problem, from ``[batch, n_values]``."""
        ...

    def solve(self, factor: Any, rhs: jax.Array) -> jax.Array:
        """Solutions ``[batch, n]``."""
        ...

    def factors(self, factor: Any, batch: int) -> tuple[jax.Array, jax.Array]:
        """L ``[batch, nnz_L]`` and D ``[batch, n]`` in elimination order."""
        ...


def refuse_unused(settings: LDLSettings, backend: str, honours: frozenset[str]) -> None:
    """Raises if a setting was changed that this backend would ignore."""
    for field in fields(settings):
        changed = getattr(settings, field.name) != field.default
        if changed and field.name not in honours:
            raise SettingsError(
                f"Backend {backend!r} does not use the setting `{field.name}`; leave it at its "
                f'default ({field.default!r}) or choose backend="warp".'
            )


def status_of(D_inv: jax.Array, axis: int) -> jax.Array:
    """Status per problem from the inverse pivots: 0 marks a zero pivot, NaN a non-finite one."""
    zero = jnp.any(D_inv == 0, axis=axis)
    broken = jnp.any(~jnp.isfinite(D_inv), axis=axis)
    status = jnp.where(zero, FactorStatus.ZERO_PIVOT, FactorStatus.OK)
    return jnp.where(broken, FactorStatus.NON_FINITE, status).astype(jnp.int32)


def invert_pivots(pivot: jax.Array) -> jax.Array:
    """Inverse pivots; 0 for a zero (or subnormal) pivot, NaN for one not finite or too large."""
    tiny = jnp.finfo(pivot.dtype).tiny
    usable = jnp.abs(pivot) >= tiny
    inverse = 1 / jnp.where(usable, pivot, 1)
    too_large = ~jnp.isfinite(pivot) | (jnp.abs(inverse) < tiny)
    return jnp.where(too_large, jnp.nan, jnp.where(usable, inverse, 0))
