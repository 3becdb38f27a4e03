"""The oracle of nonlinear programs tells what is wrong, and finds the same in other processes."""

from __future__ import annotations

from types import SimpleNamespace

import casadi as ca
import numpy as np
import pytest
from nlp_oracle import NonlinearProgram

POINT, Y, P = np.array([1.0, 1.0]), np.array([-4.0, 0.0, -2.0]), np.array([1.0])


@pytest.fixture(scope="module")
def program():
    """Minimise a^2 + 3 b^2 with a b >= p, a <= 9, a = b: both are the root of p, cost 4 p."""
    z, p = ca.SX.sym("z", 2), ca.SX.sym("p")
    a, b = z[0], z[1]
    g, lower, upper = (
        ca.vertcat(*rows) for rows in ((a * b, a, b - a), (p, -ca.inf, 0), (ca.inf, 9, 0))
    )
    whole = SimpleNamespace(z=z, p=p, cost=a**2 + 3 * b**2, g=g, lower=lower, upper=upper)
    return NonlinearProgram(whole)


def test_a_minimiser_satisfies_all_conditions(program):
    assert program.optimality(POINT, Y, P).holds(1e-12)


@pytest.mark.parametrize(
    ("z", "y", "broken"),
    [
        (POINT, [-4.0, 0.0, -2.1], {"stationarity": 0.1 / 6}),
        (POINT * 0.9, Y, {"violation": 0.19}),
        (POINT * 1.1, Y * [1, 1, 1.1], {"complementarity": 0.21 * 4 / 6.6}),
        # The first row has no upper bound, the second is far from its own.
        (POINT, [4.0, 0.0, -2.0], {"complementarity": np.inf}),
        (POINT, [-4.0, 0.5, -2.0], {"complementarity": 0.5 * 8 / 6}),
    ],
)
def test_each_condition_can_fail(program, z, y, broken):
    found = program.optimality(z, np.array(y), P)
    for name, value in broken.items():
        assert getattr(found, name) == pytest.approx(value)
    assert not found.holds(1e-3)


def test_processes_find_what_one_finds(program):
    params = np.array([[1.0], [4.0], [0.25]])
    starts = np.ones((3, 2)) * [2.0, 0.5]
    here = program.minima(starts, params)
    there = program.minima_in_processes(starts, params, workers=2, timeout=10.0)
    assert here.solved.all()
    np.testing.assert_allclose(here.cost, 4 * params[:, 0], rtol=1e-7)
    np.testing.assert_array_equal(there.z, here.z)
    np.testing.assert_array_equal(there.cost, here.cost)
    np.testing.assert_array_equal(there.solved, here.solved)
    np.testing.assert_array_equal(there.iterations, here.iterations)


def test_a_start_at_the_solution_takes_fewer_iterations(program):
    far = program.minima(3 * POINT[None], P[None])
    near = program.minima(POINT[None], P[None], Y[None])
    assert near.solved.all()
    assert near.iterations[0] < far.iterations[0]
    np.testing.assert_allclose(near.z[0], POINT, atol=1e-6)


def test_an_infeasible_program_is_not_solved(program):
    assert not program.minima(POINT[None], np.array([[100.0]])).solved.any()
