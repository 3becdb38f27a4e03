"""One thread, all threads and other solvers in one process, one after the other in every round.

Reads: systems, batch sizes.  Produces: rows with medians, ratios per round with their quartiles,
and a control.  A machine that is shared changes its speed all the time: a ratio within a round says
more than two medians, and the control says how many cores were free at all.

All solves do one SQP iteration from the guess, so that a rate of ours counts linearisations, QPs
and line searches, and a rate of OSQP counts QPs of as many iterations.
"""

from __future__ import annotations

import hashlib
import resource
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from warpmpc import MPCSolver, MPCStatus, cpu_threads, set_cpu_threads, systems
from warpmpc._errors import SettingsError
from warpmpc.engines.runtime.batching import WIDTHS
from warpmpc.engines.runtime.ffi import host
from warpmpc_bench.common.baseline import Baseline
from warpmpc_bench.common.record import Row, machine
from warpmpc_bench.common.sweep import Step, Sweep
from warpmpc_bench.cpu.baselines import (
    BASELINES,
    ConvergedByCasADi,
    ParallelOSQP,
    SequentialOSQP,
)
from warpmpc_bench.cpu.roofline import machine_limits, roofline

LABELS = {"one": "one thread", "all": "all threads", "osqp": "OSQP, one core"}
_USUAL = ("quadrotor", "cartpole", "linear")
CONTROL_BYTES = 1 << 23  # hashed by each thread of the control
_LONGEST_ROUND = 2.0  # seconds of one timing in a round
_LANES = "lanes_"  # before the number in the name of a rate
_LANES_UP_TO = 64  # instances that are also solved in tiles of one lane


