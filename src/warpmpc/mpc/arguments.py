"""Arguments of the constructor of `MPCSolver`: checks, and what follows from them.

Reads: problem, settings, engine and device as the caller gave them.  Produces: the forms that the
solver works with, and the hints for eliminations that follow from a problem.
"""

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
from warpmpc.qp.scaling import RHO_MIN
from warpmpc.qp.structure import EliminationHints
from warpmpc.qp.types import ADMMSettings
from warpmpc.symbolic.derivatives.assembly import Assembly
from warpmpc.symbolic.derivatives.representative_kkt import (
    Point,
    find_light_variables,
    representative_of,
    variable_weights,
)


def elimination_hints(
    assembly: Assembly, settings: ADMMSettings, point: Point | None
) -> EliminationHints:
    """What the problem says about the values of K.

    Args:
        assembly: Index tables of the problem.
        settings: Settings of the QPs.
        point: A representative (z, params), if the caller knows one.
    """
    rho = (settings.rho, settings.rho * settings.rho_equality)
    params = assembly.problem.defaults if point is None else point[1]
    weights = variable_weights(assembly, params, rho)
    light, *fewer_light = find_light_variables(assembly, weights, settings.sigma)
    grows = settings.scaling > 0 or settings.adaptive_rho_every > 0
    representative = representative_of(
        assembly, (*rho, RHO_MIN), settings.sigma, weights, fewer_light, grows=grows, point=point
    )
    return EliminationHints(light, representative)


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
