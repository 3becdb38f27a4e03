"""`view`: trajectories of whole batches in the browser, by viser (extra `view`).

Reads: a robot and its coordinates over time.  Produces: a server on this machine that shows one or
more instances, with a slider for time.
"""

from __future__ import annotations

import threading
import time
from typing import Any

import numpy as np

from warpmpc._errors import ProblemError, SettingsError
from warpmpc.robots.reading import import_mujoco
from warpmpc.robots.robot import Robot
from warpmpc.robots.shapes import surface

MOST = 64  # instances that a browser is asked to draw


class Viewer:
    """A page that plays trajectories; it lives until `close`.

    Attributes:
        url: Where the page is.
        step: The step that is shown.
    """

    def __init__(self, robot: Robot, q: Any, *, dt: float, port: int, spacing: float):
        """Starts the server; see `view`."""
        self._poses = _poses(robot, _batch(robot, q))
        self._server = _server(port)
        self.url, self.step = f"http://127.0.0.1:{self._server.get_port()}", 0
        self._frames = self._draw(robot.mujoco_model, spacing)
        self._controls = self._add_controls(dt)
        self._closed, self._dt = threading.Event(), dt
        self.show(0)
        threading.Thread(target=self._play, daemon=True).start()

    @property
    def steps(self) -> int:
        """Number of steps of the trajectories."""
        return self._poses[0].shape[1]

    def show(self, step: int) -> None:
        """Moves all instances to a step."""
        if not 0 <= step < self.steps:
            raise ProblemError(f"step must be from 0 to {self.steps - 1}, got {step!r}.")
        positions, quaternions = (part[:, step] for part in self._poses)
        with self._server.atomic():
            for b, frames in enumerate(self._frames):
                for body, frame in frames.items():
                    frame.position, frame.wxyz = positions[b, body], quaternions[b, body]
        self.step = step

    def pose(self, instance: int, body: int) -> tuple[np.ndarray, np.ndarray]:
        """Position and quaternion (w first) of a body of MuJoCo's model, as the page has them."""
        frame = self._frames[instance][body]
        return np.array(frame.position), np.array(frame.wxyz)

    def close(self) -> None:
        """Stops the server."""
        self._closed.set()
        self._server.stop()

    def _draw(self, model: Any, spacing: float) -> list[dict[int, Any]]:
        """Adds everything to the page; returns the frames of bodies that move, per instance."""
        scene, drawn = self._server.scene, {i: surface(model, i) for i in range(model.ngeom)}
        scene.add_grid("/floor", 20.0, 20.0, cell_size=0.5)
        batch = len(self._poses[0])
        side = int(np.ceil(np.sqrt(batch)))
        frames: list[dict[int, Any]] = []
        for b in range(batch):
            at = (spacing * (b % side), spacing * (b // side), 0.0)
            scene.add_frame(f"/{b}", show_axes=False, position=at)
            bodies = sorted({int(model.geom_bodyid[i]) for i, shape in drawn.items() if shape})
            frames.append(
                {body: scene.add_frame(f"/{b}/{body}", show_axes=False) for body in bodies}
            )
            for i, shape in drawn.items():
                if shape is None:
                    continue
                *color, opacity = np.array(model.geom_rgba[i])
                scene.add_mesh_simple(
                    f"/{b}/{int(model.geom_bodyid[i])}/{i}",
                    np.asarray(shape[0], dtype=np.float32),
                    shape[1],
                    color=tuple(int(255 * part) for part in color),
                    opacity=float(opacity) if opacity < 1 else None,
                    position=np.array(model.geom_pos[i]),
                    wxyz=np.array(model.geom_quat[i]),
                )
        return frames

    def _add_controls(self, dt: float) -> dict[str, Any]:
        gui = self._server.gui
        slider = gui.add_slider("step", 0, max(self.steps - 1, 1), 1, 0)
        slider.on_update(lambda _: self.show(min(int(slider.value), self.steps - 1)))
        playing = gui.add_checkbox("play", initial_value=False)
        speed = gui.add_slider("speed", 0.1, 4.0, 0.1, 1.0)
        gui.add_markdown(f"{self.steps} steps of {dt:g} s")
        return {"slider": slider, "playing": playing, "speed": speed}

    def _play(self) -> None:
        while not self._closed.is_set():
            if self._controls["playing"].value:
                # The slider shows the step, as if it had been moved.
                self._controls["slider"].value = (self.step + 1) % self.steps
            time.sleep(self._dt / max(float(self._controls["speed"].value), 0.1))


def view(
    robot: Robot, q: Any, *, dt: float = 0.05, port: int = 8080, spacing: float = 0.0
) -> Viewer:
    """Shows trajectories in the browser, on a page of this machine.

    ```python
    viewer = wm.robots.view(robot, loop.x[:16, :, : robot.nq], spacing=1.0)
    print(viewer.url)
    ```

    Args:
        robot: The robot.
        q: Coordinates ``[steps, nq]``, or of a batch ``[batch, steps, nq]``, at most 64 of it.
        dt: Time between two steps.
        port: Port of the server; the next free one if it is taken.
        spacing: Distance between neighbours in a square of instances; 0: all in one place.
    """
    return Viewer(robot, q, dt=dt, port=port, spacing=spacing)


def _batch(robot: Robot, q: Any) -> np.ndarray:
    q = np.asarray(q, dtype=np.float64)
    q = q[None] if q.ndim == 2 else q
    if q.ndim != 3 or q.shape[2] != robot.nq or 0 in q.shape:
        raise ProblemError(
            f"q must have the shape [steps, {robot.nq}] or [batch, steps, {robot.nq}], got "
            f"{list(q.shape)}."
        )
    if len(q) > MOST:
        raise ProblemError(f"The viewer shows at most {MOST} instances, got {len(q)}; pass some.")
    if not np.isfinite(q).all():
        raise ProblemError("q has entries that are not finite; show only instances without.")
    return np.stack([robot.to_mujoco(trajectory) for trajectory in q])


def _poses(robot: Robot, qpos: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Positions and quaternions of all bodies ``[batch, steps, bodies, 3 or 4]``."""
    mujoco, model = import_mujoco(), robot.mujoco_model
    data = mujoco.MjData(model)
    positions = np.zeros((*qpos.shape[:2], model.nbody, 3))
    quaternions = np.zeros((*qpos.shape[:2], model.nbody, 4))
    for at in np.ndindex(qpos.shape[:2]):
        data.qpos[:] = qpos[at]
        mujoco.mj_kinematics(model, data)
        positions[at], quaternions[at] = data.xpos, data.xquat
    return positions, quaternions


def _server(port: int) -> Any:
    try:
        import viser  # pyright: ignore[reportMissingImports]
    except ImportError as error:
        raise SettingsError(
            "The viewer needs the package viser: pip install 'warpmpc[view]'."
        ) from error
    # Only this machine sees the page.
    return viser.ViserServer(host="127.0.0.1", port=port, verbose=False)
