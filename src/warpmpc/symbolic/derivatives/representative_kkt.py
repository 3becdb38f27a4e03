"""K of an MPC problem at a representative point, to try orders of elimination on.

Reads: an `Assembly` and the weights of its variables.  Produces: `trial.RepresentativeSystem`; what
instances may differ in counts as its worst.

Which variables of an MPC problem have too little weight of their own to be early pivots.

Reads: the derivatives of each group at representative points.  Produces: `Weights`, and sets of
variables that `symbolic.float32_ordering` lets wait for the rows that hold them.

Taken as a pivot first, a variable with the weight P_jj puts rho a^2 / (P_jj + sigma) times the
diagonal of a row beside it: so many units of rounding are lost of the row's own 1 / rho.  Often
something else restores them, and the fill that waiting costs is for nothing:
`symbolic.float32_ordering` finds out which set is needed.

Second derivatives change from point to point, and with the multipliers where they are exact: the
curvature of an obstacle may take all of the weight that the cost gives to a position.  The least
that was seen at some points counts.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import casadi as ca
import numpy as np

from warpmpc.symbolic.derivatives.assembly import Assembly, HostQP, host_qp
from warpmpc.symbolic.derivatives.stage_model import RowKind, StageModel, row_kinds
from warpmpc.symbolic.float32_ordering import RepresentativeSystem, representative_system
from warpmpc.symbolic.kkt import build_kkt
from warpmpc.symbolic.pattern import IntArray

# The first one is safe; beyond the last one a row has nothing left.
_GROWTHS = (5e3, 1e6, np.inf)


_N_POINTS = 8  # beside the representative one


_SPREAD = 2.0  # of variables at these points


_LARGE = 1e6  # multipliers that outweigh any cost


_EQUALITY_TOLERANCE = 1e-4


# Orders of larger systems take longer than what trials may save.
_LARGEST_SYSTEM = 3000


_GROWN = 10.0  # what rho is multiplied by in usual runs, by adaptation and scaling together


_SAME = 1e-6  # weights that differ by less are one


@dataclass(frozen=True, eq=False)
class Weights:
    """What holds each variable of a problem.

    Attributes:
        least: Least diagonal entry of the Hessian.
        coupling: Largest rho a^2 over the rows that hold it together with others.
    """

    least: np.ndarray
    coupling: np.ndarray


def representative_params(params: np.ndarray) -> np.ndarray:
    """A parameter vector without unknown entries."""
    return np.where(np.isnan(params), 1.0, params)


def representative_values(size: int) -> np.ndarray:
    """Values of variables at no special point: at zero a derivative may vanish or not exist."""
    return 0.3 + 0.1 * np.sin(np.arange(size))


def variable_weights(assembly: Assembly, params: np.ndarray, rho: tuple[float, float]) -> Weights:
    """Weights of all variables.

    Args:
        assembly: The problem.
        params: Representative parameter vector; what is not known may be NaN.
        rho: Of inequality rows, and of equality rows.
    """
    n = assembly.problem.n_vars
    weights = Weights(np.zeros(n), np.zeros(n))
    known = representative_params(params)
    for model, ks, w, p in zip(
        assembly.models, assembly.stages, assembly.w_rows, assembly.p_rows, strict=True
    ):
        diagonal, strongest = _local(model, known[p[0]], rho)
        for a in range(ks.size):
            weights.least[w[a]] += diagonal
            weights.coupling[w[a]] = np.maximum(weights.coupling[w[a]], strongest)
    return weights


def find_light_variables(assembly: Assembly, weights: Weights, sigma: float) -> list[IntArray]:
    """Variables whose rows would lose more than three and a half digits; then smaller sets.

    All stages of a group decide alike, so that they keep one elimination.

    Args:
        assembly: The problem.
        weights: Of its variables.
        sigma: Regularisation of the Hessian.

    Returns:
        Sets that differ, the largest first; the last one is empty.
    """
    growth = weights.coupling / np.maximum(weights.least + sigma, np.finfo(float).tiny)
    # A stage may differ from its group only in its neighbours: the weakest of them decides.
    for ks, w, model in zip(assembly.stages, assembly.w_rows, assembly.models, strict=True):
        own = w[:, : model.n_z]
        growth[own] = growth[own].max(axis=0) if ks.size else growth[own]
    sets = [np.flatnonzero(growth > limit).astype(np.int32) for limit in _GROWTHS]
    return list({some.size: some for some in sets}.values())


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


def _local(
    model: StageModel, params: np.ndarray, rho: tuple[float, float]
) -> tuple[np.ndarray, np.ndarray]:
    """Least diagonal of the Hessian and largest rho a^2 of each variable, over (z, z_next)."""
    function = model.linearize("weights", ["P", "A", "lower", "upper"])
    points = _points(model, params)
    P, A, lower, upper = (np.array(part).ravel() for part in function.call(next(points)))
    hessian, P_seen = model.hessian, [P]
    if ca.depends_on(hessian.values, ca.vertcat(model.w, model.y)):
        P_seen += [np.array(function.call(point)[0]).ravel() for point in points]
    least = np.fmin.reduce(P_seen)  # leaves out what is no number
    diagonal, strongest = np.zeros(model.w.numel()), np.zeros(model.w.numel())
    on_diagonal = hessian.rows == hessian.cols
    diagonal[hessian.cols[on_diagonal]] = np.nan_to_num(least[on_diagonal], nan=np.inf)
    for block in hessian.blocks:
        diagonal[block] = 0.0  # a projected block may be singular
    rows, cols = model.jacobian_positions
    several = np.bincount(rows, minlength=lower.size)[rows] > 1
    rho_rows = np.where(upper - lower < 1e-4, rho[1], rho[0])
    strength = np.where(several, rho_rows[rows] * np.nan_to_num(A) ** 2, 0.0)
    np.maximum.at(strongest, cols, strength)
    return diagonal, strongest


def _points(model: StageModel, params: np.ndarray) -> Iterator[list[np.ndarray]]:
    """Where a stage is looked at: the representative point first, without multipliers."""
    size, n_rows = model.w.numel(), model.y.numel()
    rng = np.random.default_rng(0)
    yield [representative_values(size), params, *([np.zeros(n_rows)] if model.exact else [])]
    for _ in range(_N_POINTS):
        w, y = _SPREAD * rng.normal(size=size), _LARGE * rng.normal(size=n_rows)
        # What one sign of the multipliers adds to an entry, the other one takes from it.
        yield from ([w, params, y], [w, params, -y]) if model.exact else ([w, params],)


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
