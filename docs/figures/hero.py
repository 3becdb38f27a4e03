"""The picture of the README: closed loops of whole batches, and how many solves a second they take.

    python docs/figures/hero.py [FILE]

Solves the benchmark systems on whatever device there is; the rates are read from
`benchmarks/results`, correct rows of the published settings and the engine that `auto` takes.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.figure import Figure
from matplotlib.patches import Circle

import warpmpc as wm
from warpmpc import systems
from warpmpc.systems import cartpole, quadrotor_obstacles
from warpmpc_bench.common.record import read_rows
from warpmpc_bench.common.report import workload
from warpmpc_bench.mpc.report import PUBLISHED

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "benchmarks" / "results"
RATES = {"cartpole": "onchip_h200.jsonl", "quadrotor": "sweep_h200.jsonl"}
BATCH = 300
PAPER, INK, DIM = "#10151f", "#eef2f7", "#8494a8"
COLORS = {("cartpole", 100, 10, 50): "#ffb454", ("quadrotor", 40, 1, 25): "#4fc3f7"}


def closed_loops(name: str) -> np.ndarray:
    """States of a batch of closed loops, ``[batch, steps + 1, n_x]``."""
    system = systems.make(name)
    solver = wm.MPCSolver(system.problem, system.settings)
    x0 = system.sample(BATCH).astype("float32")
    loop = wm.rollout(solver, system.simulate, x0, system.steps, shift=False)
    return np.asarray(loop.x)


def draw_cartpoles(axes: Axes, x: np.ndarray) -> None:
    """The ways of the tips of all poles, from dark to bright with time."""
    length = cartpole.PHYSICS["rod_length"]
    x = x[:, :60]
    tips = np.stack([x[..., 0] - length * np.sin(x[..., 2]), length * np.cos(x[..., 2])], axis=-1)
    _draw_paths(axes, tips, "inferno")
    last = x[:, -1]
    for position, _, angle, _ in last:
        tip = (position - length * np.sin(angle), length * np.cos(angle))
        axes.plot([position, tip[0]], [0, tip[1]], color=INK, linewidth=0.8, alpha=0.5)
    axes.plot([-cartpole.RAIL, cartpole.RAIL], [0, 0], color=DIM, linewidth=2)
    axes.set(xlim=(-1.05, 1.05), ylim=(-0.85, 0.85), aspect="equal")
    _title(axes, f"{len(x)} cartpoles swing up", "way of the tips; the rail is 0.7 m long")


def draw_quadrotors(axes: Axes, x: np.ndarray) -> None:
    """Ways of all quadrotors, seen from above."""
    for px, py, radius in quadrotor_obstacles.CYLINDERS:
        axes.add_patch(Circle((px, py), radius, color="#33415a"))
    _draw_paths(axes, x[..., :2], "viridis")
    axes.plot(*x[:, 0, :2].T, ".", color=DIM, markersize=2)
    axes.set(xlim=(-1.25, 1.25), ylim=(-1.25, 1.25), aspect="equal")
    _title(axes, f"{len(x)} quadrotors fly home", "around four cylinders, seen from above")


def draw_rates(axes: Axes) -> None:
    """SQP iterations per second over the batch size, beside the published implementation.

    Where several variants were measured, the fastest.
    """
    for work, color in COLORS.items():
        fastest: dict[int, float] = {}
        for row in read_rows(RESULTS / RATES[work[0]]):
            if workload(row) == work and row["correct"] and row["dtype"] == "float32":
                rate = row["sqp"]["per_s"]
                fastest[row["batch"]] = max(rate, fastest.get(row["batch"], 0.0))
        batches = sorted(fastest)
        rates = [fastest[batch] for batch in batches]
        axes.plot(batches, rates, "o-", color=color, linewidth=2.2, markersize=5, label=work[0])
        published = PUBLISHED[work]
        axes.plot(list(published), list(published.values()), "x:", color=color, alpha=0.8)
    axes.plot([], [], "x:", color=DIM, label="published implementation")
    axes.set(xscale="log", yscale="log", xlabel="problems in a batch")
    axes.tick_params(colors=DIM, which="both")
    axes.xaxis.label.set_color(DIM)
    axes.spines[:].set_visible(False)
    axes.grid(color="#263042", linewidth=0.6)
    axes.legend(frameon=False, labelcolor=INK, fontsize=9, loc="lower right")
    _title(axes, "SQP iterations per second", "one NVIDIA H200, float32, closed loop")


def _draw_paths(axes: Axes, points: np.ndarray, colormap: str) -> None:
    """Lines ``[batch, times, 2]``, coloured by time."""
    pieces = np.stack([points[:, :-1], points[:, 1:]], axis=2)
    shade = np.broadcast_to(np.linspace(0.4, 1.0, pieces.shape[1]), pieces.shape[:2])
    lines = LineCollection(
        list(pieces.reshape(-1, 2, 2)), cmap=colormap, linewidths=0.8, alpha=0.45
    )
    lines.set_array(shade.ravel())
    lines.set_clim(0, 1)
    axes.add_collection(lines)
    axes.axis("off")


def _title(axes: Axes, title: str, subtitle: str) -> None:
    place = {"xy": (0, 1), "xycoords": "axes fraction", "textcoords": "offset points"}
    axes.annotate(title, xytext=(0, 32), fontsize=15, fontweight="bold", color=INK, **place)
    axes.annotate(subtitle, xytext=(0, 14), fontsize=10, color=DIM, **place)


def main(path: Path) -> None:
    """Draws and writes the picture."""
    figure = Figure(figsize=(15, 5), facecolor=PAPER)
    boxes = ((0.02, 0.04, 0.36, 0.78), (0.39, 0.04, 0.27, 0.78), (0.71, 0.13, 0.27, 0.69))
    panels = [figure.add_axes(box, facecolor=PAPER) for box in boxes]
    draw_cartpoles(panels[0], closed_loops("cartpole"))
    draw_quadrotors(panels[1], closed_loops("quadrotor_obstacles"))
    draw_rates(panels[2])
    figure.savefig(path, dpi=110, metadata={"Software": None})


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).with_name("hero.png"))
