"""Converged solutions satisfy the optimality conditions, whatever Hessian led to them."""

from __future__ import annotations

import casadi as ca
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.sparse as sp
from mpc_cases import WholeProblem, mixed_stages, pendulum
from sqp_cases import arm, points

from warpmpc import LineSearchSettings, MPCSolver, MPCStatus, SQPSettings

BATCH = 16


class Optimality:
    """Derivatives of a whole problem by CasADi, and the conditions of first order."""

    def __init__(self, problem):
        self.problem, self.whole = problem, WholeProblem(problem)
        w = self.whole
        outputs = [w.cost, ca.gradient(w.cost, w.z), w.g, ca.jacobian(w.g, w.z), w.lower, w.upper]
        self._values = ca.Function("conditions", [w.z, w.p], outputs)

    def at(self, z, p, y):
        """Cost, gradient of the cost, stationarity, violation, complementarity."""
        cost, slope, g, J, lower, upper = (np.array(part) for part in self._values(z, p))
        slope, g, lower, upper = (part[:, 0] for part in (slope, g, lower, upper))
        violation = np.max(np.maximum(lower - g, 0) + np.maximum(g - upper, 0))
        # A multiplier is positive at upper bounds, negative at lower ones, and zero between.
        gap = np.where(y > 0, upper - g, np.where(y < 0, g - lower, 0))
        stationarity = np.abs(slope + J.T @ y).max()
        return cost.item(), np.abs(slope).max(), stationarity, violation, np.abs(y * gap).max()


def check(solver, solution, p, tolerance=1e-6):
    """Checks all instances against the conditions, and the figures of the solution itself."""
    conditions = Optimality(solver.problem)
    np.testing.assert_array_equal(solution.status, MPCStatus.CONVERGED)
    for b in range(p.shape[0]):
        z, y = np.asarray(solution.z[b]), np.asarray(solution.y[b])
        cost, size, stationarity, violation, gap = conditions.at(z, p[b], y)
        residual = max(stationarity, gap)
        assert residual <= tolerance * max(1, size)
        assert violation <= tolerance
        assert solution.cost[b] == pytest.approx(cost, rel=1e-12)
        assert solution.violation[b] == pytest.approx(violation, abs=1e-12)
        # The unit of the cost is at least its gradient; the curvature may make it larger.
        assert solution.kkt_residual[b] <= residual / size + 1e-12
        assert solution.kkt_residual[b] <= tolerance


@pytest.fixture(scope="module")
def limited():
    """An arm with hard limits of its speed, default settings, with history."""
    return MPCSolver(arm(6, hard=True), SQPSettings(record=True), "float64", "staged")


def starts(batch=BATCH, seed=0):
    rng = np.random.default_rng(seed)
    x0 = np.stack([rng.uniform(-0.6, 0.6, batch), rng.uniform(-0.2, 0.15, batch)], axis=1)
    weights = rng.uniform(0.05, 1.0, (batch, 3))
    return x0, {"w": weights, "gravity": rng.uniform(0.5, 1.5, (batch, 1))}


class TestOptimality:
    def test_arm_at_its_limits(self, limited):
        x0, params = starts()
        solution = limited.solve(x0, params)
        check(limited, solution, np.asarray(limited.pack(x0, params)))
        speed = [name.startswith("speed") for name in limited.problem.row_names]
        assert np.any(solution.y[:, speed] > 1e-3)
        assert np.any(solution.y[:, speed] < -1e-3)

    def test_warm_start_takes_one_iteration(self, limited):
        x0, params = starts()
        first = limited.solve(x0, params)
        again = limited.solve(x0, params, warm_start=first.warm_start)
        np.testing.assert_array_equal(again.status, MPCStatus.CONVERGED)
        np.testing.assert_array_equal(again.iterations, 1)
        np.testing.assert_array_equal(again.z, first.z)
        near = limited.solve(x0 + 1e-4, params, warm_start=first.warm_start)
        np.testing.assert_array_equal(near.status, MPCStatus.CONVERGED)
        assert np.sum(near.iterations) < np.sum(first.iterations)

    def test_history(self, limited):
        """NaN after an instance has ended; the end is what the solution says."""
        x0, params = starts()
        cold = limited.cold_start(limited.z_guess(x0, params))
        done = limited.solve(x0, params).warm_start
        even = np.arange(BATCH)[:, None] % 2 == 0
        mixed = jax.tree.map(lambda a, b: jnp.where(even, a, b), done, cold)
        solution = limited.solve(x0, params, warm_start=mixed)
        history, n = solution.history, np.asarray(solution.iterations)
        np.testing.assert_array_equal(n == 1, even[:, 0])
        assert n.max() < limited.settings.max_iter
        after = np.arange(limited.settings.max_iter)[None] >= n[:, None]
        for name in ("cost", "theta", "step_length", "accepted", "kkt_residual"):
            values = np.asarray(getattr(history, name))
            assert values.shape == after.shape
            np.testing.assert_array_equal(np.isnan(values), after, err_msg=name)
            np.testing.assert_array_equal(
                values[np.arange(BATCH), n - 1], getattr(solution, name), err_msg=name
            )
        # The last iteration finds that nothing is left to do.
        first = np.asarray(history.kkt_residual)[:, 0]
        assert np.all(first[1::2] > 1e-3)
        assert np.all(first[::2] < 1e-6)
        np.testing.assert_array_equal(solution.step_length, 0)

    def test_scaled_at_a_nominal_point(self, limited):
        """The same solutions by other iterations of the QPs."""
        x0, params = starts()
        own = limited.solve(x0, params)
        nominal = (np.asarray(own.z[0]), np.asarray(limited.pack(x0, params)[0]))
        once = MPCSolver(arm(6, hard=True), None, "float64", "sparse", nominal=nominal)
        # Its programs are compiled once: with the first solve, for the parameters of that.
        assert "_linearize" not in vars(once.programs)
        solution = once.solve(x0, params)
        check(once, solution, np.asarray(once.pack(x0, params)))
        np.testing.assert_allclose(solution.z, own.z, rtol=0, atol=1e-4)
        assert not np.array_equal(solution.qp_iterations, own.qp_iterations)

    def test_any_start_leads_to_a_solution(self, limited):
        x0, params = starts()
        z, _ = points(limited.problem, BATCH)
        solution = limited.solve(x0, params, warm_start=z)
        check(limited, solution, np.asarray(limited.pack(x0, params)))


