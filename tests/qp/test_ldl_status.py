"""One instance that cannot be factorised: its flag, its solution, and its neighbours."""

from functools import cache

import numpy as np
import pytest
import scipy.sparse as sp
from cases import PATTERNS
from ldl_cases import DTYPES, ENGINE_NAMES, Batch, make_solver, solver_for, systems

from warpmpc import FactorStatus, LDLSolver

NAME = "random_33"
FIRST, LAST = 0, 32  # nodes of it
BATCH, BROKEN = 70, 45  # the middle of the second of three tiles


def entries_of(batch: Batch, node: int) -> tuple[np.ndarray, np.ndarray]:
    """Positions of the diagonal entry and of the off-diagonal entries of a row of K."""
    cols = np.repeat(np.arange(batch.K.shape[1]), np.diff(batch.K.indptr))
    rows = batch.K.indices
    own = (rows == node) | (cols == node)
    return np.flatnonzero(own & (rows == cols)), np.flatnonzero(own & (rows != cols))


def hub(batch: Batch) -> int:
    """The node with the most neighbours."""
    return max(range(batch.K.shape[0]), key=lambda node: entries_of(batch, node)[1].size)


def broken_values(batch: Batch, kind: str, node: int, at: int) -> np.ndarray:
    """A copy of the values whose instance `at` cannot be factorised."""
    diagonal, off = entries_of(batch, node)
    values = batch.values.copy()
    if kind == "zero":  # a row of zeros: the pivot is exactly zero in every order
        values[at, diagonal] = values[at, off] = 0
    else:
        what = {"nan": np.nan, "inf": np.inf, "minus_inf": -np.inf}
        place, number = kind.split(" of ")[1], what[kind.split(" of ")[0]]
        values[at, diagonal if place == "diagonal" else off[:1]] = number
    return values


KINDS = {
    "zero": FactorStatus.ZERO_PIVOT,
    "nan of diagonal": FactorStatus.NON_FINITE,
    "nan of row": FactorStatus.NON_FINITE,
    "inf of diagonal": FactorStatus.NON_FINITE,
    "minus_inf of row": FactorStatus.NON_FINITE,
}


def check_isolation(
    solver: LDLSolver, batch: Batch, kind: str, at: int, node: int | None = None
) -> None:
    node = hub(batch) if node is None else node
    clean = solver.factor(batch.values)
    clean_solution = np.asarray(solver.solve(clean, batch.rhs))
    factor = solver.factor(broken_values(batch, kind, node, at))
    solution = np.asarray(solver.solve(factor, batch.rhs))
    status = np.full(len(batch.values), FactorStatus.OK)
    status[at] = KINDS[kind]
    np.testing.assert_array_equal(factor.status, status)
    np.testing.assert_array_equal(factor.ok, status == FactorStatus.OK)
    assert np.isnan(solution[at]).all()
    others = np.arange(len(status)) != at
    assert np.isfinite(clean_solution).all()
    np.testing.assert_array_equal(solution[others], clean_solution[others])


class TestIsolation:
    @pytest.mark.parametrize("dtype", DTYPES)
    @pytest.mark.parametrize("kind", KINDS)
    @pytest.mark.parametrize("engine", [name for name in ENGINE_NAMES if name != "jax_columns"])
    def test_neighbours_do_not_change_in_any_bit(self, engine, kind, dtype):
        name = "random_10" if engine == "jax" else NAME  # compiles fast
        solver, batch = solver_for(name, engine, dtype), systems(name, dtype, BATCH)
        check_isolation(solver, batch, kind, BROKEN)

    @pytest.mark.parametrize("at", [0, 31, 32, 69])
    @pytest.mark.parametrize("node", [FIRST, LAST])
    @pytest.mark.parametrize("kind", KINDS)
    def test_anywhere(self, kind, node, at):
        check_isolation(solver_for(NAME), systems(NAME, batch=BATCH), kind, at, node)

    @pytest.mark.parametrize("batch", [1, 31, 33])
    def test_spare_lanes_are_not_reported(self, batch):
        given = systems(NAME, batch=batch)
        check_isolation(solver_for(NAME), given, "nan of row", batch - 1)

    def test_both_kinds_in_one_batch(self):
        solver, batch = solver_for(NAME), systems(NAME, batch=40)
        values = broken_values(batch, "zero", LAST, 3)
        values[7] = broken_values(batch, "nan of row", FIRST, 7)[7]
        status = np.asarray(solver.factor(values).status)
        assert status[3] == FactorStatus.ZERO_PIVOT
        assert status[7] == FactorStatus.NON_FINITE
        assert np.delete(status, [3, 7]).max() == FactorStatus.OK

    @pytest.mark.parametrize("engine", ["warp", "jax", "dense"])
    def test_not_finite_outranks_zero(self, engine):
        case = PATTERNS["diagonal"]()
        solver = make_solver(case, engine, "float64")
        values = np.ones((1, case.n))
        values[0, 1], values[0, 2] = 0, np.nan
        assert solver.factor(values).status[0] == FactorStatus.NON_FINITE

    @pytest.mark.parametrize("engine", ["warp", "warp_tables", "warp_batch_first", "jax", "dense"])
    def test_broken_right_hand_side(self, engine):
        """A right-hand side is data, not a failure: NaN stays in its instance, without a flag."""
        name = "random_10" if engine == "jax" else NAME
        solver, batch = solver_for(name, engine), systems(name, batch=BATCH)
        factor = solver.factor(batch.values)
        clean = np.asarray(solver.solve(factor, batch.rhs))
        rhs = batch.rhs.copy()
        rhs[BROKEN, FIRST] = np.nan
        solution = np.asarray(solver.solve(factor, rhs))
        assert np.isnan(solution[BROKEN, FIRST])
        others = np.arange(BATCH) != BROKEN
        np.testing.assert_array_equal(solution[others], clean[others])


