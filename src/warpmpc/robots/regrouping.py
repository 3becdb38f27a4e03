"""Mass that a joint does not move is given to the parent of the joint.

Reads and produces: links.  A thin rod along the axis of a hinge does not notice the hinge: its
mass, its first and its second moment along the axis may just as well belong to the parent.  In the
same way a slide does not change second moments, and a ball joint does not move a mass at its
centre.  Torques, energies and the mass matrix of the robot stay the same in exact arithmetic, and
programs get shorter, because most masses end at the base (Khalil and Kleinfinger 1987).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from warpmpc.robots.rotations import TINY
from warpmpc.robots.tree import WORLD, Kind, Link


def regrouped(links: Sequence[Link], kinds: Sequence[Kind]) -> tuple[tuple[Link, ...], np.ndarray]:
    """Links with as few moments as possible, and the pseudo-inertia that arrives at the world."""
    inertias = [link.inertia.copy() for link in links]
    fixed = np.zeros((4, 4))
    for i in reversed(range(len(links))):
        link = links[i]
        unmoved = _unmoved_by(kinds[i], link.axis, inertias[i])
        inertias[i] = inertias[i] - unmoved
        place = np.eye(4)
        place[:3, :3], place[:3, 3] = link.rotation, link.offset
        target = fixed if link.parent == WORLD else inertias[link.parent]
        target += place @ unmoved @ place.T
    changed = (
        replace(link, inertia=_without_rounding(inertia))
        for link, inertia in zip(links, inertias, strict=True)
    )
    return tuple(changed), fixed


def _unmoved_by(kind: Kind, axis: int, inertia: np.ndarray) -> np.ndarray:
    """The part of a pseudo-inertia that looks the same from the parent in all positions."""
    unmoved = np.zeros((4, 4))
    if kind == "hinge":
        along = np.ix_([axis, 3], [axis, 3])
        unmoved[along] = inertia[along]
    elif kind == "slide":
        unmoved[:3, :3] = inertia[:3, :3]
    elif kind == "ball":
        unmoved[3, 3] = inertia[3, 3]
    return unmoved


def _without_rounding(inertia: np.ndarray) -> np.ndarray:
    scale = np.abs(inertia).max(initial=0.0)
    return np.where(np.abs(inertia) <= TINY * scale, 0.0, inertia)
