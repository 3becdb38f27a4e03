"""Light variables of an MPC problem, and its matrix K at a representative point.

Reads: an `Assembly`.  Produces: the `Weights` of its variables, sets of light variables, and a
`RepresentativeSystem`, which measures on the host how many digits an order of elimination keeps: it
factorises in float32, with the pivots in the given order as in the kernels, and compares with a
float64 solution.  Wherever instances may differ, the representative system has the worst case.

A variable is light if it has too little weight of its own to be an early pivot.  Taken as a pivot
first, a variable with the weight P_jj adds rho a^2 / (P_jj + sigma) times the diagonal of a row to
that diagonal, and the row's own 1 / rho loses as many units of rounding.  Often other entries
restore it, and then the fill that waiting costs buys nothing.  Trials on the representative system
find out which set of variables has to wait.

Second derivatives change from point to point, and exact ones with the multipliers as well: the
curvature of an obstacle may take all of the weight that the cost gives to a position.  Therefore
the least value over several points counts.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TypeAlias

import casadi as ca
import numpy as np
import scipy.sparse as sp
from scipy.linalg.lapack import stbtrs
from scipy.sparse.linalg import splu

from warpmpc._conventions import EQUALITY_TOLERANCE
from warpmpc.symbolic.derivatives.assembly import Assembly, HostQP, host_qp
from warpmpc.symbolic.derivatives.stage_model import RowKind, StageModel, row_kinds
from warpmpc.symbolic.elimination import Elimination
from warpmpc.symbolic.pattern import IntArray, KKTPattern, build_kkt

# The first limit is safe; beyond the last one a row has no digit left.
_GROWTHS = (5e3, 1e6, np.inf)
_N_POINTS = 8  # beside the representative one
_SPREAD = 2.0  # standard deviation of the variables at these points
_LARGE = 1e6  # standard deviation of the multipliers, which then outweigh any cost
_GROWN = 10.0  # usual growth of rho by adaptation and scaling together
_SAME = 1e-6  # weights that differ by less count as equal
# Entries of a band in a trial (160 MB); that of the humanoid has 2.2 million.
_LARGEST_BAND = 40_000_000
_N_SIDES = 4  # number of right-hand sides of a trial


Point: TypeAlias = tuple[np.ndarray, np.ndarray]  # variables and the whole parameter vector


@dataclass(frozen=True, eq=False)
class Weights:
    """How strongly cost and rows determine each variable of a problem.

    Attributes:
        least: Least diagonal entry of the Hessian.
        coupling: Largest rho a^2 over the rows that hold the variable together with others.
    """

    least: np.ndarray
    coupling: np.ndarray


def representative_params(params: np.ndarray) -> np.ndarray:
    """A parameter vector in which unknown entries are one."""
    return np.where(np.isnan(params), 1.0, params)


def representative_values(size: int) -> np.ndarray:
    """Values of variables away from zero, where a derivative may vanish or not exist."""
    return 0.3 + 0.1 * np.sin(np.arange(size))


def variable_weights(assembly: Assembly, params: np.ndarray, rho: tuple[float, float]) -> Weights:
    """The weights of all variables.

    Args:
        assembly: Index tables of the problem.
        params: Representative parameter vector, in which unknown entries are NaN.
        rho: Values of rho for inequality rows and for equality rows.
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
    """Finds the variables whose rows would lose more than three and a half digits.

    The choice is the same for all stages of a group, so that they keep one elimination.

    Args:
        assembly: Index tables of the problem.
        weights: Weights of its variables.
        sigma: Regularisation of the Hessian.

    Returns:
        This set, then smaller ones with larger losses; the last one is empty.
    """
    growth = weights.coupling / np.maximum(weights.least + sigma, np.finfo(float).tiny)
    # Stages of a group may differ in their neighbours; the weakest coupling decides for all.
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
    point: Point | None = None,
) -> RepresentativeSystem | None:
    """The matrix K of a problem at a representative point.

    A scaled K loses as many digits as an unscaled one with another rho and sigma, because its
    factors are scaled versions of the other factors.

    Args:
        assembly: Index tables of the problem.
        rho: Values of rho for inequality rows, for equality rows, and for rows without bounds.
        sigma: Regularisation of the Hessian.
        weights: Weights of the variables.
        fewer_light: Smaller sets of variables that may wait; see `RepresentativeSystem`.
        grows: Whether rho is adapted or QPs are scaled.
        point: A representative (z, params) of the caller; None: values away from zero and the
            defaults of the parameters.

    Returns:
        The system, or None if its values are not finite.
    """
    problem = assembly.problem
    kkt = build_kkt(assembly.P_pattern, assembly.A_pattern)
    if point is None:
        z = np.concatenate([representative_values(stage.n_z) for stage in problem.stages])
        point = z, problem.defaults
    qp = host_qp(assembly, point[0], representative_params(point[1]))
    if not qp.is_known:
        return None
    if grows:
        rho = (_GROWN * rho[0], _GROWN * rho[1], rho[2])
    rows = least_rho(assembly, rho)
    return representative_system(kkt, _with_least(qp, assembly, weights), rows, sigma, fewer_light)


