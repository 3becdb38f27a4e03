"""The animation of the front page: 300 quadrotors, each with its own MPC, fly home.

    python docs/figures/hero.py [FILE]

Closes the loops of the benchmark system `quadrotor_obstacles` on whatever device there is and draws
the ways of all instances, seen from above.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.collections import LineCollection
from matplotlib.figure import Figure
from matplotlib.patches import Circle
from PIL import Image

import warpmpc as wm
from warpmpc import systems
from warpmpc.systems import quadrotor_obstacles

BATCH = 300
FRAMES, EVERY, TRAIL = 72, 2, 26  # pictures, steps between them, steps of a way that are drawn
STILL = 14  # pictures at the end in which nothing moves
PAPER, CYLINDER, HOME = "#0f1726", "#2b3a55", "#ffb454"
SIDE, DPI = 4.8, 100  # inches, pixels per inch


def closed_loops(batch: int) -> np.ndarray:
    """States of a batch of closed loops, ``[batch, steps + 1, n_x]``."""
    system = systems.make("quadrotor_obstacles")
    solver = wm.MPCSolver(system.problem, system.settings)
    x0 = system.sample(batch).astype("float32")
    steps = min(system.steps, FRAMES * EVERY)
    loop = wm.rollout(solver, system.simulate, x0, steps, shift=False)
    return np.asarray(loop.x)


def draw(points: np.ndarray, step: int) -> Image.Image:
    """One picture: places ``[batch, steps + 1, 2]`` at a step, and the ways that led there."""
    figure = Figure(figsize=(SIDE, SIDE), facecolor=PAPER)
    axes = figure.add_axes((0, 0, 1, 1), facecolor=PAPER)
    axes.set(xlim=(-1.25, 1.25), ylim=(-1.25, 1.25), aspect="equal")
    axes.axis("off")
    for px, py, radius in quadrotor_obstacles.CYLINDERS:
        axes.add_patch(Circle((px, py), radius, color=CYLINDER))
    step = min(step, points.shape[1] - 1)
    begin = max(0, step - TRAIL)
    if step > begin:
        way = points[:, begin : step + 1]
        pieces = np.stack([way[:, :-1], way[:, 1:]], axis=2)
        shade = np.linspace(0.25, 0.85, pieces.shape[1])
        lines = LineCollection(list(pieces.reshape(-1, 2, 2)), cmap="viridis", linewidths=0.9)
        lines.set_array(np.tile(shade, len(pieces)))
        lines.set_clim(0, 1)
        lines.set_alpha(0.7)
        axes.add_collection(lines)
    axes.plot(*points[:, step].T, "o", color="#eef2f7", markersize=1.7)
    axes.plot(0, 0, "o", color=HOME, markersize=6)
    canvas = FigureCanvasAgg(figure)
    figure.set_dpi(DPI)
    canvas.draw()
    return Image.fromarray(np.asarray(canvas.buffer_rgba())[..., :3].copy())


def main(path: Path) -> None:
    """Draws and writes the animation."""
    points = closed_loops(BATCH)[..., :2]
    pictures = [draw(points, EVERY * frame) for frame in range(FRAMES)]
    # One palette for all pictures, so that the background does not flicker.
    palette = pictures[FRAMES // 4].quantize(48)
    pictures = [one.quantize(palette=palette, dither=Image.Dither.NONE) for one in pictures]
    durations = [50] * (FRAMES - 1) + [50 * STILL]
    pictures[0].save(
        path, save_all=True, append_images=pictures[1:], duration=durations, loop=0, optimize=True
    )


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).with_name("hero.gif"))
