"""What a robot consists of: links with their joints, frames on links, actuators.

Produces: immutable descriptions as values; the symbolic functions of this package read them.

A *link* is what moves with one joint, so that a body with three joints makes three links, two of
them without mass.  The frame of a link is not that of a body in the file: it is chosen so that the
joint turns about, or moves along, a coordinate axis of it, and so that few entries of the offset
from the parent are not zero.  Long straight-line programs get shorter by it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np

WORLD = -1
Kind: TypeAlias = Literal["hinge", "slide", "ball", "free"]
Orientation: TypeAlias = Literal["quaternion", "zyx"]
VELOCITIES: dict[Kind, int] = {"hinge": 1, "slide": 1, "ball": 3, "free": 6}


@dataclass(frozen=True, eq=False)
class Joint:
    """A joint of the file and its place in the coordinates.

    Attributes:
        name: Name of the joint in the file; "joint_3" for the fourth joint if it has none.
        kind: "hinge", "slide", "ball" or "free".
        q: Entries of the coordinates.
        v: Entries of the velocities.
        reference: Coordinate of a hinge or slide in the configuration in which the file is written.
        lower: Least coordinate of a hinge or slide; -inf without limit.
        upper: Largest coordinate.
        velocity: Largest speed; inf without limit.
        torque: Least and largest torque or force that actuators together may apply.
        armature: Inertia of the rotor, added to the diagonal of the mass matrix.
        damping: Torque per speed.
        friction: Torque of dry friction.
        stiffness: Torque per displacement of a spring.
        spring: Coordinate at which the spring is at rest.
    """

    name: str
    kind: Kind
    q: slice
    v: slice
    reference: float
    lower: float
    upper: float
    velocity: float
    torque: tuple[float, float]
    armature: float
    damping: float
    friction: float
    stiffness: float
    spring: float


@dataclass(frozen=True, eq=False)
class Link:
    """Geometry and inertia of what moves with one joint.

    With the joint at its reference, coordinates in the frame of the link become those in the frame
    of the parent by the constant rotations `turns`, the last one first, and the shift `offset`.

    Attributes:
        parent: Index of the link before it, or `WORLD`.
        axis: Coordinate axis of a hinge or slide: 0, 1 or 2.
        sign: 1, or -1 where a positive coordinate means a motion against the coordinate axis.
        turns: Constant rotations.
        offset: Origin of the link in the frame of the parent.
        inertia: Pseudo-inertia ``[[S, h], [h', m]]``: second moments, first moments, mass.
    """

    parent: int
    axis: int
    sign: float
    turns: tuple[np.ndarray, ...]
    offset: np.ndarray
    inertia: np.ndarray

    @property
    def rotation(self) -> np.ndarray:
        """All constant rotations as one."""
        rotation = np.eye(3)
        for turn in self.turns:
            rotation = rotation @ turn
        return rotation


@dataclass(frozen=True, eq=False)
class Frame:
    """A frame fixed to a link: a body of the file, or a site.

    Attributes:
        link: Index of the link, or `WORLD`.
        rotation: Axes of the frame in those of the link, as columns.
        position: Origin in the frame of the link.
    """

    link: int
    rotation: np.ndarray
    position: np.ndarray


@dataclass(frozen=True, eq=False)
class Actuator:
    """An actuator at a joint: ``gear * clip(gain * control + bias)`` is what it adds to torques.

    Attributes:
        name: Name of the actuator; "actuator_3" for the fourth one if it has none.
        joint: Index of the joint.
        gear: Torque per force of the actuator, one entry per velocity of the joint.
        gain: Force per control.
        bias: Constant force, force per length and force per velocity of the actuator.
        control: Least and largest control.
        force: Least and largest force.
    """

    name: str
    joint: int
    gear: np.ndarray
    gain: float
    bias: tuple[float, float, float]
    control: tuple[float, float]
    force: tuple[float, float]


@dataclass(frozen=True, eq=False)
class Tree:
    """All links, parents first, in the order of their joints.

    Attributes:
        links: The links.
        joints: The joint of each link.
        fixed_inertia: Pseudo-inertia, in the world, of mass that belongs to links but is not moved
            by them: see `warpmpc.robots.regrouping`.
        gravity: Acceleration of free fall.
        orientation: Coordinates of ball and free joints: "quaternion", or "zyx" for three angles.
    """

    links: tuple[Link, ...]
    joints: tuple[Joint, ...]
    fixed_inertia: np.ndarray
    gravity: np.ndarray
    orientation: Orientation

    @property
    def nq(self) -> int:
        """Number of coordinates."""
        return self.joints[-1].q.stop

    @property
    def nv(self) -> int:
        """Number of velocities."""
        return self.joints[-1].v.stop

    @property
    def mass(self) -> float:
        """Mass of everything that moves."""
        return float(self.fixed_inertia[3, 3] + sum(link.inertia[3, 3] for link in self.links))

    def path(self, link: int) -> list[int]:
        """Links from the one at the world to the given one, both included."""
        found: list[int] = []
        while link != WORLD:
            found.append(link)
            link = self.links[link].parent
        return found[::-1]
