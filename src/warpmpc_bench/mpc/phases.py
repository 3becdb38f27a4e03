"""Where the time of a closed loop goes: the kernels on the device's timeline, phase by phase.

Reads: a trace of JAX's profiler.  Produces: seconds and shares of the phases of an SQP iteration.
On CUDA these are the device's own times of all kernels and copies; on the CPU those of our kernels,
and what is left of the call is the rest.
"""

from __future__ import annotations

import re
import tempfile
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax

from warpmpc_bench.common.record import Row
from warpmpc_bench.common.timing import CompiledProgram

# Phase of a kernel: the first one of which a part is in the kernel's name.  What matches nothing is
# XLA's own: layout, products, the simulated system.
PHASES: dict[str, tuple[str, ...]] = {
    "admm": ("admm",),
    "linearize_factor": ("linearize", "factor"),
    "line_search": ("evaluate", "search"),
}
REST = "rest"
_NAMED = 8  # kernels of the rest that a row lists
# What Warp adds to the name of a kernel.
_ADDED = re.compile(r"^.*__locals__|_[0-9a-f]{8}_cuda_kernel_forward$|_\d+$")
_CUSTOM_CALL = re.compile(r'%?([\w.\-]+) = .*custom-call\(.*custom_call_target="([^"]+)"')


class Event(NamedTuple):
    """Something that ran, in nanoseconds."""

    name: str
    start: float
    duration: float


def phase_of(kernel: str) -> str:
    """The phase that a kernel belongs to."""
    for phase, parts in PHASES.items():
        if any(part in kernel for part in parts):
            return phase
    return REST


def measure_phases(program: CompiledProgram, args: Sequence[Any], iterations: int) -> Row:
    """Runs a program once more under the profiler.

    Args:
        program: Compiled, and called before.
        args: Arguments of the call.
        iterations: SQP iterations of one call, over all of its steps.

    Returns:
        "source", "iterations", "span_s" (first to last event), "seconds" and "shares" by phase,
        "launches" (of kernels and copies; on the CPU of ours), "idle_share" (nothing runs; None on
        the CPU), "other_share" (all but ADMM), "kernels" (calls and seconds of ours and the longest
        of the rest) and "reason": None, or why all the others
        are.
    """
    try:
        profile, wall = _trace(program, args)
    except Exception as error:
        # A profiler that is locked or missing on a machine must not cost the measurement.
        return _unknown(f"the profiler failed: {type(error).__name__}: {error}"[:300])
    if jax.default_backend() == "gpu":
        return device_phases(_device_events(profile), iterations)
    compiled: Any = program.call
    return host_phases(_host_events(profile, compiled.as_text()), wall, iterations)


def device_phases(events: Sequence[Event], iterations: int) -> Row:
    """Phases from all that ran on a device."""
    if not events:
        return _unknown("the trace holds no event of a device")
    span = max(e.start + e.duration for e in events) - min(e.start for e in events)
    idle = span - covered(events)
    return _row("device events", events, _seconds(events), span, idle, iterations)


def host_phases(events: Sequence[Event], wall: float, iterations: int) -> Row:
    """Phases from our kernels and the seconds of the whole call: all else is the rest."""
    if not events:
        return _unknown("the trace of this backend does not show kernels")
    seconds = _seconds(events)
    seconds[REST] = max(wall - sum(seconds.values()), 0.0)
    return _row("host events", events, seconds, 1e9 * wall, None, iterations)


def covered(events: Iterable[Event]) -> float:
    """Nanoseconds during which at least one event runs."""
    total, until = 0.0, float("-inf")
    for event in sorted(events, key=lambda e: e.start):
        end = event.start + event.duration
        total += max(end - max(event.start, until), 0.0)
        until = max(until, end)
    return total


def _seconds(events: Iterable[Event]) -> dict[str, float]:
    seconds = dict.fromkeys((*PHASES, REST), 0.0)
    for event in events:
        seconds[phase_of(event.name)] += 1e-9 * event.duration
    return seconds


