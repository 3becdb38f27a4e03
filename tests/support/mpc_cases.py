"""MPC problems that tests share, and the whole problem as one CasADi expression: the oracle."""

from __future__ import annotations

import casadi as ca
import numpy as np

from warpmpc.problem.mpc_problem import MPCProblem
from warpmpc.problem.ocp.ocp import OCP
from warpmpc.problem.stage import Stage


def mixed_stages() -> MPCProblem:
    """Stages of different sizes, with costs, residuals and rows that couple neighbours."""
    x0, shared = ca.SX.sym("x0", 2), ca.SX.sym("a", 3)
    sizes = [3, 3, 3, 2, 4]
    stages = []
    for k, size in enumerate(sizes):
        z = ca.SX.sym(f"z{k}", size)
        p = ca.SX.sym(f"p{k}", 1 if k < 3 else 2)
        last = k == len(sizes) - 1
        after = None if last else ca.SX.sym(f"n{k}", sizes[k + 1])
        cost = shared[0] * ca.cosh(z[0] - z[1]) + p[0] * z[-1] ** 2
        residual = ca.vertcat(z[0] * z[1] - shared[1], ca.sin(z[1]))
        weight = ca.vertcat(2.0, shared[2])
        g, lower, upper = z[0] + z[1] ** 2, -1.0, 2 + p[0]
        if not last:
            cost += (after[0] - z[0]) ** 4 + 0.3 * (after[1] + z[1]) ** 2
            residual = ca.vertcat(residual, after[0] * z[0])
            weight = ca.vertcat(weight, 0.5)
            dynamics = after[:2] - ca.vertcat(z[0] + 0.1 * ca.sin(z[1]), z[1] * z[-1])
            g = ca.vertcat(dynamics, g)
            lower, upper = ca.vertcat(0, 0, lower), ca.vertcat(0, 0, upper)
        if k == 0:
            g = ca.vertcat(z[:2] - x0, g)
            lower, upper = ca.vertcat(0, 0, lower), ca.vertcat(0, 0, upper)
        stages.append(
            Stage(z, after, p, cost, g, lower, upper, residual=residual, weight=weight, n_x=2)
        )
    return MPCProblem(stages, x0=x0, shared=shared)


def pendulum(horizon: int = 20, *, soft=None, integrator: str = "rk4") -> OCP:
    """Swing-up with a bounded torque; weights and length are parameters."""
    x, u = ca.SX.sym("x", 2), ca.SX.sym("u")
    w, length = ca.SX.sym("w", 3), ca.SX.sym("length")
    ocp = OCP(x, u, {"w": w, "length": length}, horizon=horizon, dt=0.1)
    ocp.set_dynamics(ca.vertcat(x[1], 9.81 / length * ca.sin(x[0]) + u), integrator=integrator)
    ocp.add_cost(0.5 * (w[0] * x[0] ** 2 + w[1] * x[1] ** 2 + w[2] * u**2))
    ocp.add_cost(5 * x[0] ** 2 + x[1] ** 2, at="terminal")
    ocp.subject_to(-5, u, 5, name="torque")
    if soft is not None:
        ocp.subject_to(-2, x[1], 2, soft=soft, name="speed")
    ocp.set_default("w", [1.0, 0.1, 0.01])
    ocp.set_default("length", 1.0)
    return ocp


class WholeProblem:
    """All stages of a problem in one expression, by substitution."""

    def __init__(self, problem: MPCProblem):
        self.problem = problem
        self.z, self.p = ca.SX.sym("z", problem.n_vars), ca.SX.sym("p", problem.n_params)
        self.y = ca.SX.sym("y", problem.n_cons)
        cost, residuals, weights, rows, lower, upper = [ca.SX(0)], [], [], [], [], []
        for k, stage in enumerate(problem.stages):
            begin, end = problem.z_offset[k], problem.z_offset[k + 1]
            last = end + stage.z_next.numel()
            old = [stage.z, stage.z_next, problem.x0, problem.shared, stage.p]
            at = problem.param_rows(k)
            cuts = np.split(at, np.cumsum([problem.n_x0, problem.n_shared]))
            new = [self.z[begin:end], self.z[end:last], *(self.p[list(c)] for c in cuts)]
            parts = (stage.cost, stage.residual, stage.weight, stage.g, stage.lower, stage.upper)
            found = ca.substitute(list(parts), old, new)
            cost.append(found[0])
            for target, part in zip(
                (residuals, weights, rows, lower, upper), found[1:], strict=True
            ):
                target.append(part)
        self.expression_cost = sum(cost)
        self.residual, self.weight = ca.vertcat(*residuals), ca.vertcat(*weights)
        self.cost = self.expression_cost + 0.5 * ca.dot(self.weight, self.residual**2)
        self.g, self.lower, self.upper = ca.vertcat(*rows), ca.vertcat(*lower), ca.vertcat(*upper)

    def value(self, expression: ca.SX, z: np.ndarray, p: np.ndarray, y=None) -> np.ndarray:
        """A number or matrix at a point."""
        y = np.zeros(self.problem.n_cons) if y is None else y
        return np.array(ca.Function("f", [self.z, self.p, self.y], [expression])(z, p, y))
