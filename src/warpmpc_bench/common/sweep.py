"""What a benchmark measures: the settings all of them share, and the rows that follow."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import jax

from warpmpc._checks import check_dtype
from warpmpc._errors import SettingsError
from warpmpc_bench.common.baseline import Baseline


@dataclass(frozen=True)
class Sweep:
    """Batch sizes, dtypes and variants; a benchmark says which variants there are.

    Attributes:
        batches: Batch sizes; None: what suits the default device.
        dtypes: "float32", "float64" or both.
        variants: Names of `choices`.
        repeats: Timings per median.
        baselines: Whether to measure other solvers as well: all of them, none, or those named.
    """

    choices: ClassVar[tuple[str, ...]] = ()
    noun: ClassVar[str] = "variant"
    article: ClassVar[str] = "a"
    default_batches: ClassVar[dict[str, tuple[int, ...]]] = {}
    rivals: ClassVar[Mapping[str, Baseline]] = {}  # the baselines of the benchmark

    batches: tuple[int, ...] | None = None
    dtypes: tuple[str, ...] = ("float32",)
    variants: tuple[str, ...] | None = None
    repeats: int = 5
    baselines: bool | tuple[str, ...] = True

    def __post_init__(self) -> None:
        """Refuses what cannot be measured."""
        for name in self.names:
            if name not in self.choices:
                raise SettingsError(
                    f"Unknown {self.noun} {name!r}; choose from {list(self.choices)}."
                )
        for name in () if isinstance(self.baselines, bool) else self.baselines:
            if name not in self.rivals:
                raise SettingsError(f"Unknown baseline {name!r}; choose from {list(self.rivals)}.")
        for batch in self.batches or ():
            if batch < 1:
                raise SettingsError(f"A batch size must be at least 1, got {batch}.")
        for dtype in self.dtypes:
            check_dtype(dtype)
        if self.repeats < 1:
            raise SettingsError(f"repeats must be at least 1, got {self.repeats}.")
        if not (self.dtypes and (self.names or self.baselines)) or self.batches == ():
            raise SettingsError(
                f"Nothing to measure: give a batch size, a dtype and {self.article} {self.noun}."
            )

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the variants to measure; all of them by default."""
        return self.choices if self.variants is None else self.variants

    @property
    def wanted_baselines(self) -> dict[str, Baseline]:
        """The other solvers to measure."""
        if isinstance(self.baselines, bool):
            return dict(self.rivals) if self.baselines else {}
        return {name: self.rivals[name] for name in self.baselines}

    @property
    def sizes(self) -> tuple[int, ...]:
        """Batch sizes, ascending; the allocator's peak then belongs to the latest."""
        return tuple(sorted(set(self.batches or self.default_batches[platform()])))


class Step(NamedTuple):
    """One row to come."""

    solver: str
    batch: int
    dtype: str


def platform() -> str:
    """The kind of device that sizes depend on."""
    return "gpu" if jax.default_backend() == "gpu" else "cpu"


def within(sizes: Sequence[int], largest: int) -> list[int]:
    """The sizes that are not too large; if none, the largest that is allowed."""
    return [size for size in sizes if size <= largest] or [largest]


def steps_of(sweep: Sweep, variants: Mapping[str, Sequence[int]]) -> list[Step]:
    """All rows of a run: solvers on the host first (others are compared with them), then by batch.

    Args:
        sweep: Settings of the benchmark.
        variants: Batch sizes of each variant.
    """
    wanted = sweep.wanted_baselines
    hosts = {name for name, baseline in wanted.items() if baseline.on_host}
    steps = [Step(name, wanted[name].largest[platform()], "float64") for name in wanted
             if name in hosts]  # fmt: skip
    sizes = dict(variants)
    for name in wanted.keys() - hosts:
        largest = wanted[name].largest[platform()]
        # One row is enough to say that a package is missing.
        sizes[name] = sweep.sizes[:1] if wanted[name].obstacle() else within(sweep.sizes, largest)
    order = [*variants, *(name for name in wanted if name not in hosts)]
    for dtype in sweep.dtypes:
        of_dtype = [Step(name, size, dtype) for name in order for size in sizes[name]]
        steps += sorted(of_dtype, key=lambda step: step.batch)  # stable
    return steps
