"""From a compiled `MjModel` to links, joints, frames and actuators.

Produces: a `Tree` with the frames that `warpmpc.robots.tree` describes, and where the bodies and
sites of the file are on it.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from warpmpc.robots.left_out import RobotWarning
from warpmpc.robots.reading import import_mujoco
from warpmpc.robots.regrouping import regrouped
from warpmpc.robots.rotations import tidy, turns_to, unit, values_of_quaternion
from warpmpc.robots.tree import (
    VELOCITIES,
    WORLD,
    Actuator,
    Frame,
    Joint,
    Kind,
    Link,
    Orientation,
    Tree,
)

KINDS: tuple[Kind, ...] = ("free", "ball", "slide", "hinge")  # in the order of mjtJoint
UNLIMITED = (-np.inf, np.inf)


def read_tree(
    model: Any, orientation: Orientation, velocities: dict[str, float]
) -> tuple[Tree, list[Frame]]:
    """The tree, and where each body is, in the order of the file.

    Args:
        model: The compiled model.
        orientation: Coordinates of ball and free joints.
        velocities: Velocity limits by joint.
    """
    joints = _joints(model, orientation, velocities)
    kinds: list[Kind] = [joint.kind for joint in joints]
    links: list[Link] = []
    frames: list[Frame] = [Frame(WORLD, np.eye(3), np.zeros(3))]
    for b in range(1, model.nbody):
        before = frames[model.body_parentid[b]]
        frame = _placed(before, model.body_pos[b], model.body_quat[b])
        begin = model.body_jntadr[b]
        for j in range(begin, begin + model.body_jntnum[b]):
            link, frame = _link(model, j, frame, len(links))
            links.append(link)
        frames.append(frame)
        if frame.link != WORLD:
            links[frame.link].inertia[:] += _inertia(model, b, frame)
    regrouped_links, fixed = regrouped(links, kinds)
    gravity = np.zeros(3) if _is_disabled(model, "GRAVITY") else np.array(model.opt.gravity)
    return Tree(regrouped_links, joints, fixed, gravity, orientation), frames


def named_bodies(model: Any, frames: Sequence[Frame]) -> dict[str, Frame]:
    """Where each body with a name is."""
    names = [model.body(b).name for b in range(model.nbody)]
    return {name: frame for name, frame in zip(names, frames, strict=True) if name}


def named_sites(model: Any, frames: Sequence[Frame]) -> dict[str, Frame]:
    """Where each site with a name is."""
    sites: dict[str, Frame] = {}
    for i in range(model.nsite):
        body = frames[model.site_bodyid[i]]
        if model.site(i).name:
            sites[model.site(i).name] = _placed(body, model.site_pos[i], model.site_quat[i])
    return sites


def read_actuators(model: Any, tree: Tree, what: str) -> tuple[Actuator, ...]:
    """The actuators at joints; others are left out with a warning.

    Args:
        model: The compiled model.
        tree: Its tree.
        what: What the caller knows the file by.
    """
    actuators: list[Actuator] = []
    for i in range(model.nu):
        name = model.actuator(i).name or f"actuator_{i}"
        reason = _refusal(model, i, tree)
        if reason:
            message = f"{what}: the actuator {name!r} {reason}; it is left out."
            warnings.warn(message, RobotWarning, stacklevel=3)
            continue
        joint = int(model.actuator_trnid[i, 0])
        n_v = VELOCITIES[tree.joints[joint].kind]
        actuators.append(
            Actuator(
                name=name,
                joint=joint,
                gear=np.array(model.actuator_gear[i, :n_v]),
                gain=float(model.actuator_gainprm[i, 0]),
                bias=_bias(model, i),
                control=_range(model.actuator_ctrllimited[i], model.actuator_ctrlrange[i]),
                force=_range(model.actuator_forcelimited[i], model.actuator_forcerange[i]),
            )
        )
    return tuple(actuators)


@dataclass(frozen=True)
class _Axis:
    """Where a hinge or slide is in the frame of the link before it."""

    direction: np.ndarray
    anchor: np.ndarray


def _link(model: Any, j: int, frame: Frame, index: int) -> tuple[Link, Frame]:
    """The link of joint j, and the frame of the body on it.

    Args:
        model: The compiled model.
        j: The joint.
        frame: The body, on the link before it.
        index: What the new link will be.
    """
    kind, no_inertia = KINDS[model.jnt_type[j]], np.zeros((4, 4))
    anchor = frame.position + frame.rotation @ model.jnt_pos[j]
    if kind == "free":
        link = Link(WORLD, 0, 1.0, (), np.zeros(3), no_inertia)
        return link, Frame(index, np.eye(3), np.zeros(3))
    if kind == "ball":
        turns = () if np.array_equal(frame.rotation, np.eye(3)) else (frame.rotation,)
        link = Link(frame.link, 0, 1.0, turns, tidy(anchor), no_inertia)
        return link, Frame(index, np.eye(3), -model.jnt_pos[j])
    axis = _Axis(tidy(frame.rotation @ model.jnt_axis[j]), anchor)
    coordinate, sign, turns = turns_to(axis.direction)
    # A slide may have its origin anywhere, a hinge anywhere on its axis.
    offset = np.zeros(3) if kind == "slide" else _sparse_point(axis)
    link = Link(frame.link, coordinate, sign, turns, offset, no_inertia)
    rotation = tidy(link.rotation.T @ frame.rotation)
    return link, Frame(index, rotation, tidy(link.rotation.T @ (frame.position - offset)))


def _sparse_point(axis: _Axis) -> np.ndarray:
    """A point on an axis with a zero coordinate."""
    largest = int(np.argmax(np.abs(axis.direction)))
    along = axis.anchor[largest] / axis.direction[largest]
    return tidy(axis.anchor - along * axis.direction) * (1 - unit(largest))


def _placed(frame: Frame, position: np.ndarray, quaternion: np.ndarray) -> Frame:
    """A frame that the file places in another one."""
    rotation = tidy(frame.rotation @ values_of_quaternion(quaternion))
    return Frame(frame.link, rotation, tidy(frame.position + frame.rotation @ position))


def _inertia(model: Any, b: int, frame: Frame) -> np.ndarray:
    """Pseudo-inertia of a body on its link."""
    principal = _placed(frame, model.body_ipos[b], model.body_iquat[b])
    moments = model.body_inertia[b]
    second = np.diag(moments.sum() / 2 - moments)
    mass, at = model.body_mass[b], principal.position
    inertia = np.empty((4, 4))
    inertia[:3, :3] = principal.rotation @ second @ principal.rotation.T + mass * np.outer(at, at)
    inertia[:3, 3] = inertia[3, :3] = mass * at
    inertia[3, 3] = mass
    return inertia


def _joints(
    model: Any, orientation: Orientation, velocities: dict[str, float]
) -> tuple[Joint, ...]:
    springs, dampers = (not _is_disabled(model, what) for what in ("SPRING", "DAMPER"))
    n_turned = 4 if orientation == "quaternion" else 3
    sizes: dict[Kind, int] = {"hinge": 1, "slide": 1, "ball": n_turned, "free": 3 + n_turned}
    joints: list[Joint] = []
    begin = 0
    for j in range(model.njnt):
        kind: Kind = KINDS[model.jnt_type[j]]
        dof, at = int(model.jnt_dofadr[j]), int(model.jnt_qposadr[j])
        straight = kind in ("hinge", "slide")
        name = model.joint(j).name or f"joint_{j}"
        lower, upper = _range(model.jnt_limited[j] and straight, model.jnt_range[j])
        joints.append(
            Joint(
                name=name,
                kind=kind,
                q=slice(begin, begin + sizes[kind]),
                v=slice(dof, dof + VELOCITIES[kind]),
                reference=float(model.qpos0[at]) if straight else 0.0,
                lower=lower,
                upper=upper,
                velocity=velocities.get(name, np.inf),
                torque=_range(model.jnt_actfrclimited[j], model.jnt_actfrcrange[j]),
                armature=float(model.dof_armature[dof]),
                damping=float(model.dof_damping[dof]) if dampers else 0.0,
                friction=float(model.dof_frictionloss[dof]),
                stiffness=float(model.jnt_stiffness[j]) if straight and springs else 0.0,
                spring=float(model.qpos_spring[at]) if straight else 0.0,
            )
        )
        begin += sizes[kind]
    return tuple(joints)


def _is_disabled(model: Any, what: str) -> bool:
    """Whether the file switches a kind of force off."""
    bits = import_mujoco().mjtDisableBit
    # Springs and dampers had one switch in older releases of MuJoCo.
    bit = getattr(bits, f"mjDSBL_{what}", None) or bits.mjDSBL_PASSIVE
    return bool(model.opt.disableflags & int(bit))


def _refusal(model: Any, i: int, tree: Tree) -> str:
    """Why an actuator is left out; empty if it is not."""
    mujoco = import_mujoco()
    transmission = mujoco.mjtTrn(int(model.actuator_trntype[i]))
    in_parent = transmission == mujoco.mjtTrn.mjTRN_JOINTINPARENT
    if transmission != mujoco.mjtTrn.mjTRN_JOINT and not in_parent:
        return "does not act on a joint"
    if mujoco.mjtDyn(int(model.actuator_dyntype[i])) != mujoco.mjtDyn.mjDYN_NONE:
        return "has a state of its own"
    if mujoco.mjtGain(int(model.actuator_gaintype[i])) != mujoco.mjtGain.mjGAIN_FIXED:
        return "has a gain that is not constant"
    bias, known = mujoco.mjtBias(int(model.actuator_biastype[i])), mujoco.mjtBias
    if bias not in (known.mjBIAS_NONE, known.mjBIAS_AFFINE):
        return "has a bias that is not affine"
    if tree.joints[model.actuator_trnid[i, 0]].kind in ("hinge", "slide"):
        return ""
    if in_parent:
        return "acts on a ball or free joint in the axes of the parent"
    return "feeds the pose of a ball or free joint back" if any(_bias(model, i)[1:]) else ""


def _bias(model: Any, i: int) -> tuple[float, float, float]:
    constant, length, velocity = model.actuator_biasprm[i, :3].tolist()
    bias = import_mujoco().mjtBias(int(model.actuator_biastype[i]))
    none = bias == import_mujoco().mjtBias.mjBIAS_NONE
    return (0.0, 0.0, 0.0) if none else (constant, length, velocity)


def _range(limited: Any, values: np.ndarray) -> tuple[float, float]:
    return (float(values[0]), float(values[1])) if limited else UNLIMITED
