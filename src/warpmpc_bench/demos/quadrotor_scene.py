"""Quadrotors that fly to one set-point, in space, with their distances and motors.

Reads: a `LoopDemo`.  Produces: a `viz.scene.Scene`.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from warpmpc.systems import quadrotor
from warpmpc.viz import style
from warpmpc_bench.demos.loop import LoopDemo
from warpmpc_bench.demos.panels import Box, LoopScene

ARM = 0.055  # longer than the real one, which is too small to be seen [m]
ELEVATION, AZIMUTH, TURN = 22.0, -62.0, 40.0  # where the camera is, and how far it moves [degrees]
SPACE = 1.0  # [m]


class QuadrotorScene(LoopScene):
    """Flights in space, seen by a camera that moves slowly."""

    counted = "within 0.1 m"
    still_at = 0.45
    main = (-0.03, 0.035, 0.66, 0.86)

    def __init__(self, loop: LoopDemo):
        """Prepares all artists."""
        from mpl_toolkits.mplot3d.art3d import Line3DCollection

        super().__init__(loop)
        self.drawn = self.drawn[np.argsort(loop.x[self.drawn, 0, 2])]
        self._axes = _space(self.figure, self.main)
        count, colors = self.drawn.size, self.colors
        self._paths = Line3DCollection(
            np.zeros((count, 2, 3)), colors=colors.tolist(), linewidths=0.9, alpha=0.5
        )
        arms = np.repeat(colors, 2, axis=0).tolist()
        self._arms = Line3DCollection(
            np.zeros((2 * count, 2, 3)), colors=arms, linewidths=1.8, alpha=0.9
        )
        for artist in (self._paths, self._arms):
            self._axes.add_collection3d(artist, autolim=False)
        self._axes.scatter([0], [0], [0], marker="+", s=90, color=style.INK, linewidths=1.6)
        distance = np.linalg.norm(loop.x[self.drawn, :, :3], axis=2)
        self.add_trace(distance, "distance to the set-point [m]")
        limit = quadrotor.MOTOR_LIMIT
        self.add_trace(_thrust(loop.u[self.drawn]), "strongest motor [N], limit dashed", (limit,))

    def move(self, step: int) -> None:
        """Quadrotors at a time."""
        self._arms.set_segments(list(crosses(self.loop.x[self.drawn, step])))
        self._axes.view_init(ELEVATION, AZIMUTH + TURN * step / self.loop.steps)

    def draw_paths(self, step: int) -> None:
        """Paths until a time; two points at least, as the collection wants."""
        self._paths.set_segments(list(self.loop.x[self.drawn, : max(step, 1) + 1, :3]))

    def there(self, step: int) -> np.ndarray:
        """Within 0.1 m of the set-point."""
        return np.linalg.norm(self.loop.x[:, step, :3], axis=1) <= quadrotor.REACHED


def crosses(x: np.ndarray) -> np.ndarray:
    """The two arms of each quadrotor, ``[2 * instances, 2, 3]``."""
    roll, pitch, yaw = x[:, 3], x[:, 4], x[:, 5]
    cr, sr, cp, sp, cy, sy = (f(a) for a in (roll, pitch, yaw) for f in (np.cos, np.sin))
    forward = np.stack([cy * cp, sy * cp, -sp], axis=-1)
    left = np.stack([cy * sp * sr - sy * cr, sy * sp * sr + cy * cr, cp * sr], axis=-1)
    arms = ARM / np.sqrt(2) * np.stack([forward + left, forward - left], axis=1)
    center = x[:, None, None, :3]
    return (center + np.stack([-arms, arms], axis=2)).reshape(-1, 2, 3)


def _thrust(u: np.ndarray) -> np.ndarray:
    """Thrust of the strongest motor, ``[instances, steps]``."""
    split = [u[..., i] for i in range(u.shape[-1])]
    motors = quadrotor.motors(np, split, tuple(quadrotor.PHYSICS.values()))
    return np.max(motors, axis=0)


def _space(figure: Any, box: Box) -> Any:
    """A quiet cube."""
    axes = figure.add_axes(box, projection="3d", computed_zorder=False)
    axes.set(xlim=(-SPACE, SPACE), ylim=(-SPACE, SPACE), zlim=(-SPACE, SPACE))
    axes.set_box_aspect((1, 1, 0.9), zoom=1.0)
    for axis, label in ((axes.xaxis, "x [m]"), (axes.yaxis, "y [m]"), (axes.zaxis, "z [m]")):
        axis.set_pane_color((1, 1, 1, 0))
        axis.line.set_color(style.MUTED)
        axis._axinfo["grid"]["color"] = style.FAINT
        axis.set_ticks([-1, 0, 1])
        axis.set_label_text(label)
        axis.label.set_color(style.MUTED)
    axes.tick_params(colors=style.MUTED, labelsize=8)
    return axes
