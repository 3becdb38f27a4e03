"""Formulations of dynamics for optimal control problems."""

from __future__ import annotations

import casadi as ca

from warpmpc._errors import ProblemError
from warpmpc.problem import expressions as ex
from warpmpc.robots.robot import Forces, Robot


def inverse_dynamics_rows(
    robot: Robot,
    q: ca.SX,
    v: ca.SX,
    a: ca.SX,
    *,
    tau: ca.SX | None = None,
    control: ca.SX | None = None,
    forces: Forces | None = None,
) -> ca.SX:
    """Rows that are zero where torques and accelerations fit: dynamics with torques as variables.

    Inverse dynamics are about a third of the operations of forward dynamics, and their derivatives
    are shorter still.  Accelerations and torques are inputs then:

    ```python
    ocp = wm.OCP({"q": q, "v": v}, {"a": a, "tau": tau}, horizon=20, dt=0.05)
    ocp.set_dynamics(ca.vertcat(robot.q_rates(q, v), a))
    rows = wm.robots.inverse_dynamics_rows(robot, q, v, a, tau=tau)
    ocp.subject_to(0, rows, 0, name="dynamics of the robot")
    ```

    Args:
        robot: The robot.
        q: Coordinates.
        v: Velocities.
        a: Accelerations.
        tau: Torques, one per velocity; those of joints without an actuator belong into `limits`.
        control: Instead of tau: controls of the actuators.
        forces: External forces, as in `Robot.inverse_dynamics`.
    """
    if tau is None and control is not None:
        tau = robot.actuation(control, q, v)
    elif tau is None or control is not None:
        raise ProblemError("inverse_dynamics_rows needs either tau or control.")
    return robot.inverse_dynamics(q, v, a, forces) - ex.sized_column(tau, robot.nv, "tau", "robot")
