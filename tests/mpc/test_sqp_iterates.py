"""Iterates of `MPCSolver` with fixed iteration counts against the method in dense NumPy."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from sqp_cases import FIXED, DenseSQP, fixed_solver, points

from warpmpc import MPCSolver, MPCStatus

BATCH = 10
SPREAD = {"pendulum": 3.0, "mixed": 8.0}
ITERATIONS = 3


def reference(problem, z, p, kind="gauss_newton", settings=FIXED):
    """Iterates of every instance, the start first."""
    dense = DenseSQP(problem, settings, kind)
    found = []
    for start, params in zip(z, p, strict=True):
        iterates = [dense.start(start)]
        for _ in range(ITERATIONS):
            iterates.append(dense.step(iterates[-1], params))
        found.append(iterates)
    return found


def compare(solution, wanted, tolerance):
    """All results of a solution that concern its last iteration."""
    ends = [iterates[-1] for iterates in wanted]
    for name, values in {
        "z": solution.z,
        "cost": solution.cost,
        "theta": solution.theta,
        "alpha": solution.step_length,
        "primal": solution.primal_residual,
        "dual": solution.dual_residual,
    }.items():
        expected = np.array([getattr(end, name) for end in ends])
        size = max(1.0, np.abs(expected).max())
        np.testing.assert_allclose(values, expected, rtol=0, atol=tolerance * size, err_msg=name)
    for i, part in enumerate(("d", "s", "y")):
        expected = np.array([end.state[i] for end in ends])
        size = max(1.0, np.abs(expected).max())
        values = getattr(solution.warm_start.qp, part)
        np.testing.assert_allclose(values, expected, rtol=0, atol=tolerance * size, err_msg=part)
    np.testing.assert_array_equal(solution.y, solution.warm_start.qp.y)
    np.testing.assert_array_equal(solution.z, solution.warm_start.z)
    np.testing.assert_array_equal(solution.accepted, [end.accepted for end in ends])


@pytest.fixture(scope="module", params=["pendulum", "mixed"])
def case(request):
    """A problem, its starting points and the reference."""
    problem = fixed_solver(request.param).problem
    z, p = points(problem, BATCH, SPREAD[request.param])
    return request.param, z, p, reference(problem, z, p)


class TestThreeIterations:
    @pytest.mark.parametrize("engine", ["staged", "sparse", "dense"])
    def test_float64(self, case, engine):
        name, z, p, wanted = case
        solver = fixed_solver(name, engine)
        n = solver.problem.n_x0
        solution = solver.solve(p[:, :n], p[:, n:], warm_start=z)
        assert solver.engine == engine
        compare(solution, wanted, 1e-9)
        np.testing.assert_array_equal(solution.iterations, ITERATIONS)
        np.testing.assert_array_equal(solution.qp_iterations, ITERATIONS * FIXED.qp.max_iter)
        expected = np.where(solution.accepted, MPCStatus.MAX_ITER, MPCStatus.LINE_SEARCH_FAILED)
        np.testing.assert_array_equal(solution.status, expected)

    def test_the_reference_uses_the_whole_ladder(self, case):
        """Otherwise agreement would say little about the line search."""
        name, _, _, wanted = case
        iterates = [iterate for one in wanted for iterate in one[1:]]
        lengths = {iterate.alpha for iterate in iterates}
        assert lengths >= {"pendulum": {0.5, 1.0}, "mixed": {0.125, 0.25, 0.5, 1.0}}[name]
        ends = [one[-1] for one in wanted]
        assert name == "pendulum" or not all(iterate.accepted for iterate in ends)


def test_float32():
    solver = fixed_solver("mixed", dtype="float32")
    z, p = points(solver.problem, BATCH)
    wanted = reference(solver.problem, z, p)
    z, p = z.astype("float32"), p.astype("float32")
    n = solver.problem.n_x0
    solution = solver.solve(p[:, :n], p[:, n:], warm_start=z)
    assert solution.z.dtype == solution.y.dtype == solution.cost.dtype == np.float32
    ends = np.array([iterates[-1].z for iterates in wanted])
    np.testing.assert_allclose(solution.z, ends, rtol=0, atol=1e-4)


@pytest.fixture(scope="module")
def mixed():
    """The stages of different sizes from far away, where some steps are refused."""
    solver = fixed_solver("mixed")
    z, p = points(solver.problem, BATCH, SPREAD["mixed"])
    n = solver.problem.n_x0
    return solver, z, p[:, :n], p[:, n:], reference(solver.problem, z, p)


def test_steps_one_by_one(mixed):
    """The warm start (d, s, y) is carried from call to call."""
    solver, z, x0, params, wanted = mixed
    together, state = solver.solve(x0, params, warm_start=z), None
    for i in range(1, ITERATIONS + 1):
        result, state = solver.step(z, params, state, x0=x0)
        z = result.z
        # Projected blocks have a least eigenvalue of some rounding units, in the reference of zero.
        compare(result, [iterates[: i + 1] for iterates in wanted], 2e-9)
        np.testing.assert_array_equal(result.iterations, 1)
    for name in ("z", "y", "cost", "theta", "primal_residual", "step_length"):
        np.testing.assert_allclose(getattr(result, name), getattr(together, name), rtol=1e-12)
    np.testing.assert_array_equal(result.status, together.status)


def test_solves_with_one_iteration_are_steps(mixed):
    solver, z, x0, params, _ = mixed
    single = MPCSolver(solver.problem, replace(FIXED, max_iter=1), "float64", "staged")
    solution, warm_start = None, z
    for _ in range(ITERATIONS):
        solution = single.solve(x0, params, warm_start=warm_start)
        warm_start = solution.warm_start
    together = solver.solve(x0, params, warm_start=z)
    np.testing.assert_allclose(solution.z, together.z, rtol=1e-12)
    np.testing.assert_allclose(solution.y, together.y, rtol=1e-12, atol=1e-12)
    np.testing.assert_array_equal(solution.status, together.status)


def test_staying_where_nothing_is_accepted(mixed):
    """Also: a QP starts from zero and the multipliers before, if so told."""
    solver, z, x0, params, _ = mixed
    line_search = replace(FIXED.line_search, fallback="stay")
    settings = replace(FIXED, line_search=line_search, qp_start="multipliers")
    solution = MPCSolver(solver.problem, settings, "float64", "staged").solve(x0, params, z)
    wanted = reference(solver.problem, z, np.hstack([x0, params]), settings=settings)
    compare(solution, wanted, 1e-9)
    stayed = np.asarray(solution.step_length) == 0
    assert stayed.any()
    assert not stayed.all()
    np.testing.assert_array_equal(solution.status[stayed], MPCStatus.LINE_SEARCH_FAILED)


def test_exact_hessian_and_history():
    problem = fixed_solver("mixed").problem
    z, p = points(problem, BATCH, seed=1)
    settings = replace(FIXED, hessian="exact", record=True)
    solver = MPCSolver(problem, settings, dtype="float64", engine="sparse")
    wanted = reference(problem, z, p, "exact")
    n = problem.n_x0
    solution = solver.solve(p[:, :n], p[:, n:], warm_start=z)
    compare(solution, wanted, 1e-9)
    for name, values in {
        "cost": solution.history.cost,
        "theta": solution.history.theta,
        "alpha": solution.history.step_length,
        "accepted": solution.history.accepted,
    }.items():
        expected = [[getattr(iterate, name) for iterate in one[1:]] for one in wanted]
        np.testing.assert_allclose(values, np.array(expected, dtype=float), rtol=1e-9, atol=1e-9)
    assert solution.history.kkt_residual.shape == (BATCH, ITERATIONS)
    np.testing.assert_array_equal(solution.history.kkt_residual[:, -1], solution.kkt_residual)
