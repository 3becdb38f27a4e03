"""Pendulums with weak motors: their phase portrait, themselves, and angle and torque over time.

Reads: a `LoopDemo`.  Produces: a `viz.scene.Scene`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from warpmpc.systems import pendulum
from warpmpc.viz import style
from warpmpc_bench.demos.loop import LoopDemo
from warpmpc_bench.demos.panels import Box, LoopScene, bare

if TYPE_CHECKING:
    from matplotlib.axes import Axes

INSET: Box = (0.075, 0.55, 0.13, 0.24)


class PendulumScene(LoopScene):
    """Swing-ups in the plane of angle and rate."""

    counted = "upright"
    still_at = 0.3
    main = (0.065, 0.095, 0.525, 0.715)

    def __init__(self, loop: LoopDemo):
        """Prepares all artists."""
        from matplotlib.collections import LineCollection
        from matplotlib.patches import Circle

        super().__init__(loop)
        self.drawn = self.drawn[np.argsort(loop.x[self.drawn, 0, 0])]
        axes, colors = self.figure.add_axes(self.main), self.colors.tolist()
        _energy(axes, loop.x)
        self._paths = LineCollection([], colors=colors, linewidths=0.9, alpha=0.5)
        axes.add_collection(self._paths)
        places = np.zeros((2, self.drawn.size))
        self._dots = axes.scatter(*places, s=15, c=colors, edgecolors="white", linewidths=0.4)
        axes.plot(0, 0, marker="+", color=style.INK, markersize=13, markeredgewidth=1.6)
        inset = self.figure.add_axes(INSET)
        bare(inset)
        inset.set(xlim=(-1.12, 1.12), ylim=(-1.12, 1.12))
        inset.patch.set_visible(False)
        inset.add_patch(Circle((0, 0), 1.06, facecolor="white", edgecolor=style.FILL))
        self._rods = LineCollection([], colors=colors, linewidths=1.4, alpha=0.4)
        inset.add_collection(self._rods)
        inset.plot(0, 0, "o", color=style.INK, markersize=4)
        torque = pendulum.TORQUE
        self.add_trace(loop.x[self.drawn, :, 0], "angle [rad], 0 is upright")
        self.add_trace(loop.u[self.drawn, :, 0], "torque [N m], limits dashed", (-torque, torque))

    def move(self, step: int) -> None:
        """Pendulums at a time."""
        x = self.loop.x[self.drawn]
        self._dots.set_offsets(x[:, step])
        tips = np.stack([-np.sin(x[:, step, 0]), np.cos(x[:, step, 0])], axis=-1)
        self._rods.set_segments(list(np.stack([np.zeros_like(tips), tips], axis=1)))

    def draw_paths(self, step: int) -> None:
        """Angles and rates until a time."""
        self._paths.set_segments(list(self.loop.x[self.drawn, : step + 1]))

    def there(self, step: int) -> np.ndarray:
        """Within 0.1 rad."""
        return np.abs(self.loop.x[:, step, 0]) <= pendulum.UPRIGHT


def _energy(axes: Axes, x: np.ndarray) -> None:
    """Curves of equal energy: where a pendulum without motor would go."""
    angle, rate = x[..., 0], x[..., 1]
    low, high = min(np.nanmin(angle), -0.5) - 0.3, np.nanmax(angle) + 0.3
    most = 1.15 * max(float(np.nanmax(np.abs(rate))), 1.0)
    grid = np.meshgrid(np.linspace(low, high, 160), np.linspace(-most, most, 120))
    gravity = pendulum.PHYSICS["gravity"]
    energy = 0.5 * grid[1] ** 2 + gravity * (np.cos(grid[0]) - 1)
    axes.contour(*grid, energy, levels=14, colors=style.FAINT, linewidths=0.8, linestyles="solid")
    axes.set(xlim=(low, high), ylim=(-most, most))
    axes.set_xlabel("angle [rad]", labelpad=1)
    axes.set_ylabel("rate [rad/s]", labelpad=1)
    style.panel_title(axes, "phase portrait; grey: equal energy, +: upright and at rest")
    style.tidy(axes)