def _row(
    source: str,
    events: Sequence[Event],
    seconds: dict[str, float],
    span: float,
    idle: float | None,
    iterations: int,
) -> Row:
    shares = {phase: 1e9 * value / span for phase, value in seconds.items()}
    return {
        "source": source,
        "iterations": iterations,
        "span_s": 1e-9 * span,
        "seconds": seconds,
        "shares": shares,
        "launches": len(events),
        "idle_share": None if idle is None else idle / span,
        "other_share": 1 - shares["admm"],
        "kernels": _longest(events),
        "reason": None,
    }


# Phases of a solve that is one launch, by the names of `MPCSolver.phase_cycles`.
INSIDE = {
    "linearize": "linearize_factor",
    "factor": "linearize_factor",
    "couple": "linearize_factor",
    "admm": "admm",
    "report": "line_search",
    "search": "line_search",
}
ONCHIP = "onchip_solve"


def split_launch(row: Row, cycles: dict[str, float]) -> Row:
    """Phases where a whole solve is one launch: by the cycles that were counted inside it.

    Args:
        row: Result of `measure_phases`, which counts the launch as a part of the rest.
        cycles: Cycles by phase inside the launch; all zero where nothing could be counted.
    """
    launch, total = row["kernels"].get(ONCHIP, [0, 0.0])[1], sum(cycles.values())
    if not total:
        return _unknown("a solve is one launch, and this device has no clock inside it")
    seconds = dict(row["seconds"])
    seconds[REST] -= launch
    for name, count in cycles.items():
        seconds[INSIDE[name]] += launch * count / total
    shares = {phase: value / row["span_s"] for phase, value in seconds.items()}
    more = {"source": f"{row['source']}, cycles inside the launch", "cycles": cycles}
    return {**row, "seconds": seconds, "shares": shares, "other_share": 1 - shares["admm"], **more}


def _unknown(reason: str) -> Row:
    names = ("source", "iterations", "span_s", "seconds", "shares", "launches", "idle_share")
    return {**dict.fromkeys((*names, "other_share", "kernels")), "reason": reason}


def _longest(events: Iterable[Event]) -> dict[str, list[float]]:
    """Calls and seconds of our kernels and of those of the rest that take longest, by name."""
    found: dict[str, list[float]] = {}
    for event in events:
        calls_seconds = found.setdefault(_ADDED.sub("", event.name), [0, 0.0])
        calls_seconds[0] += 1
        calls_seconds[1] += 1e-9 * event.duration
    longest = sorted(found.items(), key=lambda item: -item[1][1])
    ours = [item for item in longest if _is_ours(item[0])]
    rest = [item for item in longest if not _is_ours(item[0])]
    return dict(ours + rest[:_NAMED])


def _is_ours(kernel: str) -> bool:
    return phase_of(kernel) != REST or kernel == ONCHIP


def _trace(program: CompiledProgram, args: Sequence[Any]) -> tuple[Any, float]:
    """A trace of one call, and the seconds of the call."""
    options = jax.profiler.ProfileOptions()
    options.python_tracer_level = 0  # its events are many, and slow the host down
    with tempfile.TemporaryDirectory() as folder:
        with jax.profiler.trace(folder, profiler_options=options):
            start = time.perf_counter()
            jax.block_until_ready(program.call(*args))
            wall = time.perf_counter() - start
        (file,) = Path(folder).rglob("*.xplane.pb")
        return jax.profiler.ProfileData.from_file(str(file)), wall


def _device_events(profile: Any) -> list[Event]:
    """All that the streams of a CUDA device did; other lines of the trace repeat it by groups."""
    return [
        Event(event.name, event.start_ns, event.duration_ns)
        for plane in profile.planes
        if plane.name.startswith("/device:GPU")
        for line in plane.lines
        if line.name.startswith("Stream")
        for event in line.events
    ]


def _host_events(profile: Any, program_text: str) -> list[Event]:
    """Our kernels: the trace has instructions of the program, the program their kernels."""
    kernels = dict(_CUSTOM_CALL.findall(program_text))
    return [
        Event(kernels[event.name], event.start_ns, event.duration_ns)
        for plane in profile.planes
        if plane.name == "/host:CPU"
        for line in plane.lines
        for event in line.events
        if event.name in kernels
    ]
