"""Warm starts, iteration counts, rho and reported residuals of `QPSolver`."""

from dataclasses import replace

import numpy as np
import pytest
from qp_cases import OSQP_TIGHT, family, fixed, osqp_solve, ring, solver_for, spoiled_ring

from warpmpc import ADMMSettings, QPSolver, QPWarmStart, Status
from warpmpc.qp.loops import registry as engines

BATCH = 33
PLAIN = ADMMSettings(eps_abs=1e-8, eps_rel=1e-8, max_iter=20_000, adaptive_rho_every=0, scaling=0)
EACH = {"scaling": 0, "adaptive_rho": 0, "check_termination": 1}
FAR_OFF = ADMMSettings(eps_abs=1e-8, eps_rel=1e-8, max_iter=20_000, rho=1e-4)


class TestWarmStart:
    @pytest.mark.parametrize("engine", ["sparse", "dense"])
    def test_from_the_solution(self, engine):
        given = ring(BATCH)
        solver = solver_for(given, engine=engine)
        cold = solver.solve(*given.args)
        warm = solver.solve(*given.args, warm_start=cold.warm_start)
        np.testing.assert_array_equal(warm.status, Status.SOLVED)
        assert (np.asarray(warm.iterations) <= np.asarray(cold.iterations)).all()
        assert np.sum(warm.iterations) < 0.6 * np.sum(cold.iterations)
        np.testing.assert_allclose(warm.x, cold.x, rtol=0, atol=0.05)

    def test_from_the_solution_of_a_neighbour(self):
        """What a controller does: the next problem differs a little."""
        given = ring(BATCH)
        moved = given.copy()
        moved.q[:] *= 1.02
        solver = solver_for(given)
        cold = solver.solve(*moved.args)
        warm = solver.solve(*moved.args, warm_start=solver.solve(*given.args).warm_start)
        assert np.sum(warm.iterations) < np.sum(cold.iterations)
        np.testing.assert_array_equal(warm.status, Status.SOLVED)
        np.testing.assert_allclose(warm.x, cold.x, rtol=0, atol=0.05)

    def test_of_x_and_y_only(self):
        """Starts from (x, y) of another solver: the rows are A x."""
        given = ring(BATCH)
        exact = [osqp_solve(qp, **OSQP_TIGHT) for qp in given.instances]
        x, y = np.stack([one.x for one in exact]), np.stack([one.y for one in exact])
        s = np.stack([qp.A @ one for qp, one in zip(given.instances, x, strict=True)])
        solution = solver_for(given).solve(*given.args, warm_start=QPWarmStart(x, s, y))
        np.testing.assert_array_equal(solution.iterations, 25)
        np.testing.assert_allclose(solution.x, x, rtol=0, atol=1e-6)
        np.testing.assert_allclose(solution.y, y, rtol=0, atol=1e-6)

    def test_holds_the_solution(self):
        given = ring(BATCH)
        solution = solver_for(given).solve(*given.args)
        np.testing.assert_array_equal(solution.warm_start.x, solution.x)
        np.testing.assert_array_equal(solution.warm_start.y, solution.y)
        s = np.asarray(solution.warm_start.s)
        slack = 1e-12 * np.abs(s)
        assert ((given.lower - slack <= s) & (s <= given.upper + slack)).all()


