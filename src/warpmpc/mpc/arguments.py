"""Checks of what `MPCSolver` is built from."""

from __future__ import annotations

from typing import Any

import jax
from jax.sharding import NamedSharding

from warpmpc._errors import ProblemError, SettingsError
from warpmpc.engines.runtime.sharding import with_auto_axes
from warpmpc.mpc.settings import SQPSettings
from warpmpc.problem.mpc_problem import MPCProblem
from warpmpc.problem.ocp.ocp import OCP
from warpmpc.qp.loops.registry import differentiable_engines


def checked_settings(settings: SQPSettings | None) -> SQPSettings:
    """The settings, or defaults."""
    if settings is None:
        return SQPSettings()
    if not isinstance(settings, SQPSettings):
        raise SettingsError(f"settings must be SQPSettings, got {type(settings).__name__}.")
    return settings


def as_problem(problem: Any) -> MPCProblem:
    """The problem in its general form."""
    if isinstance(problem, OCP):
        return problem.problem()
    if not isinstance(problem, MPCProblem):
        raise ProblemError(f"problem must be an OCP or MPCProblem, got {type(problem).__name__}.")
    return problem


def check_engine(engine: Any) -> None:
    """Refuses engines that do not exist or that have no derivatives."""
    engines = ["auto", "onchip", *differentiable_engines()]
    if engine not in engines:
        raise SettingsError(f"Unknown engine {engine!r}; choose one of {engines}.")


def as_device(device: Any) -> Any:
    """A JAX device, a `NamedSharding`, or None."""
    if isinstance(device, NamedSharding):
        return with_auto_axes(device)
    if device is None or isinstance(device, jax.Device):
        return device
    try:
        return jax.devices(device)[0]
    except (RuntimeError, TypeError, AttributeError) as error:
        raise SettingsError(
            f"device must be a JAX device or one of its platforms, got {device!r}; there are "
            f"{jax.devices()}.  A NamedSharding spreads batches over several."
        ) from error
