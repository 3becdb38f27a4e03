"""Steps of a benchmark to rows: measured, or with the reason why not.

A benchmark derives from `Runner` and says how to draw a batch and how to run a variant on it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict
from functools import cached_property
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from warpmpc.engines.runtime.loading import start_warp
from warpmpc_bench.common.baseline import Baseline
from warpmpc_bench.common.record import Row, machine
from warpmpc_bench.common.sweep import Step
from warpmpc_bench.common.timing import (
    Measured,
    allocator_peak_bytes,
    copy_bandwidth,
    device_memory_bytes,
)

MEMORY_SHARE = 0.8  # a batch may need this share of the device's memory


class Runner(ABC):
    """What the steps of one run share: the machine, the batch in memory, the rates to compare with.

    Attributes:
        benchmark: Name of the benchmark in the rows.
        timings: Names of all timings that a row may have.
        references: Names of the field with a ratio of rates, and the baseline it refers to.
        details: Further fields of its rows; see `Measured.details`.
    """

    benchmark: ClassVar[str]
    timings: ClassVar[tuple[str, ...]]
    references: ClassVar[dict[str, str]]
    details: ClassVar[tuple[str, ...]] = ()

    def __init__(self, repeats: int, baselines: Mapping[str, Baseline]):
        """Describes the machine, and starts what all runs need: nothing of that is compilation."""
        start_warp()
        jax.block_until_ready(jnp.zeros(1))
        self._repeats, self._baselines = repeats, baselines
        self._machine = machine()
        self._memory = device_memory_bytes()
        self._rates: dict[str, dict[str, float]] = {}  # rates of the baselines that are references
        self._case: Any = None
        self._drawn: Any = None

    @cached_property
    def _copy_rate(self) -> float:
        """How fast the machine copies; measured after the first run, whose memory peak counts."""
        return copy_bandwidth()

    @abstractmethod
    def system(self, step: Step) -> Row:
        """Dimensions of the problem."""

    @abstractmethod
    def label(self, step: Step) -> str:
        """Name of a variant in a legend."""

    @abstractmethod
    def draw(self, step: Step, *, on_host: bool) -> Any:
        """The batch of a step."""

    @abstractmethod
    def measure(self, step: Step, case: Any) -> Measured:
        """Times a variant on a batch and checks its results."""

    @abstractmethod
    def bytes_wanted(self, step: Step) -> int:
        """Memory that a variant may need."""

    def same_batch(self, step: Step) -> Any:
        """Equal for steps that share a batch."""
        return step.batch, step.dtype

    def rows(self, steps: Iterable[Step]) -> Iterator[Row]:
        """Measures step by step."""
        for step in steps:
            yield self.row(step)

    def row(self, step: Step) -> Row:
        """Measures one step."""
        reason = self._obstacle(step)
        if reason is not None:
            return self._skeleton(step, reason)
        case, baseline = self._case_of(step), self._baselines.get(step.solver)
        try:
            if baseline is None:
                measured = self.measure(step, case)
            else:
                measured = baseline.measure(case, self._repeats)
        except Exception as error:
            # An error of another package, or a lack of memory, must not end the run.
            if baseline is None and "RESOURCE_EXHAUSTED" not in str(error):
                raise
            return self._skeleton(step, f"failed: {type(error).__name__}: {error}"[:300])
        generator = {"generator": case.generator}
        return self._skeleton(step, None) | generator | self._numbers(step, measured)

    def _obstacle(self, step: Step) -> str | None:
        baseline = self._baselines.get(step.solver)
        if baseline is None:
            return self._too_large(self.bytes_wanted(step))
        wanted = step.batch * baseline.bytes_wanted(np.dtype(step.dtype).itemsize)
        return baseline.obstacle() or self._too_large(wanted)

    def _too_large(self, wanted: int) -> str | None:
        if self._memory is None or wanted <= MEMORY_SHARE * self._memory:
            return None
        return (
            f"needs about {wanted / 1e9:.1f} GB, more than {MEMORY_SHARE:.0%} of the "
            f"{self._memory / 1e9:.1f} GB of this device"
        )

    def _case_of(self, step: Step) -> Any:
        baseline = self._baselines.get(step.solver)
        if baseline is not None and baseline.on_host:
            return self.draw(step, on_host=True)
        if self._drawn != self.same_batch(step):
            self._case = None  # frees the old batch before the new one is drawn
            self._case, self._drawn = self.draw(step, on_host=False), self.same_batch(step)
        return self._case

    def _skeleton(self, step: Step, reason: str | None) -> Row:
        """All fields of a row, unknown ones empty."""
        baseline = self._baselines.get(step.solver)
        return {
            "benchmark": self.benchmark,
            "system": self.system(step),
            **self._machine,
            "solver": step.solver,
            "kind": "variant" if baseline is None else "baseline",
            "label": self.label(step) if baseline is None else baseline.label,
            "batch": step.batch,
            "dtype": step.dtype,
            "skipped": reason,
            "correct": None,
            "settings": None,
            "generator": None,
            "copy_bytes_per_s": self._copy_rate,
            **dict.fromkeys(self.timings),
            "memory": None,
            "accuracy": None,
            **dict.fromkeys(self.details),
        }

    def _numbers(self, step: Step, measured: Measured) -> Row:
        if step.solver in self.references.values() and measured.accuracy.correct:
            times, work = measured.times.items(), step.batch * measured.units
            self._rates[step.solver] = {name: work / time.median_s for name, time in times}
        memory: dict[str, Any] = dict(measured.memory or {})
        if memory:
            memory["ratio"] = memory["peak_bytes"] / memory["storage_bytes"]
            memory["allocator_peak_bytes"] = allocator_peak_bytes()
        return {
            **{name: self._timing(name, step.batch, measured) for name in measured.times},
            "correct": measured.accuracy.correct,
            "settings": measured.settings,
            "memory": memory or None,
            "accuracy": asdict(measured.accuracy),  # pyright: ignore[reportArgumentType]
            **measured.details,
        }

    def _timing(self, name: str, batch: int, measured: Measured) -> Row:
        timing = measured.times[name]
        work = batch * measured.units
        rate = work / timing.median_s
        counted = measured.bytes_counted.get(name)
        traffic = None if counted is None else counted * rate
        return {
            **asdict(timing),
            "per_s": rate,
            "bytes": None if counted is None else counted * work,
            "bytes_per_s": traffic,
            "floor_fraction": None if traffic is None else traffic / self._copy_rate,
            **{field: self._ratio(rate, solver, name) for field, solver in self.references.items()},
        }

    def _ratio(self, rate: float, solver: str, name: str) -> float | None:
        reference = self._rates.get(solver, {}).get(name.removesuffix("_tiles"))
        return None if reference is None else rate / reference
