"""Storage order: how a loop over an elimination keeps its nodes and the values of K.

Nodes stand in elimination order, so that a kernel walks memory forward and backward.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from warpmpc.symbolic.elimination import Elimination
from warpmpc.symbolic.pattern import IntArray


@dataclass(frozen=True, eq=False)
class StoredElimination:
    """An elimination and the order in which its numbers are kept.

    Attributes:
        elimination: In the order of K.
        K_order: Position in the upper triangle of K of each value.
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
        """Position in program order of each value of the upper triangle of K."""
        position = np.empty(self.K_order.size, dtype=np.int32)
        position[self.K_order] = np.arange(self.K_order.size)
        return position

    @property
    def diagonals(self) -> IntArray:
        """Where the diagonal of each node stands among the values."""
        return self.value_of[self.elimination.K_to_D]

    def in_program_order(self) -> Elimination:
        """The same elimination for values of K and nodes that are already in program order."""
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
    """Tables for products with P, A and A' from the values of K in program order.

    Returns:
        nodes: Rows of (begin, split, end, is_row): the terms of a node.  Those of a variable
            are P x (from `begin`, the diagonal is P + sigma) and A'y (from `split`); those of a row
            are all A x.
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
