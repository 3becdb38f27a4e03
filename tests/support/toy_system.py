"""A toy system and a toy baseline, as users would register them from outside of the package."""

from __future__ import annotations

from typing import Any

import casadi as ca
import jax.numpy as jnp
import numpy as np

from warpmpc import OCP
from warpmpc.systems.base import (
    batched,
    benchmark_settings,
    closed_loop,
    closed_loop_metrics,
    generator,
    symbolic,
)
from warpmpc.systems.recipe import Description, Recipe
from warpmpc_bench.common.baseline import Baseline
from warpmpc_bench.common.timing import Measured, measure
from warpmpc_bench.mpc.baselines import judge_loop

DT, PUSH = 0.1, 2.0
STEPS = 2  # closed loops of the baseline are so long


def xdot(ops, x, u):
    return [x[1], ops.sin(x[0]) + u[0]]


def build(horizon, *, integrator="euler"):
    x, u = ca.SX.sym("x", 2), ca.SX.sym("u")
    ocp = OCP(x, u, horizon=horizon, dt=DT)
    ocp.set_dynamics(symbolic(xdot, x, u), integrator=integrator)
    ocp.add_residual(ca.vertcat(x, u), weight=[1, 1, 0.1])
    ocp.subject_to(-PUSH, u, PUSH, name="push")
    return ocp


def sample(batch, seed=None):
    return 0.3 * generator(batch, seed).normal(size=(batch, 2))


def simulate(x, u):
    return x + DT * batched(xdot, x, jnp.clip(u, -PUSH, PUSH))


def metrics(x, u):
    x, u, finite = closed_loop(x, u, 2, 1)
    error = np.abs(x[:, -1]).max(axis=1)
    return closed_loop_metrics(
        finite, success=error <= 0.1, input_excess=np.abs(u) - PUSH, final_error=error
    )


TOY = Recipe(
    "toy",
    Description("toys stand up", benchmark={"horizon": 4}, alias="t", demo_batch=5),
    lambda horizon: build(horizon),
    sample,
    simulate,
    metrics,
    settings=benchmark_settings,
    sizes={"horizon": 6, "sqp_iter": 2, "admm_iter": 50},
    control_dt=DT,
    steps=3,
)


def _rest(case: Any, repeats: int) -> Measured:
    """A solver that does nothing."""
    u = np.zeros((case.batch, STEPS, case.system.n_u))
    x = np.repeat(np.asarray(case.x0)[:, None], STEPS + 1, axis=1)
    nothing = np.zeros((case.batch, STEPS))
    accuracy = judge_loop(case, x, u, nothing == 0, nothing)
    timing = measure(lambda: None, repeats=repeats)
    details = {"compile": {"total_s": 0.0}, "latency": {"step_ms": 1.0, "call_ms": 1.0}}
    return Measured({"solve": timing}, {"engine": "rest"}, accuracy, units=STEPS, details=details)


REST = Baseline(
    "rests", _rest, lambda: None, {"gpu": 2, "cpu": 2}, lambda itemsize: itemsize, on_host=True
)
