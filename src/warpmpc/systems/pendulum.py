"""Swing-up of a pendulum whose motor is too weak to lift it directly: the smallest demo.

States are angle [rad, 0 is upright] and rate, the input is a torque.  Weights `Q`, `Q_end` and `R`
and the `torque_limit` are parameters.
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
    physical_constants,
    rk4_step,
    symbolic,
)
from warpmpc.systems.recipe import Description, Recipe

HORIZON, DT, STEPS = 40, 0.05, 100
TORQUE = 6.0  # less than the 9.81 N m that hold the pendulum horizontally
PHYSICS = {"gravity": 9.81, "mass": 1.0, "length": 1.0, "friction": 0.1}
WEIGHTS = {"Q": (1.0, 0.1), "Q_end": (10.0, 2.0), "R": (0.1,)}
UPRIGHT = 0.1  # angle that counts as upright [rad]


def xdot(ops: Any, x: Sequence[Any], u: Sequence[Any], physics: Sequence[Any]) -> list[Any]:
    """Time derivative of the states.

    Args:
        ops: Module with sin.
        x: Angle, rate.
        u: Torque.
        physics: Constants in the order of `PHYSICS`.
    """
    gravity, mass, length, friction = physics
    angle, rate = x
    torque = u[0] + mass * gravity * length * ops.sin(angle) - friction * rate
    return [rate, torque / (mass * length * length)]


def build(horizon: int = HORIZON, *, free_physics: bool = False) -> OCP:
    """The optimal control problem.

    Args:
        horizon: Number of intervals.
        free_physics: Whether the constants of `PHYSICS` are a parameter "physics".
    """
    x = ca.vertcat(ca.SX.sym("angle"), ca.SX.sym("rate"))
    u = ca.SX.sym("torque")
    p = {name: ca.SX.sym(name, len(value)) for name, value in WEIGHTS.items()}
    p["torque_limit"] = ca.SX.sym("torque_limit")
    constants, free, physics = physical_constants(PHYSICS, free=free_physics)
    p |= free
    ocp = OCP(x, u, p, horizon=horizon, dt=DT)
    for name, value in {**WEIGHTS, "torque_limit": TORQUE, **physics}.items():
        ocp.set_default(name, value)
    ocp.set_dynamics(symbolic(xdot, x, u, constants))
    ocp.add_residual(x, DT * p["Q"])
    ocp.add_residual(u, DT * p["R"])
    ocp.add_residual(x, p["Q_end"], at="terminal")
    ocp.subject_to(-p["torque_limit"], u, p["torque_limit"], name="torque")
    ocp.set_guess(x=(1 - ocp.tau) * ocp.x0)
    return ocp


def sample(batch: int, seed: int | None = None) -> np.ndarray:
    """Pendulums that hang, up to half a radian and a push; seed `batch` by default."""
    rng = generator(batch, seed)
    angle = np.pi + rng.uniform(-0.5, 0.5, batch)
    return np.stack([angle, rng.uniform(-0.5, 0.5, batch)], axis=1)


def simulate(x: jax.Array, u: jax.Array) -> jax.Array:
    """The model with the torque clipped, 0.05 s later."""
    field = partial(xdot, physics=tuple(PHYSICS.values()))
    return rk4_step(field, x, jnp.clip(u, -TORQUE, TORQUE), DT)


def metrics(x: np.ndarray, u: np.ndarray) -> Metrics:
    """Success: upright at the end; there are no state constraints."""
    x, u, finite = closed_loop(x, u, 2, 1)
    return closed_loop_metrics(
        finite,
        success=np.abs(x[:, -1, 0]) <= UPRIGHT,
        input_excess=np.abs(u) - TORQUE,
        final_error=np.linalg.norm(x[:, -1], axis=1),
    )


make = Recipe(
    "pendulum",
    Description(
        "pendulums swing up with motors too weak to lift them",
        benchmark={"horizon": 64, "sqp_iter": 5, "admm_iter": 25},
        scene="warpmpc_bench.demos.pendulum_scene:PendulumScene",
    ),
    build,
    sample,
    simulate,
    metrics,
    settings=partial(benchmark_settings, rho_equality=1e3),
    sizes={"horizon": HORIZON, "sqp_iter": 5, "admm_iter": 50},
    control_dt=DT,
    steps=STEPS,
)
