"""Sparsity patterns: the positions of the entries of a matrix, in compressed-column order.

Reads: SciPy matrices or index lists.  Produces: `SparsePattern`, on which the whole layer works,
and `KKTPattern`: the pattern of the KKT matrix of a QP, K = [[P + sigma I, A'], [A, -1/rho]], with
the maps from the values of P and A, sigma and rho to the values of K.
A matrix with a fixed pattern is two objects here: a pattern (on the host, offline) and values (on
the device).
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cached_property
from typing import Any, cast

import numpy as np
import scipy.sparse as sp

from warpmpc._errors import PatternError

IntArray = np.ndarray


@dataclass(frozen=True, eq=False)
class SparsePattern:
    """Structural nonzeros of a matrix, columns compressed, rows ascending inside a column.

    Attributes:
        n_rows: Number of rows.
        n_cols: Number of columns.
        col_ptr: Start of each column in `row_idx`, length ``n_cols + 1``.
        row_idx: Row of each nonzero, strictly ascending inside a column.
    """

    n_rows: int
    n_cols: int
    col_ptr: IntArray
    row_idx: IntArray

    @classmethod
    def from_coo(cls, rows: IntArray, cols: IntArray, shape: tuple[int, int]) -> SparsePattern:
        """Builds a pattern from index lists in any order; a position given twice is an error."""
        rows, cols = np.asarray(rows, dtype=np.int64), np.asarray(cols, dtype=np.int64)
        n_rows, n_cols = shape
        if rows.size and (rows.min() < 0 or rows.max() >= n_rows):
            raise PatternError(f"Row indices must lie in 0..{n_rows - 1}.")
        if cols.size and (cols.min() < 0 or cols.max() >= n_cols):
            raise PatternError(f"Column indices must lie in 0..{n_cols - 1}.")
        order = np.lexsort((rows, cols))
        rows, cols = rows[order], cols[order]
        twice = np.flatnonzero((np.diff(rows) == 0) & (np.diff(cols) == 0))
        if twice.size:
            i, j = rows[twice[0]], cols[twice[0]]
            raise PatternError(
                f"Entry ({i}, {j}) is given twice; sum duplicates first (SciPy: `sum_duplicates`)."
            )
        col_ptr = np.searchsorted(cols, np.arange(n_cols + 1)).astype(np.int32)
        return cls(n_rows, n_cols, col_ptr, rows.astype(np.int32))

    @classmethod
    def from_scipy(cls, matrix: sp.spmatrix | sp.sparray) -> SparsePattern:
        """Takes the stored entries of a SciPy matrix, explicit zeros included."""
        if not sp.issparse(matrix):
            raise PatternError(
                f"Expected a SciPy sparse matrix, got {type(matrix).__name__}; "
                "wrap it with `scipy.sparse.csc_matrix`."
            )
        given = cast(Any, matrix)  # the stubs of SciPy know little of the common base
        if len(given.shape) != 2:
            raise PatternError(f"Expected a matrix, got a sparse array of shape {given.shape}.")
        if np.issubdtype(given.dtype, np.complexfloating):
            raise PatternError("The matrix has complex values; matrices of a QP are real.")
        if given.dtype.kind not in "biuf":
            raise PatternError(
                f"Expected a matrix of real numbers, got dtype {given.dtype}: solvers take real "
                "values only."
            )
        coo = given.tocoo()
        return cls.from_coo(coo.row, coo.col, (int(coo.shape[0]), int(coo.shape[1])))

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and columns."""
        return self.n_rows, self.n_cols

    @property
    def nnz(self) -> int:
        """Number of structural nonzeros."""
        return int(self.row_idx.size)

    @cached_property
    def col_counts(self) -> IntArray:
        """Entries per column."""
        return np.diff(self.col_ptr)

    @cached_property
    def row_counts(self) -> IntArray:
        """Entries per row."""
        return np.bincount(self.row_idx, minlength=self.n_rows).astype(np.int32)

    @cached_property
    def col_idx(self) -> IntArray:
        """Column of each nonzero, in storage order."""
        return np.repeat(np.arange(self.n_cols, dtype=np.int32), self.col_counts)

    @cached_property
    def _keys(self) -> IntArray:
        return self.col_idx.astype(np.int64) * self.n_rows + self.row_idx

    def rows_of(self, col: int) -> IntArray:
        """Rows of the nonzeros of one column, ascending."""
        return self.row_idx[self.col_ptr[col] : self.col_ptr[col + 1]]

    def positions(self, rows: IntArray, cols: IntArray) -> IntArray:
        """Storage position of each (row, col); -1 where the pattern has no such entry."""
        keys = np.asarray(cols, dtype=np.int64) * self.n_rows + np.asarray(rows, dtype=np.int64)
        if not self.nnz:
            return np.full(keys.shape, -1, dtype=np.int32)
        at = np.minimum(np.searchsorted(self._keys, keys), self.nnz - 1)
        return np.where(self._keys[at] == keys, at, -1).astype(np.int32)

    def transpose(self) -> tuple[SparsePattern, IntArray]:
        """The transposed pattern and, for each of its entries, the position here."""
        source = np.lexsort((self.col_idx, self.row_idx)).astype(np.int32)
        col_ptr = np.concatenate([[0], np.cumsum(self.row_counts)]).astype(np.int32)
        return SparsePattern(self.n_cols, self.n_rows, col_ptr, self.col_idx[source]), source

    def upper(self) -> tuple[SparsePattern, IntArray]:
        """The upper triangle with diagonal and, for each of its entries, the position here."""
        source = np.flatnonzero(self.row_idx <= self.col_idx).astype(np.int32)
        pattern = SparsePattern.from_coo(self.row_idx[source], self.col_idx[source], self.shape)
        return pattern, source

    def union(self, other: SparsePattern) -> tuple[SparsePattern, IntArray, IntArray]:
        """Entries of either pattern, and the positions of both patterns' entries in the union."""
        if self.shape != other.shape:
            raise PatternError(f"Cannot unite patterns of shapes {self.shape} and {other.shape}.")
        keys = np.union1d(self._keys, other._keys)
        both = SparsePattern.from_coo(keys % self.n_rows, keys // self.n_rows, self.shape)
        return (
            both,
            both.positions(self.row_idx, self.col_idx),
            both.positions(other.row_idx, other.col_idx),
        )

    def permute_symmetric(self, perm: IntArray) -> tuple[SparsePattern, IntArray]:
        """Upper triangle of the symmetric permutation of an upper triangle.

        ``perm[new] = old``.  Also returns, for each entry of the result, its position here.
        """
        perm_inv = invert(perm)
        rows, cols = perm_inv[self.row_idx], perm_inv[self.col_idx]
        low, high = np.minimum(rows, cols), np.maximum(rows, cols)
        source = np.lexsort((low, high)).astype(np.int32)
        return SparsePattern.from_coo(low[source], high[source], self.shape), source

    def symmetric_adjacency(self) -> tuple[IntArray, IntArray]:
        """Neighbour lists (pointer, indices) of the graph of an upper triangle, no self-loops."""
        off = self.row_idx != self.col_idx
        rows = np.concatenate([self.row_idx[off], self.col_idx[off]])
        cols = np.concatenate([self.col_idx[off], self.row_idx[off]])
        order = np.lexsort((rows, cols))
        pointer = np.searchsorted(cols[order], np.arange(self.n_cols + 1))
        return pointer.astype(np.int32), rows[order].astype(np.int32)

    def is_symmetric(self) -> bool:
        """Whether (i, j) is an entry exactly when (j, i) is one."""
        return self.n_rows == self.n_cols and np.array_equal(
            self.transpose()[0].row_idx, self.row_idx
        )

    def to_scipy(self, values: np.ndarray | None = None) -> sp.csc_matrix:
        """A SciPy matrix with these entries (ones if no values are given)."""
        data = np.ones(self.nnz) if values is None else np.asarray(values)
        return sp.csc_matrix((data, self.row_idx, self.col_ptr), shape=self.shape)

    def digest(self) -> str:
        """Content hash: equal patterns have equal digests, across processes."""
        content = hashlib.sha256(np.array(self.shape, dtype=np.int64).tobytes())
        content.update(np.ascontiguousarray(self.col_ptr, dtype=np.int32).tobytes())
        content.update(np.ascontiguousarray(self.row_idx, dtype=np.int32).tobytes())
        return content.hexdigest()[:16]


def invert(perm: IntArray) -> IntArray:
    """The inverse permutation: ``invert(p)[p[i]] == i``."""
    inverse = np.empty_like(perm)
    inverse[perm] = np.arange(perm.size, dtype=perm.dtype)
    return inverse


def symmetric_upper(matrix: sp.spmatrix | sp.sparray) -> tuple[SparsePattern, IntArray, int]:
    """Upper triangle of a symmetric matrix given as upper triangle or in full, checked.

    Returns the upper pattern, for each of its entries the position in the given matrix's
    column-major list of stored entries, and the length of that list.
    """
    given = SparsePattern.from_scipy(matrix)
    if given.n_rows != given.n_cols:
        raise PatternError(f"K must be square, got shape {given.shape}.")
    if not given.n_cols:
        raise PatternError("K is empty; it needs at least one row.")
    upper, source = given.upper()
    if upper.nnz != given.nnz and not given.is_symmetric():
        lower = np.flatnonzero(given.row_idx > given.col_idx)
        rows, cols = given.row_idx, given.col_idx
        off = np.flatnonzero(given.positions(cols, rows) < 0)
        at = off[0] if off.size else lower[0]
        raise PatternError(
            f"K is structurally unsymmetric: ({rows[at]}, {cols[at]}) is stored but "
            f"({cols[at]}, {rows[at]}) is not. Pass the upper triangle (scipy.sparse.triu) or the "
            "full symmetric pattern."
        )
    missing = np.setdiff1d(np.arange(given.n_cols), upper.row_idx[upper.row_idx == upper.col_idx])
    if missing.size:
        raise PatternError(
            f"K has no diagonal entry in {missing.size} row(s), first {missing[0]}; "
            "store an explicit value there (an explicit zero counts)."
        )
    return upper, source, given.nnz


@dataclass(frozen=True, eq=False)
class KKTPattern:
    """Upper pattern of K and scatter maps into its values.

    Attributes:
        K_pattern: Upper triangle of K, all diagonal entries present.
        n_vars: Number of variables (leading block).
        n_cons: Number of constraint rows (trailing block).
        P_to_K: Position in K of each stored upper entry of P.
        A_to_K: Position in K of each entry of A (A is column-major).
        sigma_to_K: Position in K of the leading diagonal.
        rho_to_K: Position in K of the trailing diagonal.
    """

    K_pattern: SparsePattern
    n_vars: int
    n_cons: int
    P_to_K: IntArray
    A_to_K: IntArray
    sigma_to_K: IntArray
    rho_to_K: IntArray


def build_kkt(P_pattern: SparsePattern, A_pattern: SparsePattern) -> KKTPattern:
    """Assembles the KKT pattern; only the upper triangle of P is read."""
    n_vars, n_cons = P_pattern.n_cols, A_pattern.n_rows
    if P_pattern.n_rows != n_vars:
        raise PatternError(f"P must be square, got shape {P_pattern.shape}.")
    if A_pattern.n_cols != n_vars:
        raise PatternError(f"A has {A_pattern.n_cols} columns but P has {n_vars}; they must match.")
    P_upper, _ = P_pattern.upper()
    n_kkt = n_vars + n_cons
    diagonal = np.arange(n_kkt)
    off = P_upper.row_idx != P_upper.col_idx
    rows = np.concatenate([P_upper.row_idx[off], A_pattern.col_idx, diagonal])
    cols = np.concatenate([P_upper.col_idx[off], A_pattern.row_idx + n_vars, diagonal])
    K_pattern = SparsePattern.from_coo(rows, cols, (n_kkt, n_kkt))
    on_diagonal = K_pattern.positions(diagonal, diagonal)
    return KKTPattern(
        K_pattern=K_pattern,
        n_vars=n_vars,
        n_cons=n_cons,
        P_to_K=K_pattern.positions(P_upper.row_idx, P_upper.col_idx),
        A_to_K=K_pattern.positions(A_pattern.col_idx, A_pattern.row_idx + n_vars),
        sigma_to_K=on_diagonal[:n_vars],
        rho_to_K=on_diagonal[n_vars:],
    )
