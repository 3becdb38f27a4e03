"""The factorisation benchmark: rates, accuracy and memory over batch size, variant and baseline.

Reads: `BenchSettings`.  Produces: one row per step of the plan, in order; a step that cannot run is
a row that says so.  The command line prints, stores and plots the rows.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

import jax
import numpy as np

from warpmpc._errors import SettingsError
from warpmpc._types import check_dtype
from warpmpc.bench.baselines import BASELINES
from warpmpc.bench.ldl_case import Case
from warpmpc.bench.ldl_variants import (
    VARIANTS,
    Measured,
    build_solver,
    bytes_wanted,
    measure_solver,
)
from warpmpc.bench.record import Row, machine
from warpmpc.bench.timing import allocator_peak_bytes, copy_bandwidth, device_memory_bytes
from warpmpc.qp.ldl_solver import LDLSolver
from warpmpc.systems.ldl_benchmark import nominal

DEFAULT_BATCHES = {"gpu": (512, 2048, 8192, 32768, 100_000, 300_000), "cpu": (32, 256, 1024)}
MEMORY_SHARE = 0.8  # of the device's memory that a batch may need
TIMINGS = ("factor", "solve", "solve_tiles")


@dataclass(frozen=True)
class BenchSettings:
    """What to measure.

    Attributes:
        batches: Batch sizes; None: what suits the default device.
        dtypes: "float32", "float64" or both.
        variants: Names from `VARIANTS`.
        repeats: Timings per median.
        baselines: Whether to measure `BASELINES`, too.
    """

    batches: tuple[int, ...] | None = None
    dtypes: tuple[str, ...] = ("float32",)
    variants: tuple[str, ...] = tuple(VARIANTS)
    repeats: int = 5
    baselines: bool = True

    def __post_init__(self) -> None:
        """Refuses what cannot be measured."""
        for name in self.variants:
            if name not in VARIANTS:
                raise SettingsError(f"Unknown variant {name!r}; choose from {list(VARIANTS)}.")
        for batch in self.batches or ():
            if batch < 1:
                raise SettingsError(f"A batch size must be at least 1, got {batch}.")
        for dtype in self.dtypes:
            check_dtype(dtype)
        if self.repeats < 1:
            raise SettingsError(f"repeats must be at least 1, got {self.repeats}.")
        if not (self.dtypes and (self.variants or self.baselines)) or self.batches == ():
            raise SettingsError("Nothing to measure: give a batch size, a dtype and a variant.")

    @property
    def sizes(self) -> tuple[int, ...]:
        """Batch sizes, ascending; the allocator's peak then belongs to the latest."""
        return tuple(sorted(set(self.batches or DEFAULT_BATCHES[_platform()])))


class Step(NamedTuple):
    """One row to come."""

    solver: str
    batch: int
    dtype: str

    @property
    def is_baseline(self) -> bool:
        """Whether the row is that of another solver."""
        return self.solver in BASELINES


def plan(settings: BenchSettings) -> list[Step]:
    """All rows of a run: QDLDL first (the others are compared with it), then batch by batch."""
    steps = [Step("qdldl", _sizes_of("qdldl", settings)[-1], "float64")] * settings.baselines
    for dtype in settings.dtypes:
        baselines = [Step(name, batch, dtype) for name, batch in _baseline_sizes(settings)]
        variants = [Step(name, b, dtype) for b in settings.sizes for name in settings.variants]
        steps += sorted(variants + baselines, key=lambda step: step.batch)  # stable
    return steps


def run(settings: BenchSettings) -> Iterator[Row]:
    """Measures step by step; yields one row per step of `plan`."""
    runner = _Runner(settings)
    for step in plan(settings):
        yield runner.row(step)


def _platform() -> str:
    return "gpu" if jax.default_backend() == "gpu" else "cpu"


def _sizes_of(name: str, settings: BenchSettings) -> list[int]:
    """Batch sizes of a baseline: the wanted ones it can cope with, else the largest it can."""
    largest = BASELINES[name].largest[_platform()]
    if name == "qdldl":
        return [largest]  # cost per instance does not depend on the batch
    if BASELINES[name].obstacle():
        return [settings.sizes[0]]  # one row is enough to say so
    return [size for size in settings.sizes if size <= largest] or [largest]


def _baseline_sizes(settings: BenchSettings) -> list[tuple[str, int]]:
    names = [name for name in BASELINES if name != "qdldl"] if settings.baselines else []
    return [(name, size) for name in names for size in _sizes_of(name, settings)]


