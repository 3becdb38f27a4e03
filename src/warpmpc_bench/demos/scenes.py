"""The scene of each closed-loop demo; add one to `SCENES`."""

from __future__ import annotations

from collections.abc import Callable

from warpmpc.viz.scene import Scene
from warpmpc_bench.demos.car_scene import CarScene
from warpmpc_bench.demos.cartpole_scene import CartpoleScene
from warpmpc_bench.demos.loop import LoopDemo
from warpmpc_bench.demos.obstacles_scene import ObstaclesScene
from warpmpc_bench.demos.pendulum_scene import PendulumScene
from warpmpc_bench.demos.quadrotor_scene import QuadrotorScene

SCENES: dict[str, Callable[[LoopDemo], Scene]] = {
    "pendulum": PendulumScene,
    "cartpole": CartpoleScene,
    "car": CarScene,
    "quadrotor": QuadrotorScene,
    "obstacles": ObstaclesScene,
}
