"""Cars that drive around an obstacle to one parking place, seen from above.

Reads: a `LoopDemo`.  Produces: a `viz.scene.Scene`.
"""

from __future__ import annotations

import numpy as np

from warpmpc.systems import car
from warpmpc.viz import style
from warpmpc_bench.demos.loop import LoopDemo
from warpmpc_bench.demos.panels import LoopScene, bare

# The problem keeps one point of a car away from the obstacle: cars are drawn as small arrows.
ARROW = np.array([[0.34, 0.0], [-0.22, 0.17], [-0.12, 0.0], [-0.22, -0.17]])


class CarScene(LoopScene):
    """Paths in the plane."""

    counted = "parked"
    still_at = 0.16
    main = (0.02, 0.37, 0.96, 0.485)
    sides = ((0.055, 0.09, 0.42, 0.2), (0.545, 0.09, 0.42, 0.2))

    def __init__(self, loop: LoopDemo):
        """Prepares all artists."""
        from matplotlib.collections import LineCollection, PolyCollection
        from matplotlib.patches import Circle

        super().__init__(loop)
        # Neighbours in the picture have neighbouring colours.
        self.drawn = self.drawn[np.argsort(loop.x[self.drawn, 0, 1])]
        axes, colors = self.figure.add_axes(self.main), self.colors.tolist()
        bare(axes)
        axes.set(xlim=(-15.4, 2.4), ylim=(-3.2, 3.2))
        cx, cy, radius = car.OBSTACLE
        axes.add_patch(Circle((cx, cy), radius, facecolor=style.FAINT, edgecolor=style.MUTED))
        axes.plot(*car.GOAL[:2], marker="+", color=style.INK, markersize=14, markeredgewidth=1.6)
        axes.text(car.GOAL[0], car.GOAL[1] - 0.75, "goal", fontsize=9, color=style.INK, ha="center")
        self._paths = LineCollection([], colors=colors, linewidths=0.9, alpha=0.6)
        self._arrows = PolyCollection([], facecolors=colors, edgecolors="white", linewidths=0.4)
        for artist in (self._paths, self._arrows):
            axes.add_collection(artist)
        x = loop.x[self.drawn]
        away = np.hypot(x[..., 0] - cx, x[..., 1] - cy) - radius
        self.add_trace(away, "distance to the obstacle [m], contact dashed", (0.0,))
        fastest = car.SPEED_LIMIT
        self.add_trace(x[..., 3], "speed [m/s], limit dashed", (fastest,))

    def move(self, step: int) -> None:
        """Cars at a time."""
        now = self.loop.x[self.drawn, step]
        cos, sin = np.cos(now[:, 2]), np.sin(now[:, 2])
        turn = np.stack([np.stack([cos, sin], axis=-1), np.stack([-sin, cos], axis=-1)], axis=1)
        self._arrows.set_verts(list(now[:, None, :2] + ARROW @ turn))

    def draw_paths(self, step: int) -> None:
        """Paths until a time."""
        self._paths.set_segments(list(self.loop.x[self.drawn, : step + 1, :2]))

    def there(self, step: int) -> np.ndarray:
        """Within 0.2 m of the goal."""
        error = self.loop.x[:, step, :2] - np.asarray(car.GOAL[:2])
        return np.hypot(*error.T) <= car.PARKED
