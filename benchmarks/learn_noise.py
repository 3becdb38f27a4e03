"""What the noise of the published quadrotor leaves to any controller, to expert and policy.

    warpmpc learn quadrotor
    python benchmarks/learn_noise.py --policy quadrotor_policy/policy.npz --out noise.jsonl

Reads: the task "quadrotor" and a policy.  Produces: one row.  A linear analysis around hover gives
the stationary spread under linear feedback with the expert's weights, and a lower bound on the
spread under any feedback that its motors allow.  Closed loops of expert and policy from the same
starts and with the same noise are judged by several criteria.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from scipy.linalg import solve_discrete_are, solve_discrete_lyapunov

import warpmpc as wm
from warpmpc.learn.controllers import Expert, NetworkController
from warpmpc.learn.loops import closed_loop
from warpmpc.learn.tasks import QUADROTOR_NOISE, quadrotor_plant
from warpmpc.systems import quadrotor
from warpmpc_bench.common.record import append_row, machine

HELD = 100  # steps at the end over which a share of time is taken: half a second
DRAWS = 10**6


def linear() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """One control step around hover, and the covariance of the noise that it adds.

    A coordinate of a point uniform in the unit ball of n dimensions has the variance 1 / (n + 2).
    """

    def step(x: jax.Array, u: jax.Array) -> jax.Array:
        return quadrotor_plant(x[None], u[None])[0]

    jacobians = jax.jacobian(step, argnums=(0, 1))(jnp.zeros(12), jnp.zeros(4))
    a, b = (np.asarray(part, dtype=np.float64) for part in jacobians)
    of_state = np.diag(np.square(QUADROTOR_NOISE.state) / 14)
    of_input = b @ np.diag(np.square(QUADROTOR_NOISE.input) / 6) @ b.T
    return a, b, of_state + of_input


def covariance(q: np.ndarray, r: np.ndarray) -> np.ndarray:
    """Stationary covariance of the states under the linear feedback that is best for q and r."""
    a, b, noise = linear()
    p = solve_discrete_are(a, b, q, r)
    gain = np.linalg.solve(r + b.T @ p @ b, b.T @ p @ a)
    return solve_discrete_lyapunov(a - b @ gain, noise)


def least_spread() -> float:
    """A lower bound on the root mean square distance from the set-point [m], for any feedback.

    Inputs within the limits of the motors satisfy E (u / limit)² <= 1 for each of the four.  So for
    any price of them the least sum of squared distance and price of the inputs, which linear
    feedback attains, exceeds the squared distance of such a feedback by at most four prices.
    """
    a, b, noise = linear()
    most = quadrotor.MOTOR_LIMIT
    weight = quadrotor.PHYSICS["mass"] * quadrotor.PHYSICS["gravity"]
    arm, yaw = quadrotor.PHYSICS["arm"], quadrotor.PHYSICS["torque_per_thrust"]
    levers = np.array([arm, arm, yaw]) / quadrotor.MOMENTS
    limits = np.array([*(2 * most * levers), max(weight, 4 * most - weight)])
    distance = np.diag([1.0] * 3 + [1e-12] * 9)
    bounds = []
    for price in np.logspace(-6, -1, 51):
        p = solve_discrete_are(a, b, distance, price * np.diag(1 / limits**2))
        bounds.append(np.trace(p @ noise) - 4 * price)
    return float(np.sqrt(max(bounds)))


def analysis() -> dict[str, Any]:
    """The linear analysis."""
    found = covariance(np.diag(quadrotor.Q), np.diag(quadrotor.R))
    normal = np.random.default_rng(0).multivariate_normal(np.zeros(12), found, DRAWS)
    near = np.linalg.norm(normal[:, :3], axis=1) <= quadrotor.REACHED
    still = np.linalg.norm(normal, axis=1) <= 2.0
    return {
        "std": np.sqrt(np.diag(found)).round(4).tolist(),
        "rms_distance": round(float(np.sqrt(np.trace(found[:3, :3]))), 4),
        "within_0.1_m": round(float(near.mean()), 4),
        "within_0.1_m_and_still": round(float((near & still).mean()), 4),
        "least_rms_distance_of_any_feedback": round(least_spread(), 4),
    }


def criteria(x: np.ndarray, radius: float) -> dict[str, float]:
    """Shares of closed loops ``[batch, steps + 1, 12]`` by several criteria of convergence."""
    far = np.linalg.norm(x[..., :3], axis=-1)
    near = far <= quadrotor.REACHED
    still = np.linalg.norm(x[:, -1], axis=1) <= 2.0
    return {
        "finite": float(np.isfinite(x).all(axis=(1, 2)).mean()),
        "at_the_end": float(near[:, -1].mean()),
        "at_the_end_and_still": float((near[:, -1] & still).mean()),
        "at_some_time": float(near.any(axis=1).mean()),
        "share_of_the_last_half_second": float(near[:, -HELD:].mean()),
        "within_radius": float((far[:, -1] <= radius).mean()),
        "rms_distance": float(np.sqrt((far[:, -HELD:] ** 2).mean())),
    }


def main() -> None:
    """Simulates and writes."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--policy", type=Path, help="a policy.npz; without it, only the analysis")
    parser.add_argument("--starts", type=int, default=1000, help="closed loops of each")
    parser.add_argument("--steps", type=int, default=300, help="control steps of 5 ms")
    parser.add_argument("--out", type=Path, help="file to add a row to")
    args = parser.parse_args()
    row: dict[str, Any] = {"benchmark": "learn_noise", "task": "quadrotor", **machine()}
    row["linear"] = analysis()
    if args.policy is not None:
        task = wm.learn.make_task("quadrotor")
        policy = wm.learn.Policy.load(args.policy)
        x0 = task.starts(args.starts, 6000)
        world = {"seed": 6000, "steps": args.steps, "noise": task.noise}
        network = NetworkController(policy.network, task.dtype)
        expert = closed_loop(task, Expert(task.solver, task.shift), task.params, x0, **world)
        own = closed_loop(task, network, policy.data, x0, **world)
        # The distance that the expert keeps at the end in 97 of 100 closed loops.
        radius = float(np.quantile(np.linalg.norm(expert.x[:, -1, :3], axis=1), 0.97))
        row |= {"starts": args.starts, "steps": args.steps, "radius": round(radius, 4)}
        row |= {"expert": criteria(expert.x, radius), "policy": criteria(own.x, radius)}
    shown = {name: row[name] for name in row if name in ("linear", "radius", "expert", "policy")}
    sys.stdout.write(json.dumps(shown, indent=2) + "\n")
    if args.out is not None:
        append_row(args.out, row)


if __name__ == "__main__":
    main()
