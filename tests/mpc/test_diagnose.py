"""`diagnose` finds planted troubles and names them."""

from __future__ import annotations

from dataclasses import replace

import casadi as ca
import jax
import numpy as np
import pytest
from diagnosis_cases import BATCH, TROUBLES, corridor, troubled

import warpmpc as wm
from warpmpc.mpc.diagnosis.causes import endless_derivatives
from warpmpc.mpc.types import TrajectoryLayout
from warpmpc.problem.evaluation import evaluate


@pytest.fixture(scope="module")
def solver():
    settings = wm.SQPSettings(record=True, max_iter=20)
    return wm.MPCSolver(corridor(), settings, dtype="float64", engine="sparse")


@pytest.fixture(scope="module")
def solution(solver):
    return solver.solve(*troubled())


@pytest.fixture(scope="module")
def found(solution):
    return wm.diagnose(solution, *troubled(), worst=BATCH)


def test_counts_and_indices(found, solution):
    status = np.asarray(solution.status)
    assert found.batch == BATCH
    assert found.failed.tolist() == sorted(TROUBLES)
    assert found.unfinished.size == 0
    assert not found.ok
    assert found.counts == {
        name: int((status == wm.MPCStatus[name]).sum()) for name in found.counts
    }
    assert sum(found.counts.values()) == BATCH


@pytest.mark.parametrize("b", TROUBLES)
def test_cause(found, b):
    _, status, cause = TROUBLES[b]
    report = next(report for report in found.worst if report.index == b)
    assert report.status.name == status
    assert cause in report.cause


def test_rows_that_stay_violated_are_named(solution):
    """Also where the line search gave up before the QP was found infeasible."""
    status = np.asarray(solution.status).copy()
    status[[0, 1]] = wm.MPCStatus.LINE_SEARCH_FAILED
    stuck = replace(solution, status=status, kkt_residual=np.ones(BATCH))
    causes = {r.index: r.cause for r in wm.diagnose(stuck, *troubled(), worst=BATCH).worst}
    assert causes[1].startswith("rows stay violated: walls[0] at node 0 by 0.")
    assert "make them soft" in causes[1]
    assert causes[0].startswith("nothing improves along the direction (KKT residual 1)")


def test_worst_comes_first(found, solution):
    order = [wm.MPCStatus[s] for s in ("NON_FINITE", "QP_INFEASIBLE", "LINE_SEARCH_FAILED")]
    places = [order.index(report.status) for report in found.worst]
    assert places == sorted(places)
    fewer = wm.diagnose(solution, *troubled(), worst=2).worst
    assert [report.index for report in fewer] == [report.index for report in found.worst[:2]]


def test_rows_are_those_of_the_problem(found, solution, solver):
    """Names, nodes and sizes against an evaluation of our own."""
    x0, params = troubled()
    problem = solver.problem
    vectors = np.asarray(solver.pack(x0, params))
    for report in found.worst:
        if report.row is None:
            continue
        at = evaluate(problem, np.asarray(solution.z[report.index]), vectors[report.index])
        excess = np.maximum(at.lower - at.g, at.g - at.upper)
        row = int(np.nanargmax(excess))
        assert (report.row, report.node) == (problem.row_names[row], problem.con_stage[row])
        assert report.violation == pytest.approx(excess[row], rel=1e-9)
    walls = next(row for row in found.rows if row.name == "walls[0]")
    assert walls.violation == pytest.approx(0.5, abs=0.1)  # it starts half a metre outside
    assert walls.node == 0
    assert walls.instances == 1
    assert [row.violation for row in found.rows] == sorted(
        (row.violation for row in found.rows), reverse=True
    )


def test_history_is_that_of_the_solution(found, solution):
    for report in found.worst:
        taken = int(solution.iterations[report.index])
        recorded = report.history["cost"]
        assert recorded.size == taken
        expected = np.asarray(solution.history.cost)[report.index, :taken]
        np.testing.assert_array_equal(recorded, expected)


def test_text(found):
    text = str(found)
    assert f"{BATCH} instances: " in text
    assert "failed: 1, 2, 4, 5, 6, 7, 8" in text
    for word in ("Violated rows", "walls[0]", "Worst instances", "x0[1] is NaN", "iteration"):
        assert word in text
    assert "note:" not in text


def test_solution_alone(solution):
    """Without parameters the diagnosis states that they are unknown, and that rows do not fit."""
    found = wm.diagnose(solution)
    assert found.failed.tolist() == sorted(TROUBLES)
    assert any("x0 was not given" in note for note in found.notes)
    assert any("pass the x0 and params" in note for note in found.notes)
    causes = {report.index: report.cause for report in found.worst}
    assert "pass x0 and params" in causes[5]


