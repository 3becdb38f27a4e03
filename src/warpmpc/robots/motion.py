"""Where a link is in the frame of its parent, and how things move between the two frames.

Reads: a link and the coordinates.  Produces: a `Placement`, used by all recursions over the tree.
"""

from __future__ import annotations

from dataclasses import dataclass

import casadi as ca

from warpmpc.robots.rotations import planar, quaternion_matrix, symmetric, unit, zyx_matrix
from warpmpc.robots.tree import Tree


@dataclass(frozen=True, eq=False)
class Placement:
    """Pose of a link in the frame of its parent.

    Attributes:
        rotations: Sparse rotations; the last one is applied first to a vector of the link.
        shift: Origin of the link in the frame of the parent.
    """

    rotations: tuple[ca.SX, ...]
    shift: ca.SX

    def up(self, vector: ca.SX) -> ca.SX:
        """A vector of the link in the axes of the parent."""
        for rotation in reversed(self.rotations):
            vector = rotation @ vector
        return vector

    def down(self, vector: ca.SX) -> ca.SX:
        """A vector of the parent in the axes of the link."""
        for rotation in self.rotations:
            vector = rotation.T @ vector
        return vector

    def up_matrix(self, matrix: ca.SX) -> ca.SX:
        """A matrix of the link in the axes of the parent."""
        for rotation in reversed(self.rotations):
            matrix = rotation @ matrix @ rotation.T
        return matrix

    def up_symmetric(self, matrix: ca.SX) -> ca.SX:
        """A symmetric matrix of the link in the axes of the parent."""
        for rotation in reversed(self.rotations):
            matrix = symmetric(rotation @ matrix @ rotation.T)
        return matrix


def placement(tree: Tree, i: int, q: ca.SX) -> Placement:
    """Pose of link i in the frame of its parent."""
    link, joint = tree.links[i], tree.joints[i]
    turns = tuple(ca.sparsify(ca.SX(ca.DM(turn))) for turn in link.turns)
    offset, own = ca.SX(ca.DM(link.offset)), q[joint.q]
    if joint.kind == "free":
        return Placement((rotation_of(tree, own[3:]),), own[:3])
    if joint.kind == "ball":
        return Placement((*turns, rotation_of(tree, own)), offset)
    displacement = own - joint.reference
    if joint.kind == "slide":
        direction = ca.DM(link.sign * link.rotation @ unit(link.axis))
        return Placement(turns, offset + direction * displacement)
    turned = planar(link.axis, ca.cos(displacement), link.sign * ca.sin(displacement))
    return Placement((*turns, turned), offset)


def rotation_of(tree: Tree, own: ca.SX) -> ca.SX:
    """Rotation of a ball or free joint from its own coordinates."""
    return quaternion_matrix(own) if tree.orientation == "quaternion" else zyx_matrix(own)


def placements(tree: Tree, q: ca.SX) -> list[Placement]:
    """Poses of all links in the frames of their parents."""
    return [placement(tree, i, q) for i in range(len(tree.links))]


def direction(tree: Tree, i: int) -> ca.SX:
    """Axis of a hinge or slide in the frame of its link; positive coordinates move along it."""
    link = tree.links[i]
    return ca.SX(ca.DM(link.sign * unit(link.axis)))


def centrifugal(omega: ca.SX) -> ca.SX:
    """The matrix that gives the centripetal acceleration of a point: ``w w' - (w'w) 1``."""
    x, y, z = ca.vertsplit(omega)
    xx, yy, zz, xy, xz, yz = x * x, y * y, z * z, x * y, x * z, y * z
    return ca.vertcat(
        ca.horzcat(-(yy + zz), xy, xz),
        ca.horzcat(xy, -(xx + zz), yz),
        ca.horzcat(xz, yz, -(xx + yy)),
    )
