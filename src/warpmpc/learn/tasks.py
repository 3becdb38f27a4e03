"""Tasks by name: the benchmark systems with what learning needs beside them."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from importlib import import_module
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from warpmpc._errors import ProblemError
from warpmpc.learn.firmware import crazyflie
from warpmpc.learn.task import Firmware, Noise, Task
from warpmpc.mpc.solver import MPCSolver
from warpmpc.systems import cartpole, make, pendulum, quadrotor
from warpmpc.systems.base import System, euler_step

# The published quadrotor: 0.005 s between two solves, five Euler steps of the plant in between.
QUADROTOR_DT, SUBSTEPS = 0.005, 5
QUADROTOR_NOISE = Noise(
    state=(0.05, 0.05, 0.05, 0.01, 0.01, 0.01, 0.05, 0.05, 0.05, 5.0, 5.0, 0.05),
    input=(0.1, 0.1, 0.1, 0.1),
)
START_SCALE, START_YAW, AT_REST = 10.0, np.pi / 2, 2.0


def quadrotor_plant(
    x: jax.Array, u: jax.Array, scale: float = 1.0, dt: float = QUADROTOR_DT
) -> jax.Array:
    """The quadrotor a time `dt` later; `scale` multiplies mass and moments of inertia."""
    physics = dict(quadrotor.PHYSICS)
    for name in ("mass", "inertia_xy", "inertia_z"):
        physics[name] *= scale
    field = partial(quadrotor.xdot, physics=tuple(physics.values()))
    # Thrust is commanded relative to the weight of the model, whatever the plant weighs.
    lift = (1 - scale) * quadrotor.PHYSICS["mass"] * quadrotor.PHYSICS["gravity"]
    u = u.at[..., 3].add(lift)
    for _ in range(SUBSTEPS):
        x = euler_step(field, x, u, dt / SUBSTEPS)
    return x


def heavy_quadrotor_plant(x: jax.Array, u: jax.Array) -> jax.Array:
    """The quadrotor with mass and moments of inertia 3 percent larger than the model's."""
    return quadrotor_plant(x, u, scale=1.03)


def limited_motors(u: jax.Array) -> jax.Array:
    """What the Crazyflie makes of its inputs: limits of torques, thrust and single motors."""
    constants = tuple(quadrotor.PHYSICS.values())
    weight = quadrotor.PHYSICS["mass"] * quadrotor.PHYSICS["gravity"]
    most = np.array(crazyflie.TORQUES) / quadrotor.MOMENTS
    wanted = [jnp.clip(u[:, i], -most[i], most[i]) for i in range(3)]
    wanted.append(jnp.clip(u[:, 3], -weight, crazyflie.THRUST - weight))
    forces = jnp.stack(quadrotor.motors(jnp, wanted, constants), axis=1)
    forces = jnp.clip(forces, 0, quadrotor.MOTOR_LIMIT)
    # Motors are linear in the inputs, so the inputs are linear in the motors, around hover.
    hover = weight / 4
    columns = [quadrotor.motors(np, list(row), constants) for row in np.eye(4)]
    back = np.linalg.inv(np.array(columns) - hover).astype(u.dtype)
    return (forces - hover) @ jnp.asarray(back)


def quadrotor_starts(batch: int, seed: int) -> np.ndarray:
    """Uniform in an ellipsoid of ten times the noise, position and yaw uniform in a box."""
    rng = np.random.default_rng(seed)
    direction = rng.normal(size=(batch, 12))
    direction /= np.linalg.norm(direction, axis=1, keepdims=True)
    x = direction * rng.random((batch, 1)) ** (1 / 12) * START_SCALE * QUADROTOR_NOISE.state
    x[:, :3] = rng.uniform(-1, 1, (batch, 3))
    x[:, 5] = rng.uniform(-START_YAW, START_YAW, batch)
    return x


def quadratic_cost(
    x: np.ndarray,
    u: np.ndarray,
    weights: tuple[np.ndarray, np.ndarray, np.ndarray],
    dt: float,
) -> np.ndarray:
    """Half the weighted squares of states and inputs over time, and of the last state.

    Args:
        x: States ``[batch, steps + 1, n_x]``.
        u: Inputs ``[batch, steps, n_u]``.
        weights: Weights of states, inputs and last states.
        dt: Time of a step.
    """
    q, r, q_end = weights
    running = (x[:, :-1] ** 2 @ q).sum(axis=1) + (u**2 @ r).sum(axis=1)
    return dt / 2 * running + x[:, -1] ** 2 @ q_end / 2


