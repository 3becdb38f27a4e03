"""What a hostile review of the LDL layer found, each as a test."""

import numpy as np
import pytest
import scipy.sparse as sp

import warpmpc as wm
from warpmpc.symbolic.elimination import eliminate
from warpmpc.symbolic.pattern import SparsePattern
from warpmpc.symbolic.stage_elimination import find_stage_blocks

FULL = np.array([[4.0, 1.0, 0.5], [1.0, -5.0, 2.0], [0.5, 2.0, 6.0]])


def upper_solver(**options):
    return wm.LDLSolver(sp.csc_matrix(np.triu(FULL)), dtype="float64", **options)


class TestValues:
    def test_full_symmetric_matrix_for_an_upper_solver(self):
        solver = upper_solver()
        expected = solver.values(sp.csc_matrix(np.triu(FULL)))
        np.testing.assert_array_equal(solver.values(sp.csr_matrix(FULL)), expected)

    @pytest.mark.parametrize("matrix", [np.tril(FULL), FULL + np.tril(np.ones((3, 3)), -1)])
    def test_a_lower_triangle_is_not_dropped(self, matrix):
        with pytest.raises(wm.ProblemError, match="built from the upper triangle"):
            upper_solver().values(sp.csc_matrix(matrix))

    def test_the_given_matrix_stays_as_it_was(self):
        unsorted = sp.csc_matrix(([1.0, 4.0, 3.0, 2.0], [1, 0, 1, 0], [0, 2, 4]), shape=(2, 2))
        before = unsorted.indices.copy()
        wm.LDLSolver(sp.csc_matrix(np.ones((2, 2)))).values(unsorted)
        np.testing.assert_array_equal(unsorted.indices, before)


class TestFactorsBelongToTheirSolver:
    def test_other_ordering(self):
        values, rhs = np.ones((1, 6)), np.ones((1, 3))
        one = upper_solver(ordering="natural")
        other = upper_solver(ordering=np.array([2, 1, 0]))
        with pytest.raises(wm.ProblemError, match="not made by this solver"):
            other.solve(one.factor(values), rhs)

    def test_other_scaling(self):
        one, other = upper_solver(), upper_solver(scaling=np.array([1.0, 2.0, 3.0]))
        with pytest.raises(wm.ProblemError, match="not made by this solver"):
            other.solve(one.factor(np.ones((1, 6))), np.ones((1, 3)))

    def test_an_equal_solver_may_use_it(self):
        values = upper_solver().values(sp.csc_matrix(FULL))[None]
        rhs = np.arange(3.0)[None]
        x = upper_solver().solve(upper_solver().factor(values), rhs)
        np.testing.assert_allclose(FULL @ np.asarray(x)[0], rhs[0], atol=1e-12)


class TestRefusals:
    @pytest.mark.parametrize("size", [1e25, 1e-25])
    def test_scaling_out_of_range(self, size):
        with pytest.raises(wm.ProblemError, match="leaves the range of float32"):
            wm.LDLSolver(sp.csc_matrix(np.triu(FULL)), scaling=np.full(3, size))

    @pytest.mark.parametrize("scaling", ["ruiz", np.ones(3) + 1j])
    def test_scaling_of_another_kind(self, scaling):
        with pytest.raises(wm.ProblemError, match="real numbers"):
            upper_solver(scaling=scaling)

    def test_settings_of_another_kind(self):
        with pytest.raises(wm.SettingsError, match="must be LDLSettings, got dict"):
            upper_solver(settings={"segments": 1})

    def test_backend_of_another_kind(self):
        with pytest.raises(wm.SettingsError, match="Unknown backend"):
            upper_solver(backend=["warp"])

    def test_one_dimensional_sparse_array(self):
        with pytest.raises(wm.PatternError, match="got a sparse array of shape"):
            SparsePattern.from_scipy(sp.coo_array(np.ones(3)))

    @pytest.mark.parametrize("value", [1, "no"])
    def test_level_scheduling_is_a_bool(self, value):
        with pytest.raises(wm.SettingsError, match="level_scheduling must be a bool"):
            wm.LDLSettings(level_scheduling=value)

    @pytest.mark.parametrize("value", [0, "x"])
    def test_window_is_a_bool_or_none(self, value):
        with pytest.raises(wm.SettingsError, match="window must be True, False or None"):
            wm.LDLSettings(window=value)

    @pytest.mark.parametrize("value", [True, 2.0, 0, 33])
    def test_warps_are_a_count(self, value):
        with pytest.raises(wm.SettingsError, match="warps_per_tile must be an integer"):
            wm.LDLSettings(warps_per_tile=value)

    def test_warps_without_levels(self):
        with pytest.raises(wm.SettingsError, match="one warp does all the work"):
            wm.LDLSettings(level_scheduling=False, warps_per_tile=4)

    def test_numpy_integers_are_integers(self):
        assert wm.LDLSettings(segments=np.int64(4)).segments == 4


@pytest.mark.parametrize("backend", ["warp", "jax", "dense"])
@pytest.mark.parametrize(("dtype", "huge"), [("float32", 3.06e38), ("float64", 1.7e308)])
def test_pivots_too_large_to_invert_are_flagged(backend, dtype, huge):
    solver = wm.LDLSolver(sp.csc_matrix([[1.0]]), backend=backend, dtype=dtype)
    factor = solver.factor(np.array([[huge], [2.0]], dtype=dtype))
    assert factor.status.tolist() == [wm.FactorStatus.NON_FINITE, wm.FactorStatus.OK]


def test_stages_with_permuted_nodes_are_not_equal():
    # Per stage a, b, c with a -> a', b -> a', c -> b'; stage 3 eliminates b before a.
    n_stages = 6
    rows = [3 * k + i for k in range(n_stages - 1) for i in (0, 1, 2)]
    cols = [3 * k + 3 + j for k in range(n_stages - 1) for j in (0, 0, 1)]
    n = 3 * n_stages
    pattern = SparsePattern.from_coo(
        np.array(rows + list(range(n))), np.array(cols + list(range(n))), (n, n)
    )
    stages, perm = np.repeat(np.arange(n_stages), 3), np.arange(n, dtype=np.int32)
    perm[9:12] = [10, 9, 11]
    blocks = find_stage_blocks(eliminate(pattern, perm), stages)
    assert all(not first <= 3 < last or last - first == 1 for first, last in blocks.runs)
