"""The quadrotor among vertical cylinders, which it has to fly around.

Everything of `systems.quadrotor`, and at every node one row per cylinder; the `cylinders` (center,
inflated radius) are a parameter.
"""

from __future__ import annotations

import inspect
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import casadi as ca
import numpy as np

from warpmpc._errors import ProblemError
from warpmpc.problem.ocp.ocp import OCP
from warpmpc.systems import quadrotor
from warpmpc.systems.base import (
    SATISFIED,
    Metrics,
    System,
    benchmark_settings,
    generator,
    worst,
)
from warpmpc.systems.recipe import Description, Recipe

STEPS = 200
CYLINDERS = np.array(
    [[0.58, 0.42, 0.17], [-0.62, 0.56, 0.22], [0.55, -0.62, 0.15], [-0.78, -0.35, 0.19]]
)
MARGIN = 0.10  # by which radii are inflated, for the size of the quadrotor [m]
ROW_SCALE = 20.0
CLEARANCE = 0.04  # initial positions keep it [m]
AREA, HEIGHTS = 1.15, (-0.35, 0.75)  # where initial positions are [m]


def build(
    horizon: int = quadrotor.HORIZON, n_cylinders: int = 4, *, free_physics: bool = False
) -> OCP:
    """The optimal control problem; the parameter "cylinders" has no default.

    Args:
        horizon: Number of intervals.
        n_cylinders: Number of cylinders.
        free_physics: See `quadrotor.build`.
    """
    cylinders = ca.SX.sym("cylinders", 3 * n_cylinders)
    ocp = quadrotor.build(horizon, free_physics=free_physics, cylinders=cylinders)
    rows = ca.reshape(cylinders, 3, n_cylinders)
    squares = (ocp.x[0] - rows[0, :]) ** 2 + (ocp.x[1] - rows[1, :]) ** 2
    least = ROW_SCALE * rows[2, :] ** 2
    ocp.subject_to(least.T, ROW_SCALE * squares.T, None, at="all", name="cylinders")
    ocp.set_guess(x=ocp.x0)
    return ocp


def inflated(cylinders: np.ndarray) -> np.ndarray:
    """Cylinders with the radii that the center of the quadrotor has to keep."""
    return cylinders + np.array([0.0, 0.0, MARGIN])


def clearance(position: np.ndarray, cylinders: np.ndarray) -> np.ndarray:
    """Distance of positions ``[..., 2]`` to each inflated cylinder ``[..., n]``."""
    center, radius = cylinders[:, :2], cylinders[:, 2] + MARGIN
    return np.linalg.norm(position[..., None, :] - center, axis=-1) - radius


def sample(batch: int, seed: int | None = None, *, cylinders: np.ndarray = CYLINDERS) -> np.ndarray:
    """At rest, anywhere outside the cylinders, with any yaw; seed 0 by default.

    Args:
        batch: Number of instances.
        seed: Seed of the draws.
        cylinders: Centers and radii ``[n, 3]``.
    """
    rng = generator(batch, 0 if seed is None else seed)
    found = np.zeros((0, 2))
    while len(found) < batch:
        missing = batch - len(found)
        drawn = rng.uniform(-AREA, AREA, (max(64, 3 * missing), 2))
        fine = (clearance(drawn, cylinders) >= CLEARANCE).all(axis=1)
        found = np.concatenate([found, drawn[fine][:missing]])
    x = np.zeros((batch, len(quadrotor.STATES)))
    x[:, :2] = found
    x[:, 2] = rng.uniform(*HEIGHTS, batch)
    x[:, 5] = rng.uniform(-np.pi, np.pi, batch)
    return x


def metrics(x: np.ndarray, u: np.ndarray, *, cylinders: np.ndarray = CYLINDERS) -> Metrics:
    """Results of the quadrotor; the violation is the depth of penetration [m]."""
    found = quadrotor.metrics(x, u)
    depth = -clearance(np.asarray(x, dtype=np.float64)[..., :2], cylinders)
    violation = worst(depth, found["satisfied"])
    return {**found, "satisfied": violation <= SATISFIED, "violation": violation}


def _checked(cylinders: Any) -> np.ndarray:
    array = np.asarray(cylinders, dtype=np.float64)
    if array.ndim != 2 or array.shape[1] != 3 or not len(array) or not np.all(array[:, 2] > 0):
        raise ProblemError(
            "cylinders needs the shape [n, 3]: center x, center y and a positive radius each, got "
            f"{array.tolist()}."
        )
    return array


def build_among(
    horizon: int, cylinders: np.ndarray = CYLINDERS, *, free_physics: bool = False
) -> OCP:
    """The optimal control problem with given cylinders as the default of the parameter.

    Args:
        horizon: Number of intervals.
        cylinders: Centers and radii ``[n, 3]``, not inflated.
        free_physics: See `quadrotor.build`.
    """
    ocp = build(horizon, len(cylinders), free_physics=free_physics)
    ocp.set_default("cylinders", inflated(cylinders).ravel())
    return ocp


@dataclass(frozen=True, eq=False)
class AmongCylinders(Recipe):
    """A recipe with one option more: the cylinders, which samples and metrics need as well."""

    def __call__(
        self, horizon: int | None = None, *, cylinders: Any = None, **options: Any
    ) -> System:
        """Builds the system.

        Args:
            horizon: Number of intervals.
            cylinders: Centers and radii ``[n, 3]``, not inflated; None: those of the benchmark.
            **options: Other sizes, and `free_physics`.
        """
        if cylinders is None:
            return super().__call__(horizon, **options)
        given = _checked(cylinders)
        among = replace(
            self,
            build=partial(build_among, cylinders=given),
            sample=partial(sample, cylinders=given),
            metrics=partial(metrics, cylinders=given),
        )
        return among(horizon, **options)

    @property
    def __signature__(self) -> inspect.Signature:
        """That of a recipe, and the cylinders."""
        shared = super().__signature__
        more = inspect.Parameter("cylinders", inspect.Parameter.KEYWORD_ONLY, default=None)
        known = {**shared.parameters, more.name: more}
        return shared.replace(parameters=list(known.values()))


make = AmongCylinders(
    "quadrotor_obstacles",
    Description(
        "quadrotors fly between cylinders to one set-point",
        alias="obstacles",
        scene="warpmpc_bench.demos.obstacles_scene:ObstaclesScene",
    ),
    build_among,
    sample,
    quadrotor.simulate,
    metrics,
    settings=partial(benchmark_settings, step_min=0.01, rho_equality=1e3),
    sizes={"horizon": quadrotor.HORIZON, "sqp_iter": 1, "admm_iter": 100},
    control_dt=quadrotor.CONTROL_DT,
    steps=STEPS,
)
