"""Coordinates and velocities: how they are tied, integrated and translated to those of MuJoCo.

Velocities are always MuJoCo's: the linear velocity of a free joint is that of the origin of its
body in the axes of the world, angular velocities of ball and free joints are in the axes of the
body.  Coordinates are MuJoCo's too (position, quaternion with w first) unless the orientation is
"zyx": then yaw, pitch and roll stand in the place of the quaternion.
"""

from __future__ import annotations

from typing import Any

import casadi as ca
import numpy as np

from warpmpc.robots.rotations import quaternion_product, rotation_step, zyx_rates
from warpmpc.robots.tree import Tree


def coordinate_rates(tree: Tree, q: ca.SX, v: ca.SX) -> ca.SX:
    """Time derivatives of the coordinates."""
    rates: list[ca.SX] = []
    for joint in tree.joints:
        own, speed = q[joint.q], v[joint.v]
        if joint.kind in ("hinge", "slide"):
            rates.append(speed)
            continue
        if joint.kind == "free":
            rates.append(speed[:3])
        angular, turned = speed[-3:], own[3:] if joint.kind == "free" else own
        if tree.orientation == "zyx":
            rates.append(zyx_rates(turned, angular))
        else:
            rates.append(quaternion_product(turned, ca.vertcat(0, angular / 2)))
    return ca.vertcat(*rates)


def integrated(tree: Tree, q: ca.SX, v: ca.SX, dt: ca.SX) -> ca.SX:
    """Coordinates after a time with constant velocities, as `mj_integratePos` has them.

    Quaternions keep their length.  Angles of "zyx" make an Euler step.
    """
    if tree.orientation == "zyx":
        return q + dt * coordinate_rates(tree, q, v)
    after: list[ca.SX] = []
    for joint in tree.joints:
        own, speed = q[joint.q], v[joint.v]
        if joint.kind in ("hinge", "slide"):
            after.append(own + dt * speed)
            continue
        if joint.kind == "free":
            after.append(own[:3] + dt * speed[:3])
        turned = own[3:] if joint.kind == "free" else own
        after.append(quaternion_product(turned, rotation_step(dt * speed[-3:])))
    return ca.vertcat(*after)


def turned_coordinates(tree: Tree) -> list[tuple[slice, slice]]:
    """Where orientations stand: in coordinates of the tree, and in those of MuJoCo."""
    found: list[tuple[slice, slice]] = []
    shift = 0
    for joint in tree.joints:
        if joint.kind not in ("ball", "free"):
            continue
        n_own = 4 if tree.orientation == "quaternion" else 3
        begin = joint.q.stop - n_own
        found.append((slice(begin, begin + n_own), slice(begin + shift, begin + shift + 4)))
        shift += 4 - n_own
    return found


def to_mujoco(tree: Tree, q: Any) -> np.ndarray:
    """Coordinates ``[..., nq]`` as `qpos` of MuJoCo, in float64."""
    q = np.asarray(q, dtype=np.float64)
    if tree.orientation == "quaternion":
        return q
    parts: list[np.ndarray] = []
    done = 0
    for own, _ in turned_coordinates(tree):
        parts += [q[..., done : own.start], _quaternions(q[..., own])]
        done = own.stop
    return np.concatenate([*parts, q[..., done:]], axis=-1)


def from_mujoco(tree: Tree, qpos: Any) -> np.ndarray:
    """`qpos` of MuJoCo ``[..., nq]`` as coordinates of the tree, in float64."""
    qpos = np.asarray(qpos, dtype=np.float64)
    if tree.orientation == "quaternion":
        return qpos
    parts: list[np.ndarray] = []
    done = 0
    for _, theirs in turned_coordinates(tree):
        parts += [qpos[..., done : theirs.start], _angles(qpos[..., theirs])]
        done = theirs.stop
    return np.concatenate([*parts, qpos[..., done:]], axis=-1)


def _quaternions(angles: np.ndarray) -> np.ndarray:
    """Quaternions of yaw, pitch and roll."""
    (cy, cp, cr), (sy, sp, sr) = np.moveaxis(
        np.stack([np.cos(angles / 2), np.sin(angles / 2)]), -1, 1
    )
    parts = [
        cr * cp * cy + sr * sp * sy,
        sr * cp * cy - cr * sp * sy,
        cr * sp * cy + sr * cp * sy,
        cr * cp * sy - sr * sp * cy,
    ]
    return np.stack(parts, axis=-1)


def _angles(quaternions: np.ndarray) -> np.ndarray:
    """Yaw, pitch and roll of quaternions of any length but zero."""
    length = np.linalg.norm(quaternions, axis=-1, keepdims=True)
    w, x, y, z = np.moveaxis(quaternions / length, -1, 0)
    yaw = np.arctan2(2 * (w * z + x * y), 1 - 2 * (y * y + z * z))
    pitch = np.arcsin(np.clip(2 * (w * y - x * z), -1, 1))
    roll = np.arctan2(2 * (w * x + y * z), 1 - 2 * (x * x + y * y))
    return np.stack([yaw, pitch, roll], axis=-1)