def solved(solver, x0):
    """Passes the default parameters explicitly, so that one program serves all tests."""
    defaults = {"limit": 2.0, "low": -2.0, "high": 2.0, "radius": 100.0}
    params = {name: np.full((*x0.shape[:-1], 1), value) for name, value in defaults.items()}
    return solver.solve(x0, params)


def test_default_parameters_need_not_be_given(solver):
    x0 = np.array([[0.5, 0.0], [3.0, 0.0]])
    found = wm.diagnose(solved(solver, x0), x0)
    assert found.notes == ()
    assert found.failed.tolist() == [1]
    assert {row.name for row in found.rows} >= {"walls[0]"}


def test_single_problem_and_several_axes(solver):
    x0 = np.full((2, 2, 2), 0.1)
    x0[1, 0, 0] = 3.0
    solution = solved(solver, x0)
    assert wm.diagnose(solution, x0).failed.tolist() == [2]
    walls = {"limit": np.full((2, 2, 1), 2.0)}
    assert wm.diagnose(solution, x0, walls).rows == wm.diagnose(solution, x0).rows
    assert wm.diagnose(solution, params=walls).failed.tolist() == [2]
    single = jax.tree.map(lambda array: array[1, 0], solution)
    assert wm.diagnose(single, x0[1, 0]).failed.tolist() == [0]


def test_nothing_to_say(solver):
    x0 = np.full((3, 2), 0.1)
    found = wm.diagnose(solved(solver, x0), x0)
    assert found.ok
    assert (found.worst, found.rows) == ((), ())
    assert str(found) == "3 instances: 3 CONVERGED"


def test_unfinished(solver):
    x0 = np.full((2, 2), 0.5)
    result = solved(solver, x0)
    found = wm.diagnose(replace(result, status=np.full(2, wm.MPCStatus.MAX_ITER)), x0)
    assert found.unfinished.tolist() == [0, 1]
    assert found.ok
    assert "the criteria were met only after the last test" in found.worst[0].cause


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (
            {"kkt_residual": 0.5},
            "the KKT residual is 0.5, above tol_kkt=1e-06 after {n} iterations; it is still "
            "moving: raise max_iter=20, or start from a better guess",
        ),
        (
            {"violation": 0.25, "qp_iterations": 10**6},
            "the violation of rows is 0.25, above tol_violation=1e-06 after {n} iterations; its "
            "QPs stop at their limit, ADMMSettings(max_iter=4000): scale variables",
        ),
        (
            {"kkt_residual": 0.5, "step_length": 0.01},
            'steps are short (0.01); try hessian="gauss_newton", or another guess',
        ),
    ],
)
def test_unmet_criteria_are_named(solver, changes, words):
    x0 = np.full((1, 2), 0.5)
    result = solved(solver, x0)
    few = {"qp_iterations": np.ones(1, int), "step_length": np.ones(1)}
    changed = {name: np.full(1, value) for name, value in changes.items()}
    status = np.full(1, wm.MPCStatus.MAX_ITER)
    found = wm.diagnose(replace(result, status=status, **{**few, **changed}), x0)
    assert words.format(n=int(result.iterations[0])) in found.worst[0].cause


def test_tolerances_beyond_float32_are_named(solver):
    """A residual far below the usual tolerance of float32: more iterations are no remedy."""
    x0 = np.full((1, 2), 0.5)
    result = solved(solver, x0)
    layout = result.layout
    strict = TrajectoryLayout(layout.problem, replace(solver.settings, tol_kkt=1e-10), "auto")
    stuck = replace(
        result,
        z=np.asarray(result.z, dtype="float32"),
        status=np.full(1, wm.MPCStatus.MAX_ITER),
        kkt_residual=np.full(1, 1e-7),
        layout=strict,
    )
    cause = wm.diagnose(stuck, x0).worst[0].cause
    assert cause.startswith("the KKT residual is 1e-07, above tol_kkt=1e-10 after")
    assert cause.endswith("iterations; float32 may not get any nearer: try float64")


def test_what_is_set_is_not_recommended(solver):
    """Not float64 here, and not a Hessian or an engine that is chosen already."""
    x0 = np.full((1, 2), 0.5)
    result = solved(solver, x0)
    problem, exact = result.layout.problem, solver.settings
    causes = []
    for settings in (exact, replace(exact, hessian="gauss_newton")):
        for engine in ("auto", "sparse"):
            layout = TrajectoryLayout(problem, settings, engine)
            for name in ("LINE_SEARCH_FAILED", "NON_FINITE"):
                status = np.full(1, wm.MPCStatus[name])
                stuck = replace(result, status=status, kkt_residual=np.ones(1), layout=layout)
                causes.append(wm.diagnose(stuck, x0).worst[0].cause)
    assert not any("float64" in cause for cause in causes)
    assert ["gauss_newton" in cause for cause in causes] == 4 * [True] + 4 * [False]
    assert ["sparse" in cause for cause in causes] == 2 * [False, True, False, False]
    assert causes[-1].endswith("or a second derivative is not finite")