class TestIterations:
    @pytest.mark.parametrize("engine", ["sparse", "dense"])
    def test_fixed_number(self, engine):
        """Solved or not; 50 iterations are enough for some."""
        given = ring(6)
        solution = solver_for(given, fixed(50), engine).solve(*given.args)
        np.testing.assert_array_equal(solution.iterations, 50)
        assert set(np.asarray(solution.status)) == {Status.SOLVED, Status.MAX_ITER}
        again = solver_for(given, fixed(50), engine).solve(
            *given.args, warm_start=solution.warm_start
        )
        np.testing.assert_array_equal(again.iterations, 50)

    def test_counted_in_periods_of_the_check(self):
        given = ring(BATCH)
        iterations = np.asarray(solver_for(given).solve(*given.args).iterations)
        assert (iterations % 25 == 0).all()
        assert len(set(iterations)) > 1

    @pytest.mark.oracle
    def test_osqp_stops_at_the_same_iteration(self):
        """Without scaling and adaptation, termination is a matter of the same iterates."""
        given = ring(BATCH)
        solution = solver_for(given, PLAIN).solve(*given.args)
        options = {"eps_abs": 1e-8, "eps_rel": 1e-8, "max_iter": 20_000}
        for b, qp in enumerate(given.instances):
            wanted = osqp_solve(qp, scaling=0, adaptive_rho=0, **options)
            assert solution.iterations[b] == wanted.iterations
            np.testing.assert_allclose(solution.x[b], wanted.x, rtol=0, atol=1e-9)

    def test_max_iter_between_two_checks(self):
        given = ring(BATCH)
        settings = ADMMSettings(max_iter=33, check_every=25, adaptive_rho_every=25)
        solution = solver_for(given, settings).solve(*given.args)
        status, iterations = np.asarray(solution.status), np.asarray(solution.iterations)
        assert set(iterations[status == Status.SOLVED]) <= {25, 33}
        np.testing.assert_array_equal(iterations[status == Status.MAX_ITER], 33)
        assert (status == Status.MAX_ITER).any()


class TestEveryIterationIsChecked:
    """`check_every=1`: the first iteration counts like any other."""

    SETTINGS = replace(PLAIN, check_every=1)

    @pytest.mark.parametrize("engine", ["sparse", "dense"])
    def test_from_the_solution(self, engine):
        given = ring(BATCH)
        solver = solver_for(given, replace(self.SETTINGS, eps_abs=1e-6, eps_rel=1e-6), engine)
        exact = solver_for(given, PLAIN).solve(*given.args)
        solution = solver.solve(*given.args, warm_start=exact.warm_start)
        np.testing.assert_array_equal(solution.status, Status.SOLVED)
        np.testing.assert_array_equal(solution.iterations, 1)

    @pytest.mark.oracle
    def test_osqp_stops_at_the_same_iteration(self):
        """Starts from zero, and from solutions to a looser tolerance."""
        given, options = ring(BATCH), {"eps_abs": 1e-8, "eps_rel": 1e-8, "max_iter": 20_000}
        solver = solver_for(given, self.SETTINGS)
        cold = solver.solve(*given.args)
        near = [osqp_solve(qp, eps_abs=1e-7, eps_rel=1e-7) for qp in given.instances]
        x, y = np.stack([one.x for one in near]), np.stack([one.y for one in near])
        warm = solver.solve(*given.args, warm_start=QPWarmStart.from_xy(x, y))
        for b, qp in enumerate(given.instances):
            wanted = osqp_solve(qp, **options, **EACH)
            assert cold.iterations[b] == wanted.iterations
            wanted = osqp_solve(qp, (x[b], y[b]), **options, **EACH)
            assert warm.iterations[b] == wanted.iterations
        assert len(set(np.asarray(cold.iterations))) > 10

    @pytest.mark.oracle
    def test_infeasibility_is_seen_about_as_early_as_osqp_sees_it(self):
        """OSQP compares with the iteration before, the solver with up to a third of them before."""
        given = spoiled_ring()
        solution = solver_for(given, self.SETTINGS).solve(*given.args)
        for b in (1, 4, 18, 32):
            options = {"eps_abs": 1e-8, "eps_rel": 1e-8, **EACH}
            wanted = osqp_solve(given.instance(b), **options)
            assert solution.status[b] == wanted.status
            assert solution.iterations[b] <= 1.5 * wanted.iterations

    def test_one_iteration_only(self):
        """The last iteration is always judged, the first one included."""
        given = ring(BATCH)
        exact = solver_for(given, PLAIN).solve(*given.args)
        for check_every in (0, 1):
            settings = ADMMSettings(
                max_iter=1, check_every=check_every, adaptive_rho_every=0, scaling=0
            )
            solver = solver_for(given, settings)
            warm = solver.solve(*given.args, warm_start=exact.warm_start)
            cold = solver.solve(*given.args)
            np.testing.assert_array_equal(warm.status, Status.SOLVED)
            np.testing.assert_array_equal(cold.status, Status.MAX_ITER)
            np.testing.assert_array_equal(cold.iterations, 1)

    def test_rho_may_be_adapted_at_once(self):
        given = ring(BATCH)
        settings = replace(FAR_OFF, check_every=1, adaptive_rho_every=1)
        solution = solver_for(given, settings).solve(*given.args)
        np.testing.assert_array_equal(solution.status, Status.SOLVED)
        exact = solver_for(given, PLAIN).solve(*given.args)
        np.testing.assert_allclose(solution.x, exact.x, rtol=0, atol=1e-5)


