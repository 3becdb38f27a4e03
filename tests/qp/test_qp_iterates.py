"""The iteration of `QPSolver` is OSQP's: iterates after a fixed number of plain iterations."""

import numpy as np
import pytest
from qp_cases import OSQP_FIXED, QP, family, fixed, osqp_solve, quadcopter, ring, solver_for, stack

from warpmpc import QPWarmStart, Status

pytestmark = pytest.mark.oracle
BATCH = 6
TOLERANCE = 1e-9


def starts(given):
    """A point of its own for each instance."""
    rng = np.random.default_rng(5)
    x, y = rng.normal(size=given.q.shape), rng.normal(size=given.lower.shape)
    return x, np.stack([qp.A @ one for qp, one in zip(given.instances, x, strict=True)]), y


def plain_admm(qp: QP, iterations: int, x, s, y):
    """The algorithm as OSQP's paper has it, dense; returns s."""
    rho, sigma, relaxation = 0.1, 1e-6, 1.6
    equal, free = qp.upper - qp.lower < 1e-4, np.isinf(qp.lower) & np.isinf(qp.upper)
    rows = np.select([equal, free], [1e3 * rho, 1e-6], rho)
    A, n = qp.A.toarray(), qp.q.size
    K = np.block([[qp.full_P.toarray() + sigma * np.eye(n), A.T], [A, -np.diag(1 / rows)]])
    for _ in range(iterations):
        solution = np.linalg.solve(K, np.concatenate([sigma * x - qp.q, s - y / rows]))
        s_tilde = s + (solution[n:] - y) / rows
        x = relaxation * solution[:n] + (1 - relaxation) * x
        relaxed = relaxation * s_tilde + (1 - relaxation) * s
        s = np.clip(relaxed + y / rows, qp.lower, qp.upper)
        y = y + rows * (relaxed - s)
    return s


def check_against_osqp(given, solution, iterations, start=None):
    for b, qp in enumerate(given.instances):
        point = None if start is None else (start[0][b], start[2][b])
        wanted = osqp_solve(qp, point, max_iter=iterations, **OSQP_FIXED)
        np.testing.assert_allclose(solution.x[b], wanted.x, rtol=0, atol=TOLERANCE)
        np.testing.assert_allclose(solution.y[b], wanted.y, rtol=0, atol=TOLERANCE)


class TestIterates:
    @pytest.mark.parametrize("iterations", [1, 10, 50])
    @pytest.mark.parametrize("engine", ["sparse", "dense"])
    def test_from_zero_and_from_a_point(self, engine, iterations):
        """Equalities, ranges, one-sided and free rows, mixed differently in each instance."""
        given = ring(BATCH)
        solver, start = solver_for(given, fixed(iterations), engine), starts(given)
        cold = solver.solve(*given.args)
        warm = solver.solve(*given.args, warm_start=QPWarmStart(*start))
        check_against_osqp(given, cold, iterations)
        check_against_osqp(given, warm, iterations, start)
        np.testing.assert_array_equal(cold.iterations, iterations)
        for b, qp in enumerate(given.instances):
            s = plain_admm(qp, iterations, *(array[b] for array in start))
            np.testing.assert_allclose(warm.warm_start.s[b], s, rtol=0, atol=TOLERANCE)

    def test_irregular_pattern(self):
        given = family("random", 10, 5, 0.4)
        solution = solver_for(given, fixed(50)).solve(*given.args)
        check_against_osqp(given, solution, 50)

    def test_continuing_equals_iterating_on(self):
        given = ring(BATCH)
        solver = solver_for(given, fixed(10))
        solution = solver.solve(*given.args)
        for _ in range(4):
            solution = solver.solve(*given.args, warm_start=solution.warm_start)
        wanted = solver_for(given, fixed(50)).solve(*given.args)
        np.testing.assert_allclose(solution.x, wanted.x, rtol=0, atol=1e-11)
        np.testing.assert_allclose(solution.y, wanted.y, rtol=0, atol=1e-11)


def test_linear_mpc_check_values():
    """Section 1 of PROBLEMS.md: 25 iterations from zero at the full horizon."""
    given = stack([quadcopter(40, np.zeros(12))])
    assert (given.P.nnz, given.A.nnz, given.A.shape) == (447, 4104, (1144, 652))
    solution = solver_for(given, fixed(25)).solve(*given.args)
    assert solution.status[0] == Status.MAX_ITER
    np.testing.assert_allclose(solution.primal_residual, 0.0451614, rtol=1e-5)
    np.testing.assert_allclose(solution.dual_residual, 7.09990e-4, rtol=1e-5)
    np.testing.assert_allclose(solution.objective, -191.13321438, rtol=0, atol=5e-9)
    u_0 = [-1.03676135, 1.76159993, -1.03676135, 1.76159993]
    np.testing.assert_allclose(solution.x[0, 492:496], u_0, rtol=0, atol=5e-9)
