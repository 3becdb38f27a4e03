"""What tests of `MPCSolver` share: small problems, settings, the SQP iteration in dense NumPy."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import casadi as ca
import numpy as np
from mpc_cases import WholeProblem, mixed_stages, pendulum

from warpmpc import (
    OCP,
    ADMMSettings,
    LineSearchSettings,
    MPCProblem,
    MPCSolver,
    Soft,
    SQPSettings,
)

# A fixed number of plain iterations everywhere: what the published method does.
FIXED_QP = ADMMSettings(max_iter=25, check_every=0, adaptive_rho_every=0, scaling=0)
FIXED = SQPSettings(
    mode="fixed", max_iter=3, qp=FIXED_QP, line_search=LineSearchSettings(step_min=0.1)
)
# QPs that are exact for all practical purposes.
TIGHT_QP = ADMMSettings(eps_abs=1e-10, eps_rel=1e-10, max_iter=10000)
TIGHT = SQPSettings(qp=TIGHT_QP, tol_step=1e-8, tol_kkt=1e-8, tol_violation=1e-9, hessian="exact")


def arm(horizon: int = 4, *, soft=None, hard: bool = False) -> OCP:
    """A joint with gravity: two states, bounded torque, weights and gravity as parameters.

    `soft` limits the speed by penalties, `hard` limits it as it is.
    """
    x, u = ca.SX.sym("x", 2), ca.SX.sym("u")
    w, gravity = ca.SX.sym("w", 3), ca.SX.sym("gravity")
    ocp = OCP(x, u, {"w": w, "gravity": gravity}, horizon=horizon, dt=0.3)
    ocp.set_dynamics(ca.vertcat(x[1], gravity * ca.sin(x[0]) + u), integrator="euler")
    ocp.add_cost(0.5 * (w[0] * x[0] ** 2 + w[1] * x[1] ** 2 + w[2] * u**2))
    ocp.add_cost(5 * x[0] ** 2 + x[1] ** 2, at="terminal")
    ocp.subject_to(-1.5, u, 1.5, name="torque")
    if soft is not None or hard:
        ocp.subject_to(-0.25, x[1], 0.2, soft=soft, name="speed", at=range(1, horizon))
    ocp.set_default("w", [1.0, 0.1, 0.1])
    ocp.set_default("gravity", 1.0)
    return ocp


def soft_arm(horizon: int = 5) -> OCP:
    """Every kind of penalty: linear, quadratic, both; of one side, of an equality, by parameter."""
    x, u, pen = ca.SX.sym("x", 2), ca.SX.sym("u"), ca.SX.sym("pen", 2)
    ocp = OCP(x, u, {"pen": pen}, horizon=horizon, dt=0.3)
    ocp.set_dynamics(ca.vertcat(x[1], ca.sin(x[0]) + u), integrator="euler")
    ocp.add_cost(0.5 * (x[0] ** 2 + 0.1 * x[1] ** 2 + 0.1 * u**2))
    ocp.add_cost(5 * x[0] ** 2 + x[1] ** 2, at="terminal")
    ocp.subject_to(-2, u, 2, name="torque")
    ocp.subject_to(-0.25, x[1], 0.2, soft=Soft(linear=pen[0]), at=range(1, horizon), name="speed")
    ocp.subject_to(-0.8, u, 0.7, soft=Soft(quadratic=(pen[1], 2 * pen[1])), name="effort")
    one_sided = Soft(linear=(0.5, np.inf), quadratic=(2.0, 0.0))
    ocp.subject_to(-0.2, x[0] + 0.5 * x[1], 0.25, soft=one_sided, at=range(2, 5), name="lean")
    ocp.subject_to(0.02, x[1], 0.02, soft=Soft(0.1, 1.0), at="terminal", name="leave")
    return ocp


# Upright within reach; the second and third start have active torque bounds.
ARM_X0 = np.array([[0.3, 0.0], [-0.5, 0.1], [0.8, -0.2]])

PROBLEMS = {"pendulum": lambda: pendulum(5).problem(), "mixed": mixed_stages}


@cache
def fixed_solver(name: str, engine: str = "staged", dtype: str = "float64") -> MPCSolver:
    """Three plain iterations of one of `PROBLEMS`."""
    return MPCSolver(PROBLEMS[name](), FIXED, dtype=dtype, engine=engine)


def points(
    problem: MPCProblem, batch: int, spread: float = 1.0, seed: int = 0
) -> tuple[np.ndarray, np.ndarray]:
    """Random trajectories and parameter vectors."""
    rng = np.random.default_rng(seed)
    z = rng.uniform(-spread, spread, (batch, problem.n_vars))
    p = rng.uniform(0.5, 1.5, (batch, problem.n_params))
    p[:, : problem.n_x0] = rng.uniform(-spread, spread, (batch, problem.n_x0))
    return z, p


@dataclass
class Iterate:
    """One instance of the reference iteration; the scalars are those of the last step."""

    z: np.ndarray
    state: tuple[np.ndarray, ...]
    cost: float = np.nan
    theta: float = np.nan
    alpha: float = np.nan
    accepted: bool = False
    primal: float = np.nan
    dual: float = np.nan


class DenseSQP:
    """PROBLEMS.md section A on the whole problem at once: dense matrices, CasADi's derivatives."""

    def __init__(self, problem: MPCProblem, settings: SQPSettings, kind: str = "gauss_newton"):
        self.problem, self.settings = problem, settings
        self.whole = whole = WholeProblem(problem)
        z, p, y = whole.z, whole.p, whole.y
        outputs = [whole.cost, whole.g, whole.lower, whole.upper]
        derivatives = [ca.gradient(whole.cost, z), ca.jacobian(whole.g, z), *self._hessians(kind)]
        self._values = ca.Function("values", [z, p], outputs)
        self._derivatives = ca.Function("derivatives", [z, p, y], derivatives)

    def _hessians(self, kind: str) -> list[ca.SX]:
        """Certainly semidefinite part, then what each stage has to have projected."""
        whole, parts = self.whole, []
        z, weight = whole.z, whole.weight
        J = ca.jacobian(whole.residual, z)
        certain = (
            J.T @ ca.diag(weight) @ J if kind == "gauss_newton" else ca.SX(z.numel(), z.numel())
        )
        for k, stage in enumerate(self.problem.stages):
            rest = stage.cost
            if kind == "exact":
                begin, end = self.problem.g_offset[k : k + 2]
                rest += 0.5 * ca.dot(stage.weight, stage.residual**2)
                rest += ca.dot(whole.y[begin:end], stage.g)
            parts.append(ca.hessian(self._global(k, rest), z)[0])
        return [certain, *parts]

    def _global(self, k: int, expression: ca.SX) -> ca.SX:
        """An expression of a stage in the variables and parameters of the whole problem."""
        problem, stage = self.problem, self.problem.stages[k]
        begin = problem.z_offset[k]
        w = self.whole.z[begin : begin + stage.n_z + stage.z_next.numel()]
        own = ca.vertcat(problem.x0, problem.shared, stage.p)
        at = [int(row) for row in problem.param_rows(k)]
        old = [ca.vertcat(stage.z, stage.z_next), own]
        return ca.substitute([expression], old, [w, self.whole.p[at]])[0]

    def values(self, z, p):
        """Cost, g, lower and upper."""
        cost, *rows = (np.array(part)[:, 0] for part in self._values(z, p))
        return cost.item(), *rows

    def qp(self, z, p, y):
        """P, q and A at a point."""
        q, A, certain, *parts = (np.array(part) for part in self._derivatives(z, p, y))
        return certain + sum(projected(part) for part in parts), q[:, 0], A

    def start(self, z) -> Iterate:
        """Starts from a trajectory alone."""
        rows = np.zeros(self.problem.n_cons)
        return Iterate(z, (np.zeros(z.size), rows, rows))

    def step(self, now: Iterate, p: np.ndarray) -> Iterate:
        """One iteration."""
        _, g, lower, upper = self.values(now.z, p)
        P, q, A = self.qp(now.z, p, now.state[2])
        start = now.state
        if self.settings.qp_start == "multipliers":
            start = (np.zeros_like(start[0]), np.zeros_like(start[1]), start[2])
        d, s, y = state = admm(P, q, A, lower - g, upper - g, start, self.settings.qp)
        alpha, accepted, cost, theta = self._search(now.z, d, q @ d, p)
        primal, dual = np.abs(A @ d - s).max(), np.abs(P @ d + q + A.T @ y).max()
        return Iterate(now.z + alpha * d, state, cost, theta, alpha, accepted, primal, dual)

    def _search(self, z, d, slope, p):
        o = self.settings.line_search
        cost_0, theta_0 = self._point(z, p)
        alpha, trials = 1.0, []
        while alpha >= o.step_min:
            cost, theta = self._point(z + alpha * d, p)
            if theta > o.theta_max:
                accepted = theta < (1 - o.gamma) * theta_0
            elif theta < 1e-3 and theta_0 < 1e-3 and slope < 0:
                accepted = cost < cost_0 + o.armijo * slope
            else:
                accepted = cost < cost_0 - o.gamma * theta_0 or theta < (1 - o.gamma) * theta_0
            trials.append((alpha, bool(accepted), cost, theta))
            if accepted:
                break
            alpha *= o.decay
        if not accepted and o.fallback == "stay":
            return 0.0, False, cost_0, theta_0
        return trials[-1]

    def _point(self, z, p):
        cost, g, lower, upper = self.values(z, p)
        below, above = np.maximum(lower - g, 0), np.minimum(upper - g, 0)
        return cost, self.settings.line_search.scale * np.sqrt(np.sum(below**2 + above**2))


def projected(matrix: np.ndarray) -> np.ndarray:
    """The nearest semidefinite matrix."""
    values, vectors = np.linalg.eigh(matrix)
    return (vectors * np.maximum(values, 0)) @ vectors.T


def admm(P, q, A, lower, upper, start, settings):
    """A fixed number of iterations from (x, s, y), in the words of PROBLEMS.md."""
    x, s, y = start
    equal, free = upper - lower < 1e-4, (lower < -1e16) & (upper > 1e16)
    rho = np.select([equal, free], [settings.rho_equality * settings.rho, 1e-6], settings.rho)
    r, n, a = 1 / rho, q.size, settings.relaxation
    K = np.block([[P + settings.sigma * np.eye(n), A.T], [A, -np.diag(r)]])
    for _ in range(settings.max_iter):
        w = s - r * y
        xt, nu = np.split(np.linalg.solve(K, np.append(settings.sigma * x - q, w)), [n])
        st = w + r * nu
        x = a * xt + (1 - a) * x
        sr = a * st + (1 - a) * s
        s_new = np.clip(sr + r * y, lower, upper)
        y = y + rho * (sr - s_new)
        s = s_new
    return x, s, y
