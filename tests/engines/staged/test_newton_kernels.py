"""Factors and solves of Newton systems by stages, against dense NumPy."""

import jax.numpy as jnp
import numpy as np
import pytest

from warpmpc import MPCSolver, PatternError, SQPSettings, systems
from warpmpc.engines.staged.newton_source import ValuePlaces
from warpmpc.mpc.interior_point.linear_system import KKTLayout, SparseSolver, StagedSolver
from warpmpc.mpc.interior_point.problem_functions import RowOrder
from warpmpc.mpc.interior_point.solve import kkt_layout

TILES, LANES = 2, 32
TOLERANCE = {"float32": 2e-3, "float64": 1e-9}


@pytest.fixture(scope="module", params=["pendulum", "car"])
def layout(request) -> KKTLayout:
    settings = SQPSettings(method="interior_point")
    programs = MPCSolver(systems.make(request.param).problem, settings).programs
    return kkt_layout(programs, RowOrder(programs))


def values(layout, dtype, seed=0):
    """Random P, A, G and delta; with delta some instances have the right inertia, some not."""
    rng = np.random.default_rng(seed)

    def array(rows, low, high):
        return jnp.asarray(rng.uniform(low, high, (TILES, rows, LANES)), dtype=dtype)

    delta = array(1, 0, 8)
    return array(layout.n_P, -1, 1), array(layout.n_A, -1, 1), array(layout.n_rows, 0.1, 1), delta


def dense(layout, given, tile, lane):
    """K of one instance."""
    joined = np.asarray(layout.values(*given), dtype="float64")[tile, :, lane]
    pattern = layout.kkt.K_pattern
    K = np.zeros(pattern.shape)
    K[pattern.row_idx, pattern.col_idx] = joined[layout.source]
    return K + np.triu(K, 1).T


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_solutions_and_inertia(layout, dtype):
    given, rng = values(layout, dtype), np.random.default_rng(1)
    solver = StagedSolver(layout, dtype)
    factor = solver.factor(given)
    rhs = rng.standard_normal((TILES, layout.n_vars + layout.n_rows, LANES)).astype(dtype)
    x = np.asarray(solver.solve(factor, jnp.asarray(rhs)))
    positive = np.asarray(solver.positive(factor))
    for tile, lane in ((0, 0), (0, 31), (1, 7), (1, 20)):
        K = dense(layout, given, tile, lane)
        eigenvalues = np.linalg.eigvalsh(K)
        if np.abs(eigenvalues).min() < 1e-3:
            continue  # without pivoting such a system keeps few digits
        wanted = np.linalg.solve(K, rhs[tile, :, lane])
        size = np.abs(wanted).max() * np.linalg.cond(K) / 100
        assert np.abs(x[tile, :, lane] - wanted).max() <= TOLERANCE[dtype] * max(size, 1)
        assert positive[tile, 0, lane] == (eigenvalues > 0).sum()


def test_only_marked_tiles_are_factorised_again(layout):
    first, second = values(layout, "float64"), values(layout, "float64", seed=5)
    solver = StagedSolver(layout, "float64")
    before = solver.factor(first)
    change = jnp.zeros((TILES, 1, LANES), dtype=bool).at[1, 0, 3].set(True)
    found, wanted = solver.refactor(before, second, change), solver.factor(second)
    for new, old, fresh in zip(found, before, wanted, strict=True):
        np.testing.assert_array_equal(new[0], old[0])
        np.testing.assert_array_equal(new[1], fresh[1])


@pytest.mark.parametrize("value", [np.nan, np.inf, 0.0])
def test_a_broken_instance_is_counted_as_such_and_changes_no_other(layout, value):
    given = values(layout, "float64")
    solver = StagedSolver(layout, "float64")
    healthy = solver.factor(given)
    P, A, G, delta = given
    if value == 0:  # no pivot at all: a matrix of zeros
        broken = tuple(a.at[1, :, 9].set(0) for a in given)
    else:
        broken = (P, A, G.at[1, 0, 9].set(value), delta)
    factor = solver.factor(broken)
    positive = np.asarray(solver.positive(factor))
    assert positive[1, 0, 9] == -1
    others = np.ones((TILES, LANES), dtype=bool)
    others[1, 9] = False
    for mine, theirs in zip(factor, healthy, strict=True):
        mine, theirs = (np.asarray(a).transpose(0, 2, 1)[others] for a in (mine, theirs))
        np.testing.assert_array_equal(mine, theirs)


def test_solutions_are_those_of_the_tables(layout):
    given = values(layout, "float64", seed=2)
    rhs = jnp.asarray(
        np.random.default_rng(3).standard_normal((TILES, layout.n_vars + layout.n_rows, LANES))
    )
    staged, tables = StagedSolver(layout, "float64"), SparseSolver(layout, "float64")
    counts, solutions = [], []
    for solver in (staged, tables):
        factor = solver.factor(given)
        counts.append(np.asarray(solver.positive(factor)))
        solutions.append(np.asarray(solver.solve(factor, rhs)))
    np.testing.assert_array_equal(*counts)
    np.testing.assert_allclose(*solutions, rtol=1e-6, atol=1e-6)


def test_places_of_values():
    places = ValuePlaces(2, 3, np.zeros(0, dtype=np.int32))
    assert [places.kind(v) for v in range(8)] == ["P", "P", "A", "A", "A", "delta", "G", "G"]
    assert [places.row(v) for v in range(8)] == [0, 1, 0, 1, 2, 0, 0, 1]


def test_long_stages_are_left_to_tables(layout, monkeypatch):
    monkeypatch.setattr("warpmpc.mpc.interior_point.linear_system._LARGEST_CODE", 10)
    with pytest.raises(PatternError, match="multiply-adds, more than 10"):
        StagedSolver(layout, "float64")