def test_fixed_numbers_of_iterations_test_nothing(solver):
    x0 = np.full((1, 2), 0.5)
    result = solved(solver, x0)
    layout = TrajectoryLayout(result.layout.problem, wm.SQPSettings.real_time())
    status = np.full(1, wm.MPCStatus.MAX_ITER)
    cause = wm.diagnose(replace(result, status=status, layout=layout), x0).worst[0].cause
    assert cause.startswith("the settings fix the number of iterations: rows hold, the KKT")


def test_mistakes(solver, solution):
    x0, params = troubled()
    with pytest.raises(wm.ProblemError, match="Solution of MPCSolver"):
        wm.diagnose(x0)
    with pytest.raises(wm.ProblemError, match="those of 3 instances, the solution has 10"):
        wm.diagnose(solution, x0[:3])
    with pytest.raises(wm.ProblemError, match="Unknown parameter 'height'"):
        wm.diagnose(solution, x0, {**params, "height": np.ones(1)})
    with pytest.raises(wm.ProblemError, match="being traced"):
        jax.jit(lambda x: wm.diagnose(solver.solve(x)) and x)(x0)


def test_parameters_without_default_are_asked_for(solution):
    ocp = corridor()
    ocp._defaults[:] = np.nan
    x0, params = troubled()
    bare = replace(solution, layout=TrajectoryLayout(ocp.problem()))
    found = wm.diagnose(bare, x0)
    assert any("pass params as well" in note for note in found.notes)
    assert found.rows == ()
    assert found.failed.tolist() == sorted(TROUBLES)
    assert wm.diagnose(bare, x0, params).rows == wm.diagnose(solution, x0, params).rows


def test_endless_derivative_is_named():
    """A square root at zero: its value is finite, its slope is not."""
    x, u = ca.SX.sym("x"), ca.SX.sym("u")
    ocp = wm.OCP(x, u, horizon=3, dt=0.1)
    ocp.set_dynamics(x_next=x + u)
    ocp.add_cost(u**2)
    ocp.add_cost(ca.sqrt(x), at=2)
    problem = ocp.problem()
    found = list(endless_derivatives(problem, np.zeros(problem.n_vars), np.zeros(problem.n_params)))
    assert found == [(2, "cost")]
    assert not list(
        endless_derivatives(problem, np.ones(problem.n_vars), np.zeros(problem.n_params))
    )


def cut(solution, problem, count):
    """The scalars of a solution with trajectories of another problem."""
    few = jax.tree.map(lambda array: np.asarray(array)[:count], replace(solution, history=None))
    z, rows = np.ones((count, problem.n_vars)), np.zeros((count, problem.n_cons))
    start = wm.MPCWarmStart(z, wm.QPState(0 * z, rows, rows))
    return replace(few, z=z, y=rows, warm_start=start, layout=TrajectoryLayout(problem))


def test_problem_without_initial_state(solution):
    """There is nothing to be given, and nothing to be said about it."""
    z, after, last = (ca.SX.sym(name, 2) for name in ("z", "after", "last"))
    first = wm.Stage(z, after, None, ca.sumsqr(z), after - z - 1, 0.0, 0.0)
    problem = wm.MPCProblem([first, wm.Stage(last, cost=ca.sumsqr(last))])
    found = wm.diagnose(replace(cut(solution, problem, 3), violation=np.ones(3)))
    assert found.notes == ()
    assert [(row.name, row.violation) for row in found.rows] == [("g[0]", 1.0), ("g[1]", 1.0)]
    with pytest.raises(wm.ProblemError, match="Nothing in this problem has a name"):
        wm.plot(cut(solution, problem, 3))


def test_states_that_are_not_x0(solution):
    x0, z = ca.SX.sym("x0", 3), ca.SX.sym("z", 2)
    problem = wm.MPCProblem([wm.Stage(z, cost=ca.sumsqr(z), g=z - x0[:2], lower=0.0, n_x=2)], x0=x0)
    found = wm.diagnose(cut(solution, problem, 3))
    assert any("pass x0 to `diagnose`" in note for note in found.notes)
    assert found.rows == ()
