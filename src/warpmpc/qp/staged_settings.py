"""Settings of the staged engine."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np

from warpmpc._errors import SettingsError
from warpmpc.engines.runtime.tiles import LANES


@dataclass(frozen=True)
class StagedSettings:
    """How the kernels of the staged engine are generated and launched; None: chosen by a model.

    Attributes:
        code: "unrolled" (straight-line code per stage) or "panels" (the panel engine, which works
            from tables and takes stages of any size).  "rolled" is its former name.
        registers: Most registers per thread of the ADMM loop.
        block: Threads per block of the loop and of the factorisation.
        prefetch: Whether a warp asks the L2 cache for the next stage ahead of time.
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
