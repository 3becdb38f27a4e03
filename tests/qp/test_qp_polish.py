"""Polishing: more digits where the active set is right, no bit elsewhere."""

import jax
import numpy as np
import pytest
import scipy.sparse as sp
from qp_cases import OSQP_TIGHT, QP, family, osqp_solve, solver_for, spoiled_ring, stack

from warpmpc import ADMMSettings, QPSolver, SettingsError, Status

POLISH = ADMMSettings(polish=True)


def errors(given, solution, exact):
    """Distance of x from exact solutions, relative to their sizes."""
    return [
        np.abs(x - one.x).max() / max(np.abs(one.x).max(), 1)
        for x, one in zip(np.asarray(solution.x), exact, strict=True)
    ]


@pytest.mark.oracle
@pytest.mark.parametrize(
    ("engine", "dtype"), [("sparse", "float32"), ("dense", "float32"), ("sparse", "float64")]
)
def test_two_digits_more(engine, dtype):
    given = family("random", 12, 16)
    exact = [osqp_solve(qp, **OSQP_TIGHT) for qp in given.instances]
    data = given.map(lambda array: array.astype(dtype))
    plain = solver_for(given, engine=engine, dtype=dtype).solve(*data.args)
    found = solver_for(given, POLISH, engine=engine, dtype=dtype).solve(*data.args)
    np.testing.assert_array_equal(found.status, plain.status)
    before, after = errors(given, plain, exact), errors(given, found, exact)
    assert np.median(after) < 1e-2 * np.median(before)
    assert np.median(after) < (1e-5 if dtype == "float32" else 1e-9)
    assert (np.asarray(found.primal_residual) <= np.asarray(plain.primal_residual) + 1e-5).all()
    # The accepted point is that of the warm start, and multipliers have the signs of their bounds.
    np.testing.assert_array_equal(found.warm_start.x, found.x)
    assert (np.asarray(found.y)[np.isinf(given.upper)] <= 0).all()
    assert (np.asarray(found.y)[np.isinf(given.lower)] >= 0).all()
    cost = [qp.objective(x) for qp, x in zip(given.instances, np.asarray(found.x), strict=True)]
    np.testing.assert_allclose(found.objective, cost, rtol=1e-4 if dtype == "float32" else 1e-9)


def cart_qps(batch):
    """Carts that go for a place: states and the input behind them, dynamics, limits of inputs."""
    steps, n = 4, 14
    of_P = sp.diags([[1.0, 0.1] * (steps + 1) + [0.02] * steps], [0], format="csc")
    rows = np.zeros((2 * (steps + 1) + steps, n))
    rows[[0, 1], [0, 1]] = 1.0
    for k in range(steps):
        here, there, u = 2 * k, 2 * k + 2, 2 * (steps + 1) + k
        rows[there, [here, here + 1, there, u]] = 1.0, 0.3, -1.0, 0.045
        rows[there + 1, [here + 1, there + 1, u]] = 1.0, -1.0, 0.3
        rows[2 * (steps + 1) + k, u] = 1.0
    of_states, of_inputs = np.repeat(np.arange(steps + 1), 2), np.arange(steps)
    stages = np.concatenate([of_states, of_inputs, of_states, of_inputs])
    instances = []
    for b in range(batch):
        lower = np.concatenate([np.zeros(2 * (steps + 1)), np.full(steps, -1.0)])
        upper = -lower
        lower[:2] = upper[:2] = np.random.default_rng(b).uniform(-1, 1, 2)
        instances.append(QP(of_P, np.zeros(n), sp.csc_matrix(rows), lower, upper))
    return stack(instances), stages


@pytest.mark.oracle
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_two_digits_more_on_stages(dtype):
    """The engine `staged` polishes with the linear solver for any pattern."""
    given, stages = cart_qps(16)
    exact = [osqp_solve(qp, **OSQP_TIGHT) for qp in given.instances]
    data, found = given.map(lambda array: array.astype(dtype)), []
    for settings in (ADMMSettings(), POLISH):
        solver = QPSolver(given.P, given.A, settings, dtype, "staged", stages=stages)
        solution = solver.solve(*data.args)
        np.testing.assert_array_equal(solution.status, Status.SOLVED)
        found.append(np.median(errors(given, solution, exact)))
    assert found[1] < 1e-2 * found[0]
    assert found[1] < (1e-6 if dtype == "float32" else 1e-10)


def test_others_keep_every_bit():
    """Instances without a solution, and those that a step makes worse."""
    given = spoiled_ring()
    plain, found = (solver_for(given, s).solve(*given.args) for s in (None, POLISH))
    unsolved = np.flatnonzero(np.asarray(plain.status) != Status.SOLVED)
    assert unsolved.size > 5
    for one, other in zip(jax.tree.leaves(plain), jax.tree.leaves(found), strict=True):
        np.testing.assert_array_equal(np.asarray(one)[unsolved], np.asarray(other)[unsolved])
    solved = np.flatnonzero(np.asarray(plain.status) == Status.SOLVED)
    for name in ("primal_residual", "dual_residual"):
        one, other = (np.asarray(getattr(s, name))[solved] for s in (plain, found))
        assert (other <= np.maximum(one, 1e-10)).all()


def test_gradients_belong_to_the_polished_point():
    """The derivative of the cost with respect to q is x, where the step has been accepted."""
    given = family("random", 12, 16)
    solver = solver_for(given, POLISH)
    P_vals, q, *rest = given.args
    solution = solver.solve(*given.args)
    exact = np.asarray(solution.dual_residual) < 1e-10
    assert exact.sum() >= 12
    slope = jax.grad(lambda q: solver.solve(P_vals, q, *rest).objective.sum())(q)
    np.testing.assert_allclose(slope[exact], np.asarray(solution.x)[exact], rtol=0, atol=1e-8)


def test_what_cannot_be_polished():
    eye = sp.identity(2, format="csc")
    with pytest.raises(SettingsError, match='"pcg" is too inexact to polish: use engine="sparse"'):
        QPSolver(eye, eye, POLISH, engine="pcg")
    with pytest.raises(SettingsError, match="polish=True does not know soft rows"):
        QPSolver(eye, eye, POLISH, soft_rows=[0])
    with pytest.raises(SettingsError, match="polish must be True or False, got 1"):
        ADMMSettings(polish=1)
