"""The translation benchmark: export, compile and run times of CasADi functions over their length.

Reads: `TranslateSettings`.  Produces: one row per step of the plan, in order; a step that cannot
run is a row that says so.  The command line prints, stores and plots the rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import Any, ClassVar

import numpy as np

from warpmpc._errors import SettingsError
from warpmpc_bench.common.baseline import Baseline
from warpmpc_bench.common.record import Row
from warpmpc_bench.common.runner import Runner
from warpmpc_bench.common.sweep import Step, Sweep, steps_of
from warpmpc_bench.common.timing import Measured
from warpmpc_bench.translate.baselines import BASELINES
from warpmpc_bench.translate.case import Case, function_of
from warpmpc_bench.translate.variants import MEASURE, VARIANTS

PHASES = ("export_s", "compile_s")
_ROWS = 1000  # generous: values of an instance that live at once


@dataclass(frozen=True)
class TranslateSettings(Sweep):
    """What to measure; variants are emitters.

    Attributes:
        lengths: Instructions of the functions.
        patience_s: A function that will take longer to compile, by what the emitter needed for
            shorter ones, is left out.
    """

    choices: ClassVar[tuple[str, ...]] = tuple(VARIANTS)
    rivals: ClassVar[Mapping[str, Baseline]] = BASELINES
    noun: ClassVar[str] = "emitter"
    article: ClassVar[str] = "an"
    default_batches: ClassVar[dict[str, tuple[int, ...]]] = {"gpu": (10_000,), "cpu": (1024,)}

    lengths: tuple[int, ...] = (100, 1000, 10_000, 100_000)
    patience_s: float = 300.0

    def __post_init__(self) -> None:
        """Refuses what cannot be measured."""
        super().__post_init__()
        if not self.lengths or min(self.lengths) < 1:
            raise SettingsError(f"Lengths must be at least 1, got {list(self.lengths)}.")
        if not self.patience_s > 0:
            raise SettingsError(f"The patience must be positive, got {self.patience_s}.")


def _plan(settings: TranslateSettings) -> list[tuple[int, Step]]:
    """Length and step of each row; what is not installed is said once."""
    steps = steps_of(settings, dict.fromkeys(settings.names, settings.sizes))
    missing = {name for name, baseline in BASELINES.items() if baseline.obstacle()}
    lengths = sorted(set(settings.lengths))
    return [
        (length, step)
        for length in lengths
        for step in steps
        if length == lengths[0] or step.solver not in missing
    ]


def plan(settings: TranslateSettings) -> list[Step]:
    """All rows of a run."""
    return [step for _, step in _plan(settings)]


def run(settings: TranslateSettings) -> Iterator[Row]:
    """Measures step by step; yields one row per step of `plan`."""
    runner = TranslateRunner(settings)
    for length, step in _plan(settings):
        yield runner.at(length).row(step)


class TranslateRunner(Runner):
    """Evaluations of the synthetic functions."""

    benchmark = "translate"
    timings = ("run",)
    references: ClassVar[dict[str, str]] = {"speedup_over_casadi": "casadi"}

    def __init__(self, settings: TranslateSettings):
        """Keeps the patience; the translators' versions matter, too."""
        super().__init__(settings.repeats, BASELINES)
        self._machine["versions"] |= {name: _installed(name) for name in ("casadi", "jaxadi")}
        self._patience_s, self._length = settings.patience_s, 0
        # Instructions, and seconds until they run, of what was measured so far.
        self._needed: dict[tuple[str, str], list[tuple[int, float]]] = {}

    def at(self, length: int) -> TranslateRunner:
        """The runner for functions of this length."""
        if length != self._length:
            self._length = length
            self._rates.clear()  # CasADi's rates belong to a length
        return self

    def row(self, step: Step) -> Row:
        """Measures one step; the phases have fields of their own."""
        row = super().row(step)
        settings = row["settings"] or {}
        row |= {phase: settings.pop(phase, None) for phase in PHASES}
        if row["compile_s"] is not None:
            needed = self._needed.setdefault((step.solver, step.dtype), [])
            seconds = sum(row[phase] for phase in PHASES)
            needed.append((row["system"]["instructions"], seconds))
        return row

    def system(self, step: Step) -> Row:
        """Length of the function."""
        instructions = function_of(self._length).n_instructions()
        return {"name": "synthetic", "length": self._length, "instructions": instructions}

    def label(self, step: Step) -> str:
        """Builds the variants of the table."""
        return VARIANTS[step.solver]

    def same_batch(self, step: Step) -> Any:
        """A function has arguments of its own."""
        return step.batch, step.dtype, self._length

    def draw(self, step: Step, *, on_host: bool) -> Case:
        """A function and its arguments."""
        return Case(self._length, step.batch, step.dtype, on_host=on_host)

    def measure(self, step: Step, case: Case) -> Measured:
        """Export, compile, run."""
        return MEASURE[step.solver](case, self._repeats)

    def bytes_wanted(self, step: Step) -> int:
        """An estimate."""
        return step.batch * np.dtype(step.dtype).itemsize * _ROWS

    def _obstacle(self, step: Step) -> str | None:
        expected = expected_seconds(self._needed.get((step.solver, step.dtype), []), self._length)
        if expected > self._patience_s:
            return f"would take about {expected:.0f} s to compile, more than {self._patience_s:g} s"
        return super()._obstacle(step)


def _installed(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def expected_seconds(needed: Sequence[tuple[int, float]], length: int) -> float:
    """How long a function will take at least, by the last two that were measured."""
    if not needed:
        return 0.0
    *earlier, (instructions, seconds) = needed
    before = [(n, s) for n, s in earlier if n < instructions]
    if not before:
        return seconds
    slope = (seconds - before[-1][1]) / (instructions - before[-1][0])
    return seconds + max(slope, 0.0) * max(length - instructions, 0)
