"""Optimal control problems of the textbooks with their published data.

Each builder returns an `OCP`; `TEXTBOOK` has all of them with their initial states.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import casadi as ca
import numpy as np

import warpmpc as wm

GRAVITY = 9.81
BALL_BOUND = 1 / 9  # the position in Bryson and Denham's problem stays below


def van_der_pol(horizon: int = 40) -> wm.OCP:
    """The oscillator of CasADi's examples: bounded control, one state bounded from below."""
    x, u = ca.SX.sym("x", 2), ca.SX.sym("u")
    ocp = wm.OCP(x, u, horizon=horizon, dt=10.0 / horizon)
    ocp.set_dynamics([(1 - x[1] ** 2) * x[0] - x[1] + u, x[0]])
    ocp.add_cost(ocp.dt * (ca.sumsqr(x) + u**2))
    ocp.subject_to(-1, u, 1, name="control")
    ocp.subject_to(-0.25, x[0], None, at=range(1, horizon + 1), name="state")
    return ocp


def point_around_disc(horizon: int = 40) -> wm.OCP:
    """A point mass in the plane goes from rest to rest around a disc with least effort."""
    p, v, a = ca.SX.sym("p", 2), ca.SX.sym("v", 2), ca.SX.sym("a", 2)
    ocp = wm.OCP(ca.vertcat(p, v), a, horizon=horizon, dt=2.0 / horizon)
    ocp.set_dynamics(ca.vertcat(v, a))
    ocp.add_cost(0.5 * ocp.dt * ca.sumsqr(a))
    center, radius = ca.SX([0.55, 0.3]), 0.3
    ocp.subject_to(radius**2, ca.sumsqr(p - center), None, at=range(1, horizon), name="disc")
    goal = ca.SX([1, 1, 0, 0])
    ocp.subject_to(goal, ocp.x, goal, at="terminal", name="goal")
    ocp.set_guess(x=(1 - ocp.tau) * ocp.x0 + ocp.tau * goal)
    return ocp


def pendulum_swing_up(horizon: int = 60) -> wm.OCP:
    """Swings from hanging to standing in 3 s, with half of the torque that holds it level."""
    angle, rate, torque = ca.SX.sym("angle"), ca.SX.sym("rate"), ca.SX.sym("torque")
    ocp = wm.OCP(ca.vertcat(angle, rate), torque, horizon=horizon, dt=3.0 / horizon)
    ocp.set_dynamics([rate, -GRAVITY * ca.sin(angle) + torque])
    ocp.add_cost(ocp.dt * torque**2)
    ocp.subject_to(-GRAVITY / 2, torque, GRAVITY / 2, name="torque")
    upright = ca.SX([np.pi, 0])
    ocp.subject_to(upright, ocp.x, upright, at="terminal", name="upright")
    ocp.set_guess(x=(1 - ocp.tau) * ocp.x0 + ocp.tau * upright)
    return ocp


def bryson_denham(horizon: int = 40) -> wm.OCP:
    """A ball is thrown back with least effort and must not pass a wall; optimum 4 / (9 bound)."""
    x, v, a = ca.SX.sym("x"), ca.SX.sym("v"), ca.SX.sym("a")
    ocp = wm.OCP(ca.vertcat(x, v), a, horizon=horizon, dt=1.0 / horizon)
    ocp.set_dynamics([v, a])
    ocp.add_cost(0.5 * ocp.dt * a**2)
    ocp.subject_to(None, x, BALL_BOUND, at=range(1, horizon), name="wall")
    end = ca.SX([0, -1])
    ocp.subject_to(end, ocp.x, end, at="terminal", name="end")
    return ocp


def car_parking(horizon: int = 50) -> wm.OCP:
    """A kinematic car beside its parking place backs into it in 5 s."""
    place = ca.SX.sym("place", 2)
    heading, speed = ca.SX.sym("heading"), ca.SX.sym("speed")
    acceleration, steering = ca.SX.sym("acceleration"), ca.SX.sym("steering")
    x, u = ca.vertcat(place, heading, speed), ca.vertcat(acceleration, steering)
    ocp = wm.OCP(x, u, horizon=horizon, dt=5.0 / horizon)
    wheelbase = 2.5
    ocp.set_dynamics(
        [
            speed * ca.cos(heading),
            speed * ca.sin(heading),
            speed * ca.tan(steering) / wheelbase,
            acceleration,
        ]
    )
    ocp.add_cost(ocp.dt * (acceleration**2 + steering**2))
    ocp.subject_to([-3, -0.6], u, [3, 0.6], name="inputs")
    ocp.subject_to(-1.5, speed, 1.5, at=range(1, horizon), name="speed")
    ocp.subject_to(0, x, 0, at="terminal", name="parked")
    ocp.set_guess(x=(1 - ocp.tau) * ocp.x0)
    return ocp


@dataclass(frozen=True)
class Textbook:
    """A problem, where it starts, and constraints that its solution meets."""

    build: Callable[[], wm.OCP]
    x0: tuple[float, ...]
    active: tuple[str, ...]


TEXTBOOK = {
    "van_der_pol": Textbook(van_der_pol, (0.0, 1.0), ("state",)),
    "point_around_disc": Textbook(point_around_disc, (0.0, 0.0, 0.0, 0.0), ("disc",)),
    "pendulum_swing_up": Textbook(pendulum_swing_up, (0.0, 0.0), ("torque",)),
    "bryson_denham": Textbook(bryson_denham, (0.0, 1.0), ("wall",)),
    "car_parking": Textbook(car_parking, (6.0, 2.0, 0.0, 0.0), ("inputs", "speed")),
}
