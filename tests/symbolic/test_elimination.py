"""Elimination tree, pattern of L and elimination steps against dense elimination and qdldl."""

import numpy as np
import pytest
from cases import (
    FEW,
    PATTERN_NAMES,
    PATTERNS,
    PROPERTY,
    STRUCTURE_NAMES,
    KCase,
    eliminated,
    kkt_of,
    pattern_of,
    quasi_definite,
    random_cases,
)
from hypothesis import given
from hypothesis import strategies as st
from oracles import (
    dense_ldl,
    dense_pattern,
    dense_symmetric,
    first_below,
    permuted_full,
    qdldl_factors,
    run_updates,
    symbolic_fill,
)

from warpmpc.symbolic.elimination import (
    Elimination,
    eliminate,
    elimination_tree,
    fill_pattern,
    postorder,
)
from warpmpc.symbolic.ordering import order

EXACT = 1e-12  # relative, float64


def check_symbolic(elimination: Elimination) -> None:
    full = permuted_full(elimination.K_pattern, elimination.perm)
    L = symbolic_fill(full)
    np.testing.assert_array_equal(dense_pattern(elimination.L_pattern), L)
    np.testing.assert_array_equal(elimination.parent, first_below(L))
    assert elimination.nnz_L == L.sum()
    in_K = full[elimination.L_pattern.row_idx, elimination.L_pattern.col_idx]
    np.testing.assert_array_equal(elimination.K_to_L >= 0, in_K)


def check_numerical(elimination: Elimination, K: np.ndarray, K_vals: np.ndarray) -> None:
    L, D = dense_ldl(K[np.ix_(elimination.perm, elimination.perm)])
    L_vals, D_vals = run_updates(elimination, K_vals)
    found = elimination.L_pattern.to_scipy(L_vals).toarray() + np.eye(elimination.n)
    np.testing.assert_allclose(found, L, rtol=0, atol=EXACT * abs(L).max())
    np.testing.assert_allclose(D_vals, D, rtol=0, atol=EXACT * abs(D).max())


def check_qdldl(case: KCase) -> None:
    K, values = quasi_definite(case, seed=2)
    L, D, perm = qdldl_factors(K, values[0])
    elimination = eliminate(case.pattern, perm)
    assert elimination.nnz_L == L.nnz
    L_vals, D_vals = run_updates(elimination, values[0])
    ours = elimination.L_pattern.to_scipy(L_vals)
    L.sort_indices()
    np.testing.assert_array_equal(ours.indptr, L.indptr)
    np.testing.assert_array_equal(ours.indices, L.indices)
    np.testing.assert_allclose(ours.data, L.data, rtol=0, atol=EXACT)
    np.testing.assert_allclose(D_vals, D, rtol=EXACT)


class TestSymbolic:
    @pytest.mark.parametrize("ordering", ["natural", "amd"])
    @pytest.mark.parametrize("name", PATTERN_NAMES)
    def test_named_patterns(self, name, ordering):
        pattern = PATTERNS[name]().pattern
        check_symbolic(eliminate(pattern, order(pattern, ordering)))

    @PROPERTY
    @given(random_cases(max_n=60), st.integers(0, 999))
    def test_random_permutations(self, case: KCase, seed):
        perm = np.random.default_rng(seed).permutation(case.n)
        check_symbolic(eliminate(case.pattern, perm))

    @pytest.mark.parametrize(
        ("name", "ordering"),
        [("cartpole", "amd"), ("quadrotor", "stage"), ("ldl_benchmark", "natural")],
    )
    def test_benchmark_systems(self, name, ordering):
        check_symbolic(eliminated(name, ordering))

    def test_fill_of_a_ring(self):
        ring = np.eye(5, k=1, dtype=bool) | np.eye(5, dtype=bool)
        ring[0, 4] = True
        pattern = pattern_of(ring)
        parent = elimination_tree(pattern)
        np.testing.assert_array_equal(parent, [1, 2, 3, 4, -1])
        L = dense_pattern(fill_pattern(pattern, parent))
        assert L[4].tolist() == [True, True, True, True, False]
        assert L.sum() == 7

    @pytest.mark.parametrize("name", PATTERN_NAMES)
    def test_rows_of_L(self, name):
        pattern = PATTERNS[name]().pattern
        elimination = eliminate(pattern, order(pattern, "amd"))
        by_row, position = elimination.L_rows
        L_pattern = elimination.L_pattern
        np.testing.assert_array_equal(L_pattern.row_idx[position], by_row.col_idx)
        np.testing.assert_array_equal(L_pattern.col_idx[position], by_row.row_idx)