def swing_starts():
    rng = np.random.default_rng(1)
    return np.stack([rng.uniform(-1.2, 1.2, BATCH), rng.uniform(-1, 1, BATCH)], axis=1)


HESSIANS = {
    "gauss_newton": SQPSettings(hessian="gauss_newton"),
    "projected": SQPSettings(hessian="exact", convexify="project"),
    "gershgorin": SQPSettings(hessian="exact", convexify="gershgorin"),
    "damped": SQPSettings(hessian="gauss_newton", regularization=0.01, max_iter=100),
    "merit": SQPSettings(line_search=LineSearchSettings(kind="merit")),
}


@pytest.fixture(scope="module")
def swung_up():
    """The pendulum's solution with every Hessian; each is checked as it is made."""
    found = {}
    for name, settings in HESSIANS.items():
        solver = MPCSolver(pendulum(8), settings, dtype="float64", engine="sparse")
        x0 = swing_starts()
        found[name] = solver.solve(x0)
        check(solver, found[name], np.asarray(solver.pack(x0)))
    return found


@pytest.mark.slow
class TestHessians:
    @pytest.mark.parametrize("name", HESSIANS)
    def test_same_solution(self, swung_up, name):
        wanted = swung_up["projected"]
        np.testing.assert_allclose(swung_up[name].z, wanted.z, rtol=0, atol=1e-4)
        np.testing.assert_allclose(swung_up[name].cost, wanted.cost, rtol=1e-7)

    def test_they_are_different_on_the_way(self, swung_up):
        ends = {np.asarray(swung_up[name].z).tobytes() for name in HESSIANS if name != "merit"}
        assert len(ends) == len(HESSIANS) - 1

    def test_damping_slows_down(self, swung_up):
        assert np.sum(swung_up["damped"].iterations) > np.sum(swung_up["gauss_newton"].iterations)


def full(solver, values):
    pattern = solver.programs.assembly.P_pattern
    upper = sp.csc_matrix((values, pattern.row_idx, pattern.col_ptr), pattern.shape).toarray()
    return upper + np.triu(upper, 1).T


RULES = {
    "default": SQPSettings(),
    "fixed": SQPSettings(mode="fixed"),
    "gershgorin": SQPSettings(hessian="exact", convexify="gershgorin"),
    "damped": SQPSettings(hessian="exact", regularization=0.5),
}


@pytest.mark.parametrize(
    ("make", "rule"), [*((mixed_stages, rule) for rule in RULES), (lambda: pendulum(3), "default")]
)
def test_the_qp_is_convex_everywhere(make, rule):
    """32 random points with large multipliers, weights of both signs."""
    solver = MPCSolver(make(), RULES[rule], dtype="float64", engine="dense")
    problem, rng = solver.problem, np.random.default_rng(2)
    shapes = [(1, size, 32) for size in (problem.n_vars, problem.n_params, problem.n_cons)]
    z, p, y = rng.normal(0, 2, shapes[0]), rng.normal(1, 1, shapes[1]), rng.normal(0, 9, shapes[2])
    data = solver.programs.linearize(*(jnp.asarray(a) for a in (z, p, y)))
    least = RULES[rule].regularization
    for b in range(32):
        P = full(solver, np.asarray(data.P[0, :, b]))
        assert np.linalg.eigvalsh(P)[0] >= least - 1e-9 * np.abs(P).max()


def test_without_convexification_it_would_not_be():
    """The exact Hessian of the Lagrangian is indefinite at such points."""
    problem = mixed_stages()
    whole, rng = WholeProblem(problem), np.random.default_rng(2)
    hessian = ca.hessian(whole.cost + ca.dot(whole.y, whole.g), whole.z)[0]
    z, p = points(problem, 1, spread=2)
    H = whole.value(hessian, z[0], p[0], rng.normal(0, 9, problem.n_cons))
    assert np.linalg.eigvalsh(H)[0] < -1
