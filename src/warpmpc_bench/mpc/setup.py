"""Which optimal control problem a row of the MPC benchmark solves, and with how many iterations.

Produces: `MPCSetup`, a small key: solvers, float64 references and closed loops of samples are built
once for each.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from warpmpc import systems
from warpmpc._errors import SettingsError
from warpmpc.systems.base import System


@dataclass(frozen=True)
class MPCSetup:
    """A system with its sizes; None: as benchmarked.

    Attributes:
        system: A key of `systems.SYSTEMS`.
        horizon: Number of intervals.
        sqp_iter: SQP iterations per solve.
        admm_iter: ADMM iterations per QP.
    """

    system: str
    horizon: int | None = None
    sqp_iter: int | None = None
    admm_iter: int | None = None
    # What the name stands for now is a part of the key: another system may be registered later.
    _entry: Any = field(init=False, repr=False)

    def __post_init__(self) -> None:
        """Refuses what no system can be made of."""
        if self.system not in systems.SYSTEMS:
            raise SettingsError(
                f"Unknown system {self.system!r}; choose from {list(systems.SYSTEMS)}."
            )
        object.__setattr__(self, "_entry", systems.SYSTEMS[self.system])
        known = systems.default_sizes(self.system)
        for name, value in self._given().items():
            if value < 1:
                raise SettingsError(f"{name} must be at least 1, got {value}.")
            if name not in known:
                raise SettingsError(
                    f"{name} is no option of {self.system!r}, which has {', '.join(known)}; leave "
                    "it out."
                )

    def _given(self) -> dict[str, int]:
        values = {name: getattr(self, name) for name in ("horizon", "sqp_iter", "admm_iter")}
        return {name: value for name, value in values.items() if value is not None}

    @property
    def options(self) -> dict[str, int]:
        """What `systems.make` gets beside the name."""
        return {**systems.describe(self.system).benchmark, **self._given()}

    @property
    def sizes(self) -> str:
        """Horizon and iterations of the system where they are fixed, for help texts."""
        made = {**systems.default_sizes(self.system), **self.options}
        found = [f"N = {made['horizon']}"] if "horizon" in made else []
        if "admm_iter" in made:
            found.append(f"{made.get('sqp_iter', 1)} SQP x {made['admm_iter']} ADMM")
        return ", ".join(found)

    def make(self) -> System:
        """The system."""
        return systems.make(self.system, **self.options)

    def __str__(self) -> str:
        """The call that makes the system."""
        options = "".join(f", {name}={value}" for name, value in self.options.items())
        return f"warpmpc.systems.make({self.system!r}{options})"
