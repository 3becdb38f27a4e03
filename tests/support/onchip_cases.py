"""What tests of the on-chip engine share: problems of all shapes, layouts, one KKT matrix."""

from __future__ import annotations

import casadi as ca
import jax
import numpy as np
from mpc_cases import mixed_stages, pendulum
from sqp_cases import points, soft_arm

from warpmpc import OCP, MPCProblem, MPCSolver, Soft, SQPSettings, Stage
from warpmpc.engines.onchip.lanes import LaneLayout, eliminate_lane
from warpmpc.engines.onchip.memory import LaneMemory
from warpmpc.qp.scaling import EQUALITY_TOLERANCE
from warpmpc.symbolic.derivatives.stage_model import row_kinds
from warpmpc.symbolic.pattern import SparsePattern
from warpmpc.systems import car, cartpole

SIGMA = 0.3
LIMIT = 1e-9


def crane(horizon: int = 5) -> MPCProblem:
    """Costs and rows that couple inputs of neighbours: inputs are separators, too."""
    x0 = ca.SX.sym("x0", 2)
    stages = []
    for k in range(horizon + 1):
        z, after = ca.SX.sym("z", 3), ca.SX.sym("after", 3)
        cost = z[0] ** 2 + 0.1 * z[1] ** 2 + 0.2 * z[2] ** 2
        residual = None
        rows, lower, upper, names = [z[2]], [-1.0], [1.0], ["force"]
        if k < horizon:
            cost += 0.5 * (after[0] - z[0]) ** 2
            residual = after[2] + z[1] * z[2]
            rows += [after[0] - z[0] - 0.2 * z[1], after[1] - z[1] - 0.2 * (z[2] - ca.sin(z[0]))]
            rows += [after[2] - z[2]]
            lower, upper = [*lower, 0.0, 0.0, -0.2], [*upper, 0.0, 0.0, 0.25]
            names += ["position", "speed", "rate"]
        if k == 0:
            rows, names = [*rows, z[0] - x0[0], z[1] - x0[1]], [*names, "start 0", "start 1"]
            lower, upper = [*lower, 0.0, 0.0], [*upper, 0.0, 0.0]
        given = (z, after if k < horizon else None, None, cost, ca.vertcat(*rows))
        stages.append(Stage(*given, lower, upper, residual=residual, n_x=2, row_names=names))
    return MPCProblem(stages, x0=x0)


def uneven(horizon: int = 36) -> MPCProblem:
    """Stages with two, three and four variables in turn, and rows that only some of them have."""
    x0 = ca.SX.sym("x0", 2)
    sizes = [2 + k % 3 for k in range(horizon + 1)]
    stages = []
    for k, size in enumerate(sizes):
        z = ca.SX.sym("z", size)
        after = ca.SX.sym("after", sizes[k + 1]) if k < horizon else None
        cost = ca.sumsqr(z) + 0.1 * z[0] ** 4
        rows = [z[0] - x0[0], z[1] - x0[1]] if k == 0 else []
        lower, upper = [0.0] * len(rows), [0.0] * len(rows)
        if after is not None:
            push = ca.sum1(z[2:]) if size > 2 else 0.1
            rows += [after[0] - 0.9 * z[0] - 0.1 * ca.sin(z[1]), after[1] - z[1] - 0.2 * push]
            lower, upper = [*lower, 0.0, 0.0], [*upper, 0.0, 0.0]
        if k % 4 == 3:
            rows, lower, upper = [*rows, z[-1] + z[0]], [*lower, -0.3], [*upper, np.inf]
        rows = ca.vertcat(*rows) if rows else None
        stages.append(Stage(z, after, None, cost, rows, lower, upper, n_x=2))
    return MPCProblem(stages, x0=x0)


def limits(horizon: int = 4, soft: Soft | None = None) -> OCP:
    """Bounds that are parameters, so that it is unknown whether they are equal, apart or absent."""
    x, u, limit = ca.SX.sym("x", 2), ca.SX.sym("u"), ca.SX.sym("limit", 2)
    ocp = OCP(x, u, {"limit": limit}, horizon=horizon, dt=0.3)
    ocp.set_dynamics(ca.vertcat(x[1], u - ca.sin(x[0])), integrator="euler")
    ocp.add_cost(ca.sumsqr(x) + 0.1 * u**2)
    ocp.add_cost(5 * ca.sumsqr(x), at="terminal")
    ocp.subject_to(limit[0], u, limit[1], soft=soft, name="input")
    if soft is None:
        ocp.subject_to(limit[0], x[1], None, at="terminal", name="speed")
    return ocp


