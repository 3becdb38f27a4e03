"""An arm with seven joints reaches from the right of two balls to their left, in MuJoCo.

What one learns: accelerations and torques as inputs (`wm.robots.inverse_dynamics_rows`), which
makes programs much shorter than forward dynamics; distances to obstacles as rows; goals.

    python examples/reaching_arm.py --batch 32 --out reaching_arm.png --gif reaching_arm.gif
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import casadi as ca
import jax
import matplotlib.pyplot as plt
import mujoco
import numpy as np

import warpmpc as wm

FILE = Path(__file__).with_suffix(".xml")
DT, HORIZON, STEPS, SPEED = 0.05, 20, 100, 1.5
# Points of the arm and how thick it is there; they stay a little further away from the obstacles,
# because they stand for all points between them.
THICK = 0.05, 0.05, 0.05, 0.05, 0.045, 0.04
POINTS = dict(zip(("elbow", "forearm", "sleeve", "wrist", "palm", "hand"), THICK, strict=True))
EXTRA = 0.03
# Postures from which goals and starts are drawn: within these angles.
POSTURES = np.array([1.2, 1.0, 1.0, 1.5, 1.0, 1.2, 1.0])


def obstacles(robot: wm.robots.Robot) -> list[tuple[np.ndarray, float]]:
    """Centres and radii of the balls in the file."""
    model = robot.mujoco_model
    balls = [model.geom(f"obstacle_{i}") for i in range(2)]
    return [(np.array(ball.pos), float(ball.size[0])) for ball in balls]


def clearances(robot: wm.robots.Robot, q: ca.SX) -> ca.SX:
    """Distance of each point of the arm to each obstacle, less the thickness of both."""
    gaps = [
        ca.norm_2(robot.pose(name, q).position - center) - radius - thickness
        for name, thickness in POINTS.items()
        for center, radius in obstacles(robot)
    ]
    return ca.vertcat(*gaps)


def build(robot: wm.robots.Robot) -> wm.OCP:
    """The optimal control problem; dynamics of the state are linear, the robot is in the rows."""
    q, v = robot.symbols()
    a, tau, goal = (ca.SX.sym(name, n) for name, n in (("a", 7), ("tau", 7), ("goal", 3)))
    ocp = wm.OCP({"q": q, "v": v}, {"a": a, "tau": tau}, {"goal": goal}, horizon=HORIZON, dt=DT)
    ocp.set_dynamics(x_next=ca.vertcat(q + DT * v + DT**2 / 2 * a, v + DT * a))
    rows = wm.robots.inverse_dynamics_rows(robot, q, v, a, tau=tau)
    ocp.subject_to(0, rows, 0, name="inverse dynamics")
    robot.limits(ocp, tau=tau)
    ocp.subject_to(-SPEED, v, SPEED, at="all", name="speed")
    ocp.subject_to(EXTRA, clearances(robot, q), None, at="all", name="clearance")
    error = robot.pose("hand", q).position - goal
    ocp.add_residual(ca.vertcat(error, v), weight=[*[30] * 3, *[0.1] * 7])
    ocp.add_residual(ca.vertcat(a, q), weight=[*[1e-3] * 7, *[3e-3] * 7])
    ocp.add_residual(ca.vertcat(error, v), weight=[*[300] * 3, *[3] * 7], at="terminal")
    return ocp


def postures(robot: wm.robots.Robot, count: int, side: int, rng: np.random.Generator) -> np.ndarray:
    """Random postures with the hand in front, on one side, and clear of obstacles and floor."""
    q, _ = robot.symbols()
    points = ca.horzcat(*(robot.pose(name, q).position for name in POINTS))
    check = ca.Function("check", [q], [points, clearances(robot, q)])
    found: list[np.ndarray] = []
    while len(found) < count:
        posture = rng.uniform(-1, 1, 7) * POSTURES
        places, gaps = (np.array(values) for values in check(posture))
        x, y, _ = places[:, -1]
        if gaps.min() > 0.05 and places[2].min() > 0.15 and x > 0.2 and side * y > 0.2:
            found.append(posture)
    return np.array(found)


def deepest(robot: wm.robots.Robot, q: np.ndarray) -> float:
    """How deep the shapes of the arm ever are in an obstacle, by MuJoCo's geometry."""
    model, data = robot.mujoco_model, mujoco.MjData(robot.mujoco_model)
    arm = [i for i in range(model.ngeom) if model.geom_bodyid[i]]
    balls = [model.geom(f"obstacle_{i}").id for i in range(2)]
    gap = np.inf
    for posture in q.reshape(-1, robot.nq):
        data.qpos[:] = posture
        mujoco.mj_kinematics(model, data)
        gaps = [mujoco.mj_geomDistance(model, data, i, j, 0.1, None) for i in arm for j in balls]
        gap = min(gap, *gaps)
    return max(-gap, 0.0)


