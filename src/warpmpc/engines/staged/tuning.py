"""Which shape of the staged kernels is fastest: measured on the device, kept on disk.

Reads: kernels, and a function that measures them.  Produces: the fastest `StagedShape` for a range
of batch sizes (tiles up to a power of two), stored beside generated code for later processes.

Kernels of the staged engine for any number of tiles: with one side or two, in a fitting shape.

Reads: a function that builds the kernels of a program.  Produces: `StagedVariants`.  What the
caller fixed is kept; the rest is what was measured on this device, else what the model says.
"""

from __future__ import annotations

import hashlib
import json
import logging
import time
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache, cached_property
from typing import Protocol

import jax
import jax.numpy as jnp
import numpy as np

from warpmpc._errors import CodegenError, PatternError, SettingsError
from warpmpc.codegen.cache import load_text, store_text
from warpmpc.engines.runtime.admm_launch import UNCHECKED, LoopData, LoopLimits, LoopState
from warpmpc.engines.runtime.loading import load_together
from warpmpc.engines.runtime.tiles import LANES
from warpmpc.engines.staged.launch import (
    TWO_SIDED_BLOCK,
    StagedKernels,
    StagedShape,
    mailbox_fits,
    sides_for,
)
from warpmpc.symbolic.derivatives.stage_model import RowKind

_LOG = logging.getLogger(__name__)
# What is tried beside the model's choice, one field after the other.
_REGISTERS = {"float32": (64, 128, 255), "float64": (128, 255)}
_BLOCKS = (32, 64, 128)
_GAIN = 0.02  # less than this is noise


@dataclass(frozen=True)
class Measured:
    """A shape and the seconds it took."""

    shape: StagedShape
    seconds: float


class Measure(Protocol):
    """How long kernels take."""

    def __call__(self, kernels: StagedKernels, tiles: int) -> float:
        """Seconds for so many tiles."""
        ...


class ShapeStore:
    """Measured shapes of one program on one device, in the folder of generated code."""

    def __init__(self, content: str, device: str):
        """Nothing is read yet.

        Args:
            content: All that decides what the kernels do.
            device: Name of the device.
        """
        self._key = hashlib.sha256(f"{content}\n{device}".encode()).hexdigest()
        self._device = device
        self._own: dict[int, StagedShape] = {}  # also where the folder cannot be written

    def get(self, tiles: int) -> StagedShape | None:
        """What was fastest for about so many tiles, if that was ever measured."""
        return (self._own if _range_of(tiles) in self._own else self._read()).get(_range_of(tiles))

    def put(self, tiles: int, shape: StagedShape) -> None:
        """Keeps a shape, also for later processes."""
        self._own[_range_of(tiles)] = shape
        shapes = self._read() | self._own
        entries = {str(2**power): asdict(one) for power, one in sorted(shapes.items())}
        content = {"device": self._device, "shapes by most tiles": entries}
        store_text("tuned", self._key, json.dumps(content, indent=1) + "\n")

    def _read(self) -> dict[int, StagedShape]:
        text = load_text("tuned", self._key, lost="shapes are chosen by the model")
        if text is None:
            return {}
        try:
            entries = json.loads(text)["shapes by most tiles"]
            return {_range_of(int(most)): StagedShape(**shape) for most, shape in entries.items()}
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            message = f"Stored kernel shapes cannot be understood ({error}); the model chooses."
            warnings.warn(message, RuntimeWarning, stacklevel=4)
            return {}


def _range_of(tiles: int) -> int:
    """Exponent of the power of two that so many tiles do not exceed."""
    return (tiles - 1).bit_length()


def search(
    starts: list[StagedShape],
    dtype: str,
    given: Mapping[str, int],
    measure: Callable[[StagedShape], float],
    prepare: Callable[[list[StagedShape]], None] | None = None,
) -> list[Measured]:
    """Measures the model's shapes, then varies the better one field by field; the best is last.

    Args:
        starts: The model's choice for each number of sides.
        dtype: "float32" or "float64".
        given: Fields that are fixed.
        measure: Seconds of a shape.
        prepare: Compiles shapes that are measured next, at the same time.
    """
    found: dict[StagedShape, float] = {}
    _try(starts, measure, prepare, found)
    varied = {"registers": _REGISTERS[dtype], "block": _BLOCKS, "prefetch": (False, True)}
    for name, values in varied.items():
        if name in given or not found:
            continue
        best = _best(found)
        # With two sides a block is one tile.
        if name != "block" or best.sides == 1:
            others = [replace(best, **{name: value}) for value in values]
            _try(others, measure, prepare, found)
    if not found:
        raise CodegenError("No shape of the kernels could be measured; the log says why.")
    best = _best(found)
    return [Measured(s, t) for s, t in found.items() if s != best] + [Measured(best, found[best])]