@dataclass(frozen=True)
class CPUSettings(Sweep):
    """Settings of the benchmark; its variants are systems.

    Attributes:
        engine: Engine of the solvers.
        lanes: Whether to measure every number of lanes of a tile as well, in one thread.
        engines: Other engines to measure, in one thread.
    """

    choices: ClassVar[tuple[str, ...]] = tuple(systems.SYSTEMS)
    noun: ClassVar[str] = "system"
    default_batches: ClassVar[dict[str, tuple[int, ...]]] = {"cpu": (1, 64, 1024)}
    rivals: ClassVar[Mapping[str, Baseline]] = BASELINES

    engine: str = "auto"
    lanes: bool = False
    engines: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Refuses what cannot be measured."""
        if host() is None:
            raise SettingsError(
                "`bench cpu` measures kernels on the CPU: set JAX_PLATFORMS=cpu on a machine with "
                "a GPU."
            )
        super().__post_init__()

    @property
    def names(self) -> tuple[str, ...]:
        """The systems to measure."""
        return _USUAL if self.variants is None else self.variants


def plan(settings: CPUSettings) -> list[Step]:
    """The rows to come."""
    return [
        Step(name, batch, dtype)
        for dtype in settings.dtypes
        for name in settings.names
        for batch in settings.sizes
    ]


def run(settings: CPUSettings) -> Iterator[Row]:
    """Measures row by row; afterwards as many threads are used as before."""
    about, before = machine(), cpu_threads()
    limits = machine_limits()
    for step in plan(settings):
        measurement = _Measurement(step, settings, before)
        try:
            yield {**about, **measurement.row(limits)}
        finally:
            measurement.close()
            set_cpu_threads(None)


class _Measurement:
    """One system at one batch size."""

    def __init__(self, step: Step, settings: CPUSettings, threads: int):
        self._step, self._settings, self._threads = step, settings, threads
        self._system = systems.make(step.solver)
        self._solver = self._made(settings.engine)
        self._x0 = jnp.asarray(self._system.sample(step.batch, 0), dtype=step.dtype)
        self._left_out: dict[str, str] = {}
        self._parallel: list[ParallelOSQP] = []

    def _made(self, engine: str) -> MPCSolver:
        once = replace(self._system.settings, max_iter=1)
        return MPCSolver(self._system.problem, once, self._step.dtype, engine)

    def _solve(self, threads: int, solver: MPCSolver | None = None) -> Any:
        set_cpu_threads(threads)
        return jax.block_until_ready((solver or self._solver).solve(self._x0))

    def close(self) -> None:
        """Ends processes."""
        for solver in self._parallel:
            solver.close()

    def row(self, limits: Mapping[str, float]) -> Row:
        """Measures."""
        start = time.perf_counter()
        found = {name: self._solve(count) for name, count in self._counts().items()}
        first = time.perf_counter() - start
        calls: dict[str, Callable[[], Any]] = {
            name: lambda count=count: self._solve(count) for name, count in self._counts().items()
        }
        work = dict.fromkeys(calls, self._step.batch)
        alike = {}
        for name, solver in self._others().items():
            calls[name] = lambda solver=solver: self._solve(1, solver)
            work[name] = self._step.batch
            alike[name] = float(np.abs(calls[name]().z - found["one"].z).max())
        for name, rival in self._rivals().items():
            calls[name], work[name] = rival.solve, rival.batch
        seconds, kernels, control = self._rounds(calls)
        rates = {name: work[name] / np.array(times) for name, times in seconds.items()}
        correct, why = self._verdict(found)
        return {
            "benchmark": "cpu",
            "system": {"name": self._step.solver, "horizon": self._system.problem.horizon},
            "solver": self._step.solver,
            "kind": "variant",
            "label": self._step.solver,
            "batch": self._step.batch,
            "dtype": self._step.dtype,
            "skipped": None,
            "correct": correct,
            "accuracy": {**why, "largest_difference": alike},
            "settings": {
                "engine": self._solver.engine,
                "threads": self._threads,
                "lanes": self._solver.widths.lanes(self._step.batch),
                "sqp_iterations": 1,
                "admm_iterations": self._solver.qp.settings.max_iter,
            },
            "first_call_s": first,
            "seconds": {name: _spread(np.array(times)) for name, times in seconds.items()},
            "kernel_seconds": {name: _spread(np.array(times)) for name, times in kernels.items()},
            "per_s": {name: _spread(rate) for name, rate in rates.items()},
            "ratios": {
                name: _spread(rates[above] / rates[below])
                for name, (above, below) in _RATIOS.items()
                if above in rates and below in rates
            },
            "left_out": self._left_out,
            "free_cores": _spread(np.array(control)),
            "roofline": roofline(self._solver, work["one"] / np.median(kernels["one"]), limits),
            "memory": {"peak_bytes": 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss},
        }

    def _counts(self) -> dict[str, int]:
        return {"one": 1, "all": self._threads}

    def _others(self) -> dict[str, MPCSolver]:
        """Solvers with other lanes, and with other engines."""
        found = {}
        for engine in self._settings.engines:
            try:
                found[engine] = self._made(engine)
            except SettingsError as reason:
                self._left_out[engine] = str(reason)
        if self._settings.lanes and self._solver.widths.lanes(1) == 1:
            for lanes in WIDTHS if self._step.batch <= _LANES_UP_TO else WIDTHS[1:]:
                solver = found[f"{_LANES}{lanes}"] = self._made(self._settings.engine)
                solver.widths.fixed = lanes
        return found

    def _rivals(self) -> dict[str, Any]:
        """Other solvers that can run here."""
        makers: dict[str, Callable[[], Any]] = {
            "osqp": lambda: SequentialOSQP(self._solver, np.asarray(self._x0)),
            "osqp_all": self._osqp_processes,
        }
        for name in ("ipopt", "fatrop"):
            makers[name] = lambda n=name: ConvergedByCasADi(n, self._solver, np.asarray(self._x0))
        found = {}
        for name, about in self._settings.wanted_baselines.items():
            reason = about.obstacle()
            if reason is None:
                try:
                    found[name] = makers[name]()
                except (RuntimeError, SettingsError) as error:
                    reason = str(error).splitlines()[-1]
            if reason is not None:
                self._left_out[name] = reason
        return found

    def _osqp_processes(self) -> ParallelOSQP:
        self._parallel.append(ParallelOSQP(self._solver, np.asarray(self._x0), self._threads))
        return self._parallel[-1]

    def _rounds(
        self, calls: Mapping[str, Callable[[], Any]]
    ) -> tuple[dict[str, list[float]], dict[str, list[float]], list[float]]:
        """Seconds of a call in every round, those in kernels, and what the control found."""
        running = host()
        assert running is not None
        seconds: dict[str, list[float]] = {name: [] for name in calls}
        kernels: dict[str, list[float]] = {name: [] for name in calls}
        repeats = {}
        for name, call in calls.items():
            spent = _timed(call, 1)
            repeats[name] = max(1, min(20, int(0.05 / spent))) if spent < _LONGEST_ROUND else 1
        control = []
        for _ in range(self._settings.repeats):
            for name, call in calls.items():
                before = running.seconds
                seconds[name].append(_timed(call, repeats[name]))
                kernels[name].append((running.seconds - before) / repeats[name])
            control.append(free_cores(self._threads))
        return seconds, {n: t for n, t in kernels.items() if any(t)}, control

    def _verdict(self, found: Mapping[str, Any]) -> tuple[bool, Row]:
        """Whether any number of threads finds the same bits, and all instances have a solution."""
        one, every = (jax.tree.leaves(found[name]) for name in ("one", "all"))
        same = all(np.array_equal(a, b, equal_nan=True) for a, b in zip(one, every, strict=True))
        status, z = np.asarray(found["one"].status), np.asarray(found["one"].z)
        finite = bool(np.isfinite(z).all() and (status != MPCStatus.NON_FINITE).all())
        return same and finite, {"same_bits": same, "finite": finite}


# Rates in a round: of the first over the second.
_RATIOS = {
    "all_over_one": ("all", "one"),
    "one_over_osqp": ("one", "osqp"),
    "all_over_osqp": ("all", "osqp"),
    "all_over_osqp_all": ("all", "osqp_all"),
}


def free_cores(threads: int) -> float:
    """The control: how many cores' work a number of threads does that need nothing but a core."""
    data = bytes(CONTROL_BYTES)

    def work(_: int) -> None:
        hashlib.sha256(data).digest()  # without the interpreter lock

    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(work, range(threads)))  # starts them
        alone = _timed(lambda: work(0), 1)
        together = _timed(lambda: list(pool.map(work, range(threads))), 1)
    return threads * alone / together


def _timed(call: Callable[[], Any], repeats: int) -> float:
    start = time.perf_counter()
    for _ in range(repeats):
        call()
    return (time.perf_counter() - start) / repeats


def _spread(values: np.ndarray) -> dict[str, float]:
    """Median and quartiles."""
    low, median, high = np.quantile(values, [0.25, 0.5, 0.75])
    return {"median": float(median), "low": float(low), "high": float(high)}
