"""Loads compiled kernels before their first launch, so that a damaged cache can be repaired.

Warp keeps each compiled module in a folder of its own and loads the files there, damaged or not.
Therefore every file that it loads gets a seal: an empty file beside it, named after the hash of the
content.  Seals are created and found in one step each, and a file may have several, so that
processes that build the same module at the same time need no lock.

A module whose seals do not match, or whose entry point is missing, is built again.  If the folder
cannot be written, or could be written by another user, a temporary one replaces it.  Each of these
cases warns.

XLA's programs around the kernels are kept, too: on the CPU always (`keep_program`), on a GPU on
request only (`keep_programs`).
"""

from __future__ import annotations

import atexit
import hashlib
import os
import platform
import shutil
import tempfile
import threading
import time
import warnings
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import jax
import warp as wp
from jax.experimental.compilation_cache import compilation_cache

from warpmpc._errors import CodegenError
from warpmpc.codegen.cache import (
    CACHE_VARIABLE,
    cache_folder,
    distrusted_file,
    distrusted_folder,
    make_private_folder,
)
from warpmpc.engines.runtime.announcing import ANNOUNCER

STANDARD_ERROR = 2
LOADED = (".o", ".cubin", ".ptx", ".meta")
SEAL = ".sealed"
YOUNG = 10.0  # seconds in which the process that wrote a file may still be about to seal it
_ATTEMPTS = 3  # another process may remove a module that this one is about to load
NO_DRIVER = b"Could not find or load the NVIDIA CUDA driver"
SHORT_S = 0.1  # what is compiled faster is not kept
MOST = 128  # programs in the common folder
# With "none", the folder does not enter the name of a program.
_SETTINGS = {
    "jax_compilation_cache_dir": None,
    "jax_persistent_cache_min_compile_time_secs": SHORT_S,
    "jax_persistent_cache_enable_xla_caches": "none",
}
_KEPT = ".program"
_LOCK = threading.Lock()


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
    failure: Exception | None = None
    for _ in range(_ATTEMPTS):
        try:
            return _load_sealed(kernel, device, block_dim)
        except FileNotFoundError as error:  # another process has just removed a damaged module
            failure = error
        except OSError as error:
            _use_temporary_cache(f"is not writable ({error})")
            failure = error
        except Exception as error:
            failure = error
            if kernel.module.failed_builds:
                break
            _discard(_folder_of(kernel, block_dim), str(error))
        kernel.module.unload()
    raise CodegenError(f"Kernel {kernel.key} could not be built: {failure}") from failure


def _load_sealed(kernel: wp.Kernel, device: wp.Device, block_dim: int) -> None:
    """Builds a module and seals its files, or loads those that are sealed."""
    reason = distrusted_folder(Path(wp.config.kernel_cache_dir or ""))
    if reason is not None:
        _use_temporary_cache(f"is not used, because {reason}")
    folder = _folder_of(kernel, block_dim)
    fault = fault_of(folder)
    if fault is not None:
        _discard(folder, fault.reason if fault.is_damage else None)
    with ANNOUNCER.kernel(kernel.key, is_new=not loaded_files(folder)):
        executable: Any = kernel.module.load(device, block_dim)
    # Warp may load as much as nothing of a damaged file; it would fail at the first launch.
    if not executable.get_kernel_hooks(kernel).forward:
        raise CodegenError(f"it has no entry point {kernel.key}")
    seal_files(_folder_of(kernel, block_dim))


def _folder_of(kernel: wp.Kernel, block_dim: int) -> Path:
    """Where Warp keeps the module of a kernel."""
    cache_dir = Path(wp.config.kernel_cache_dir or "")
    return cache_dir / kernel.module.get_module_identifier(block_dim)


def _discard(folder: Path, damage: str | None) -> None:
    """Removes a module, or leaves its folder for a temporary one, so that it is built again."""
    if damage is not None and folder.exists():
        _warn(f"The compiled kernel in {folder} is damaged ({damage}); it is built again.")
    shutil.rmtree(folder, ignore_errors=True)
    if loaded_files(folder):
        _use_temporary_cache("has files that cannot be removed")


@dataclass(frozen=True)
class Fault:
    """Why files of a module must not be loaded.

    Attributes:
        reason: The file and what is wrong with it.
        is_damage: Whether the file was intact before; earlier versions made no seals.
    """

    reason: str
    is_damage: bool