def _try(
    shapes: list[StagedShape],
    measure: Callable[[StagedShape], float],
    prepare: Callable[[list[StagedShape]], None] | None,
    found: dict[StagedShape, float],
) -> None:
    new = [shape for shape in shapes if shape not in found]
    if prepare is not None and new:
        try:
            prepare(new)
        except (CodegenError, RuntimeError) as error:
            _LOG.info("tuning: compiled one by one, because of: %s", error)
    for shape in new:
        try:
            found[shape] = measure(shape)
        except (CodegenError, RuntimeError) as error:  # too much memory or code for this one
            _LOG.warning("tuning: %s cannot be measured: %s", shape, error)
            continue
        _LOG.info("tuning: %s takes %.3g ms", shape, 1e3 * found[shape])


def _best(found: Mapping[StagedShape, float]) -> StagedShape:
    """The fastest shape, or one tried earlier that is as fast but for noise."""
    least = min(found.values())
    return next(shape for shape, seconds in found.items() if seconds <= (1 + _GAIN) * least)


class LoopTimer:
    """Seconds of a factorisation and some iterations, on numbers that mean nothing."""

    def __init__(
        self, iterations: int, repeats: int = 5, clock: Callable[[], float] = time.perf_counter
    ):
        """Measures nothing yet.

        Args:
            iterations: Of the ADMM loop.
            repeats: The fastest of so many calls counts.
            clock: Seconds since some time.
        """
        self._limits = LoopLimits(check_every=0, span=iterations, max_iter=iterations)
        self._repeats, self._clock = repeats, clock

    def __call__(self, kernels: StagedKernels, tiles: int) -> float:
        """Best time of the kernels in the shape they have; compilation does not count."""
        # Also while something is being traced: these are numbers, not part of the trace.
        with jax.ensure_compile_time_eval():
            data, R, state = synthetic_loop(kernels, tiles)
            call = jax.jit(lambda *args: self._loop(kernels, *args))
            args = (data.K, data.Q, R, state)
            jax.block_until_ready(call(*args))
            return min(self._seconds(call, args) for _ in range(self._repeats))

    def _seconds(self, call: Callable[..., LoopState], args: tuple[object, ...]) -> float:
        begin = self._clock()
        jax.block_until_ready(call(*args))
        return self._clock() - begin

    def _loop(
        self, kernels: StagedKernels, K: jax.Array, Q: jax.Array, R: jax.Array, state: LoopState
    ) -> LoopState:
        data = LoopData(K, Q, Q, Q, Q[:, :1], Q[:, :1], scaled=False)
        numbers = np.array([1e-6, 1.6, 1e-3, 1e-3, 1e-4, 1e-4, 1, 1, 1])
        begin = jnp.asarray(0, dtype=jnp.int32)
        return kernels.iterate(kernels.factor(K), R, data, state, numbers, begin, self._limits)


def synthetic_loop(kernels: StagedKernels, tiles: int) -> tuple[LoopData, jax.Array, LoopState]:
    """Data, R and state of a well-conditioned problem in every lane.

    Args:
        kernels: Whose shapes the arrays have.
        tiles: How many of them.
    """
    program, rng = kernels.program, np.random.default_rng(0)
    n = program.n_nodes
    is_row = np.concatenate([np.tile(run.template.is_row, run.count) for run in program.runs])
    values = 0.01 * rng.normal(size=program.K_order.size)
    values[program.diagonals] = np.where(is_row, -10.0, 1.0)
    rows = {
        "K": values,
        "Q": np.zeros(n),
        "R": np.append(np.where(is_row, 10.0, 1.0), np.ones(4 * kernels.soft_nodes.size)),
        "X": rng.normal(size=n),
    }
    arrays = {
        name: jnp.tile(jnp.asarray(row, dtype=kernels.dtype)[None, :, None], (tiles, 1, LANES))
        for name, row in rows.items()
    }
    Q, flags = arrays["Q"], jnp.ones((tiles, 1, LANES), dtype=jnp.int32)
    data = LoopData(arrays["K"], Q, Q, Q, Q[:, :1], Q[:, :1], scaled=False)
    return data, arrays["R"], LoopState.before(arrays["X"], flags, UNCHECKED)


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
