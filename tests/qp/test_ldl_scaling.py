"""`scaling`: the same solutions, another range of numbers inside."""

import numpy as np
import pytest
import scipy.sparse as sp
from cases import PATTERNS
from ldl_cases import MAX_RESIDUAL, make_solver, solver_for, systems
from oracles import relative_residuals

from warpmpc import FactorStatus, LDLSolver, ProblemError

ENGINES = ["warp", "warp_tables", "warp_batch_first", "jax", "dense"]
NAME = "random_10"


@pytest.mark.parametrize("engine", ENGINES)
def test_solutions_are_those_of_the_given_matrix(engine):
    case = PATTERNS[NAME]()
    scaling = np.random.default_rng(0).uniform(0.1, 10.0, size=case.n)
    batch = systems(NAME, batch=40)
    solver = make_solver(case, engine, "float64", scaling=scaling)
    solution = np.asarray(solver.solve(solver.factor(batch.values), batch.rhs))
    assert relative_residuals(batch.K, batch.values, solution, batch.rhs).max() < 1e-12
    plain = solver_for(NAME, engine)
    wanted = np.asarray(plain.solve(plain.factor(batch.values), batch.rhs))
    np.testing.assert_allclose(solution, wanted, rtol=1e-11, atol=1e-13)


@pytest.mark.parametrize("engine", ENGINES)
def test_powers_of_two_change_no_bit_of_the_solution(engine):
    case, batch = PATTERNS[NAME](), systems(NAME, "float32")
    scaling = 2.0 ** np.random.default_rng(1).integers(-8, 9, size=case.n)
    solver, plain = (
        make_solver(case, engine, "float32", scaling=scaling),
        solver_for(NAME, engine, "float32"),
    )
    solution = solver.solve(solver.factor(batch.values), batch.rhs)
    wanted = plain.solve(plain.factor(batch.values), batch.rhs)
    if engine == "dense":  # may choose other pivots
        np.testing.assert_allclose(solution, wanted, rtol=1e-4, atol=1e-5)
    else:
        np.testing.assert_array_equal(solution, wanted)


@pytest.mark.parametrize("engine", ["warp", "warp_tables", "warp_batch_first", "jax"])
def test_factors_are_those_of_the_scaled_matrix(engine):
    case, batch = PATTERNS[NAME](), systems(NAME)
    scaling = np.random.default_rng(2).uniform(0.1, 10.0, size=case.n)
    solver, plain = make_solver(case, engine, "float64", scaling=scaling), solver_for(NAME, engine)
    L, D = solver.factors(solver.factor(batch.values))
    plain_L, plain_D = map(np.asarray, plain.factors(plain.factor(batch.values)))
    s, pattern = scaling[solver.elimination.perm], solver.elimination.L_pattern
    ratio = s[pattern.row_idx] / s[pattern.col_idx]
    np.testing.assert_allclose(L, plain_L * ratio, rtol=1e-11, atol=1e-12)
    np.testing.assert_allclose(D, plain_D * s**2, rtol=1e-12)


@pytest.mark.parametrize("engine", ENGINES)
def test_full_input(engine):
    case, batch = PATTERNS[NAME](), systems(NAME)
    scaling = np.random.default_rng(3).uniform(0.1, 10.0, size=case.n)
    full = sp.csc_matrix(sp.triu(batch.K) + sp.triu(batch.K, 1).T)
    upper = make_solver(case, engine, "float64", scaling=scaling)
    solver = LDLSolver(
        full, backend=upper.backend, dtype="float64", scaling=scaling, settings=upper.settings
    )
    values = []
    for given in batch.values:
        K = sp.csc_matrix((given, batch.K.indices, batch.K.indptr))
        values.append(solver.values(K + sp.triu(K, 1).T))
    np.testing.assert_array_equal(
        solver.solve(solver.factor(np.array(values)), batch.rhs),
        upper.solve(upper.factor(batch.values), batch.rhs),
    )


@pytest.mark.parametrize("engine", ["warp", "warp_tables", "warp_batch_first", "jax"])
def test_wide_range_in_float32(engine):
    """Diagonal entries from 1e-25 to 1e25, as slack and penalty rows have."""
    case, batch = PATTERNS[NAME](), systems(NAME)
    spread = 10.0 ** np.where(np.arange(case.n) % 2 == 0, 12.5, -12.5)
    rows, cols = case.pattern.row_idx, case.pattern.col_idx
    values = (batch.values * spread[rows] * spread[cols]).astype("float32")
    rhs = (batch.rhs * spread).astype("float32")
    solver = make_solver(case, engine, "float32", scaling=1 / spread)
    factor = solver.factor(values)
    assert np.all(np.asarray(factor.status) == FactorStatus.OK)
    solution = np.asarray(solver.solve(factor, rhs), dtype=np.float64)
    # Every row in its own units.
    scaled = values.astype(np.float64) / (spread[rows] * spread[cols])
    residuals = relative_residuals(batch.K, scaled, solution * spread, rhs / spread)
    assert residuals.max() < MAX_RESIDUAL["float32"]
    # Internally, all values are near one.
    L, D = solver.factors(factor)
    assert np.abs(D).max() < 100
    assert np.abs(L).max(initial=0) < 100


@pytest.mark.parametrize("engine", ["warp", "jax"])
@pytest.mark.parametrize(
    ("values", "status"),
    [
        # The second pivot is c - b * b / a: beyond the largest, or below the smallest number.
        ([-4e37, 2e38, 4e37], FactorStatus.NON_FINITE),
        ([4e-38, 3.6e-38, 4e-38], FactorStatus.ZERO_PIVOT),
    ],
    ids=["overflow", "underflow"],
)
def test_scaling_saves_what_float32_cannot_hold(engine, values, status):
    K = sp.csc_matrix(np.triu(np.ones((2, 2))))
    given = np.array([values], dtype="float32")
    unit = np.abs(values[0])
    rhs = np.array([[4 * unit, 2 * unit]], dtype="float32")
    plain = LDLSolver(K, ordering="natural", backend=engine)
    assert plain.factor(given).status[0] == status
    scaling = np.full(2, unit**-0.5)
    solver = LDLSolver(K, ordering="natural", backend=engine, scaling=scaling)
    factor = solver.factor(given)
    assert factor.status[0] == FactorStatus.OK
    a, b, c = (float(value) / unit for value in given[0])
    wanted = np.linalg.solve([[a, b], [b, c]], [4.0, 2.0])
    np.testing.assert_allclose(solver.solve(factor, rhs)[0], wanted, rtol=1e-5)


@pytest.mark.parametrize(
    "scaling",
    [
        np.ones(9),
        np.ones((10, 1)),
        1.0,
        np.r_[np.ones(9), 0.0],
        np.r_[np.ones(9), -1.0],
        np.r_[np.ones(9), np.nan],
        np.r_[np.ones(9), np.inf],
    ],
)
def test_refused(scaling):
    with pytest.raises(ProblemError, match="scaling must be 10 positive finite numbers"):
        LDLSolver(PATTERNS[NAME]().K, scaling=scaling)
