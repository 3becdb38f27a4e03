"""Humanoids as stick figures on the ground, seen from the side, with height and speed over time.

Reads: a `LoopDemo`.  Produces: a `viz.scene.Scene`.
"""

from __future__ import annotations

import casadi as ca
import numpy as np

from warpmpc.systems.humanoid import HEIGHTS, N_Q, model, tables
from warpmpc.viz import style
from warpmpc_bench.demos.loop import LoopDemo
from warpmpc_bench.demos.panels import LoopScene, bare

SPACING = np.array([1.4, 2.0, 0.0])  # robots stand in rows on the ground [m]
AWAY = np.array([0.3, 0.45])  # where the axis to the left of the robots points in the picture
HEAD = 0.14  # from the shoulders to the head [m]
SPEED = N_Q + 3  # forward, in the axes of the base


class HumanoidScene(LoopScene):
    """Robots that stand and walk; lines on the ground are where they have been."""

    counted = "on their feet"
    most_drawn = 12

    def __init__(self, loop: LoopDemo):
        """Prepares all artists."""
        from matplotlib.collections import LineCollection

        super().__init__(loop)
        self._figures = _stick_figures()
        rows = int(np.ceil(np.sqrt(self.drawn.size)))
        place = np.arange(self.drawn.size)
        self._grid = SPACING * np.stack([place % rows, place // rows, 0 * place], axis=1)
        axes, colors = self.figure.add_axes(self.main), self.colors.tolist()
        bare(axes)
        ground = _seen(np.nan_to_num(loop.x[self.drawn, :, :3]) * [1, 1, 0] + self._grid[:, None])
        low, high = ground.min(axis=(0, 1)), ground.max(axis=(0, 1))
        axes.set(xlim=(low[0] - 0.5, high[0] + 0.5), ylim=(low[1] - 0.2, high[1] + 1.1))
        self._ground = ground
        self._paths = LineCollection([], colors=style.FILL, linewidths=1.0)
        axes.add_collection(self._paths)
        each = len(self._lines_of(0)) // self.drawn.size
        repeated = [color for color in colors for _ in range(each)]
        self._robots = LineCollection([], colors=repeated, linewidths=1.8, capstyle="round")
        axes.add_collection(self._robots)
        self.add_trace(loop.x[self.drawn, :, 2], "height of the base [m], limits dashed", HEIGHTS)
        self.add_trace(loop.x[self.drawn, :, SPEED], "forward speed of the base [m/s]")

    def move(self, step: int) -> None:
        """Robots at a time."""
        self._robots.set_segments(list(self._lines_of(step)))

    def draw_paths(self, step: int) -> None:
        """Where the bases have been, on the ground."""
        self._paths.set_segments(list(self._ground[:, : step + 1]))

    def there(self, step: int) -> np.ndarray:
        """Tells which robots have not fallen until now."""
        height = self.loop.x[:, : step + 1, 2]
        return np.all((height > HEIGHTS[0]) & (height < HEIGHTS[1]), axis=1)

    def _lines_of(self, step: int) -> np.ndarray:
        """Lines in the picture ``[robots * lines, 2, 2]``."""
        q = self.loop.x[self.drawn, step, :N_Q]
        found = [np.array(self._figures(one)) for one in q]  # [lines * 2, 3] each
        lines = np.stack(found) + self._grid[:, None]
        return _seen(lines).reshape(-1, 2, 2)


def _seen(points: np.ndarray) -> np.ndarray:
    """Points ``[..., 3]`` in the picture."""
    flat = np.stack([points[..., 0], points[..., 2]], axis=-1)
    return flat + points[..., 1:2] * AWAY


def _stick_figures() -> ca.Function:
    """Function from coordinates of the MPC to the ends of all lines, ``[lines * 2, 3]``."""
    q = ca.SX.sym("q", N_Q)
    moving = model.Motion(q, ca.SX.zeros(N_Q))
    parts = {part.name: moving.at_base(part.name) for part in tables.PARTS}
    parts |= {name: moving.at_base(name) for name in ("Rhand", "Lhand", *tables.CONTACTS)}
    neck = (parts["R shoulder pitch"] + parts["L shoulder pitch"]) / 2
    parts |= {"base": ca.SX.zeros(3), "neck": neck, "head": neck + ca.SX([0, 0, HEAD])}
    lines = [("base", "neck"), ("neck", "head")]
    for part in tables.PARTS:
        is_arm = part.parent == "base" and "shoulder" in part.name
        lines.append(("neck" if is_arm else part.parent, part.name))
    for side in "RL":
        lines += [(f"{side} ankle", f"{side}heel"), (f"{side}heel", f"{side}toe")]
        lines += [(f"{side} ankle", f"{side}toe"), (f"{side} elbow", f"{side}hand")]
    ends = [parts[name] for line in lines for name in line]
    return ca.Function("ends", [q], [ca.horzcat(*(q[:3] + moving.rotation @ at for at in ends)).T])
