"""Surfaces of the shapes in a MuJoCo model as triangles, for viewers.

Reads: a model and the number of a geom.  Produces: vertices and faces in the geom's frame.  Planes,
height fields and distance fields have none.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from warpmpc.robots.reading import import_mujoco

AROUND, UP = 24, 12  # points of a round shape
Surface = tuple[np.ndarray, np.ndarray]


def surface(model: Any, geom: int) -> Surface | None:
    """Vertices ``[n, 3]`` and faces ``[m, 3]`` of a geom; None if it has no surface to draw."""
    kinds, size = import_mujoco().mjtGeom, np.array(model.geom_size[geom])
    kind = model.geom_type[geom]
    if kind == kinds.mjGEOM_MESH:
        mesh = model.geom_dataid[geom]
        first, count = model.mesh_vertadr[mesh], model.mesh_vertnum[mesh]
        face, faces = model.mesh_faceadr[mesh], model.mesh_facenum[mesh]
        vertices = np.array(model.mesh_vert[first : first + count])
        return vertices, np.array(model.mesh_face[face : face + faces], dtype=np.uint32)
    if kind == kinds.mjGEOM_BOX:
        return _box(size)
    if kind == kinds.mjGEOM_SPHERE:
        return _turned(*_circle(size[0], 0.0))
    if kind == kinds.mjGEOM_ELLIPSOID:
        vertices, faces = _turned(*_circle(1.0, 0.0))
        return vertices * size, faces
    if kind == kinds.mjGEOM_CAPSULE:
        return _turned(*_circle(size[0], size[1]))
    if kind == kinds.mjGEOM_CYLINDER:
        radius, half = size[:2]
        return _turned(np.array([0, radius, radius, 0]), np.array([-half, -half, half, half]))
    return None


def _circle(radius: float, half: float) -> tuple[np.ndarray, np.ndarray]:
    """Distance from the axis and height of a half circle, whose halves are moved apart."""
    angle = np.linspace(-np.pi / 2, np.pi / 2, UP)
    return radius * np.cos(angle), radius * np.sin(angle) + np.where(angle < 0, -half, half)


def _turned(distance: np.ndarray, height: np.ndarray) -> Surface:
    """The surface of a line that turns around the z axis, seen from outside."""
    angle = np.linspace(0, 2 * np.pi, AROUND, endpoint=False)
    n = len(distance)
    round_ = np.stack([np.cos(angle), np.sin(angle)], axis=1)
    flat = distance[:, None, None] * round_
    vertices = np.concatenate(
        [flat, np.broadcast_to(height[:, None, None], (n, AROUND, 1))], axis=2
    )
    here = np.arange(n * AROUND).reshape(n, AROUND)
    a, b = here[:-1].ravel(), np.roll(here, -1, axis=1)[:-1].ravel()
    c, d = here[1:].ravel(), np.roll(here, -1, axis=1)[1:].ravel()
    faces = np.concatenate([np.stack([a, b, d], axis=1), np.stack([a, d, c], axis=1)])
    return vertices.reshape(-1, 3), faces.astype(np.uint32)


def _box(half: np.ndarray) -> Surface:
    corners = np.array([[x, y, z] for x in (-1, 1) for y in (-1, 1) for z in (-1, 1)]) * half
    sides = ((0, 1, 3, 2), (4, 6, 7, 5), (0, 4, 5, 1), (2, 3, 7, 6), (0, 2, 6, 4), (1, 5, 7, 3))
    faces = [f for a, b, c, d in sides for f in ((a, b, c), (a, c, d))]
    return corners, np.array(faces, dtype=np.uint32)
