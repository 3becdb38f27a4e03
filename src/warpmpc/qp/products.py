"""Products, sums and norms of fixed-pattern matrices, without atomics: the same bits in every run.

Arrays are ``[groups, rows, lanes]``.  Rows are sorted by their number of entries and cut into a few
buckets of equal padded width, each a gather and a reduction.  Sums are spelled out term by term:
XLA orders a reduction as it likes, differently for batches of different size, and an instance must
not change its bits when its batch is split.

QPs whose A has no entry get a free row: XLA loses kernels beside arrays of size zero.
"""

from __future__ import annotations

from itertools import pairwise

import jax
import jax.numpy as jnp
import numpy as np

from warpmpc.symbolic.pattern import IntArray, SparsePattern
from warpmpc.symbolic.segments import optimal_segments

_BUCKETS = 6
_UNROLLED = 32


class RowGather:
    """For each row of a matrix: which stored values it has and which columns they multiply."""

    def __init__(self, rows: IntArray, cols: IntArray, entries: IntArray, n_rows: int):
        """Builds the padded tables.

        Args:
            rows: Row of each term.
            cols: Column of each term.
            entries: Position of its value in the list of values.
            n_rows: Number of rows.
        """
        self.n_rows = n_rows
        counts = np.bincount(rows, minlength=n_rows)
        order = np.argsort(counts, kind="stable")
        self._back = np.argsort(order).astype(np.int32)
        by_row = np.lexsort((cols, rows))
        ptr = np.concatenate([[0], np.cumsum(counts)])
        bounds = optimal_segments(counts[order], _BUCKETS)
        self._buckets: list[tuple[IntArray, IntArray]] = []
        for first, last in pairwise(bounds.tolist()):
            members = order[first:last]
            width = int(counts[members].max(initial=0))
            inside = np.arange(width)
            present = inside < counts[members][:, None]
            term = (
                by_row[np.where(present, ptr[members][:, None] + inside, 0)]
                if rows.size
                else present
            )
            # Past any list: gathers fill with zero there.
            beyond = np.iinfo(np.int32).max
            self._buckets.append(
                (
                    np.where(present, entries[term] if rows.size else 0, beyond).astype(np.int32),
                    np.where(present, cols[term] if rows.size else 0, beyond).astype(np.int32),
                )
            )

    def product(self, vals: jax.Array, x: jax.Array) -> jax.Array:
        """Matrix times vector."""
        parts = [_row_sums(vals, x, e, c) for e, c in self._buckets]
        return self._joined(parts, vals)

    def product_twice(self, vals: jax.Array, x: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Matrix times vector in twice the precision: sums, and what rounding took from them."""
        parts = [_row_sums_twice(vals, x, e, c) for e, c in self._buckets]
        sums, rest = ([part[i] for part in parts] for i in (0, 1))
        return self._joined(sums, vals), self._joined(rest, vals)

    def row_norms(self, vals: jax.Array) -> jax.Array:
        """Largest absolute value of each row; 0 for empty rows."""
        parts = [jnp.abs(_take(vals, e)).max(axis=2, initial=0) for e, _ in self._buckets]
        return self._joined(parts, vals)

    def _joined(self, parts: list[jax.Array], vals: jax.Array) -> jax.Array:
        if not parts:  # a matrix without rows
            return jnp.zeros((vals.shape[0], 0, vals.shape[2]), dtype=vals.dtype)
        return jnp.concatenate(parts, axis=1)[:, self._back]


def _row_sums(vals: jax.Array, x: jax.Array, entries: IntArray, cols: IntArray) -> jax.Array:
    """Sum over the second axis of the index tables, one term after the other."""
    n_rows, width = entries.shape
    # Unrolled terms become one program; beyond a few dozen its compilation would take too long.
    by_term = entries.T.reshape(width, n_rows), cols.T.reshape(width, n_rows)
    start = jnp.zeros((vals.shape[0], n_rows, vals.shape[2]), dtype=vals.dtype)
    if width <= _UNROLLED or not n_rows:
        terms = zip(*by_term, strict=True)
        return sum((rounded(_take(vals, e) * _take(x, c)) for e, c in terms), start)
    e, c = (jnp.asarray(table) for table in by_term)
    return jax.lax.fori_loop(
        0, width, lambda k, sums: sums + rounded(_take(vals, e[k]) * _take(x, c[k])), start
    )


def _row_sums_twice(
    vals: jax.Array, x: jax.Array, entries: IntArray, cols: IntArray
) -> tuple[jax.Array, jax.Array]:
    """The same sums, and the sum of all rounding errors."""
    n_rows, width = entries.shape
    by_term = (table.T.reshape(width, n_rows) for table in (entries, cols))
    e, c = (jnp.asarray(table) for table in by_term)
    start = jnp.zeros((vals.shape[0], n_rows, vals.shape[2]), dtype=vals.dtype)

    def once(k: jax.Array, now: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        product, lost = exact_product(_take(vals, e[k]), _take(x, c[k]))
        sums, more = exact_sum(now[0], product)
        return sums, now[1] + (lost + more)

    return jax.lax.fori_loop(0, width, once, (start, start)) if width else (start, start)


# Half of the bits of a mantissa: products of such halves are exact.
_UPPER_HALF = {4: (jnp.uint32, 0xFFFFF000), 8: (jnp.uint64, 0xFFFFFFFFF8000000)}


def exact_product(a: jax.Array, b: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Product and its rounding error."""
    product = rounded(a * b)
    (a, a_low), (b, b_low) = _halves(a), _halves(b)
    return product, ((a * b - product) + a * b_low + a_low * b) + a_low * b_low


def exact_sum(a: jax.Array, b: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Sum and its rounding error."""
    both = a + b
    more = both - a
    return both, (a - (both - more)) + (b - more)


def _halves(values: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Upper and lower bits of numbers, as numbers."""
    kind, mask = _UPPER_HALF[values.dtype.itemsize]
    bits = jax.lax.bitcast_convert_type(values, kind) & jnp.asarray(mask, dtype=kind)
    upper = jax.lax.bitcast_convert_type(bits, values.dtype)
    return upper, values - upper


def rounded(products: jax.Array) -> jax.Array:
    """The same values, out of reach of a fused multiply-add.

    Whether a product is fused with the sum behind it depends on what XLA puts into one loop, which
    depends on the size of the batch.  The selection changes nothing but -0 and stands between.
    """
    return jnp.where(products == 0, 0, products)


def total(array: jax.Array) -> jax.Array:
    """Sum over the rows of each instance, by halves: ``[groups, 1, lanes]``."""
    if not array.shape[1]:
        return jnp.zeros((array.shape[0], 1, array.shape[2]), dtype=array.dtype)
    array = rounded(array)
    while array.shape[1] > 1:
        half = array.shape[1] // 2
        pairs = array[:, :half] + array[:, half : 2 * half]
        array = jnp.concatenate([pairs, array[:, 2 * half :]], axis=1)
    return array


def norm(array: jax.Array) -> jax.Array:
    """Largest absolute value of each instance: ``[groups, 1, lanes]``."""
    return jnp.abs(array).max(axis=1, keepdims=True, initial=0)


def _take(array: jax.Array, index: IntArray | jax.Array) -> jax.Array:
    if not array.shape[1] or not index.size:
        return jnp.zeros((array.shape[0], *index.shape, array.shape[2]), dtype=array.dtype)
    return jnp.take(array, index, axis=1, mode="fill", fill_value=0)


class QPMatrices:
    """Products with P (stored upper triangle), A and A' of one QP pattern."""

    def __init__(self, P_pattern: SparsePattern, P_entries: IntArray, A_pattern: SparsePattern):
        """Builds the tables.

        Args:
            P_pattern: Upper triangle of P.
            P_entries: Position of each of its entries in the list of values of P.
            A_pattern: Pattern of A, its values in column-major order.
        """
        self.n_values = P_pattern.nnz + A_pattern.nnz
        rows, cols = P_pattern.row_idx, P_pattern.col_idx
        mirrored = rows != cols
        self.P = RowGather(
            np.concatenate([rows, cols[mirrored]]),
            np.concatenate([cols, rows[mirrored]]),
            np.concatenate([P_entries, P_entries[mirrored]]),
            P_pattern.n_rows,
        )
        entries = np.arange(A_pattern.nnz)
        self.A = RowGather(A_pattern.row_idx, A_pattern.col_idx, entries, A_pattern.n_rows)
        self.AT = RowGather(A_pattern.col_idx, A_pattern.row_idx, entries, A_pattern.n_cols)


def with_free_row(n_cons: int, *arrays: jax.Array) -> list[jax.Array]:
    """The data of QPs, and a start if there is one, with the free row of an A without entries.

    Args:
        n_cons: Number of rows of the caller's problem.
        arrays: P, q, A, lower, upper; x, s and y of a start.
    """
    P, q, A, lower, upper, *start = arrays
    one = jnp.ones((q.shape[0], 1), dtype=q.dtype)
    # A start that is unknown in one row is unknown in all rows.
    x, *rows = start or [q]
    unknown = (jnp.isnan(r).all(axis=1, keepdims=True) & (n_cons > 0) for r in rows)
    free = [0 * one, -jnp.inf * one, jnp.inf * one]
    free += [jnp.where(missing, jnp.nan, 0 * one) for missing in unknown]
    found = [
        jnp.concatenate(pair, axis=1) for pair in zip((A, lower, upper, *rows), free, strict=True)
    ]
    return [P, q, *found[:3], *([x] if start else []), *found[3:]]
