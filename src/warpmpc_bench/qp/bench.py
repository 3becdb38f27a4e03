"""The QP benchmark: rates and accuracy of the linear MPC over batch size, engine and baseline.

Reads: `QPBenchSettings`.  Produces: one row per step of the plan, in order; a step that cannot run
is a row that says so.  The command line prints, stores and plots the rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from warpmpc._errors import SettingsError
from warpmpc.systems import linear_mpc
from warpmpc_bench.common.baseline import Baseline
from warpmpc_bench.common.record import Row
from warpmpc_bench.common.runner import Runner
from warpmpc_bench.common.sweep import Step, Sweep, platform, steps_of, within
from warpmpc_bench.common.timing import Measured
from warpmpc_bench.qp.baselines import BASELINES
from warpmpc_bench.qp.case import QPCase
from warpmpc_bench.qp.variants import (
    ENGINE_NAMES,
    VARIANTS,
    bytes_wanted,
    measure_variant,
    nnz_L,
)


@dataclass(frozen=True)
class QPBenchSettings(Sweep):
    """What to measure; variants are engines.

    Attributes:
        gradients: Whether to measure gradients, too, for the engines that have them.
        horizon: Horizon of the MPC.
    """

    choices: ClassVar[tuple[str, ...]] = ENGINE_NAMES
    rivals: ClassVar[Mapping[str, Baseline]] = BASELINES
    noun: ClassVar[str] = "engine"
    article: ClassVar[str] = "an"
    default_batches: ClassVar[dict[str, tuple[int, ...]]] = {
        "gpu": (512, 2048, 10_000, 100_000, 300_000),
        "cpu": (32, 256, 1024),
    }

    gradients: bool = True
    horizon: int = linear_mpc.HORIZON

    def __post_init__(self) -> None:
        """Refuses what cannot be measured."""
        super().__post_init__()
        if self.horizon < 1:
            raise SettingsError(f"The horizon must be at least 1, got {self.horizon}.")


def plan(settings: QPBenchSettings) -> list[Step]:
    """All rows of a run."""
    sizes = {
        name: _sizes(name, settings)
        for name, variant in VARIANTS.items()
        if variant.engine in settings.names and (settings.gradients or not variant.gradient)
    }
    steps = steps_of(settings, sizes)
    return [step for step in steps if not _needs_more_digits(step)]


def _needs_more_digits(step: Step) -> bool:
    """Least squares square a condition number that float32 barely bears."""
    return step.solver in VARIANTS and (
        VARIANTS[step.solver].gradient == "lsq" and step.dtype == "float32"
    )


def _sizes(name: str, settings: QPBenchSettings) -> list[int]:
    """Batch sizes of a variant; gradients at the largest of them."""
    variant = VARIANTS[name]
    sizes = within(settings.sizes, variant.largest[platform()])
    return sizes[-1:] if variant.gradient else sizes


def run(settings: QPBenchSettings) -> Iterator[Row]:
    """Measures step by step; yields one row per step of `plan`."""
    return QPRunner(settings).rows(plan(settings))


class QPRunner(Runner):
    """Solutions and gradients of the linear MPC."""

    benchmark = "qp"
    timings = ("solve", "gradient")
    references: ClassVar[dict[str, str]] = {
        "speedup_over_osqp": "osqp",
        "speedup_over_osqp_shared": "osqp_shared",
        "speedup_over_osqp_gradient": "osqp_gradient",
    }

    def __init__(self, settings: QPBenchSettings):
        """Keeps the horizon."""
        super().__init__(settings.repeats, BASELINES)
        self._horizon = settings.horizon

    def system(self, step: Step) -> Row:
        """Dimensions of the QP."""
        problem = linear_mpc.build(self._horizon)
        m, n = problem.A.shape
        sizes = {"n": n, "m": m, "nnz_P": problem.P.nnz, "nnz_A": problem.A.nnz}
        return {
            "name": "linear_mpc",
            "horizon": self._horizon,
            **sizes,
            "nnz_L": nnz_L(self._horizon),
        }

    def label(self, step: Step) -> str:
        """Builds the variants of the table."""
        return VARIANTS[step.solver].label

    def same_batch(self, step: Step) -> Any:
        """Gradients have another seed."""
        return step.batch, step.dtype, self._of_gradients(step)

    def draw(self, step: Step, *, on_host: bool) -> QPCase:
        """Different initial states, a copy of P and A for each."""
        gradient = self._of_gradients(step)
        return QPCase(step.batch, step.dtype, self._horizon, gradient=gradient, on_host=on_host)

    def _of_gradients(self, step: Step) -> bool:
        if step.solver in BASELINES:
            return step.solver == "osqp_gradient"
        return VARIANTS[step.solver].gradient is not None

    def measure(self, step: Step, case: QPCase) -> Measured:
        """Solve, or value and gradient."""
        return measure_variant(step.solver, case, self._repeats)

    def bytes_wanted(self, step: Step) -> int:
        """An estimate."""
        return bytes_wanted(step.solver, step.batch, step.dtype, self._horizon)
