"""Soft rows end to end: the problem with explicit slack variables, solved by IPOPT."""

from __future__ import annotations

import casadi as ca
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from mpc_cases import WholeProblem
from sqp_cases import soft_arm

from warpmpc import OCP, ADMMSettings, MPCSolver, MPCStatus, Soft, SQPSettings

pytestmark = pytest.mark.oracle
BATCH = 8


def instances():
    rng = np.random.default_rng(0)
    x0 = np.stack([rng.uniform(-0.9, 0.9, BATCH), rng.uniform(-0.3, 0.3, BATCH)], axis=1)
    return x0, {"pen": 10.0 ** rng.uniform(-1.5, 1.5, (BATCH, 2))}


class Slacked:
    """The whole problem with one slack variable for each soft side."""

    def __init__(self, problem):
        whole = WholeProblem(problem)
        self.problem, self.z = problem, whole.z
        parts = []
        for k, stage in enumerate(problem.stages):
            at = [int(row) for row in problem.param_rows(k)]
            own = ca.vertcat(problem.x0, problem.shared, stage.p)
            penalties = ca.substitute([stage.penalties], [own], [whole.p[at]])[0]
            rows = problem.g_offset[k] + stage.soft_rows
            parts += [(int(row), penalties[i, :]) for i, row in enumerate(rows)]
        self.rows = np.array([row for row, _ in parts])
        penalties = ca.vertcat(*(penalty for _, penalty in parts))
        self.penalties = ca.Function("penalties", [whole.p], [penalties])
        self.slack = ca.SX.sym("slack", len(parts), 2)
        below, above = (ca.SX(problem.n_cons, 1) for _ in range(2))
        below[self.rows.tolist()], above[self.rows.tolist()] = self.slack[:, 0], self.slack[:, 1]
        weights = ca.SX.sym("weights", len(parts), 4)
        linear, quadratic = weights[:, :2], weights[:, 2:]
        penalty = ca.sum1(ca.vec(linear * self.slack + 0.5 * quadratic * self.slack**2))
        self.nlp = {
            "x": ca.vertcat(whole.z, ca.vec(self.slack)),
            "p": ca.vertcat(whole.p, ca.vec(weights)),
            "f": whole.cost + penalty,
            "g": ca.vertcat(whole.g - above, whole.g + below),
        }
        self.bounds = ca.Function("bounds", [whole.p], [whole.lower, whole.upper])
        self.g = ca.Function("g", [whole.z, whole.p], [whole.g])
        options = {"print_time": False, "ipopt.print_level": 0, "ipopt.sb": "yes"}
        self.ipopt = ca.nlpsol("ipopt", "ipopt", self.nlp, options | {"ipopt.tol": 1e-10})

    def weights(self, p):
        """Linear and quadratic penalties, [rows, side]."""
        found = np.array(self.penalties(p))
        return found[:, :2], found[:, 2:]

    def solve(self, z, p):
        """Minimiser and minimum from a start; hard sides have no slack."""
        linear, quadratic = self.weights(p)
        lower, upper = (np.array(part)[:, 0] for part in self.bounds(p))
        most = np.where(np.isinf(linear), 0.0, np.inf)
        given = np.concatenate([np.where(np.isinf(linear), 0, linear), quadratic], axis=1)
        none = np.full(lower.size, np.inf)
        end = self.ipopt(
            x0=np.concatenate([z, np.zeros(most.size)]),
            p=np.concatenate([p, given.ravel(order="F")]),
            lbx=np.concatenate([np.full(z.size, -np.inf), np.zeros(most.size)]),
            ubx=np.concatenate([np.full(z.size, np.inf), most.ravel(order="F")]),
            lbg=np.concatenate([-none, lower]),
            ubg=np.concatenate([upper, none]),
        )
        assert self.ipopt.stats()["success"]
        return np.array(end["x"])[: z.size, 0], float(end["f"])

    def multiplier_range(self, z, p, slack=1e-6):
        """Least and largest multiplier of every soft row: the slopes of its penalty around g."""
        linear, quadratic = self.weights(p)
        g = np.array(self.g(z, p))[self.rows, 0]
        lower, upper = (np.array(part)[self.rows, 0] for part in self.bounds(p))

        def slope(g):
            below, above = np.maximum(lower - g, 0), np.maximum(g - upper, 0)
            up = np.where(above > 0, linear[:, 1] + quadratic[:, 1] * above, 0)
            return up - np.where(below > 0, linear[:, 0] + quadratic[:, 0] * below, 0)

        return slope(g - slack), slope(g + slack)


@pytest.fixture(scope="module")
def problem():
    return soft_arm().problem()


@pytest.fixture(scope="module")
def wanted(problem):
    """IPOPT's minimisers and minima."""
    slacked = Slacked(problem)
    solver = MPCSolver(problem, dtype="float64", engine="sparse")  # packs and guesses only
    p, z = (np.asarray(a) for a in (solver.pack(*instances()), solver.z_guess(*instances())))
    ends = [slacked.solve(*pair) for pair in zip(z, p, strict=True)]
    return slacked, p, np.array([z for z, _ in ends]), np.array([cost for _, cost in ends])


