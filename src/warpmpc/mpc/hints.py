"""What an MPC problem says about the values of K before there are any QPs."""

from __future__ import annotations

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
