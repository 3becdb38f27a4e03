"""`load` and `Robot`: from a robot file to symbolic functions for an optimal control problem."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import casadi as ca
import numpy as np

from warpmpc._errors import ProblemError, SettingsError
from warpmpc.problem import expressions as ex
from warpmpc.problem.expressions import ExpressionLike
from warpmpc.problem.ocp.ocp import OCP
from warpmpc.robots import actuation, coordinates, kinematics, left_out, reading
from warpmpc.robots.forward_dynamics import forward_dynamics
from warpmpc.robots.from_mujoco import named_bodies, named_sites, read_actuators, read_tree
from warpmpc.robots.inverse_dynamics import Wrench, inverse_dynamics, mass_matrix
from warpmpc.robots.kinematics import Pose
from warpmpc.robots.limits import take_over
from warpmpc.robots.tree import Actuator, Frame, Joint, Orientation, Tree

ORIENTATIONS: tuple[Orientation, ...] = ("quaternion", "zyx")
Forces = Mapping[str, ExpressionLike]


def load(
    source: reading.Source,
    floating: bool = False,
    locked: Sequence[str] = (),
    orientation: Orientation = "quaternion",
) -> Robot:
    """Reads a robot.

    ```python
    arm = wm.robots.load("arm.xml", locked=["gripper"])
    ```

    Elements of the file that the symbolic functions leave out (tendons, say) are named by a
    `RobotWarning`.  Elements that make another robot of it (loops, couplings of joints, flexible
    bodies) raise.

    Args:
        source: Path of an MJCF or URDF file, XML, or a `mujoco.MjSpec`.
        floating: Whether the base gets a free joint that the file does not have.
        locked: Names of joints that stay at the position in which the file is written.
        orientation: Coordinates of ball and free joints: "quaternion" as MuJoCo has them, or "zyx":
            yaw, pitch and roll.  Those are singular at a pitch of 90 degrees.
    """
    if orientation not in ORIENTATIONS:
        raise SettingsError(f"orientation must be one of {ORIENTATIONS}, got {orientation!r}.")
    model = reading.compiled(source, ex.flag(floating, "floating"), locked)
    what = reading.described(source)
    left_out.check(model, what)
    tree, frames = read_tree(model, orientation, reading.velocity_limits(source))
    return Robot(
        tree=tree,
        actuators=read_actuators(model, tree, what),
        bodies=named_bodies(model, frames),
        sites=named_sites(model, frames),
        mujoco_model=model,
    )


@dataclass(frozen=True, eq=False)
class Robot:
    """A tree of rigid bodies; its methods make SX expressions.

    Coordinates and velocities are those of MuJoCo, unless the robot is loaded with the orientation
    "zyx".  A free joint has the position of its body and the quaternion (w first) in q; in v it has
    the velocity of the origin of the body in the axes of the world, and the angular velocity in the
    axes of the body.  A ball joint has a quaternion, and the angular velocity in the axes of the
    body behind it.  Torques belong to velocities, in the same axes.

    Forces of contact are not part of the functions; hand them over as external forces.

    Attributes:
        tree: Links and joints.
        actuators: Actuators at joints.
        bodies: Frames of the bodies of the file, by name.
        sites: Frames of the sites of the file, by name.
        mujoco_model: The compiled `mujoco.MjModel`.
    """

    tree: Tree
    actuators: tuple[Actuator, ...]
    bodies: dict[str, Frame]
    sites: dict[str, Frame]
    mujoco_model: Any

    def __repr__(self) -> str:
        """Joints, actuators and named frames."""
        joints = ", ".join(f"{joint.name} ({joint.kind})" for joint in self.joints)
        names = [name for name in (*self.bodies, *self.sites) if name != "world"]
        return (
            f"Robot(nq={self.nq}, nv={self.nv}, {self.mass:g} kg, joints: {joints}; "
            f"{self.nu} actuators; bodies and sites: {', '.join(names)})"
        )

    @property
    def joints(self) -> tuple[Joint, ...]:
        """Joints in the order of their coordinates."""
        return self.tree.joints

    @property
    def nq(self) -> int:
        """Number of coordinates."""
        return self.tree.nq

    @property
    def nv(self) -> int:
        """Number of velocities, and of torques."""
        return self.tree.nv

    @property
    def nu(self) -> int:
        """Number of actuators."""
        return len(self.actuators)

    @property
    def mass(self) -> float:
        """Mass of everything that moves."""
        return self.tree.mass

    @property
    def q0(self) -> np.ndarray:
        """Coordinates of the configuration in which the file is written."""
        return self.from_mujoco(self.mujoco_model.qpos0)

    def symbols(self) -> tuple[ca.SX, ca.SX]:
        """New symbols of coordinates and velocities."""
        return ca.SX.sym("q", self.nq), ca.SX.sym("v", self.nv)

    def inverse_dynamics(self, q: ca.SX, v: ca.SX, a: ca.SX, forces: Forces | None = None) -> ca.SX:
        """Torques that cause given accelerations, with damping and springs, without dry friction.

        Args:
            q: Coordinates.
            v: Velocities.
            a: Time derivatives of v.
            forces: External forces by the name of a body or site: force (3 rows) or force and
                moment (6 rows) at its origin, in the axes of the world.
        """
        q, v, a = self._columns(q=q, v=v, a=a)
        needed = inverse_dynamics(self.tree, q, v, a, self._wrenches(q, forces))
        return needed - actuation.passive(self.tree, q, v)

    def forward_dynamics(
        self, q: ca.SX, v: ca.SX, tau: ca.SX, forces: Forces | None = None
    ) -> ca.SX:
        """Accelerations for given torques, with damping and springs, without dry friction.

        Args:
            q: Coordinates.
            v: Velocities.
            tau: Torques, one per velocity.
            forces: As in `inverse_dynamics`.
        """
        q, v, tau = self._columns(q=q, v=v, tau=tau)
        total = tau + actuation.passive(self.tree, q, v)
        return forward_dynamics(self.tree, q, v, total, self._wrenches(q, forces))

    def xdot(self, q: ca.SX, v: ca.SX, tau: ca.SX, forces: Forces | None = None) -> ca.SX:
        """Time derivative of the state [q, v]; its arguments are those of `forward_dynamics`."""
        return ca.vertcat(self.q_rates(q, v), self.forward_dynamics(q, v, tau, forces))

    def mass_matrix(self, q: ca.SX) -> ca.SX:
        """Mass matrix with armatures; entries that are always zero are structural zeros."""
        (q,) = self._columns(q=q)
        return mass_matrix(self.tree, q)

    def bias(self, q: ca.SX, v: ca.SX) -> ca.SX:
        """Torques of gravity, Coriolis and centrifugal forces (`qfrc_bias` of MuJoCo)."""
        q, v = self._columns(q=q, v=v)
        return inverse_dynamics(self.tree, q, v, ca.SX.zeros(self.nv), {})

    def passive(self, q: ca.SX, v: ca.SX) -> ca.SX:
        """Torques of dampers and springs (`qfrc_passive` of MuJoCo)."""
        q, v = self._columns(q=q, v=v)
        return actuation.passive(self.tree, q, v)

    def dry_friction(self, v: ca.SX, width: float) -> ca.SX:
        """Torques of dry friction, smoothed: ``-friction * tanh(v / width)``.

        Args:
            v: Velocities.
            width: Velocity at which three quarters of the friction act.
        """
        (v,) = self._columns(v=v)
        return actuation.dry_friction(self.tree, v, width)

    def actuation(self, control: ca.SX, q: ca.SX, v: ca.SX) -> ca.SX:
        """Torques of the actuators for given controls, without their limits.

        Args:
            control: Controls, one per actuator.
            q: Coordinates.
            v: Velocities.
        """
        q, v = self._columns(q=q, v=v)
        control = ex.sized_column(control, self.nu, "control", "the robot")
        return actuation.torques(self.tree, self.actuators, control, q, v)

    def kinetic_energy(self, q: ca.SX, v: ca.SX) -> ca.SX:
        """Kinetic energy, that of armatures included."""
        q, v = self._columns(q=q, v=v)
        return kinematics.kinetic_energy(self.tree, q, v)

    def potential_energy(self, q: ca.SX) -> ca.SX:
        """Potential energy of weight (zero at the origin of the world) and springs."""
        (q,) = self._columns(q=q)
        return kinematics.gravitational_energy(self.tree, q) + actuation.spring_energy(self.tree, q)

    def center_of_mass(self, q: ca.SX) -> ca.SX:
        """Centre of mass of everything that moves, in the world."""
        (q,) = self._columns(q=q)
        return kinematics.center_of_mass(self.tree, q)

    def pose(self, name: str, q: ca.SX) -> Pose:
        """Position and rotation of a body or site in the world.

        Args:
            name: Name in the file.
            q: Coordinates.
        """
        (q,) = self._columns(q=q)
        return kinematics.frame_pose(self.tree, self.frame(name), q)

    def jacobian(self, name: str, q: ca.SX) -> tuple[ca.SX, ca.SX]:
        """Jacobians ``[3, nv]`` of the linear and angular velocity of a body or site.

        They are those of `mj_jac`: velocities of its origin, in the axes of the world.

        Args:
            name: Name in the file.
            q: Coordinates.
        """
        (q,) = self._columns(q=q)
        return kinematics.jacobian(self.tree, self.frame(name), q)

    def velocity(self, name: str, q: ca.SX, v: ca.SX) -> tuple[ca.SX, ca.SX]:
        """Linear and angular velocity of a body or site in the axes of the world.

        Args:
            name: Name in the file.
            q: Coordinates.
            v: Velocities.
        """
        q, v = self._columns(q=q, v=v)
        linear, angular = kinematics.jacobian(self.tree, self.frame(name), q)
        return linear @ v, angular @ v

    def q_rates(self, q: ca.SX, v: ca.SX) -> ca.SX:
        """Time derivatives of the coordinates."""
        q, v = self._columns(q=q, v=v)
        return coordinates.coordinate_rates(self.tree, q, v)

    def integrate(self, q: ca.SX, v: ca.SX, dt: ExpressionLike) -> ca.SX:
        """Coordinates after a time with constant velocities, as `mj_integratePos` has them.

        Quaternions keep their length.  With "zyx" the angles make an Euler step.

        Args:
            q: Coordinates.
            v: Velocities.
            dt: The time.
        """
        q, v = self._columns(q=q, v=v)
        return coordinates.integrated(self.tree, q, v, ex.scalar(dt, "dt"))

    def to_mujoco(self, q: Any) -> np.ndarray:
        """Coordinates ``[..., nq]`` as `qpos` of MuJoCo."""
        return coordinates.to_mujoco(self.tree, q)

    def from_mujoco(self, qpos: Any) -> np.ndarray:
        """Coordinates from `qpos` of MuJoCo ``[..., nq]``."""
        return coordinates.from_mujoco(self.tree, qpos)

    def torque_limits(self) -> tuple[np.ndarray, np.ndarray]:
        """Least and largest torque of each velocity that actuators and joints allow.

        Where no actuator acts the limits are zero; in a file without any actuator they are those of
        the joints.
        """
        return actuation.torque_limits(self.tree, self.actuators)

    def control_limits(self) -> tuple[np.ndarray, np.ndarray]:
        """Least and largest control of each actuator."""
        return actuation.control_limits(self.actuators)

    def limits(
        self,
        ocp: OCP,
        *,
        q: ca.SX | None = None,
        v: ca.SX | None = None,
        tau: ca.SX | None = None,
        control: ca.SX | None = None,
        soft: Any = None,
    ) -> None:
        """Takes limits of the file over as bounds: positions and velocities at all nodes, inputs.

        Rows are named "position[...]", "velocity[...]", "torque[...]" and "control[...]".

        Args:
            ocp: The problem.
            q: Coordinates; None: the first nq states.
            v: Velocities; None: the nv states after them.
            tau: Torques, one per velocity; None: all inputs, if there are nv of them.
            control: Controls; None: all inputs, if there are as many as actuators.
            soft: Penalties of positions and velocities, as in `OCP.subject_to`; None: hard bounds.
        """
        take_over(self, ocp, {"q": q, "v": v, "tau": tau, "control": control}, soft)

    def frame(self, name: str) -> Frame:
        """The frame of a body or site."""
        if name in self.sites and name in self.bodies:
            raise ProblemError(f"{name!r} is a body and a site of the robot; rename one of them.")
        found = self.sites.get(name) or self.bodies.get(name)
        if found is None:
            raise ProblemError(
                f"The robot has no body or site {name!r}; bodies are {sorted(self.bodies)}, sites "
                f"{sorted(self.sites)}."
            )
        return found

    def _columns(self, **given: ExpressionLike) -> list[ca.SX]:
        sizes = {"q": self.nq}
        columns: list[ca.SX] = []
        for name, value in given.items():
            column, size = ex.column(value, name), sizes.get(name, self.nv)
            if column.numel() != size:
                raise ProblemError(f"{name} has {column.numel()} rows, the robot needs {size}.")
            columns.append(column)
        return columns

    def _wrenches(self, q: ca.SX, forces: Forces | None) -> dict[int, Wrench]:
        """External wrenches by link."""
        wrenches: dict[int, Wrench] = {}
        for name, given in (forces or {}).items():
            frame, column = self.frame(name), ex.column(given, f"force at {name!r}")
            if column.numel() not in (3, 6):
                raise ProblemError(
                    f"The force at {name!r} has {column.numel()} rows; give 3, or 6 with a moment."
                )
            wrench = kinematics.applied_wrench(self.tree, frame, q, column)
            so_far = wrenches.get(frame.link)
            wrenches[frame.link] = wrench if so_far is None else so_far + wrench
        return wrenches
