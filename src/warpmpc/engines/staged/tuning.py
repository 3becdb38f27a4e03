"""Choice of the fastest shape of the staged kernels: measured on the device, stored on disk.

Reads: kernels, and a function that measures them.  Produces: the fastest `StagedShape` for a range
of batch sizes (tiles up to a power of two), stored beside generated code for later processes.
"""

from __future__ import annotations

import hashlib
import json
import logging
import time
import warnings
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Protocol

import jax
import jax.numpy as jnp
import numpy as np

from warpmpc._errors import CodegenError
from warpmpc.codegen.cache import load_text, store_text
from warpmpc.engines.runtime.admm_loop import UNCHECKED, LoopData, LoopLimits, LoopState
from warpmpc.engines.runtime.batching import LANES
from warpmpc.engines.staged.launch import (
    StagedKernels,
    StagedShape,
)

_LOG = logging.getLogger(__name__)
# Alternatives to the model's choice, which are tried one field after the other.
_REGISTERS = {"float32": (64, 128, 255), "float64": (128, 255)}
_BLOCKS = (32, 64, 128)
_GAIN = 0.02  # a smaller gain is noise


@dataclass(frozen=True)
class Measured:
    """A shape and the seconds it took."""

    shape: StagedShape
    seconds: float


class Measure(Protocol):
    """Measures kernels."""

    def __call__(self, kernels: StagedKernels, tiles: int) -> float:
        """Seconds for a number of tiles."""
        ...


class ShapeStore:
    """Measured shapes of one program on one device, in the folder of generated code."""

    def __init__(self, content: str, device: str):
        """Nothing is read yet.

        Args:
            content: Everything that determines the kernels.
            device: Name of the device.
        """
        self._key = hashlib.sha256(f"{content}\n{device}".encode()).hexdigest()
        self._device = device
        self._own: dict[int, StagedShape] = {}  # needed where the folder cannot be written

    def get(self, tiles: int) -> StagedShape | None:
        """The fastest measured shape for about this number of tiles, if there is one."""
        return (self._own if _range_of(tiles) in self._own else self._read()).get(_range_of(tiles))

    def put(self, tiles: int, shape: StagedShape) -> None:
        """Stores a shape, also for later processes."""
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
    """Exponent of the smallest power of two that is at least the number of tiles."""
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
    """The fastest shape, or one tried earlier that is equally fast up to noise."""
    least = min(found.values())
    return next(shape for shape, seconds in found.items() if seconds <= (1 + _GAIN) * least)


class LoopTimer:
    """Measures a factorisation and some iterations in seconds, on synthetic data."""

    def __init__(
        self, iterations: int, repeats: int = 5, clock: Callable[[], float] = time.perf_counter
    ):
        """Measures nothing yet.

        Args:
            iterations: ADMM iterations.
            repeats: Number of calls, of which the fastest counts.
            clock: Seconds since some time.
        """
        self._limits = LoopLimits(check_every=0, span=iterations, max_iter=iterations)
        self._repeats, self._clock = repeats, clock

    def __call__(self, kernels: StagedKernels, tiles: int) -> float:
        """Best time of the kernels in the shape they have; compilation does not count."""
        # Also while something is being traced: these are values, not part of the trace.
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
        kernels: Kernels that determine the shapes of the arrays.
        tiles: Number of tiles.
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