class TestRho:
    def test_adaptation_does_not_change_the_solution(self):
        given = ring(BATCH)
        plain = solver_for(given, PLAIN).solve(*given.args)
        adapted = solver_for(given, FAR_OFF).solve(*given.args)
        np.testing.assert_array_equal(plain.status, Status.SOLVED)
        np.testing.assert_array_equal(adapted.status, Status.SOLVED)
        np.testing.assert_allclose(adapted.x, plain.x, rtol=0, atol=1e-5)
        np.testing.assert_allclose(adapted.y, plain.y, rtol=0, atol=1e-5)

    def test_adaptation_pays(self):
        """A rho that is a thousand times too small is noticed; kept, it would need thousands."""
        given = ring(BATCH)
        adapted = solver_for(given, FAR_OFF).solve(*given.args)
        assert np.max(adapted.iterations) <= 600


class TestResiduals:
    """As NumPy computes them from the solution, in the units of the caller."""

    def check(self, given, solution):
        x, y, s = (np.asarray(v) for v in (solution.x, solution.y, solution.warm_start.s))
        for b, qp in enumerate(given.instances):
            primal, dual = qp.residuals(x[b], s[b], y[b])
            scale = max(1.0, np.abs(qp.A.T @ y[b]).max(), np.abs(qp.full_P @ x[b]).max())
            np.testing.assert_allclose(solution.primal_residual[b], primal, atol=1e-13 * scale)
            np.testing.assert_allclose(solution.dual_residual[b], dual, atol=1e-13 * scale)
            np.testing.assert_allclose(solution.objective[b], qp.objective(x[b]), rtol=1e-12)

    @pytest.mark.parametrize("engine", ["sparse", "dense"])
    def test_with_scaling_and_adaptation(self, engine):
        given = ring(BATCH)
        self.check(given, solver_for(given, engine=engine).solve(*given.args))

    def test_badly_scaled_rows_and_costs(self):
        given = ring(BATCH).copy()
        rng = np.random.default_rng(1)
        factors = 10 ** rng.uniform(-2, 2, given.lower.shape)
        given.A_vals[:] *= factors[:, given.A.indices]
        given.lower[:], given.upper[:] = given.lower * factors, given.upper * factors
        given.P_vals[:], given.q[:] = 50 * given.P_vals, 50 * given.q
        solution = solver_for(given).solve(*given.args)
        np.testing.assert_array_equal(solution.status, Status.SOLVED)
        self.check(given, solution)

    def test_after_fixed_iterations(self):
        given = ring(6)
        self.check(given, solver_for(given, fixed(10)).solve(*given.args))

    def test_irregular_pattern(self):
        given = family("random", 10, 5, 0.4)
        self.check(given, solver_for(given, fixed(50)).solve(*given.args))


@pytest.mark.slow
def test_loop_of_large_sparse_problems(monkeypatch):
    """Where too many unknowns are alive for one launch, the loop is JAX's: the same results."""
    given, settings = ring(70), ADMMSettings(eps_abs=1e-6, eps_rel=1e-6)
    wanted = QPSolver(given.P, given.A, settings, "float64", "sparse").solve(*given.args)
    monkeypatch.setattr(engines, "sparse_loop", lambda *_: None)
    solver = QPSolver(given.P, given.A, settings, "float64", "sparse")
    found = solver.solve(*given.args)
    np.testing.assert_array_equal(found.status, wanted.status)
    np.testing.assert_array_equal(found.iterations, wanted.iterations)
    assert np.unique(np.asarray(found.iterations)).size > 2  # rho changed in some instances only
    np.testing.assert_allclose(found.x, wanted.x, rtol=0, atol=1e-8)
    np.testing.assert_allclose(found.y, wanted.y, rtol=0, atol=1e-7)
