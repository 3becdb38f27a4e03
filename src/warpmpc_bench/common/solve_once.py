"""One batch of a benchmark system solved once, from the guess of the problem.

Reads: `SolveOptions`.  Produces: `SolvedBatch`, which `warpmpc solve` prints and writes.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import jax
import numpy as np

from warpmpc import systems
from warpmpc._errors import SettingsError
from warpmpc.mpc.diagnosis.diagnose import diagnose
from warpmpc.mpc.diagnosis.report import Diagnosis
from warpmpc.mpc.types import Solution
from warpmpc.systems.base import System
from warpmpc_bench.common.timing import build, measure
from warpmpc_bench.demos.loop import Watcher, device_name

LONG_S = 2.0  # what takes longer is timed once
MODES = ("converge", "fixed")


@dataclass(frozen=True)
class SolveOptions:
    """What to solve.

    Attributes:
        name: A key of `systems.SYSTEMS`.
        batch: Number of instances.
        seed: Seed of the initial states; None: that of the benchmark.
        x0: Initial state of a single instance; None: `batch` states drawn.
        mode: "converge" (until the optimality conditions hold) or "fixed" (as benchmarked).
        horizon: None: that of the benchmark.
        dtype: "float32" or "float64".
        engine: Engine of the QPs.
        device: A JAX device.
        record: Whether to keep the history of all iterations.
    """

    name: str
    batch: int = 32
    seed: int | None = None
    x0: tuple[float, ...] | None = None
    mode: str = "converge"
    horizon: int | None = None
    dtype: str = "float32"
    engine: str = "auto"
    device: Any = None
    record: bool = False

    def __post_init__(self) -> None:
        """Refuses what cannot be solved."""
        if self.mode not in MODES:
            raise SettingsError(f"mode must be one of {MODES}, got {self.mode!r}.")
        for name in ("batch", "horizon"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise SettingsError(f"--{name} must be at least 1, got {value}.")
        if self.seed is not None and self.seed < 0:
            raise SettingsError(f"--seed must be at least 0, got {self.seed}.")

    def states(self, system: System) -> np.ndarray:
        """Initial states ``[batch, n_x]``."""
        if self.x0 is None:
            return system.sample(self.batch, self.seed).astype(self.dtype)
        if len(self.x0) != system.n_x:
            names = ", ".join(system.state_names)
            raise SettingsError(
                f"--x0 has {len(self.x0)} numbers, {self.name} has {system.n_x} states: {names}."
            )
        return np.array([self.x0], dtype=self.dtype)


@dataclass(frozen=True, eq=False)
class SolvedBatch:
    """A batch of solutions.

    Attributes:
        options: Options of the run.
        system: System that was solved.
        engine: Name of the chosen engine.
        device: Name of the device.
        x0: Initial states.
        solution: Arrays on the device.
        diagnosis: Outcome of every instance.
        compile_s: Seconds from the problem to a compiled program.
        run_s: Seconds of one solve of the batch.
    """

    options: SolveOptions
    system: System
    engine: str
    device: str
    x0: np.ndarray
    solution: Solution
    diagnosis: Diagnosis
    compile_s: float
    run_s: float

    @property
    def ok(self) -> bool:
        """Whether no instance failed; with mode "converge", whether all converged."""
        unfinished = self.options.mode == "converge" and self.diagnosis.unfinished.size
        return self.diagnosis.ok and not unfinished


def solve_once(options: SolveOptions, watcher: Watcher) -> SolvedBatch:
    """Compiles, solves, times and diagnoses.

    Args:
        options: Options of the run.
        watcher: Receives the progress.
    """
    device = options.device or jax.devices()[0]
    watcher.phase("differentiating and analysing the problem")
    made = {} if options.horizon is None else {"horizon": options.horizon}
    system = systems.make(options.name, **made)
    x0 = options.states(system)
    settings = system.settings if options.mode == "fixed" else system.converged_settings
    with jax.default_device(device):
        settings = replace(settings, record=options.record)
        solver = system.solver(settings, dtype=options.dtype, engine=options.engine, device=device)
        watcher.phase("compiling and solving")
        program, solution = build(solver.solve, jax.device_put(x0, device))
        # A batch that takes long was timed well enough by its first call.
        run_s = program.first_call_s - program.compile_s
        if run_s < LONG_S:
            run_s = measure(program.call, jax.device_put(x0, device)).median_s
    return SolvedBatch(
        options=options,
        system=system,
        engine=solver.engine,
        device=device_name(device),
        x0=x0,
        solution=solution,
        diagnosis=diagnose(solution, x0),
        compile_s=program.compile_s,
        run_s=run_s,
    )
