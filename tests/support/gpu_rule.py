"""What happens to a test marked `gpu`: it runs, is skipped, or fails, never silently passes."""

from __future__ import annotations

import os
from typing import Literal

import jax

REQUIRE_GPU = "WARPMPC_REQUIRE_GPU"


def cuda_device_present() -> bool:
    """Whether JAX can use a CUDA device."""
    return any(device.platform == "gpu" for device in jax.devices())


def gpu_required() -> bool:
    """Whether a missing device is a failure instead of a reason to skip."""
    return os.environ.get(REQUIRE_GPU, "0") not in ("", "0")


def gpu_verdict(*, present: bool, required: bool) -> Literal["run", "skip", "fail"]:
    """The fate of a test marked `gpu`."""
    if present:
        return "run"
    return "fail" if required else "skip"
