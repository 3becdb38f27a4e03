"""Elimination orders of the nodes of K.

Reads: the upper pattern of K, optionally a stage label per node.  Produces: ``perm`` with
``perm[new] = old``.  Register a new ordering in `ORDERINGS`.

Two orders keep their digits in float32.  A light variable, one without a weight of its own, has
only sigma (1e-6) on the diagonal.  If it is eliminated before any row that holds it, entries that
have to cancel later are divided by sigma, and five of the seven digits of float32 are lost.  After
such a row its pivot is sigma + rho a^2.  Therefore light variables wait for their rows.  Rows of
simple bounds do not count, because they may be free.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import pairwise

import casadi as ca
import numpy as np
import scipy.sparse as sp
from scipy.sparse.csgraph import maximum_bipartite_matching

from warpmpc._errors import PatternError, SettingsError
from warpmpc.symbolic.elimination import elimination_tree, postorder
from warpmpc.symbolic.pattern import IntArray, KKTPattern, SparsePattern


def amd(K_pattern: SparsePattern, stages: IntArray | None = None) -> IntArray:
    """Approximate minimum degree (by CasADi), then a postorder of its elimination tree.

    The postorder changes neither fill nor levels.  It puts every subtree into one block, so that a
    solve finds the values that it needs close to each other.
    """
    del stages
    off = K_pattern.row_idx != K_pattern.col_idx
    rows, cols = K_pattern.row_idx[off].tolist(), K_pattern.col_idx[off].tolist()
    full = ca.Sparsity.triplet(K_pattern.n_rows, K_pattern.n_cols, rows + cols, cols + rows)
    perm = np.array((full + ca.Sparsity.diag(K_pattern.n_cols)).amd(), dtype=np.int32)
    permuted, _ = K_pattern.permute_symmetric(perm)
    return perm[postorder(elimination_tree(permuted))]


def natural(K_pattern: SparsePattern, stages: IntArray | None = None) -> IntArray:
    """No reordering."""
    del stages
    return np.arange(K_pattern.n_cols, dtype=np.int32)


def stagewise(
    K_pattern: SparsePattern,
    stages: IntArray | None = None,
    after: Mapping[int, set[int]] | None = None,
) -> IntArray:
    """Stages in ascending order, minimum degree inside each; ties by position in the stage.

    Rows of simple bounds (a single neighbour, which comes before them in K) go first: they cause
    no fill.  Ties never look at absolute indices, so stages of equal structure are ordered equally
    and their columns of L repeat.

    Args:
        K_pattern: Upper triangle of K.
        stages: Label of each node.
        after: For some nodes, the nodes of their stage that they have to wait for.
    """
    if stages is None:
        raise SettingsError('ordering="stage" needs `stages`: one integer label per row of K.')
    stages = np.asarray(stages)
    if stages.shape != (K_pattern.n_cols,) or stages.dtype.kind not in "iu":
        raise PatternError(
            f"`stages` must hold one integer label per row of K, shape ({K_pattern.n_cols},); "
            f"got shape {stages.shape}, dtype {stages.dtype}."
        )
    pointer, index = K_pattern.symmetric_adjacency()
    neighbours = [set(index[a:b].tolist()) for a, b in pairwise(pointer.tolist())]
    perm: list[int] = []
    for label in np.unique(stages):
        nodes = np.flatnonzero(stages == label).tolist()
        perm += _eliminate_stage(nodes, neighbours, after or {})
    return np.array(perm, dtype=np.int32)


def _eliminate_stage(
    nodes: list[int], neighbours: list[set[int]], after: Mapping[int, set[int]]
) -> list[int]:
    """Minimum-degree order of the nodes of one stage; updates the graph in place."""
    nothing: set[int] = set()
    rank = {node: local for local, node in enumerate(nodes)}
    bounds = {node for node in nodes if len(neighbours[node]) == 1 and min(neighbours[node]) < node}
    todo, order = set(nodes), []
    while todo:
        pivot = min(
            todo,
            key=lambda node: (
                node not in bounds,
                not todo.isdisjoint(after.get(node, nothing)),
                len(neighbours[node]),
                -rank[node],
            ),
        )
        todo.remove(pivot)
        order.append(pivot)
        clique = neighbours[pivot]
        for node in clique:
            neighbours[node].remove(pivot)
            neighbours[node] |= clique
            neighbours[node].remove(node)
        neighbours[pivot] = set()
    return order


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


def holding_rows(kkt: KKTPattern) -> tuple[IntArray, sp.csc_matrix]:
    """Rows (as nodes of K) with more than one entry, and the variables that each of them holds."""
    K, n = kkt.K_pattern, kkt.n_vars
    entry = (K.row_idx < n) & (K.col_idx >= n)
    shape = (kkt.n_cons, n)
    indices = (K.col_idx[entry] - n, K.row_idx[entry])
    A = sp.csr_matrix((np.ones(entry.sum()), indices), shape=shape)
    several = np.flatnonzero(np.diff(A.indptr) > 1)
    return n + several, sp.csc_matrix(A[several])


ORDERINGS: dict[str, Callable[[SparsePattern, IntArray | None], IntArray]] = {
    "amd": amd,
    "stage": stagewise,
    "natural": natural,
}


def order(
    K_pattern: SparsePattern, ordering: str | IntArray, stages: IntArray | None = None
) -> IntArray:
    """Resolves a name from `ORDERINGS` or checks an explicit permutation."""
    if isinstance(ordering, str):
        if ordering not in ORDERINGS:
            raise SettingsError(
                f"Unknown ordering {ordering!r}; choose one of {sorted(ORDERINGS)} "
                "or pass a permutation."
            )
        return ORDERINGS[ordering](K_pattern, stages)
    perm = np.asarray(ordering)
    if perm.shape != (K_pattern.n_cols,) or not np.array_equal(
        np.sort(perm), np.arange(K_pattern.n_cols)
    ):
        raise PatternError(
            f"The ordering must be a permutation of 0..{K_pattern.n_cols - 1} with perm[new] = old."
        )
    return perm.astype(np.int32)
