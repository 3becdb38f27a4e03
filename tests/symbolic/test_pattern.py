"""SparsePattern against dense NumPy."""

import re

import numpy as np
import pytest
import scipy.sparse as sp
from cases import PROPERTY, pattern_of
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from oracles import dense_pattern

from warpmpc import _errors
from warpmpc._errors import PatternError
from warpmpc.symbolic.pattern import SparsePattern, invert, symmetric_upper

SHAPES = st.tuples(st.integers(1, 7), st.integers(1, 7))
MATRICES = SHAPES.flatmap(lambda shape: arrays(bool, shape))
PAIRS = SHAPES.flatmap(lambda shape: st.tuples(arrays(bool, shape), arrays(bool, shape)))
SQUARES = st.integers(1, 8).flatmap(lambda n: arrays(bool, (n, n)))
# An upper triangle with full diagonal and a permutation of its rows.
UPPERS = SQUARES.map(lambda dense: np.triu(dense) | np.eye(dense.shape[0], dtype=bool))
UPPERS_AND_ORDERS = UPPERS.flatmap(
    lambda upper: st.tuples(st.just(upper), st.permutations(range(upper.shape[0])))
)


def numbered(pattern: SparsePattern) -> np.ndarray:
    """Dense matrix whose entries are their storage positions plus one."""
    return pattern.to_scipy(np.arange(1, pattern.nnz + 1)).toarray()


def check_storage(pattern: SparsePattern) -> None:
    assert pattern.col_ptr.dtype == pattern.row_idx.dtype == np.int32
    assert pattern.col_ptr[0] == 0
    assert pattern.col_ptr[-1] == pattern.nnz == pattern.row_idx.size
    for col in range(pattern.n_cols):
        assert np.all(np.diff(pattern.rows_of(col)) > 0)


class TestConstruction:
    @PROPERTY
    @given(MATRICES, st.randoms(use_true_random=False))
    def test_from_coo_in_any_order(self, dense, random):
        entries = list(zip(*np.nonzero(dense), strict=True))
        random.shuffle(entries)
        rows, cols = np.array(entries, dtype=int).reshape(-1, 2).T
        pattern = SparsePattern.from_coo(rows, cols, dense.shape)
        check_storage(pattern)
        assert pattern.shape == dense.shape
        np.testing.assert_array_equal(dense_pattern(pattern), dense)

    @PROPERTY
    @given(MATRICES)
    def test_counts_and_indices(self, dense):
        pattern = pattern_of(dense)
        assert pattern.nnz == dense.sum()
        np.testing.assert_array_equal(pattern.col_counts, dense.sum(axis=0))
        np.testing.assert_array_equal(pattern.row_counts, dense.sum(axis=1))
        cols, rows = np.nonzero(dense.T)
        np.testing.assert_array_equal(pattern.col_idx, cols)
        np.testing.assert_array_equal(pattern.row_idx, rows)
        for col in range(pattern.n_cols):
            np.testing.assert_array_equal(pattern.rows_of(col), np.flatnonzero(dense[:, col]))

    @pytest.mark.parametrize("form", [sp.csc_matrix, sp.csr_matrix, sp.coo_matrix, sp.csr_array])
    def test_from_scipy(self, form):
        dense = np.array([[1.0, 0, 2], [0, 0, 3]])
        pattern = SparsePattern.from_scipy(form(dense))
        np.testing.assert_array_equal(dense_pattern(pattern), dense != 0)

    def test_explicit_zeros_are_entries(self):
        matrix = sp.csc_matrix(([0.0, 1.0], ([0, 1], [1, 1])), shape=(2, 2))
        np.testing.assert_array_equal(SparsePattern.from_scipy(matrix).row_idx, [0, 1])

    def test_from_scipy_sorts_rows(self):
        matrix = sp.csc_matrix((np.ones(3), np.array([2, 0, 1]), np.array([0, 3])), shape=(3, 1))
        np.testing.assert_array_equal(SparsePattern.from_scipy(matrix).row_idx, [0, 1, 2])

    def test_no_entries(self):
        pattern = SparsePattern.from_coo(np.array([]), np.array([]), (2, 3))
        check_storage(pattern)
        assert not dense_pattern(pattern).any()
        assert pattern.transpose()[0].shape == (3, 2)
        position = pattern.positions(np.array([0, 1]), np.array([0, 2]))
        np.testing.assert_array_equal(position, [-1, -1])