def draw(error: np.ndarray, share: np.ndarray, path: Path) -> None:
    """Distances of the hands to their goals, and the torques, over time."""
    figure, (left, right) = plt.subplots(1, 2, figsize=(11, 3.8), layout="constrained")
    left.semilogy(DT * np.arange(error.shape[1]), error.T, linewidth=0.8)
    left.axhline(0.01, color="gray", linestyle=":")
    left.set(xlabel="time [s]", ylabel="distance of the hand to its goal [m]")
    right.plot(DT * np.arange(share.shape[1]), share.T, linewidth=0.8)
    right.set(xlabel="time [s]", ylabel="largest torque / its limit", ylim=(0, 1.05))
    figure.savefig(path, dpi=150)
    plt.close(figure)


def main(arguments: list[str] | None = None) -> dict[str, float]:
    """Runs the example; returns what it prints."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--batch", type=int, default=32, help="number of tasks")
    parser.add_argument("--out", type=Path, default=Path("reaching_arm.png"), help="picture")
    parser.add_argument("--gif", type=Path, help="animation of the first task to write")
    options = parser.parse_args(arguments)

    robot, rng = wm.robots.load(FILE), np.random.default_rng(0)
    qp = wm.ADMMSettings(rho=10.0, max_iter=100, check_every=0, adaptive_rho_every=0, scaling=0)
    solver = wm.MPCSolver(build(robot), wm.SQPSettings(mode="fixed", max_iter=4, qp=qp))
    plant = wm.robots.MuJoCoPlant(robot, DT, substeps=10)

    start = postures(robot, options.batch, -1, rng)
    q, _ = robot.symbols()
    hand = ca.Function("hand", [q], [robot.pose("hand", q).position])
    goal = hand(postures(robot, options.batch, 1, rng).T).full().T
    x0 = np.concatenate([start, np.zeros_like(start)], axis=1).astype("float32")
    params = {"goal": goal.astype("float32")}

    began = time.perf_counter()
    loop = wm.rollout(solver, lambda x, u: plant(x, u[:, 7:]), x0, STEPS, params=params)
    seconds = time.perf_counter() - began
    path = np.asarray(jax.device_get(loop.x), dtype=float)[..., :7]
    places = hand(path.reshape(-1, 7).T).full().T.reshape(*path.shape[:2], 3)
    error = np.linalg.norm(places - goal[:, None], axis=2)
    share = np.max(np.abs(np.asarray(loop.u)[..., 7:]) / robot.torque_limits()[1], axis=2)
    reached, depth = error[:, -1] < 0.01, deepest(robot, path)
    print(f"{options.batch} tasks of {STEPS * DT:.0f} s in {seconds:.1f} s, with compilation")
    print(f"{reached.mean():.1%} within 1 cm, the worst {1e3 * error[:, -1].max():.1f} mm away")
    print(f"largest torque {share.max():.1%} of its limit; {1e3 * depth:.2f} mm in obstacles")
    draw(error, share, options.out)
    print(f"wrote {options.out}")
    if options.gif:
        wm.robots.render(robot, path[0], options.gif, dt=DT, camera="side")
    return {"reached": float(reached.mean()), "depth": depth}


if __name__ == "__main__":
    main()