def least_rho(assembly: Assembly, rho: tuple[float, float, float]) -> np.ndarray:
    """The least rho of each row; simple bounds that may be absent count as rows without bounds.

    Args:
        assembly: Index tables of the problem.
        rho: Values of rho for inequality rows, for equality rows, and for rows without bounds.
    """
    A, problem = assembly.A_pattern, assembly.problem
    kinds = row_kinds(problem, EQUALITY_TOLERANCE)
    is_equality = np.array([kind is RowKind.EQUALITY for kind in kinds], dtype=bool)
    is_unknown = np.array([kind is RowKind.UNKNOWN for kind in kinds], dtype=bool)
    simple = np.bincount(A.row_idx, minlength=problem.n_cons) < 2
    return np.where(is_equality, rho[1], np.where(is_unknown & simple, rho[2], rho[0]))


def _local(
    model: StageModel, params: np.ndarray, rho: tuple[float, float]
) -> tuple[np.ndarray, np.ndarray]:
    """Least diagonal entry of the Hessian and largest rho a^2 of each variable (z, z_next)."""
    function = model.host_values("weights", ["P", "A", "lower", "upper"])
    points = _points(model, params)
    P, A, lower, upper = (np.array(part).ravel() for part in function.call(next(points)))
    hessian, P_seen = model.hessian, [P]
    if ca.depends_on(hessian.values, ca.vertcat(model.w, model.y)):
        P_seen += [np.array(function.call(point)[0]).ravel() for point in points]
    least = np.fmin.reduce(P_seen)  # ignores NaN
    diagonal, strongest = np.zeros(model.w.numel()), np.zeros(model.w.numel())
    on_diagonal = hessian.rows == hessian.cols
    diagonal[hessian.cols[on_diagonal]] = np.nan_to_num(least[on_diagonal], nan=np.inf)
    for block in hessian.blocks:
        diagonal[block] = 0.0  # a projected block may be singular
    rows, cols = model.jacobian_positions
    several = np.bincount(rows, minlength=lower.size)[rows] > 1
    rho_rows = np.where(upper - lower < EQUALITY_TOLERANCE, rho[1], rho[0])
    strength = np.where(several, rho_rows[rows] * np.nan_to_num(A) ** 2, 0.0)
    np.maximum.at(strongest, cols, strength)
    return diagonal, strongest


def _points(model: StageModel, params: np.ndarray) -> Iterator[list[np.ndarray]]:
    """Points at which a stage is evaluated: the representative one with zero multipliers first."""
    size, n_rows = model.w.numel(), model.y.numel()
    rng = np.random.default_rng(0)
    yield [representative_values(size), params, *([np.zeros(n_rows)] if model.exact else [])]
    for _ in range(_N_POINTS):
        w, y = _SPREAD * rng.normal(size=size), _LARGE * rng.normal(size=n_rows)
        # An entry that grows with one sign of the multipliers shrinks with the other one.
        yield from ([w, params, y], [w, params, -y]) if model.exact else ([w, params],)


def _with_least(qp: HostQP, assembly: Assembly, weights: Weights) -> HostQP:
    """The QP in which the variables of every other stage have only the weight that is certain.

    If this held in every stage, all orders would lose their digits.
    """
    P, least = assembly.P_pattern, weights.least
    on_diagonal = P.row_idx == P.col_idx
    diagonal = np.zeros(P.n_cols)
    diagonal[P.col_idx[on_diagonal]] = qp.P[on_diagonal]
    loses = (least < diagonal * (1 - _SAME)) & (assembly.problem.var_stage % 2 == 0)
    kept = np.where(on_diagonal, np.minimum(least, diagonal)[P.col_idx], 0.0)
    return replace(qp, P=np.where(loses[P.row_idx] | loses[P.col_idx], kept, qp.P))


