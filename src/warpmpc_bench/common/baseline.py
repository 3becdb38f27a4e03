"""A solver to compare with: how to run it, and whether it can run here."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

import jax

from warpmpc_bench.common.timing import Measured


@dataclass(frozen=True)
class Baseline:
    """A solver to compare with.

    Attributes:
        label: Name in a legend.
        measure: Runs it on a batch (the benchmark's case) with a number of repeats.
        obstacle: Why it cannot run here; None if it can.
        largest: Largest batch worth measuring, by JAX platform.
        bytes_wanted: Memory for one instance of the given item size.
        on_host: Whether it takes float64 values from the host and runs on one CPU core; its cost
            per instance does not depend on the batch, so it is measured once, at its `largest`.
    """

    label: str
    measure: Callable[[Any, int], Measured]
    obstacle: Callable[[], str | None]
    largest: dict[str, int]
    bytes_wanted: Callable[[int], int]
    on_host: bool = False


def on_one_core(
    label: str, call: Callable[[Any, int], Measured], package: str, batch: int, instance_bytes: int
) -> Baseline:
    """A solver on one CPU core, which is measured at one batch size.

    Args:
        label: Name in a legend.
        call: Runs it on a batch with a number of repeats.
        package: Package that has to be installed; its module has the same name.
        batch: The batch size.
        instance_bytes: Memory for one instance.
    """
    sizes = {"gpu": batch, "cpu": batch}
    return Baseline(
        label, call, needs(package, package), sizes, lambda _: instance_bytes, on_host=True
    )


def needs(module: str, package: str, *, cuda: bool = False) -> Callable[[], str | None]:
    """Returns the obstacle of a baseline: a package that is not installed, or no CUDA device."""

    def obstacle() -> str | None:
        if find_spec(module) is None:
            return f"package {package} is not installed (`pip install {package}`)"
        if cuda and jax.default_backend() != "gpu":
            return "needs a CUDA device"
        return None

    return obstacle