class TestOperations:
    @PROPERTY
    @given(MATRICES)
    def test_transpose(self, dense):
        pattern = pattern_of(dense)
        transposed, source = pattern.transpose()
        check_storage(transposed)
        np.testing.assert_array_equal(dense_pattern(transposed), dense.T)
        values = np.arange(1, pattern.nnz + 1)[source]
        np.testing.assert_array_equal(transposed.to_scipy(values).toarray(), numbered(pattern).T)

    @PROPERTY
    @given(MATRICES)
    def test_upper(self, dense):
        pattern = pattern_of(dense)
        upper, source = pattern.upper()
        check_storage(upper)
        values = np.arange(1, pattern.nnz + 1)[source]
        expected = np.triu(numbered(pattern))
        np.testing.assert_array_equal(upper.to_scipy(values).toarray(), expected)

    @PROPERTY
    @given(PAIRS)
    def test_union(self, pair):
        left, right = (pattern_of(dense) for dense in pair)
        both, left_to_both, right_to_both = left.union(right)
        check_storage(both)
        np.testing.assert_array_equal(dense_pattern(both), pair[0] | pair[1])
        for pattern, to_both in ((left, left_to_both), (right, right_to_both)):
            values = np.zeros(both.nnz, dtype=int)
            values[to_both] = np.arange(1, pattern.nnz + 1)
            np.testing.assert_array_equal(both.to_scipy(values).toarray(), numbered(pattern))

    @PROPERTY
    @given(MATRICES)
    def test_positions(self, dense):
        pattern = pattern_of(dense)
        rows, cols = np.indices(dense.shape)
        position = pattern.positions(rows.ravel(), cols.ravel()).reshape(dense.shape)
        np.testing.assert_array_equal(position, numbered(pattern) - 1)

    @PROPERTY
    @given(UPPERS_AND_ORDERS)
    def test_permute_symmetric(self, upper_and_order):
        upper, perm = upper_and_order[0], np.array(upper_and_order[1])
        pattern = pattern_of(upper)
        permuted, source = pattern.permute_symmetric(perm)
        check_storage(permuted)
        full = numbered(pattern) + np.triu(numbered(pattern), 1).T
        expected = np.triu(full[np.ix_(perm, perm)])
        values = np.arange(1, pattern.nnz + 1)[source]
        np.testing.assert_array_equal(permuted.to_scipy(values).toarray(), expected)

    @PROPERTY
    @given(UPPERS)
    def test_symmetric_adjacency(self, upper):
        pointer, index = pattern_of(upper).symmetric_adjacency()
        full = (upper | upper.T) & ~np.eye(upper.shape[0], dtype=bool)
        assert pointer.size == upper.shape[0] + 1
        for node in range(upper.shape[0]):
            neighbours = index[pointer[node] : pointer[node + 1]]
            np.testing.assert_array_equal(neighbours, np.flatnonzero(full[node]))

    @PROPERTY
    @given(MATRICES)
    def test_is_symmetric(self, dense):
        square = dense.shape[0] == dense.shape[1]
        assert pattern_of(dense).is_symmetric() == (square and np.array_equal(dense, dense.T))
        gram = dense @ dense.T
        assert pattern_of(gram).is_symmetric()

    def test_is_symmetric_on_all_matrices_of_size_three(self):
        for bits in range(2**9):
            dense = np.array([bits >> k & 1 for k in range(9)], dtype=bool).reshape(3, 3)
            assert pattern_of(dense).is_symmetric() == np.array_equal(dense, dense.T)

    @PROPERTY
    @given(MATRICES)
    def test_to_scipy(self, dense):
        pattern = pattern_of(dense)
        np.testing.assert_array_equal(pattern.to_scipy().toarray(), dense.astype(float))
        rows, cols = pattern.row_idx, pattern.col_idx
        matrix = pattern.to_scipy(10.0 * rows + cols).toarray()
        np.testing.assert_array_equal(matrix[rows, cols], 10.0 * rows + cols)
        assert SparsePattern.from_scipy(pattern.to_scipy()).digest() == pattern.digest()

    @PROPERTY
    @given(PAIRS)
    def test_digest_tells_patterns_apart(self, pair):
        left, right = (pattern_of(dense) for dense in pair)
        assert (left.digest() == right.digest()) == np.array_equal(*pair)

    def test_digest_includes_the_shape(self):
        empty = np.array([], dtype=int)
        wide = SparsePattern.from_coo(empty, empty, (2, 3))
        wider = SparsePattern.from_coo(empty, empty, (3, 3))
        assert wide.digest() != wider.digest()

    def test_digest_is_the_same_in_every_process(self):
        assert pattern_of(np.eye(3, dtype=bool)).digest() == "8fcef80bfc2a02c1"

    @PROPERTY
    @given(st.integers(0, 9).flatmap(lambda n: st.permutations(range(n))))
    def test_invert(self, perm):
        perm = np.array(perm, dtype=np.int32)
        np.testing.assert_array_equal(invert(perm)[perm], np.arange(perm.size))
        np.testing.assert_array_equal(perm[invert(perm)], np.arange(perm.size))


