"""Swing up a batch of cartpoles in closed loop.

What one learns: how a problem is written in CasADi, how `wm.rollout` runs a whole batch of closed
loops as one program on the device, and how to count the successful ones.

    python examples/swing_up.py --batch 256 --out swing_up.png
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import casadi as ca
import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np

import warpmpc as wm

DT, HORIZON, STEPS = 0.05, 40, 80
FORCE, RAIL = 12.0, 1.0  # limits [N, m]
CART, POLE, LENGTH, GRAVITY = 1.0, 0.2, 0.5, 9.81


def accelerations(ops, angle, rate, force):
    """Accelerations of cart and pole (upright at angle 0); `ops` is casadi or jax.numpy."""
    sin, cos = ops.sin(angle), ops.cos(angle)
    push = force + POLE * LENGTH * rate**2 * sin - POLE * GRAVITY * sin * cos
    cart = push / (CART + POLE * sin**2)
    return cart, (GRAVITY * sin - cart * cos) / LENGTH


def build() -> wm.OCP:
    """The optimal control problem: up and to the middle, within force and rail."""
    x = {name: ca.SX.sym(name) for name in ("position", "velocity", "angle", "rate")}
    force = ca.SX.sym("force")
    ocp = wm.OCP(x, {"force": force}, horizon=HORIZON, dt=DT)
    cart, pole = accelerations(ca, x["angle"], x["rate"], force)
    ocp.set_dynamics([x["velocity"], cart, x["rate"], pole], integrator="rk4")
    # 1 - cos has the same minimum at every full turn: poles may swing up on either side.
    height = ca.vertcat(ca.sin(x["angle"]), 1 - ca.cos(x["angle"]))
    rest = ca.vertcat(x["position"], x["velocity"], x["rate"])
    ocp.add_residual(height, weight=5.0)
    ocp.add_residual(rest, weight=[1.0, 0.1, 0.1])
    ocp.add_residual(force, weight=0.01)
    ocp.add_residual(ca.vertcat(height, rest), weight=[200, 200, 20, 20, 20], at="terminal")
    ocp.subject_to(-FORCE, force, FORCE, name="force")
    ocp.subject_to(-RAIL, x["position"], RAIL, at="all", name="rail")
    return ocp


def plant(x: jax.Array, u: jax.Array) -> jax.Array:
    """The real cartpole: the same equations, integrated in ten finer steps."""
    force = jnp.clip(u[:, 0], -FORCE, FORCE)
    for _ in range(10):
        _, velocity, angle, rate = x.T
        cart, pole = accelerations(jnp, angle, rate, force)
        velocity, rate = velocity + DT / 10 * cart, rate + DT / 10 * pole
        x = x + DT / 10 * jnp.stack([velocity, cart, rate, pole], axis=1)
    return x


def upright(x: jax.Array, u: jax.Array) -> jax.Array:
    """Whether one closed loop ends with the pole up, for its last ten steps."""
    return jnp.all(jnp.cos(x[-10:, 2]) > np.cos(0.1))


def draw(x: np.ndarray, success: np.ndarray, path: Path) -> None:
    """Draws angles over time, and the motion of some of the cartpoles."""
    figure, (over_time, poles) = plt.subplots(
        1, 2, figsize=(11, 4), width_ratios=(3, 2), layout="constrained"
    )
    seconds = DT * np.arange(x.shape[1])
    colors = plt.colormaps["viridis"](np.linspace(0, 0.9, len(x)))
    for path_of_one, good, color in zip(x, success, colors, strict=True):
        style = {"color": color if good else "crimson", "linewidth": 0.8, "alpha": 0.6}
        over_time.plot(seconds, np.degrees(path_of_one[:, 2]), **style)
    over_time.set(xlabel="time [s]", ylabel="angle [deg], upright at 0 and 360")
    over_time.set_yticks([0, 90, 180, 270, 360])
    for k in range(0, x.shape[1], 2):
        cart, angle, shade = x[0, k, 0], x[0, k, 2], k / x.shape[1]
        tip = cart - LENGTH * np.sin(angle), LENGTH * np.cos(angle)
        poles.plot([cart, tip[0]], [0, tip[1]], color=plt.colormaps["viridis"](0.9 * shade))
    poles.axhline(0, color="gray", linewidth=0.6)
    poles.set(xlim=(-RAIL - 0.2, RAIL + 0.2), aspect="equal", title="the first of them")
    figure.suptitle(f"{len(x)} cartpoles, {success.mean():.0%} upright")
    figure.savefig(path, dpi=150)
    plt.close(figure)


def main(arguments: list[str] | None = None) -> dict[str, float]:
    """Runs the example; returns what it prints."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--batch", type=int, default=256, help="number of cartpoles")
    parser.add_argument("--out", type=Path, default=Path("swing_up.png"), help="picture to write")
    options = parser.parse_args(arguments)

    settings = wm.SQPSettings(
        mode="fixed",
        max_iter=3,
        qp=wm.ADMMSettings(max_iter=60, check_every=0, adaptive_rho_every=0, scaling=0),
    )
    solver = wm.MPCSolver(build(), settings)
    rng = np.random.default_rng(0)
    x0 = rng.uniform(-1, 1, (options.batch, 4)) * [0.3, 0.2, 0.4, 0.5] + [0, 0, np.pi, 0]
    x0 = x0.astype("float32")

    began = time.perf_counter()
    jax.block_until_ready(wm.rollout(solver, plant, x0, STEPS))
    compiled = time.perf_counter()
    loop = jax.block_until_ready(wm.rollout(solver, plant, x0, STEPS))
    seconds = time.perf_counter() - compiled
    success = np.asarray(loop.success(upright))
    excess = float(jnp.abs(loop.x[..., 0]).max()) - RAIL
    print(f"first run, with compilation: {compiled - began:.1f} s; second run: {seconds:.2f} s")
    print(f"{options.batch * STEPS * 3 / seconds:.0f} SQP iterations per second")
    print(f"{success.mean():.1%} upright; rail exceeded by at most {max(excess, 0):.1e} m")
    draw(np.asarray(loop.x), success, options.out)
    print(f"wrote {options.out}")
    return {"success": float(success.mean()), "excess": excess}


if __name__ == "__main__":
    main()
