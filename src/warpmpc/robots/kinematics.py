"""Poses, Jacobians, centre of mass and energies, in the axes of the world.

Reads: a tree, coordinates and velocities.  Produces: SX expressions with the conventions of MuJoCo.
"""

from __future__ import annotations

from dataclasses import dataclass

import casadi as ca
import numpy as np

from warpmpc.robots.inverse_dynamics import Wrench
from warpmpc.robots.motion import Placement, direction, placement, placements
from warpmpc.robots.rotations import skew
from warpmpc.robots.tree import WORLD, Frame, Tree


@dataclass(frozen=True, eq=False)
class Pose:
    """Where a frame is in the world.

    Attributes:
        position: Origin, 3 rows.
        rotation: Axes of the frame as columns, 3 x 3.
    """

    position: ca.SX
    rotation: ca.SX

    def __matmul__(self, place: Placement) -> Pose:
        """A frame that is placed in this one."""
        rotation = self.rotation
        for factor in place.rotations:
            rotation = rotation @ factor
        return Pose(self.position + self.rotation @ place.shift, rotation)


ORIGIN = Pose(ca.SX.zeros(3), ca.SX.eye(3))


def path_poses(tree: Tree, link: int, q: ca.SX) -> dict[int, Pose]:
    """Poses of the links from the world to the given one."""
    poses = {WORLD: ORIGIN}
    for i in tree.path(link):
        poses[i] = poses[tree.links[i].parent] @ placement(tree, i, q)
    return poses


def frame_pose(tree: Tree, frame: Frame, q: ca.SX) -> Pose:
    """Pose of a frame."""
    return path_poses(tree, frame.link, q)[frame.link] @ _placed(frame)


def jacobian(tree: Tree, frame: Frame, q: ca.SX) -> tuple[ca.SX, ca.SX]:
    """Jacobians ``[3, nv]`` of linear and angular velocity of a frame, as `mj_jac` gives them."""
    poses = path_poses(tree, frame.link, q)
    point = (poses[frame.link] @ _placed(frame)).position
    linear, angular = ca.SX(3, tree.nv), ca.SX(3, tree.nv)
    for i in tree.path(frame.link):
        joint, pose = tree.joints[i], poses[i]
        if joint.kind == "slide":
            linear[:, joint.v] = pose.rotation @ direction(tree, i)
            continue
        is_hinge = joint.kind == "hinge"
        axes = pose.rotation @ direction(tree, i) if is_hinge else pose.rotation
        turning = slice(joint.v.stop - axes.shape[1], joint.v.stop)
        angular[:, turning] = axes
        linear[:, turning] = -skew(point - pose.position) @ axes
        if joint.kind == "free":
            linear[:, joint.v.start : joint.v.start + 3] = ca.SX.eye(3)
    return ca.sparsify(linear), ca.sparsify(angular)


def applied_wrench(tree: Tree, frame: Frame, q: ca.SX, given: ca.SX) -> Wrench:
    """A force, or force and moment, at the origin of a frame, in the frame of its link.

    Args:
        tree: The robot.
        frame: Frame in which it acts.
        q: Coordinates.
        given: 3 or 6 rows in the axes of the world.
    """
    columns = ca.reshape(given, 3, -1)
    for i in tree.path(frame.link):
        columns = placement(tree, i, q).down(columns)
    lever = ca.cross(ca.SX(ca.DM(frame.position)), columns[:, 0])
    return Wrench(columns[:, 0], lever + columns[:, 1] if columns.shape[1] == 2 else lever)


def center_of_mass(tree: Tree, q: ca.SX) -> ca.SX:
    """Centre of mass of everything that moves."""
    return _first_moment(tree, q) / tree.mass


def gravitational_energy(tree: Tree, q: ca.SX) -> ca.SX:
    """Potential energy of the weight, zero at the origin of the world."""
    return -ca.dot(ca.SX(ca.DM(tree.gravity)), _first_moment(tree, q))


def kinetic_energy(tree: Tree, q: ca.SX, v: ca.SX) -> ca.SX:
    """Kinetic energy, that of armatures included."""
    total = ca.SX(0)
    velocities: dict[int, tuple[ca.SX, ca.SX]] = {WORLD: (ca.SX.zeros(3), ca.SX.zeros(3))}
    for i, place in enumerate(placements(tree, q)):
        link, joint = tree.links[i], tree.joints[i]
        linear, omega = velocities[link.parent]
        linear, omega = place.down(linear + ca.cross(omega, place.shift)), place.down(omega)
        own = v[joint.v]
        if joint.kind == "slide":
            linear = linear + direction(tree, i) * own
        elif joint.kind == "hinge":
            omega = omega + direction(tree, i) * own
        else:
            linear = linear + place.down(own[:3]) if joint.kind == "free" else linear
            omega = omega + own[-3:]
        velocities[i] = linear, omega
        field = ca.horzcat(skew(omega), linear)
        inertia = ca.sparsify(ca.SX(ca.DM(link.inertia)))
        total += ca.dot(field @ inertia, field) / 2 + joint.armature / 2 * ca.sumsqr(own)
    return total


def _first_moment(tree: Tree, q: ca.SX) -> ca.SX:
    """Mass times centre of mass, gathered from the tips to the root."""
    moments = [ca.SX(ca.DM(link.inertia[:3, 3])) for link in tree.links]
    masses = [float(link.inertia[3, 3]) for link in tree.links]
    total = ca.SX(ca.DM(tree.fixed_inertia[:3, 3]))
    for i, link in reversed(list(enumerate(tree.links))):
        place = placement(tree, i, q)
        outer = place.up(moments[i]) + masses[i] * place.shift
        if link.parent == WORLD:
            total = total + outer
        else:
            moments[link.parent] = moments[link.parent] + outer
            masses[link.parent] += masses[i]
    return total


def _placed(frame: Frame) -> Placement:
    rotation = ca.sparsify(ca.SX(ca.DM(np.asarray(frame.rotation))))
    return Placement((rotation,), ca.SX(ca.DM(frame.position)))