class _Runner:
    """What the steps of one run share: the machine, the batch in memory, the solvers."""

    def __init__(self, settings: BenchSettings):
        self._repeats = settings.repeats
        self._machine = machine()
        self._copy_rate = copy_bandwidth()
        self._memory = device_memory_bytes()
        self._solvers: dict[tuple[str, str], LDLSolver] = {}
        self._case: Case | None = None
        self._reference: dict[str, float] = {}  # rates of QDLDL

    def row(self, step: Step) -> Row:
        """Measures one step."""
        reason = self._obstacle(step)
        if reason is not None:
            return self._skeleton(step, reason)
        case = self._case_of(step)
        try:
            measured = self._measure(step, case)
        except Exception as error:
            # Neither someone else's package nor too little memory may end the run.
            if not step.is_baseline and "RESOURCE_EXHAUSTED" not in str(error):
                raise
            return self._skeleton(step, f"failed: {type(error).__name__}: {error}"[:300])
        generator = {"generator": case.generator}
        return self._skeleton(step, None) | generator | self._numbers(step, measured)

    def _measure(self, step: Step, case: Case) -> Measured:
        if step.is_baseline:
            return BASELINES[step.solver].measure(case, self._repeats)
        ordering = VARIANTS[step.solver].ordering
        return measure_solver(self._solver(step), ordering, case, self._repeats)

    def _obstacle(self, step: Step) -> str | None:
        if step.is_baseline:
            baseline = BASELINES[step.solver]
            itemsize = np.dtype(step.dtype).itemsize
            wanted = step.batch * baseline.bytes_wanted(itemsize)
            return baseline.obstacle() or self._too_large(wanted)
        return self._too_large(bytes_wanted(self._solver(step), step.batch))

    def _too_large(self, wanted: int) -> str | None:
        if self._memory is None or wanted <= MEMORY_SHARE * self._memory:
            return None
        return (
            f"needs about {wanted / 1e9:.1f} GB, more than {MEMORY_SHARE:.0%} of the "
            f"{self._memory / 1e9:.1f} GB of this device"
        )

    def _solver(self, step: Step) -> LDLSolver:
        key = (step.solver, step.dtype)
        if key not in self._solvers:
            self._solvers[key] = build_solver(*key)
        return self._solvers[key]

    def _case_of(self, step: Step) -> Case:
        if step.solver == "qdldl":
            return Case(step.batch, step.dtype, on_host=True)
        if self._case is None or (self._case.batch, self._case.dtype) != step[1:]:
            self._case = None  # frees the old batch before the new one is drawn
            self._case = Case(step.batch, step.dtype)
        return self._case

    def _skeleton(self, step: Step, reason: str | None) -> Row:
        """All fields of a row, unknown ones empty."""
        K, table = nominal(), BASELINES if step.is_baseline else VARIANTS
        return {
            "benchmark": "ldl",
            "system": {"name": "ldl_benchmark", "dimension": K.shape[0], "nnz_K": K.nnz},
            **self._machine,
            "solver": step.solver,
            "kind": "baseline" if step.is_baseline else "variant",
            "label": table[step.solver].label,
            "batch": step.batch,
            "dtype": step.dtype,
            "skipped": reason,
            "correct": None,
            "settings": None,
            "generator": None,
            "copy_bytes_per_s": self._copy_rate,
            **dict.fromkeys(TIMINGS),
            "memory": None,
            "accuracy": None,
        }

    def _numbers(self, step: Step, measured: Measured) -> Row:
        rates = {name: step.batch / time.median_s for name, time in measured.times.items()}
        if step.solver == "qdldl":
            self._reference = rates
        memory: dict[str, Any] = dict(measured.memory or {})
        if memory:
            memory["ratio"] = memory["peak_bytes"] / memory["storage_bytes"]
            memory["allocator_peak_bytes"] = allocator_peak_bytes()
        return {
            **{name: self._timing(name, step.batch, measured) for name in measured.times},
            "correct": measured.accuracy.correct,
            "settings": measured.settings,
            "memory": memory or None,
            "accuracy": asdict(measured.accuracy),
        }

    def _timing(self, name: str, batch: int, measured: Measured) -> Row:
        timing = measured.times[name]
        rate = batch / timing.median_s
        counted = measured.bytes_counted.get(name)
        reference = self._reference.get(name.removesuffix("_tiles"))
        traffic = None if counted is None else counted * rate
        return {
            **asdict(timing),
            "per_s": rate,
            "bytes": None if counted is None else counted * batch,
            "bytes_per_s": traffic,
            "floor_fraction": None if traffic is None else traffic / self._copy_rate,
            "speedup_over_qdldl": None if reference is None else rate / reference,
        }
