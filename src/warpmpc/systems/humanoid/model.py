"""The humanoid as an MJCF file, and the rigid-body functions of the MPC that are made from it.

Reads: `tables`.  Produces: `mjcf`, which both the MPC and MuJoCo read, and `Motion`: inverse
dynamics, points and velocities as the problem wants them.

Coordinates differ from those of `warpmpc.robots` in the base: velocities are in its own axes, the
angular one first, and angles stand in the order roll, pitch, yaw.  The functions of a robot are
therefore asked with the base at the origin of the world: what they return is then in the axes of
the base, depends on fewer variables and takes fewer operations.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache, cached_property
from typing import Any

import casadi as ca
import numpy as np

from warpmpc.robots.robot import Robot, load
from warpmpc.systems.humanoid import tables
from warpmpc.systems.humanoid.tables import HOME, PARTS, POINTS, Part

FOOT_RADIUS = 0.004  # spheres of this size touch the ground in MuJoCo [m]
_AXES = {"x": "1 0 0", "y": "0 1 0", "z": "0 0 1"}


def mjcf() -> str:
    """The robot on a flat ground, as the text of an MJCF file.

    Heels and toes touch the ground; the other shapes are for pictures.  Limits of joints and
    motors are those of the MPC.
    """
    motors = "\n".join(
        f'    <motor name="{part.name}" joint="{part.name}" ctrlrange="{-limit:g} {limit:g}"/>'
        for part, limit in zip(PARTS, tables.TORQUES, strict=True)
    )
    key = _numbers([*HOME[:3], 1, 0, 0, 0, *HOME[6:]])
    center, inertia = _numbers(tables.BASE_CENTER), _numbers(tables.BASE_INERTIA)
    return f"""<mujoco model="humanoid">
  <compiler angle="radian" autolimits="true"/>
  <option timestep="0.0005" gravity="0 0 {-tables.GRAVITY}"/>
  <default>
    <geom contype="0" conaffinity="0" rgba="0.55 0.6 0.68 1"/>
    <site size="0.005"/>
  </default>
  <worldbody>
    <light pos="0 0 4" dir="0 0 -1" directional="true"/>
    <geom name="ground" type="plane" size="20 20 0.1" contype="1" friction="1.25" condim="3"
      rgba="0.86 0.87 0.88 1"/>
    <body name="base" pos="{_numbers(HOME[:3])}">
      <freejoint name="base"/>
      <inertial pos="{center}" mass="{tables.BASE_MASS}" fullinertia="{inertia}"/>
      <geom type="box" pos="0 0 0.12" size="0.07 0.11 0.15"/>
      <geom type="sphere" pos="0.01 0 0.36" size="0.07"/>
{_children("base", 3)}
    </body>
  </worldbody>
  <actuator>
{motors}
  </actuator>
  <keyframe>
    <key name="home" qpos="{key}"/>
  </keyframe>
