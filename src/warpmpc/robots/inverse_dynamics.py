"""Inverse dynamics: torques for given accelerations (recursive Newton-Euler), and the mass matrix.

All accelerations are those of points, not spatial ones.  With the acceleration a of the origin of a
link and the matrix ``U = skew(alpha) + w w' - (w'w) 1``, a point r of it has the acceleration
``a + U r``, and with the pseudo-inertia J of the link ``[U a] J`` holds force and moment.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import casadi as ca

from warpmpc.robots.motion import Placement, centrifugal, direction, placements
from warpmpc.robots.rotations import axial, skew
from warpmpc.robots.tree import WORLD, Tree


@dataclass(frozen=True, eq=False)
class Wrench:
    """A force and a moment about the origin of a link, in the axes of the link."""

    force: ca.SX
    moment: ca.SX

    def __add__(self, other: Wrench) -> Wrench:
        """Both wrenches as one."""
        return Wrench(self.force + other.force, self.moment + other.moment)

    def __sub__(self, other: Wrench) -> Wrench:
        """This one without the other."""
        return Wrench(self.force - other.force, self.moment - other.moment)

    def up(self, place: Placement) -> Wrench:
        """The same wrench about the origin of the parent."""
        force = place.up(self.force)
        return Wrench(force, place.up(self.moment) + ca.cross(place.shift, force))


@dataclass(frozen=True, eq=False)
class Motion:
    """Motion of a link in its own axes.

    Attributes:
        omega: Angular velocity.
        alpha: Angular acceleration.
        linear: Acceleration of the origin, relative to free fall.
    """

    omega: ca.SX
    alpha: ca.SX
    linear: ca.SX

    @cached_property
    def field(self) -> ca.SX:
        """The matrix U that gives accelerations of points."""
        return skew(self.alpha) + centrifugal(self.omega)


def inertial_wrench(inertia: ca.SX, field: ca.SX, linear: ca.SX) -> Wrench:
    """What moves a link as wanted.

    Args:
        inertia: Pseudo-inertia of the link.
        field: The matrix U.
        linear: Acceleration of the origin.
    """
    product = ca.horzcat(field, linear) @ inertia
    return Wrench(product[:, 3], axial(product[:, :3]))


def inverse_dynamics(
    tree: Tree, q: ca.SX, v: ca.SX, a: ca.SX, applied: Mapping[int, Wrench]
) -> ca.SX:
    """Torques without passive forces.

    Args:
        tree: The robot.
        q: Coordinates.
        v: Velocities.
        a: Accelerations: the time derivatives of v.
        applied: External wrenches by link.
    """
    places = placements(tree, q)
    still = ca.SX.zeros(3)
    world = Motion(still, still, ca.SX(ca.DM(-tree.gravity)))
    motions: list[Motion] = []
    wrenches: list[Wrench] = []
    for i, link in enumerate(tree.links):
        before = world if link.parent == WORLD else motions[link.parent]
        own = tree.joints[i].v
        motion = _moved(tree, i, places[i], before, (v[own], a[own]))
        wrench = inertial_wrench(_inertia(tree, i), motion.field, motion.linear)
        motions.append(motion)
        wrenches.append(wrench - applied[i] if i in applied else wrench)
    torques: list[ca.SX] = [ca.SX(0, 1)] * len(tree.links)
    for i in reversed(range(len(tree.links))):
        link, joint = tree.links[i], tree.joints[i]
        torques[i] = _torque(tree, i, places[i], wrenches[i]) + joint.armature * a[joint.v]
        if link.parent != WORLD:
            wrenches[link.parent] = wrenches[link.parent] + wrenches[i].up(places[i])
    return ca.vertcat(*torques)


def joint_torque(tree: Tree, i: int, wrench: Wrench) -> ca.SX:
    """What a wrench on link i does along the velocities of its hinge, slide or ball joint."""
    kind = tree.joints[i].kind
    if kind == "hinge":
        return ca.dot(direction(tree, i), wrench.moment)
    if kind == "slide":
        return ca.dot(direction(tree, i), wrench.force)
    return wrench.moment


def _torque(tree: Tree, i: int, place: Placement, wrench: Wrench) -> ca.SX:
    """The force of any joint; that of a free joint is in the axes of the world."""
    if tree.joints[i].kind == "free":
        return ca.vertcat(place.up(wrench.force), wrench.moment)
    return joint_torque(tree, i, wrench)


def mass_matrix(tree: Tree, q: ca.SX) -> ca.SX:
    """The mass matrix, with structural zeros between branches, by composite bodies."""
    places = placements(tree, q)
    composite = [_inertia(tree, i) for i in range(len(tree.links))]
    mass = ca.SX(tree.nv, tree.nv)
    for i in reversed(range(len(tree.links))):
        parent, own = tree.links[i].parent, tree.joints[i].v
        for column, wrench in enumerate(_unit_wrenches(tree, i, places[i], composite[i])):
            index = own.start + column
            mass[own, index] = _torque(tree, i, places[i], wrench)
            mass[index, index] += tree.joints[i].armature
            below, at = i, parent
            while at != WORLD:
                wrench = wrench.up(places[below])
                rows = _torque(tree, at, places[at], wrench)
                mass[tree.joints[at].v, index] = rows
                mass[index, tree.joints[at].v] = rows.T
                below, at = at, tree.links[at].parent
        if parent != WORLD:
            composite[parent] = composite[parent] + _up_inertia(places[i], composite[i])
    return ca.sparsify(mass)


def _moved(
    tree: Tree, i: int, place: Placement, before: Motion, rates: tuple[ca.SX, ca.SX]
) -> Motion:
    """Motion of link i from that of its parent and the rates of its joint.

    Args:
        tree: The robot.
        i: The link.
        place: Its pose in the frame of the parent.
        before: Motion of the parent.
        rates: Velocity and acceleration of the joint.
    """
    velocity, acceleration = rates
    kind = tree.joints[i].kind
    if kind == "free":  # the linear velocity is that of the origin, in the world
        linear = place.down(before.linear + acceleration[:3])
        return Motion(velocity[3:], acceleration[3:], linear)
    omega, alpha = place.down(before.omega), place.down(before.alpha)
    linear = place.down(before.linear + before.field @ place.shift)
    if kind == "slide":
        along = direction(tree, i)
        coriolis = 2 * ca.cross(omega, along * velocity)
        return Motion(omega, alpha, linear + coriolis + along * acceleration)
    if kind == "hinge":
        velocity, acceleration = (direction(tree, i) * rate for rate in rates)
    alpha = alpha + ca.cross(omega, velocity) + acceleration
    return Motion(omega + velocity, alpha, linear)


def _inertia(tree: Tree, i: int) -> ca.SX:
    return ca.sparsify(ca.SX(ca.DM(tree.links[i].inertia)))


def _unit_wrenches(tree: Tree, i: int, place: Placement, inertia: ca.SX) -> list[Wrench]:
    """Inertial wrenches for unit accelerations of joint i, everything at rest."""
    kind, still = tree.joints[i].kind, ca.SX.zeros(3)
    if kind == "slide":
        return [inertial_wrench(inertia, ca.SX(3, 3), direction(tree, i))]
    axes = [direction(tree, i)] if kind == "hinge" else ca.horzsplit(ca.SX.eye(3))
    turning = [inertial_wrench(inertia, skew(ca.densify(axis)), still) for axis in axes]
    if kind != "free":
        return turning
    shifts = ca.horzsplit(place.down(ca.SX.eye(3)))
    return [inertial_wrench(inertia, ca.SX(3, 3), shift) for shift in shifts] + turning


def _up_inertia(place: Placement, inertia: ca.SX) -> ca.SX:
    """A pseudo-inertia in the frame of the parent."""
    second, first, mass = inertia[:3, :3], inertia[:3, 3], inertia[3, 3]
    second, first, shift = place.up_symmetric(second), place.up(first), place.shift
    mixed = (first + mass / 2 * shift) @ shift.T
    second = symmetric_sum(second, mixed)
    first = first + mass * shift
    return ca.blockcat([[second, first], [first.T, mass]])


def symmetric_sum(matrix: ca.SX, half: ca.SX) -> ca.SX:
    """A symmetric matrix plus a matrix plus the transposed of that."""
    total = matrix + half + half.T
    return ca.tril2symm(ca.tril(total))
