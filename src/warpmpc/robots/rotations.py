"""Rotations as values and as symbols, with structural zeros where an entry is always zero."""

from __future__ import annotations

from typing import Any

import casadi as ca
import numpy as np

TINY = 1e-13
# Powers in the series of sin(h)/h and cos(h): exact to rounding up to h = 2.
_TERMS = 11


def tidy(values: np.ndarray) -> np.ndarray:
    """Entries that are 0, 1 or -1 but for rounding, made exact."""
    values = np.array(values, dtype=np.float64)
    for exact in (-1.0, 0.0, 1.0):
        values[np.abs(values - exact) < TINY] = exact
    return values


def unit(axis: int) -> np.ndarray:
    """The unit vector of a coordinate axis."""
    return np.eye(3)[axis]


def planar(axis: int, cos: Any, sin: Any) -> ca.SX:
    """Rotation about a coordinate axis as a sparse matrix with five entries."""
    i, j = (axis + 1) % 3, (axis + 2) % 3
    rotation = ca.SX(3, 3)
    rotation[axis, axis] = 1
    rotation[i, i] = rotation[j, j] = cos
    rotation[i, j], rotation[j, i] = -sin, sin
    return rotation


def planar_values(axis: int, angle: float) -> np.ndarray:
    """Rotation about a coordinate axis as values."""
    i, j = (axis + 1) % 3, (axis + 2) % 3
    rotation = np.eye(3)
    rotation[i, i] = rotation[j, j] = np.cos(angle)
    rotation[i, j], rotation[j, i] = -np.sin(angle), np.sin(angle)
    return tidy(rotation)


def turns_to(direction: np.ndarray) -> tuple[int, float, tuple[np.ndarray, ...]]:
    """A coordinate axis, its sign, and few planar rotations that bring it to a direction.

    Args:
        direction: Unit vector.  Along a coordinate axis no rotation is needed, in a coordinate
            plane one, and two otherwise.
    """
    direction = tidy(direction)
    axis = int(np.argmax(np.abs(direction)))
    sign = 1.0 if direction[axis] > 0 else -1.0
    i, j = (axis + 1) % 3, (axis + 2) % 3
    along, one, other = sign * direction[[axis, i, j]]
    turns: list[np.ndarray] = []
    if one:  # in the plane of axis and i, which is turned about j
        turns.append(planar_values(j, np.arctan2(one, along)))
    if other:
        turns.append(planar_values(i, -np.arctan2(other, np.hypot(along, one))))
    return axis, sign, tuple(turns)


def quaternion_matrix(quaternion: ca.SX) -> ca.SX:
    """Rotation of a quaternion (w, x, y, z) of any length but zero."""
    w, x, y, z = ca.vertsplit(quaternion)
    scale = 2 / ca.sumsqr(quaternion)
    sx, sy, sz = scale * x, scale * y, scale * z
    xx, yy, zz = sx * x, sy * y, sz * z
    xy, xz, yz, wx, wy, wz = sx * y, sx * z, sy * z, sx * w, sy * w, sz * w
    return ca.vertcat(
        ca.horzcat(1 - (yy + zz), xy - wz, xz + wy),
        ca.horzcat(xy + wz, 1 - (xx + zz), yz - wx),
        ca.horzcat(xz - wy, yz + wx, 1 - (xx + yy)),
    )


def zyx_matrix(angles: ca.SX) -> ca.SX:
    """Rotation by yaw about z, then pitch about the new y, then roll about the new x."""
    yaw, pitch, roll = (
        planar(axis, ca.cos(angle), ca.sin(angle))
        for axis, angle in zip((2, 1, 0), ca.vertsplit(angles), strict=True)
    )
    return yaw @ pitch @ roll


def zyx_rates(angles: ca.SX, velocity: ca.SX) -> ca.SX:
    """Rates of yaw, pitch and roll for an angular velocity in the turned frame."""
    _, pitch, roll = ca.vertsplit(angles)
    x, y, z = ca.vertsplit(velocity)
    turning = ca.sin(roll) * y + ca.cos(roll) * z
    yaw_rate = turning / ca.cos(pitch)
    return ca.vertcat(yaw_rate, ca.cos(roll) * y - ca.sin(roll) * z, x + ca.sin(pitch) * yaw_rate)


def quaternion_product(left: ca.SX, right: ca.SX) -> ca.SX:
    """Product of quaternions (w, x, y, z)."""
    vector = left[0] * right[1:] + right[0] * left[1:] + ca.cross(left[1:], right[1:])
    return ca.vertcat(left[0] * right[0] - ca.dot(left[1:], right[1:]), vector)


def rotation_step(turn: ca.SX) -> ca.SX:
    """Quaternion of a rotation vector.

    A power series in the squared angle: it has no singular derivative at zero, as a norm has, and
    it is exact to rounding up to 4 rad.
    """
    square = ca.sumsqr(turn) / 4  # that of half the angle
    cosine, ratio = ca.SX(1), ca.SX(1)
    for k in range(_TERMS, 0, -1):
        cosine = 1 - square / ((2 * k - 1) * (2 * k)) * cosine
        ratio = 1 - square / ((2 * k) * (2 * k + 1)) * ratio
    return ca.vertcat(cosine, ratio / 2 * turn)


def skew(vector: ca.SX) -> ca.SX:
    """Matrix of the cross product with a vector."""
    x, y, z = ca.vertsplit(vector)
    return ca.vertcat(ca.horzcat(0, -z, y), ca.horzcat(z, 0, -x), ca.horzcat(-y, x, 0))


def axial(matrix: ca.SX) -> ca.SX:
    """The vector of the skew part, twice: ``axial(skew(v)) = 2 v``."""
    return ca.vertcat(
        matrix[2, 1] - matrix[1, 2], matrix[0, 2] - matrix[2, 0], matrix[1, 0] - matrix[0, 1]
    )


def symmetric(matrix: ca.SX) -> ca.SX:
    """A symmetric matrix whose upper triangle repeats the expressions of the lower one."""
    return ca.tril2symm(ca.tril(matrix))


def values_of_quaternion(quaternion: np.ndarray) -> np.ndarray:
    """Rotation of a unit quaternion (w, x, y, z) as values."""
    w, x, y, z = quaternion / np.linalg.norm(quaternion)
    return tidy(
        np.array(
            [
                [1 - 2 * (y * y + z * z), 2 * (x * y - w * z), 2 * (x * z + w * y)],
                [2 * (x * y + w * z), 1 - 2 * (x * x + z * z), 2 * (y * z - w * x)],
                [2 * (x * z - w * y), 2 * (y * z + w * x), 1 - 2 * (x * x + y * y)],
            ]
        )
    )
