"""Learn the cost weights of an MPC from demonstrations, by gradient descent through the solver.

What one learns: `jax.grad` goes through `MPCSolver.solve`; parameters are learned like those of any
other JAX function, with a loss on what the controller does and not on what its cost is.

    python examples/learn_weights.py --batch 64 --out learn_weights.png
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

DT, HORIZON, EPOCHS = 0.1, 20, 100
NAMES = ("angle", "rate", "end")
EXPERT = np.array([5.0, 0.5, 15.0])  # the weights that are to be found
BEGIN = np.array([0.5, 0.5, 0.5])


def build() -> wm.OCP:
    """A pendulum that is to stop swinging; all weights but that of the torque are parameters."""
    angle, rate, torque = ca.SX.sym("angle"), ca.SX.sym("rate"), ca.SX.sym("torque")
    weight = ca.SX.sym("weight", len(NAMES))
    ocp = wm.OCP(ca.vertcat(angle, rate), torque, {"weight": weight}, horizon=HORIZON, dt=DT)
    ocp.set_dynamics([rate, -9.81 * ca.sin(angle) + torque], integrator="rk4")
    ocp.add_residual([angle, rate], weight=weight[:2])
    # A multiple of the cost has the same minimum, so one weight can be fixed.
    ocp.add_residual(torque, weight=0.1)
    ocp.add_residual([angle, rate], weight=weight[2], at="terminal")
    ocp.subject_to(-5, torque, 5, name="torque")
    return ocp


def adam(gradient: jax.Array, state: tuple[jax.Array, jax.Array, int], rate: float):
    """Does one step of Adam; returns the change and the new state."""
    mean, square, count = state
    mean, square = 0.9 * mean + 0.1 * gradient, 0.99 * square + 0.01 * gradient**2
    count += 1
    scaled = mean / (1 - 0.9**count) / (jnp.sqrt(square / (1 - 0.99**count)) + 1e-8)
    return -rate * scaled, (mean, square, count)


def draw(losses: list[float], weights: np.ndarray, plans: dict[str, np.ndarray], path: Path):
    """Draws the loss and the weights over epochs, and plans of one start before and after."""
    figure, (loss, weight, plan) = plt.subplots(1, 3, figsize=(13, 3.8), layout="constrained")
    loss.semilogy(losses)
    loss.set(xlabel="epoch", ylabel="loss", title="difference to the demonstrations")
    for name, learned, true in zip(NAMES, weights.T, EXPERT, strict=True):
        (line,) = weight.semilogy(learned, label=name)
        weight.axhline(true, color=line.get_color(), linestyle=":")
    weight.set(xlabel="epoch", title="weights; the expert's are dotted")
    weight.legend(frameon=False)
    for (name, torque), style in zip(plans.items(), ("k-", "C3--", "C0--"), strict=True):
        plan.step(DT * np.arange(HORIZON), torque, style, where="post", label=name)
    plan.set(xlabel="time [s]", ylabel="torque [N m]", title="plans from one start")
    plan.legend(frameon=False)
    figure.savefig(path, dpi=150)
    plt.close(figure)


def main(arguments: list[str] | None = None) -> dict[str, float]:
    """Runs the example; returns what it prints."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--batch", type=int, default=64, help="number of demonstrations")
    parser.add_argument("--epochs", type=int, default=EPOCHS, help="steps of gradient descent")
    parser.add_argument("--out", type=Path, default=Path("learn_weights.png"), help="picture")
    options = parser.parse_args(arguments)

    # Gradients need converged solutions (the default), and they profit from more digits.
    jax.config.update("jax_enable_x64", True)
    solver = wm.MPCSolver(build(), dtype="float64")
    rng = np.random.default_rng(0)
    x0 = jnp.asarray(rng.uniform(-1, 1, (options.batch, 2)))
    demonstrated = solver.solve(x0, {"weight": EXPERT})

    @jax.jit
    def loss_and_gradient(logarithm):
        def loss(logarithm):
            solution = solver.solve(x0, {"weight": jnp.exp(logarithm)})
            return jnp.mean((solution.u - demonstrated.u) ** 2)

        return jax.value_and_grad(loss)(logarithm)

    logarithm = jnp.log(jnp.asarray(BEGIN))  # weights stay positive
    state = (jnp.zeros_like(logarithm), jnp.zeros_like(logarithm), 0)
    losses, weights = [], []
    for epoch in range(options.epochs):
        value, gradient = loss_and_gradient(logarithm)
        losses.append(float(value))
        weights.append(np.exp(logarithm))
        if epoch % 20 == 0 or epoch == options.epochs - 1:
            print(f"epoch {epoch:3d}  loss {losses[-1]:.2e}  weights {weights[-1].round(3)}")
        change, state = adam(gradient, state, rate=0.15)
        logarithm += change

    error = float(np.abs(weights[-1] / EXPERT - 1).max())
    print(f"loss fell by a factor of {losses[0] / losses[-1]:.0f}")
    print(f"largest relative error of a weight: {error:.1%}")
    first, last = (solver.solve(x0, {"weight": w}) for w in (BEGIN, weights[-1]))
    one = int(np.argmax(np.abs(x0[:, 0])))
    solutions = {"expert": demonstrated, "before": first, "learned": last}
    plans = {name: np.asarray(solution.u[one, :, 0]) for name, solution in solutions.items()}
    draw(losses, np.array(weights), plans, options.out)
    print(f"wrote {options.out}")
    return {"first": losses[0], "last": losses[-1], "error": error}


if __name__ == "__main__":
    main()
