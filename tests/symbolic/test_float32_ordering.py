"""Orderings that float32 bears: light variables come after rows that hold them."""

import numpy as np
import pytest
import scipy.sparse as sp
from cases import STRUCTURE_FACTS, kkt_of, light_of

from warpmpc.symbolic.elimination import eliminate
from warpmpc.symbolic.ordering import order, safe_amd, safe_stagewise
from warpmpc.symbolic.pattern import SparsePattern, build_kkt

NAMES = ["linear", "cartpole", "quadrotor", "ldl_benchmark"]


def rows_of(kkt, variable: int) -> list[int]:
    """Nodes of the rows that hold a variable and another one."""
    K, n = kkt.K_pattern, kkt.n_vars
    entry = (K.row_idx < n) & (K.col_idx >= n)
    counts = np.bincount(K.col_idx[entry], minlength=K.n_cols)
    rows = K.col_idx[entry & (K.row_idx == variable)]
    return [int(row) for row in rows if counts[row] > 1]


def position(perm: np.ndarray) -> np.ndarray:
    assert sorted(perm.tolist()) == list(range(perm.size))
    return np.argsort(perm)


@pytest.mark.parametrize("name", NAMES)
class TestBenchmarkSystems:
    def test_amd_puts_a_row_right_before_each_weak_variable(self, name):
        structure, kkt = kkt_of(name)
        light = light_of(structure)
        at = position(safe_amd(kkt, light))
        for variable in light.tolist():
            assert at[variable] - 1 in at[rows_of(kkt, variable)]

    def test_stages_make_weak_variables_wait(self, name):
        structure, kkt = kkt_of(name)
        stages, light = structure.stages, light_of(structure)
        at = position(safe_stagewise(kkt, -stages, light))
        for variable in light.tolist():
            same = [row for row in rows_of(kkt, variable) if stages[row] == stages[variable]]
            assert all(at[row] < at[variable] for row in same)

    def test_the_price_is_some_fill(self, name):
        structure, kkt = kkt_of(name)
        nnz = eliminate(kkt.K_pattern, safe_amd(kkt, light_of(structure))).nnz_L
        assert nnz <= 1.2 * STRUCTURE_FACTS[name].nnz_L

    def test_without_weak_variables_it_is_amd(self, name):
        _, kkt = kkt_of(name)
        ours = safe_amd(kkt, np.zeros(0, dtype=int))
        np.testing.assert_array_equal(ours, order(kkt.K_pattern, "amd"))


def test_a_weak_variable_without_a_row_is_left_alone():
    P, A = sp.csc_matrix((3, 3)), sp.csc_matrix([[1.0, 1.0, 0.0]])
    kkt = build_kkt(SparsePattern.from_scipy(P), SparsePattern.from_scipy(A))
    for perm in (
        safe_amd(kkt, np.arange(3)),
        safe_stagewise(kkt, np.zeros(4, dtype=int), np.arange(3)),
    ):
        at = position(perm)
        assert at[3] < max(at[0], at[1])
