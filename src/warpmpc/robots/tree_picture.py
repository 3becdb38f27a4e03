"""The tree of a robot as lines and points in a figure of matplotlib."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from warpmpc.robots.reading import import_mujoco
from warpmpc.robots.robot import Robot

if TYPE_CHECKING:
    from matplotlib.figure import Figure

DPI = 88


def new_figure(size: tuple[int, int], dpi: int) -> Figure:
    """An empty figure of a size in pixels."""
    from warpmpc.viz.style import new_figure as empty

    return empty(size[0] / dpi, size[1] / dpi)


class TreeScene:
    """Bodies as lines from their parents, long geometries as thick lines, joints as points."""

    def __init__(self, robot: Robot, qpos: np.ndarray, size: tuple[int, int]) -> None:
        """A scene.

        Args:
            robot: The robot.
            qpos: Trajectory in MuJoCo's coordinates, ``[steps, nq]``.
            size: Width and height in pixels.
        """
        from warpmpc.viz.style import ACCENT, MUTED, VARIABLE

        self._model = robot.mujoco_model
        self._data = import_mujoco().MjData(self._model)
        self._qpos = qpos
        self.figure = new_figure(size, DPI)
        axes: Any = self.figure.add_subplot(projection="3d")
        self._axes = axes
        (self._bones,) = axes.plot([], [], [], color=MUTED, linewidth=1.5)
        (self._shapes,) = axes.plot([], [], [], color=VARIABLE, linewidth=5, alpha=0.7)
        (self._joints,) = axes.plot([], [], [], "o", color=ACCENT, markersize=4)
        self._set_box()
        self.show(0)

    def show(self, step: int) -> None:
        """Moves everything to a step."""
        bones, shapes, joints = self._lines(self._qpos[step])
        for line, points in ((self._bones, bones), (self._shapes, shapes), (self._joints, joints)):
            line.set_data_3d(*points.T)

    def show_still(self) -> None:
        """Shows the last step, and faint lines where the robot was."""
        for step in np.linspace(0, len(self._qpos) - 1, 6).astype(int)[:-1].tolist():
            for points in self._lines(self._qpos[step])[:2]:
                self._axes.plot(*points.T, color=self._bones.get_color(), alpha=0.25)
        self.show(-1)

    def _set_box(self) -> None:
        """Equal axes around all that the trajectory reaches."""
        some = np.linspace(0, len(self._qpos) - 1, min(len(self._qpos), 20)).astype(int).tolist()
        points = np.concatenate([part for step in some for part in self._lines(self._qpos[step])])
        lower, upper = np.nanmin(points, axis=0), np.nanmax(points, axis=0)
        middle, half = (lower + upper) / 2, max((upper - lower).max() / 2, 0.1)
        for name, at in zip("xyz", middle, strict=True):
            getattr(self._axes, f"set_{name}lim")(at - half, at + half)
            getattr(self._axes, f"set_{name}label")(f"{name} [m]")
        self._axes.set_box_aspect((1, 1, 1))

    def _lines(self, qpos: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Bones, shapes and joints; NaN rows separate the lines."""
        mujoco, model, data = import_mujoco(), self._model, self._data
        data.qpos[:] = qpos
        mujoco.mj_kinematics(model, data)
        gap = np.full((1, 3), np.nan)
        bones, shapes = [gap], [gap]
        for body in range(1, model.nbody):
            parent = model.body_parentid[body]
            if parent:
                bones += [data.xpos[[parent, body]], gap]
        long = (int(mujoco.mjtGeom.mjGEOM_CAPSULE), int(mujoco.mjtGeom.mjGEOM_CYLINDER))
        for geom in range(model.ngeom):
            center = data.geom_xpos[geom]
            if int(model.geom_type[geom]) in long:
                half = data.geom_xmat[geom].reshape(3, 3)[:, 2] * model.geom_size[geom, 1]
                shapes += [np.stack([center - half, center + half]), gap]
            elif model.geom_bodyid[geom]:
                bones += [np.stack([data.xpos[model.geom_bodyid[geom]], center]), gap]
        return np.concatenate(bones), np.concatenate(shapes), data.xanchor.copy()
