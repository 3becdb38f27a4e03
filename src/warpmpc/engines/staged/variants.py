"""Kernels of the staged engine for any number of tiles: with one side or two, in a fitting shape.

Reads: a function that builds the kernels of a program.  Produces: `StagedVariants`.  What the
caller fixed is kept; the rest is what was measured on this device, else what the model says.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict
from functools import cache, cached_property

import jax

from warpmpc._errors import PatternError, SettingsError
from warpmpc.engines.runtime.loading import load_together
from warpmpc.engines.staged.launch import StagedKernels
from warpmpc.engines.staged.shape import (
    TWO_SIDED_BLOCK,
    StagedShape,
    mailbox_fits,
    sides_for,
)
from warpmpc.engines.staged.tuning import LoopTimer, Measure, Measured, ShapeStore, search
from warpmpc.symbolic.derivatives.row_kinds import RowKind

_LOG = logging.getLogger(__name__)
# Two sides have twice the code; beyond this many multiply-adds it takes too long to compile.
_LARGEST_CODE = 20_000
_ITERATIONS = 25  # of a measurement, where nobody says how many


class StagedVariants:
    """Kernels of QPs with one pattern."""

    def __init__(
        self,
        build: Callable[[int], StagedKernels],
        given: Mapping[str, int],
        *,
        tune: bool | None = None,
        measure: Measure | None = None,
    ):
        """Builds the kernels that are certain to be needed.

        Args:
            build: Makes kernels with so many sides.
            given: Fields of `StagedShape` that are fixed.
            tune: Whether to measure what was never measured, when a number of tiles comes first;
                None: use what was measured, but do not measure; False: only the model.
            measure: Measures kernels; by default on the device, in seconds.
        """
        self._given, self._tune, self._measure = dict(given), tune, measure
        self._kernels = cache(build)
        self.first = self._kernels(1)
        if given.get("sides") == 2:
            self._check_two_sides()
        if tune and not _on_gpu():
            _LOG.info("staged engine: tune=True has no effect on the CPU")

    def _check_two_sides(self) -> None:
        """Raises if two sides are impossible."""
        layout, dtype = self._kernels(2).layout, self.first.dtype
        if not mailbox_fits(layout.exchanged, dtype):
            raise PatternError(
                f"Two sides would share {layout.exchanged} numbers per problem, too many for the "
                "shared memory of a block; use sides=1."
            )

    @cached_property
    def _may_have_two(self) -> bool:
        """Whether two sides are possible, allowed, and not too much code."""
        fixed = self._given.get("sides")
        if fixed is not None or self._given.get("block", TWO_SIDED_BLOCK) != TWO_SIDED_BLOCK:
            return fixed == 2
        try:
            self._check_two_sides()
        except PatternError as reason:
            _LOG.info("staged engine: one side: %s", reason)
            return False
        return self._kernels(2).program.code_size <= _LARGEST_CODE

    @cached_property
    def _store(self) -> ShapeStore:
        # What is fixed decides what can be found.
        content = f"{self.first.content}\n{sorted(self._given.items())}"
        return ShapeStore(content, jax.devices()[0].device_kind)

    def at(self, tiles: int) -> StagedKernels:
        """Kernels for so many tiles."""
        if self._tune is not False and (_on_gpu() or self._measure):
            stored = self._store.get(tiles)
            if stored is None and self._tune:
                stored = self.tune(tiles)[-1].shape
            if stored is not None:
                return self._shaped(stored)
        sides = self._given.get("sides") or self._model_sides(tiles)
        fixed = {name: value for name, value in self._given.items() if name != "sides"}
        return self._kernels(sides).shaped(fixed)

    def _model_sides(self, tiles: int) -> int:
        """On the CPU one thread would do both sides."""
        return sides_for(tiles) if _on_gpu() and self._may_have_two else 1

    def _shaped(self, shape: StagedShape) -> StagedKernels:
        fields = asdict(shape)
        return self._kernels(fields.pop("sides")).shaped(fields)

    def tune(
        self, tiles: int, iterations: int = _ITERATIONS, kinds: Sequence[RowKind] = ()
    ) -> list[Measured]:
        """Measures shapes for so many tiles and keeps the fastest, which is the last one listed.

        Args:
            tiles: Number of tiles; the result is used up to the next power of two.
            iterations: Of the ADMM loop.
            kinds: Of the rows, where the loop that will run knows them.
        """
        measure = self._measure
        if measure is None:
            if not _on_gpu():
                raise SettingsError(
                    "Nothing to tune on the CPU: all shapes of the kernels run the same code there."
                )
            measure = LoopTimer(min(iterations, 2 * _ITERATIONS))
        sides = [self._given["sides"]] if "sides" in self._given else [1]
        if "sides" not in self._given and self._may_have_two:
            sides.append(2)
        fixed = {name: value for name, value in self._given.items() if name != "sides"}
        starts = [self._kernels(count).shaped(fixed).shape(tiles) for count in sides]

        def kernels(shape: StagedShape) -> StagedKernels:
            found = self._shaped(shape)
            return found.with_kinds(kinds) if kinds else found

        found = search(
            starts,
            self.first.dtype,
            self._given,
            lambda shape: measure(kernels(shape), tiles),
            lambda shapes: _load(map(kernels, shapes), tiles),
        )
        self._store.put(tiles, found[-1].shape)
        return found


def _load(kernels: Iterable[StagedKernels], tiles: int) -> None:
    """Compiles several loops at the same time."""
    needed = [one for some in kernels for one in some.to_load(tiles)]
    load_together(list(dict.fromkeys(needed)))  # shapes may share one


def _on_gpu() -> bool:
    return jax.default_backend() == "gpu"
