"""Whether a problem can be solved by the interior-point method as a caller wants it, and with what.

Reads: the engine that a caller wants and the settings.  Produces: `InteriorPointChoice`, which has
the place of `mpc.sqp.choice.IterationChoice` in `MPCSolver`.
"""

from __future__ import annotations

from functools import cached_property

from warpmpc._errors import PatternError, SettingsError
from warpmpc.engines.runtime.ffi import has_gpu
from warpmpc.mpc.batching import result_values
from warpmpc.mpc.interior_point.linear_system import SOLVERS, NewtonSystem
from warpmpc.mpc.interior_point.problem_functions import RowOrder
from warpmpc.mpc.interior_point.solve import InteriorPointSolve, kkt_layout
from warpmpc.mpc.settings import SQPSettings
from warpmpc.mpc.stage_evaluation import StageEvaluator

_VECTORS = 16  # as long as all variables and rows: iterate, step, trial point, start, result


class InteriorPointChoice:
    """The interior-point method for one solver.

    Attributes:
        is_onchip: Whether a solve is one launch.
        is_three_launch: Whether an iteration is three launches.
    """

    is_onchip = False
    is_three_launch = False

    def __init__(
        self, engine: str, programs: StageEvaluator, settings: SQPSettings, given: tuple[str, ...]
    ):
        """Refuses what is wanted but impossible.

        Args:
            engine: The engine that the caller wants.
            programs: Stage functions.
            settings: Settings.
            given: Names of other arguments of the solver that the caller has given.
        """
        if engine != "auto" and engine not in SOLVERS:
            raise SettingsError(
                f'engine="{engine}" is not possible with method="interior_point", whose engines '
                f'are {sorted(SOLVERS)}; use engine="auto".'
            )
        if given:
            raise SettingsError(
                f'`{given[0]}` has no effect with method="interior_point"; leave it out, or use '
                'method="sqp".'
            )
        self._programs, self._settings = programs, settings
        layout = kkt_layout(programs, RowOrder(programs))
        try:
            self._system = NewtonSystem(layout, engine, programs.dtype)
        except PatternError as error:
            raise SettingsError(
                f'engine="{engine}" is not possible with method="interior_point" for this problem. '
                f'{error} Use engine="auto".'
            ) from None

    @property
    def engine(self) -> str:
        """Name of the linear solver."""
        return self._system.engine

    @property
    def takes_any_lanes(self) -> bool:
        """Whether tiles may have other than 32 lanes."""
        return self._system.solver.any_lanes

    @property
    def is_pooled(self) -> bool:
        """Whether few instances of a batch need memory at a time; see `Pool`."""
        return not has_gpu()

    @property
    def reason(self) -> str:
        """The method, in one line."""
        why = f" because: {self._system.reason}" if self._system.reason else ""
        return f"interior point with the {self.engine} linear solver{why}"

    @property
    def kind(self) -> InteriorPointChoice:
        """What builds the method."""
        return self

    def values(self) -> int:
        """Values in memory that one instance needs while it is solved."""
        return self._values

    @cached_property
    def _values(self) -> int:
        programs, settings = self._programs, self._settings
        problem = programs.problem
        recorded = 10 * settings.max_iter if settings.record else 0
        vectors = _VECTORS * (problem.n_vars + 2 * problem.n_cons)
        own = self._system.solver.values_per_instance + vectors + 3 * problem.n_params
        return own + 2 * result_values(programs) + recorded

    def build(self, programs: StageEvaluator) -> InteriorPointSolve:
        """The method.

        Args:
            programs: Stage functions for one way to divide parameters into own and common ones.
        """
        return InteriorPointSolve(programs, self._system, self._settings)


def given_names(**arguments: object) -> tuple[str, ...]:
    """Names of the arguments that are not None."""
    return tuple(name for name, value in arguments.items() if value is not None)