class TestPostorder:
    @PROPERTY
    @given(st.lists(st.integers(0, 10**6), max_size=40))
    def test_subtrees_are_blocks(self, draws):
        # A forest in which parents have larger indices, as in an elimination tree.
        n = len(draws)
        parent = np.full(n, -1, dtype=np.int32)
        for i, draw in enumerate(draws[:-1]):
            if draw % 7:
                parent[i] = i + 1 + draw % (n - i - 1)
        ordered = postorder(parent)
        np.testing.assert_array_equal(np.sort(ordered), np.arange(n))
        when = np.empty(n, dtype=int)
        when[ordered] = np.arange(n)
        for root in range(n):
            subtree = [i for i in range(n) if root in ancestors(parent, i)]
            times = np.sort(when[subtree])
            assert times[-1] == when[root]
            np.testing.assert_array_equal(np.diff(times), 1)
        size = [sum(root in ancestors(parent, i) for i in range(n)) for root in range(n)]
        for up in range(n):
            children = np.flatnonzero(parent == up).tolist()
            largest_first = sorted(children, key=lambda child: (-size[child], child))
            assert np.all(np.diff(when[largest_first]) > 0)

    def test_deep_chain(self):
        parent = np.append(np.arange(1, 5000), -1).astype(np.int32)
        np.testing.assert_array_equal(postorder(parent), np.arange(5000))

    @PROPERTY
    @given(random_cases(max_n=60))
    def test_keeps_fill(self, case: KCase):
        before = eliminate(case.pattern, np.arange(case.n))
        after = eliminate(case.pattern, postorder(before.parent))
        assert after.nnz_L == before.nnz_L
        np.testing.assert_array_equal(postorder(after.parent), np.arange(case.n))


def ancestors(parent: np.ndarray, node: int) -> list[int]:
    found = []
    while node >= 0:
        found.append(node)
        node = int(parent[node])
    return found


class TestNumerical:
    @pytest.mark.parametrize("ordering", ["natural", "amd"])
    @pytest.mark.parametrize("name", PATTERN_NAMES)
    def test_updates_reproduce_the_dense_factors(self, name, ordering):
        K, values = quasi_definite(name, seed=1)
        pattern = PATTERNS[name]().pattern
        elimination = eliminate(pattern, order(pattern, ordering))
        check_numerical(elimination, dense_symmetric(K, values)[0], values[0])

    @PROPERTY
    @given(random_cases(max_n=30), st.integers(0, 999))
    def test_random_permutations(self, case: KCase, seed):
        K, values = quasi_definite(case, seed)
        perm = np.random.default_rng(seed).permutation(case.n)
        elimination = eliminate(case.pattern, perm)
        check_numerical(elimination, dense_symmetric(K, values)[0], values[0])

    @PROPERTY
    @given(random_cases(max_n=40))
    def test_updates_are_grouped_and_ordered(self, case: KCase):
        elimination = eliminate(case.pattern, order(case.pattern, "amd"))
        L, updates = elimination.L_pattern, elimination.updates
        assert updates.ptr.size == L.nnz + 1
        assert updates.ptr[-1] == updates.left.size == updates.right.size
        for t in range(L.nnz):
            s = slice(updates.ptr[t], updates.ptr[t + 1])
            left, right = updates.left[s], updates.right[s]
            assert np.all(L.row_idx[left] == L.row_idx[t])
            assert np.all(L.row_idx[right] == L.col_idx[t])
            np.testing.assert_array_equal(L.col_idx[left], L.col_idx[right])
            assert np.all(np.diff(L.col_idx[left]) > 0)


@pytest.mark.oracle
class TestQDLDL:
    @pytest.mark.parametrize("name", PATTERN_NAMES)
    def test_named_patterns(self, name):
        check_qdldl(PATTERNS[name]())

    @FEW
    @given(random_cases(max_n=200))
    def test_random_patterns(self, case: KCase):
        check_qdldl(case)

    @pytest.mark.parametrize("name", STRUCTURE_NAMES)
    def test_benchmark_systems(self, name):
        given_structure, kkt = kkt_of(name)
        signs = np.repeat([1, -1], [kkt.n_vars, kkt.n_cons])
        check_qdldl(KCase(kkt.K_pattern.to_scipy(), signs, given_structure.stages))


class TestCounts:
    @pytest.mark.parametrize("itemsize", [4, 8])
    @pytest.mark.parametrize("name", PATTERN_NAMES)
    def test_counted_one_by_one(self, name, itemsize):
        pattern = PATTERNS[name]().pattern
        elimination = eliminate(pattern, order(pattern, "amd"))
        n, nnz_K, nnz_L = elimination.n, pattern.nnz, elimination.nnz_L
        # Each update of an entry of L, and of a pivot by an entry of its row, is one multiply-add;
        # each entry is divided once and each pivot inverted once.
        multiply_adds = elimination.updates.left.size + nnz_L
        counts = elimination.counts(itemsize)
        assert counts["factor_flops"] == 2 * multiply_adds + nnz_L + n
        assert counts["solve_flops"] == 2 * (2 * nnz_L) + n
        assert counts["factor_bytes"] == itemsize * (nnz_K + nnz_L + n)
        assert counts["solve_bytes"] == itemsize * (nnz_L + nnz_L + n + 4 * n)
        assert counts["storage_bytes"] == itemsize * (nnz_K + nnz_L + n + 2 * n)

    def test_dense_matrix_by_formula(self):
        n = 40
        counts = eliminate(PATTERNS["dense"]().pattern, np.arange(n)).counts()
        multiply_adds = sum(c * (c + 1) // 2 for c in range(n))
        assert counts["factor_flops"] == 2 * multiply_adds + n * (n - 1) // 2 + n
