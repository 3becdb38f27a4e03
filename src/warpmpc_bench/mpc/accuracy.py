"""Whether a closed loop was right: figures of the whole batch, and float64 beside it.

Two questions are asked of every row.  Is a single solve right?  The same iterations in float64,
from where the measured loop was, give nearly the same control.  Is the closed loop as good?  A
sample of full length succeeds, and keeps its constraints, as often as in float64.  Single solves
are repeated on the sparse engine: another ordering and other kernels than the streaming one.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from warpmpc.mpc.solver import MPCSolver
from warpmpc.sim.rollout import rollout
from warpmpc.sim.types import Rollout
from warpmpc.systems.base import System
from warpmpc_bench.mpc.loop import MOST_PARTS, RESIDUALS, MeasuredLoop, checked_steps
from warpmpc_bench.mpc.setup import MPCSetup
from warpmpc_bench.mpc.variants import build_solver

# Deviation of the applied control relative to the range of this input: median and 95 % quantile.  A
# line search that decides otherwise by a last bit takes another step, so that few may be far off.
CONTROL_LIMITS = {"float32": (1e-3, 1e-2), "float64": (1e-6, 1e-4)}
# By how much fewer runs may succeed, or keep their constraints, than in float64: a few instances of
# a nonlinear loop may end on either side of a threshold.
RATE_MARGIN = 0.02
# Mean violation measure of the plans, relative and absolute.
THETA_FACTOR, THETA_SLACK = 1.1, 1e-4
_PART = 8192  # instances whose trajectories are on the host in float64 at once


@dataclass(frozen=True)
class MPCAccuracy:
    """How good the closed loop of a row was.

    Attributes:
        correct: Whether the row may be shown.
        failed: Names of the checks that failed.
        limits: Limits of all checks.
        loop: Figures of the whole measured loop; see `figures`.
        control: Deviation of applied controls from float64; see `deviation`.
        sample: Full-length loops of a sample: "size", "steps", "here" (this solver) and "float64",
            figures each; None if there were none.
        repeatable: Whether the last timed run applied the same controls as the judged one, bit by
            bit; None before it has run.
    """

    correct: bool
    failed: list[str]
    limits: dict[str, float | None]
    loop: dict[str, Any]
    control: dict[str, Any]
    sample: dict[str, Any] | None
    repeatable: bool | None = None

    def compared(self, judged: Any, timed: Any) -> MPCAccuracy:
        """The accuracy with a comparison of the controls of two runs."""
        same = np.array_equal(judged, timed, equal_nan=True)
        failed = self.failed if same else [*self.failed, "repeatable"]
        return replace(self, repeatable=same, correct=self.correct and same, failed=failed)


def figures(system: System, loop: Rollout) -> dict[str, Any]:
    """Figures of a closed loop.

    Returns:
        "steps", "finite"; mean and largest "theta" (of the line search, over all steps and
        instances), "plan_violation" (of any row of a plan), "primal_residual" and "dual_residual"
        (of the last QP of each step), "state_violation", "input_excess" and "final_error" (of the
        simulated system, per instance); "step_length" and "accepted" (means); "satisfied" (share of
        instances that keep the state constraints), and "success" (share; None where the loop is
        too short to tell).
    """
    steps = loop.u.shape[1]
    metrics = _metrics(system, loop)
    pairs = {"theta": loop.theta, "plan_violation": loop.violation}
    pairs |= {name: loop.recorded[name] for name in RESIDUALS}
    pairs |= {name: metrics[name] for name in ("input_excess", "final_error")}
    pairs["state_violation"] = metrics["violation"]
    finite = np.isfinite(metrics["final_error"]) & np.isfinite(metrics["input_excess"])
    return {
        "steps": steps,
        "finite": bool(finite.all()),
        **{name: mean_max(values) for name, values in pairs.items()},
        "step_length": mean_max(loop.step_length)[0],
        "accepted": mean_max(loop.accepted)[0],
        "satisfied": mean_max(metrics["satisfied"])[0],
        "success": mean_max(metrics["success"])[0] if steps >= system.steps else None,
    }


def _metrics(system: System, loop: Rollout) -> dict[str, np.ndarray]:
    """Metrics of the system, some instances at a time: they are computed on the host in float64."""
    parts = [
        system.judged(np.asarray(loop.x[a : a + _PART]), np.asarray(loop.u[a : a + _PART]))
        for a in range(0, loop.x.shape[0], _PART)
    ]
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def mean_max(values: Any) -> list[float | None]:
    """Mean and largest value; None where they are not finite, since JSON has no NaN."""
    array = np.asarray(values, dtype=np.float64)
    return [number(array.mean()), number(array.max())]


def number(value: Any) -> float | None:
    """A finite number, or None."""
    return float(value) if np.isfinite(value) else None


class Reference:
    """The same system and settings in float64.

    Attributes:
        system: A system of its own: JAX rejects one object in both of its modes.
        solver: Solver of the closed loops.
    """

    def __init__(self, setup: MPCSetup):
        """Builds both solvers; single solves use the sparse engine."""
        with jax.enable_x64(True):
            self.system = setup.make()
            self.solver = self.system.solver(dtype="float64")
            self._other = self.system.solver(dtype="float64", engine="sparse")

    def controls(self, loop: MeasuredLoop, size: int) -> np.ndarray:
        """First inputs from the starts of a loop, ``[instances, steps, n_u]``.

        Args:
            loop: Closed loop with starts.
            size: Instances of the solve: one compiled program for smaller samples, too.
        """
        starts = jax.tree.map(lambda a: np.asarray(a, dtype=np.float64), loop.starts)
        leading = starts[0].shape[:2]
        t = np.broadcast_to(checked_steps(loop.rollout.u.shape[1]), leading).ravel()
        flat = jax.tree.map(lambda a: a.reshape(-1, a.shape[-1]), starts)
        padded = jax.tree.map(lambda a: np.resize(a, (max(size, len(a)), a.shape[-1])), flat)
        with jax.enable_x64(True):
            x, warm_start = jax.tree.map(jnp.asarray, padded)
            params = self.system.params_at(jnp.asarray(np.resize(t, len(x))), x)
            u = np.asarray(self._other.solve(x, params, warm_start).u)
        return u[: leading[0] * leading[1], 0].reshape(*leading, -1)


@cache
def reference(setup: MPCSetup) -> Reference:
    """The reference of a system, built once."""
    return Reference(setup)


def sample_loop(system: System, solver: MPCSolver, size: int) -> dict[str, Any]:
    """Figures of `size` closed loops of full length."""
    x0 = jnp.asarray(system.sample(size), dtype=solver.dtype)
    loop = rollout(
        solver,
        system.simulate,
        x0,
        system.steps,
        params=system.references,
        shift=False,
        record=RESIDUALS,
    )
    return figures(system, loop)


@cache
def _sample_here(name: str, setup: MPCSetup, dtype: str, size: int) -> Any:
    """The accuracy of a variant; computed once for all batch sizes."""
    built = build_solver(name, setup, dtype)
    return sample_loop(built.system, built.solver, size)


@cache
def _sample_exact(setup: MPCSetup, size: int) -> Any:
    """The reference in float64."""
    oracle = reference(setup)
    with jax.enable_x64(True):
        return sample_loop(oracle.system, oracle.solver, size)


def deviation(loop: Rollout, wanted: np.ndarray, where: np.ndarray) -> dict[str, Any]:
    """How far applied controls are from those of float64.

    Args:
        loop: The measured loop.
        wanted: Controls of float64 at the checked steps, ``[instances, steps, n_u]``.
        where: Instances of the loop.

    Returns:
        "instances", "steps", "range" (of each input over the sample and the whole loop, or its
        largest size if that is more), and median, 95 % quantile and maximum over instances, steps
        and inputs: "absolute", and "relative" to the range.
    """
    u = np.asarray(loop.u[where], dtype=np.float64)
    steps = checked_steps(u.shape[1])
    # An input that sits at its limit has no range to speak of.
    span = np.maximum(np.ptp(u, axis=(0, 1)), np.abs(u).max(axis=(0, 1)))
    span = np.where(span == 0, 1.0, span)
    difference = np.abs(u[:, steps] - wanted)
    return {
        "instances": len(where),
        "steps": steps.tolist(),
        "range": [number(value) for value in span],
        "absolute": _quantiles(difference),
        "relative": _quantiles(difference / span),
    }


def _quantiles(values: np.ndarray) -> dict[str, float | None]:
    if not np.isfinite(values).all():
        return {"median": None, "p95": None, "max": None}
    median, p95 = np.quantile(values, [0.5, 0.95])
    return {"median": float(median), "p95": float(p95), "max": float(values.max())}


def judge(
    loop: MeasuredLoop,
    where: np.ndarray,
    key: tuple[str, MPCSetup, str],
    size: int,
    *,
    full_loops: bool = True,
) -> MPCAccuracy:
    """All figures of a measured loop, and whether it may be shown.

    Args:
        loop: The whole batch.
        where: Instances whose starts were kept.
        key: Variant, setup and dtype.
        size: Size of the sample of full-length loops.
        full_loops: Whether to run that sample.
    """
    _, setup, dtype = key
    oracle = reference(setup)
    found = figures(oracle.system, loop.rollout)
    control = deviation(loop.rollout, oracle.controls(loop, MOST_PARTS * size), where)
    median, p95 = CONTROL_LIMITS[dtype]
    limits: dict[str, float | None] = {"control": median, "control_p95": p95}
    checks = {
        "control": at_most(control["relative"]["median"], limits["control"]),
        "control_p95": at_most(control["relative"]["p95"], limits["control_p95"]),
        "finite": found["finite"],
    }
    sample = None
    if full_loops:
        here, exact = _sample_here(*key, size), _sample_exact(setup, size)
        sample = {"size": size, "steps": here["steps"], "here": here, "float64": exact}
        limits |= _sample_limits(exact)
        checks |= _sample_checks(found, here, limits)
    failed = [check for check, fine in checks.items() if not fine]
    return MPCAccuracy(not failed, failed, limits, found, control, sample)


def _sample_checks(found: Any, here: Any, limits: dict[str, Any]) -> dict[str, bool]:
    """Whether full-length loops, of the whole batch if it has any, are as good as in float64."""
    checks = {
        "finite": found["finite"] and here["finite"],
        "theta": at_most(here["theta"][0], limits["theta"]),
        "satisfied": here["satisfied"] >= limits["satisfied"],
        "success": here["success"] >= limits["success"],
    }
    if found["success"] is not None:
        checks["success"] &= found["success"] >= limits["success"]
    return checks


def _sample_limits(exact: dict[str, Any]) -> dict[str, float | None]:
    """What a full-length loop has to reach, from the figures of float64."""
    theta = exact["theta"][0]
    return {
        "theta": None if theta is None else THETA_FACTOR * theta + THETA_SLACK,
        "satisfied": exact["satisfied"] - RATE_MARGIN,
        "success": exact["success"] - RATE_MARGIN,
    }


def at_most(value: float | None, limit: float | None) -> bool:
    """Whether a number is known and within its limit, if there is one."""
    return limit is None or (value is not None and value <= limit)
