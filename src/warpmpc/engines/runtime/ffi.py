"""The one place where kernels become JAX calls, on CUDA and on the CPU.

Keeps version differences of JAX and Warp, launch geometry and static arguments in one file.

On CUDA Warp launches a kernel.  On the CPU every launch is shared by the cores, and no Python runs
below XLA: `Host` makes entries of kernels (`KernelSource.entry`) known to the dispatcher
(`codegen.native.dispatcher`).  Warp compiles both; nothing else of Warp is needed to run them.
Where the dispatcher cannot be had (no POSIX threads, another interface of XLA), `host` is None, the
log has one line about it, and kernels go through Warp's own launch, one thread at a time.
"""

from __future__ import annotations

import atexit
import ctypes
import hashlib
import logging
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import warp as wp

from warpmpc._errors import CodegenError, SettingsError
from warpmpc.codegen.cache import load_module
from warpmpc.codegen.kernel_source import LANES, KernelSource
from warpmpc.codegen.native import dispatcher
from warpmpc.codegen.native.dispatcher import EXPORTS, IMPORTS, NUMBER, OPERAND, RESULT
from warpmpc.engines.runtime.loading import load_kernel, load_together

Shape = tuple[int, ...]

# Warp prints a line about itself and every module it loads; a library should not.
if wp.config.log_level == wp.LOG_INFO:
    wp.config.log_level = wp.LOG_WARNING

# Without a CUDA device these are the values of an H200, so that the CPU builds the same kernels.
_HOPPER_SHARED_MEMORY = 227 * 1024
_HOPPER_MULTIPROCESSORS = 132
_HOPPER_L2 = 60 * 2**20

THREADS_VARIABLE = "WARPMPC_THREADS"
TARGET = "warpmpc__"  # before the name of a kernel, which shows in programs and traces
_LOG = logging.getLogger(__name__)
_MOST_THREADS = 1024
_CACHES = Path("/sys/devices/system/cpu/cpu0/cache")
_wanted: int | None = None


@cache
def _jax_kernel(kernel: wp.Kernel, n_outputs: int, block_dim: int, in_out: tuple[str, ...]):
    return wp.jax_kernel(
        kernel, num_outputs=n_outputs, block_dim=block_dim, in_out_argnames=list(in_out)
    )


def launch(
    kernel: wp.Kernel | KernelSource,
    inputs: list[jax.Array | int],
    outputs: Mapping[str, Shape],
    *,
    threads: int,
    block: int,
    in_out: tuple[str, ...] = (),
) -> tuple[jax.Array, ...]:
    """Runs a kernel on JAX arrays, under `jax.jit` or outside; integers are static arguments.

    Args:
        kernel: A declared kernel, or one of Warp; inputs precede what it changes, which precedes
            its outputs.
        inputs: Arrays and static scalars in the kernel's order.
        outputs: Shape of each output, keyed by argument name.
        threads: Number of threads, a multiple of `block`.
        block: Threads per block on CUDA.
        in_out: Names of the inputs that the kernel changes; their new values are returned first.
    """
    if isinstance(kernel, KernelSource):
        running = host()
        if running is not None:
            names = [a.name for a in (*kernel.inputs, *kernel.outputs) if a.name not in outputs]
            given = dict(zip(names, inputs, strict=True))
            return tuple(running.launch(kernel, given, outputs, threads))
        kernel = kernel.kernel()
    load_kernel(kernel, block)
    _wait_at_exit()
    call = _jax_kernel(kernel, len(in_out) + len(outputs), block, in_out)
    return tuple(call(*inputs, output_dims=dict(outputs), launch_dims=(threads,)))


def run(
    source: KernelSource,
    given: Mapping[str, jax.Array | int],
    outputs: Mapping[str, Shape],
    *,
    threads: int,
    block: int,
) -> dict[str, jax.Array]:
    """Runs a declared kernel; its arguments have the order of the declaration.

    Args:
        source: The declaration.
        given: Arguments that the kernel reads or changes, by name.
        outputs: Shapes of the arguments that it only writes, by name.
        threads: Number of threads, a multiple of `block`.
        block: Threads per block on CUDA.

    Returns:
        What the kernel changed, then what it wrote, by name.
    """
    names = [argument.name for argument in (*source.inputs, *source.outputs)]
    if sorted(names) != sorted([*given, *outputs]):
        raise CodegenError(
            f"{source.name} takes {', '.join(names)}; got {', '.join([*given, *outputs])}."
        )
    changed = tuple(a.name for a in source.outputs if a.name in given)
    written = {name: outputs[name] for name in names if name in outputs}
    inputs = [given[name] for name in names if name in given]
    found = launch(source, inputs, written, threads=threads, block=block, in_out=changed)
    return dict(zip([*changed, *written], found, strict=True))


def load_all(kernels: Sequence[tuple[KernelSource, int]], lanes: int = LANES) -> None:
    """Builds or loads several kernels at the same time, each once.

    Args:
        kernels: Each with its threads per block, as in `launch`.
        lanes: Lanes of their tiles.
    """
    load_together(list(dict.fromkeys((form(source, lanes), block) for source, block in kernels)))


