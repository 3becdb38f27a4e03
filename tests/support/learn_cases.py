"""A task that solves in milliseconds: a double integrator with a limited input."""

from __future__ import annotations

import contextlib
import functools
import os
import signal

import casadi as ca
import jax.numpy as jnp
import numpy as np

import warpmpc as wm
from warpmpc.learn import Noise, Task

DT, HORIZON, LIMIT = 0.1, 6, 2.0
A, B = np.array([[1.0, DT], [0.0, 1.0]]), np.array([[DT**2 / 2], [DT]])


def plant(x, u):
    u = jnp.clip(u, -LIMIT, LIMIT)
    return x @ jnp.asarray(A.T, x.dtype) + u @ jnp.asarray(B.T, x.dtype)


def sampler(batch, seed):
    return np.random.default_rng(seed).uniform(-0.5, 0.5, (batch, 2))


def cost(x, u):
    return (x**2).sum(axis=(1, 2)) + 0.1 * (u**2).sum(axis=(1, 2))


def metrics(x, u):
    return {
        "success": np.linalg.norm(x[:, -1], axis=1) < 0.2,
        "input_excess": np.maximum(np.abs(u).max(axis=(1, 2)) - LIMIT, 0),
    }


@functools.cache
def solver():
    x, u = ca.SX.sym("x", 2), ca.SX.sym("u")
    ocp = wm.OCP(x, u, {}, horizon=HORIZON, dt=DT)
    ocp.set_dynamics(x_next=ca.DM(A) @ x + ca.DM(B) @ u)
    ocp.add_residual(x, [2.0, 0.5])
    ocp.add_residual(u, 0.05)
    ocp.add_residual(x, [20.0, 5.0], at="terminal")
    ocp.subject_to(-LIMIT, u, LIMIT)
    settings = wm.SQPSettings(
        mode="fixed", max_iter=1, qp=wm.ADMMSettings(max_iter=30, check_every=0)
    )
    return wm.MPCSolver(ocp, settings)


def task(**changes):
    parts = {
        "steps": 25,
        "control_dt": DT,
        "noise": Noise(state=(0.01, 0.02), input=(0.1,)),
        "cost": cost,
        "metrics": metrics,
        "names": (("position", "velocity"), ("force",)),
        "units": (("m", "m/s"), ("N",)),
        "name": "integrator",
        "factory": "learn_cases:task",
    }
    fixed = {"solver": solver(), "plant": plant, "sampler": sampler}
    return Task(**{**fixed, **parts, **changes})


def task_that_is_killed_once():
    """In a worker, the first process that draws starts dies; the next ones live."""

    def deadly(batch, seed):
        marker = os.environ["LEARN_CASES_KILL"]
        with contextlib.suppress(FileExistsError):
            with open(marker, "x") as file:
                file.write(str(signal.SIGKILL.value))
            os.kill(os.getpid(), signal.SIGKILL)
        return sampler(batch, seed)

    return task(sampler=deadly)
