"""Costs that bend down: a status of the instance, told from the pivots of K."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.sparse as sp
from hard_qps import cases
from qp_cases import ring, solver_for, stack

from warpmpc import ADMMSettings, QPSolver, Status
from warpmpc.qp.linear_solvers.kkt_solvers import DenseEngine, SparseEngine
from warpmpc.qp.structure import QPStructure
from warpmpc.symbolic.pattern import SparsePattern

ENGINES = ["staged", "sparse", "dense", "pcg"]
STAGES = np.array([0, 1, 2, 3, 0, 1, 2, 3])


def chain_solver(engine, dtype, **settings):
    """Four variables in a row, each with a bound."""
    P = sp.diags([np.ones(4), np.ones(3)], [0, 1], format="csc")
    stages = {"stages": STAGES} if engine == "staged" else {}
    given = ADMMSettings(**settings)
    return QPSolver(P, sp.identity(4, format="csc"), given, dtype=dtype, engine=engine, **stages)


def chain(dtype, diagonal, bound, beside=0.0, q=0.0):
    """Data of instances with this diagonal of P each."""
    batch = len(diagonal)
    P_vals = np.full((batch, 7), beside)
    P_vals[:, [0, 2, 4, 6]] = np.asarray(diagonal)[:, None]
    one = np.ones((batch, 4))
    data = P_vals, q * one, one, -bound * one, bound * one
    return [array.astype(dtype) for array in data]


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("engine", ENGINES)
def test_a_maximiser_is_no_solution(engine, dtype):
    solver = chain_solver(engine, dtype)
    # With an absent bound rho is tiny, and with rho 0.1 the second one bends down, too.
    mixed = chain(dtype, [1.0, -1.0, 2.0, -0.5, 0.0], np.inf)
    found = solver.solve(*mixed)
    bad, good = Status.NON_CONVEX, Status.SOLVED
    np.testing.assert_array_equal(found.status, [good, bad, good, bad, good])
    assert np.isfinite(found.x).all()
    alone = solver.solve(*chain(dtype, [1.0, 1.0, 2.0, 1.0, 0.0], np.inf))
    for leaf, other in zip(jax.tree.leaves(found), jax.tree.leaves(alone), strict=True):
        np.testing.assert_array_equal(leaf[jnp.array([0, 2, 4])], other[jnp.array([0, 2, 4])])


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("engine", ENGINES)
def test_an_indefinite_hessian(engine, dtype):
    """Positive diagonal, one eigenvalue below zero: 1 + 2 cos(4 pi / 5) beside / diagonal."""
    found = chain_solver(engine, dtype).solve(
        *(
            np.concatenate(pair)
            for pair in zip(
                chain(dtype, [1.0], 1e30, beside=0.55, q=0.1),
                chain(dtype, [1.0], 1e30, beside=0.7, q=0.1),
                strict=True,
            )
        )
    )
    np.testing.assert_array_equal(found.status, [Status.SOLVED, Status.NON_CONVEX])


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("engine", ENGINES)
def test_equalities_that_hold_the_curvature(engine, dtype):
    """Convex where the rows leave room: with a small rho, K alone does not tell."""
    P_vals, q, A_vals, lower, upper = chain(dtype, [1.0, 1.0], 10.0, beside=0.3, q=0.1)
    P_vals[:, 0] = -1.0  # the first variable
    lower[0, 0] = upper[0, 0] = 0.5  # is fixed in the first instance
    found = chain_solver(engine, dtype, rho=1e-4, scaling=0).solve(P_vals, q, A_vals, lower, upper)
    assert found.status[0] != Status.NON_CONVEX
    assert found.status[1] == Status.NON_CONVEX
    if found.status[0] == Status.SOLVED:
        K = np.array([[1, 0.3, 0], [0.3, 1, 0.3], [0, 0.3, 1]])
        expected = np.linalg.solve(K, -np.array([0.1 + 0.3 * 0.5, 0.1, 0.1]))
        np.testing.assert_allclose(found.x[0, 1:], expected, atol=5e-3)


def test_what_leaves_the_range_of_numbers_bends_down():
    """The data are finite, so the status says why the iterate is not."""
    data = chain("float32", [-1e-2], 1.0, q=1e20)
    found = chain_solver("dense", "float32", rho=1e-3, scaling=0).solve(*data)
    assert found.status[0] == Status.NON_CONVEX


def test_rho_hides_it_until_it_falls():
    """K is told apart with the rho of the instance, at the start and whenever that changes."""
    data = chain("float64", [-0.05], 1e3, q=1e-3)
    # Here P + rho A'A is positive definite: the iteration is that of a convex problem at first.
    kept = chain_solver("sparse", "float64", adaptive_rho_every=0, scaling=0).solve(*data)
    assert kept.status[0] != Status.NON_CONVEX
    adapted = chain_solver("sparse", "float64", scaling=0, rho=0.01).solve(*data)
    assert adapted.status[0] == Status.NON_CONVEX


def test_fixed_iterations_do_not_look():
    fixed = chain_solver("sparse", "float64", check_every=0, adaptive_rho_every=0, max_iter=10)
    assert fixed.solve(*chain("float64", [-1.0], np.inf)).status[0] == Status.SOLVED


def test_there_is_no_gradient():
    solver = chain_solver("sparse", "float64")
    data = chain("float64", [1.0, -1.0], np.inf, q=1.0)
    slope = jax.grad(lambda q: solver.solve(data[0], q, *data[2:]).x.sum())(jnp.asarray(data[1]))
    np.testing.assert_allclose(slope[0], -1.0, rtol=1e-6)
    np.testing.assert_array_equal(slope[1], 0.0)


@pytest.mark.parametrize("engine", [SparseEngine, DenseEngine])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_signs_of_pivots_against_eigenvalues(engine, dtype):
    """Random Hessians with eigenvalues of both signs, singular ones among them."""
    rng, n, m, groups = np.random.default_rng(0), 8, 5, 64
    full = sp.csc_matrix(np.ones((n, n)))
    patterns = (
        SparsePattern.from_scipy(full),
        SparsePattern.from_scipy(sp.csc_matrix(np.ones((m, n)))),
    )
    structure = QPStructure(*patterns, ADMMSettings(), dtype)
    solver = engine(structure)
    lanes, expected, given = solver.lanes, [], []
    for case in range(groups):
        basis, _ = np.linalg.qr(rng.normal(size=(n, n)))
        least = (0.0, 0.02, 1.0, -0.05, -1.0)[case % 5]
        P = basis @ np.diag(np.append(rng.uniform(0, 1, n - 1), least)) @ basis.T
        A, rho = rng.normal(size=(m, n)), 10.0 ** rng.uniform(-4, 0, m)
        least = np.linalg.eigvalsh(P + A.T @ (rho[:, None] * A)).min()
        expected.append(None if -1e-3 < least < -1e-9 else least < -1e-3)
        given.append((P.T.ravel(), A.T.ravel(), rho))
    parts = [np.stack(part).astype(dtype) for part in zip(*given, strict=True)]
    parts = [jnp.asarray(p.reshape(-1, lanes, p.shape[1]).transpose(0, 2, 1)) for p in parts]
    found = np.ravel(solver.bends_down(solver.prepare(*parts), *parts))
    known = np.array([e is not None for e in expected])
    np.testing.assert_array_equal(found[known], np.array(expected)[known].astype(bool))
    assert 10 < found.sum() < groups - 10


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_no_false_alarm(dtype):
    """Linear programs and singular Hessians, whose smallest pivots are rounding in float32."""
    for name in ("transport_2", "nearly_singular_3", "simplex_fit_2"):
        given = stack([cases()[name]]).map(lambda array: array.astype(dtype))
        for engine in ("sparse", "dense"):
            status = solver_for(given, engine=engine, dtype=dtype).solve(*given.args).status
            assert status[0] != Status.NON_CONVEX, (name, engine)
    given = ring(33).map(lambda array: array.astype(dtype))
    status = solver_for(given, dtype=dtype).solve(*given.args).status
    assert (np.asarray(status) != Status.NON_CONVEX).all()
