"""One row of the MPC benchmark: compile the closed loop, run and judge it, time it, profile it."""

from __future__ import annotations

import math
from contextlib import nullcontext
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from warpmpc.engines.runtime.loading import empty_caches
from warpmpc_bench.common.checking import spread
from warpmpc_bench.common.record import Row
from warpmpc_bench.common.timing import CompiledProgram, Measured, build, measure
from warpmpc_bench.mpc.accuracy import judge
from warpmpc_bench.mpc.bytes import counted_bytes, onchip_bytes, program_of
from warpmpc_bench.mpc.latency import latency
from warpmpc_bench.mpc.loop import MeasuredLoop, closed_loop, continued, halfway
from warpmpc_bench.mpc.phases import measure_phases, split_launch
from warpmpc_bench.mpc.setup import MPCSetup
from warpmpc_bench.mpc.variants import DEFAULT, Built, build_solver, settings_of

BUDGET_S = 4.0  # for the timings of one loop; a slower one is timed once
PROFILED_STEPS, PROFILED_S = 3, 0.05  # at least; seconds of short steps


class MPCCase:
    """A batch of initial states.

    Attributes:
        system: The problem and its plant.
        x0: Initial states ``[batch, n_x]``, on the device or as NumPy array on the host.
        steps: Steps of the measured loop.
        where: Instances that are compared with float64.
        generator: How to draw them again.
    """

    def __init__(
        self,
        setup: MPCSetup,
        batch: int,
        dtype: str,
        *,
        steps: int | None,
        sample: int,
        full_loops: bool = True,
        on_host: bool = False,
    ):
        """Draws with the seed of the benchmark.

        Args:
            setup: System and sizes.
            batch: Number of instances.
            dtype: "float32" or "float64".
            steps: None: those of the system.
            sample: Most instances to compare with float64.
            full_loops: Whether full-length loops of a sample are judged, too.
            on_host: Whether the states stay on the host, in float64.
        """
        self.setup, self.batch, self.dtype = setup, batch, dtype
        # A system of its own: JAX rejects one object in both of its modes.
        self.system = setup.make() if on_host else build_solver(DEFAULT, setup, dtype).system
        drawn = self.system.sample(batch)
        self.x0: Any = drawn if on_host else jnp.asarray(drawn, dtype=dtype)
        self.steps, self.sample = steps or self.system.steps, sample
        self.full_loops = full_loops
        self.where = spread(batch, sample)
        self.generator = f"{setup}.sample({batch})"


_compiled: set[tuple[str, MPCSetup, str]] = set()  # kernels of these are in this process


def measure_variant(
    name: str, case: MPCCase, repeats: int, *, cold: bool = False, profile: bool = True
) -> Measured:
    """Measures one closed loop.

    Args:
        name: Name of the variant.
        case: Initial states.
        repeats: Timings per median.
        cold: Whether kernels are built without any cache.
        profile: Whether to measure phases.
    """
    key = (name, case.setup, case.dtype)
    built = build_solver(*key)
    with empty_caches() if cold else nullcontext():
        program, loop = build(partial(closed_loop, built, case.steps, case.where), case.x0)
    first, cold = key not in _compiled, cold and key not in _compiled
    _compiled.add(key)
    details = {
        "compile": _compile_times(built, program, first=first, cold=cold),
        "counted": _counted(built, build_solver(DEFAULT, *key[1:])),
        "phases": _phases(built, program, case, loop) if profile else None,
    }
    accuracy = judge(loop, case.where, key, case.sample, full_loops=case.full_loops)
    judged = np.asarray(loop.rollout.u)
    del loop  # its memory is free while the loop is timed
    timed = _Timed(program)
    seconds = {"first_call_s": program.first_call_s, "budget_s": BUDGET_S}
    time = measure(timed, case.x0, repeats=repeats, **seconds)
    step_s = time.median_s / case.steps
    details["latency"] = latency(built, case.x0, step_s, details["phases"])
    return Measured(
        times={"sqp": time},
        settings={
            "variant": name,
            **settings_of(name, built, case.batch),
            "steps": case.steps,
            "shift": False,
        },
        accuracy=accuracy.compared(judged, np.asarray(timed.u)),
        bytes_counted={"sqp": details["counted"]["total"]},
        memory=_memory(program, built, case),
        units=case.steps * built.solver.settings.max_iter,
        details=details,
    )