def form(source: KernelSource, lanes: int = LANES) -> wp.Kernel:
    """What of a declared kernel is compiled for the default device: the entry, on the CPU."""
    if host() is None:
        return source.kernel()
    return source.entry(lanes if source.any_lanes else LANES)


@cache
def _wait_at_exit() -> None:
    """Has the interpreter wait for running kernels before it shuts down.

    Kernels are launched by Python code.  While XLA waits for them at the very end, holding the
    interpreter, they would wait for the interpreter.
    """
    atexit.register(_wait)


def _wait() -> None:
    with suppress(Exception):  # a failed computation can no longer be reported
        jax.block_until_ready(jax.live_arrays())
    # Computations whose results are no longer referenced run, too: a device processes the work of
    # a thread in order, so that another piece of work ends after all earlier ones.
    for device in jax.local_devices():
        with suppress(Exception):
            jax.block_until_ready(jax.jit(jnp.negative)(jax.device_put(0.0, device)))


class Host:
    """The dispatcher of this process."""

    def __init__(self) -> None:
        """Compiles the dispatcher, or loads it, and hands its handler to XLA."""
        library = ctypes.CDLL(None)
        imports = [ctypes.cast(getattr(library, name), ctypes.c_void_p).value for name in IMPORTS]
        # What is compiled must stay as long as the process: programs of XLA call it.
        self._kernels: dict[str, wp.Kernel] = {}
        self._kernel = _dispatcher_kernel()
        load_kernel(self._kernel, 1)
        found = _written(self._kernel, len(EXPORTS), imports)
        address = dict(zip(EXPORTS, found, strict=True))
        prototype = ctypes.CFUNCTYPE
        self._put = prototype(None, ctypes.c_int64, ctypes.c_int64)(address["put"])
        self._set_limit = prototype(None, ctypes.c_int)(address["set_limit"])
        self._stop = prototype(None)(address["stop"])
        self._count = prototype(ctypes.c_int)(address["count"])
        kinds = (ctypes.c_int64, ctypes.c_void_p, ctypes.c_int, ctypes.c_int)
        self._launch = prototype(ctypes.c_int, *kinds)(address["launch"])
        self._spent = prototype(ctypes.c_int64)(address["spent"])
        capsule = jax.ffi.pycapsule(ctypes.c_void_p(address["handle"]).value)
        jax.ffi.register_ffi_target(TARGET, capsule, platform="cpu")  # fails at once, if at all
        self._capsule, self._targets = capsule, set[str]()
        self.set_limit(cpu_threads())
        atexit.register(self.stop)

    def set_limit(self, count: int) -> None:
        """At most so many threads are at work in kernels at a time."""
        self._set_limit(count)

    def stop(self) -> None:
        """Ends the helping threads; the next launch that is worth it starts new ones."""
        self._stop()

    @property
    def helpers(self) -> int:
        """Threads that have been started."""
        return self._count()

    @property
    def seconds(self) -> float:
        """Time of all launches so far, from the first piece to the last."""
        return 1e-9 * self._spent()

    def target(self, source: KernelSource) -> str:
        """The name under which XLA knows the handler for this kernel."""
        name = TARGET + source.name
        if name not in self._targets:
            jax.ffi.register_ffi_target(name, self._capsule, platform="cpu")
            self._targets.add(name)
        return name

    def know(self, source: KernelSource, lanes: int = LANES) -> int:
        """Compiles or loads the entry of a kernel; returns the number it is called by."""
        kernel, content = source.entry(lanes), source.entry_key(lanes)
        load_kernel(kernel, 1)
        (address,) = _written(kernel, 1)
        key = int(content[:15], 16) + 1
        self._put(key, address)
        self._kernels[content] = kernel
        return key

    def launch(
        self,
        source: KernelSource,
        given: Mapping[str, jax.Array | int],
        outputs: Mapping[str, tuple[int, ...]],
        threads: int,
    ) -> Sequence[jax.Array]:
        """What a kernel changes, then what it writes; see `ffi.run`."""
        arrays = {n: value for n, value in given.items() if not isinstance(value, int)}
        operands, declared = list(arrays), [*source.inputs, *source.outputs]
        changed = [a.name for a in source.outputs if a.name in given]
        results = [*changed, *outputs]
        lanes = source.lanes_of(next(iter(arrays.values())).shape)
        plan = [self.know(source, lanes), threads, source.merged_threads, len(declared)]
        for name in (a.name for a in declared):
            if name in results:
                plan += [RESULT, results.index(name)]
            elif name in arrays:
                plan += [OPERAND, operands.index(name)]
            else:
                value: Any = given[name]
                plan += [NUMBER, int(value)]
        kinds = {a.name: a.array_dtype(source.dtype) for a in declared if a.kind != "number"}
        shapes = {**{n: arrays[n].shape for n in changed}, **outputs}
        call = jax.ffi.ffi_call(
            self.target(source),
            [jax.ShapeDtypeStruct(shapes[name], kinds[name]) for name in results],
            input_output_aliases={operands.index(name): i for i, name in enumerate(changed)},
        )
        return call(*arrays.values(), plan=np.array(plan, dtype=np.int64))

    def launch_arrays(
        self, source: KernelSource, given: Sequence[np.ndarray | int], threads: int
    ) -> None:
        """Runs a kernel on arrays of the host, without XLA.

        Args:
            source: The declaration.
            given: All arguments in its order; arrays are contiguous and have the right types.
            threads: Number of threads.
        """
        kept: list[Any] = [
            ctypes.c_int(value)
            if isinstance(value, int)
            else _Array(value.ctypes.data, (ctypes.c_int * 3)(*value.shape))
            for value in given
        ]
        pointers = (ctypes.c_void_p * len(kept))(*map(ctypes.addressof, kept))
        lanes = source.lanes_of(next(a.shape for a in given if not isinstance(a, int)))
        self._launch(self.know(source, lanes), pointers, threads, source.merged_threads)


