"""Closed loops of any system: its first two states in the plane, a state and an input over time.

Reads: a `LoopDemo`.  Produces: a `viz.scene.Scene`, for systems without a scene of their own.
"""

from __future__ import annotations

import numpy as np

from warpmpc.viz import style
from warpmpc_bench.demos.loop import LoopDemo
from warpmpc_bench.demos.panels import LoopScene, value_range


class StatesScene(LoopScene):
    """States of all instances; a system with one state is drawn over its own next value."""

    counted = "finite"
    main = (0.065, 0.095, 0.525, 0.715)

    def __init__(self, loop: LoopDemo):
        """Prepares all artists."""
        from matplotlib.collections import LineCollection

        super().__init__(loop)
        names, colors = loop.system.state_names, self.colors.tolist()
        last = min(1, loop.x.shape[2] - 1)
        self._points = loop.x[self.drawn][..., [0, last]]
        axes = self.figure.add_axes(self.main)
        axes.set(xlim=value_range(loop.x[..., 0]), ylim=value_range(loop.x[..., last]))
        axes.set_xlabel(names[0], labelpad=1)
        axes.set_ylabel(names[last], labelpad=1)
        style.panel_title(axes, f"{names[0]} and {names[last]}")
        style.tidy(axes)
        self._paths = LineCollection([], colors=colors, linewidths=0.9, alpha=0.5)
        axes.add_collection(self._paths)
        places = np.zeros((2, self.drawn.size))
        self._dots = axes.scatter(*places, s=15, c=colors, edgecolors="white", linewidths=0.4)
        self.add_trace(loop.x[self.drawn, :, 0], f"{names[0]} over time")
        self.add_trace(loop.u[self.drawn, :, 0], "first input over time")

    def move(self, step: int) -> None:
        """Moves the points to a step."""
        self._dots.set_offsets(self._points[:, step])

    def draw_paths(self, step: int) -> None:
        """Draws the states until a step."""
        self._paths.set_segments(list(self._points[:, : step + 1]))

    def there(self, step: int) -> np.ndarray:
        """Tells which instances have been finite until now."""
        seen = self.loop.x[:, : step + 1].reshape(len(self.loop.x), -1)
        return np.asarray(np.isfinite(seen).all(axis=1))