@cache
def two_by_two_solver(backend: str, dtype: str) -> LDLSolver:
    K = sp.csc_matrix(np.triu(np.ones((2, 2))))
    return LDLSolver(K, ordering="natural", backend=backend, dtype=dtype)


def two_by_two(values: list[float], backend: str, dtype: str = "float64"):
    """Status and solution of [[a, b], [b, c]] x = (1, 2) from (a, b, c)."""
    solver = two_by_two_solver(backend, dtype)
    factor = solver.factor(np.array([values], dtype=dtype))
    solution = solver.solve(factor, np.array([[1, 2]], dtype=dtype))
    return int(factor.status[0]), np.asarray(solution)[0]


class TestPivots:
    @pytest.mark.parametrize("engine", ["warp", "jax", "dense"])
    def test_exact_cancellation(self, engine):
        status, solution = two_by_two([1.0, 1.0, 1.0], engine)
        assert status == FactorStatus.ZERO_PIVOT
        assert np.isnan(solution).all()

    @pytest.mark.parametrize("engine", ["warp", "jax"])
    def test_no_pivoting(self, engine):
        """[[0, 1], [1, 0]] is regular but has no LDL' without pivoting."""
        status, solution = two_by_two([0.0, 1.0, 0.0], engine)
        assert status == FactorStatus.ZERO_PIVOT
        assert np.isnan(solution).all()

    def test_the_dense_oracle_pivots(self):
        status, solution = two_by_two([0.0, 1.0, 0.0], "dense")
        assert status == FactorStatus.OK
        np.testing.assert_allclose(solution, [2, 1])

    @pytest.mark.parametrize("dtype", DTYPES)
    @pytest.mark.parametrize("engine", ["warp", "jax", "dense"])
    def test_subnormal_pivots_count_as_zero(self, engine, dtype):
        tiny = np.finfo(dtype).tiny
        assert two_by_two([1.0, 0.0, tiny / 2], engine, dtype)[0] == FactorStatus.ZERO_PIVOT
        assert two_by_two([1.0, 0.0, -tiny / 2], engine, dtype)[0] == FactorStatus.ZERO_PIVOT
        status, solution = two_by_two([1.0, 0.0, 4 * tiny], engine, dtype)
        assert status == FactorStatus.OK
        np.testing.assert_allclose(solution, [1, 0.5 / tiny], rtol=1e-6)

    @pytest.mark.parametrize("dtype", DTYPES)
    @pytest.mark.parametrize("engine", ["warp", "jax"])
    def test_overflow_is_reported(self, engine, dtype):
        huge = np.finfo(dtype).max
        status, solution = two_by_two([-huge / 8, huge / 2, huge / 2], engine, dtype)
        assert status == FactorStatus.NON_FINITE
        assert np.isnan(solution).all()

    @pytest.mark.parametrize("dtype", DTYPES)
    @pytest.mark.parametrize("engine", ["warp", "jax"])
    def test_huge_pivots_are_never_silently_wrong(self, engine, dtype):
        """The inverse is subnormal, which some devices flush to zero."""
        huge = np.finfo(dtype).max
        status, solution = two_by_two([1.0, 0.0, huge], engine, dtype)
        if status == FactorStatus.OK:
            np.testing.assert_allclose(solution, [1, 2 / huge], rtol=1e-5, atol=0)
        else:
            assert np.isnan(solution).all()


def test_status_names():
    assert [status.name for status in FactorStatus] == ["OK", "ZERO_PIVOT", "NON_FINITE"]
    assert FactorStatus.OK == 0
