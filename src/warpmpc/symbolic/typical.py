"""K of an MPC problem at a representative point, to try orders of elimination on.

Reads: an `Assembly`.  Produces: `trial.TypicalSystem`, all stages alike; what instances may differ
in counts as its worst.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from warpmpc.symbolic.assembly import Assembly
from warpmpc.symbolic.host_qp import host_qp
from warpmpc.symbolic.kkt import build_kkt
from warpmpc.symbolic.pattern import IntArray
from warpmpc.symbolic.row_kinds import RowKind, row_kinds
from warpmpc.symbolic.trial import TypicalSystem, typical_system
from warpmpc.symbolic.weak import representative_params, representative_values

_EQUALITY_TOLERANCE = 1e-4
# Orders of larger systems take longer than what trials may save.
_LARGEST_SYSTEM = 3000


def typical_of(
    assembly: Assembly,
    rho: tuple[float, float, float],
    sigma: float,
    fewer_weak: Sequence[IntArray],
) -> TypicalSystem | None:
    """K of a problem; None if its numbers are not known, or if it is too large to be tried.

    Args:
        assembly: The problem.
        rho: Of inequality rows, of equality rows, and of rows without bounds.
        sigma: Regularisation of the Hessian.
        fewer_weak: Of `TypicalSystem`.
    """
    problem = assembly.problem
    kkt = build_kkt(assembly.P_pattern, assembly.A_pattern)
    if kkt.K_pattern.n_cols > _LARGEST_SYSTEM:
        return None
    z = np.concatenate([representative_values(stage.n_z) for stage in problem.stages])
    qp = host_qp(assembly, z, representative_params(problem.defaults))
    if not qp.is_known:
        return None
    return typical_system(kkt, qp, least_rho(assembly, rho), sigma, fewer_weak)


def least_rho(assembly: Assembly, rho: tuple[float, float, float]) -> np.ndarray:
    """Rho of each row, or the least that it may be: a simple bound that may be absent has none.

    Args:
        assembly: The problem.
        rho: As in `typical_of`.
    """
    A, problem = assembly.A_pattern, assembly.problem
    kinds = row_kinds(problem, _EQUALITY_TOLERANCE)
    is_equality = np.array([kind is RowKind.EQUALITY for kind in kinds], dtype=bool)
    is_unknown = np.array([kind is RowKind.UNKNOWN for kind in kinds], dtype=bool)
    simple = np.bincount(A.row_idx, minlength=problem.n_cons) < 2
    return np.where(is_equality, rho[1], np.where(is_unknown & simple, rho[2], rho[0]))
