"""Follow references that change while the drones fly: figures of eight of many sizes.

What one learns: parameters that have a value at every node of the horizon (`p_stage`), references
as a function of time inside of one program, and soft constraints that give way when they must.

    python examples/tracking.py --batch 128 --out tracking.png
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path

import casadi as ca
import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np

import warpmpc as wm

DT, HORIZON, STEPS, SWITCH = 0.1, 20, 120, 60
SPEED, WALL, DRAG = 3.0, 2.0, 0.3  # [m/s], walls at x = +-2 m [m], [1/m]


def build() -> wm.OCP:
    """A drone seen from above, with drag; the reference is a point for every node."""
    position, velocity = ca.SX.sym("position", 2), ca.SX.sym("velocity", 2)
    u, target = ca.SX.sym("u", 2), ca.SX.sym("target", 2)
    x = {"position": position, "velocity": velocity}
    ocp = wm.OCP(x, {"acceleration": u}, p_stage={"target": target}, horizon=HORIZON, dt=DT)
    speed_squared = ca.sumsqr(velocity)
    drag = DRAG * ca.sqrt(speed_squared + 1e-4) * velocity
    ocp.set_dynamics(ca.vertcat(velocity, u - drag), integrator="rk4")
    ocp.add_residual(position - target, weight=10.0, at="all")
    ocp.add_residual(u, weight=0.05)
    ocp.subject_to(-6, u, 6, name="acceleration")
    ocp.subject_to(None, speed_squared, SPEED**2, at="all", name="speed")
    # The references lead through the walls: soft rows keep the problems solvable.
    ocp.subject_to(-WALL, position[0], WALL, at="all", soft=wm.Soft(linear=100), name="walls")
    return ocp


def eight(size: jax.Array, phase: jax.Array, t: jax.Array) -> jax.Array:
    """Points of figures of eight at times t: ``[batch, times, 2]``."""
    # Half way, all references change at once: the eights are turned by 90 degrees.
    angle = phase[:, None] + 0.5 * t[None, :]
    points = jnp.stack([jnp.sin(angle), jnp.sin(2 * angle) / 2], axis=-1) * size[:, None, None]
    turned = (t >= SWITCH * DT)[None, :, None]
    return jnp.where(turned, points[..., ::-1], points)


def references(size: jax.Array, phase: jax.Array) -> Callable[[jax.Array], dict[str, jax.Array]]:
    """The parameters of step t: where the drones should be at the nodes of the horizon."""

    def params(t: jax.Array) -> dict[str, jax.Array]:
        return {"target": eight(size, phase, DT * (t + jnp.arange(HORIZON + 1)))}

    return params


def plant(x: jax.Array, u: jax.Array, key: jax.Array) -> jax.Array:
    """The same drones, each with gusts of wind of its own."""
    velocity = x[:, 2:]
    drag = DRAG * jnp.linalg.norm(velocity, axis=1, keepdims=True) * velocity
    gust = 0.5 * jax.random.normal(key, u.shape, u.dtype)
    return x + DT * jnp.concatenate([velocity, u - drag + gust], axis=1)


def draw(x: np.ndarray, target: np.ndarray, error: np.ndarray, path: Path) -> None:
    """Draws some drones with their references before and after the change, and all errors."""
    figure, panels = plt.subplots(1, 3, figsize=(13, 4.2), layout="constrained")
    for axes, part in zip(panels, (slice(0, SWITCH), slice(SWITCH, STEPS)), strict=False):
        for i in range(0, len(x), max(1, len(x) // 6)):
            (line,) = axes.plot(*x[i, part, :2].T, linewidth=1.5)
            axes.plot(*target[i, part].T, color=line.get_color(), linestyle=":", linewidth=1)
        axes.axvspan(WALL, 3.2, color="crimson", alpha=0.12)
        axes.axvspan(-3.2, -WALL, color="crimson", alpha=0.12)
        axes.set(xlim=(-3.2, 3.2), ylim=(-3.2, 3.2), aspect="equal", xlabel="x [m]")
    panels[0].set_title("drones and references (dotted), first half")
    panels[1].set_title("second half; walls in red are soft")
    panels[2].fill_between(
        DT * np.arange(STEPS), *np.quantile(error, [0.05, 0.95], axis=0), alpha=0.3
    )
    panels[2].plot(DT * np.arange(STEPS), np.median(error, axis=0))
    panels[2].set(xlabel="time [s]", ylabel="distance [m]", title="median and 90 % of all drones")
    figure.savefig(path, dpi=150)
    plt.close(figure)


def main(arguments: list[str] | None = None) -> dict[str, float]:
    """Runs the example; returns what it prints."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--batch", type=int, default=128, help="number of drones")
    parser.add_argument("--out", type=Path, default=Path("tracking.png"), help="picture to write")
    options = parser.parse_args(arguments)

    rng = np.random.default_rng(0)
    size = jnp.asarray(rng.uniform(0.8, 2.4, options.batch), dtype="float32")
    phase = jnp.asarray(rng.uniform(0, 2 * np.pi, options.batch), dtype="float32")
    begin = eight(size, phase, jnp.zeros(1))[:, 0]
    x0 = jnp.concatenate([begin + 0.3, jnp.zeros_like(begin)], axis=1)

    # Two iterations per step, from the last plan moved by one node: plans change little.
    solver = wm.MPCSolver(build(), wm.SQPSettings(mode="fixed", max_iter=2, qp=wm.ADMMSettings()))
    loop = wm.rollout(
        solver, plant, x0, STEPS, params=references(size, phase), key=jax.random.key(0)
    )
    x = np.asarray(loop.x[:, :-1])
    target = np.asarray(eight(size, phase, DT * jnp.arange(STEPS)))
    error = np.linalg.norm(x[..., :2] - target, axis=-1)
    inside = np.abs(target[..., 0]) <= WALL
    before = float(np.median(error[:, SWITCH - 20 : SWITCH]))
    after = float(np.median(error[:, -20:]))
    # Some drones start inside a wall and need a second to leave it.
    through = float(np.maximum(np.abs(x[:, 10:, 0]) - WALL, 0).max())
    print(f"{options.batch} drones; {1 - inside.mean():.1%} of the references lie behind the walls")
    print(f"median distance: {before:.3f} m before the change, {after:.3f} m at the end")
    print(f"deepest in a wall after one second: {through:.3f} m")
    draw(x, target, error, options.out)
    print(f"wrote {options.out}")
    return {"before": before, "after": after, "through": through}


if __name__ == "__main__":
    main()
