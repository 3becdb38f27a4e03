"""Textbook problems: optimality conditions, IPOPT's minimisers, the same controls in float32."""

from __future__ import annotations

import numpy as np
import pytest
from mpc_cases import WholeProblem
from nlp_oracle import NonlinearProgram
from quick_compile import solve_quickly
from textbook_problems import BALL_BOUND, TEXTBOOK, bryson_denham

from warpmpc import ADMMSettings, MPCSolver, MPCStatus, SQPSettings
from warpmpc.problem.evaluation import initial_guess

pytestmark = pytest.mark.slow

DOUBLE = SQPSettings(max_iter=100)
# As accurate as float32 allows: QPs stop where rounding stops them.
SINGLE = SQPSettings(
    max_iter=100,
    tol_step=2e-5,
    tol_kkt=3e-5,
    qp=ADMMSettings(eps_abs=1e-7, eps_rel=1e-5, adaptive_rho_tolerance=2.0, max_iter=1000),
)
KKT_TOLERANCE = 1.1e-6  # that of the solver, and rounding
SAME_COST, SAME_POINT, SAME_CONTROLS = 1e-4, 1e-3, 1e-3
ACTIVE = 1e-2  # multipliers of constraints that matter


def instance(problem, x0):
    """The parameter vector."""
    params = problem.defaults.copy()
    params[: problem.n_x0] = x0
    return params


@pytest.mark.parametrize("name", TEXTBOOK)
def test_converged_solution(name):
    case = TEXTBOOK[name]
    problem = case.build().problem()
    params = instance(problem, case.x0)
    program = NonlinearProgram(WholeProblem(problem))
    found = solve_quickly(MPCSolver(problem, DOUBLE, dtype="float64"), case.x0)
    z, y = np.asarray(found.z), np.asarray(found.y)

    assert found.status == MPCStatus.CONVERGED
    conditions = program.optimality(z, y, params)
    assert conditions.holds(KKT_TOLERANCE), conditions
    for rows in case.active:
        mine = [row.startswith(f"{rows}[") for row in problem.row_names]
        assert np.abs(y[mine]).max() > ACTIVE

    guess = initial_guess(problem, params)
    ipopt = program.minima(guess[None], params[None])
    assert ipopt.solved.all()
    assert found.cost == pytest.approx(ipopt.cost[0], rel=SAME_COST)
    np.testing.assert_allclose(z, ipopt.z[0], atol=SAME_POINT * np.abs(z).max(), rtol=0)

    single = MPCSolver(problem, SINGLE, dtype="float32", engine="sparse")
    rough = solve_quickly(single, case.x0)
    assert rough.status == MPCStatus.CONVERGED
    np.testing.assert_allclose(rough.u, found.u, atol=SAME_CONTROLS, rtol=0)


def test_finer_grids_approach_the_optimum_of_bryson_and_denham():
    optimum, errors = 4 / (9 * BALL_BOUND), []
    for horizon in (40, 160):
        problem = bryson_denham(horizon).problem()
        params = instance(problem, TEXTBOOK["bryson_denham"].x0)
        program = NonlinearProgram(WholeProblem(problem))
        found = program.minima(initial_guess(problem, params)[None], params[None])
        errors.append(found.cost[0] - optimum)
    assert 0 < errors[0] < 2e-3 * optimum
    assert errors[1] < errors[0] / 12  # the error is of second order
