"""Animations of robots: by MuJoCo off-screen where OpenGL exists, else the tree by matplotlib.

Reads: a robot and a trajectory of its coordinates.  Produces: a GIF, MP4, PNG, PDF or SVG file.
"""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol

import numpy as np

from warpmpc._errors import ProblemError, SettingsError
from warpmpc.robots.reading import import_mujoco
from warpmpc.robots.robot import Robot
from warpmpc.robots.tree_picture import TreeScene, new_figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure

logger = logging.getLogger(__name__)
BACKENDS = ("auto", "gl", "tree")
# MuJoCo's modules for contexts without a window, in the order in which they are tried.
CONTEXTS = ("mujoco.egl", "mujoco.osmesa", "mujoco.glfw")
DPI = 88


class Scene(Protocol):
    """A figure that can show any step of a trajectory."""

    figure: Figure

    def show(self, step: int) -> None:
        """Moves everything to a step."""
        ...

    def show_still(self) -> None:
        """Shows the trajectory in one picture."""
        ...


def render(
    robot: Robot,
    q: Any,
    path: str | Path,
    *,
    dt: float = 0.05,
    camera: str | None = None,
    size: tuple[int, int] = (480, 360),
    backend: Literal["auto", "gl", "tree"] = "auto",
) -> Path:
    """Writes an animation (.gif, .mp4) of a trajectory, or a picture (.png, .pdf, .svg) of its end.

    Args:
        robot: The robot.
        q: Coordinates ``[steps, nq]``.
        path: The file; MP4 needs the program ffmpeg.
        dt: Time between two steps.
        camera: Name of a camera of the file; None: one that looks at everything.
        size: Width and height in pixels.
        backend: "gl": MuJoCo's pictures; "tree": lines and points by matplotlib; "auto": the first
            where it works.
    """
    if backend not in BACKENDS:
        raise SettingsError(f"backend must be one of {BACKENDS}, got {backend!r}.")
    qpos = _trajectory(robot, q)
    path = _checked_path(path)
    if camera is not None and camera not in _cameras(robot):
        raise ProblemError(
            f"The robot has no camera {camera!r}; its cameras are {_cameras(robot)}."
        )
    if backend != "tree":
        try:
            with _offscreen(robot, size, camera) as picture:
                return _write(_PictureScene(qpos, picture, size), len(qpos) - 1, dt, path)
        except _NoOpenGLError as reason:
            if backend == "gl":
                raise SettingsError(f"MuJoCo cannot draw here: {reason}.") from reason
            logger.info("MuJoCo cannot draw here (%s); the tree is drawn instead.", reason)
    return _write(TreeScene(robot, qpos, size), len(qpos) - 1, dt, path)


class _NoOpenGLError(Exception):
    """No context without a window can be made on this machine."""


class _PictureScene:
    """Pictures of MuJoCo in a figure of their size."""

    def __init__(
        self,
        qpos: np.ndarray,
        picture: Callable[[np.ndarray], np.ndarray],
        size: tuple[int, int],
    ) -> None:
        """A scene.

        Args:
            qpos: Trajectory in MuJoCo's coordinates.
            picture: Draws one configuration.
            size: Width and height in pixels.
        """
        self.figure = new_figure(size, DPI)
        self._qpos, self._picture = qpos, picture
        axes = self.figure.add_axes((0, 0, 1, 1))
        axes.set_axis_off()
        self._image = axes.imshow(picture(qpos[0]), aspect="auto")

    def show(self, step: int) -> None:
        """Moves everything to a step."""
        self._image.set_data(self._picture(self._qpos[step]))

    def show_still(self) -> None:
        """Shows the end."""
        self.show(-1)


