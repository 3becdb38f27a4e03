"""A humanoid of point masses: its joints, where its points are, and its equations of motion.

Produces: `Motion` of all links for SX coordinates, and `inverse_dynamics`.  Lengths and masses are
those of the MIT humanoid (PROBLEMS.md, section 5); links are points at their centers of mass, only
the base has an inertia.  Vectors are in the frame of the base unless they are said to be in the
world.  Coordinates: q is position, roll, pitch and yaw of the base, then 18 joints; dq is angular
and linear velocity of the base, then the rates of the joints.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import casadi as ca

GRAVITY = 9.81
BASE_MASS, BASE_COM = 8.52, (0.009896, 0.004771, 0.100522)
BASE_INERTIA = (0.172699, 0.105949, 0.091906)
BASE = -1
N_JOINTS, N_Q = 18, 24


@dataclass(frozen=True)
class Joint:
    """One joint and the link behind it.

    Attributes:
        parent: Joint before it, or `BASE`.
        axis: 0, 1 or 2 for x, y or z.
        origin: Origin of the joint in the frame of the parent.
        pitch: Fixed rotation about y before the joint.
        mass: Mass of the link.
        com: Its center, in the frame of the joint.
    """

    parent: int
    axis: int
    origin: tuple[float, float, float]
    pitch: float
    mass: float
    com: tuple[float, float, float]


def _leg(first: int, side: float) -> list[Joint]:
    """Hip yaw, roll and pitch, knee, ankle; side is 1 on the left and -1 on the right."""
    return [
        Joint(BASE, 2, (-0.00565, 0.082 * side, -0.05735), -0.174533, 0.84563, (-0.065, 0, -0.063)),
        Joint(first, 0, (-0.06435, 0.0, -0.07499), 0.436332, 1.20868, (0.067, -0.013 * side, 0.0)),
        Joint(
            first + 1,
            1,
            (0.071, -0.0018375 * side, 0.0),
            -0.261799,
            2.64093,
            (0.013, 0.027 * side, -0.096),
        ),
        Joint(first + 2, 1, (0.0, 0.0, -0.267), 0.0, 0.35435, (0.005, 0.0015 * side, -0.132)),
        Joint(first + 3, 1, (0.0, 0.0, -0.2785), 0.0, 0.280951, (0.0226, 0.0, -0.0128)),
    ]


def _arm(first: int, side: float) -> list[Joint]:
    """Shoulder pitch, roll and yaw, elbow."""
    return [
        Joint(BASE, 1, (0.01346, 0.17608 * side, 0.24657), 0.0, 0.788506, (0.009, 0.053 * side, 0)),
        Joint(first, 0, (0.0, 0.0575 * side, 0.0), 0.0, 0.80125, (0.001, 0.0, -0.082)),
        Joint(first + 1, 2, (0.0, 0.0, -0.1025), 0.0, 0.905588, (0.0, -0.017 * side, -0.06)),
        Joint(first + 2, 1, (0.0, 0.0, -0.1455), 0.0, 0.34839, (-0.006, 0.0, -0.0427)),
    ]


JOINTS = (*_leg(0, -1.0), *_leg(5, 1.0), *_arm(10, -1.0), *_arm(14, 1.0))
MASS = BASE_MASS + sum(joint.mass for joint in JOINTS)


def rotation(axis: int, angle: ca.SX | float) -> ca.SX:
    """Rotation about a coordinate axis, child to parent."""
    c, s = ca.cos(angle), ca.sin(angle)
    i, j = (axis + 1) % 3, (axis + 2) % 3
    matrix = ca.SX.eye(3)
    matrix[i, i], matrix[j, j], matrix[i, j], matrix[j, i] = c, c, -s, s
    return matrix


def base_rotation(q: ca.SX) -> ca.SX:
    """Base to world: yaw, then pitch, then roll."""
    return rotation(2, q[5]) @ rotation(1, q[4]) @ rotation(0, q[3])


@dataclass(frozen=True, eq=False)
class Motion:
    """Where the frames of all joints are and how they move, one entry per joint.

    Attributes:
        R: Base to world.
        base: Position of the base in the world.
        frames: Rotation of each joint's frame.
        positions: Its origin.
        spins: Angular velocity of the link.
        velocities: Velocity of the origin.
    """

    R: ca.SX
    base: ca.SX
    frames: tuple[ca.SX, ...]
    positions: tuple[ca.SX, ...]
    spins: tuple[ca.SX, ...]
    velocities: tuple[ca.SX, ...]

    def point(self, joint: int, offset: Sequence[float]) -> ca.SX:
        """A point of a link in the world."""
        return self.base + self.R @ (self.positions[joint] + self.frames[joint] @ ca.SX(offset))

    def point_velocity(self, joint: int, offset: Sequence[float]) -> ca.SX:
        """Its velocity in the world."""
        arm = self.frames[joint] @ ca.SX(offset)
        return self.R @ (self.velocities[joint] + ca.cross(self.spins[joint], arm))


def motion(q: ca.SX, dq: ca.SX) -> Motion:
    """Frames and velocities of all links."""
    frames: list[ca.SX] = []
    positions: list[ca.SX] = []
    spins: list[ca.SX] = []
    velocities: list[ca.SX] = []
    for i, joint in enumerate(JOINTS):
        at_base = joint.parent == BASE
        frame = ca.SX.eye(3) if at_base else frames[joint.parent]
        spin = dq[:3] if at_base else spins[joint.parent]
        arm = frame @ ca.SX(joint.origin)
        frames.append(frame @ rotation(1, joint.pitch) @ rotation(joint.axis, q[6 + i]))
        positions.append(arm if at_base else positions[joint.parent] + arm)
        velocity = dq[3:6] if at_base else velocities[joint.parent]
        velocities.append(velocity + ca.cross(spin, arm))
        spins.append(spin + frames[i][:, joint.axis] * dq[6 + i])
    lists = (frames, positions, spins, velocities)
    return Motion(base_rotation(q), q[:3], *(tuple(part) for part in lists))


@dataclass(frozen=True, eq=False)
class Contact:
    """A force on a point of a link.

    Attributes:
        joint: The link.
        offset: Point in its frame.
        force: Force in the world frame.
    """

    joint: int
    offset: tuple[float, float, float]
    force: ca.SX


def inverse_dynamics(
    moving: Motion, dq: ca.SX, ddq: ca.SX, contacts: Sequence[Contact]
) -> tuple[ca.SX, ca.SX]:
    """Moment and force on the base (6) and torques of the joints (18) that the motion needs."""
    forces, moments, at_base, torques = _link_loads(moving, dq, ddq)
    for contact in contacts:
        force = moving.R.T @ contact.force
        arm = moving.frames[contact.joint] @ ca.SX(contact.offset)
        forces[contact.joint] -= force
        moments[contact.joint] -= ca.cross(arm, force)
    moment, total = at_base
    for i in reversed(range(N_JOINTS)):
        joint = JOINTS[i]
        torques[i] = ca.dot(moving.frames[i][:, joint.axis], moments[i])
        if joint.parent == BASE:
            moment += moments[i] + ca.cross(moving.positions[i], forces[i])
            total += forces[i]
        else:
            arm = moving.positions[i] - moving.positions[joint.parent]
            moments[joint.parent] += moments[i] + ca.cross(arm, forces[i])
            forces[joint.parent] += forces[i]
    return ca.vertcat(moment, total), ca.vertcat(*torques)


Loads = tuple[list[ca.SX], list[ca.SX], tuple[ca.SX, ca.SX], list[ca.SX]]


def _link_loads(moving: Motion, dq: ca.SX, ddq: ca.SX) -> Loads:
    """Forces and moments about the origins of all links, of the base, and room for the torques."""
    spin, up = dq[:3], moving.R.T @ ca.SX([0.0, 0.0, GRAVITY])
    turn, push = ddq[:3], ddq[3:6] + ca.cross(spin, dq[3:6]) + up
    com, inertia = ca.SX(BASE_COM), ca.SX(BASE_INERTIA)
    force = BASE_MASS * _accelerated(push, turn, spin, com)
    moment = ca.cross(com, force) + inertia * turn + ca.cross(spin, inertia * spin)
    turns: list[ca.SX] = []
    pushes: list[ca.SX] = []
    forces: list[ca.SX] = []
    moments: list[ca.SX] = []
    for i, joint in enumerate(JOINTS):
        at_base, parent = joint.parent == BASE, joint.parent
        before = spin if at_base else moving.spins[parent]
        turn_before, push_before = (turn, push) if at_base else (turns[parent], pushes[parent])
        start = 0 if at_base else moving.positions[parent]
        axis = moving.frames[i][:, joint.axis]
        pushes.append(_accelerated(push_before, turn_before, before, moving.positions[i] - start))
        swing = ca.cross(before, axis) * dq[6 + i]
        turns.append(turn_before + axis * ddq[6 + i] + swing)
        arm = moving.frames[i] @ ca.SX(joint.com)
        forces.append(joint.mass * _accelerated(pushes[i], turns[i], moving.spins[i], arm))
        moments.append(ca.cross(arm, forces[i]))
    return forces, moments, (moment, force), [ca.SX(0)] * N_JOINTS


def _accelerated(push: ca.SX, turn: ca.SX, spin: ca.SX, arm: ca.SX) -> ca.SX:
    """Acceleration of a point of a body, from that of another point."""
    return push + ca.cross(turn, arm) + ca.cross(spin, ca.cross(spin, arm))
