"""Forces at joints: dampers, springs, dry friction and actuators, and the limits of these."""

from __future__ import annotations

from collections.abc import Sequence

import casadi as ca
import numpy as np

from warpmpc.robots.tree import Actuator, Tree


def passive(tree: Tree, q: ca.SX, v: ca.SX) -> ca.SX:
    """Torques of dampers and springs."""
    torques: list[ca.SX] = []
    for joint in tree.joints:
        torque = -joint.damping * v[joint.v]
        if joint.stiffness:
            torque = torque - joint.stiffness * (q[joint.q] - joint.spring)
        torques.append(torque)
    return ca.vertcat(*torques)


def spring_energy(tree: Tree, q: ca.SX) -> ca.SX:
    """Energy of all springs."""
    energy = ca.SX(0)
    for joint in tree.joints:
        if joint.stiffness:
            energy += joint.stiffness / 2 * (q[joint.q] - joint.spring) ** 2
    return energy


def dry_friction(tree: Tree, v: ca.SX, width: float) -> ca.SX:
    """Smoothed torques of dry friction."""
    return ca.vertcat(*(-joint.friction * ca.tanh(v[joint.v] / width) for joint in tree.joints))


def torques(tree: Tree, actuators: Sequence[Actuator], control: ca.SX, q: ca.SX, v: ca.SX) -> ca.SX:
    """Torques of actuators, without limits.

    Args:
        tree: The robot.
        actuators: Its actuators.
        control: Their controls.
        q: Coordinates.
        v: Velocities.
    """
    total = ca.SX.zeros(tree.nv)
    for i, actuator in enumerate(actuators):
        joint = tree.joints[actuator.joint]
        constant, length, velocity = actuator.bias
        force = actuator.gain * control[i] + constant
        gear = ca.SX(ca.DM(actuator.gear))
        if length:  # only for hinges and slides
            force = force + length * gear * q[joint.q]
        if velocity:
            force = force + velocity * gear * v[joint.v]
        total[joint.v] += gear * force
    return total


def control_limits(actuators: Sequence[Actuator]) -> tuple[np.ndarray, np.ndarray]:
    """Least and largest controls; those of motors respect the limits of forces and joints."""
    lower, upper = np.empty(len(actuators)), np.empty(len(actuators))
    for i, actuator in enumerate(actuators):
        lower[i], upper[i] = actuator.control
        if actuator.gain and not any(actuator.bias):
            least, largest = sorted(np.array(actuator.force) / actuator.gain)
            lower[i], upper[i] = max(lower[i], least), min(upper[i], largest)
    return lower, upper


def torque_limits(tree: Tree, actuators: Sequence[Actuator]) -> tuple[np.ndarray, np.ndarray]:
    """Least and largest torques that actuators, added up, and joints allow."""
    lower, upper = np.zeros(tree.nv), np.zeros(tree.nv)
    for actuator in actuators:
        joint = tree.joints[actuator.joint]
        ends = _products(actuator.gear, _forces(actuator))
        lower[joint.v] += ends.min(axis=0)
        upper[joint.v] += ends.max(axis=0)
    for joint in tree.joints:
        if not actuators and joint.kind != "free":
            lower[joint.v], upper[joint.v] = -np.inf, np.inf
        lower[joint.v] = np.maximum(lower[joint.v], joint.torque[0])
        upper[joint.v] = np.minimum(upper[joint.v], joint.torque[1])
    return lower, upper


def _forces(actuator: Actuator) -> np.ndarray:
    """Least and largest force of an actuator."""
    least, largest = actuator.force
    if not any(actuator.bias):
        ends = _products(np.array([actuator.gain]), np.array(actuator.control))[:, 0]
        least, largest = max(least, ends.min()), min(largest, ends.max())
    return np.array([least, largest])


def _products(factors: np.ndarray, ends: np.ndarray) -> np.ndarray:
    """Both ends times each factor, ``[2, n]``; zero times infinity is zero."""
    with np.errstate(invalid="ignore"):
        products = ends[:, None] * factors
    return np.where(factors == 0, 0.0, products)
