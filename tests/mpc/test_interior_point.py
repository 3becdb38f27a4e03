"""The interior-point method: statuses, independence of instances, warm starts, settings."""

from __future__ import annotations

import jax
import numpy as np
import pytest
from mpc_cases import WholeProblem, pendulum
from nlp_oracle import NonlinearProgram
from quick_compile import solve_quickly
from trouble_cases import BATCH, TROUBLES, gate, healthy, in_order

from warpmpc import (
    ADMMSettings,
    LineSearchSettings,
    MPCSolver,
    MPCStatus,
    SettingsError,
    SQPSettings,
    StagedSettings,
)

SETTINGS = SQPSettings(method="interior_point", max_iter=100, record=True)
KKT_TOLERANCE = 1.1e-6  # that of the solver, and rounding


@pytest.fixture(scope="module")
def solver():
    return MPCSolver(gate(), SETTINGS, dtype="float64")


@pytest.fixture(scope="module")
def alone(solver):
    """Healthy instances without others."""
    return solver.solve(*healthy())


def assert_same_bits(solution, rows, expected, their_rows):
    for name in ("z", "y", "cost", "status", "iterations", "kkt_residual"):
        found, wanted = getattr(solution, name), getattr(expected, name)
        np.testing.assert_array_equal(np.asarray(found)[rows], np.asarray(wanted)[their_rows], name)


def test_solutions_satisfy_the_optimality_conditions(solver, alone):
    x0, params = healthy()
    packed = np.asarray(solver.pack(x0, params))
    program = NonlinearProgram(WholeProblem(solver.problem))
    np.testing.assert_array_equal(alone.status, MPCStatus.CONVERGED)
    for b in range(BATCH):
        conditions = program.optimality(np.asarray(alone.z[b]), np.asarray(alone.y[b]), packed[b])
        assert conditions.holds(KKT_TOLERANCE), (b, conditions)


def test_troubles_have_their_status_and_change_no_other_instance(solver, alone):
    """Locally infeasible instances are told apart from those whose cost is no number."""
    solution = solver.solve(*in_order())
    statuses = dict(zip(TROUBLES, np.asarray(solution.status), strict=False))
    wanted = {name: status for name, (_, status) in TROUBLES.items()}
    assert statuses == wanted
    rest = np.arange(len(TROUBLES), BATCH)
    assert_same_bits(solution, rest, alone, rest)


def test_results_depend_neither_on_order_nor_on_the_size_of_the_batch(solver, alone):
    x0, params = healthy()
    order = np.random.default_rng(0).permutation(BATCH)
    shuffled = solver.solve(x0[order], {name: rows[order] for name, rows in params.items()})
    assert_same_bits(shuffled, np.arange(BATCH), alone, order)
    # Three tiles: lanes are taken over by waiting instances.
    many = np.random.default_rng(1).integers(0, BATCH, 90)
    solution = solver.solve(x0[many], {name: rows[many] for name, rows in params.items()})
    assert_same_bits(solution, np.arange(90), alone, many)


def test_warm_starts_save_iterations(solver, alone):
    x0, params = healthy()
    again = solver.solve(x0 + 1e-3, params, alone.warm_start)
    cold = solver.solve(x0 + 1e-3, params)
    np.testing.assert_array_equal(again.status, MPCStatus.CONVERGED)
    np.testing.assert_allclose(again.cost, cold.cost, rtol=1e-5)
    assert np.sum(again.iterations) < np.sum(cold.iterations)


def test_the_history_has_every_iteration(alone):
    history = alone.history
    for b in range(BATCH):
        count = int(alone.iterations[b])
        assert np.isfinite(history.cost[b, :count]).all()
        assert np.isnan(history.cost[b, count:]).all()
        assert history.step_length[b, count - 1] == alone.step_length[b]
        # The last iterate counts as converged because its own error is small.
        assert alone.kkt_residual[b] <= 1e-6 < history.kkt_residual[b, 0]


