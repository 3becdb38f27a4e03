"""The interior-point method on all systems and textbook problems, against IPOPT."""

from __future__ import annotations

import numpy as np
import pytest
from mpc_cases import WholeProblem
from nlp_oracle import NonlinearProgram
from quick_compile import solve_quickly
from textbook_problems import TEXTBOOK

from warpmpc import MPCSolver, MPCStatus, SQPSettings, systems
from warpmpc.problem.evaluation import initial_guess
from warpmpc_bench.mpc.ipopt import WholeProgram

pytestmark = pytest.mark.slow

COUNT, FEW = 64, 8
KKT_TOLERANCE = 1.1e-6  # that of the solver, and rounding
SAME_COST, SAME_POINT = 1e-4, 1e-3
IN_FLOAT32 = 0.95  # share of the instances
DOUBLE = SQPSettings(method="interior_point")
SINGLE = SQPSettings(method="interior_point", tol_kkt=1e-4)
HARD = ("linear", "pendulum", "cartpole", "quadrotor", "quadrotor_obstacles")


def solved(name, settings=DOUBLE, dtype="float64"):
    """A system with 64 starts and their solutions."""
    system = systems.make(name)
    solver = MPCSolver(system.problem, settings, dtype=dtype)
    x0 = system.sample(COUNT, seed=1).astype(dtype)
    return system, solver, x0, solve_quickly(solver, x0)


@pytest.mark.parametrize("name", HARD)
def test_all_starts_converge_to_where_ipopt_agrees(name):
    system, solver, x0, found = solved(name)
    program = NonlinearProgram(WholeProblem(system.problem))
    params = np.asarray(solver.pack(x0))
    z, y, cost = (np.asarray(a) for a in (found.z, found.y, found.cost))
    np.testing.assert_array_equal(found.status, MPCStatus.CONVERGED)
    for b in range(COUNT):
        conditions = program.optimality(z[b], y[b], params[b])
        assert conditions.holds(KKT_TOLERANCE), (b, conditions)
    from_ours = program.minima(z[:FEW], params[:FEW], y[:FEW])
    assert from_ours.solved.all()
    np.testing.assert_allclose(cost[:FEW], from_ours.cost, rtol=SAME_COST)


def test_soft_rows_of_the_car():
    """Its independent check is IPOPT from the same guess, with slacks in the place of penalties."""
    system, solver, x0, found = solved("car")
    np.testing.assert_array_equal(found.status, MPCStatus.CONVERGED)
    params, guesses = np.asarray(solver.pack(x0)), np.asarray(solver.z_guess(x0))
    program, same = WholeProgram(system.problem), 0
    for b in range(FEW):
        z, success, _, _ = program.solve(guesses[b], params[b])
        assert success
        same += np.abs(z - np.asarray(found.z[b])).max() <= SAME_POINT * np.abs(z).max()
    assert same >= FEW - 1  # it may pass an obstacle on either side


@pytest.mark.parametrize("name", ["pendulum", "quadrotor"])
def test_float32_converges_to_1e_4(name):
    _, _, _, double = solved(name)
    *_, single = solved(name, SINGLE, "float32")
    converged = np.asarray(single.status) == MPCStatus.CONVERGED
    assert converged.mean() >= IN_FLOAT32
    assert np.max(np.asarray(single.kkt_residual)[converged]) <= 1e-4
    np.testing.assert_allclose(np.median(single.cost), np.median(double.cost), rtol=5e-3)


@pytest.mark.parametrize("name", TEXTBOOK)
def test_textbook_problems(name):
    case = TEXTBOOK[name]
    problem = case.build().problem()
    params = problem.defaults.copy()
    params[: problem.n_x0] = case.x0
    program = NonlinearProgram(WholeProblem(problem))
    found = solve_quickly(MPCSolver(problem, DOUBLE, dtype="float64"), np.array(case.x0))
    z, y = np.asarray(found.z), np.asarray(found.y)
    assert found.status == MPCStatus.CONVERGED
    conditions = program.optimality(z, y, params)
    assert conditions.holds(KKT_TOLERANCE), conditions
    ipopt = program.minima(initial_guess(problem, params)[None], params[None])
    assert ipopt.solved.all()
    assert found.cost == pytest.approx(ipopt.cost[0], rel=SAME_COST)
    np.testing.assert_allclose(z, ipopt.z[0], atol=SAME_POINT * np.abs(z).max(), rtol=0)
