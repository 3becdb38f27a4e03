"""Surfaces of shapes against MuJoCo's sizes and volumes, and the page in the browser."""

from __future__ import annotations

import sys
import urllib.request

import mujoco
import numpy as np
import pytest
from robot_models import CART_DOUBLE_PENDULUM

import warpmpc as wm
from warpmpc.robots import load, view
from warpmpc.robots.shapes import surface

SHAPES = """
<mujoco>
  <asset><mesh name="wedge" vertex="0 0 0  1 0 0  0 1 0  0 0 1"/></asset>
  <worldbody>
    <geom type="sphere" size="0.3"/>
    <geom type="capsule" size="0.2 0.5"/>
    <geom type="cylinder" size="0.2 0.5"/>
    <geom type="ellipsoid" size="0.2 0.3 0.4"/>
    <geom type="box" size="0.2 0.3 0.4"/>
    <geom type="mesh" mesh="wedge"/>
    <geom type="plane" size="1 1 1"/>
  </worldbody>
</mujoco>
"""
VOLUMES = (
    4 / 3 * np.pi * 0.3**3,
    np.pi * 0.2**2 * 1.0 + 4 / 3 * np.pi * 0.2**3,
    np.pi * 0.2**2 * 1.0,
    4 / 3 * np.pi * 0.2 * 0.3 * 0.4,
    8 * 0.2 * 0.3 * 0.4,
    1 / 6,
)


@pytest.mark.parametrize(("geom", "volume"), list(enumerate(VOLUMES)))
def test_surfaces_are_closed_and_face_outwards(geom, volume):
    """Volume by the divergence theorem; polyhedra in round shapes are a little smaller."""
    vertices, faces = surface(mujoco.MjModel.from_xml_string(SHAPES), geom)
    a, b, c = (vertices[faces[:, i]] for i in range(3))
    found = np.einsum("ij,ij->i", a, np.cross(b, c)).sum() / 6
    assert 0.94 * volume < found < 1.0001 * volume
    assert np.abs(np.cross(b - a, c - a).sum(axis=0)).max() < 1e-9  # closed


def test_planes_have_no_surface():
    assert surface(mujoco.MjModel.from_xml_string(SHAPES), 6) is None


def swing(robot, batch, steps=5):
    rng = np.random.default_rng(0)
    return robot.q0 + rng.normal(size=(batch, steps, robot.nq))


@pytest.mark.filterwarnings("ignore")  # event loops of viser warn
def test_page_shows_where_bodies_are():
    pytest.importorskip("viser", reason="viser is not installed: pip install 'warpmpc[view]'")
    robot = load(CART_DOUBLE_PENDULUM)
    q = swing(robot, 3)
    viewer = view(robot, q, dt=0.01, spacing=2.0)
    try:
        with urllib.request.urlopen(viewer.url, timeout=20) as page:
            assert page.status == 200
        model, data = robot.mujoco_model, mujoco.MjData(robot.mujoco_model)
        moving = sorted({int(body) for body in model.geom_bodyid})
        for step in (0, 4, 2):
            viewer.show(step)
            assert viewer.step == step
            for b in range(3):
                data.qpos[:] = q[b, step]
                mujoco.mj_kinematics(model, data)
                for body in moving:
                    position, quaternion = viewer.pose(b, body)
                    np.testing.assert_allclose(position, data.xpos[body], atol=1e-6)
                    np.testing.assert_allclose(quaternion, data.xquat[body], atol=1e-6)
        assert viewer.steps == 5
        with pytest.raises(wm.ProblemError, match="from 0 to 4"):
            viewer.show(5)
    finally:
        viewer.close()


def test_wrong_trajectories():
    robot = load(CART_DOUBLE_PENDULUM)
    with pytest.raises(wm.ProblemError, match=r"\[batch, steps, 3\]"):
        view(robot, np.zeros((2, 2)))
    with pytest.raises(wm.ProblemError, match="at most 64"):
        view(robot, np.zeros((65, 2, 3)))
    with pytest.raises(wm.ProblemError, match="not finite"):
        view(robot, np.full((1, 2, 3), np.nan))


def test_without_viser_it_is_said(monkeypatch):
    monkeypatch.setitem(sys.modules, "viser", None)
    with pytest.raises(wm.SettingsError, match=r"pip install 'warpmpc\[view\]'"):
        view(load(CART_DOUBLE_PENDULUM), np.zeros((2, 3)))