def quadrotor_metrics(x: np.ndarray, u: np.ndarray) -> dict[str, np.ndarray]:
    """Success: within 0.1 m of the set-point at the end, and nearly at rest.

    The noise of the publication moves states further than that; see the guide.
    """
    finite = np.asarray(np.isfinite(x).all(axis=(1, 2)) & np.isfinite(u).all(axis=(1, 2)))
    last = np.where(finite[:, None], x[:, -1], np.inf)
    with np.errstate(over="ignore"):
        near = np.linalg.norm(last[:, :3], axis=1) <= quadrotor.REACHED
        reached = (np.linalg.norm(x[..., :3], axis=2) <= quadrotor.REACHED).any(axis=1) & finite
        still = np.linalg.norm(last, axis=1) <= AT_REST
        excess = np.where(finite, quadrotor.motor_excess(u).max(axis=(1, 2)), np.inf)
    return {
        "success": near & still,
        "within_0.1_m": near,
        "came_within_0.1_m": reached,
        "input_excess": np.maximum(excess, 0),
    }


def quadrotor_task() -> Task:
    """The quadrotor of the published approximate MPC."""
    system = make("quadrotor")
    weights = (quadrotor.Q, quadrotor.R, quadrotor.Q)
    return Task(
        solver=MPCSolver(system.problem, system.settings),
        plant=quadrotor_plant,
        sampler=quadrotor_starts,
        steps=200,
        control_dt=QUADROTOR_DT,
        noise=QUADROTOR_NOISE,
        shift=False,
        cost=partial(quadratic_cost, weights=weights, dt=QUADROTOR_DT),
        metrics=quadrotor_metrics,
        perturbed=heavy_quadrotor_plant,
        evaluation_steps=300,
        firmware=Firmware(
            rate=crazyflie.RATE,
            plant=partial(quadrotor_plant, dt=1 / crazyflie.RATE),
            limit=limited_motors,
            app=crazyflie.crazyflie_app,
        ),
        names=(quadrotor.STATES, quadrotor.INPUTS),
        units=(
            ("m",) * 3 + ("rad",) * 3 + ("m/s",) * 3 + ("rad/s",) * 3,
            ("1e-2 N m", "1e-2 N m", "1e-3 N m", "N above weight"),
        ),
        notes=(
            "Angles are roll, pitch and yaw of the ZYX convention: R = Rz(yaw) Ry(pitch) Rx(roll).",
            "Position and velocity are in the world frame, rates in the frame of the body.",
            "States are errors with respect to the set-point.",
            "The output is not limited to what the motors can do; the mixer limits it.",
        ),
        name="quadrotor",
        factory="warpmpc.learn.tasks:quadrotor_task",
    )


def pendulum_task() -> Task:
    """Swing-up of the pendulum."""
    w = {name: np.array(value) for name, value in pendulum.WEIGHTS.items()}
    weights = (w["Q"], w["R"], w["Q_end"])
    cost = partial(quadratic_cost, weights=weights, dt=pendulum.DT)
    noise = Noise(state=(0.02, 0.05), input=(0.3,))
    names = (("angle", "rate"), ("torque",))
    units = (("rad", "rad/s"), ("N m",))
    return _system_task(make("pendulum"), noise, cost, (names, units))


def cartpole_task() -> Task:
    """Swing-up of the cart-pole."""
    noise = Noise(state=(0.002, 0.01, 0.01, 0.05), input=(0.3,))
    names = (("position", "velocity", "angle", "rate"), ("voltage",))
    units = (("m", "m/s", "rad", "rad/s"), ("V",))
    weights = (np.array([4.875, 1e-4, 0.1975, 0.0533]), np.array([0.011]), np.zeros(4))
    cost = partial(quadratic_cost, weights=weights, dt=cartpole.DT)
    return _system_task(make("cartpole"), noise, cost, (names, units))


def car_task() -> Task:
    """Parking behind an obstacle."""
    return _system_task(make("car"), Noise(), None, (((), ()), ((), ())))


def _system_task(system: System, noise: Noise, cost: Any, labels: Any) -> Task:
    return Task(
        solver=MPCSolver(system.problem, system.settings),
        plant=system.simulate,
        sampler=system.sample,
        steps=system.steps,
        control_dt=system.control_dt,
        noise=noise,
        cost=cost,
        metrics=system.metrics,
        names=labels[0],
        units=labels[1],
        name=system.name,
        factory=f"warpmpc.learn.tasks:{system.name}_task",
    )


TASKS: dict[str, Callable[[], Task]] = {
    "quadrotor": quadrotor_task,
    "pendulum": pendulum_task,
    "cartpole": cartpole_task,
    "car": car_task,
}


def make_task(name: str) -> Task:
    """A task by name, or "module:function" of the user's that returns one."""
    if name in TASKS:
        return TASKS[name]()
    module, colon, function = name.partition(":")
    if not colon:
        raise ProblemError(
            f"Unknown task {name!r}; choose one of {sorted(TASKS)}, or module:function."
        )
    try:
        factory = getattr(import_module(module), function)
    except (ImportError, AttributeError) as error:
        raise ProblemError(f"{name} cannot be imported: {error}.") from error
    task = factory()
    if not isinstance(task, Task):
        raise ProblemError(f"{name} must return a warpmpc.learn.Task, got {type(task).__name__}.")
    return task
