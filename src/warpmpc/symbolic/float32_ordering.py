"""Orderings of KKT matrices that keep their digits in float32, and trials of orderings.

A light variable, one without a weight of its own, has only sigma (1e-6) on the diagonal.  If it is
eliminated before any row that holds it, entries that have to cancel later are divided by sigma, and
five of the seven digits of float32 are lost.  After such a row its pivot is sigma + rho a^2.
Therefore light variables wait for their rows.  Rows of simple bounds do not count, because they may
be free.

A `RepresentativeSystem` measures on the host how many digits an ordering keeps: it factorises in
float32, with the pivots in the given order as in the kernels, and compares with a float64 solution.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import scipy.sparse as sp
from scipy.linalg.lapack import stbtrs
from scipy.sparse.csgraph import maximum_bipartite_matching
from scipy.sparse.linalg import splu

from warpmpc.symbolic.derivatives.assembly import HostQP
from warpmpc.symbolic.elimination import Elimination
from warpmpc.symbolic.ordering import amd, stagewise
from warpmpc.symbolic.pattern import IntArray, KKTPattern, SparsePattern

# Entries of a band in a trial (160 MB); that of the humanoid has 2.2 million.
_LARGEST_BAND = 40_000_000
_N_SIDES = 4  # number of right-hand sides of a trial


def safe_stagewise(kkt: KKTPattern, stages: IntArray, light: IntArray) -> IntArray:
    """Stagewise ordering in which light variables wait for all their rows.

    Args:
        kkt: Pattern of K.
        stages: Stage of each node of K.
        light: Variables without a weight of their own.
    """
    rows, holds = holding_rows(kkt)
    after: dict[int, set[int]] = {}
    for i, j in zip(*holds.nonzero(), strict=True):
        after.setdefault(int(j), set()).add(int(rows[i]))
    waiting = {variable: after[variable] for variable in light.tolist() if variable in after}
    return stagewise(kkt.K_pattern, stages, waiting)


def safe_amd(kkt: KKTPattern, light: IntArray) -> IntArray:
    """AMD ordering in which every light variable follows directly behind a row that holds it.

    AMD sees each pair of a maximum matching as one node, of which the row is eliminated first.

    Args:
        kkt: Pattern of K.
        light: Variables without a weight of their own.
    """
    K = kkt.K_pattern
    rows, holds = holding_rows(kkt)
    group = np.arange(K.n_cols)
    if light.size and rows.size:
        partner = maximum_bipartite_matching(sp.csr_matrix(holds[:, light]), perm_type="row")
        paired = partner >= 0
        group[rows[partner[paired]]] = light[paired]
    _, node = np.unique(group, return_inverse=True)
    ends = np.sort(np.stack([node[K.row_idx], node[K.col_idx]]), axis=0)
    rows, cols = np.unique(ends, axis=1)
    coarse = SparsePattern.from_coo(rows, cols, (node.max() + 1, node.max() + 1))
    position = np.empty(coarse.n_cols, dtype=np.int64)
    position[amd(coarse)] = np.arange(coarse.n_cols)
    is_variable = np.arange(K.n_cols) < kkt.n_vars
    return np.lexsort((is_variable, position[node])).astype(np.int32)


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


def holding_rows(kkt: KKTPattern) -> tuple[IntArray, sp.csc_matrix]:
    """Rows (as nodes of K) with more than one entry, and the variables that each of them holds."""
    K, n = kkt.K_pattern, kkt.n_vars
    entry = (K.row_idx < n) & (K.col_idx >= n)
    shape = (kkt.n_cons, n)
    indices = (K.col_idx[entry] - n, K.row_idx[entry])
    A = sp.csr_matrix((np.ones(entry.sum()), indices), shape=shape)
    several = np.flatnonzero(np.diff(A.indptr) > 1)
    return n + several, sp.csc_matrix(A[several])


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