class TestSymmetricUpper:
    @PROPERTY
    @given(UPPERS, st.booleans())
    def test_upper_and_full_input_agree(self, upper, full):
        dense = upper | upper.T if full else upper
        given_pattern = pattern_of(dense)
        pattern, source, n_given = symmetric_upper(sp.csc_matrix(dense.astype(float)))
        assert n_given == given_pattern.nnz
        np.testing.assert_array_equal(dense_pattern(pattern), upper)
        values = np.arange(1, n_given + 1)[source]
        expected = np.triu(numbered(given_pattern))
        np.testing.assert_array_equal(pattern.to_scipy(values).toarray(), expected)

    def test_explicit_zero_counts_as_diagonal(self):
        matrix = sp.csc_matrix(([1.0, 0.0], ([0, 1], [0, 1])), shape=(2, 2))
        assert symmetric_upper(matrix)[0].nnz == 2

    def test_not_square(self):
        with pytest.raises(PatternError, match=re.escape("K must be square, got shape (2, 3).")):
            symmetric_upper(sp.csc_matrix((2, 3)))

    def test_empty(self):
        with pytest.raises(PatternError, match="K is empty; it needs at least one row"):
            symmetric_upper(sp.csc_matrix((0, 0)))

    def test_not_sparse(self):
        with pytest.raises(PatternError, match="SciPy sparse matrix, got ndarray; wrap it with"):
            symmetric_upper(np.eye(2))  # pyright: ignore[reportArgumentType]

    @pytest.mark.parametrize(
        ("dense", "stored", "absent"),
        [
            ([[1, 0, 1], [1, 1, 0], [1, 0, 1]], (1, 0), (0, 1)),
            ([[1, 1, 0], [1, 1, 1], [0, 0, 1]], (1, 2), (2, 1)),
            ([[1, 0, 0], [0, 1, 0], [0, 1, 1]], (2, 1), (1, 2)),
        ],
        ids=["below", "above", "lower_only"],
    )
    def test_unsymmetric(self, dense, stored, absent):
        message = f"K is structurally unsymmetric: {stored} is stored but {absent} is not. Pass"
        with pytest.raises(PatternError, match=re.escape(message)):
            symmetric_upper(sp.csc_matrix(np.array(dense, dtype=float)))

    def test_lower_triangle(self):
        lower = np.tril(np.ones((4, 4)))
        with pytest.raises(PatternError, match=re.escape("(1, 0) is stored but (0, 1) is not")):
            symmetric_upper(sp.csc_matrix(lower))

    @pytest.mark.parametrize("full", [False, True])
    def test_missing_diagonal(self, full):
        dense = np.ones((4, 4)) - np.diag([0.0, 1, 0, 1])
        matrix = sp.csc_matrix(dense if full else np.triu(dense))
        with pytest.raises(PatternError, match=r"no diagonal entry in 2 row\(s\), first 1; store"):
            symmetric_upper(matrix)


class TestErrors:
    def test_duplicates(self):
        message = "Entry (1, 0) is given twice; sum duplicates first"
        with pytest.raises(PatternError, match=re.escape(message)):
            SparsePattern.from_coo(np.array([1, 0, 1]), np.array([0, 1, 0]), (2, 2))

    @pytest.mark.parametrize("form", ["coo", "csc"])
    def test_duplicates_in_scipy_matrices(self, form):
        if form == "coo":
            matrix = sp.coo_matrix((np.ones(2), (np.array([1, 1]), np.array([0, 0]))), (2, 2))
        else:
            matrix = sp.csc_matrix((np.ones(2), np.array([1, 1]), np.array([0, 2, 2])), (2, 2))
        with pytest.raises(PatternError, match=r"Entry \(1, 0\) is given twice"):
            SparsePattern.from_scipy(matrix)
        matrix.sum_duplicates()
        assert SparsePattern.from_scipy(matrix).nnz == 1

    @pytest.mark.parametrize("row", [-1, 3])
    def test_row_out_of_range(self, row):
        with pytest.raises(PatternError, match=r"Row indices must lie in 0\.\.2\."):
            SparsePattern.from_coo(np.array([row]), np.array([0]), (3, 2))

    @pytest.mark.parametrize("col", [-1, 2])
    def test_column_out_of_range(self, col):
        with pytest.raises(PatternError, match=r"Column indices must lie in 0\.\.1\."):
            SparsePattern.from_coo(np.array([0]), np.array([col]), (3, 2))

    def test_union_of_different_shapes(self):
        left, right = pattern_of(np.ones((2, 3), dtype=bool)), pattern_of(np.eye(3, dtype=bool))
        message = "Cannot unite patterns of shapes (2, 3) and (3, 3)."
        with pytest.raises(PatternError, match=re.escape(message)):
            left.union(right)

    def test_permuting_a_full_matrix(self):
        full = pattern_of(np.ones((2, 2), dtype=bool))
        with pytest.raises(PatternError, match=r"Entry \(0, 1\) is given twice"):
            full.permute_symmetric(np.array([1, 0]))

    @pytest.mark.parametrize(
        "name", ["ProblemError", "PatternError", "CodegenError", "SettingsError"]
    )
    def test_all_errors_share_one_base(self, name):
        assert issubclass(getattr(_errors, name), _errors.WarpMPCError)
