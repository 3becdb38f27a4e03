"""Distil an MPC of your own into a network of a few hundred weights, and export it as C.

What one learns: what a `learn.Task` consists of (expert, plant, starts, noise, judgement), how data
are made, how a network is trained on them and compared with the expert, and what is exported.

    python examples/distil.py --batch 64 --out distil.png
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

import casadi as ca
import jax
import jax.numpy as jnp
import numpy as np

import warpmpc as wm
from warpmpc.viz.learn_figures import plot_evaluation

DT, HORIZON, STEPS = 0.1, 10, 60
FORCE, PULL = 2.0, 0.3  # largest force, and how strongly the magnet pulls


def acceleration(x, u, ops):
    """A sledge on a rail that a magnet pulls away from the origin."""
    return u + PULL * ops.sin(2 * x)


def build() -> wm.MPCSolver:
    """The expert: brings the sledge to the origin and keeps it there."""
    x, u = ca.SX.sym("x", 2), ca.SX.sym("u")
    ocp = wm.OCP(x, u, {}, horizon=HORIZON, dt=DT)
    ocp.set_dynamics(ca.vertcat(x[1], acceleration(x[0], u, ca)), integrator="rk4")
    ocp.add_residual(x, [3.0, 0.3])
    ocp.add_residual(u, 0.1)
    ocp.add_residual(x, [20.0, 6.0], at="terminal")
    ocp.subject_to(-FORCE, u, FORCE)
    # A fixed number of iterations: the network learns what a controller in real time would do.
    settings = wm.SQPSettings(mode="fixed", max_iter=2, qp=wm.ADMMSettings(max_iter=40))
    return wm.MPCSolver(ocp, settings)


def plant(x: jax.Array, u: jax.Array) -> jax.Array:
    """The sledge DT later, in five small steps; its motor is limited."""
    u = jnp.clip(u[:, 0], -FORCE, FORCE)
    for _ in range(5):
        change = jnp.stack([x[:, 1], acceleration(x[:, 0], u, jnp)], axis=1)
        x = x + DT / 5 * change
    return x


def sampler(batch: int, seed: int) -> np.ndarray:
    """Starts up to 1 m away, moving."""
    return np.random.default_rng(seed).uniform([-1, -0.5], [1, 0.5], (batch, 2))


def cost(x: np.ndarray, u: np.ndarray) -> np.ndarray:
    """What a closed loop costs."""
    return DT * ((x**2 @ np.array([3.0, 0.3])).sum(axis=1) + 0.1 * (u**2).sum(axis=(1, 2)))


def metrics(x: np.ndarray, u: np.ndarray) -> dict[str, np.ndarray]:
    """Success: within 10 cm of the origin at the end."""
    return {
        "success": np.abs(x[:, -1, 0]) <= 0.1,
        "input_excess": np.maximum(np.abs(u).max(axis=(1, 2)) - FORCE, 0),
    }


def main() -> None:
    """Runs all parts."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--batch", type=int, default=64, help="closed loops per shard")
    parser.add_argument("--out", default="distil.png", help="picture to write")
    parser.add_argument("--folder", help="where data and code go (default: a temporary folder)")
    args = parser.parse_args()

    task = wm.learn.Task(
        build(),
        plant,
        sampler,
        steps=STEPS,
        control_dt=DT,
        noise=wm.learn.Noise(state=(0.01, 0.02), input=(0.1,)),
        cost=cost,
        metrics=metrics,
        names=(("position", "velocity"), ("force",)),
        units=(("m", "m/s"), ("N",)),
        name="sledge",
    )
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(args.folder or temporary)
        settings = wm.learn.DataSettings(rollouts=max(args.batch, 8), shards=4, bound_rollouts=64)
        data = wm.learn.synthesize(task, folder=folder / "data", settings=settings)
        print(f"{data.pairs} of {data.offered} pairs are worth learning from")

        training = wm.learn.TrainSettings(hidden=(16, 16), epochs=100, minibatch=128)
        policy = wm.learn.train(data, training, task=task)
        print(f"{policy.network.n_weights} weights, loss {policy.history['validation'][-1]:.4f}")

        found = wm.learn.evaluate(task, policy, starts=200, expert_starts=64)
        print(found.table())
        row = found.row("noise-free", "policy")
        print(f"policy: {row.success:.1%} at the origin, cost {row.cost_ratio:.2f} of the expert's")
        plot_evaluation(found, DT, args.out)

        written = wm.learn.export(policy, folder / "firmware")
        print(f"int8: {written.weight_bytes[8]} bytes, rms error {written.losses[8]['rms']:.1e}")
        print(wm.learn.parity(policy, written.folder).table())


if __name__ == "__main__":
    main()
