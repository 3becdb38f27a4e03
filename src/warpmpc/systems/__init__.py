"""Benchmark systems shared by tests, examples and benchmarks; `make` builds one by name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from warpmpc._errors import ProblemError
from warpmpc.systems import (
    car,
    cartpole,
    linear,
    pendulum,
    quadrotor,
    quadrotor_obstacles,
)
from warpmpc.systems.base import System

SYSTEMS: dict[str, Callable[..., System]] = {
    "pendulum": pendulum.make,
    "car": car.make,
    "linear": linear.make,
    "cartpole": cartpole.make,
    "quadrotor": quadrotor.make,
    "quadrotor_obstacles": quadrotor_obstacles.make,
}

__all__ = ["SYSTEMS", "System", "make"]


def make(name: str, **options: Any) -> System:
    """A system by name.

    Args:
        name: A key of `SYSTEMS`.
        **options: Arguments of its own `make`, such as `horizon`.
    """
    if name not in list(SYSTEMS):
        raise ProblemError(f"Unknown system {name!r}; choose one of {sorted(SYSTEMS)}.")
    return SYSTEMS[name](**options)
