"""Statuses of `MPCSolver`, and that no instance disturbs another."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from trouble_cases import BATCH, TROUBLES, gate, healthy, in_order, troubled

from warpmpc import ADMMSettings, LineSearchSettings, MPCSolver, MPCStatus, SQPSettings
from warpmpc.mpc.sqp.subproblem import MOST_LOST

CONVERGED, MAX_ITER, QP_INFEASIBLE, LINE_SEARCH_FAILED, NON_FINITE = MPCStatus

SETTINGS = SQPSettings()


@pytest.fixture(scope="module")
def solver():
    return MPCSolver(gate(), SETTINGS, dtype="float64", engine="sparse")


@pytest.fixture(scope="module")
def stepping():
    """A fixed number of iterations."""
    search = LineSearchSettings(step_min=0.1)
    settings = SQPSettings(mode="fixed", max_iter=2, line_search=search, qp=ADMMSettings())
    return MPCSolver(gate(), settings, dtype="float64", engine="sparse")


def test_walls_are_reached_only_with_the_help_of_the_input():
    """The second trouble is one: without input the system leaves the walls."""
    assert 1.9 + 0.5 * np.sin(1.9) - 0.1 > 2.0


class TestConvergentMode:
    def test_every_trouble_has_its_status(self, solver):
        solution = solver.solve(*in_order())
        for row, (name, (_, status)) in enumerate(TROUBLES.items()):
            assert solution.status[row] == status, name
            assert not np.isnan(solution.y[row]).any(), name
        np.testing.assert_array_equal(solution.status[len(TROUBLES) :], CONVERGED)

    @pytest.mark.parametrize("first", [0, 1])
    def test_others_keep_every_bit(self, solver, first):
        alone = solver.solve(*healthy())
        x0, params, where = troubled(first)
        solution = solver.solve(x0, params)
        others = np.setdiff1d(np.arange(BATCH), list(where.values()))
        np.testing.assert_array_equal(alone.status, CONVERGED)
        for name in ("z", "y", "cost", "status", "iterations", "qp_iterations", "kkt_residual"):
            mine, theirs = getattr(solution, name), getattr(alone, name)
            np.testing.assert_array_equal(mine[others], theirs[others], err_msg=name)

    def test_iterate_before_trouble_stays(self, solver):
        """What cannot be improved is returned as it was."""
        x0, params, where = troubled(0)
        solution = solver.solve(x0, params)
        guess = solver.z_guess(x0, params)
        # Where no step is found, damped QPs are tried before the instance gives up.
        for name, tried in (("cost is NaN nearby", 1 + MOST_LOST), ("crossed bounds", 1)):
            row = where[name]
            np.testing.assert_array_equal(solution.z[row], guess[row])
            assert solution.step_length[row] == 0
            assert not solution.accepted[row]
            assert solution.iterations[row] == tried

    def test_max_iter(self, solver):
        few = MPCSolver(gate(), replace(SETTINGS, max_iter=2), dtype="float64", engine="sparse")
        x0, params = healthy()
        x0[0] = 0
        enough, stopped = solver.solve(x0, params), few.solve(x0, params)
        more = np.asarray(enough.iterations) > 2
        assert more.any()
        assert not more[0]
        expected = np.where(more, MAX_ITER, CONVERGED)
        np.testing.assert_array_equal(stopped.status, expected)
        np.testing.assert_array_equal(stopped.iterations, np.minimum(enough.iterations, 2))

    def test_infeasible_is_never_reported_as_solved(self, solver):
        """Violations that cannot be avoided, from hardly more than the tolerance to hopeless."""
        rng = np.random.default_rng(3)
        for _ in range(6):
            x0, params = healthy()
            excess = 10.0 ** rng.uniform(-5, 1.5, (BATCH, 1))
            how = rng.integers(3, size=(BATCH, 1))
            sign = rng.choice([-1, 1], (BATCH, 1))
            x0 = np.where(how == 0, sign * (2 + excess), x0)  # outside
            params["low"] = np.where(how == 1, 0.3 + excess, -1.0)  # crossed
            params["high"] = np.where(how == 1, 0.3, 1.0)
            # Held outside by an input that cannot bring it back.
            x0 = np.where(how == 2, 2.0, x0)
            lowest = 2 + excess - (2 + 0.5 * np.sin(2.0))
            params["low"] = np.where(how == 2, lowest, params["low"])
            params["high"] = np.where(how == 2, lowest + 0.1, params["high"])
            solution = solver.solve(x0, params)
            assert CONVERGED not in solution.status
            assert MAX_ITER not in solution.status
            assert np.all(np.asarray(solution.violation) > 1e-6)

    def test_trouble_passes(self, solver):
        """A warm start from an instance that failed does not harm the next solve."""
        start = solver.solve(*in_order()).warm_start
        good = healthy()
        finite = np.isfinite(np.asarray(start.z)).all(axis=1)
        z = np.where(finite[:, None], start.z, solver.z_guess(*good))
        again = solver.solve(*good, warm_start=replace(start, z=z))
        np.testing.assert_array_equal(again.status, CONVERGED)
        fresh = solver.solve(*good)
        np.testing.assert_allclose(again.z, fresh.z, atol=1e-5)


class TestFixedMode:
    def test_every_trouble_has_its_status(self, stepping):
        solution = stepping.solve(*in_order())
        for row, name in enumerate(TROUBLES):
            # The smallest step is taken, to values that are not finite.
            expected = NON_FINITE if "nearby" in name else TROUBLES[name][1]
            assert solution.status[row] == expected, name
        assert not np.isin(solution.status[len(TROUBLES) :], [QP_INFEASIBLE, NON_FINITE]).any()
        np.testing.assert_array_equal(solution.iterations[len(TROUBLES) :], 2)

    def test_others_keep_every_bit(self, stepping):
        alone = stepping.solve(*healthy())
        x0, params, where = troubled(0)
        solution = stepping.solve(x0, params)
        others = np.setdiff1d(np.arange(BATCH), list(where.values()))
        for name in ("z", "y", "cost", "status", "theta", "step_length", "primal_residual"):
            mine, theirs = getattr(solution, name), getattr(alone, name)
            np.testing.assert_array_equal(mine[others], theirs[others], err_msg=name)

    def test_step_of_an_infeasible_problem_says_so(self, stepping):
        x0, params, where = troubled(0)
        result, _ = stepping.step(stepping.z_guess(x0, params), params, x0=x0)
        for name in ("outside the walls", "crossed bounds"):
            assert result.status[where[name]] == QP_INFEASIBLE, name
