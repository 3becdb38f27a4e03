"""Forward dynamics: accelerations for given torques (articulated bodies, Featherstone 2008).

Its accelerations are those of points, as in `inverse_dynamics`.  A row and column of an articulated
inertia that a joint makes zero, or multiplies with a number, is not computed entry by entry.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import casadi as ca

from warpmpc.robots.inverse_dynamics import Wrench, joint_torque
from warpmpc.robots.motion import Placement, centrifugal, direction, placements
from warpmpc.robots.rotations import axial, skew, symmetric
from warpmpc.robots.tree import WORLD, Tree


@dataclass(frozen=True, eq=False)
class ArticulatedInertia:
    """Wrench for an acceleration: ``force = A a + B alpha`` and ``moment = B' a + C alpha``."""

    A: ca.SX
    B: ca.SX
    C: ca.SX

    def __add__(self, other: ArticulatedInertia) -> ArticulatedInertia:
        """Both bodies as one."""
        return ArticulatedInertia(self.A + other.A, self.B + other.B, self.C + other.C)

    def wrench(self, linear: ca.SX, alpha: ca.SX) -> Wrench:
        """Wrench for an acceleration."""
        return Wrench(self.A @ linear + self.B @ alpha, self.B.T @ linear + self.C @ alpha)

    def up(self, place: Placement) -> ArticulatedInertia:
        """The inertia and force in the frame of the parent."""
        A, B = place.up_symmetric(self.A), place.up_matrix(self.B)
        C, shift = place.up_symmetric(self.C), skew(place.shift)
        moved = B - A @ shift
        return ArticulatedInertia(A, moved, symmetric(C - B.T @ shift + shift @ moved))


@dataclass(frozen=True, eq=False)
class Elimination:
    """The equation of a joint, solved for its acceleration.

    Attributes:
        columns: Wrench of each unit acceleration of the joint: forces over moments, 6 rows.
        pivot: Their torques at the joint, with armature: symmetric.
        torque: What is left of the torque for the acceleration.
    """

    columns: ca.SX
    pivot: ca.SX
    torque: ca.SX


def forward_dynamics(
    tree: Tree, q: ca.SX, v: ca.SX, tau: ca.SX, applied: Mapping[int, Wrench]
) -> ca.SX:
    """Accelerations.

    Args:
        tree: The robot.
        q: Coordinates.
        v: Velocities.
        tau: Torques, passive ones included.
        applied: External wrenches by link.
    """
    places = placements(tree, q)
    drifts, inertias, biases = _velocity_terms(tree, places, v, applied)
    eliminations = _inwards(tree, places, tau, drifts, inertias, biases)
    return _outwards(tree, places, drifts, eliminations)


def _velocity_terms(
    tree: Tree, places: list[Placement], v: ca.SX, applied: Mapping[int, Wrench]
) -> tuple[list[ca.SX], list[ArticulatedInertia], list[Wrench]]:
    """Accelerations (6 rows) and wrenches that velocities cause, and inertias of single links."""
    spins: list[Spin] = []
    drifts: list[ca.SX] = []
    inertias: list[ArticulatedInertia] = []
    biases: list[Wrench] = []
    for i, link in enumerate(tree.links):
        before = Spin(ca.SX.zeros(3)) if link.parent == WORLD else spins[link.parent]
        spin, drift = _turned(tree, i, places[i], before, v[tree.joints[i].v])
        spins.append(spin)
        drifts.append(drift)
        second, first = ca.SX(ca.DM(link.inertia[:3, :3])), ca.SX(ca.DM(link.inertia[:3, 3]))
        bias = Wrench(spin.field @ first, axial(spin.field @ second))
        biases.append(bias - applied[i] if i in applied else bias)
        inertias.append(
            ArticulatedInertia(
                link.inertia[3, 3] * ca.SX.eye(3),
                -skew(first),
                ca.trace(second) * ca.SX.eye(3) - second,
            )
        )
    return drifts, inertias, biases


