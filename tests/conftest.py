"""Settings of every test: float64 available, no silent rank promotion, the rule for `gpu` tests."""

from __future__ import annotations

import gc
import os
from pathlib import Path

import pytest

# Programs of tests run once or twice: most of their time is XLA's compilation.
if not Path("/proc/driver/nvidia").exists():
    fast = "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true"
    os.environ.setdefault("XLA_FLAGS", fast)

import gpu_rule
import jax

pytest_plugins = ["pytester"]

jax.config.update("jax_enable_x64", True)
jax.config.update("jax_numpy_rank_promotion", "raise")


# Every program that XLA compiles for the CPU keeps about ten memory maps.  Linux allows 65 530 per
# process, and beyond them LLVM ends the process with a segmentation fault.
MAPS_TO_RELEASE = 20_000


def memory_maps() -> int:
    """Counts the memory maps of this process; 0 where the system does not list them."""
    maps = Path("/proc/self/maps")
    return len(maps.read_bytes().splitlines()) if maps.exists() else 0


def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """Releases compiled programs between two modules before the process has too many."""
    if nextitem is None or nextitem.path == item.path or memory_maps() < MAPS_TO_RELEASE:
        return
    jax.clear_caches()
    gc.collect()


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skips or fails a `gpu` test that has no device."""
    if item.get_closest_marker("gpu") is None:
        return
    present, required = gpu_rule.cuda_device_present(), gpu_rule.gpu_required()
    verdict = gpu_rule.gpu_verdict(present=present, required=required)
    if verdict == "skip":
        pytest.skip("JAX sees no CUDA device")
    if verdict == "fail":
        pytest.fail(f"JAX sees no CUDA device, but {gpu_rule.REQUIRE_GPU} is set", pytrace=False)
