"""How long a call takes on the device, and how fast the device copies memory.

A measurement is a median over repeats.  Compilation and the first call are reported on their own,
and short calls are timed several at a time so that neither clock nor launch overhead counts.
"""

from __future__ import annotations

import math
import os
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import jax
import jax.numpy as jnp

from warpmpc._errors import SettingsError

WINDOW_S = 0.02  # one timing lasts at least this long, if MAX_CALLS allow
BUDGET_S = 0.6  # all repeats together, unless told otherwise
MAX_CALLS = 200
_COPY_BYTES = {"gpu": 1 << 30, "cpu": 1 << 28}  # far beyond any cache


@dataclass(frozen=True)
class Timing:
    """Seconds per call.

    Attributes:
        median_s: Median over the repeats.
        best_s: Fastest repeat.
        calls: Calls per repeat.
        repeats: Number of repeats.
        first_call_s: Compilation and first call; not part of the others.
    """

    median_s: float
    best_s: float
    calls: int
    repeats: int
    first_call_s: float


class Accuracy(Protocol):
    """How well a batch was solved: a dataclass of its benchmark."""

    @property
    def correct(self) -> bool:
        """Whether the row may be shown."""
        ...


@dataclass(frozen=True)
class Measured:
    """What was measured for one row.

    Attributes:
        times: Timing by name: "factor", "solve", ...
        settings: Settings of the run.
        accuracy: Accuracy of the solutions of the same run.
        bytes_counted: Least traffic of one unit, by name of the timing; empty if not known.
        memory: Most bytes that live at once, and bytes of the data themselves.
        units: Units of work per instance and call, which the rates count.
        details: Further fields of the row.
    """

    times: dict[str, Timing]
    settings: dict[str, Any]
    accuracy: Accuracy
    bytes_counted: dict[str, int] = field(default_factory=dict)
    memory: Mapping[str, int | None] | None = None
    units: int = 1
    details: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class CompiledProgram:
    """A compiled JAX function.

    Attributes:
        call: Runs it; shapes and dtypes are those it was built for.
        first_call_s: Seconds until the first result, compilation included.
        memory_bytes: Arguments, results and temporaries together; None if the backend cannot tell.
        compile_s: Seconds of tracing and compilation alone, kernels included.
        peak_bytes: Most memory that the allocator held during the first call; None if it does not
            tell, or held more before.
    """

    call: Callable[..., Any]
    first_call_s: float
    memory_bytes: int | None
    compile_s: float = 0.0
    peak_bytes: int | None = None


def build(
    function: Callable[..., Any], *args: Any, donated: bool = False
) -> tuple[CompiledProgram, Any]:
    """Compiles a function for these arguments and calls it once; returns its result, too.

    Args:
        function: Function to compile.
        args: Arguments of the call.
        donated: Whether the function takes over the memory of all of them.
    """
    start = time.perf_counter()
    given_away = tuple(range(len(args))) if donated else ()
    compiled = jax.jit(function, donate_argnums=given_away).lower(*args).compile()
    ready = time.perf_counter()
    before = allocator_peak_bytes()
    result = jax.block_until_ready(compiled(*args))
    seconds = time.perf_counter() - start
    peak = allocator_peak_bytes()
    raised = before is not None and peak is not None and peak > before
    memory = (_memory_bytes(compiled), ready - start, peak if raised else None)
    return CompiledProgram(compiled, seconds, *memory), result


def _memory_bytes(compiled: Any) -> int | None:
    stats = compiled.memory_analysis()
    if stats is None:
        return None
    parts = ("argument_size_in_bytes", "output_size_in_bytes", "temp_size_in_bytes")
    return sum(getattr(stats, part) for part in parts) - stats.alias_size_in_bytes


def measure(
    call: Callable[..., Any],
    *args: Any,
    repeats: int = 5,
    first_call_s: float = 0.0,
    budget_s: float = BUDGET_S,
) -> Timing:
    """Times a call that has run before; results are waited for.

    Args:
        call: Function to time; JAX arrays in its result are waited for.
        args: Handed to it.
        repeats: Number of timings, fewer where they would exceed `budget_s`.
        first_call_s: Passed on to the result.
        budget_s: Seconds for all repeats together; a slower call is timed once.
    """
    once = _elapsed(call, args, 1)
    if once > budget_s:
        return Timing(once, once, 1, 1, first_call_s)
    calls = min(max(math.ceil(WINDOW_S / max(once, 1e-9)), 1), MAX_CALLS)
    repeats = max(min(repeats, int(budget_s / (once * calls))), 1)
    seconds = [_elapsed(call, args, calls) / calls for _ in range(repeats)]
    return Timing(statistics.median(seconds), min(seconds), calls, repeats, first_call_s)


def _elapsed(call: Callable[..., Any], args: tuple[Any, ...], calls: int) -> float:
    result = None
    start = time.perf_counter()
    for _ in range(calls):
        result = call(*args)
    jax.block_until_ready(result)
    return time.perf_counter() - start


def copy_bandwidth(n_bytes: int | None = None) -> float:
    """Bytes per second that the default device reads and writes in an elementwise copy."""
    n_bytes = n_bytes or _COPY_BYTES.get(jax.default_backend(), _COPY_BYTES["cpu"])
    source = jnp.zeros(n_bytes // 4, dtype="float32")
    target = [jnp.zeros_like(source)]
    # The target is handed over to be written again: fresh memory would cost page faults on a host.
    # Adding one keeps the compiler from dropping the copy.
    copy = jax.jit(lambda x, y: x + 1, donate_argnums=1, keep_unused=True)

    def call() -> jax.Array:
        target[0] = copy(source, target[0])
        return target[0]

    jax.block_until_ready(call())
    return 2 * n_bytes / measure(call).best_s


def use_cores(count: int) -> None:
    """Confines this process to its first CPU cores, threads that already run included."""
    allowed = sorted(os.sched_getaffinity(0))
    if not 1 <= count <= len(allowed):
        raise SettingsError(
            f"This process may use 1 to {len(allowed)} CPU cores, not {count}; "
            "`nproc` tells how many there are."
        )
    for thread in os.listdir("/proc/self/task"):
        os.sched_setaffinity(int(thread), allowed[:count])


def device_memory_bytes() -> int | None:
    """Memory that JAX may use on the default device, or the host's if it is the CPU."""
    stats = jax.devices()[0].memory_stats()
    if stats and "bytes_limit" in stats:
        return int(stats["bytes_limit"])
    if jax.default_backend() == "cpu":
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return None


def allocator_peak_bytes() -> int | None:
    """Most memory the device's allocator has held since the process began; it cannot be reset."""
    stats = jax.devices()[0].memory_stats()
    return int(stats["peak_bytes_in_use"]) if stats and "peak_bytes_in_use" in stats else None