def masses(horizon: int = 40) -> OCP:
    """Linear dynamics: all entries of A are constants, also where lanes are empty."""
    x, u = ca.SX.sym("x", 2), ca.SX.sym("u")
    ocp = OCP(x, u, horizon=horizon, dt=0.2)
    ocp.set_dynamics(ca.vertcat(x[1], u), integrator="euler")
    ocp.add_cost(ca.sumsqr(x) + 0.1 * u**2)
    ocp.add_cost(10 * ca.sumsqr(x), at="terminal")
    ocp.subject_to(-1, u, 1)
    return ocp


def apart(horizon: int = 3) -> MPCProblem:
    """Stages that have nothing to do with each other: no separators."""
    x0, stages = ca.SX.sym("x0", 2), []
    for k in range(horizon + 1):
        z, after = ca.SX.sym("z", 2), ca.SX.sym("after", 2)
        cost = ca.sumsqr(z - 1) + ca.sumsqr(z - x0)
        given = (z, after if k < horizon else None, None, cost, z[0] + z[1], -0.5, 0.5)
        stages.append(Stage(*given, n_x=2))
    return MPCProblem(stages, x0=x0)


def as_problem(made: OCP | MPCProblem) -> MPCProblem:
    return made.problem() if isinstance(made, OCP) else made


# One stage per lane or several, full lanes or some that are empty; a last lane with fewer stages.
LAYOUTS = {
    "pendulum_1": lambda: pendulum(1),
    "pendulum_31": lambda: pendulum(31),
    "pendulum_32": lambda: pendulum(32),
    "pendulum_63": lambda: pendulum(63),
    "pendulum_70": lambda: pendulum(70),
    "mixed": mixed_stages,
    "uneven": uneven,
    "apart": apart,
    "crane_5": crane,
    "crane_40": lambda: crane(40),
    "limits": lambda: limits(34),
    "masses": masses,
    "soft": lambda: soft_arm(35),
    "car": lambda: car.build(50),
    "cartpole": lambda: cartpole.build(100),
}


def memory_of(made: OCP | MPCProblem) -> LaneMemory:
    """As `mpc.sqp.onchip` makes it, without a solver."""
    settings = SQPSettings(mode="fixed", max_iter=1, convexify="gershgorin")
    programs = MPCSolver(made, settings, "float64", "dense").programs
    layout = LaneLayout(programs.assembly, row_kinds(programs.problem, EQUALITY_TOLERANCE))
    return LaneMemory(layout, eliminate_lane(layout))


def positions(pattern: SparsePattern) -> list[tuple[int, int]]:
    """Row and column of all entries."""
    return list(zip(pattern.row_idx.tolist(), pattern.col_idx.tolist(), strict=True))


def leaves(solution):
    found, _ = jax.tree_util.tree_flatten_with_path(solution)
    return {jax.tree_util.keystr(path): np.asarray(leaf) for path, leaf in found}


def instances(problem, batch, spread):
    """Random initial states, parameters and trajectories."""
    z, p = points(problem, batch, spread)
    return p[:, : problem.n_x0], p[:, problem.n_x0 :], z


def check_equal(found, wanted, but=()):
    found, wanted = leaves(found), leaves(wanted)
    assert found.keys() == wanted.keys()
    for key, value in wanted.items():
        if key not in but:
            np.testing.assert_allclose(found[key], value, rtol=LIMIT, atol=LIMIT, err_msg=key)


def same_bits(found, wanted, rows=slice(None)):
    found, wanted = leaves(found), leaves(wanted)
    for key, value in wanted.items():
        np.testing.assert_array_equal(found[key], value[rows], err_msg=key)


class RandomKKT:
    """Values for P, A and 1/rho; P is as convex as a sum over pairs of variables makes it."""

    def __init__(self, layout: LaneLayout):
        at, rng = layout.assembly, np.random.default_rng(0)
        n, m = layout.problem.n_vars, layout.problem.n_cons
        self.P = np.zeros((n, n))
        rows, cols = at.P_pattern.row_idx, at.P_pattern.col_idx
        self.P[rows, cols] = self.P[cols, rows] = rng.uniform(-1, 1, rows.size)
        np.fill_diagonal(self.P, 0)
        np.fill_diagonal(self.P, np.abs(self.P).sum(axis=1) + rng.uniform(0.5, 1, n))
        self.A = np.zeros((m, n))
        self.A[at.A_pattern.row_idx, at.A_pattern.col_idx] = rng.uniform(-1, 1, at.A_pattern.nnz)
        self.r = rng.uniform(0.1, 1, m)
        below = np.hstack([self.A, -np.diag(self.r)])
        self.K = np.vstack([np.hstack([self.P + SIGMA * np.eye(n), self.A.T]), below])
        self.rhs = rng.uniform(-1, 1, n + m)
