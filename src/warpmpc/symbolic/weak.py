"""Which variables of an MPC problem have too little weight of their own to be early pivots.

Reads: the derivatives of each group at a representative point.  Produces: sets of variables that
`symbolic.safe_ordering` lets wait for the rows that hold them.

Taken as a pivot first, a variable with the weight P_jj puts rho a^2 / (P_jj + sigma) times the
diagonal of a row beside it: so many units of rounding are lost of the row's own 1 / rho.  Often
something else restores them, and the fill that waiting costs is for nothing: `symbolic.trial` finds
out which set is needed.
"""

from __future__ import annotations

import numpy as np

from warpmpc.symbolic.assembly import Assembly
from warpmpc.symbolic.derivatives import StageModel
from warpmpc.symbolic.pattern import IntArray

# The first one is safe; beyond the last one a row has nothing left.
_GROWTHS = (5e3, 1e6, np.inf)


def representative_params(params: np.ndarray) -> np.ndarray:
    """A parameter vector without unknown entries."""
    return np.where(np.isnan(params), 1.0, params)


def representative_values(size: int) -> np.ndarray:
    """Values of variables at no special point: at zero a derivative may vanish or not exist."""
    return 0.3 + 0.1 * np.sin(np.arange(size))


def weak_variables(
    assembly: Assembly, params: np.ndarray, rho: tuple[float, float], sigma: float
) -> list[IntArray]:
    """Variables whose rows would lose more than three and a half digits; then smaller sets.

    All stages of a group decide alike, so that they keep one elimination.

    Args:
        assembly: The problem.
        params: Representative parameter vector; what is not known may be NaN.
        rho: Of inequality rows, and of equality rows.
        sigma: Regularisation of the Hessian.

    Returns:
        Sets that differ, the largest first; the last one is empty.
    """
    problem = assembly.problem
    weight = np.zeros(problem.n_vars)
    coupling = np.zeros(problem.n_vars)
    known = representative_params(params)
    for model, ks, w, p in zip(
        assembly.models, assembly.stages, assembly.w_rows, assembly.p_rows, strict=True
    ):
        diagonal, strongest = _local(model, known[p[0]], rho)
        for a in range(ks.size):
            weight[w[a]] += diagonal
            coupling[w[a]] = np.maximum(coupling[w[a]], strongest)
    growth = coupling / np.maximum(weight + sigma, np.finfo(float).tiny)
    # A stage may differ from its group only in its neighbours: the weakest of them decides.
    for ks, w, model in zip(assembly.stages, assembly.w_rows, assembly.models, strict=True):
        own = w[:, : model.n_z]
        growth[own] = growth[own].max(axis=0) if ks.size else growth[own]
    sets = [np.flatnonzero(growth > limit).astype(np.int32) for limit in _GROWTHS]
    return list({some.size: some for some in sets}.values())


def _local(
    model: StageModel, params: np.ndarray, rho: tuple[float, float]
) -> tuple[np.ndarray, np.ndarray]:
    """Diagonal of the Hessian, and the largest rho a^2 of each variable, over (z, z_next)."""
    function = model.linearize("weights", ["P", "A", "lower", "upper"])
    point = [representative_values(model.w.numel()), params]
    if model.exact:
        point.append(np.zeros(model.y.numel()))
    P, A, lower, upper = (np.array(part).ravel() for part in function.call(point))
    size, hessian = model.w.numel(), model.hessian
    diagonal = np.zeros(size)
    on_diagonal = hessian.rows == hessian.cols
    diagonal[hessian.cols[on_diagonal]] = np.nan_to_num(P[on_diagonal], nan=np.inf)
    for block in hessian.blocks:
        diagonal[block] = 0.0  # a projected block may be singular
    rows, cols = model.jacobian_positions
    several = np.bincount(rows, minlength=lower.size)[rows] > 1
    rho_rows = np.where(upper - lower < 1e-4, rho[1], rho[0])
    strength = np.where(several, rho_rows[rows] * np.nan_to_num(A) ** 2, 0.0)
    strongest = np.zeros(size)
    np.maximum.at(strongest, cols, strength)
    return diagonal, strongest