class _Timed:
    """Calls a program and keeps the controls of the last call."""

    def __init__(self, program: CompiledProgram):
        """Nothing is called yet."""
        self._program, self.u = program, None

    def __call__(self, x0: jax.Array) -> MeasuredLoop:
        loop = self._program.call(x0)
        self.u = loop.rollout.u
        return loop


def _compile_times(built: Built, program: CompiledProgram, *, first: bool, cold: bool) -> Row:
    """Seconds until the first result, by part.

    Later rows of a process find the kernels of earlier ones: "first" says whether this is the first
    one of its variant, "cold" whether nothing came from a cache on disk.
    """
    run = program.first_call_s - program.compile_s
    solver_s = built.seconds if first else 0.0
    return {
        "solver_s": solver_s,
        "program_s": program.compile_s,
        "first_run_s": run,
        "total_s": solver_s + program.compile_s,
        "first": first,
        "cold": cold,
    }


def _counted(built: Built, default: Built) -> Row:
    """All variants that stream a factor are held against the same minimum."""
    on_chip = built.solver.engine == "onchip"
    return onchip_bytes(built.solver) if on_chip else counted_bytes(default.solver)


def profiled_steps(steps: int, step_s: float) -> int:
    """How many steps of a loop are profiled.

    Before its first launch a program takes a while that a loop of many steps does not notice:
    neither must a share of a few steps.

    Args:
        steps: Steps of the loop.
        step_s: Seconds of one step.
    """
    return max(PROFILED_STEPS, min(math.ceil(PROFILED_S / step_s), steps // 8))


def _phases(built: Built, whole: CompiledProgram, case: MPCCase, loop: MeasuredLoop) -> Row:
    """Phases of the whole loop if it is short, otherwise of some steps in its middle.

    At its end systems are at rest, where rounding decides how long line searches take.
    """
    iterations = built.solver.settings.max_iter
    if case.steps <= PROFILED_STEPS:
        cycles = _cycles(built, (loop.rollout.x[:, -1], loop.rollout.warm_start))
        row = measure_phases(whole, (case.x0,), case.steps * iterations)
    else:
        half, state = build(partial(halfway, built, case.steps), case.x0)
        half_s = half.first_call_s - half.compile_s
        steps = profiled_steps(case.steps, half_s / (case.steps // 2))
        # Copies of what the caller keeps would be among the few steps that are profiled.
        program, state = build(
            partial(continued, built, steps, case.steps // 2), *state, donated=True
        )
        cycles = _cycles(built, state)
        row = measure_phases(program, state, steps * iterations)
    return row if cycles is None or row["reason"] is not None else split_launch(row, cycles)


def _cycles(built: Built, state: tuple[Any, ...]) -> dict[str, float] | None:
    """Cycles of the phases inside a launch, if a solve is a single launch."""
    return built.solver.phase_cycles(*state) if built.solver.engine == "onchip" else None


def _memory(program: CompiledProgram, built: Built, case: MPCCase) -> dict[str, int | None] | None:
    """Memory as XLA reports it; the data are parameters, trajectories, QP states and factors.

    "run_peak_bytes" is the allocator's word on the first run, with all that lives beside it.
    """
    if program.memory_bytes is None:
        return None
    problem = built.system.problem
    values = 2 * (problem.n_vars + problem.n_cons) + problem.n_x0
    if built.solver.engine != "onchip":
        factor = program_of(built.solver)
        values += factor.n_L + factor.n_nodes
    storage = case.batch * values * np.dtype(case.dtype).itemsize
    return {
        "peak_bytes": program.memory_bytes,
        "storage_bytes": storage,
        "run_peak_bytes": program.peak_bytes,
    }
