"""Cart-poles that swing up on one rail, all at once, with their angles and positions.

Reads: a `LoopDemo`.  Produces: a `viz.scene.Scene`.
"""

from __future__ import annotations

import numpy as np

from warpmpc.systems import cartpole
from warpmpc.viz import style
from warpmpc_bench.demos.loop import LoopDemo
from warpmpc_bench.demos.panels import LoopScene, bare

TRAIL = 7  # steps for which the path of a tip stays visible
LENGTH = cartpole.PHYSICS["rod_length"]
CART = np.array([[-0.055, -0.03], [0.055, -0.03], [0.055, 0.03], [-0.055, 0.03]])
END = cartpole.RAIL + CART[1, 0]


class CartpoleScene(LoopScene):
    """The whole batch on one rail."""

    counted = "upright"
    still_at = 0.4
    most_drawn = 90

    def __init__(self, loop: LoopDemo):
        """Prepares all artists."""
        from matplotlib.collections import LineCollection, PolyCollection

        super().__init__(loop)
        self.drawn = self.drawn[np.argsort(loop.x[self.drawn, 0, 0])]
        axes, colors = self.figure.add_axes(self.main), self.colors.tolist()
        bare(axes)
        axes.set(xlim=(-1.02, 1.02), ylim=(-0.8, 0.8))
        axes.plot([-END, END], [0, 0], color=style.FILL, linewidth=4, zorder=0)
        for edge in (-END, END):
            axes.plot([edge, edge], [-0.08, 0.08], color=style.INK, linewidth=2.6)
        self._trails = LineCollection([], colors=colors, linewidths=0.8, alpha=0.3)
        self._carts = PolyCollection([], facecolors=colors, edgecolors="none", alpha=0.3)
        self._poles = LineCollection([], colors=colors, linewidths=2.2, alpha=0.5)
        for artist in (self._trails, self._carts, self._poles):
            axes.add_collection(artist)
        (self._tips,) = axes.plot([], [], "o", color=style.INK, markersize=3.2, alpha=0.55)
        x, rail = loop.x[self.drawn], cartpole.RAIL
        self.add_trace(x[..., 2], "angle [rad], 0 is upright")
        self.add_trace(x[..., 0], "position [m], ends of the rail dashed", (-rail, rail))

    def move(self, step: int) -> None:
        """Carts and poles at a time, with the latest path of the tips."""
        x = self.loop.x[self.drawn]
        pivots = np.stack([x[..., 0], np.zeros(x.shape[:2])], axis=-1)
        tips = pivots + LENGTH * np.stack([-np.sin(x[..., 2]), np.cos(x[..., 2])], axis=-1)
        self._trails.set_segments(list(tips[:, max(step - TRAIL, 0) : step + 1]))
        self._poles.set_segments(list(np.stack([pivots[:, step], tips[:, step]], axis=1)))
        self._carts.set_verts(list(pivots[:, step, None] + CART))
        self._tips.set_data(*tips[:, step].T)

    def there(self, step: int) -> np.ndarray:
        """Within 10 degrees."""
        return np.abs(self.loop.x[:, step, 2]) <= cartpole.UPRIGHT