@dataclass(frozen=True, eq=False)
class RepresentativeSystem:
    """The matrix K of a representative instance, with random right-hand sides.

    The right-hand side of an instance would hide errors, because it may have no component along
    those that rounding adds.

    Attributes:
        kkt: Pattern of K.
        values: Values of the upper triangle of K, in the order of its pattern.
        fewer_light: Smaller sets of variables that may wait for their rows in place of all light
            ones.
    """

    kkt: KKTPattern
    values: np.ndarray
    fewer_light: Sequence[IntArray] = ()

    @cached_property
    def _sides(self) -> np.ndarray:
        return np.random.default_rng(0).normal(size=(self.kkt.K_pattern.n_cols, _N_SIDES))

    @cached_property
    def _solutions(self) -> np.ndarray:
        """Solutions in float64; NaN if K is singular."""
        K = self.kkt.K_pattern
        upper = sp.csc_matrix((self.values, K.row_idx, K.col_ptr), K.shape)
        try:
            return splu(sp.csc_matrix(upper + sp.triu(upper, 1).T)).solve(self._sides)
        except RuntimeError:
            return np.full_like(self._sides, np.nan)

    def error(self, elimination: Elimination) -> float:
        """Mean over all variables of the float32 error, relative to the size of each variable.

        Single variables that neither cost nor rows determine may have a large error in any order.
        The mean is infinite if K is singular, if float32 overflows, or if L is too wide.
        """
        place, L = _narrow(elimination.parent), elimination.L_pattern
        width = int((place[L.row_idx] - place[L.col_idx]).max(initial=0)) + 1
        if elimination.n * width > _LARGEST_BAND:
            return np.inf
        n, wanted = self.kkt.n_vars, self._solutions
        with np.errstate(all="ignore"):
            found = _solve(elimination, self.values, self._sides, place)
            errors = np.abs(found - wanted)[:n].max(axis=1) / np.abs(wanted[:n]).max(axis=1)
            error = errors.mean()
        return float(error) if np.isfinite(error) else np.inf


def representative_system(
    kkt: KKTPattern,
    qp: HostQP,
    rho: np.ndarray,
    sigma: float,
    fewer_light: Sequence[IntArray] = (),
) -> RepresentativeSystem:
    """Assembles K of a representative QP.

    Args:
        kkt: Pattern of K.
        qp: Values at a representative point, with the upper triangle of P.
        rho: Value of rho for each row.
        sigma: Regularisation of the Hessian.
        fewer_light: Smaller sets of variables that may wait; see `RepresentativeSystem`.
    """
    values = np.zeros(kkt.K_pattern.nnz)
    values[kkt.P_to_K] = qp.P
    values[kkt.A_to_K] = qp.A
    values[kkt.sigma_to_K] += sigma
    values[kkt.rho_to_K] = -1 / rho
    return RepresentativeSystem(kkt, values, fewer_light)


def _narrow(parent: IntArray) -> IntArray:
    """New place of each column: columns far from the root of the elimination tree come first.

    Chains that do not touch are then walked side by side, and L fits into a narrow band.  No column
    overtakes one that it depends on, so the values stay the same.
    """
    depth = np.zeros(parent.size, dtype=np.int64)
    for column in range(parent.size - 1, -1, -1):  # parents come behind their children
        if parent[column] >= 0:
            depth[column] = depth[parent[column]] + 1
    place = np.empty(parent.size, dtype=np.int64)
    place[np.lexsort((np.arange(parent.size), -depth))] = np.arange(parent.size)
    return place


def _solve(
    elimination: Elimination, values: np.ndarray, sides: np.ndarray, place: IntArray
) -> np.ndarray:
    """Factorises and solves in float32, with the columns moved to other places."""
    n, L, there = elimination.n, elimination.L_pattern, elimination.K_to_L >= 0
    rows, cols = place[L.row_idx], place[L.col_idx]
    reach = np.zeros(n, dtype=np.int64)  # how far each column extends below the diagonal
    np.maximum.at(reach, cols, rows - cols)
    width = int(reach.max(initial=0)) + 1
    # Row j of the band is column j of L: the pivot, then the entries below it, then zeros.
    band = np.zeros((n + width, width), dtype=np.float32)
    band[place, 0] = values[elimination.K_to_D]
    band[cols[there], (rows - cols)[there]] = values[elimination.K_to_L[there]]
    flat = band.reshape(-1)
    # Distance of the entry (j + 1 + a, j + 1 + b) of the matrix from the pivot of column j.
    a, b = np.tril_indices(width - 1)
    behind = (b + 1) * width + (a - b)
    for j, size in enumerate(reach.tolist()):
        column, count = band[j, 1 : size + 1], size * (size + 1) // 2
        scaled = column / band[j, 0]
        flat[j * width + behind[:count]] -= scaled[a[:count]] * column[b[:count]]
        column[:] = scaled
    lower = np.asfortranarray(band[:n].T)
    order = np.empty(n, dtype=np.int64)
    order[place] = elimination.perm
    x, _ = stbtrs(lower, sides[order].astype(np.float32), uplo="L", diag="U")
    x, _ = stbtrs(lower, x / band[:n, :1], uplo="L", trans="T", diag="U")
    found = np.empty_like(x)
    found[order] = x
    return found
