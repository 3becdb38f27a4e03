"""IPOPT, through CasADi, on the closed loops of the MPC benchmark: one solve after the other.

Reads: an `MPCProblem` and initial states.  Produces: `IPOPTLoop`, closed loops in float64 in which
every problem is solved to convergence from the solution of the step before.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import casadi as ca
import jax
import jax.numpy as jnp
import numpy as np

from warpmpc.problem.evaluation import initial_guess
from warpmpc.problem.mpc_problem import MPCProblem, stage_function
from warpmpc.systems.base import System

TOLERANCE, MOST_ITERATIONS = 1e-8, 500
OPTIONS: dict[str, Any] = {
    "print_time": False,
    "ipopt.print_level": 0,
    "ipopt.sb": "yes",
    "ipopt.tol": TOLERANCE,
    "ipopt.max_iter": MOST_ITERATIONS,
}


class WholeProgram:
    """An MPC problem as one nonlinear program.

    Every soft row has two slacks ``v >= 0``, one for each side: its constraint is
    ``lower <= g + v_lower - v_upper <= upper``.
    """

    def __init__(self, problem: MPCProblem):
        """Joins the stages and differentiates."""
        self._problem = problem
        z, p = ca.SX.sym("z", problem.n_vars), ca.SX.sym("p", problem.n_params)
        cost, rows, lower, upper, linear, quadratic = joined(problem, z, p)
        soft = problem_soft_rows(problem)
        below, above = ca.SX.sym("below", len(soft)), ca.SX.sym("above", len(soft))
        slacks = ca.vertcat(below, above)
        weights = [ca.SX.sym(name, slacks.numel()) for name in ("linear", "quadratic")]
        rows[soft.tolist()] += below - above
        cost += ca.dot(weights[0], slacks) + ca.dot(weights[1], slacks**2) / 2
        program = {
            "x": ca.vertcat(z, slacks), "p": ca.vertcat(p, *weights), "f": cost, "g": rows
        }  # fmt: skip
        self._solver = ca.nlpsol("solver", "ipopt", program, OPTIONS)
        self._data = ca.Function("data", [p], [lower, upper, linear, quadratic])

    def solve(self, z: np.ndarray, params: np.ndarray) -> tuple[np.ndarray, bool, int, float]:
        """Solves one instance.

        Args:
            z: Start of the iteration ``[n_vars]``.
            params: Parameter vector ``[n_params]``.

        Returns:
            The trajectory, whether IPOPT converged, its iterations, and the largest violation of a
            row.
        """
        lower, upper, linear, quadratic = (np.array(a).ravel() for a in self._data(params))
        hard = np.isinf(linear)  # a side with an infinite penalty has no slack
        none = np.zeros(linear.size)
        most = np.where(hard, 0.0, np.inf)
        found = self._solver(
            x0=np.concatenate([z, none]),
            p=np.concatenate([params, np.where(hard, 0.0, linear), quadratic]),
            lbx=np.concatenate([np.full(z.size, -np.inf), none]),
            ubx=np.concatenate([np.full(z.size, np.inf), most]),
            lbg=lower,
            ubg=upper,
        )
        g, stats = np.array(found["g"]).ravel(), self._solver.stats()
        violation = max(0.0, float(np.maximum(lower - g, g - upper).max()))
        solution = np.array(found["x"]).ravel()[: z.size]
        return solution, bool(stats["success"]), int(stats["iter_count"]), violation


def problem_soft_rows(problem: MPCProblem) -> np.ndarray:
    """Penalties of the soft rows of a problem, stage by stage."""
    sizes = [stage.g.numel() for stage in problem.stages]
    offsets = np.cumsum([0, *sizes])
    parts = [offset + stage.soft_rows for offset, stage in zip(offsets, problem.stages)]  # noqa: B905
    return np.concatenate(parts).astype(int)


def joined(problem: MPCProblem, z: ca.SX, p: ca.SX) -> list[Any]:
    """Cost, rows, bounds, and linear and quadratic penalties (lower sides first) of all stages."""
    functions = [stage_function(g.stage, problem.x0, problem.shared) for g in problem.groups]
    cuts = [problem.n_x0, problem.n_x0 + problem.n_shared]
    cost, parts, penalties = ca.SX(0), [], []
    for k, stage in enumerate(problem.stages):
        own, after = problem.z_offset[k], problem.z_offset[k + 1]
        given = [p[part.tolist()] for part in np.split(problem.param_rows(k), cuts)]
        nodes = (z[own:after], z[after : after + stage.z_next.numel()])
        found = functions[problem.group_of[k]](*nodes, *given)
        stage_cost, residual, weight, *rows, penalty = found
        cost += stage_cost + ca.dot(weight, residual**2) / 2
        parts.append(rows)
        penalties.append(ca.reshape(penalty, len(stage.soft_rows), 4))
    g, lower, upper = (ca.vertcat(*column) for column in zip(*parts, strict=True))
    sides = ca.vertcat(*penalties)
    return [cost, g, lower, upper, ca.vec(sides[:, :2]), ca.vec(sides[:, 2:])]


@dataclass(frozen=True, eq=False)
class IPOPTLoop:
    """Closed loops of a batch.

    Attributes:
        x: States ``[batch, steps + 1, n_x]``.
        u: Inputs ``[batch, steps, n_u]``.
        solved: Which solves converged, ``[batch, steps]``.
        iterations: Iterations of IPOPT, ``[batch, steps]``.
        violation: Largest violation of a row of each plan, ``[batch, steps]``.
    """

    x: np.ndarray
    u: np.ndarray
    solved: np.ndarray
    iterations: np.ndarray
    violation: np.ndarray


def closed_loops(system: System, program: WholeProgram, x0: np.ndarray, steps: int) -> IPOPTLoop:
    """Simulates one instance after the other.

    Args:
        system: The problem and its plant.
        program: The same problem for IPOPT.
        x0: Initial states ``[batch, n_x]``.
        steps: Solves per instance.
    """
    problem, batch = system.problem, len(x0)
    rows = problem.u_rows
    assert rows is not None  # all systems have inputs
    x = np.zeros((batch, steps + 1, system.n_x))
    u = np.zeros((batch, steps, system.n_u))
    solved = np.zeros((batch, steps), dtype=bool)
    iterations, violation = np.zeros((batch, steps), dtype=int), np.zeros((batch, steps))
    x[:, 0] = x0
    with jax.enable_x64(True), jax.default_device(jax.devices("cpu")[0]):
        plant = jax.jit(system.simulate)
        for b in range(batch):
            params = problem.defaults.copy()
            params[: problem.n_x0] = x0[b]
            z = initial_guess(problem, params)
            for step in range(steps):
                params[: problem.n_x0] = x[b, step]
                at = b, step
                z, solved[at], iterations[at], violation[at] = program.solve(z, params)
                u[at] = z[rows[0]]
                x[b, step + 1] = plant(jnp.asarray(x[at]), jnp.asarray(u[at]))
    return IPOPTLoop(x, u, solved, iterations, violation)
