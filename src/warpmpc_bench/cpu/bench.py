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
from warpmpc.engines.runtime.ffi import host
from warpmpc_bench.common.baseline import Baseline
from warpmpc_bench.common.record import Row, machine
from warpmpc_bench.common.sweep import Step, Sweep
from warpmpc_bench.cpu.baselines import BASELINES, SequentialOSQP

LABELS = {"one": "one thread", "all": "all threads", "osqp": "OSQP, one core"}
_USUAL = ("quadrotor", "cartpole", "linear")
CONTROL_BYTES = 1 << 23  # hashed by each thread of the control
_LONGEST_ROUND = 2.0  # seconds of one timing in a round


@dataclass(frozen=True)
class CPUSettings(Sweep):
    """Settings of the benchmark; its variants are systems.

    Attributes:
        engine: Engine of the solvers.
    """

    choices: ClassVar[tuple[str, ...]] = tuple(systems.SYSTEMS)
    noun: ClassVar[str] = "system"
    default_batches: ClassVar[dict[str, tuple[int, ...]]] = {"cpu": (1, 64, 1024)}
    rivals: ClassVar[Mapping[str, Baseline]] = BASELINES

    engine: str = "auto"

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
    for step in plan(settings):
        try:
            yield {**about, **_Measurement(step, settings, before).row()}
        finally:
            set_cpu_threads(None)


class _Measurement:
    """One system at one batch size."""

    def __init__(self, step: Step, settings: CPUSettings, threads: int):
        self._step, self._repeats, self._threads = step, settings.repeats, threads
        self._system = systems.make(step.solver)
        once = replace(self._system.settings, max_iter=1)
        self._solver = MPCSolver(self._system.problem, once, step.dtype, settings.engine)
        self._x0 = jnp.asarray(self._system.sample(step.batch, 0), dtype=step.dtype)
        self._osqp = None
        if settings.wanted_baselines and BASELINES["osqp"].obstacle() is None:
            self._osqp = SequentialOSQP(self._solver, np.asarray(self._x0))

    def _solve(self, threads: int) -> Any:
        set_cpu_threads(threads)
        return jax.block_until_ready(self._solver.solve(self._x0))

    def row(self) -> Row:
        """Measures."""
        start = time.perf_counter()
        found = {name: self._solve(count) for name, count in self._counts().items()}
        first = time.perf_counter() - start
        calls: dict[str, Callable[[], Any]] = {
            name: lambda count=count: self._solve(count) for name, count in self._counts().items()
        }
        work = dict.fromkeys(calls, self._step.batch)
        if self._osqp is not None:
            calls["osqp"], work["osqp"] = self._osqp.solve, self._osqp.batch
        seconds, control = self._rounds(calls)
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
            "accuracy": why,
            "settings": {
                "engine": self._solver.engine,
                "threads": self._threads,
                "sqp_iterations": 1,
                "admm_iterations": self._solver.qp.settings.max_iter,
            },
            "first_call_s": first,
            "seconds": {name: _spread(np.array(times)) for name, times in seconds.items()},
            "per_s": {name: _spread(rate) for name, rate in rates.items()},
            "ratios": {
                name: _spread(rates[above] / rates[below])
                for name, (above, below) in _RATIOS.items()
                if above in rates and below in rates
            },
            "free_cores": _spread(np.array(control)),
            "memory": {"peak_bytes": 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss},
        }

    def _counts(self) -> dict[str, int]:
        return {"one": 1, "all": self._threads}

    def _rounds(
        self, calls: Mapping[str, Callable[[], Any]]
    ) -> tuple[dict[str, list[float]], list[float]]:
        """Seconds of a call in every round, and what the control found beside it."""
        seconds: dict[str, list[float]] = {name: [] for name in calls}
        repeats = {}
        for name, call in calls.items():
            spent = _timed(call, 1)
            repeats[name] = max(1, min(20, int(0.05 / spent))) if spent < _LONGEST_ROUND else 1
        control = []
        for _ in range(self._repeats):
            for name, call in calls.items():
                seconds[name].append(_timed(call, repeats[name]))
            control.append(free_cores(self._threads))
        return seconds, control

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