@pytest.mark.slow
def test_the_iteration_limit_is_kept():
    solver = MPCSolver(gate(), SQPSettings(method="interior_point", max_iter=3))
    solution = solve_quickly(solver, healthy()[0].astype("float32"))
    assert np.max(solution.iterations) == 3
    assert (np.asarray(solution.status) == MPCStatus.MAX_ITER).any()


@pytest.mark.slow
def test_gradients_agree_with_finite_differences():
    solver = MPCSolver(pendulum(10), SETTINGS, dtype="float64", engine="sparse")
    x0, direction = np.array([0.6, 0.1]), np.array([0.3, -0.5])

    def loss(x):
        solution = solver.solve(x)
        return solution.cost + (solution.z**2).sum()

    slope = jax.grad(loss)(x0) @ direction
    h = 1e-4
    difference = (loss(x0 + h * direction) - loss(x0 - h * direction)) / (2 * h)
    assert slope == pytest.approx(float(difference), rel=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["sparse", "dense"])
def test_other_engines_find_the_same_solutions(alone, engine):
    """The dense one is the oracle: other linear algebra, and formulas of rows in JAX."""
    x0, params = healthy()
    solution = MPCSolver(gate(), SETTINGS, dtype="float64", engine=engine).solve(x0, params)
    np.testing.assert_array_equal(solution.status, MPCStatus.CONVERGED)
    np.testing.assert_allclose(solution.z, alone.z, atol=1e-6)


@pytest.mark.parametrize(
    ("change", "name"),
    [
        ({"tol_step": 1e-3}, "tol_step"),
        ({"convexify": "gershgorin"}, "convexify"),
        ({"line_search": LineSearchSettings(kind="merit")}, "line_search"),
        ({"qp": ADMMSettings()}, "qp"),
        ({"qp_start": "last"}, "qp_start"),
        ({"fused": True}, "fused"),
    ],
)
def test_settings_of_the_sqp_iteration_are_refused(change, name):
    with pytest.raises(SettingsError, match=f'{name} has no effect with method="interior_point"'):
        SQPSettings(method="interior_point", **change)


def test_a_fixed_number_of_iterations_is_refused():
    with pytest.raises(SettingsError, match="iterates until it converges"):
        SQPSettings(mode="fixed", method="interior_point")
    with pytest.raises(SettingsError, match="method must be"):
        SQPSettings(method="simplex")  # pyright: ignore[reportArgumentType]


def test_default_iteration_limits():
    assert SQPSettings().max_iter == 50
    assert SQPSettings(method="interior_point").max_iter == 500


def test_other_engines_are_refused():
    with pytest.raises(SettingsError, match='engine="onchip" is not possible'):
        MPCSolver(gate(), SETTINGS, engine="onchip")


def test_long_stages_are_solved_by_tables(monkeypatch):
    monkeypatch.setattr("warpmpc.mpc.interior_point.linear_system._LARGEST_CODE", 10)
    solver = MPCSolver(gate(), SETTINGS)
    assert solver.engine == "sparse"
    assert "multiply-adds" in solver.engine_reason
    with pytest.raises(SettingsError, match=r'engine="staged" is not possible .* for this'):
        MPCSolver(gate(), SETTINGS, engine="staged")


def test_arguments_of_the_sqp_iteration_are_refused(solver):
    with pytest.raises(SettingsError, match="`staged` has no effect"):
        MPCSolver(gate(), SETTINGS, staged=StagedSettings())
    with pytest.raises(SettingsError, match="`nominal` has no effect"):
        MPCSolver(gate(), SETTINGS, nominal=(np.zeros(7), np.zeros(5)))
    with pytest.raises(SettingsError, match="`step` belongs to the SQP iteration"):
        solver.step(np.zeros(solver.problem.n_vars), x0=np.zeros(1))
    with pytest.raises(SettingsError, match="`tune` belongs to the SQP iteration"):
        solver.tune(64)
    assert solver.engine == "staged"


def test_memory_of_an_instance_is_estimated(solver):
    settings = SQPSettings(method="interior_point", max_iter=100)
    without_history = MPCSolver(gate(), settings, dtype="float64")
    assert 0 < without_history.bytes_per_instance < solver.bytes_per_instance
