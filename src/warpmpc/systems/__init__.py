"""Benchmark systems shared by tests, examples and benchmarks; `make` builds one by name.

An entry of `SYSTEMS` is a `Recipe`, or a function ``make(horizon=...)`` that returns a `System`.
Registered from outside, too, it is known to `warpmpc solve`, `warpmpc bench` and `warpmpc demo`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from warpmpc._errors import ProblemError
from warpmpc.systems import (
    car,
    cartpole,
    humanoid,
    linear,
    pendulum,
    quadrotor,
    quadrotor_obstacles,
    recipe,
)
from warpmpc.systems.base import System
from warpmpc.systems.recipe import Description, Recipe

SYSTEMS: dict[str, Callable[..., System]] = {
    "pendulum": pendulum.make,
    "car": car.make,
    "linear": linear.make,
    "cartpole": cartpole.make,
    "quadrotor": quadrotor.make,
    "quadrotor_obstacles": quadrotor_obstacles.make,
    "humanoid": humanoid.make,
}

__all__ = [
    "SYSTEMS",
    "Description",
    "Recipe",
    "System",
    "aliases",
    "default_sizes",
    "describe",
    "make",
]


def make(name: str, **options: Any) -> System:
    """Builds a system by name.

    Args:
        name: A key of `SYSTEMS`.
        **options: Arguments of its entry, such as `horizon`.
    """
    if name not in list(SYSTEMS):
        raise ProblemError(f"Unknown system {name!r}; choose one of {sorted(SYSTEMS)}.")
    recipe.check_options(name, SYSTEMS[name], options)
    return SYSTEMS[name](**options)


def describe(name: str) -> Description:
    """What the commands say about a system; `name` is a key of `SYSTEMS`."""
    return recipe.describe(name, SYSTEMS[name])


def default_sizes(name: str) -> dict[str, Any]:
    """Defaults of the options of a system; `name` is a key of `SYSTEMS`."""
    return recipe.default_sizes(SYSTEMS[name])


def aliases() -> dict[str, str]:
    """Keys of `SYSTEMS` by the second names that some systems have on the command line."""
    found = ((describe(name).alias, name) for name in SYSTEMS)
    return {alias: name for alias, name in found if alias is not None}
