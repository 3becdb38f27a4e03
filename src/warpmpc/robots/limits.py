"""Limits of a robot file as bounds of an optimal control problem."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import casadi as ca
import numpy as np

from warpmpc._errors import ProblemError
from warpmpc.problem import expressions as ex
from warpmpc.problem.ocp.ocp import OCP

if TYPE_CHECKING:
    from warpmpc.robots.robot import Robot


def take_over(robot: Robot, ocp: OCP, given: Mapping[str, ca.SX | None], soft: Any) -> None:
    """Adds the rows that `Robot.limits` describes.

    Args:
        robot: The robot.
        ocp: The problem.
        given: Expressions for q, v, tau and control; None for the defaults.
        soft: Penalties of the rows of positions and velocities.
    """
    q, v = (_states(robot, ocp, name, given[name]) for name in ("q", "v"))
    tau, control = _inputs(robot, ocp, given["tau"], given["control"])
    straight = [joint for joint in robot.joints if joint.kind in ("hinge", "slide")]
    positions = ca.vertcat(ca.SX(0, 1), *(q[joint.q] for joint in straight))
    lower = np.array([joint.lower for joint in straight])
    upper = np.array([joint.upper for joint in straight])
    speeds = np.concatenate(
        [np.full(joint.v.stop - joint.v.start, joint.velocity) for joint in robot.joints]
    )
    _bound(ocp, "position", (lower, positions, upper), at="all", soft=soft)
    _bound(ocp, "velocity", (-speeds, v, speeds), at="all", soft=soft)
    if tau is not None:
        least, largest = robot.torque_limits()
        _bound(ocp, "torque", (least, tau, largest))
    if control is not None:
        least, largest = robot.control_limits()
        _bound(ocp, "control", (least, control, largest))


def _bound(ocp: OCP, name: str, row: tuple[np.ndarray, ca.SX, np.ndarray], **options: Any) -> None:
    """One row per entry that has a limit."""
    lower, expression, upper = row
    limited = np.flatnonzero(np.isfinite(lower) | np.isfinite(upper)).tolist()
    if limited:
        ocp.subject_to(lower[limited], expression[limited], upper[limited], name=name, **options)


def _states(robot: Robot, ocp: OCP, name: str, given: ca.SX | None) -> ca.SX:
    begin, size = (0, robot.nq) if name == "q" else (robot.nq, robot.nv)
    if given is None:
        if ocp.x.numel() < begin + size:
            raise ProblemError(
                f"The problem has {ocp.x.numel()} states, but the robot needs {robot.nq} "
                f"coordinates and {robot.nv} velocities; pass q= and v=."
            )
        return ocp.x[begin : begin + size]
    column = ex.column(given, name)
    if column.numel() != size:
        raise ProblemError(f"{name} has {column.numel()} rows, the robot needs {size}.")
    return column


def _inputs(
    robot: Robot, ocp: OCP, tau: ca.SX | None, control: ca.SX | None
) -> tuple[ca.SX | None, ca.SX | None]:
    sizes = {"tau": robot.nv, "control": robot.nu}
    if tau is None and control is None:
        fitting = [name for name, size in sizes.items() if size == ocp.u.numel()]
        if len(fitting) == 2 and not _same_limits(robot):
            raise ProblemError(
                "The inputs may be torques or controls of actuators, whose limits differ; pass "
                "tau= or control=."
            )
        if not fitting:
            raise ProblemError(
                f"The problem has {ocp.u.numel()} inputs, which are neither {robot.nv} torques nor "
                f"{robot.nu} controls; pass tau= or control=."
            )
        return (ocp.u, None) if fitting[0] == "tau" else (None, ocp.u)
    for name, given in (("tau", tau), ("control", control)):
        if given is not None and ex.column(given, name).numel() != sizes[name]:
            rows = ex.column(given, name).numel()
            raise ProblemError(f"{name} has {rows} rows, the robot needs {sizes[name]}.")
    return tau, control


def _same_limits(robot: Robot) -> bool:
    """Whether controls are torques, in the same order and with the same limits."""
    pairs = zip(robot.torque_limits(), robot.control_limits(), strict=True)
    direct = all(
        actuator.gain == 1 and not any(actuator.bias) and np.all(actuator.gear == 1)
        for actuator in robot.actuators
    )
    return direct and all(np.array_equal(torque, control) for torque, control in pairs)
