"""Kernels are launched by Warp alone, JAX stays on the CPU: for tools that watch a process.

    with warp_only():
        solver.solve(x0)

Profilers and sanitizers then find our kernels and nothing of XLA, which some of them do not
survive.  Set ``JAX_PLATFORMS=cpu``.  Without a CUDA device the kernels run on the CPU, as they do
anyway.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

import jax
import numpy as np
import warp as wp

from warpmpc.engines.runtime import ffi

# A callback that looks at its arguments would wait for the thread that it keeps busy.
jax.config.update("jax_cpu_enable_async_dispatch", False)


def launch(
    kernel: wp.Kernel,
    inputs: list[Any],
    outputs: dict[str, tuple[int, ...]],
    *,
    threads: int,
    block: int,
    in_out: tuple[str, ...] = (),
) -> tuple[jax.Array, ...]:
    """Takes the place of `engines.runtime.ffi.launch`."""
    arrays = [value for value in inputs if isinstance(value, jax.Array)]
    kinds = {argument.label: argument.type for argument in kernel.adj.args}
    changed = arrays[len(arrays) - len(in_out) :]
    shapes = [jax.ShapeDtypeStruct(array.shape, array.dtype) for array in changed]
    dtypes = {name: np.dtype(wp.dtype_to_numpy(kinds[name].dtype)) for name in outputs}
    shapes += [jax.ShapeDtypeStruct(shape, dtypes[name]) for name, shape in outputs.items()]
    is_array = [isinstance(value, jax.Array) for value in inputs]

    def run(*values: np.ndarray) -> tuple[np.ndarray, ...]:
        device, given = wp.get_preferred_device(), iter(values)
        arguments = [
            wp.array(np.asarray(next(given)), device=device) if there else value
            for there, value in zip(is_array, inputs, strict=True)
        ]
        new = [
            wp.zeros(shape, dtype=kinds[name].dtype, device=device)
            for name, shape in outputs.items()
        ]
        wp.launch(kernel, dim=threads, inputs=[*arguments, *new], device=device, block_dim=block)
        kept = arguments[len(arguments) - len(in_out) :] if in_out else []
        return tuple(array.numpy() for array in (*kept, *new))

    return tuple(jax.pure_callback(run, tuple(shapes), *arrays))


@contextmanager
def warp_only() -> Iterator[None]:
    """Replaces the launches of all engines that are imported."""
    users = [
        module
        for name, module in list(sys.modules.items())
        if name.startswith("warpmpc.engines.") and getattr(module, "launch", None) is ffi.launch
    ]
    with ExitStack() as stack:
        for module in users:
            stack.enter_context(patch.object(module, "launch", launch))
        yield
