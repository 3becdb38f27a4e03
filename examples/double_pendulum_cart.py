"""Swing a double pendulum on a cart up, in MuJoCo, with the MPC in the loop.

What one learns: how a robot file becomes the dynamics, the cost and the bounds of a problem, how
MuJoCo simulates the closed loop (`wm.robots.MuJoCoPlant`), and how to draw an animation of it.

    python examples/double_pendulum_cart.py --batch 8 --out double_pendulum_cart.png --gif cart.gif
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import casadi as ca
import jax
import matplotlib.pyplot as plt
import numpy as np

import warpmpc as wm

FILE = Path(__file__).with_suffix(".xml")
DT, HORIZON, STEPS = 0.05, 40, 100
POLE, RAIL = 0.4, 1.5  # length of each pole, end of the rail [m], as in the file


def build(robot: wm.robots.Robot) -> wm.OCP:
    """The optimal control problem: both poles up, with the force and the rail of the file."""
    q, v = robot.symbols()
    control = ca.SX.sym("control", robot.nu)
    ocp = wm.OCP({"q": q, "v": v}, {"control": control}, horizon=HORIZON, dt=DT)
    ocp.set_dynamics(robot.xdot(q, v, robot.actuation(control, q, v)), integrator="rk4")
    # Positions of the joint between the poles and of the tip: full turns make no difference.
    joint, tip = robot.pose("upper", q).position, robot.pose("tip", q).position
    error = ca.vertcat(joint[0], joint[2] - POLE, tip[0], tip[2] - 2 * POLE)
    ocp.add_residual(error, weight=10.0)
    ocp.add_residual(ca.vertcat(q[0], v), weight=[1.0, 0.3, 0.1, 0.1])
    ocp.add_residual(control, weight=0.1)
    ocp.add_residual(ca.vertcat(error, q[0], v), weight=[*[200] * 4, 20, *[10] * 3], at="terminal")
    robot.limits(ocp)
    return ocp


def heights(x: np.ndarray) -> np.ndarray:
    """Height of the tip over the cart."""
    return POLE * (np.cos(x[..., 1]) + np.cos(x[..., 1] + x[..., 2]))


def draw(x: np.ndarray, control: np.ndarray, path: Path) -> None:
    """Heights of the tips, positions of the carts and inputs over time."""
    figure, panels = plt.subplots(1, 3, figsize=(12, 3.6), layout="constrained")
    seconds = DT * np.arange(x.shape[1])
    for axes, values, label in zip(
        panels, (heights(x), x[..., 0]), ("height of the tip [m]", "cart [m]"), strict=False
    ):
        axes.plot(seconds, values.T, linewidth=0.9)
        axes.set(xlabel="time [s]", ylabel=label)
    panels[0].axhline(2 * POLE, color="gray", linestyle=":")
    for end in (-RAIL, RAIL):
        panels[1].axhline(end, color="crimson", linewidth=0.8)
    panels[2].step(seconds[:-1], control[..., 0].T, where="post", linewidth=0.9)
    panels[2].set(xlabel="time [s]", ylabel="control of the motor")
    figure.savefig(path, dpi=150)
    plt.close(figure)


def main(arguments: list[str] | None = None) -> dict[str, float]:
    """Runs the example; returns what it prints."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--batch", type=int, default=8, help="number of carts")
    parser.add_argument(
        "--out", type=Path, default=Path("double_pendulum_cart.png"), help="picture to write"
    )
    parser.add_argument("--gif", type=Path, help="animation of the first cart to write")
    options = parser.parse_args(arguments)

    robot = wm.robots.load(FILE)
    settings = wm.SQPSettings(
        mode="fixed",
        max_iter=3,
        qp=wm.ADMMSettings(max_iter=60, check_every=0, adaptive_rho_every=0, scaling=0),
    )
    solver = wm.MPCSolver(build(robot), settings)
    # Contacts, limits and friction of the file act in the plant, and its steps are ten times finer.
    plant = wm.robots.MuJoCoPlant(robot, DT, substeps=10, actuation="control")
    rng = np.random.default_rng(0)
    x0 = rng.uniform(-1, 1, (options.batch, 6)) * [0.3, 0.2, 0.2, 0.1, 0.2, 0.2]
    x0[:, 1] += np.pi  # hanging

    began = time.perf_counter()
    loop = jax.block_until_ready(wm.rollout(solver, plant, x0.astype("float32"), STEPS))
    seconds = time.perf_counter() - began
    x, control = np.asarray(loop.x), np.asarray(loop.u)
    up = heights(x[:, -10:]).min(axis=1) > 0.95 * 2 * POLE
    excess = max(float(np.abs(x[..., 0]).max()) - RAIL, 0.0)
    print(f"{STEPS * DT:.0f} s of {options.batch} carts in {seconds:.1f} s, with compilation")
    print(f"{up.mean():.1%} upright; rail exceeded by at most {excess:.1e} m")
    draw(x, control, options.out)
    print(f"wrote {options.out}")
    if options.gif:
        wm.robots.render(robot, x[0, :, : robot.nq], options.gif, dt=DT, camera="side")
        print(f"wrote {options.gif}")
    return {"success": float(up.mean()), "excess": excess}


if __name__ == "__main__":
    main()
