"""The MIT humanoid walks: whole-body MPC with contacts, as specified in PROBLEMS.md, section 5.

Produces: `make`, the recipe.  `tables` has all numbers, `model` the rigid-body functions, `gait`
references and commands, `problem` the optimal control problem.

The closed loop of the benchmark has no physics, as published: what follows a solve is its node 1,
and the clock of the gait advances by 0.01 s.
"""

from __future__ import annotations

import inspect
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from warpmpc._errors import ProblemError
from warpmpc.mpc.settings import SQPSettings
from warpmpc.problem.evaluation import initial_guess
from warpmpc.problem.mpc_problem import MPCProblem
from warpmpc.systems.base import (
    Metrics,
    System,
    benchmark_settings,
    closed_loop,
    closed_loop_metrics,
    generator,
)
from warpmpc.systems.humanoid import gait, tables
from warpmpc.systems.humanoid.tables import HOME, N_JOINTS, N_Q, N_X
from warpmpc.systems.recipe import Description, Recipe

CONTROL_DT, STEPS = 0.01, 20
N_STATE = N_X + N_JOINTS  # q, dq, and the torques that were applied last
N_INPUT = 2 * N_JOINTS + N_X  # torques of nodes 0 and 1, state of node 1
PLANTS = ("predicted", "mujoco")
N_DRAWN = 64  # robots with commands of their own
HEIGHTS = (0.5, 0.75)  # a robot whose base is outside has fallen [m]
# Positions are not enforced exactly by 25 iterations; what counts as kept [rad].
_EXCESS = 1e-2


def build(horizon: int = gait.NODES - 1) -> MPCProblem:
    """The optimal control problem; see `problem.build`."""
    # CasADi expressions need MuJoCo, which reads the model: only when the problem is made.
    from warpmpc.systems.humanoid.problem import build as build_problem

    return build_problem(horizon)


def sample(batch: int, seed: int | None = None) -> np.ndarray:
    """Standing robots, 5 cm and 0.08 rad about the origin, ``[batch, 66]``; seed `batch`."""
    rng = generator(batch, seed)
    x = np.tile(np.concatenate([HOME, np.zeros(N_STATE - N_Q)]), (batch, 1))
    x[:, :2] += rng.uniform(-0.05, 0.05, (batch, 2))
    x[:, 5] += rng.uniform(-0.08, 0.08, batch)
    return x


def simulate(x: jax.Array, u: jax.Array) -> jax.Array:
    """The predicted next node, and the torques of this one."""
    return jnp.concatenate([u[..., 2 * N_JOINTS :], u[..., :N_JOINTS]], axis=-1).astype(x.dtype)


def references(t: Any, x: jax.Array, nodes: int = gait.NODES) -> dict[str, jax.Array]:
    """Parameters of step t of the benchmark: walking on the spot from time 0.

    Args:
        t: A number, or one per instance.
        x: Measured states.
        nodes: Number of nodes of the problem.
    """
    time = CONTROL_DT * jnp.asarray(t).astype(x.dtype)
    return gait.references(jnp, x, gait.walking(jnp, time, nodes))


def settings(sqp_iter: int = 1, admm_iter: int = 25) -> SQPSettings:
    """Fixed numbers of iterations, as published; QPs are scaled at the `nominal` point.

    Args:
        sqp_iter: SQP iterations per solve.
        admm_iter: ADMM iterations per QP.
    """
    published = benchmark_settings(sqp_iter, admm_iter, step_min=0.03, rho_equality=1e3)
    assert published.qp is not None
    return replace(
        published,
        line_search=replace(published.line_search, scale=0.05),
        qp=replace(published.qp, rho=0.02, relaxation=1.4, scaling=2),
    )


def nominal(problem: MPCProblem, x: np.ndarray | None = None) -> tuple[np.ndarray, np.ndarray]:
    """The point (z, params) at which QPs are scaled: the guess, walking on the spot at time 0.

    Args:
        problem: The problem.
        x: Measured state; None: at home.
    """
    params = problem.defaults.copy()
    params[:N_STATE] = np.concatenate([HOME, np.zeros(N_STATE - N_Q)]) if x is None else x
    motion = gait.walking(np, 0.0, problem.horizon + 1)
    for name, value in gait.references(np, params[:N_X], motion).items():
        params[problem.param_names[name]] = value
    return initial_guess(problem, params), params


def metrics(x: np.ndarray, u: np.ndarray) -> Metrics:
    """Success: the base is between 0.5 and 0.75 m above the ground at all times.

    State constraints are the limits of joints; "final_error" is that of the height at the end.
    """
    x, u, finite = closed_loop(x, u, N_STATE, N_INPUT)
    height, joints = x[..., 2], x[..., 6:N_Q]
    beyond = np.maximum(tables.LOWER - joints, joints - tables.UPPER) - _EXCESS
    torque = u[..., :N_JOINTS]
    return closed_loop_metrics(
        finite,
        success=np.all((height > HEIGHTS[0]) & (height < HEIGHTS[1]), axis=1),
        input_excess=np.abs(torque) - tables.TORQUES,
        final_error=np.abs(height[:, -1] - gait.STANDING[3]),
        state_excess=beyond,
    )


@dataclass(frozen=True, eq=False)
class Humanoids(Recipe):
    """A recipe with one option more: what follows a solve."""

    def __call__(
        self, horizon: int | None = None, *, plant: str = "predicted", **options: Any
    ) -> System:
        """Builds the system.

        Args:
            horizon: Number of intervals.
            plant: "predicted" (node 1 of the solve, as in the published benchmark) or "mujoco": 2 s
                of standing and 10 s of walking with random commands.
            **options: Other sizes.
        """
        if plant not in PLANTS:
            raise ProblemError(f"plant must be one of {PLANTS}, got {plant!r}.")
        nodes = 1 + (self.sizes["horizon"] if horizon is None else horizon)
        if plant == "predicted":
            walks = replace(self, references=partial(references, nodes=nodes))
            return super(Humanoids, walks).__call__(horizon, **options)
        from warpmpc.systems.humanoid.walking import STANDING_TIME, Walk, random_commands

        duration = 10.0
        walk = Walk(random_commands(N_DRAWN, duration), every=0.1, nodes=nodes)
        steps = round((STANDING_TIME + duration) / CONTROL_DT)
        walks = replace(self, simulate=walk.simulate, references=walk.references, steps=steps)
        return super(Humanoids, walks).__call__(horizon, **options)

    @property
    def __signature__(self) -> inspect.Signature:
        """That of a recipe, and the plant."""
        shared = super().__signature__
        kind = inspect.Parameter.KEYWORD_ONLY
        more = inspect.Parameter("plant", kind, default="predicted")
        known = {**shared.parameters, more.name: more}
        return shared.replace(parameters=list(known.values()))


make = Humanoids(
    "humanoid",
    Description(
        "humanoids stand, then walk as commanded",
        scene="warpmpc_bench.demos.humanoid_scene:HumanoidScene",
        demo_batch=16,
        demo={"plant": "mujoco"},
        is_large=True,
    ),
    build,
    sample,
    simulate,
    metrics,
    settings=settings,
    sizes={"horizon": gait.NODES - 1, "sqp_iter": 1, "admm_iter": 25},
    control_dt=CONTROL_DT,
    steps=STEPS,
    # Second derivatives of the whole dynamics would be a program of a million instructions.
    converged_settings=SQPSettings(max_iter=100, hessian="gauss_newton"),
    nominal=nominal,
)