@pytest.mark.parametrize("engine", ["staged", "sparse"])
def test_minimiser_minimum_and_multipliers(problem, wanted, engine):
    slacked, p, z, cost = wanted
    solution = MPCSolver(problem, dtype="float64", engine=engine).solve(*instances())
    np.testing.assert_array_equal(solution.status, MPCStatus.CONVERGED)
    np.testing.assert_allclose(solution.z, z, rtol=0, atol=2e-5)
    np.testing.assert_allclose(solution.cost, cost, rtol=2e-5)
    for b in range(BATCH):
        least, most = slacked.multiplier_range(np.asarray(solution.z[b]), p[b])
        y = np.asarray(solution.y[b])[slacked.rows]
        assert np.all(y >= least - 1e-5)
        assert np.all(y <= most + 1e-5)


def test_every_kind_of_row_occurs(wanted):
    """Inside, at rest, beyond; on both sides where both are soft."""
    slacked, p, z, _ = wanted
    lower, upper = (np.array(part)[slacked.rows, 0] for part in slacked.bounds(p[0]))
    g = np.stack([np.array(slacked.g(*pair))[slacked.rows, 0] for pair in zip(z, p, strict=True)])
    names = np.array([slacked.problem.row_names[row].split("[")[0] for row in slacked.rows])
    for name in ("speed", "effort", "lean", "leave"):
        mine = names == name
        assert np.any(g[:, mine] < lower[mine] - 1e-3), name
        assert name == "lean" or np.any(g[:, mine] > upper[mine] + 1e-3), name
    assert np.all(g[:, names == "lean"] <= 0.25 + 1e-6)
    resting = np.abs(g - upper) < 1e-7
    assert np.any(resting[:, names == "lean"])
    assert np.any(resting[:, names == "speed"])


def test_sloppy_quadratic_programs_never_pass_for_solved(problem, wanted):
    """With too few iterations per QP some solutions are not found, but none is claimed wrongly."""
    _, _, z, _ = wanted
    qp = ADMMSettings(max_iter=50, adaptive_rho_every=0, eps_abs=1e-7, eps_rel=1e-7)
    solver = MPCSolver(problem, SQPSettings(qp=qp), dtype="float64", engine="sparse")
    solution = solver.solve(*instances())
    claimed = np.asarray(solution.status) == MPCStatus.CONVERGED
    assert claimed.any()
    assert not claimed.all()
    np.testing.assert_allclose(solution.z[claimed], z[claimed], rtol=0, atol=1e-4)


def limited(soft=None):
    """A body whose speed is limited; it starts fast enough to reach the limit."""
    x, u, pen = ca.SX.sym("x", 2), ca.SX.sym("u"), ca.SX.sym("pen")
    ocp = OCP(x, u, {"pen": pen}, horizon=6, dt=0.3)
    ocp.set_dynamics(ca.vertcat(x[1], ca.sin(x[0]) + u), integrator="euler")
    ocp.add_cost(x[0] ** 2 + 0.1 * u**2)
    ocp.add_cost(5 * x[0] ** 2 + x[1] ** 2, at="terminal")
    penalty = {"soft": soft(pen)} if soft else {}
    ocp.subject_to(-0.3, x[1], 0.3, at=range(1, 7), name="speed", **penalty)
    return ocp


@pytest.mark.parametrize("engine", ["staged", "sparse"])
@pytest.mark.parametrize("quadratic", [0.0, 3.0])
def test_an_infinite_penalty_that_is_a_parameter_is_a_hard_bound(engine, quadratic):
    """Also beside instances whose penalty is finite."""
    starts = np.random.default_rng(1).uniform([-0.6, -0.2], [0.6, 0.2], (4, 2))
    x0 = np.repeat(starts, 2, axis=0)
    pen = np.where(np.arange(8) % 2, np.inf, 0.05)[:, None]
    solver = MPCSolver(limited(lambda p: Soft(p, quadratic)), dtype="float64", engine=engine)
    found = solver.solve(x0, {"pen": pen})
    other = MPCSolver(limited(), dtype="float64", engine=engine)
    wanted = other.solve(x0, {"pen": np.zeros_like(pen)})
    hard = np.isinf(pen[:, 0])
    np.testing.assert_array_equal(found.status, MPCStatus.CONVERGED)
    np.testing.assert_allclose(found.z[hard], wanted.z[hard], atol=1e-5)
    np.testing.assert_allclose(found.cost[hard], wanted.cost[hard], atol=1e-6)
    assert np.abs(found.x[hard, 1:, 1]).max() == pytest.approx(0.3, abs=1e-5)
    assert np.abs(found.x[~hard, 1:, 1]).max() > 0.305
    slope = jax.grad(lambda x: solver.solve(x, {"pen": pen}).cost.sum())(jnp.asarray(x0))
    assert np.all(np.isfinite(slope))
    jumped = solver.step(np.full((8, solver.problem.n_vars), 0.7), {"pen": pen}, x0=x0)[0]
    assert np.all(np.isfinite(jumped.cost))
