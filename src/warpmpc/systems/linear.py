"""Linear MPC of a quadcopter (the example of the OSQP documentation) as an MPC problem.

`systems.linear_mpc` has the same problem as plain QP matrices.  The entries of the model, `A_d` and
`B_d` (zeros of B_d included), the weights `Q` and `R` and the reference `x_ref` are parameters.
"""

from __future__ import annotations

from functools import partial

import casadi as ca
import jax
import jax.numpy as jnp
import numpy as np

from warpmpc.problem.mpc_problem import MPCProblem
from warpmpc.problem.ocp.ocp import OCP
from warpmpc.systems import linear_mpc
from warpmpc.systems.base import (
    Metrics,
    benchmark_settings,
    closed_loop,
    closed_loop_metrics,
)
from warpmpc.systems.recipe import Description, Recipe

HORIZON, DT, STEPS = linear_mpc.HORIZON, 0.1, 50
WEIGHTED = np.flatnonzero(linear_mpc.STATE_WEIGHT)
LEAST_INPUT = linear_mpc.LEAST_THRUST - linear_mpc.HOVER
MOST_INPUT = linear_mpc.MOST_THRUST - linear_mpc.HOVER
REACHED = 0.1  # distance to the reference that counts as success
_A, _B = linear_mpc.dynamics()
_A_ENTRIES = np.nonzero(_A.T)[::-1]  # rows and columns of what is stored, column by column


def build(horizon: int = HORIZON) -> OCP:
    """The optimal control problem, with all diagonal entries of the Hessian."""
    n_x, n_u = linear_mpc.N_X, linear_mpc.N_U
    x, u = ca.SX.sym("x", n_x), ca.SX.sym("u", n_u)
    a, b = ca.SX.sym("A_d", len(_A_ENTRIES[0])), ca.SX.sym("B_d", n_x * n_u)
    p = {
        "A_d": a,
        "B_d": b,
        "Q": ca.SX.sym("Q", WEIGHTED.size),
        "R": ca.SX.sym("R", n_u),
        "x_ref": ca.SX.sym("x_ref", n_x),
    }
    ocp = OCP(x, u, p, horizon=horizon, dt=DT)
    for name, value in defaults().items():
        ocp.set_default(name, value)
    rows, cols = (entries.tolist() for entries in _A_ENTRIES)
    A_d = ca.SX(ca.Sparsity.triplet(n_x, n_x, rows, cols), a)
    ocp.set_dynamics(x_next=A_d @ x + ca.reshape(b, n_x, n_u) @ u)
    weighted = WEIGHTED.tolist()
    ocp.add_residual((x - p["x_ref"])[weighted], p["Q"], at="all")
    ocp.add_residual(u, p["R"])
    low, high = state_bounds()
    ocp.subject_to(low, x, high, at="all", name="states")
    ocp.subject_to(LEAST_INPUT, u, MOST_INPUT, name="thrust")
    ocp.set_guess(x=0.0)
    return ocp


def defaults() -> dict[str, np.ndarray]:
    """Parameters by name; matrices column by column, A_d without its zeros."""
    return {
        "A_d": _A[_A_ENTRIES],
        "B_d": _B.ravel(order="F"),
        "Q": linear_mpc.STATE_WEIGHT[WEIGHTED],
        "R": np.full(linear_mpc.N_U, linear_mpc.INPUT_WEIGHT),
        "x_ref": linear_mpc.REFERENCE,
    }


def state_bounds() -> tuple[np.ndarray, np.ndarray]:
    """Bounds of the states; most are free, and have a row nevertheless."""
    low, high = np.full(linear_mpc.N_X, -np.inf), np.full(linear_mpc.N_X, np.inf)
    low[:2], high[:2] = -linear_mpc.ANGLE_LIMIT, linear_mpc.ANGLE_LIMIT
    low[5] = linear_mpc.HEIGHT_LIMIT
    return low, high


def build_published(horizon: int = HORIZON) -> MPCProblem:
    """The problem with a Hessian that stores weighted entries only, as published."""
    problem = build(horizon).problem()
    return MPCProblem(
        problem.stages,
        x0=problem.x0,
        shared=problem.shared,
        full_diagonal=False,
        defaults=problem.defaults,
        names=problem.names,
        param_names=problem.param_names,
    )


def simulate(x: jax.Array, u: jax.Array) -> jax.Array:
    """The model with inputs clipped, 0.1 s later."""
    A, B = (jnp.asarray(matrix, dtype=x.dtype) for matrix in (_A, _B))
    return x @ A.T + jnp.clip(u, LEAST_INPUT, MOST_INPUT) @ B.T


def metrics(x: np.ndarray, u: np.ndarray) -> Metrics:
    """Success: all weighted states within 0.1 of the reference at the end."""
    x, u, finite = closed_loop(x, u, linear_mpc.N_X, linear_mpc.N_U)
    low, high = state_bounds()
    error = np.linalg.norm((x[:, -1] - linear_mpc.REFERENCE)[:, WEIGHTED], axis=1)
    return closed_loop_metrics(
        finite,
        success=error <= REACHED,
        input_excess=np.maximum(LEAST_INPUT - u, u - MOST_INPUT),
        final_error=error,
        state_excess=np.maximum(low - x, x - high),
    )


# A single full step solves the QP, so that the number of SQP iterations is no option.
make = Recipe(
    "linear",
    Description("quadcopters with linear dynamics climb to a set-point"),
    build_published,
    linear_mpc.sample,
    simulate,
    metrics,
    settings=partial(benchmark_settings, 1, rho_equality=1e3, line_search="full"),
    sizes={"horizon": HORIZON, "admm_iter": 25},
    control_dt=DT,
    steps=STEPS,
)
