"""Robots: rigid bodies from MJCF and URDF files, as symbolic functions and as plants.

MuJoCo reads the files; it is imported when a robot is loaded (extra `robots`).
"""

from warpmpc.robots.drawing import render
from warpmpc.robots.formulations import inverse_dynamics_rows
from warpmpc.robots.kinematics import Pose
from warpmpc.robots.left_out import RobotWarning
from warpmpc.robots.plant import PD, MuJoCoPlant, TorqueLaw
from warpmpc.robots.robot import Robot, load
from warpmpc.robots.viewer import Viewer, view

__all__ = [
    "PD",
    "MuJoCoPlant",
    "Pose",
    "Robot",
    "RobotWarning",
    "TorqueLaw",
    "Viewer",
    "inverse_dynamics_rows",
    "load",
    "render",
    "view",
]
