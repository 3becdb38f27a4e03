"""Cartpole swing-up on a short rail: the benchmark with long horizon and few states.

States are position [m], velocity, angle [rad, 0 is upright], rate; the input is a voltage.  Weights
`w`, the tightening `tube` of the bounds and the grid `dt` are parameters.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import casadi as ca
import jax
import jax.numpy as jnp
import numpy as np

from warpmpc.mpc.settings import SQPSettings
from warpmpc.problem.ocp.ocp import OCP
from warpmpc.systems.base import (
    Metrics,
    benchmark_settings,
    closed_loop,
    closed_loop_metrics,
    euler_step,
    generator,
    physical_constants,
    symbolic,
)
from warpmpc.systems.recipe import Description, Recipe

HORIZON, DT, STEPS = 100, 0.1, 100
VOLTAGE, RAIL = 9.0, 0.35
MOST_ITERATIONS = 1000  # a swing-up from the straight guess takes 200 to 500
UPRIGHT = np.deg2rad(10.0)
PHYSICS = {
    "gravity": 9.81,
    "cart_mass": 0.4472965,
    "rod_mass": 0.01840051,
    "tip_mass": 0.09,
    "rod_length": 0.6696171,
    "motor_damping": -1.959361,
    "cart_friction": 1.959361,
    "motor_gain": 0.5374264,
    "pivot_friction": 0.00172243,
}
WEIGHTS = {
    "position": 4.87491613111937,
    "velocity": 1.0e-4,
    "angle": 0.19748506311671338,
    "rate": 0.053314181866045744,
    "voltage": 0.010968784540611266,
    "terminal_position": 1825.9080085069231,
    "terminal_velocity": 1e4,
    "terminal_angle": 695.2242355039175,
    "terminal_rate": 9.132100349037795,
    "tube_rate": 3.7141252051386218,
    "tube_disturbance": 1.9962829285664576e-05,
    "tighten_voltage": 0.2512645737717601,
    "tighten_rail": 0.06702144014521097,
}


def xdot(ops: Any, x: Sequence[Any], u: Sequence[Any], physics: Sequence[Any]) -> list[Any]:
    """Time derivative of the states.

    Args:
        ops: Module with sin and cos.
        x: Position, velocity, angle, rate.
        u: Voltage.
        physics: Constants in the order of `PHYSICS`.
    """
    gravity, cart, rod, tip, length, damping, friction, gain, pivot_friction = physics
    _, velocity, angle, rate = x
    sin, cos = ops.sin(angle), ops.cos(angle)
    mass = cart + rod + tip
    moment = (rod / 2 + tip) * length  # that of the pole comes first
    inertia = (rod / 3 + tip) * length * length
    force = (damping - friction) * velocity + gain * u[0]
    weight = moment * gravity
    drag = pivot_friction * rate
    scale = mass * inertia - moment * moment * cos * cos
    push = moment * rate * rate * sin + force
    acceleration = inertia * push - moment * cos * (weight * sin + drag)
    turn = mass * (weight * sin - drag) - moment * cos * push
    return [velocity, acceleration / scale, rate, turn / scale]


def tube(
    horizon: int = HORIZON, rate: float | None = None, disturbance: float | None = None
) -> np.ndarray:
    """Size of the tube at all nodes: s' = -rate s + disturbance from 0, sampled every `DT`.

    Args:
        horizon: Number of intervals.
        rate: None: that of `WEIGHTS`.
        disturbance: None: that of `WEIGHTS`.
    """
    rate = WEIGHTS["tube_rate"] if rate is None else rate
    disturbance = WEIGHTS["tube_disturbance"] if disturbance is None else disturbance
    return -np.expm1(-rate * DT * np.arange(horizon + 1)) * disturbance / rate


def build(horizon: int = HORIZON, *, free_physics: bool = False) -> OCP:
    """The optimal control problem.

    Args:
        horizon: Number of intervals.
        free_physics: Whether the constants of `PHYSICS` are a parameter "physics", at the price of
            more operations per stage.
    """
    x = ca.vertcat(*(ca.SX.sym(name) for name in ("position", "velocity", "angle", "rate")))
    u, w, s = ca.SX.sym("voltage"), ca.SX.sym("w", len(WEIGHTS)), ca.SX.sym("tube")
    constants, free, physics = physical_constants(PHYSICS, free=free_physics)
    p = {"w": w, **free}
    ocp = OCP(x, u, p, p_stage={"tube": s}, horizon=horizon, dt=[DT] * horizon, terminal_input=True)
    defaults = {"w": list(WEIGHTS.values()), "tube": tube(horizon), **physics}
    for name, value in defaults.items():
        ocp.set_default(name, value)
    ocp.set_dynamics(symbolic(xdot, x, u, constants), integrator="euler")
    ocp.add_residual(ca.vertcat(x, u), ocp.dt * w[:5])
    ocp.add_residual(x, ocp.dt * w[5:9], at="terminal")
    voltage, rail = VOLTAGE - w[11] * s, RAIL - w[12] * s
    ocp.subject_to(-voltage, u, voltage, name="voltage")
    ocp.subject_to(-rail, x[0], rail, at="all", name="rail")
    ocp.set_guess(x=(1 - ocp.tau) * ocp.x0)
    return ocp


def sample(batch: int, seed: int | None = None) -> np.ndarray:
    """Poles that hang, up to 20 degrees and a push; seed `batch` by default."""
    rng = generator(batch, seed)
    position = rng.uniform(-0.3, 0.3, batch)
    velocity = rng.normal(0.0, 0.15, batch)
    angle = rng.choice([-np.pi, np.pi], batch) + rng.uniform(-np.pi / 9, np.pi / 9, batch)
    return np.stack([position, velocity, angle, rng.normal(0.0, 0.5, batch)], axis=1)


def simulate(x: jax.Array, u: jax.Array) -> jax.Array:
    """The model with the voltage clipped, 0.1 s later."""
    field = partial(xdot, physics=tuple(PHYSICS.values()))
    return euler_step(field, x, jnp.clip(u, -VOLTAGE, VOLTAGE), DT)


def metrics(x: np.ndarray, u: np.ndarray) -> Metrics:
    """Success: upright to 10 degrees at the end, for at least two samples."""
    x, u, finite = closed_loop(x, u, 4, 1)
    return closed_loop_metrics(
        finite,
        success=(np.abs(x[:, -2:, 2]) <= UPRIGHT).all(axis=1),
        input_excess=np.abs(u) - VOLTAGE,
        final_error=np.linalg.norm(x[:, -1], axis=1),
        state_excess=np.abs(x[..., 0]) - RAIL,
    )


# The published scripts use 5 SQP and 25 ADMM iterations.
make = Recipe(
    "cartpole",
    Description(
        "cart-poles swing up on a short rail",
        scene="warpmpc_bench.demos.cartpole_scene:CartpoleScene",
        demo_batch=128,
    ),
    build,
    sample,
    simulate,
    metrics,
    settings=benchmark_settings,
    sizes={"horizon": HORIZON, "sqp_iter": 10, "admm_iter": 50},
    control_dt=DT,
    steps=STEPS,
    converged_settings=SQPSettings(max_iter=MOST_ITERATIONS),
)
