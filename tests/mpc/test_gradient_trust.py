"""Gradients of a solver with default settings: float32 against float64, and what is reported."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from warpmpc import MPCSolver, MPCStatus
from warpmpc.systems import pendulum

pytestmark = pytest.mark.slow


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

        def first(x: jax.Array, solver: MPCSolver = solver) -> tuple[jax.Array, tuple]:
            solution = solver.solve(x)
            return solution.u[:, 0, 0].sum(), (solution.z, solution.status)

        slope, (z, status) = jax.grad(first, has_aux=True)(jnp.asarray(starts, dtype=dtype))
        found[dtype] = (solver, np.asarray(z), np.asarray(status), np.asarray(slope))
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
