"""Problem families of the OSQP paper and a linear MPC: statuses, solutions and objectives.

With default settings at sizes up to 2000, to a tolerance of 1e-8 at small ones; OSQP is the judge.
"""

import numpy as np
import pytest
from qp_cases import FAMILIES, OSQP_TIGHT, family, osqp_solve, ring, solver_for
from qp_sizes import SMALL

from warpmpc import ADMMSettings, Status

pytestmark = pytest.mark.oracle
TIGHT = ADMMSettings(eps_abs=1e-8, eps_rel=1e-8, max_iter=20_000)
# Some with about 2000 variables and rows.
LARGE = {
    "portfolio": (900, 0.2),
    "lasso": (250, 0.02),
    "random": (660, 0.0015),
    "linear_mpc": (40, 1.0),
}
# How far solutions within the default tolerance of 1e-3 may be from the exact ones.
MAX_SOLUTION_ERROR = 0.06


def test_tables_are_complete():
    assert set(SMALL) == set(FAMILIES)
    for name, (size, density) in LARGE.items():
        assert 1700 < sum(family(name, size, 5, density).A.shape) <= 2000


@pytest.mark.parametrize("name", SMALL)
@pytest.mark.slow
def test_default_settings(name):
    """Large where the table has a large size."""
    size, density = LARGE.get(name, SMALL[name])
    given = family(name, size, 5, density)
    settings = ADMMSettings().resolved()
    solution = solver_for(given, settings).solve(*given.args)
    for b, qp in enumerate(given.instances):
        assert osqp_solve(qp).status == Status.SOLVED == solution.status[b]
        x, y, s = (np.asarray(v[b]) for v in (solution.x, solution.y, solution.warm_start.s))
        primal, dual = qp.residuals(x, s, y)
        Px, ATy, Ax = qp.full_P @ x, qp.A.T @ y, qp.A @ x
        scale = max(np.abs(v).max() for v in (Px, ATy, qp.q))
        assert primal <= settings.eps_abs + settings.eps_rel * np.abs(Ax).max() * 1.001
        assert dual <= settings.eps_abs + settings.eps_rel * scale * 1.001
        assert np.maximum(qp.lower - Ax, Ax - qp.upper).max() <= primal * 1.001
        wanted = osqp_solve(qp, eps_abs=1e-7, eps_rel=1e-7, max_iter=50_000)
        # Convexity bounds the error of the objective by the residuals.
        gap = float(solution.objective[b]) - wanted.objective
        slack = 1e-5 * max(abs(wanted.objective), 1)
        assert gap <= dual * np.abs(x - wanted.x).sum() + primal * np.abs(y).sum() + slack
        assert -gap <= primal * np.abs(wanted.y).sum() + slack
        np.testing.assert_allclose(x, wanted.x, rtol=0, atol=MAX_SOLUTION_ERROR)


@pytest.mark.parametrize("name", SMALL)
def test_high_accuracy(name):
    """One tile and one more instance, with different values."""
    size, density = SMALL[name]
    given = family(name, size, 33, density)
    solution = solver_for(given, TIGHT).solve(*given.args)
    for b, qp in enumerate(given.instances):
        wanted = osqp_solve(qp, **OSQP_TIGHT)
        assert wanted.status == Status.SOLVED == solution.status[b]
        np.testing.assert_allclose(solution.objective[b], wanted.objective, rtol=1e-6)
        np.testing.assert_allclose(qp.objective(np.asarray(solution.x[b])), solution.objective[b])
        np.testing.assert_allclose(solution.x[b], wanted.x, rtol=0, atol=1e-5)
        np.testing.assert_allclose(solution.y[b], wanted.y, rtol=1e-4, atol=1e-5)


@pytest.mark.slow
def test_pcg_engine():
    """The baseline: inexact solves, the same solution to the tolerance."""
    given = ring(33)
    solution = solver_for(given, engine="pcg").solve(*given.args)
    np.testing.assert_array_equal(solution.status, Status.SOLVED)
    for b, qp in enumerate(given.instances):
        wanted = osqp_solve(qp, **OSQP_TIGHT)
        np.testing.assert_allclose(solution.objective[b], wanted.objective, rtol=0.02, atol=0.05)
        np.testing.assert_allclose(solution.x[b], wanted.x, rtol=0, atol=MAX_SOLUTION_ERROR)
