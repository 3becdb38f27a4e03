"""Badly scaled problems are solved in other units, which users do not see."""

from __future__ import annotations

import casadi as ca
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from fuzz_cases import fuzz_case
from mpc_cases import WholeProblem
from quick_compile import solve_quickly

import warpmpc as wm
from warpmpc import systems
from warpmpc._errors import SettingsError
from warpmpc.symbolic.derivatives.assembly import Assembly
from warpmpc.symbolic.derivatives.stage_model import HessianRule, StageModel
from warpmpc.symbolic.derivatives.units import find_units, problem_in

SEED, BATCH = 1, 6


def assembly_of(problem):
    rule = HessianRule("exact")
    return Assembly(problem, [StageModel.build(problem, g.stage, rule) for g in problem.groups])


@pytest.mark.parametrize("name", ["pendulum", "car", "cartpole", "quadrotor"])
def test_well_scaled_problems_stay_as_they_are(name):
    assert find_units(assembly_of(systems.make(name).problem)) is None


def penalised() -> wm.OCP:
    """A mass in nanometres with a soft and a hard limit, and a cost expression."""
    x, u, p = ca.SX.sym("x", 2), ca.SX.sym("u"), ca.SX.sym("p")
    ocp = wm.OCP(x, u, {"p": p}, horizon=3, dt=0.1)
    ocp.set_default("p", 1.0)
    ocp.set_dynamics(ca.vertcat(x[1], 1e9 * u * p))
    ocp.add_residual(x / 1e9, weight=[1, 0.1])
    ocp.add_cost(0.1 * u**4 + u**2)
    soft = wm.Soft(linear=(1e-9, np.inf), quadratic=2e-18)
    ocp.subject_to(-2e9, x[1], 3e9, name="speed", soft=soft)
    ocp.subject_to(-4, u, 4, name="force")
    ocp.set_guess(x=ocp.x0)
    return ocp


def test_the_problem_in_other_units_is_the_same():
    problem = penalised().problem()
    units = find_units(assembly_of(problem))
    assert units is not None
    assert units.z[0] > 1e8
    for part in (units.z, units.rows, units.cost):
        np.testing.assert_array_equal(np.log2(part) % 1, 0)
    scaled = problem_in(units, problem)
    assert [group.ks for group in scaled.groups] == [group.ks for group in problem.groups]
    assert scaled.row_names == problem.row_names
    mine, theirs = WholeProblem(problem), WholeProblem(scaled)
    rng = np.random.default_rng(0)
    z, p = rng.normal(size=problem.n_vars), rng.normal(size=problem.n_params)
    for name, factor in (("cost", units.cost), *((n, units.rows) for n in ("g", "lower", "upper"))):
        expected = mine.value(getattr(mine, name), units.z * z, p).ravel() * factor
        found = theirs.value(getattr(theirs, name), z, p).ravel()
        np.testing.assert_allclose(found, expected, rtol=1e-12, err_msg=name)
    for k, stage in enumerate(problem.stages):
        rows = units.rows[problem.g_offset[k] :][stage.soft_rows][:, None]
        factors = units.cost / np.hstack([rows, rows, rows**2, rows**2])
        expected = np.array(ca.DM(stage.penalties)) * factors
        np.testing.assert_allclose(np.array(ca.DM(scaled.stages[k].penalties)), expected)


@pytest.fixture(scope="module")
def cases():
    return fuzz_case(SEED, "good", BATCH), fuzz_case(SEED, "bad", BATCH)


@pytest.fixture(scope="module")
def solvers(cases):
    return [wm.MPCSolver(case.ocp, dtype="float64", engine="sparse") for case in cases]


@pytest.fixture(scope="module")
def solutions(cases, solvers):
    return [solve_quickly(s, c.x0, c.values) for s, c in zip(solvers, cases, strict=True)]


def in_good_units(case, solution):
    """z, y and the direction and multipliers of the warm start."""
    qp = solution.warm_start.qp
    return {
        "z": np.asarray(solution.z) / case.z_unit,
        "y": np.asarray(solution.y) / case.y_unit,
        "start": np.asarray(solution.warm_start.z) / case.z_unit,
        "multipliers": np.asarray(qp.y) / case.y_unit,
    }


def test_results_are_in_the_units_of_the_user(cases, solvers, solutions):
    assert [solver._units is not None for solver in solvers] == [False, True]
    good, bad = (in_good_units(*pair) for pair in zip(cases, solutions, strict=True))
    for solution in solutions:
        np.testing.assert_array_equal(solution.status, wm.MPCStatus.CONVERGED)
    for name, array in good.items():
        size = max(1, np.abs(array).max())
        np.testing.assert_allclose(bad[name], array, atol=1e-4 * size, rtol=0, err_msg=name)
    case, found = cases[1], solutions[1]
    cost = case.program.nlp(np.asarray(found.z[0]) / case.z_unit, case.params[0])[0]
    unit = float(solutions[1].cost[0]) / float(cost)
    np.testing.assert_allclose(found.cost, unit * np.asarray(solutions[0].cost), rtol=1e-5)
    whole = WholeProblem(solvers[1].problem)
    point = (np.asarray(found.z[0]), np.append(case.x0[0], case.params[0, case.x0.shape[1] :]))
    g, lower, upper = (
        whole.value(part, *point).ravel() for part in (whole.g, whole.lower, whole.upper)
    )
    worst = np.maximum(np.maximum(lower - g, g - upper), 0).max()
    np.testing.assert_allclose(found.violation[0], worst, rtol=1e-6, atol=1e-12)


def test_a_warm_start_is_in_the_units_of_the_user(cases, solvers, solutions):
    again = solvers[1].solve(cases[1].x0, cases[1].values, solutions[1].warm_start)
    np.testing.assert_array_equal(again.status, wm.MPCStatus.CONVERGED)
    np.testing.assert_array_equal(again.iterations, 1)
    np.testing.assert_array_equal(again.z, solutions[1].z)


def test_gradients_are_in_the_units_of_the_user(cases, solvers, solutions):
    def first_input(solver, case):
        own = {name: value[0] for name, value in case.values.items()}
        return jax.jacrev(lambda x: solver.solve(x, own).u[0])(jnp.asarray(case.x0[0]))

    good, bad = (first_input(*pair) for pair in zip(solvers, cases, strict=True))
    n = good.shape[-1]
    unit = cases[1].z_unit[n] / cases[1].z_unit[:n]
    np.testing.assert_allclose(np.asarray(bad) / unit, good, atol=1e-4)
    status = solvers[1].gradient_status(solutions[1], cases[1].x0, cases[1].values)
    np.testing.assert_array_equal(status, 0)


def test_scaling_can_be_switched_off(cases):
    none = wm.SQPSettings(scaling="none")
    assert wm.MPCSolver(cases[1].ocp, none, dtype="float64")._units is None
    fixed = wm.SQPSettings.real_time()
    assert wm.MPCSolver(cases[1].ocp, fixed, dtype="float64")._units is None
    with pytest.raises(SettingsError, match="scaling"):
        wm.SQPSettings(scaling="always")


@pytest.mark.parametrize("given", [{"mode": "fixed"}, {"method": "interior_point"}])
def test_scaling_is_refused_where_it_has_no_effect(given):
    with pytest.raises(SettingsError, match='scaling="auto" needs an SQP iteration that runs'):
        wm.SQPSettings(scaling="auto", **given)
    assert wm.SQPSettings(**given).resolved("float32").scaling == "none"
    assert wm.SQPSettings(scaling="none", **given).scaling == "none"
    assert wm.SQPSettings().resolved("float32").scaling == "auto"