@dataclass(frozen=True, eq=False)
class Spin:
    """Angular velocity of a link in its own axes."""

    omega: ca.SX

    @cached_property
    def field(self) -> ca.SX:
        """The matrix that gives centripetal accelerations of points."""
        return centrifugal(self.omega)


def _turned(tree: Tree, i: int, place: Placement, before: Spin, rate: ca.SX) -> tuple[Spin, ca.SX]:
    """Angular velocity of link i, and its acceleration for a parent and a joint without one."""
    kind, still = tree.joints[i].kind, ca.SX.zeros(3)
    if kind == "free":
        return Spin(rate[3:]), ca.SX.zeros(6)
    omega = place.down(before.omega)
    linear = place.down(before.field @ place.shift)
    if kind == "slide":
        coriolis = 2 * ca.cross(omega, direction(tree, i) * rate)
        return Spin(omega), ca.vertcat(linear + coriolis, still)
    own = direction(tree, i) * rate if kind == "hinge" else rate
    return Spin(omega + own), ca.vertcat(linear, ca.cross(omega, own))


def _inwards(
    tree: Tree,
    places: list[Placement],
    tau: ca.SX,
    drifts: list[ca.SX],
    inertias: list[ArticulatedInertia],
    biases: list[Wrench],
) -> list[Elimination]:
    """Solves the joints from the tips to the root; inertias and biases become articulated ones."""
    eliminations: list[Elimination | None] = [None] * len(tree.links)
    for i in reversed(range(len(tree.links))):
        torque = _own_axes(tree, i, places[i], tau[tree.joints[i].v])
        eliminated = _eliminated(tree, i, inertias[i], torque - _along(tree, i, biases[i]))
        eliminations[i] = eliminated
        parent = tree.links[i].parent
        if parent == WORLD:
            continue
        rest = _without_joint(tree, i, inertias[i], eliminated)
        drift = drifts[i]
        caused = eliminated.columns @ solved(eliminated.pivot, eliminated.torque)
        bias = biases[i] + rest.wrench(drift[:3], drift[3:]) + Wrench(caused[:3], caused[3:])
        inertias[parent] = inertias[parent] + rest.up(places[i])
        biases[parent] = biases[parent] + bias.up(places[i])
    return [elimination for elimination in eliminations if elimination is not None]


def _outwards(
    tree: Tree, places: list[Placement], drifts: list[ca.SX], eliminations: list[Elimination]
) -> ca.SX:
    """Accelerations of all joints from the root to the tips."""
    linears: list[ca.SX] = []
    alphas: list[ca.SX] = []
    accelerations: list[ca.SX] = []
    for i, link in enumerate(tree.links):
        place, joint, elimination = places[i], tree.joints[i], eliminations[i]
        if link.parent == WORLD:
            linear, alpha = place.down(ca.SX(ca.DM(-tree.gravity))), ca.SX.zeros(3)
        else:
            outer = alphas[link.parent]
            linear = place.down(linears[link.parent] + ca.cross(outer, place.shift))
            alpha = place.down(outer)
        linear, alpha = linear + drifts[i][:3], alpha + drifts[i][3:]
        left = elimination.torque - elimination.columns.T @ ca.vertcat(linear, alpha)
        own = solved(elimination.pivot, left)
        accelerations.append(_world_axes(tree, i, place, own))
        if joint.kind == "slide":
            linear = linear + direction(tree, i) * own
        elif joint.kind == "hinge":
            alpha = alpha + direction(tree, i) * own
        elif joint.kind == "ball":
            alpha = alpha + own
        else:
            linear, alpha = linear + own[:3], alpha + own[3:]
        linears.append(linear)
        alphas.append(alpha)
    return ca.vertcat(*accelerations)


def _own_axes(tree: Tree, i: int, place: Placement, torque: ca.SX) -> ca.SX:
    """Torque of joint i in the axes of its link; the force of a free joint comes in the world's."""
    if tree.joints[i].kind != "free":
        return torque
    return ca.vertcat(place.down(torque[:3]), torque[3:])


