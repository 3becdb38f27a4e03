"""Symbolic LDL': elimination tree, pattern of L, elimination steps, and stored order.

Reads: the upper pattern of K and a permutation.  Produces: an `Elimination`, which tells a
numerical engine where every value goes (Davis, "Direct Methods for Sparse Linear Systems", 4).

A `StoredElimination` adds the order in which a loop keeps its nodes and the values of K.  Nodes
stand in elimination order, so that a kernel walks through memory forward and backward.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from warpmpc.symbolic.pattern import IntArray, SparsePattern


@dataclass(frozen=True, eq=False)
class Elimination:
    """Symbolic factorisation of one pattern under one permutation.

    Attributes:
        K_pattern: Upper triangle of K in the caller's order.
        perm: ``perm[new] = old``.
        parent: Elimination tree in elimination order.
        L_pattern: Strictly lower triangle of L in elimination order.
        K_to_L: For each entry of L its position in K, -1 where it is fill.
        K_to_D: For each pivot its position in K.
    """

    K_pattern: SparsePattern
    perm: IntArray
    parent: IntArray
    L_pattern: SparsePattern
    K_to_L: IntArray
    K_to_D: IntArray

    @property
    def n(self) -> int:
        """Dimension of K."""
        return self.K_pattern.n_cols

    @property
    def nnz_L(self) -> int:
        """Entries strictly below the diagonal of L."""
        return self.L_pattern.nnz

    @cached_property
    def L_rows(self) -> tuple[SparsePattern, IntArray]:
        """L by rows: the pattern of L' and the position in L of each of its entries."""
        return self.L_pattern.transpose()

    @cached_property
    def updates(self) -> UpdateList:
        """The elimination steps, grouped by destination."""
        L, counts = self.L_pattern, self.L_pattern.col_counts
        parts: list[tuple[IntArray, IntArray, IntArray]] = []
        for width in np.unique(counts[counts > 1]):
            # All pairs of entries, for all columns with this number of entries at once.
            first = L.col_ptr[:-1][counts == width][:, None].astype(np.int64)
            low, high = np.triu_indices(width, k=1)
            right, left = (first + low).ravel(), (first + high).ravel()
            target = L.positions(L.row_idx[left], L.row_idx[right])
            parts.append((target, left, right))
        if not parts:
            empty = np.zeros(0, dtype=np.int32)
            return UpdateList(np.zeros(self.nnz_L + 1, dtype=np.int64), empty, empty)
        target, left, right = (np.concatenate(arrays) for arrays in zip(*parts, strict=True))
        # Positions in L ascend with the eliminated column, so sorting by `left` inside a target
        # fixes the order of summation for every schedule.
        by_target = np.lexsort((left, target))
        ptr = np.searchsorted(target[by_target], np.arange(self.nnz_L + 1))
        return UpdateList(ptr, left[by_target].astype(np.int32), right[by_target].astype(np.int32))

    def counts(self, itemsize: int = 4) -> dict[str, int]:
        """Operations and least memory traffic of one factorisation and one solve.

        Multiply-adds count as two operations.  Bytes: every input read once, every output written
        once; a solve reads L forward and backward and keeps one working vector.
        """
        columns = self.L_pattern.col_counts.astype(np.int64)
        multiply_adds = int((columns * (columns + 1) // 2).sum())
        return {
            "factor_flops": 2 * multiply_adds + self.nnz_L + self.n,
            "solve_flops": 4 * self.nnz_L + self.n,
            "factor_bytes": itemsize * (self.K_pattern.nnz + self.nnz_L + self.n),
            "solve_bytes": itemsize * (2 * self.nnz_L + 5 * self.n),
            "storage_bytes": itemsize * (self.K_pattern.nnz + self.nnz_L + 3 * self.n),
        }


@dataclass(frozen=True, eq=False)
class UpdateList:
    """All multiply-adds of a factorisation, grouped by the entry of L they change.

    Entry ``t`` of L receives ``-= L[left[s]] * L[right[s]]`` (left not yet divided by its pivot)
    for ``s`` in ``ptr[t]:ptr[t + 1]``, in ascending order of the eliminated column.
    """

    ptr: IntArray
    left: IntArray
    right: IntArray


def eliminate(K_pattern: SparsePattern, perm: IntArray) -> Elimination:
    """Analyses the pattern (upper triangle, full diagonal) under a permutation."""
    permuted, source = K_pattern.permute_symmetric(perm)
    parent = elimination_tree(permuted)
    L_pattern = fill_pattern(permuted, parent)
    position = permuted.positions(L_pattern.col_idx, L_pattern.row_idx)
    diagonal = np.arange(permuted.n_cols)
    return Elimination(
        K_pattern=K_pattern,
        perm=perm,
        parent=parent,
        L_pattern=L_pattern,
        K_to_L=np.where(position >= 0, source[position], -1).astype(np.int32),
        K_to_D=source[permuted.positions(diagonal, diagonal)],
    )


@dataclass(frozen=True, eq=False)
class StoredElimination:
    """An elimination and the order in which kernels store its values.

    Attributes:
        elimination: The elimination in the order of K.
        K_order: Position in the upper triangle of K of each stored value.
    """

    elimination: Elimination
    K_order: IntArray

    @property
    def n_nodes(self) -> int:
        """Dimension of K."""
        return self.elimination.n

    @property
    def n_L(self) -> int:
        """Entries of L."""
        return self.elimination.nnz_L

    @property
    def node_order(self) -> IntArray:
        """Index in K of each node."""
        return self.elimination.perm

    @cached_property
    def value_of(self) -> IntArray:
        """Position in stored order of each value of the upper triangle of K."""
        position = np.empty(self.K_order.size, dtype=np.int32)
        position[self.K_order] = np.arange(self.K_order.size)
        return position

    @property
    def diagonals(self) -> IntArray:
        """Position of the diagonal of each node among the stored values."""
        return self.value_of[self.elimination.K_to_D]

    def in_program_order(self) -> Elimination:
        """The same elimination for values of K and nodes that are already in stored order."""
        given = self.elimination
        source = np.append(self.value_of, -1)
        return Elimination(
            K_pattern=given.K_pattern,
            perm=np.arange(given.n, dtype=np.int32),
            parent=given.parent,
            L_pattern=given.L_pattern,
            K_to_L=source[given.K_to_L].astype(np.int32),
            K_to_D=source[given.K_to_D].astype(np.int32),
        )


def product_terms(program: StoredElimination, n_vars: int) -> tuple[IntArray, IntArray]:
    """Tables for products with P, A and A' from the values of K in stored order.

    Args:
        program: The elimination in stored order.
        n_vars: Number of variables.

    Returns:
        nodes: Rows of (begin, split, end, is_row), which point to the terms of a node.  A variable
            has the terms of P x from `begin` on, where its diagonal is P + sigma, and those of A'y
            from `split` on.  All terms of a row belong to A x.
        terms: Rows of (value of K, node).
    """
    K, n = program.elimination.K_pattern, program.n_nodes
    node_of = np.empty(n, dtype=np.int64)
    node_of[program.node_order] = np.arange(n)
    off = K.row_idx != K.col_idx
    kept = off | (K.row_idx < n_vars)
    at = np.concatenate([node_of[K.row_idx[kept]], node_of[K.col_idx[off]]])
    other = np.concatenate([K.col_idx[kept], K.row_idx[off]])
    value = np.concatenate([program.value_of[kept], program.value_of[off]])
    is_row = program.node_order >= n_vars
    with_A = is_row[at] | (other >= n_vars)
    by_node = np.lexsort((value, with_A, at))
    begin, end = (
        np.searchsorted(at[by_node], np.arange(n), side=side) for side in ("left", "right")
    )
    split = begin + np.bincount(at, weights=~with_A, minlength=n).astype(np.int64)
    nodes = np.stack([begin, split, end, is_row], axis=1)
    terms = np.stack([value, node_of[other]], axis=1)[by_node]
    return nodes.astype(np.int32), terms.astype(np.int32)


def elimination_tree(K_pattern: SparsePattern) -> IntArray:
    """Parent of each column of L in the elimination tree of an upper triangle, -1 at roots."""
    n = K_pattern.n_cols
    parent, ancestor = [-1] * n, [-1] * n
    rows, ptr = K_pattern.row_idx.tolist(), K_pattern.col_ptr.tolist()
    for col in range(n):
        for node in rows[ptr[col] : ptr[col + 1]]:
            while node != -1 and node < col:
                up = ancestor[node]
                ancestor[node] = col  # path compression
                if up == -1:
                    parent[node] = col
                node = up
    return np.array(parent, dtype=np.int32)


def postorder(parent: IntArray) -> IntArray:
    """Orders a forest so that every subtree is one block, with the largest child subtree first.

    Small subtrees then stand right before their parent, which keeps short the time between the
    computation of a value and its last use.
    """
    n = parent.size
    size = [1] * n
    children: list[list[int]] = [[] for _ in range(n)]
    roots: list[int] = []
    for node, up in enumerate(parent.tolist()):  # children come before parents
        if up < 0:
            roots.append(node)
        else:
            size[up] += size[node]
            children[up].append(node)
    order: list[int] = []
    stack = roots[::-1]
    while stack:
        node = stack.pop()
        if node < 0:
            order.append(~node)
            continue
        stack.append(~node)
        stack.extend(sorted(children[node], key=lambda child: (size[child], -child)))
    return np.array(order, dtype=np.int32)


def fill_pattern(K_pattern: SparsePattern, parent: IntArray) -> SparsePattern:
    """Strictly lower pattern of L: each row has the paths from the entries of K up the tree."""
    n = K_pattern.n_cols
    rows, ptr, up = K_pattern.row_idx.tolist(), K_pattern.col_ptr.tolist(), parent.tolist()
    seen = [-1] * n
    L_rows: list[int] = []
    L_cols: list[int] = []
    for row in range(n):
        seen[row] = row
        for col in rows[ptr[row] : ptr[row + 1]]:
            while seen[col] != row:
                seen[col] = row
                L_rows.append(row)
                L_cols.append(col)
                col = up[col]
    return SparsePattern.from_coo(np.array(L_rows), np.array(L_cols), (n, n))