class _Array(ctypes.Structure):
    """An array as entries of kernels get it."""

    _fields_ = (("data", ctypes.c_void_p), ("shape", ctypes.c_int * 3))


@cache
def host() -> Host | None:
    """The dispatcher, if kernels run on the CPU and it can be had."""
    if jax.default_backend() != "cpu":
        return None
    try:
        return Host()
    except Exception as error:  # whatever another version of Warp or JAX does differently
        _LOG.warning("Kernels run in one thread, by Warp's own launch: %s", error)
        return None


def _dispatcher_kernel() -> wp.Kernel:
    """A kernel that takes addresses of `IMPORTS` and writes those of `EXPORTS`."""
    key = hashlib.sha256((dispatcher.MODULE + dispatcher.BODY).encode()).hexdigest()
    module = load_module(
        "dispatcher", key, lambda: dispatcher.MODULE.format(key=key, body=dispatcher.BODY)
    )
    return module.dispatcher


def _written(kernel: wp.Kernel, count: int, given: Sequence[int | None] = ()) -> list[int]:
    """Numbers that a kernel writes."""
    found = np.zeros(count, dtype=np.int64)
    outputs = [wp.array(found, dtype=wp.int64, device="cpu", copy=False)]
    inputs = [wp.array(np.array(given, dtype=np.int64), device="cpu")] if given else []
    wp.launch(kernel, dim=1, inputs=inputs, outputs=outputs, device="cpu")
    return found.tolist()


def set_cpu_threads(count: int | None) -> None:
    """Sets how many threads share a launch on the CPU, for all solvers of this process.

    Results do not depend on it, and nothing is compiled anew.

    Args:
        count: Number of threads, 1 for the calling one alone.  None: `WARPMPC_THREADS` of the
            environment, or as many as this process may use cores.
    """
    global _wanted
    _wanted = None if count is None else _checked(count, "The number of CPU threads")
    running = host()
    if running is not None:
        running.set_limit(cpu_threads())


def cpu_threads() -> int:
    """How many threads share a launch on the CPU; see `set_cpu_threads`."""
    if _wanted is not None:
        return _wanted
    given = os.environ.get(THREADS_VARIABLE)
    if given:
        return _checked(given, THREADS_VARIABLE)
    return min(usable_cores(), _MOST_THREADS)


def _checked(given: Any, name: str) -> int:
    try:
        count = int(given)
    except (TypeError, ValueError):
        count = 0
    if isinstance(given, float | bool) or not 1 <= count <= _MOST_THREADS:
        raise SettingsError(f"{name} must be a number from 1 to {_MOST_THREADS}, got {given!r}.")
    return count


def usable_cores() -> int:
    """Cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


@cache
def core_cache() -> int:
    """Bytes of the largest cache that a core has for itself, the second level; 1 MiB if unknown."""
    try:
        for folder in sorted(_CACHES.glob("index*")):
            if (folder / "level").read_text().strip() == "2":
                return int((folder / "size").read_text().strip().removesuffix("K")) * 1024
    except (OSError, ValueError):
        pass
    return 2**20


def has_gpu() -> bool:
    """Whether the default device is a GPU."""
    return jax.default_backend() == "gpu"


def has_async_copies() -> bool:
    """Whether the default device can copy to shared memory in the background (or is no GPU)."""
    return not has_gpu() or _default_cuda_device().arch >= 80


def _default_cuda_device() -> wp.Device:
    # The first of all devices may belong to another process.
    return wp.device_from_jax(jax.local_devices()[0])


def shared_memory_limit() -> int:
    """Bytes of shared memory that one block may use on the default device.

    Without a CUDA device the limit of Hopper, so that the same kernels are built for the CPU.
    """
    if not has_gpu():
        return _HOPPER_SHARED_MEMORY
    return int(_default_cuda_device().max_shared_memory_per_block)


def multiprocessors() -> int:
    """Multiprocessors of the default device."""
    if not has_gpu():
        return _HOPPER_MULTIPROCESSORS
    return int(_default_cuda_device().sm_count)


def l2_bytes() -> int:
    """Size of the L2 cache: an H200's, because neither Warp nor JAX reports it."""
    return _HOPPER_L2
