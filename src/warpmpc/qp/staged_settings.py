"""Settings of the staged engine."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np

from warpmpc._errors import SettingsError
from warpmpc.kernels.tiles import LANES


@dataclass(frozen=True)
class StagedSettings:
    """How the kernels of the staged engine are generated and launched; None: chosen by a model.

    Attributes:
        code: "unrolled" (straight-line code per stage) or "rolled" (tables; any size of stage).
        registers: Most registers per thread of the ADMM loop.
        block: Threads per block of the loop and of the factorisation.
        prefetch: Whether a warp asks the L2 cache for the next stage ahead of time.
    """

    code: Literal["unrolled", "rolled"] | None = None
    registers: int | None = None
    block: int | None = None
    prefetch: bool | None = None
    OF_UNROLLED: ClassVar[tuple[str, ...]] = ("registers", "block", "prefetch")

    def __post_init__(self) -> None:
        """Checks ranges."""
        if not (self.code is None or isinstance(self.code, str)) or (
            self.code not in (None, "unrolled", "rolled")
        ):
            raise SettingsError(f'code must be "unrolled", "rolled" or None, got {self.code!r}.')
        ranges = (("registers", 24, 255, 1), ("block", LANES, 1024, LANES))
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
        if self.prefetch is not None and not isinstance(self.prefetch, bool):
            raise SettingsError(f"prefetch must be True, False or None, got {self.prefetch!r}.")

    def refuse_unrolled_only(self) -> None:
        """Rolled code has one launch shape: what would be ignored raises."""
        given = [name for name in self.OF_UNROLLED if getattr(self, name) is not None]
        if given:
            raise SettingsError(
                f"Rolled code has no choice of {', '.join(given)}; leave them None or use "
                'code="unrolled".'
            )
