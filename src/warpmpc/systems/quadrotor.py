"""A small quadrotor (Crazyflie) that flies to a set-point: the benchmark with many states.

States are position [m], angles (roll, pitch, yaw) [rad], velocity in the world, rates of the body;
inputs are moments [1e-2, 1e-2, 1e-3 N m] and thrust above weight [N].  The reference `x_ref`, the
weights `Q` and `R` and the grid `dt` are parameters.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import casadi as ca
import jax
import numpy as np

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

HORIZON, CONTROL_DT, GROWTH, STEPS = 40, 0.01, 1.05, 100
MOTOR_LIMIT = 0.18  # thrust of one motor [N]
MOMENTS = (1e-2, 1e-2, 1e-3)  # units of the first three inputs [N m]
PHYSICS = {
    "mass": 0.0402,
    "gravity": 9.8066,
    "inertia_xy": 1.8e-5,  # about x and y: they are equal, so yaw is not driven by roll and pitch
    "inertia_z": 3.6e-5,
    "arm": 0.0325,
    "torque_per_thrust": 0.0051648627905205285,
    "rotational_drag": 5e-6,
}
STATES = (
    *("px", "py", "pz", "roll", "pitch", "yaw"),
    *("vx", "vy", "vz", "rate_x", "rate_y", "rate_z"),
)
INPUTS = ("moment_x", "moment_y", "moment_z", "extra_thrust")
Q = np.array([200, 200, 100, 1, 1, 1000, 1, 1, 1, 1, 1, 10]) / 200
R = np.array([200, 200, 10, 100]) / 200
REACHED = 0.1  # distance to the set-point that counts as success [m]


def xdot(ops: Any, x: Sequence[Any], u: Sequence[Any], physics: Sequence[Any]) -> list[Any]:
    """Time derivative of the states.

    Args:
        ops: Module with sin, cos and tan.
        x: States in the order of `STATES`.
        u: Inputs in the order of `INPUTS`.
        physics: Constants in the order of `PHYSICS`.
    """
    mass, gravity, inertia_xy, inertia_z, _, _, drag = physics
    roll, pitch, yaw, vx, vy, vz, wx, wy, wz = x[3:]
    moments = [scale * moment for scale, moment in zip(MOMENTS, u[:3], strict=True)]
    s_roll, c_roll, s_yaw, c_yaw = ops.sin(roll), ops.cos(roll), ops.sin(yaw), ops.cos(yaw)
    s_pitch, c_pitch = ops.sin(pitch), ops.cos(pitch)
    lift = u[3] / mass + gravity
    turn = s_roll * wy + c_roll * wz
    gyroscopic = inertia_z - inertia_xy
    return [
        vx,
        vy,
        vz,
        wx + ops.tan(pitch) * turn,
        c_roll * wy - s_roll * wz,
        turn / c_pitch,
        (c_yaw * s_pitch * c_roll + s_yaw * s_roll) * lift,
        (s_yaw * s_pitch * c_roll - c_yaw * s_roll) * lift,
        c_pitch * c_roll * lift - gravity,
        (moments[0] - gyroscopic * wy * wz - drag * wx) / inertia_xy,
        (moments[1] + gyroscopic * wx * wz - drag * wy) / inertia_xy,
        (moments[2] - drag * wz) / inertia_z,
    ]


def motors(ops: Any, u: Sequence[Any], physics: Sequence[Any]) -> list[Any]:
    """Thrusts of the four motors [N]; no operation of `ops` is needed."""
    mass, gravity, _, _, arm, torque_per_thrust, _ = physics
    x, y = (scale * moment / arm for scale, moment in zip(MOMENTS[:2], u[:2], strict=True))
    z = MOMENTS[2] * u[2] / torque_per_thrust
    thrust = u[3] + mass * gravity
    signs = ((-1, -1, -1), (-1, 1, 1), (1, 1, -1), (1, -1, 1))
    return [(thrust + i * x + j * y + k * z) / 4 for i, j, k in signs]


def build(horizon: int = HORIZON, *, free_physics: bool = False, **more: ca.SX) -> OCP:
    """The optimal control problem without obstacles.

    Args:
        horizon: Number of intervals.
        free_physics: Whether the constants of `PHYSICS` are a parameter "physics", at the price of
            more operations per stage.
        **more: Further parameters by name, for constraints that a caller adds.
    """
    x = ca.vertcat(*(ca.SX.sym(name) for name in STATES))
    u = ca.vertcat(*(ca.SX.sym(name) for name in INPUTS))
    x_ref, state_weight, input_weight = (
        ca.SX.sym(name, size) for name, size in (("x_ref", 12), ("Q", 12), ("R", 4))
    )
    constants, free, physics = physical_constants(PHYSICS, free=free_physics)
    p = {"x_ref": x_ref, "Q": state_weight, "R": input_weight, **more, **free}
    dt = CONTROL_DT * GROWTH ** np.arange(horizon)
    ocp = OCP(x, u, p, horizon=horizon, dt=dt, terminal_input=True)
    for name, value in {"x_ref": 0.0, "Q": Q, "R": R, **physics}.items():
        ocp.set_default(name, value)
    ocp.set_dynamics(symbolic(xdot, x, u, constants), integrator="euler")
    ocp.add_residual(x - x_ref, ocp.dt * state_weight)
    ocp.add_residual(u, ocp.dt * input_weight)
    ocp.add_residual(x - x_ref, state_weight, at="terminal")
    ocp.subject_to(0.0, symbolic(motors, u, constants), MOTOR_LIMIT, name="motors")
    ocp.set_guess(x=(1 - ocp.tau) * ocp.x0)
    return ocp


def sample(batch: int, seed: int | None = None) -> np.ndarray:
    """At rest within 1 m in every direction; seed `batch` by default."""
    rng = generator(batch, seed)
    x = np.zeros((batch, len(STATES)))
    x[:, :3] = rng.uniform(-1.0, 1.0, (batch, 3))
    return x


def simulate(x: jax.Array, u: jax.Array) -> jax.Array:
    """The model with inputs as commanded, 0.01 s later."""
    return euler_step(partial(xdot, physics=tuple(PHYSICS.values())), x, u, CONTROL_DT)


def motor_excess(u: np.ndarray) -> np.ndarray:
    """Excess of each motor over its limits, negative if it has none."""
    split = [u[..., i] for i in range(len(INPUTS))]
    thrust = np.stack(motors(np, split, tuple(PHYSICS.values())), axis=-1)
    return np.maximum(thrust - MOTOR_LIMIT, -thrust)


def metrics(x: np.ndarray, u: np.ndarray) -> Metrics:
    """Success: within 0.1 m of the origin at the end; there are no state constraints.

    "final_state" is the norm of the last state, "final_cost" half x'Qx there.
    """
    x, u, finite = closed_loop(x, u, len(STATES), len(INPUTS))
    last = x[:, -1]
    distance = np.linalg.norm(last[:, :3], axis=1)
    shared = closed_loop_metrics(
        finite,
        success=distance <= REACHED,
        input_excess=motor_excess(u),
        final_error=distance,
    )
    return {
        **shared,
        "final_state": np.linalg.norm(last, axis=1),
        "final_cost": (last * last) @ Q / 2,
    }


# The first interval is 0.01 s, each next one 5 percent longer.
make = Recipe(
    "quadrotor",
    Description(
        "quadrotors fly to one set-point",
        scene="warpmpc_bench.demos.quadrotor_scene:QuadrotorScene",
    ),
    build,
    sample,
    simulate,
    metrics,
    settings=benchmark_settings,
    sizes={"horizon": HORIZON, "sqp_iter": 1, "admm_iter": 25},
    control_dt=CONTROL_DT,
    steps=STEPS,
)
