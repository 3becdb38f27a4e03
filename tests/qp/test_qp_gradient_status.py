"""`QPSolver.gradient_status`: which instances have a gradient, asked for after the solve."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.sparse as sp
from qp_cases import SPOILED, ring, solver_for, spoiled_ring

from warpmpc import ADMMSettings, GradientStatus, ProblemError, QPSolver, SettingsError
from warpmpc.qp.sensitivity import refinement

BAD = sorted(SPOILED)
GOOD = sorted(set(range(33)) - set(BAD))


def in_jit(solver, *args, **options):
    return jax.jit(lambda *a: solver.gradient_status(*a, **options))(*args)


@pytest.mark.parametrize("engine", ["sparse", "dense"])
def test_solved_instances_have_a_gradient(engine):
    given = spoiled_ring()
    solver = solver_for(given, engine=engine)
    solution = solver.solve(*given.args)
    for ask in (solver.gradient_status, lambda *a: in_jit(solver, *a)):
        found = ask(solution, *given.args)
        assert found.shape == (33,)
        np.testing.assert_array_equal(found[np.array(GOOD)], GradientStatus.VALID)
        np.testing.assert_array_equal(found[np.array(BAD)], GradientStatus.NOT_CONVERGED)


def test_axes_and_cotangents():
    given = ring(6).map(lambda array: array.reshape(2, 3, -1))
    solver = solver_for(ring(6))
    solution = solver.solve(*given.args)
    for cotangent in (None, np.ones(8), np.ones((2, 3, 8))):
        found = solver.gradient_status(solution, *given.args, cotangent=cotangent)
        np.testing.assert_array_equal(found, np.zeros((2, 3)))
    alone = jax.vmap(jax.vmap(solver.gradient_status))(solution, *given.args)
    np.testing.assert_array_equal(alone, found)


@pytest.mark.parametrize("sensitivity", ["kkt", "lsq"])
def test_a_gradient_without_status_is_zero(sensitivity, monkeypatch):
    """Where no residual is small enough, there is none."""
    monkeypatch.setattr(refinement, "_VALID", 0.0)
    given = ring(5)
    settings = ADMMSettings(sensitivity=sensitivity)
    solver = QPSolver(given.P, given.A, settings, dtype="float64", engine="dense")
    solution = solver.solve(*given.args)
    found = solver.gradient_status(solution, *given.args)
    P_vals, q, *rest = given.args
    slope = jax.grad(lambda q: solver.solve(P_vals, q, *rest).x.sum())(jnp.asarray(q))
    np.testing.assert_array_equal(found, GradientStatus.UNSOLVED)
    np.testing.assert_array_equal(slope, 0)


def test_soft_rows_and_rows_without_entries():
    one = np.ones((2, 1))
    eye = sp.identity(1, format="csc")
    soft = QPSolver(eye, eye, dtype="float64", soft_rows=[0])
    data = (one, -3 * one, one, -one, one, np.ones((2, 4, 1)))
    solution = soft.solve(*data[:5], penalties=data[5])
    np.testing.assert_array_equal(soft.gradient_status(solution, *data), GradientStatus.VALID)
    none = np.zeros((2, 0))
    free = QPSolver(eye, sp.csc_matrix((0, 1)), dtype="float64")
    solution = free.solve(one, one, none, none, none)
    found = free.gradient_status(solution, one, one, none, none, none)
    np.testing.assert_array_equal(found, GradientStatus.VALID)


def test_fixed_iterations_count_as_solved():
    given = ring(3)
    settings = ADMMSettings(check_every=0, max_iter=5, adaptive_rho_every=0)
    solver = QPSolver(given.P, given.A, settings, dtype="float64", engine="dense")
    found = solver.gradient_status(solver.solve(*given.args), *given.args)
    assert (np.asarray(found) != GradientStatus.NOT_CONVERGED).all()


class TestMistakes:
    def test_of_the_arguments(self):
        given = ring(3)
        solver = solver_for(given, engine="dense")
        solution = solver.solve(*given.args)
        with pytest.raises(
            ProblemError, match="solution must be a QPSolution of `solve`, got dict"
        ):
            solver.gradient_status({}, *given.args)
        with pytest.raises(ProblemError, match="5 arrays: P_vals, q, A_vals, lower, upper; got 4"):
            solver.gradient_status(solution, *given.args[:4])
        with pytest.raises(ProblemError, match="cotangent has shape"):
            solver.gradient_status(solution, *given.args, cotangent=np.ones(3))
        with pytest.raises(ProblemError, match="All arguments need the same leading axes"):
            solver.gradient_status(solution, *ring(4).args)

    def test_pcg_is_too_inexact(self):
        given = ring(3)
        solver = QPSolver(given.P, given.A, dtype="float64", engine="pcg")
        with pytest.raises(SettingsError, match="too inexact for sensitivities"):
            solver.gradient_status(solver.solve(*given.args), *given.args)
