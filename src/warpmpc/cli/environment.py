"""What this machine offers: versions, devices, cache folder, and what works.

Reads: installed package metadata, JAX's devices.  Produces: plain dictionaries for `warpmpc info`.
"""

from __future__ import annotations

import os
import platform
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import NamedTuple

from warpmpc.codegen.cache import cache_folder

REQUIRED = ("warpmpc", "jax", "jaxlib", "warp-lang", "casadi", "numpy", "scipy")
OPTIONAL = (
    "jax-cuda13-plugin",
    "matplotlib",
    "qdldl",
    "osqp",
    "flax",
    "optax",
    "nvmath-python",
)
NVIDIA_DRIVER = Path("/proc/driver/nvidia/version")


class Feature(NamedTuple):
    """One thing that works on this machine or does not, and why."""

    name: str
    works: bool
    detail: str


def version_of(package: str) -> str | None:
    """Installed version of a distribution, if any."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def warp_cache_folder() -> Path:
    """Where Warp keeps compiled kernels, by Warp's own rule (asking Warp would initialise it)."""
    chosen = os.environ.get("WARP_CACHE_PATH")
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    root = Path(chosen).resolve() if chosen else Path(home) / "warp"
    return root / (version_of("warp-lang") or "")


def jax_devices() -> tuple[list[dict[str, object]], str]:
    """The devices of JAX; without any, the reason."""
    import jax

    try:
        devices = jax.devices()
    except RuntimeError as error:
        return [], str(error).splitlines()[0]
    return [
        {"id": device.id, "platform": device.platform, "kind": device.device_kind}
        for device in devices
    ], ""


def describe() -> dict[str, object]:
    """Everything `warpmpc info` shows, ready for JSON."""
    devices, problem = jax_devices()
    on_cuda = any(device["platform"] == "gpu" for device in devices)
    return {
        "python": platform.python_version(),
        "platform": platform.platform(),
        "versions": {package: version_of(package) for package in REQUIRED},
        "optional": {package: version_of(package) for package in OPTIONAL},
        "devices": devices,
        "device_error": problem,
        "cuda": on_cuda,
        "kernel_cache": str(warp_cache_folder()),
        "source_cache": str(cache_folder()),
        "features": [feature._asdict() for feature in features(on_cuda=on_cuda, problem=problem)],
    }


def features(*, on_cuda: bool, problem: str = "") -> list[Feature]:
    """What works here and what does not, with a sentence each."""
    return [
        Feature("jax backend", not problem, problem or "Runs on every device listed above."),
        _warp(problem),
        _cuda(on_cuda=on_cuda),
        _float64(),
        _optional("figures", "matplotlib", "PNG files of the analysis and of benchmarks."),
        _optional("QDLDL baseline", "qdldl", "`warpmpc bench ldl` compares with one CPU core."),
        _optional("cuDSS baseline", "nvmath-python", "`warpmpc bench ldl` compares with cuDSS."),
    ]


def _warp(problem: str) -> Feature:
    try:
        import warpmpc.engines.runtime.ffi  # noqa: F401  # the only layer that may load Warp
    except (ImportError, OSError) as error:
        problem = f"Warp cannot be loaded: {error}"
    return Feature("warp backend", not problem, problem or "Runs on every device listed above.")


def _cuda(*, on_cuda: bool) -> Feature:
    if on_cuda:
        return Feature("CUDA", True, "JAX and Warp run on the GPU.")
    if not NVIDIA_DRIVER.exists():
        return Feature("CUDA", False, "No NVIDIA driver on this machine; kernels run on the CPU.")
    if version_of("jax-cuda13-plugin") is None:
        return Feature("CUDA", False, "JAX has no CUDA support: `pip install 'jax[cuda13]'`.")
    return Feature("CUDA", False, "JAX sees no GPU; check `nvidia-smi` and JAX_PLATFORMS.")


def _float64() -> Feature:
    import jax

    if jax.config.read("jax_enable_x64"):
        return Feature("float64", True, "JAX_ENABLE_X64 is on.")
    return Feature(
        "float64", False, "Set JAX_ENABLE_X64=1 or jax.config.update('jax_enable_x64', True)."
    )


def _optional(name: str, package: str, detail: str) -> Feature:
    if version_of(package) is not None:
        return Feature(name, True, detail)
    return Feature(name, False, f"Not installed: `pip install {package}`.")
