"""Stage derivatives and their places, against derivatives of the whole problem by CasADi."""

from __future__ import annotations

import casadi as ca
import numpy as np
import pytest
import scipy.sparse as sp
from mpc_cases import WholeProblem, mixed_stages, pendulum

from warpmpc.problem.ocp.ocp import OCP
from warpmpc.symbolic.derivatives.assembly import Assembly
from warpmpc.symbolic.derivatives.stage_model import HessianRule, StageModel

PROBLEMS = {"mixed": mixed_stages, "pendulum": lambda: pendulum(5).problem()}
EXACT = HessianRule("exact", "none")


def _assembly(problem, rule):
    models = [StageModel.build(problem, group.stage, rule) for group in problem.groups]
    return Assembly(problem, models)


def _point(problem, seed=0):
    rng = np.random.default_rng(seed)
    return (
        rng.uniform(-1, 1, problem.n_vars),
        rng.uniform(0.5, 1.5, problem.n_params),
        rng.standard_normal(problem.n_cons),
    )


def _evaluate(assembly, function, inputs, outputs):
    """What kernels do, stage by stage: gather, evaluate, scatter; rows start as NaN."""
    arrays = [np.full(size, np.nan) for size, _ in outputs]
    for i, model in enumerate(assembly.models):
        f = function(model)
        for a in range(assembly.stages[i].size):
            found = f.call([values[rows[i][a]] for values, rows in inputs])
            for array, (_, rows), part in zip(arrays, outputs, found, strict=True):
                assert np.isnan(array[rows[i][a]]).all()  # no entry is written twice
                array[rows[i][a]] = np.array(part).ravel() if part.nnz() else np.zeros(part.numel())
    assert all(not np.isnan(array).any() for array in arrays)
    return arrays


def _added(rows, overlap):
    np.add.at(rows, overlap.targets, rows[overlap.size :])
    return rows[: overlap.size]


def _qp(problem, rule, z, p, y):
    at = _assembly(problem, rule)
    inputs = [(z, at.w_rows), (p, at.p_rows)] + ([(y, at.g_rows)] if rule.kind == "exact" else [])
    names = ["P", "q", "A", "lower", "upper"]
    outputs = [
        (at.P_overlap.n_rows, at.P_rows),
        (at.q_overlap.n_rows, at.q_rows),
        (at.A_pattern.nnz, at.A_rows),
        (problem.n_cons, at.g_rows),
        (problem.n_cons, at.g_rows),
    ]
    P, q, A, lower, upper = _evaluate(at, lambda m: m.linearize("f", names), inputs, outputs)
    P, q = _added(P, at.P_overlap), _added(q, at.q_overlap)
    upper_P = sp.csc_matrix(
        (P, at.P_pattern.row_idx, at.P_pattern.col_ptr), at.P_pattern.shape
    ).toarray()
    dense_A = sp.csc_matrix(
        (A, at.A_pattern.row_idx, at.A_pattern.col_ptr), shape=at.A_pattern.shape
    ).toarray()
    return upper_P + np.triu(upper_P, 1).T, q, dense_A, lower, upper


@pytest.mark.parametrize("name", PROBLEMS)
@pytest.mark.parametrize("rule", [HessianRule(convexify="gershgorin"), EXACT])
def test_first_derivatives_are_those_of_the_whole_problem(name, rule):
    problem = PROBLEMS[name]()
    whole = WholeProblem(problem)
    z, p, y = _point(problem)
    _, q, A, lower, upper = _qp(problem, rule, z, p, y)
    g = whole.value(whole.g, z, p)[:, 0]
    assert q == pytest.approx(whole.value(ca.gradient(whole.cost, whole.z), z, p)[:, 0])
    assert np.allclose(A, whole.value(ca.jacobian(whole.g, whole.z), z, p), atol=1e-14)
    assert lower == pytest.approx(whole.value(whole.lower, z, p)[:, 0] - g)
    assert upper == pytest.approx(whole.value(whole.upper, z, p)[:, 0] - g)


@pytest.mark.parametrize("name", PROBLEMS)
def test_exact_hessian_is_that_of_the_lagrangian(name):
    problem = PROBLEMS[name]()
    whole = WholeProblem(problem)
    z, p, y = _point(problem)
    P = _qp(problem, EXACT, z, p, y)[0]
    lagrangian = whole.cost + ca.dot(whole.y, whole.g)
    assert np.allclose(P, whole.value(ca.hessian(lagrangian, whole.z)[0], z, p, y), atol=1e-12)


