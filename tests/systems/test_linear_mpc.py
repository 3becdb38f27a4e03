"""The linear MPC has the numbers of PROBLEMS.md and solves to its check values."""

import re

import jax.numpy as jnp
import numpy as np
import pytest
from qp_cases import OSQP_FIXED, QP, fixed, osqp_solve, quadcopter

import warpmpc as wm
from warpmpc._errors import ProblemError
from warpmpc.systems import linear_mpc, patterns

ITERATIONS = 25


def solve(x_init, **options):
    """25 plain iterations in float64 for each initial state."""
    problem, batch = linear_mpc.build(), len(x_init)
    solver = wm.QPSolver(
        problem.P, problem.A, settings=fixed(ITERATIONS), dtype="float64", **options
    )
    shared = (np.tile(values, (batch, 1)) for values in (problem.P.data, problem.q, problem.A.data))
    return solver.solve(*shared, *problem.bounds(x_init))


def test_sizes_of_the_table():
    problem = linear_mpc.build()
    assert problem.P.shape == (652, 652)
    assert problem.A.shape == (1144, 652)
    assert (problem.P.nnz, problem.A.nnz) == (447, 4104)
    assert (problem.A.data == 0).sum() == 640
    kinds = problem.upper - problem.lower
    assert (kinds == 0).sum() == 492
    assert (np.isinf(problem.lower) & np.isinf(problem.upper)).sum() == 369
    assert (np.isfinite(problem.lower) & (kinds > 0)).sum() == 283
    assert (np.isfinite(problem.upper) & (kinds > 0)).sum() == 242


@pytest.mark.parametrize("horizon", [1, 3, 40])
def test_structure_is_that_of_the_patterns(horizon):
    problem, structure = linear_mpc.build(horizon), patterns.linear(horizon)
    for matrix, pattern in ((problem.P, structure.P), (problem.A, structure.A)):
        assert matrix.has_sorted_indices
        np.testing.assert_array_equal(matrix.indptr, pattern.indptr)
        np.testing.assert_array_equal(matrix.indices, pattern.indices)
    np.testing.assert_array_equal(problem.stages, structure.stages)
    assert problem.stages.size == sum(problem.A.shape)


@pytest.mark.parametrize("horizon", [1, 3, 40])
def test_numbers_are_those_of_the_tests_own_quadcopter(horizon):
    problem, x_init = linear_mpc.build(horizon), linear_mpc.sample(2)
    lower, upper = problem.bounds(x_init)
    for b, start in enumerate(x_init):
        wanted = quadcopter(horizon, start)
        np.testing.assert_array_equal(problem.P.toarray(), wanted.P.toarray())
        np.testing.assert_array_equal(problem.A.toarray(), wanted.A.toarray())
        np.testing.assert_array_equal(problem.q, wanted.q)
        np.testing.assert_array_equal(lower[b], wanted.lower)
        np.testing.assert_array_equal(upper[b], wanted.upper)


def test_dynamics_hold_along_a_trajectory():
    problem, (A_d, B_d) = linear_mpc.build(3), linear_mpc.dynamics()
    rng = np.random.default_rng(0)
    states, inputs = [rng.normal(size=12)], rng.normal(size=(3, 4))
    for u in inputs:
        states.append(A_d @ states[-1] + B_d @ u)
    rows = problem.A @ np.concatenate([*states, inputs.ravel()])
    np.testing.assert_allclose(rows[:12], -states[0])
    np.testing.assert_allclose(rows[12:48], 0, atol=1e-14)


def test_check_values():
    solution = solve(np.zeros((1, 12)))
    assert float(solution.primal_residual[0]) == pytest.approx(0.0451614, rel=2e-6)
    assert float(solution.dual_residual[0]) == pytest.approx(7.09990e-4, rel=5e-6)
    assert float(solution.objective[0]) == pytest.approx(-191.13321438, abs=5e-9)
    u_0 = (-1.03676135, 1.76159993, -1.03676135, 1.76159993)
    np.testing.assert_allclose(solution.x[0, 492:496], u_0, rtol=0, atol=5e-9)
    assert int(solution.iterations[0]) == ITERATIONS


@pytest.mark.oracle
def test_iterates_are_those_of_osqp():
    x_init = linear_mpc.sample(5)
    problem, solution = linear_mpc.build(), solve(x_init)
    for b, (lower, upper) in enumerate(zip(*problem.bounds(x_init), strict=True)):
        qp = QP(problem.P, problem.q, problem.A, lower, upper)
        wanted = osqp_solve(qp, max_iter=ITERATIONS, **OSQP_FIXED)
        np.testing.assert_allclose(solution.x[b], wanted.x, rtol=0, atol=1e-9)
        np.testing.assert_allclose(solution.y[b], wanted.y, rtol=0, atol=1e-9)


def test_seeds_are_the_documented_ones():
    expected = 0.15 * np.random.default_rng(1 + 7).standard_normal((7, 12))
    np.testing.assert_array_equal(linear_mpc.sample(7), expected)
    assert linear_mpc.gradient_seed(7) == 18
    rng = np.random.default_rng(3011 + 7)
    for found, size in zip(linear_mpc.sample_cotangents(7), (652, 1144), strict=True):
        np.testing.assert_array_equal(found, rng.standard_normal((7, size)))


def test_bounds_follow_the_kind_of_array():
    problem, x_init = linear_mpc.build(2), linear_mpc.sample(3).astype("float32")
    for made in (problem.bounds(x_init), problem.bounds(jnp.asarray(x_init))):
        assert {side.dtype for side in made} == {np.dtype("float32")}
        assert {side.shape for side in made} == {(3, problem.A.shape[0])}
        np.testing.assert_array_equal(made[0][:, :12], -x_init)
    assert isinstance(made[0], jnp.ndarray)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: linear_mpc.build(0), "horizon must be at least 1, got 0."),
        (lambda: linear_mpc.sample(0), "A batch needs at least one instance, got 0."),
        (
            lambda: linear_mpc.build(2).bounds(np.zeros(12)),
            "x_init needs the shape [batch, 12], got [12].",
        ),
    ],
)
def test_mistakes(call, message):
    with pytest.raises(ProblemError, match=re.escape(message)):
        call()
