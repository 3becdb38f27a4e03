"""A neural network as part of the dynamics: learn what the model leaves out, then control with it.

What one learns: networks written in JAX become part of a problem by `wm.from_jax`; their weights
are parameters, so that one compiled solver serves the plain model (all weights zero) and any
network.

    python examples/neural_dynamics.py --batch 64 --out neural_dynamics.png
"""

from __future__ import annotations

import argparse
from pathlib import Path

import casadi as ca
import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np

import warpmpc as wm

DT, HORIZON, STEPS, HIDDEN = 0.1, 20, 60, 8
SIZES = {"W1": (HIDDEN, 2), "b1": (HIDDEN,), "W2": (1, HIDDEN)}
GOAL = 1.0  # angle at which the pendulum is to stay [rad]


def network(state, W1, b1, W2):
    """A small network for the force that the model lacks, which depends on angle and rate."""
    return W2 @ jnp.tanh(W1 @ state + b1)


def build() -> wm.OCP:
    """A pendulum with known gravity, to which the network adds the other forces."""
    x, torque = ca.SX.sym("x", 2), ca.SX.sym("torque")
    weights = {name: ca.SX.sym(name, *shape) for name, shape in SIZES.items()}
    # Parameters are columns, so `ca.vec` lists matrices column by column.
    p = {name: ca.vec(symbol) for name, symbol in weights.items()}
    ocp = wm.OCP({"state": x}, {"torque": torque}, p, horizon=HORIZON, dt=DT)
    for name in p:
        ocp.set_default(name, 0.0)
    rest = wm.from_jax(network, (2,), *SIZES.values())(x, *weights.values())
    ocp.set_dynamics([x[1], -9.81 * ca.sin(x[0]) + torque + rest], integrator="euler", substeps=2)
    ocp.add_residual(x - ca.DM([GOAL, 0]), weight=[10, 1], at="all")
    # Without the unknown part, this torque would hold the pendulum at its goal.
    ocp.add_residual(torque - 9.81 * np.sin(GOAL), weight=0.001)
    ocp.subject_to(-15, torque, 15, name="torque")
    return ocp


def unknown(x: jax.Array) -> jax.Array:
    """The forces on the real pendulum beside gravity: a spring, and friction that saturates."""
    return -4.0 * x[..., 0] - 3.0 * jnp.tanh(2 * x[..., 1])


def plant(x: jax.Array, u: jax.Array) -> jax.Array:
    """The real pendulum."""
    for _ in range(10):
        force = -9.81 * jnp.sin(x[:, 0]) + u[:, 0] + unknown(x)
        x = x + DT / 10 * jnp.stack([x[:, 1], force], axis=1)
    return x


def train(seed: int) -> tuple[dict[str, jax.Array], list[float]]:
    """Fits the network to noisy measurements of the unknown force, by gradient descent."""
    keys = jax.random.split(jax.random.key(seed), len(SIZES) + 2)
    x = jax.random.uniform(keys[0], (500, 2), minval=-2.0, maxval=2.0)
    measured = unknown(x) + 0.1 * jax.random.normal(keys[1], (500,))
    weights = {
        name: 0.5 * jax.random.normal(key, shape)
        for key, (name, shape) in zip(keys[2:], SIZES.items(), strict=True)
    }

    def loss(weights):
        guessed = jax.vmap(lambda state: network(state, **weights))(x)[:, 0]
        return jnp.mean((guessed - measured) ** 2)

    def descend(state, _):
        weights, speed = state
        value, gradient = jax.value_and_grad(loss)(weights)
        speed = jax.tree.map(lambda v, g: 0.95 * v - 0.01 * g, speed, gradient)
        return (jax.tree.map(jnp.add, weights, speed), speed), value

    begin = (weights, jax.tree.map(jnp.zeros_like, weights))
    (weights, _), losses = jax.jit(lambda s: jax.lax.scan(descend, s, length=1500))(begin)
    return weights, losses.tolist()


def draw(losses: list[float], angles: dict[str, np.ndarray], path: Path) -> None:
    """The training, and closed loops with both models."""
    figure, (training, loops) = plt.subplots(1, 2, figsize=(11, 3.8), layout="constrained")
    training.semilogy(losses)
    training.set(xlabel="step of gradient descent", ylabel="mean squared error", title="training")
    for (name, angle), color in zip(angles.items(), ("C3", "C0"), strict=True):
        loops.plot(DT * np.arange(STEPS + 1), angle.T, color=color, linewidth=0.6, alpha=0.5)
        loops.plot([], [], color=color, label=f"model {name}")
    loops.axhline(GOAL, color="black", linestyle=":", label="goal")
    loops.set(xlabel="time [s]", ylabel="angle [rad]", title=f"{len(angle)} real pendulums")
    loops.legend(frameon=False)
    figure.savefig(path, dpi=150)
    plt.close(figure)


def main(arguments: list[str] | None = None) -> dict[str, float]:
    """Runs the example; returns what it prints."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--batch", type=int, default=64, help="number of pendulums")
    parser.add_argument("--out", type=Path, default=Path("neural_dynamics.png"), help="picture")
    options = parser.parse_args(arguments)

    weights, losses = train(seed=0)
    print(f"mean squared error of the network: {losses[0]:.2f} before, {losses[-1]:.3f} after")
    columns = {name: jnp.ravel(value, order="F") for name, value in weights.items()}
    settings = wm.SQPSettings(
        mode="fixed",
        max_iter=2,
        qp=wm.ADMMSettings(max_iter=50, check_every=0, adaptive_rho_every=0, scaling=0),
    )
    solver = wm.MPCSolver(build(), settings)
    rng = np.random.default_rng(0)
    x0 = rng.uniform(-1.5, 1.5, (options.batch, 2)).astype("float32")
    errors, angles = {}, {}
    for name, params in (
        ("without network", jax.tree.map(jnp.zeros_like, columns)),
        ("with network", columns),
    ):
        loop = wm.rollout(solver, plant, x0, STEPS, params=params)
        angles[name] = np.asarray(loop.x[..., 0])
        errors[name] = float(np.abs(angles[name][:, -1] - GOAL).mean())
        print(f"{name}: mean distance to the goal after {STEPS * DT:.0f} s: {errors[name]:.3f} rad")
    draw(losses, angles, options.out)
    print(f"wrote {options.out}")
    return {"loss": losses[-1], **errors}


if __name__ == "__main__":
    main()
