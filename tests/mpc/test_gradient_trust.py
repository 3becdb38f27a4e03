"""Gradients of a solver with default settings: float32 against float64, and what is reported."""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from warpmpc import GradientStatus, MPCSolver, MPCStatus, ProblemError, Solution
from warpmpc.qp.sensitivity import refinement
from warpmpc.systems import pendulum

pytestmark = pytest.mark.slow


def _first(solver: MPCSolver, x0: jax.Array) -> tuple[jax.Array, Solution]:
    """Sum of the first torques, and the solution."""
    solution = solver.solve(x0)
    return solution.u[:, 0, 0].sum(), solution


@pytest.fixture(scope="module")
def starts() -> np.ndarray:
    """Swing-ups; in the first all torques are on their bound, so no first torque moves."""
    x0 = np.random.default_rng(0).uniform([-3.5, -3.0], [3.5, 3.0], (32, 2))
    x0[0] = (-2.103392, 2.6526787)
    return x0


@pytest.fixture(scope="module")
def results(starts: np.ndarray) -> dict[str, tuple[MPCSolver, np.ndarray, np.ndarray, np.ndarray]]:
    """Solver, trajectories, statuses and derivatives of the first torque in both dtypes."""
    found = {}
    for dtype in ("float32", "float64"):
        solver = MPCSolver(pendulum.build(), dtype=dtype)

        x0 = jnp.asarray(starts, dtype=dtype)
        gradient = jax.grad(partial(_first, solver), has_aux=True)
        slope, solution = gradient(x0)
        found[dtype] = (solver, *(np.asarray(a) for a in (solution.z, solution.status, slope)))
    return found


def test_saturated_torques_have_no_derivative(results) -> None:
    """The refinement of this instance diverged to 3e12."""
    for _, _, status, slope in results.values():
        assert status[0] == MPCStatus.CONVERGED
        np.testing.assert_allclose(slope[0], 0, atol=1e-4)


def test_both_dtypes_agree(results) -> None:
    """Wherever both reach the same solution."""
    (_, z, status, slope), (_, z_64, status_64, slope_64) = results.values()
    same = (status == MPCStatus.CONVERGED) & (status_64 == MPCStatus.CONVERGED)
    same &= np.abs(z - z_64).max(axis=1) <= 1e-2 * np.abs(z_64).max(axis=1)
    assert same.sum() >= 16
    error = np.abs(slope - slope_64).max(axis=1)
    assert np.all(error[same] <= np.maximum(1e-4, 1e-2 * np.abs(slope_64).max(axis=1)[same]))


def test_status_of_gradients(results, starts: np.ndarray) -> None:
    """Instances without a gradient are known afterwards, inside a compiled program, too."""
    solver, _, status, slope = results["float32"]
    x0 = jnp.asarray(starts, dtype="float32")
    x0 = x0.at[3].set(jnp.nan)
    found = jax.jit(lambda x: solver.gradient_status(solver.solve(x), x))(x0)
    assert found[3] == GradientStatus.NOT_CONVERGED
    expected = np.where(status == MPCStatus.CONVERGED, 0, GradientStatus.NOT_CONVERGED)
    others = np.arange(starts.shape[0]) != 3
    np.testing.assert_array_equal(found[others], expected[others])
    assert np.all(slope[(np.asarray(found) != 0) & others] == 0)


def test_gradients_without_accuracy_are_zero(results, starts: np.ndarray, monkeypatch) -> None:
    """An instance whose linear system is not solved has gradient zero, and its status shows it."""
    monkeypatch.setattr(refinement, "_VALID", 0.0)
    solver = MPCSolver(pendulum.build(), dtype="float32")
    x0 = jnp.asarray(starts, dtype="float32")
    slope, solution = jax.grad(lambda x: _first(solver, x), has_aux=True)(x0)
    status = solver.gradient_status(solution, x0)
    converged = solution.status == MPCStatus.CONVERGED
    assert np.all(status[converged] == GradientStatus.UNSOLVED)
    assert np.all(slope == 0)


def test_status_of_gradients_of_a_step(results, starts: np.ndarray) -> None:
    """Steps have gradients wherever their QP has a solution."""
    solver = results["float32"][0]
    x0 = jnp.asarray(starts, dtype="float32")
    z = solver.z_guess(x0)
    step, _ = solver.step(z, x0=x0)
    found = solver.gradient_status(step, x0, step_from=z)
    assert np.all(found == GradientStatus.VALID)


def test_status_of_another_batch_is_refused(results, starts: np.ndarray) -> None:
    """A solution belongs to its data."""
    solver = results["float32"][0]
    x0 = jnp.asarray(starts, dtype="float32")
    solution = solver.solve(x0)
    with pytest.raises(ProblemError, match=r"leading axes \[32\] but the data have \[2\]"):
        solver.gradient_status(solution, x0[:2])
    with pytest.raises(ProblemError, match="must be a Solution of `solve`, got int"):
        solver.gradient_status(1, x0)
