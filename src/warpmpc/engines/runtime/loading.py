"""Compiled kernels are loaded before their first launch, so that a damaged cache can be mended.

Warp keeps compiled kernels in a folder of its own.  If one of them cannot be loaded it is built
again; if the folder cannot be written, a temporary one takes its place.  Both warn.  The programs
around them are XLA's, which keeps them only if it is told to: `keep_programs`.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import warnings
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import cache
from pathlib import Path

import jax
import warp as wp
from jax.experimental.compilation_cache import compilation_cache

from warpmpc._errors import CodegenError
from warpmpc.codegen.cache import CACHE_VARIABLE, cache_folder

STANDARD_ERROR = 2
NO_DRIVER = b"Could not find or load the NVIDIA CUDA driver"


@cache
def load_kernel(kernel: wp.Kernel, block: int) -> None:
    """Builds or loads a kernel for the first device of this process; Warp does it for others.

    Args:
        kernel: A kernel in a module of its own.
        block: Threads per block on CUDA.
    """
    start_warp()
    device = wp.device_from_jax(jax.local_devices()[0])
    block_dim = block if device.is_cuda else 1
    try:
        kernel.module.load(device, block_dim)
    except OSError as error:
        _use_temporary_cache(error)
        _load_again(kernel, device, block_dim)
    except Exception as error:
        folder = Path(wp.config.kernel_cache_dir or "") / kernel.module.get_module_identifier(
            block_dim
        )
        if not folder.exists():
            raise CodegenError(f"Kernel {kernel.key} could not be built: {error}") from error
        _warn(f"The compiled kernel in {folder} is damaged ({error}); it is built again.")
        shutil.rmtree(folder, ignore_errors=True)
        _load_again(kernel, device, block_dim)


def load_together(kernels: Sequence[tuple[wp.Kernel, int]]) -> None:
    """Builds or loads several kernels at the same time, where the compiler can: on CUDA.

    Args:
        kernels: Each with its threads per block, as in `load_kernel`.
    """
    start_warp()
    if jax.default_backend() != "gpu":
        return  # one after the other, before their first launch
    with ThreadPoolExecutor(len(kernels)) as threads:
        # The list asks for all results: one that failed raises here.
        list(threads.map(load_kernel, *zip(*kernels, strict=True)))


def _load_again(kernel: wp.Kernel, device: wp.Device, block_dim: int) -> None:
    kernel.module.mark_modified()
    try:
        kernel.module.load(device, block_dim)
    except Exception as error:
        raise CodegenError(f"Kernel {kernel.key} could not be built: {error}") from error


@cache
def start_warp() -> None:
    """Starts Warp, with a temporary kernel cache where its folder cannot be made."""
    # Warp leaves a folder to the end of the process, which `python -W error` would complain about.
    pattern = "Implicitly cleaning up <TemporaryDirectory '.*wp_pch_"
    warnings.filterwarnings("ignore", message=pattern, category=ResourceWarning)
    with _no_driver_is_no_news():
        try:
            wp.init()
        except OSError as error:
            _use_temporary_cache(error)
            wp.init()


@contextmanager
def _no_driver_is_no_news() -> Iterator[None]:
    """Keeps the line back that Warp's native code writes where there is no CUDA driver.

    No setting of Warp reaches it.  Whatever else is written to standard error meanwhile follows.
    """
    try:
        held = tempfile.TemporaryFile()  # noqa: SIM115, closed below
        saved = os.dup(STANDARD_ERROR)
    except OSError:  # nowhere to keep it, or it is closed
        yield
        return
    with held:
        os.dup2(held.fileno(), STANDARD_ERROR)
        try:
            yield
        finally:
            os.dup2(saved, STANDARD_ERROR)
            os.close(saved)
            held.seek(0)
            for line in held:
                if NO_DRIVER not in line:
                    os.write(STANDARD_ERROR, line)


def keep_programs() -> None:
    """XLA keeps compiled programs beside our own, if it compiles for a GPU and keeps none so far.

    For commands, not for the library: settings of JAX belong to the caller.
    """
    if jax.default_backend() == "gpu" and _program_folder() is None:
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.1)
        _set_program_folder(str(cache_folder() / "xla"))


def _program_folder() -> str | None:
    return jax.config.values["jax_compilation_cache_dir"]


def _set_program_folder(folder: str | None) -> None:
    jax.config.update("jax_compilation_cache_dir", folder)
    compilation_cache.reset_cache()  # it looks for a folder only once


@contextmanager
def empty_caches() -> Iterator[None]:
    """Neither generated nor compiled code of earlier processes is found, as on a new machine."""
    start_warp()
    kernels, modules = wp.config.kernel_cache_dir, os.environ.get(CACHE_VARIABLE)
    programs = _program_folder()
    with tempfile.TemporaryDirectory() as folder:
        wp.config.kernel_cache_dir = os.environ[CACHE_VARIABLE] = folder
        _set_program_folder(None)
        try:
            yield
        finally:
            wp.config.kernel_cache_dir = kernels
            os.environ.pop(CACHE_VARIABLE)
            if modules is not None:
                os.environ[CACHE_VARIABLE] = modules
            _set_program_folder(programs)


def _use_temporary_cache(error: OSError) -> None:
    folder = tempfile.mkdtemp(prefix="warpmpc_kernels_")
    _warn(
        f"Warp's kernel cache is not writable ({error}); compiled kernels go to {folder} and are "
        "lost afterwards.  Set WARP_CACHE_PATH to a folder that can be written."
    )
    wp.config.kernel_cache_dir = folder


def _warn(message: str) -> None:
    warnings.warn(message, RuntimeWarning, stacklevel=4)