def _world_axes(tree: Tree, i: int, place: Placement, own: ca.SX) -> ca.SX:
    """Acceleration of joint i in the user's convention, from that in the axes of its link."""
    return ca.vertcat(place.up(own[:3]), own[3:]) if tree.joints[i].kind == "free" else own


def _along(tree: Tree, i: int, wrench: Wrench) -> ca.SX:
    """What a wrench does along joint i, in the axes of the link."""
    if tree.joints[i].kind == "free":
        return ca.vertcat(wrench.force, wrench.moment)
    return joint_torque(tree, i, wrench)


def _eliminated(tree: Tree, i: int, inertia: ArticulatedInertia, torque: ca.SX) -> Elimination:
    """The equation of joint i."""
    kind, armature = tree.joints[i].kind, tree.joints[i].armature
    linear, angular = ca.vertcat(inertia.A, inertia.B.T), ca.vertcat(inertia.B, inertia.C)
    if kind == "hinge":
        columns = angular @ direction(tree, i)
        pivot = ca.dot(direction(tree, i), columns[3:])
    elif kind == "slide":
        columns = linear @ direction(tree, i)
        pivot = ca.dot(direction(tree, i), columns[:3])
    elif kind == "ball":
        columns, pivot = angular, inertia.C
    else:
        columns = pivot = ca.horzcat(linear, angular)
    return Elimination(columns, pivot + armature * ca.SX.eye(pivot.shape[0]), torque)


def _without_joint(
    tree: Tree, i: int, inertia: ArticulatedInertia, eliminated: Elimination
) -> ArticulatedInertia:
    """What the parent of joint i feels of its inertia."""
    joint, link = tree.joints[i], tree.links[i]
    columns, forces, moments = (
        eliminated.columns,
        eliminated.columns[:3, :],
        eliminated.columns[3:, :],
    )
    rows = solved(eliminated.pivot, columns.T)  # pivot^-1 columns'
    A = symmetric(inertia.A - forces @ rows[:, :3])
    B = inertia.B - forces @ rows[:, 3:]
    C = symmetric(inertia.C - moments @ rows[:, 3:])
    # Along the joint only the armature holds against it.
    held = joint.armature
    if joint.kind == "ball":
        if not held:
            B, C = ca.SX.zeros(3, 3), ca.SX.zeros(3, 3)
        return ArticulatedInertia(A, B, C)
    share = link.sign * held / eliminated.pivot if held else 0.0
    if joint.kind == "hinge":
        B[:, link.axis] = share * forces
        C[:, link.axis] = share * moments
        C[link.axis, :] = share * moments.T
    else:
        A[:, link.axis] = share * forces
        A[link.axis, :] = share * forces.T
        B[link.axis, :] = share * moments.T
    return ArticulatedInertia(A, B, C)


def solved(matrix: ca.SX, rhs: ca.SX) -> ca.SX:
    """Solution of a small positive definite system, by LDL' written out."""
    n = matrix.shape[0]
    if n == 1:
        return rhs / matrix
    lower = [[ca.SX(0)] * n for _ in range(n)]
    scaled = [[ca.SX(0)] * n for _ in range(n)]  # L D
    inverse = [ca.SX(0)] * n
    for j in range(n):
        for i in range(j, n):
            done = sum((lower[j][k] * scaled[i][k] for k in range(j)), ca.SX(0))
            scaled[i][j] = matrix[i, j] - done
        inverse[j] = 1 / scaled[j][j]
        for i in range(j + 1, n):
            lower[i][j] = scaled[i][j] * inverse[j]
    rows = [rhs[i, :] for i in range(n)]
    for i in range(n):
        for k in range(i):
            rows[i] = rows[i] - lower[i][k] * rows[k]
    rows = [row * factor for row, factor in zip(rows, inverse, strict=True)]
    for i in reversed(range(n)):
        for k in range(i + 1, n):
            rows[i] = rows[i] - lower[k][i] * rows[k]
    return ca.vertcat(*rows)
