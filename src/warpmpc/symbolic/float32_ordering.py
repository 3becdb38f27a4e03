"""Orderings of KKT matrices that keep their digits in float32.

A variable without a weight of its own has sigma (1e-6) on the diagonal.  Taken as a pivot before
any row that holds it, it divides by sigma what later has to cancel: five of the seven digits of
float32 are lost.  After such a row its pivot is sigma + rho a^2.  So light variables wait for their
rows; rows of simple bounds do not count, they may be free.
"""

from __future__ import annotations

import numpy as np
import scipy.sparse as sp
from scipy.sparse.csgraph import maximum_bipartite_matching

from warpmpc.symbolic.kkt import KKTPattern
from warpmpc.symbolic.ordering import amd, stagewise
from warpmpc.symbolic.pattern import IntArray, SparsePattern


def safe_stagewise(kkt: KKTPattern, stages: IntArray, light: IntArray) -> IntArray:
    """Stages in ascending order; inside a stage, light variables wait for all their rows."""
    rows, holds = holding_rows(kkt)
    after: dict[int, set[int]] = {}
    for i, j in zip(*holds.nonzero(), strict=True):
        after.setdefault(int(j), set()).add(int(rows[i]))
    waiting = {variable: after[variable] for variable in light.tolist() if variable in after}
    return stagewise(kkt.K_pattern, stages, waiting)


def safe_amd(kkt: KKTPattern, light: IntArray) -> IntArray:
    """AMD in which every light variable follows right behind a row that holds it.

    Pairs of a largest matching are one node for AMD, and are eliminated row first.
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


def holding_rows(kkt: KKTPattern) -> tuple[IntArray, sp.csc_matrix]:
    """Rows (nodes of K) with more than one entry, and which variables each of them holds."""
    K, n = kkt.K_pattern, kkt.n_vars
    entry = (K.row_idx < n) & (K.col_idx >= n)
    shape = (kkt.n_cons, n)
    indices = (K.col_idx[entry] - n, K.row_idx[entry])
    A = sp.csr_matrix((np.ones(entry.sum()), indices), shape=shape)
    several = np.flatnonzero(np.diff(A.indptr) > 1)
    return n + several, sp.csc_matrix(A[several])
