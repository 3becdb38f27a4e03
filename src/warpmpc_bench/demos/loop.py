"""A system in closed loop with its solver: compile, simulate, judge.

Reads: `LoopOptions`.  Produces: `LoopDemo`, which the command line prints and
`warpmpc_bench.demos.scenes` draws.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from typing import Any, Protocol

import jax
import numpy as np

from warpmpc import systems
from warpmpc._errors import SettingsError
from warpmpc.mpc.solver import MPCSolver
from warpmpc.sim.progress import Report, chunk_length
from warpmpc.sim.rollout import rollout
from warpmpc.sim.types import Rollout
from warpmpc.systems.base import Metrics, System

DTYPE = "float32"


@dataclass(frozen=True)
class LoopOptions:
    """Options of a run.

    Attributes:
        name: A key of `warpmpc.systems.SYSTEMS`.
        batch: Number of instances.
        steps: Solves; None: those of the system.
        seed: Seed of the initial states; None: that of the benchmark.
        device: A JAX device; None: the first one.
    """

    name: str
    batch: int = 256
    steps: int | None = None
    seed: int | None = None
    device: Any = None

    def __post_init__(self) -> None:
        """Refuses what cannot be run."""
        if self.name not in systems.SYSTEMS:
            known = list(systems.SYSTEMS)
            raise SettingsError(f"Unknown demo {self.name!r}; choose one of {known}.")
        for name in ("batch", "steps"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise SettingsError(f"--{name} must be at least 1, got {value}.")
        if self.seed is not None and self.seed < 0:
            raise SettingsError(f"--seed must be at least 0, got {self.seed}.")


@dataclass(frozen=True, eq=False)
class LoopDemo:
    """A batch of closed loops.

    Attributes:
        options: Options of the run.
        system: System of the loops.
        device: Name of the device.
        engine: Name of the chosen engine.
        x: States ``[batch, steps + 1, n_x]``.
        u: Inputs ``[batch, steps, n_u]``.
        metrics: Metrics of the system, one value per instance.
        statuses: Share of all solves per outcome.
        iterations: SQP iterations of all solves together.
        compile_s: Seconds from the problem to the first result.
        run_s: Seconds of all steps.
    """

    options: LoopOptions
    system: System
    device: str
    engine: str
    x: np.ndarray
    u: np.ndarray
    metrics: Metrics
    statuses: dict[str, float]
    iterations: int
    compile_s: float
    run_s: float

    @property
    def steps(self) -> int:
        """Solves per instance."""
        return self.u.shape[1]

    @property
    def solves_per_s(self) -> float:
        """MPC problems per second, the simulated plant included."""
        return self.options.batch * self.steps / self.run_s

    @property
    def iterations_per_s(self) -> float:
        """SQP iterations per second of the whole batch."""
        return self.iterations / self.run_s

    @property
    def whole(self) -> bool:
        """Whether the loops ran as long as the system needs to reach its goal."""
        return self.steps >= self.system.steps

    @property
    def correct(self) -> bool:
        """Whether all states are finite and, in loops of full length, almost all succeed."""
        finite = np.isfinite(self.x).all() and np.isfinite(self.u).all()
        return bool(finite and (not self.whole or self.metrics["success"].mean() >= 0.95))


class Watcher(Protocol):
    """Receives the progress of the work."""

    def phase(self, text: str) -> None:
        """Begins a phase."""
        ...

    def report(self, done: int, total: int) -> None:
        """Reports how much of the phase is done."""
        ...


def run_demo(options: LoopOptions, watcher: Watcher) -> LoopDemo:
    """Compiles the solver, then simulates all instances in closed loop.

    Args:
        options: Options of the run.
        watcher: Receives the progress.
    """
    device = options.device or jax.devices()[0]
    with jax.default_device(device):
        begin = time.perf_counter()
        watcher.phase("differentiating and analysing the problem")
        system = systems.make(options.name, **systems.describe(options.name).demo)
        solver = system.solver(dtype=DTYPE, device=device)
        x0 = jax.device_put(system.sample(options.batch, options.seed).astype(DTYPE), device)
        steps = options.steps or system.steps
        watcher.phase("compiling kernels")
        # A loop with reports consists of parts: one of them compiles the program of all.
        part = chunk_length(steps)
        _loop(solver, system, x0, part, report=None)
        ready = time.perf_counter()
        watcher.phase("simulating")
        loop = _loop(solver, system, x0, steps, watcher.report)
        end = time.perf_counter()
    x, u = (np.asarray(a, dtype=np.float64) for a in (loop.x, loop.u))
    return LoopDemo(
        options=options,
        system=system,
        device=device_name(device),
        engine=solver.engine,
        x=x,
        u=u,
        metrics=system.judged(x, u),
        statuses=loop.status_fractions(),
        iterations=int(np.asarray(loop.iterations).sum()),
        compile_s=ready - begin - (end - ready) * part / steps,
        run_s=end - ready,
    )


def device_name(device: Any) -> str:
    """Name of a device in a summary; JAX does not report the model of a CPU."""
    if device.platform != "cpu":
        return device.device_kind
    cores = len(os.sched_getaffinity(0))
    return "one CPU core" if cores == 1 else f"{cores} CPU cores"


def _loop(
    solver: MPCSolver, system: System, x0: jax.Array, steps: int, report: Report | None
) -> Rollout:
    # Warm starts stay where they are, as in the benchmarks: grids may be uneven.
    progress = report or False
    loop = rollout(
        solver,
        system.simulate,
        x0,
        steps,
        params=system.references,
        shift=False,
        progress=progress,
    )
    return jax.block_until_ready(loop)
