"""Elimination orders of the nodes of K.

Reads: the upper pattern of K, optionally a stage label per node.  Produces: ``perm`` with
``perm[new] = old``.  Register a new ordering in `ORDERINGS`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import pairwise

import casadi as ca
import numpy as np

from warpmpc._errors import PatternError, SettingsError
from warpmpc.symbolic.elimination import elimination_tree, postorder
from warpmpc.symbolic.pattern import IntArray, SparsePattern


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
