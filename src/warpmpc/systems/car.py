"""A car that drives around a round obstacle to a parking place: a demo in the plane.

Kinematic bicycle: states are px, py [m], heading [rad], speed; inputs are acceleration and steering
angle.  The `goal`, the `obstacle` (center, radius) and the weights `Q`, `Q_end` and `R` are
parameters.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import casadi as ca
import jax
import jax.numpy as jnp
import numpy as np

from warpmpc.problem.ocp.ocp import OCP
from warpmpc.systems.base import (
    Metrics,
    benchmark_settings,
    closed_loop,
    closed_loop_metrics,
    generator,
    rk4_step,
    symbolic,
)
from warpmpc.systems.recipe import Description, Recipe

HORIZON, DT, STEPS = 40, 0.1, 120
WHEELBASE = 2.7  # [m]
INPUT_LIMITS = np.array([3.0, 0.6])  # acceleration [m/s^2], steering angle [rad]
SPEED_LIMIT = 6.0  # [m/s]
OBSTACLE = (-7.0, 0.0, 2.0)  # center and radius [m]
MARGIN = 0.1  # by which plans keep away from it [m]
PENALTY = 100.0  # per metre inside; large enough that plans avoid it wherever they can
GOAL = (0.0, 0.0, 0.0, 0.0)
WEIGHTS = {"Q": (1.0, 1.0, 0.5, 0.1), "Q_end": (20.0, 20.0, 20.0, 5.0), "R": (0.1, 1.0)}
PARKED = 0.2  # distance to the goal that counts as success [m]


def xdot(ops: Any, x: Sequence[Any], u: Sequence[Any]) -> list[Any]:
    """Time derivative of the states.

    Args:
        ops: Module with sin, cos and tan.
        x: Position (two), heading, speed.
        u: Acceleration, steering angle.
    """
    _, _, heading, speed = x
    acceleration, steering = u
    turn = speed * ops.tan(steering) / WHEELBASE
    return [speed * ops.cos(heading), speed * ops.sin(heading), turn, acceleration]


def build(horizon: int = HORIZON) -> OCP:
    """The optimal control problem."""
    x = ca.vertcat(*(ca.SX.sym(name) for name in ("px", "py", "heading", "speed")))
    u = ca.vertcat(ca.SX.sym("acceleration"), ca.SX.sym("steering"))
    planned = (*OBSTACLE[:2], OBSTACLE[2] + MARGIN)
    given = {"goal": GOAL, "obstacle": planned, **WEIGHTS}
    p = {name: ca.SX.sym(name, len(value)) for name, value in given.items()}
    ocp = OCP(x, u, p, horizon=horizon, dt=DT)
    for name, value in given.items():
        ocp.set_default(name, value)
    ocp.set_dynamics(symbolic(xdot, x, u))
    ocp.add_residual(x - p["goal"], DT * p["Q"])
    ocp.add_residual(u, DT * p["R"])
    ocp.add_residual(x - p["goal"], p["Q_end"], at="terminal")
    ocp.subject_to(-INPUT_LIMITS, u, INPUT_LIMITS, name="inputs")
    ocp.subject_to(-SPEED_LIMIT, x[3], SPEED_LIMIT, at=range(1, horizon + 1), name="speed")
    # The squared distance is smooth; divided by the diameter it is the distance near the circle.
    cx, cy, radius = ca.vertsplit(p["obstacle"])
    away = ((x[0] - cx) ** 2 + (x[1] - cy) ** 2 - radius**2) / (2 * radius)
    # Soft: the first guess leads through the middle, where no small step leads outside.
    ocp.subject_to(0.0, away, None, at=range(1, horizon + 1), soft=PENALTY, name="obstacle")
    ocp.set_guess(x=(1 - ocp.tau) * ocp.x0 + ocp.tau * p["goal"])
    return ocp


def sample(batch: int, seed: int | None = None) -> np.ndarray:
    """At rest behind the obstacle, roughly heading for it; seed `batch` by default."""
    rng = generator(batch, seed)
    x = np.zeros((batch, 4))
    x[:, 0] = rng.uniform(-14.0, -12.0, batch)
    x[:, 1] = rng.uniform(-2.0, 2.0, batch)
    x[:, 2] = rng.uniform(-0.3, 0.3, batch)
    return x


def simulate(x: jax.Array, u: jax.Array) -> jax.Array:
    """The model with inputs clipped, 0.1 s later."""
    limits = jnp.broadcast_to(jnp.asarray(INPUT_LIMITS, dtype=x.dtype), u.shape)
    return rk4_step(xdot, x, jnp.clip(u, -limits, limits), DT)


def metrics(x: np.ndarray, u: np.ndarray) -> Metrics:
    """Success: within 0.2 m of the goal at the end; the violation is the depth in the obstacle."""
    x, u, finite = closed_loop(x, u, 4, 2)
    cx, cy, radius = OBSTACLE
    error = np.hypot(x[:, -1, 0] - GOAL[0], x[:, -1, 1] - GOAL[1])
    return closed_loop_metrics(
        finite,
        success=error <= PARKED,
        input_excess=np.abs(u) - INPUT_LIMITS,
        final_error=error,
        state_excess=radius - np.hypot(x[..., 0] - cx, x[..., 1] - cy),
    )


make = Recipe(
    "car",
    Description(
        "cars drive around an obstacle and park",
        benchmark={"horizon": 50, "sqp_iter": 1, "admm_iter": 25},
        scene="warpmpc_bench.demos.car_scene:CarScene",
    ),
    build,
    sample,
    simulate,
    metrics,
    settings=partial(benchmark_settings, step_min=0.01, rho_equality=1e3),
    sizes={"horizon": HORIZON, "sqp_iter": 3, "admm_iter": 100},
    control_dt=DT,
    steps=STEPS,
)