</mujoco>
"""


def _children(parent: str, depth: int) -> str:
    return "\n".join(_body(i, depth) for i, part in enumerate(PARTS) if part.parent == parent)


def _body(i: int, depth: int) -> str:
    """A link with its joint, its shapes, its points and the links behind it."""
    part = PARTS[i]
    turn = _numbers([np.cos(part.pitch / 2), 0, np.sin(part.pitch / 2), 0])
    range_, inertia = _numbers([tables.LOWER[i], tables.UPPER[i]]), _numbers(part.inertia)
    lines = [
        f'<body name="{part.name}" pos="{_numbers(part.origin)}" quat="{turn}">',
        f'  <joint name="{part.name}" axis="{_AXES[part.axis]}" range="{range_}"/>',
        f'  <inertial pos="{_numbers(part.center)}" mass="{part.mass}" fullinertia="{inertia}"/>',
        *(f"  {shape}" for shape in _shapes(part)),
    ]
    for name, (link, at) in POINTS.items():
        if link == part.name:
            lines.append(f'  <site name="{name}" pos="{_numbers(at)}"/>')
    indent = "  " * depth
    inner = _children(part.name, depth + 1)
    text = "\n".join(indent + line for line in lines)
    return "\n".join([text, *([inner] if inner else []), f"{indent}</body>"])


def _shapes(part: Part) -> list[str]:
    """A capsule to each joint behind this one; feet have the spheres that touch the ground."""
    ends = [other.origin for other in PARTS if other.parent == part.name]
    ends += [at for link, at in (POINTS[s + "hand"] for s in "RL") if link == part.name]
    width = 0.03 if "shoulder" in part.name or part.name.endswith("elbow") else 0.04
    shapes = [
        f'<geom type="capsule" fromto="0 0 0 {_numbers(end)}" size="{width}"/>'
        for end in ends
        if np.linalg.norm(end) > width
    ]
    if not part.name.endswith("ankle"):
        return shapes
    heel, toe = _numbers(_raised(tables.HEEL)), _numbers(_raised(tables.TOE))
    shapes.append(f'<geom type="capsule" fromto="{heel} {toe}" size="0.02"/>')
    for name, (link, at) in POINTS.items():
        if link == part.name and name in tables.CONTACTS:
            place = _numbers((at[0], at[1], at[2] + FOOT_RADIUS))
            shapes.append(
                f'<geom name="{name}" type="sphere" pos="{place}" size="{FOOT_RADIUS}" '
                'conaffinity="1" friction="1.25"/>'
            )
    return shapes


def _raised(point: tables.Vector) -> tables.Vector:
    """A point above the sole, so that a capsule around it ends at the sole."""
    return point[0], point[1], point[2] + 0.02


def _numbers(values: object) -> str:
    return " ".join(f"{value:.12g}" for value in np.asarray(values, dtype=float))


@cache
def robot() -> Robot:
    """The robot that the MPC knows; needs the extra `robots`."""
    return load(mjcf(), orientation="zyx")


class Motion:
    """Where the robot is and how it moves, for SX coordinates.

    Attributes:
        q: Coordinates.
        dq: Rates.
        rotation: Base to world.
    """

    def __init__(self, q: ca.SX, dq: ca.SX) -> None:
        """A motion; expressions are made when they are asked for."""
        self.q, self.dq = q, dq
        self._robot = robot()
        self.rotation = self._robot.pose("base", _reordered(q)).rotation

    @cached_property
    def _at_origin(self) -> ca.SX:
        """Coordinates with the base at the origin of the world."""
        return ca.vertcat(ca.SX.zeros(6), self.q[6:])

    def at_base(self, point: str) -> ca.SX:
        """A point in the axes of the base."""
        return self._robot.pose(point, self._at_origin).position

    def height(self, point: str) -> ca.SX:
        """Height of a point above the ground."""
        return self.q[2] + self.rotation[2, :] @ self.at_base(point)

    def velocity(self, point: str) -> ca.SX:
        """Velocity of a point in the world."""
        linear, _ = self._robot.jacobian(point, self._at_origin)
        return self.rotation @ (linear @ _swapped(self.dq))

    def needed(self, ddq: ca.SX, forces: Mapping[str, ca.SX]) -> ca.SX:
        """Moment and force on the base and torques of the joints that the motion needs.

        Args:
            ddq: Time derivatives of dq, which are not accelerations of points.
            forces: Forces on points, in the axes of the world.
        """
        omega, linear = self.dq[:3], self.dq[3:6]
        # The origin of the base accelerates by this in the axes that the base has now.  They are
        # also the world of the robot that is asked, whose gravity is replaced by the real one.
        gravity = tables.GRAVITY
        falling = gravity * self.rotation[2, :].T - ca.vertcat(0, 0, gravity)
        moving = ddq[3:6] + ca.cross(omega, linear) + falling
        acceleration = ca.vertcat(moving, ddq[:3], ddq[6:])
        here = {name: self.rotation.T @ force for name, force in forces.items()}
        torques = self._robot.inverse_dynamics(
            self._at_origin, _swapped(self.dq), acceleration, here
        )
        return _swapped(torques)

    def moved(self, by: ca.SX) -> ca.SX:
        """Coordinates after a small motion `by` that has the components of dq; an Euler step."""
        world = ca.vertcat(self.rotation @ by[3:6], by[:3], by[6:])
        return _reordered(self._robot.integrate(_reordered(self.q), world, 1.0))


def friction(dq: ca.SX) -> ca.SX:
    """Torques that the friction of the legs takes, zero for the arms."""
    rates, slope = dq[6:], tables.FRICTION_SLOPE
    damping, dry = (
        ca.sparsify(ca.SX(ca.DM(m))) for m in (tables.DAMPING, tables.DRY_FRICTION)
    )  # fmt: skip
    return damping @ rates + dry @ ca.tanh(slope * rates)


def slope(dq: ca.SX) -> ca.SX:
    """What the rates take of the torques that the voltage allows."""
    return ca.sparsify(ca.SX(ca.DM(tables.SLOPE))) @ dq[6:]


def _swapped(column: ca.SX) -> ca.SX:
    """The first three entries and the next three change places."""
    return ca.vertcat(column[3:6], column[:3], column[6:])


def _reordered(q: ca.SX) -> ca.SX:
    """Roll, pitch, yaw become yaw, pitch, roll, and the other way round."""
    return ca.vertcat(q[:3], q[5], q[4], q[3], q[6:])


def to_robot(ops: Any, x: Any) -> Any:
    """States [q, dq] of the MPC ``[..., 48]`` as states of `robot`.

    Args:
        ops: The module numpy or jax.numpy.
        x: The states.
    """
    q, v = x[..., : tables.N_Q], x[..., tables.N_Q : tables.N_X]
    rotation = rotation_of(ops, q[..., 3], q[..., 4], q[..., 5])
    linear = (rotation * v[..., None, 3:6]).sum(axis=-1)
    parts = [q[..., :3], q[..., 5:2:-1], q[..., 6:], linear, v[..., :3], v[..., 6:]]
    return ops.concatenate(parts, axis=-1)


def from_robot(ops: Any, x: Any) -> Any:
    """States of `robot` ``[..., 48]`` as states [q, dq] of the MPC.

    Args:
        ops: The module numpy or jax.numpy.
        x: The states.
    """
    q, v = x[..., : tables.N_Q], x[..., tables.N_Q : tables.N_X]
    rotation = rotation_of(ops, q[..., 5], q[..., 4], q[..., 3])
    linear = (rotation * v[..., :3, None]).sum(axis=-2)
    parts = [q[..., :3], q[..., 5:2:-1], q[..., 6:], v[..., 3:6], linear, v[..., 6:]]
    return ops.concatenate(parts, axis=-1)


def rotation_of(ops: Any, roll: Any, pitch: Any, yaw: Any) -> Any:
    """Base to world ``[..., 3, 3]``.

    Args:
        ops: The module numpy or jax.numpy.
        roll: About x.
        pitch: About y.
        yaw: About z.
    """
    (cr, cp, cy), (sr, sp, sy) = ([f(a) for a in (roll, pitch, yaw)] for f in (ops.cos, ops.sin))
    rows = [
        [cy * cp, cy * sp * sr - sy * cr, cy * sp * cr + sy * sr],
        [sy * cp, sy * sp * sr + cy * cr, sy * sp * cr - cy * sr],
        [-sp, cp * sr, cp * cr],
    ]
    return ops.stack([ops.stack(row, axis=-1) for row in rows], axis=-2)