def seal_files(folder: Path) -> None:
    """Seals files of a module that have just been built.

    Raises:
        OSError: The folder cannot be written.
    """
    for path in loaded_files(folder):
        seal = _seal_of(path)
        if not seal.exists():
            seal.touch(mode=0o600)


def fault_of(folder: Path) -> Fault | None:
    """The first fault of the files of a module; None without one, or without files."""
    for path in loaded_files(folder):
        try:
            found = path.stat()
            writer = distrusted_file(found)
            if writer is not None:
                return Fault(f"{path.name} {writer}", is_damage=True)
            if _seal_of(path).exists():
                continue
        except OSError as error:
            return Fault(str(error), is_damage=True)
        if any(folder.glob(f"{path.name}.*{SEAL}")):
            return Fault(f"{path.name} is not what was written", is_damage=True)
        if time.time() - found.st_mtime > YOUNG:
            return Fault(f"{path.name} has no seal", is_damage=False)
    return None


def loaded_files(folder: Path) -> list[Path]:
    """Files of a module that Warp loads."""
    return sorted(path for path in folder.glob("*") if path.suffix in LOADED)


def _seal_of(path: Path) -> Path:
    """The seal that the present content of a file must have."""
    return path.with_name(f"{path.name}.{hashlib.sha256(path.read_bytes()).hexdigest()}{SEAL}")


def load_together(kernels: Sequence[tuple[wp.Kernel, int]]) -> None:
    """Builds or loads several kernels at the same time, on as many cores as there are.

    Args:
        kernels: Each with its threads per block, as in `load_kernel`.
    """
    start_warp()
    if jax.default_backend() != "gpu":
        # The first one that is compiled also compiles Warp's headers, which the others find then.
        missing = [(k, block) for k, block in kernels if not loaded_files(_folder_of(k, 1))]
        for first in missing[:1]:
            load_kernel(*first)
        kernels = missing[1:]
    if not kernels:
        return
    with ThreadPoolExecutor(len(kernels)) as threads:
        # The list asks for all results: one that failed raises here.
        list(threads.map(load_kernel, *zip(*kernels, strict=True)))


@cache
def start_warp() -> None:
    """Starts Warp, with a temporary kernel cache where its folder cannot be made."""
    # Warp leaves a folder to the end of the process, which `python -W error` would report.
    pattern = "Implicitly cleaning up <TemporaryDirectory '.*wp_pch_"
    warnings.filterwarnings("ignore", message=pattern, category=ResourceWarning)
    with _no_driver_is_no_news():
        try:
            wp.init()
        except OSError as error:
            _use_temporary_cache(f"is not writable ({error})")
            wp.init()


@contextmanager
def _no_driver_is_no_news() -> Iterator[None]:
    """Keeps the line back that Warp's native code writes where there is no CUDA driver.

    No setting of Warp controls it.  All other output to standard error is written afterwards.
    """
    try:
        held = tempfile.TemporaryFile()  # noqa: SIM115, closed below
        saved = os.dup(STANDARD_ERROR)
    except OSError:  # no temporary folder, or standard error is closed
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
    """Makes XLA keep compiled programs beside ours, if it compiles for a GPU and keeps none so far.

    Commands call this, the library does not: settings of JAX belong to the caller.
    """
    if jax.default_backend() == "gpu" and _program_folder() is None:
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.1)
        _set_program_folder(str(cache_folder() / "xla"))


def keep_program() -> None:
    """Keeps the program of the function that is being traced, and finds it in later processes.

    Only where kernels go through our dispatcher: programs name them by their content there, and by
    numbers of the process elsewhere.
    """
    if _program_folder() or not ANNOUNCER.afterwards(_end):
        return
    store = _programs(cache_folder() / "xla" / _processor())
    if store is not None:
        store.begin()


@cache
def _processor() -> str:
    """Names what compiled code depends on: code for another processor must not run."""
    text = platform.machine() + platform.processor()
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        text += next(line for line in lines if line.startswith(("flags", "Features")))
    except (OSError, StopIteration):
        pass
    return hashlib.sha256(text.encode()).hexdigest()[:16]


