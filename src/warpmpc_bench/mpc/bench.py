"""The MPC benchmark: SQP iterations per second in closed loop, and whether they were right.

Reads: `MPCBenchSettings`.  Produces: one row per step of the plan, in order; a step that cannot run
is a row that says so.  The command line prints, stores and plots the rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from warpmpc._errors import SettingsError, WarpMPCError
from warpmpc_bench.common.baseline import Baseline
from warpmpc_bench.common.record import Row
from warpmpc_bench.common.runner import Runner
from warpmpc_bench.common.sweep import Step, Sweep, steps_of
from warpmpc_bench.common.timing import Measured
from warpmpc_bench.mpc.baselines import BASELINES
from warpmpc_bench.mpc.bytes import program_of
from warpmpc_bench.mpc.measure import MPCCase, measure_variant
from warpmpc_bench.mpc.setup import MPCSetup
from warpmpc_bench.mpc.variants import DEFAULT, VARIANTS, build_solver

# Copies of the state of all instances that may live at once; on chip, results replace their start.
_COPIES, _COPIES_ONCHIP = 4, 2


@dataclass(frozen=True)
class MPCBenchSettings(Sweep):
    """What to measure; variants are ways to run the solver, `DEFAULT` alone unless given.

    Attributes:
        system: A key of `systems.SYSTEMS`.
        steps: Steps of the measured closed loop; None: those of the system.
        horizon: None: that of the benchmark.
        sqp_iter: SQP iterations per solve; None: as benchmarked.
        admm_iter: ADMM iterations per QP; None: as benchmarked.
        sample: Number of instances that are checked against float64.
        cold: Whether kernels are built as on a new machine, without any cache.
        profile: Whether to measure phases.
        full_loops: Whether to run a sample of full-length loops, here and in float64.
    """

    choices: ClassVar[tuple[str, ...]] = tuple(VARIANTS)
    rivals: ClassVar[Mapping[str, Baseline]] = BASELINES
    default_batches: ClassVar[dict[str, tuple[int, ...]]] = {
        "gpu": (1000, 10_000, 100_000),
        "cpu": (32, 256),
    }

    baselines: bool | tuple[str, ...] = False
    system: str = "cartpole"
    steps: int | None = None
    horizon: int | None = None
    sqp_iter: int | None = None
    admm_iter: int | None = None
    sample: int = 256
    cold: bool = False
    profile: bool = True
    full_loops: bool = True

    def __post_init__(self) -> None:
        """Refuses what cannot be measured."""
        super().__post_init__()
        _ = self.setup  # refuses unknown systems and sizes
        for name in ("steps", "sample"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise SettingsError(f"{name} must be at least 1, got {value}.")

    @property
    def setup(self) -> MPCSetup:
        """What is solved."""
        return MPCSetup(self.system, self.horizon, self.sqp_iter, self.admm_iter)

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the variants to measure."""
        return (DEFAULT,) if self.variants is None else self.variants


def plan(settings: MPCBenchSettings) -> list[Step]:
    """All rows of a run."""
    return steps_of(settings, dict.fromkeys(settings.names, settings.sizes))


def run(settings: MPCBenchSettings) -> Iterator[Row]:
    """Measures step by step; yields one row per step of `plan`."""
    return MPCRunner(settings).rows(plan(settings))


class MPCRunner(Runner):
    """Closed loops of one system."""

    benchmark = "mpc"
    timings = ("sqp", "solve")  # variants have the first one, baselines the second
    references: ClassVar[dict[str, str]] = {}
    details = ("compile", "counted", "phases", "latency")

    def __init__(self, settings: MPCBenchSettings):
        """Keeps what all rows share."""
        super().__init__(settings.repeats, BASELINES)
        self._settings = settings

    def system(self, step: Step) -> Row:
        """Dimensions of the problem and of its QPs; entries of L in the order of `DEFAULT`."""
        # Baselines on the host have float64, which JAX may not have enabled in this run.
        dtype = self._settings.dtypes[0] if step.solver in BASELINES else step.dtype
        built = build_solver(DEFAULT, self._settings.setup, dtype)
        problem, qp = built.system.problem, built.solver.qp
        return {
            "name": self._settings.system,
            "horizon": problem.horizon,
            "n_x": built.system.n_x,
            "n_u": built.system.n_u,
            "n": problem.n_vars,
            "m": problem.n_cons,
            "nnz_P": qp.P_pattern.nnz,
            "nnz_A": qp.A_pattern.nnz,
            "nnz_L": program_of(built.solver).n_L,
            "full_steps": built.system.steps,
        }

    def label(self, step: Step) -> str:
        """Builds the variants of the table."""
        return VARIANTS[step.solver].label

    def draw(self, step: Step, *, on_host: bool) -> MPCCase:
        """Initial states of the benchmark."""
        settings = self._settings
        return MPCCase(
            settings.setup,
            step.batch,
            step.dtype,
            steps=settings.steps,
            sample=settings.sample,
            full_loops=settings.full_loops,
            on_host=on_host,
        )

    def measure(self, step: Step, case: MPCCase) -> Measured:
        """Compile, run, judge, time, profile."""
        settings = self._settings
        return measure_variant(
            step.solver, case, self._repeats, cold=settings.cold, profile=settings.profile
        )

    def _obstacle(self, step: Step) -> str | None:
        """Says why a step cannot run; some variants do not suit all systems."""
        if step.solver in BASELINES:
            return super()._obstacle(step)
        try:
            build_solver(step.solver, self._settings.setup, step.dtype)
        except WarpMPCError as error:
            return f"{type(error).__name__}: {error}"
        return super()._obstacle(step)

    def bytes_wanted(self, step: Step) -> int:
        """Trajectories, and the state of all instances; solves work in parts that fit."""
        settings = self._settings
        built = build_solver(step.solver, settings.setup, step.dtype)
        problem, steps = built.system.problem, settings.steps or built.system.steps
        state = 2 * (problem.n_vars + problem.n_cons) + problem.n_params
        copies = _COPIES_ONCHIP if built.solver.engine == "onchip" else _COPIES
        seen = steps * (built.system.n_x + built.system.n_u + 10)
        return step.batch * np.dtype(step.dtype).itemsize * (copies * state + seen)
