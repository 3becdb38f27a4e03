"""The one place where Warp kernels become JAX calls.

Keeps version differences of JAX and Warp, launch geometry and static arguments in one file.
"""

from __future__ import annotations

import atexit
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import warp as wp
from jax.custom_batching import custom_vmap
from jax.extend.core import ClosedJaxpr, jaxpr_as_fun

from warpmpc._errors import CodegenError
from warpmpc.codegen.kernel_source import KernelSource
from warpmpc.engines.runtime.host import host
from warpmpc.engines.runtime.loading import load_kernel, load_together

Shape = tuple[int, ...]

# Warp prints a line about itself and every module it loads; a library should not.
if wp.config.log_level == wp.LOG_INFO:
    wp.config.log_level = wp.LOG_WARNING

# Without a CUDA device these are the values of an H200, so that the CPU builds the same kernels.
_HOPPER_SHARED_MEMORY = 227 * 1024
_HOPPER_MULTIPROCESSORS = 132
_HOPPER_L2 = 60 * 2**20


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
        dispatcher = host()
        if dispatcher is not None:
            names = [a.name for a in (*kernel.inputs, *kernel.outputs) if a.name not in outputs]
            given = dict(zip(names, inputs, strict=True))
            return tuple(dispatcher.launch(kernel, given, outputs, threads))
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


def load_all(kernels: Sequence[tuple[KernelSource, int]]) -> None:
    """Builds or loads several kernels at the same time, each once.

    Args:
        kernels: Each with its threads per block, as in `launch`.
    """
    load_together(list(dict.fromkeys((form(source), block) for source, block in kernels)))


def form(source: KernelSource) -> wp.Kernel:
    """What of a declared kernel is compiled for the default device: the entry, on the CPU."""
    return source.kernel() if host() is None else source.entry()


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


def fold_vmap(function: Callable[..., Any], n_shared: int = 0) -> Callable[..., Any]:
    """A function of batches that `jax.vmap` calls with one larger batch.

    Arguments and results are arrays, or trees of arrays, with the batch first.  Warp's own batching
    would also replicate the index tables inside a kernel call and read them wrongly.

    Args:
        function: A function of batches.
        n_shared: How many of its first arguments may have a batch of one that all instances share;
            unless they are mapped it stays one.
    """

    def folded(*args: Any) -> Any:
        # A branch on a mapped predicate maps even constants, and `custom_vmap` cannot have its own
        # mapped: they become arguments, which the rule leaves out because it traces anew.
        program, shapes = jax.make_jaxpr(function, return_shape=True)(*args)

        @custom_vmap
        def call(constants: list[Any], *args: Any) -> Any:
            closed = ClosedJaxpr(program.jaxpr, constants)
            return jax.tree.unflatten(
                jax.tree.structure(shapes), jaxpr_as_fun(closed)(*jax.tree.leaves(args))
            )

        @call.def_vmap
        def rule(size: int, mapped: list[Any], _: list[Any], *args: Any) -> tuple[Any, Any]:
            pairs = list(zip(args, mapped[1:], strict=True))
            batch = _batch_size(*pairs[n_shared])
            shared = [_fold_shared(*pair, size, batch) for pair in pairs[:n_shared]]
            result = folded(*shared, *(_fold(*pair, size) for pair in pairs[n_shared:]))
            result = jax.tree.map(
                lambda a: a.reshape(size, a.shape[0] // size, *a.shape[1:]), result
            )
            return result, jax.tree.map(lambda _: True, result)

        return call(program.consts, *args)

    return folded


def _batch_size(tree: Any, mapped: Any) -> int:
    """Instances before the axis of `jax.vmap` is folded in."""
    return jax.tree.leaves(tree)[0].shape[1 if jax.tree.leaves(mapped)[0] else 0]


def _fold(tree: Any, mapped: Any, size: int) -> Any:
    """Arrays ``[size, batch, ...]``, or ``[batch, ...]`` if not mapped, as one batch."""

    def fold(array: jax.Array, mapped: bool) -> jax.Array:
        full = array if mapped else jnp.broadcast_to(array, (size, *array.shape))
        return full.reshape(size * full.shape[1], *full.shape[2:])

    return jax.tree.map(fold, tree, mapped)


def _fold_shared(tree: Any, mapped: Any, size: int, batch: int) -> Any:
    """The same for what all instances share; one for each of them if it is mapped."""

    def fold(array: jax.Array, mapped: bool) -> jax.Array:
        if not mapped and array.shape[0] == 1:
            return array
        before = (size,) if mapped else ()
        of_all = (*before, batch, *array.shape[len(before) + 1 :])
        return _fold(jnp.broadcast_to(array, of_all), mapped, size)

    return jax.tree.map(fold, tree, mapped)


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
