"""The scene of each closed-loop demo; add one to `SCENES`."""

from __future__ import annotations

from collections.abc import Callable

from warpmpc.bench.car_demo_scene import CarScene
from warpmpc.bench.cartpole_demo_scene import CartpoleScene
from warpmpc.bench.loop_demo import LoopDemo
from warpmpc.bench.obstacles_demo_scene import ObstaclesScene
from warpmpc.bench.pendulum_demo_scene import PendulumScene
from warpmpc.bench.quadrotor_demo_scene import QuadrotorScene
from warpmpc.viz.scene import Scene

SCENES: dict[str, Callable[[LoopDemo], Scene]] = {
    "pendulum": PendulumScene,
    "cartpole": CartpoleScene,
    "car": CarScene,
    "quadrotor": QuadrotorScene,
    "obstacles": ObstaclesScene,
}
