"""Pictures of robots, with and without OpenGL."""

from __future__ import annotations

import logging

import numpy as np
import pytest
from PIL import Image
from robot_models import CART_DOUBLE_PENDULUM, MODELS, PENDULUM

import warpmpc as wm
from warpmpc.robots import load, render

MODULE = "warpmpc.robots.drawing"


@pytest.fixture
def without_opengl(monkeypatch):
    """Contexts that no machine has."""
    monkeypatch.setattr(f"{MODULE}.CONTEXTS", ("mujoco.no_such_library",))


def swing(robot, steps=6):
    return robot.q0 + np.linspace(0, 1, steps)[:, None] * np.ones(robot.nq)


def frames_of(path):
    with Image.open(path) as image:
        frames = []
        for i in range(image.n_frames):
            image.seek(i)
            frames.append(np.asarray(image.convert("RGB"), dtype=float))
        return frames


@pytest.mark.parametrize("backend", ["auto", "tree"])
def test_animations_move(backend, tmp_path):
    robot = load(CART_DOUBLE_PENDULUM)
    path = render(robot, swing(robot), tmp_path / "cart.gif", backend=backend, size=(320, 240))
    frames = frames_of(path)
    assert len(frames) == 6
    assert frames[0].shape == (240, 320, 3)
    assert np.abs(frames[0] - frames[-1]).max() > 50
    assert frames[0].std() > 1


def test_without_opengl_the_tree_is_drawn(without_opengl, tmp_path, caplog):
    robot = load(MODELS["creature"])
    with caplog.at_level(logging.INFO, MODULE):
        path = render(robot, swing(robot, 3), tmp_path / "creature.gif")
    assert "the tree is drawn instead" in caplog.text
    assert len(frames_of(path)) == 3
    with pytest.raises(wm.SettingsError, match=r"MuJoCo cannot draw here: mujoco.no_such_library"):
        render(robot, swing(robot, 3), tmp_path / "creature.gif", backend="gl")


def test_pictures(tmp_path):
    robot = load(MODELS["free_body"], orientation="zyx")
    for name in ("a.png", "a.pdf"):
        path = render(robot, swing(robot), tmp_path / name, backend="tree")
        assert path.stat().st_size > 1000


def test_cameras_of_the_file(tmp_path):
    robot = load(PENDULUM.replace("<worldbody>", '<worldbody><camera name="side" pos="0 -2 1"/>'))
    render(robot, swing(robot, 2), tmp_path / "a.png", camera="side")
    with pytest.raises(wm.ProblemError, match=r"no camera 'top'; its cameras are \['side'\]"):
        render(robot, swing(robot, 2), tmp_path / "a.png", camera="top")


def test_films_need_ffmpeg(monkeypatch, tmp_path):
    from matplotlib.animation import FFMpegWriter

    robot = load(PENDULUM)
    if FFMpegWriter.isAvailable():
        film = render(robot, swing(robot), tmp_path / "a.mp4", backend="tree")
        assert film.stat().st_size > 1000
    monkeypatch.setattr(FFMpegWriter, "isAvailable", lambda: False)
    with pytest.raises(wm.SettingsError, match=r"a\.mp4 needs the program ffmpeg"):
        render(robot, swing(robot), tmp_path / "a.mp4")


def test_errors(tmp_path):
    robot = load(PENDULUM)
    with pytest.raises(wm.SettingsError, match="must end in one of"):
        render(robot, swing(robot), tmp_path / "a.txt")
    with pytest.raises(wm.SettingsError, match="backend must be one of"):
        render(robot, swing(robot), tmp_path / "a.gif", backend="cv")
    with pytest.raises(wm.ProblemError, match=r"q must have the shape \[steps, 1\], got \[3\]"):
        render(robot, np.zeros(3), tmp_path / "a.gif")
    with pytest.raises(wm.ProblemError, match="not finite"):
        render(robot, np.full((2, 1), np.nan), tmp_path / "a.gif")