def test_gauss_newton_leaves_out_second_derivatives_of_residuals():
    problem = mixed_stages()
    whole = WholeProblem(problem)
    z, p, y = _point(problem)
    P = _qp(problem, HessianRule(convexify="none"), z, p, y)[0]
    J = whole.value(ca.jacobian(whole.residual, whole.z), z, p)
    W = whole.value(whole.weight, z, p)
    exact = whole.value(ca.hessian(whole.expression_cost, whole.z)[0], z, p)
    assert np.allclose(P, J.T @ (W * J) + exact, atol=1e-12)


def test_damping_is_on_every_diagonal_entry():
    problem = mixed_stages()
    z, p, y = _point(problem)
    plain, damped = (
        _qp(problem, HessianRule(convexify="none", damping=value), z, p, y)[0]
        for value in (0.0, 0.25)
    )
    assert np.allclose(damped - plain, 0.25 * np.eye(problem.n_vars), atol=1e-14)


def test_gershgorin_is_semidefinite_and_keeps_dominant_entries():
    problem = mixed_stages()
    rng = np.random.default_rng(1)
    for _ in range(20):
        z, p = rng.uniform(-2, 2, problem.n_vars), rng.uniform(-1, 1, problem.n_params)
        P = _qp(problem, HessianRule(convexify="gershgorin"), z, p, np.zeros(problem.n_cons))[0]
        assert np.linalg.eigvalsh(P)[0] >= -1e-9 * np.abs(P).max()


def test_negative_weights_do_not_make_the_default_indefinite():
    x, u = ca.SX.sym("x"), ca.SX.sym("u")
    w = ca.SX.sym("w")
    ocp = OCP(x, u, w, horizon=3, dt=0.1)
    ocp.set_dynamics(x_next=x + u)
    ocp.add_residual(x, weight=w)
    ocp.add_cost(w * u**2)
    problem = ocp.problem()
    p = np.full(problem.n_params, -2.0)
    P = _qp(problem, HessianRule(), np.ones(problem.n_vars), p, np.zeros(problem.n_cons))[0]
    assert np.array_equal(P, np.zeros_like(P))


def test_blocks_left_for_projection_have_their_raw_values():
    problem = mixed_stages()
    at = _assembly(problem, HessianRule())
    z, p, _ = _point(problem)
    size = sum(rows.size for rows in at.block_rows)
    (raw,) = _evaluate(
        at,
        lambda m: m.linearize("f", ["blocks"]),
        [(z, at.w_rows), (p, at.p_rows)],
        [(size, at.block_rows)],
    )
    whole = WholeProblem(problem)
    # Without the projection the raw blocks are what the exact cost Hessian has beyond J'WJ.
    P = np.zeros(at.P_pattern.nnz)
    for blocks in at.block_sets:
        i, j = np.tril_indices(blocks.values.shape[-1])
        np.add.at(P, blocks.upper, raw[blocks.values[:, i, j]])
        for parity in (0, 1):
            mine = blocks.upper[blocks.parity == parity]
            assert np.unique(mine).size == mine.size
    found = sp.csc_matrix(
        (P, at.P_pattern.row_idx, at.P_pattern.col_ptr), at.P_pattern.shape
    ).toarray()
    exact = np.triu(whole.value(ca.hessian(whole.expression_cost, whole.z)[0], z, p))
    single = exact - found  # groups of one variable are not among the blocks
    assert np.allclose(single, np.diag(np.diag(single)), atol=1e-12)


@pytest.mark.parametrize("name", PROBLEMS)
def test_evaluation_sums_to_cost_and_violation_of_the_whole_problem(name):
    problem = PROBLEMS[name]()
    whole = WholeProblem(problem)
    at = _assembly(problem, HessianRule())
    z, p, _ = _point(problem)
    n = problem.horizon + 1
    cost, squares, absolute, worst = _evaluate(
        at,
        lambda m: m.evaluate("f"),
        [(z, at.w_rows), (p, at.p_rows)],
        [(n, at.stage_rows)] * 4,
    )
    g, lower, upper = (
        whole.value(part, z, p)[:, 0] for part in (whole.g, whole.lower, whole.upper)
    )
    beyond = np.maximum(lower - g, 0) + np.maximum(g - upper, 0)
    assert cost.sum() == pytest.approx(whole.value(whole.cost, z, p).item())
    assert squares.sum() == pytest.approx((beyond**2).sum())
    assert absolute.sum() == pytest.approx(beyond.sum())
    assert worst.max() == pytest.approx(beyond.max())


