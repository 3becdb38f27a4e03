"""Which SQP iteration a solver uses: all in one launch, three launches each, or the general one.

Reads: the engine that a caller wants, a problem's stage functions, its QP solver and the settings.
Produces: `IterationChoice`.  The candidates stand in `ITERATIONS` in the order of preference; each
is one object that says why it cannot be used.  A candidate's own modules are imported only once all
settings allow it.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Iterable
from functools import cached_property
from typing import TYPE_CHECKING

from warpmpc._errors import SettingsError
from warpmpc.engines.runtime.ffi import has_gpu
from warpmpc.mpc.batching import general_values, onchip_values, three_launch_values
from warpmpc.mpc.line_search import without_native_rule
from warpmpc.mpc.settings import SQPSettings
from warpmpc.mpc.sqp.general import SQPIteration
from warpmpc.mpc.stage_evaluation import StageEvaluator
from warpmpc.qp.loops.kernels import KernelLoop
from warpmpc.qp.qp_solver import QPSolver

if TYPE_CHECKING:
    from warpmpc.engines.onchip.memory import LaneMemory

_LOG = logging.getLogger(__name__)
_MOST_STEPS = 30  # the line search has one warp per step of the ladder in a block


def _first(reasons: Iterable[tuple[bool, str | None]]) -> str | None:
    return next((reason for holds, reason in reasons if holds), None)


class Candidate(ABC):
    """An SQP iteration that a problem may be solved with.

    Attributes:
        name: Name in log messages.
        programs: Stage functions.
        qp: Solver for the pattern of their QPs.
        settings: Settings of the iteration.
    """

    name: str

    def __init__(self, programs: StageEvaluator, qp: QPSolver, settings: SQPSettings):
        """Keeps the parts; nothing is built."""
        self.programs, self.qp, self.settings = programs, qp, settings

    @abstractmethod
    def obstacle(self) -> str | None:
        """Why the iteration is impossible, or None."""

    @abstractmethod
    def values(self) -> int:
        """Values in memory that one instance needs while it is solved."""

    @abstractmethod
    def build(self, programs: StageEvaluator) -> SQPIteration:
        """The iteration.

        Args:
            programs: Stage functions for one way to divide parameters into own and common ones.
        """


class OnchipCandidate(Candidate):
    """All iterations of a problem in one launch, by one warp."""

    name = "onchip"

    @cached_property
    def _memory(self) -> LaneMemory:
        from warpmpc.mpc.sqp.onchip import lane_memory

        return lane_memory(self.programs)

    def obstacle(self) -> str | None:
        """Why a solve cannot be one launch, or None."""
        settings, admm = self.settings, self.qp.settings
        without_rule = without_native_rule(settings)
        fused = f"fused={settings.fused} is for engines of several launches"
        known = _first(
            (
                (settings.fused is not None, fused),
                (bool(admm.scaling), "QPs are scaled"),
                (bool(admm.adaptive_rho_every), "rho is adapted"),
                (admm.polish, "QPs are polished"),
                (without_rule is not None, without_rule),
                (self.programs.has_blocks, "Hessian blocks are projected"),
            )
        )
        if known is not None:
            return known
        from warpmpc.mpc.sqp.onchip import onchip_obstacle

        return onchip_obstacle(self.programs, lambda: self._memory)

    def drawback(self) -> str | None:
        """Why a single launch would not be the fastest way, or None."""
        from warpmpc.mpc.sqp.onchip import onchip_drawback

        return onchip_drawback(self._memory, self.programs.dtype)

    def values(self) -> int:
        """Values in memory that one instance needs while it is solved."""
        return onchip_values(self.programs, self.settings)

    def build(self, programs: StageEvaluator) -> SQPIteration:
        """The iteration."""
        from warpmpc.mpc.sqp.onchip import OnchipIteration

        return OnchipIteration(programs, self.qp, self.settings)


class ThreeLaunchCandidate(Candidate):
    """Three launches per iteration: linearise and factorise, ADMM, line search."""

    name = "three_launch"

    def obstacle(self) -> str | None:
        """Why an iteration cannot be three launches, or None."""
        settings, programs, admm = self.settings, self.programs, self.qp.settings
        without_rule = without_native_rule(settings)
        too_long = len(settings.line_search.ladder) > _MOST_STEPS
        known = _first(
            (
                (settings.converges, "the number of SQP iterations is not fixed"),
                (without_rule is not None, without_rule),
                (bool(admm.scaling), "QPs are scaled"),
                (bool(admm.adaptive_rho_every), "rho is adapted"),
                (admm.polish, "QPs are polished"),
                (programs.soft_rows.size > 0, "there are soft rows"),
                (programs.has_blocks, "Hessian blocks are projected"),
                (too_long, "the ladder of steps is too long"),
            )
        )
        if known is not None:
            return known
        from warpmpc.mpc.sqp.three_launch import three_launch_obstacle

        return three_launch_obstacle(programs, self.qp)

    def values(self) -> int:
        """Values in memory that one instance needs while it is solved."""
        return three_launch_values(self.programs, self.qp, self.settings)

    def build(self, programs: StageEvaluator) -> SQPIteration:
        """The iteration."""
        from warpmpc.mpc.sqp.three_launch import ThreeLaunchIteration

        return ThreeLaunchIteration(programs, self.qp, self.settings)


class GeneralCandidate(Candidate):
    """Many launches per iteration; it is always possible."""

    name = "general"

    def obstacle(self) -> str | None:
        """There is none."""
        return None

    def values(self) -> int:
        """Values in memory that one instance needs while it is solved."""
        return general_values(self.programs, self.qp, self.settings)

    def build(self, programs: StageEvaluator) -> SQPIteration:
        """The iteration."""
        return SQPIteration(programs, self.qp, self.settings)


ITERATIONS: dict[str, type[Candidate]] = {
    kind.name: kind for kind in (OnchipCandidate, ThreeLaunchCandidate, GeneralCandidate)
}


class IterationChoice:
    """The iteration of one solver.

    Whether it is the on-chip one is found at once, because no other engine is built then; the rest
    of the choice may need the engine of the QPs, and is made on first use.
    """

    is_pooled = False  # whether the iteration itself sees to how many instances need memory

    def __init__(
        self,
        engine: str,
        programs: StageEvaluator,
        qp: QPSolver,
        settings: SQPSettings,
        *,
        free: bool,
    ):
        """Refuses a request that cannot be met.

        Args:
            engine: The engine that the caller wants.
            programs: Stage functions.
            qp: Solver for the pattern of their QPs.
            settings: Settings of the iteration.
            free: Whether the caller leaves the choice of kernels to the solver.
        """
        self._settings = settings
        self._candidates = {n: kind(programs, qp, settings) for n, kind in ITERATIONS.items()}
        self._not_onchip = self._why_not_onchip(engine, free=free)
        self.is_onchip = self._not_onchip is None
        if settings.fused:
            reason = self._candidates["three_launch"].obstacle()
            if reason is not None:
                raise SettingsError(
                    f"fused=True is not possible because {reason}; leave it None, or change the "
                    "settings."
                )

    def _why_not_onchip(self, engine: str, *, free: bool) -> str | None:
        onchip = self._candidates["onchip"]
        assert isinstance(onchip, OnchipCandidate)
        if engine == "onchip":
            of_staged = None if free else "`staged` is for kernels of another engine"
            reason = of_staged or onchip.obstacle()
            if reason is not None:
                raise SettingsError(
                    f'engine="onchip" is not possible because {reason}; use engine="auto".'
                )
            return None
        wishes = (
            (engine != "auto", f'the engine is "{engine}"'),
            (not free, "`staged` is for kernels of another engine"),
            (not has_gpu(), "on a CPU its 32 lanes would run one after the other"),
        )
        return _first(wishes) or onchip.obstacle() or onchip.drawback()

    @property
    def kind(self) -> Candidate:
        """The first candidate without an obstacle."""
        return self._found[0]

    @property
    def reason(self) -> str:
        """The name of the iteration, and why those before it are not taken, in one line."""
        return self._found[1]

    @cached_property
    def _found(self) -> tuple[Candidate, str]:
        refused = ""
        for name, candidate in self._candidates.items():
            reason = self._reason(candidate)
            if reason is None:
                _LOG.info("SQP iteration: %s%s", name, refused)
                return candidate, f"{name}{refused}"
            refused += f"; not {name}, because {reason}"
        raise AssertionError("the general iteration is always possible")

    def _reason(self, candidate: Candidate) -> str | None:
        if isinstance(candidate, OnchipCandidate):
            return self._not_onchip
        if self._settings.fused is False and isinstance(candidate, ThreeLaunchCandidate):
            return "fused is False"
        return candidate.obstacle()

    @property
    def takes_any_lanes(self) -> bool:
        """Whether all kernels can work on tiles with fewer than 32 lanes."""
        qp = self._candidates["general"].qp
        if self.is_onchip or qp.loop.lanes == 1:
            return not self.is_onchip
        known = isinstance(qp.loop, KernelLoop) and qp.loop.takes_any_lanes
        return known and not qp.settings.polish

    @property
    def is_three_launch(self) -> bool:
        """Whether iterations are three launches each."""
        return isinstance(self.kind, ThreeLaunchCandidate)