@cache
def _programs(folder: Path) -> Programs | None:
    """The programs in a folder; None if it cannot be used."""
    try:
        make_private_folder(folder)
        return Programs(folder)
    except OSError:
        return None


def _end() -> None:
    """Ends the call in which programs were kept."""
    if Programs.active is not None:
        Programs.active.end()


class Programs:
    """A common folder of programs of XLA, as this process sees it.

    JAX has a cache of programs, but its settings belong to the caller, and it trusts its folder.
    Here it is switched on only while a call of ours compiles, unless the caller uses it already,
    and looks into a folder of this process alone.  That folder has links to files of the common one
    whose content has the hash in their name; new ones are moved there in one step.  So processes
    may share the common folder, and what is damaged there costs nothing but time.

    Attributes:
        active: The one whose folder JAX uses at the moment.
    """

    active: Programs | None = None

    def __init__(self, folder: Path):
        """Links to all programs in the folder that are intact, and forgets the oldest.

        Args:
            folder: The common folder, which only this user can write.
        """
        self._common, self._before = folder, dict[str, Any]()
        self._mine = Path(tempfile.mkdtemp(prefix="warpmpc_programs_"))
        atexit.register(shutil.rmtree, self._mine, ignore_errors=True)
        found = sorted(folder.glob(f"*{_KEPT}"), key=_age)
        for path in found[MOST:]:
            path.unlink(missing_ok=True)
        for path in found[:MOST]:
            name, _, digest = path.name.removesuffix(_KEPT).rpartition(".")
            if _digest(path) == digest:
                (self._mine / name).symlink_to(path)
            else:
                path.unlink(missing_ok=True)

    def begin(self) -> None:
        """Has JAX find and keep programs here."""
        with _LOCK:
            if Programs.active is None:
                Programs.active = self
                self._before = {name: jax.config.values[name] for name in _SETTINGS}
                _set({**_SETTINGS, "jax_compilation_cache_dir": str(self._mine)})

    def end(self) -> None:
        """Gives JAX its settings back, and moves new programs to the common folder."""
        with _LOCK:
            if Programs.active is self:
                Programs.active = None
                _set(self._before)
        for path in self._mine.glob("*"):  # none, if the system has cleared its temporary files
            if not path.is_symlink():
                self._publish(path)

    def _publish(self, path: Path) -> None:
        try:
            digest = _digest(path)
            target = self._common / f"{path.name}.{digest}{_KEPT}"
            handle, temporary = tempfile.mkstemp(dir=self._common, suffix=".tmp")
            with os.fdopen(handle, "wb") as file:
                file.write(path.read_bytes())
            os.replace(temporary, target)
            path.unlink()
            path.symlink_to(target)
        except OSError:
            return  # a full disk must not end a solve


def _set(values: dict[str, Any]) -> None:
    for name, value in values.items():
        jax.config.update(name, value)
    compilation_cache.reset_cache()  # it chooses its folder only once


def _age(path: Path) -> float:
    """The newest first."""
    try:
        return -path.stat().st_mtime
    except OSError:  # another process has removed it
        return 0.0


def _digest(path: Path) -> str | None:
    """Hash of a file, None if it cannot be read or others could write it."""
    try:
        with path.open("rb") as file:
            if distrusted_file(os.fstat(file.fileno())) is not None:
                return None
            return hashlib.sha256(file.read()).hexdigest()
    except OSError:
        return None


def _program_folder() -> str | None:
    return jax.config.values["jax_compilation_cache_dir"]


def _set_program_folder(folder: str | None) -> None:
    jax.config.update("jax_compilation_cache_dir", folder)
    compilation_cache.reset_cache()  # it chooses its folder only once


@contextmanager
def empty_caches() -> Iterator[None]:
    """Hides generated and compiled code of earlier processes, as on a new machine."""
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


def _use_temporary_cache(why: str) -> None:
    folder = tempfile.mkdtemp(prefix="warpmpc_kernels_")
    _warn(
        f"Warp's kernel cache {why}; compiled kernels go to {folder} and are lost afterwards.  Set "
        "WARP_CACHE_PATH to a folder that can be written, by you alone."
    )
    wp.config.kernel_cache_dir = folder


def _warn(message: str) -> None:
    warnings.warn(message, RuntimeWarning, stacklevel=4)