NAN, INF = np.nan, np.inf
# Row, its bounds, and by how much it violates them.
VIOLATIONS = [
    (2.0, -1.0, 1.5, 0.5),
    (-3.0, -1.0, 1.0, 2.0),
    (0.5, -1.0, 1.0, 0.0),
    (0.5, -INF, INF, 0.0),
    (0.5, 0.5, 0.5, 0.0),
    (INF, -1.0, INF, NAN),
    (-INF, -INF, 1.0, NAN),
    (0.0, NAN, 1.0, NAN),
    (0.0, -1.0, NAN, NAN),
    (NAN, -1.0, 1.0, NAN),
]


@pytest.mark.parametrize(("row", "lower", "upper", "wanted"), VIOLATIONS)
def test_nothing_that_is_no_number_is_taken_for_no_violation(row, lower, upper, wanted):
    x, u, bounds = ca.SX.sym("x"), ca.SX.sym("u"), ca.SX.sym("bounds", 2)
    ocp = OCP(x, u, {"bounds": bounds}, horizon=1, dt=0.1)
    ocp.set_dynamics(u, integrator="euler")
    ocp.subject_to(bounds[0], x, bounds[1], at="terminal")
    model = _assembly(ocp.problem(), HessianRule()).models[-1]
    _, squares, absolute, worst = map(float, model.evaluate("f")([row], [0.0, lower, upper]))
    np.testing.assert_equal([squares, absolute], [wanted**2, wanted])
    assert worst == wanted or np.isnan(wanted)
    *_, crossed = map(float, model.evaluate("f")([0.0], [0.0, 1.0, -2.0]))
    assert crossed == 2.0  # not the sum of both sides


@pytest.mark.parametrize("rule", [HessianRule(convexify="gershgorin"), EXACT])
def test_pull_back_is_the_transposed_derivative(rule):
    """Cotangents against central differences of their pairing with the QP."""
    problem = mixed_stages()
    at = _assembly(problem, rule)
    z, p, y = _point(problem)
    names = ["P", "q", "A", "lower", "upper"]
    sizes = [at.P_pattern.nnz, problem.n_vars, at.A_pattern.nnz, problem.n_cons, problem.n_cons]
    rng = np.random.default_rng(3)
    bars = [rng.standard_normal(size) for size in sizes]
    point = [(z, at.w_rows), (p, at.p_rows)] + ([(y, at.g_rows)] if rule.kind == "exact" else [])
    tables = [at.P_places, at.q_places, at.A_rows, at.g_rows, at.g_rows]
    rows, overlap = at.w_joined
    common, stages = problem.n_x0 + problem.n_shared, problem.horizon + 1
    n_p = common * stages + problem.n_params - common
    z_bar, p_bar = _evaluate(
        at,
        lambda m: m.pull_back("f", names, of_w=True),
        point + list(zip(bars, tables, strict=True)),
        [(overlap.n_rows, rows), (n_p, at.p_bar_rows)],
    )
    z_bar = _added(z_bar, overlap)
    p_bar = np.append(
        p_bar[: common * stages].reshape(common, stages).sum(axis=1), p_bar[common * stages :]
    )

    def pairing(z, p):
        P, q, A, lower, upper = _qp(problem, rule, z, p, y)
        P_vals = P[at.P_pattern.row_idx, at.P_pattern.col_idx]
        A_vals = A[at.A_pattern.row_idx, at.A_pattern.col_idx]
        parts = (P_vals, q, A_vals, lower, upper)
        return sum(float(bar @ part) for bar, part in zip(bars, parts, strict=True))

    h = 1e-6
    for values, bar, at_z in ((z, z_bar, True), (p, p_bar, False)):
        for i in range(values.size):
            step = h * np.eye(values.size)[i]
            ends = [pairing(z + s, p) if at_z else pairing(z, p + s) for s in (step, -step)]
            assert bar[i] == pytest.approx((ends[0] - ends[1]) / (2 * h), rel=1e-5, abs=1e-6)
