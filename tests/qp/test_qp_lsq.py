"""Both ways of differentiating agree where solutions are regular and are finite elsewhere."""

from dataclasses import replace

import jax
import numpy as np
import pytest
import scipy.sparse as sp
from qp_cases import FAMILIES, QPBatch, family, ring, solver_for
from qp_sizes import SMALL

from warpmpc import ADMMSettings, QPSolver, Status

pytestmark = pytest.mark.slow

TIGHT = ADMMSettings(eps_abs=1e-10, eps_rel=1e-10, max_iter=20_000)
LSQ = replace(TIGHT, sensitivity="lsq")
MAX_DIFFERENCE = 1e-6


def gradients(given: QPBatch, settings: ADMMSettings, weight_y: float = 1.0):
    """Gradients of a random functional of x and y with respect to all data, and the solution."""
    solver, rng = solver_for(given, settings), np.random.default_rng(3)
    bars = rng.normal(size=given.q.shape), weight_y * rng.normal(size=given.lower.shape)

    def outputs(*args):
        solution = solver.solve(*args)
        return (solution.x, solution.y), solution.status

    @jax.jit
    def run(args):
        result, back, status = jax.vjp(outputs, *args, has_aux=True)
        return back(bars), result, status

    found, result, status = run(given.args)
    np.testing.assert_array_equal(status, Status.SOLVED)
    return [np.asarray(array) for array in found], result


def regular(given: QPBatch, x, y) -> list[int]:
    """Instances with independent active rows, none of which is about to become inactive."""
    found = []
    for b, qp in enumerate(given.instances):
        Ax, equal = qp.A @ np.asarray(x[b]), qp.lower == qp.upper
        size, slack = np.abs(y[b]), np.minimum(Ax - qp.lower, qp.upper - Ax)
        active = equal | (size > slack)
        rank = np.linalg.matrix_rank(qp.A.toarray()[active]) if active.any() else 0
        if rank == active.sum() and (equal | (np.maximum(size, slack) > 5e-3)).all():
            found.append(b)
    return found


def test_table_is_complete():
    assert set(SMALL) == set(FAMILIES)


@pytest.mark.parametrize("name", SMALL)
def test_methods_agree(name):
    size, density = SMALL[name]
    given = family(name, size, 5, density)
    kkt, (x, y) = gradients(given, TIGHT)
    lsq, _ = gradients(given, LSQ)
    rows = regular(given, x, y)
    assert len(rows) >= 4
    for b in rows:
        scale = max(np.linalg.norm(gradient[b]) for gradient in kkt)
        assert scale > 0.1
        for one, other in zip(kkt, lsq, strict=True):
            assert np.linalg.norm(one[b] - other[b]) < MAX_DIFFERENCE * scale


def test_methods_agree_on_rows_of_every_kind():
    given = ring(33)
    kkt, (x, y) = gradients(given, TIGHT)
    lsq, _ = gradients(given, LSQ)
    rows = regular(given, x, y)
    assert len(rows) > 25
    for one, other in zip(kkt, lsq, strict=True):
        np.testing.assert_allclose(one[rows], other[rows], rtol=1e-5, atol=1e-5)


class TestDegeneratePoints:
    """min half |x - p|^2 at points where the solution has no derivative, or y none."""

    P = sp.identity(2, format="csc")

    def jacobian(self, A, lower, upper, p, sensitivity: str):
        """Derivative of x with respect to p."""
        A = sp.csc_matrix(np.array(A))
        solver = QPSolver(self.P, A, replace(TIGHT, sensitivity=sensitivity), dtype="float64")

        def x(p):
            bounds = np.array(lower, dtype=float), np.array(upper, dtype=float)
            return solver.solve(np.ones(2), -p, A.data, *bounds).x

        return np.asarray(jax.jit(jax.jacrev(x))(np.array(p, dtype=float)))

    @pytest.mark.parametrize("sensitivity", ["kkt", "lsq"])
    def test_row_given_three_times(self, sensitivity):
        """x is differentiable: it slides along x0 = 1; the multipliers are not unique."""
        got = self.jacobian([[1.0, 0]] * 3, [-1] * 3, [1] * 3, [2, 0.5], sensitivity)
        np.testing.assert_allclose(got, [[0, 0], [0, 1]], rtol=0, atol=1e-5)

    @pytest.mark.parametrize("sensitivity", ["kkt", "lsq"])
    def test_vertex_with_more_rows_than_variables(self, sensitivity):
        """Three active rows in two dimensions: x does not move."""
        A = [[1.0, 0], [0, 1.0], [1.0, 1.0]]
        got = self.jacobian(A, [-9] * 3, [1, 1, 2], [3, 3], sensitivity)
        np.testing.assert_allclose(got, np.zeros((2, 2)), rtol=0, atol=1e-5)

    def test_bound_touched_without_force(self):
        """p on the bound, y = 0: the derivatives of both sides differ.  "kkt" gives that of one
        side, whichever rounding makes of y; "lsq" something between them.
        """
        given = [[1.0, 0]], [-1], [1], [1.0, 0.5]
        kkt, lsq = (self.jacobian(*given, sensitivity) for sensitivity in ("kkt", "lsq"))
        assert min(abs(kkt[0, 0]), abs(kkt[0, 0] - 1)) < 1e-6
        assert -1e-6 < lsq[0, 0] < 1 + 1e-6
        for jacobian in (kkt, lsq):
            np.testing.assert_allclose(jacobian[1], [0, 1], rtol=0, atol=1e-6)
            np.testing.assert_allclose(jacobian[0, 1], 0, rtol=0, atol=1e-6)

    @pytest.mark.parametrize("settings", [TIGHT, LSQ], ids=["kkt", "lsq"])
    def test_cotangents_of_multipliers_that_are_not_unique(self, settings):
        """Each half of an equality given twice has no derivative; the answer is finite."""
        given = ring(33).copy()
        row = given.A.indices
        given.A_vals[:, row == 4] = given.A_vals[:, row == 0]
        given.lower[:, 4], given.upper[:, 4] = given.lower[:, 0], given.upper[:, 0]
        found, _ = gradients(given, settings)
        assert all(np.isfinite(gradient).all() for gradient in found)
