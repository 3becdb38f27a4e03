"""K of an MPC problem at a representative point, to try orders of elimination on.

Reads: an `Assembly` and the weights of its variables.  Produces: `trial.RepresentativeSystem`; what
instances may differ in counts as its worst.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from warpmpc.symbolic.derivatives.assembly import Assembly
from warpmpc.symbolic.derivatives.host_qp import HostQP, host_qp
from warpmpc.symbolic.derivatives.light_variables import (
    Weights,
    representative_params,
    representative_values,
)
from warpmpc.symbolic.derivatives.row_kinds import RowKind, row_kinds
from warpmpc.symbolic.float32_accuracy import RepresentativeSystem, representative_system
from warpmpc.symbolic.kkt import build_kkt
from warpmpc.symbolic.pattern import IntArray

_EQUALITY_TOLERANCE = 1e-4
# Orders of larger systems take longer than what trials may save.
_LARGEST_SYSTEM = 3000
_GROWN = 10.0  # what rho is multiplied by in usual runs, by adaptation and scaling together
_SAME = 1e-6  # weights that differ by less are one


def representative_of(
    assembly: Assembly,
    rho: tuple[float, float, float],
    sigma: float,
    weights: Weights,
    fewer_light: Sequence[IntArray],
    *,
    grows: bool = False,
) -> RepresentativeSystem | None:
    """K of a problem; None if its numbers are not known, or if it is too large to be tried.

    A scaled K loses as many digits as one that is not, with another rho and sigma: its factors
    are those of that one, scaled.

    Args:
        assembly: The problem.
        rho: Of inequality rows, of equality rows, and of rows without bounds.
        sigma: Regularisation of the Hessian.
        weights: Of the variables.
        fewer_light: Of `RepresentativeSystem`.
        grows: Whether rho is adapted, or QPs are scaled.
    """
    problem = assembly.problem
    kkt = build_kkt(assembly.P_pattern, assembly.A_pattern)
    if kkt.K_pattern.n_cols > _LARGEST_SYSTEM:
        return None
    z = np.concatenate([representative_values(stage.n_z) for stage in problem.stages])
    qp = host_qp(assembly, z, representative_params(problem.defaults))
    if not qp.is_known:
        return None
    if grows:
        rho = (_GROWN * rho[0], _GROWN * rho[1], rho[2])
    rows = least_rho(assembly, rho)
    return representative_system(kkt, _with_least(qp, assembly, weights), rows, sigma, fewer_light)


def _with_least(qp: HostQP, assembly: Assembly, weights: Weights) -> HostQP:
    """The QP in which, in every other stage, variables have only the weight that is certain.

    Not in every stage: where nothing holds a variable, all orders lose their digits.
    """
    P, least = assembly.P_pattern, weights.least
    on_diagonal = P.row_idx == P.col_idx
    diagonal = np.zeros(P.n_cols)
    diagonal[P.col_idx[on_diagonal]] = qp.P[on_diagonal]
    loses = (least < diagonal * (1 - _SAME)) & (assembly.problem.var_stage % 2 == 0)
    kept = np.where(on_diagonal, np.minimum(least, diagonal)[P.col_idx], 0.0)
    return replace(qp, P=np.where(loses[P.row_idx] | loses[P.col_idx], kept, qp.P))


def least_rho(assembly: Assembly, rho: tuple[float, float, float]) -> np.ndarray:
    """Rho of each row, or the least that it may be: a simple bound that may be absent has none.

    Args:
        assembly: The problem.
        rho: As in `representative_of`.
    """
    A, problem = assembly.A_pattern, assembly.problem
    kinds = row_kinds(problem, _EQUALITY_TOLERANCE)
    is_equality = np.array([kind is RowKind.EQUALITY for kind in kinds], dtype=bool)
    is_unknown = np.array([kind is RowKind.UNKNOWN for kind in kinds], dtype=bool)
    simple = np.bincount(A.row_idx, minlength=problem.n_cons) < 2
    return np.where(is_equality, rho[1], np.where(is_unknown & simple, rho[2], rho[0]))