@contextmanager
def _offscreen(
    robot: Robot, size: tuple[int, int], camera: str | None
) -> Iterator[Callable[[np.ndarray], np.ndarray]]:
    """A function that draws a configuration; its OpenGL context lives as long as the block.

    Args:
        robot: The robot.
        size: Width and height in pixels.
        camera: Name of a camera.
    """
    mujoco, model = import_mujoco(), copy.copy(robot.mujoco_model)
    width, height = size
    gl, context = _contexts(model, size)
    try:
        data, option = mujoco.MjData(model), mujoco.MjvOption()
        scene, view = mujoco.MjvScene(model, maxgeom=10_000), mujoco.MjvCamera()
        if camera is None:
            mujoco.mjv_defaultFreeCamera(model, view)
        else:
            view.type = mujoco.mjtCamera.mjCAMERA_FIXED
            view.fixedcamid = _cameras(robot).index(camera)
        area = mujoco.MjrRect(0, 0, width, height)

        def picture(qpos: np.ndarray) -> np.ndarray:
            gl.make_current()
            data.qpos[:] = qpos
            mujoco.mj_forward(model, data)
            every = mujoco.mjtCatBit.mjCAT_ALL.value
            perturb = mujoco.MjvPerturb()
            mujoco.mjv_updateScene(model, data, option, perturb, view, every, scene)
            pixels = np.zeros((height, width, 3), dtype=np.uint8)
            mujoco.mjr_render(area, scene, context)
            mujoco.mjr_readPixels(pixels, None, area, context)
            return pixels[::-1]

        yield picture
    finally:
        context.free()
        gl.free()


def _contexts(model: Any, size: tuple[int, int]) -> tuple[Any, Any]:
    """An OpenGL context and MuJoCo's on it, from the first library that works."""
    mujoco = import_mujoco()
    # The file may request a smaller picture.
    buffer = model.vis.global_
    buffer.offwidth = max(buffer.offwidth, size[0])
    buffer.offheight = max(buffer.offheight, size[1])
    reasons: list[str] = []
    for name in CONTEXTS:
        try:
            gl = import_module(name).GLContext(*size)
        except Exception as reason:  # whatever a missing library or display raises
            reasons.append(f"{name}: {reason}")
            continue
        try:
            gl.make_current()
            context = mujoco.MjrContext(model, mujoco.mjtFontScale.mjFONTSCALE_100.value)
            mujoco.mjr_setBuffer(mujoco.mjtFramebuffer.mjFB_OFFSCREEN.value, context)
        except Exception as reason:
            gl.free()
            reasons.append(f"{name}: {reason}")
            continue
        return gl, context
    raise _NoOpenGLError("; ".join(reasons))


def _write(scene: Scene, steps: int, dt: float, path: Path) -> Path:
    from warpmpc.viz.scene import write_scene

    if path.suffix.lower() != ".mp4":
        return write_scene(scene, steps, dt, path)
    from matplotlib.animation import FFMpegWriter

    from warpmpc.viz.files import replaced

    writer = FFMpegWriter(fps=round(1 / dt))
    with replaced(path) as partial, writer.saving(scene.figure, str(partial), DPI):
        for step in range(steps + 1):
            scene.show(step)
            writer.grab_frame()
    return path


def _checked_path(path: str | Path) -> Path:
    from warpmpc.viz.scene import check_suffix
    from warpmpc.viz.style import require_matplotlib

    require_matplotlib()
    path = Path(path)
    if path.suffix.lower() != ".mp4":
        return check_suffix(path)
    from matplotlib.animation import FFMpegWriter

    if not FFMpegWriter.isAvailable():
        raise SettingsError(f"{path} needs the program ffmpeg; install it, or write a .gif.")
    return path


def _trajectory(robot: Robot, q: Any) -> np.ndarray:
    q = np.asarray(q, dtype=np.float64)
    if q.ndim != 2 or q.shape[1] != robot.nq or not len(q):
        raise ProblemError(f"q must have the shape [steps, {robot.nq}], got {list(q.shape)}.")
    if not np.all(np.isfinite(q)):
        raise ProblemError("q has entries that are not finite; draw only the steps before them.")
    return robot.to_mujoco(q)


def _cameras(robot: Robot) -> list[str]:
    model = robot.mujoco_model
    return [model.camera(i).name for i in range(model.ncam)]
