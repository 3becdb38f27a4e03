"""Quadrotors among cylinders, seen from above, with their clearances and distances.

Reads: a `LoopDemo`.  Produces: a `viz.scene.Scene`.
"""

from __future__ import annotations

import numpy as np

from warpmpc.systems import quadrotor, quadrotor_obstacles
from warpmpc.viz import style
from warpmpc_bench.demos.loop import LoopDemo
from warpmpc_bench.demos.panels import LoopScene, bare
from warpmpc_bench.demos.quadrotor_scene import crosses

AREA = 1.28  # [m]


class ObstaclesScene(LoopScene):
    """Flights around cylinders."""

    counted = "within 0.1 m"
    still_at = 0.2
    main = (0.02, 0.02, 0.6, 0.83)

    def __init__(self, loop: LoopDemo):
        """Prepares all artists."""
        from matplotlib.collections import LineCollection
        from matplotlib.patches import Circle

        super().__init__(loop)
        # Colours by direction, so that neighbours have similar ones.
        first = loop.x[self.drawn, 0]
        self.drawn = self.drawn[np.argsort(np.arctan2(first[:, 1], first[:, 0]))]
        axes, cylinders = self.figure.add_axes(self.main), quadrotor_obstacles.CYLINDERS
        bare(axes)
        axes.set(xlim=(-AREA, AREA), ylim=(-AREA, AREA))
        for (cx, cy, radius), (_, _, kept) in zip(
            cylinders, quadrotor_obstacles.inflated(cylinders), strict=True
        ):
            axes.add_patch(Circle((cx, cy), radius, facecolor=style.FILL, edgecolor=style.MUTED))
            edge = Circle((cx, cy), kept, facecolor="none", edgecolor=style.MUTED, linewidth=0.9)
            edge.set_linestyle((0, (4, 3)))
            axes.add_patch(edge)
        self._paths = LineCollection([], colors=self.colors.tolist(), linewidths=0.9, alpha=0.55)
        arms = np.repeat(self.colors, 2, axis=0).tolist()
        self._arms = LineCollection([], colors=arms, linewidths=1.8, alpha=0.9)
        for artist in (self._paths, self._arms):
            axes.add_collection(artist)
        axes.plot(0, 0, marker="+", color=style.INK, markersize=13, markeredgewidth=1.6)
        x = loop.x[self.drawn]
        clearance = quadrotor_obstacles.clearance(x[..., :2], cylinders).min(axis=-1)
        self.add_trace(clearance, "distance to the dashed circles [m]", (0.0,))
        self.add_trace(np.linalg.norm(x[..., :3], axis=2), "distance to the set-point [m]")

    def move(self, step: int) -> None:
        """Quadrotors at a time."""
        self._arms.set_segments(list(crosses(self.loop.x[self.drawn, step])[..., :2]))

    def draw_paths(self, step: int) -> None:
        """Paths until a time."""
        self._paths.set_segments(list(self.loop.x[self.drawn, : step + 1, :2]))

    def there(self, step: int) -> np.ndarray:
        """Within 0.1 m of the set-point."""
        return np.linalg.norm(self.loop.x[:, step, :3], axis=1) <= quadrotor.REACHED
