"""`System`: an optimal control problem with all that a closed loop around it needs.

Produces: the dataclass, and the parts that systems share: formulas for CasADi and JAX alike,
integrators of plants, settings of benchmarks, sizes of closed-loop trajectories.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, TypeAlias

import casadi as ca
import jax
import jax.numpy as jnp
import numpy as np

from warpmpc._errors import ProblemError
from warpmpc.mpc.settings import LineSearchSettings, SQPSettings
from warpmpc.problem.mpc_problem import MPCProblem
from warpmpc.qp.types import ADMMSettings

MOST_ITERATIONS = 300  # for accurate solutions; the benchmarks' guesses are far from them
SATISFIED = 1e-6  # violations of state constraints up to it count as none
Metrics: TypeAlias = dict[str, np.ndarray]
# A formula gets a module with sin, cos, ... (casadi or jax.numpy) and lists of scalars.
Formula: TypeAlias = Callable[..., Sequence[Any]]
Plant: TypeAlias = Callable[[jax.Array, jax.Array], jax.Array]


class Sampler(Protocol):
    """Draws initial states."""

    def __call__(self, batch: int, seed: int | None = None) -> np.ndarray:
        """Initial states ``[batch, n_x]`` in float64; None is the seed of the benchmark."""
        ...


@dataclass(frozen=True, eq=False)
class System:
    """A problem, its plant, and how it is benchmarked.

    Attributes:
        name: Of the system, a key of `warpmpc.systems.SYSTEMS`.
        problem: What `MPCSolver` solves.
        sample: ``sample(batch, seed=None)``: initial states ``[batch, n_x]``.
        simulate: ``simulate(x, u)``: states ``[..., n_x]`` one control step later, a JAX function
            in the dtype of x; the plant clips inputs where the real one would.
        metrics: ``metrics(x, u)`` of closed loops, one value per instance: x
            ``[batch, steps + 1, n_x]``, u ``[batch, steps, n_u]`` as commanded.  All systems have
            "success", "satisfied" (state constraints hold), "violation" (of state constraints),
            "input_excess" and "final_error".
        settings: Fixed numbers of iterations, as benchmarked.
        converged_settings: For accurate solutions.
        control_dt: Time between two solves.
        steps: Solves in a closed loop.
    """

    name: str
    problem: MPCProblem
    sample: Sampler
    simulate: Plant
    metrics: Callable[[np.ndarray, np.ndarray], Metrics]
    settings: SQPSettings
    control_dt: float
    steps: int
    converged_settings: SQPSettings = field(
        default_factory=lambda: SQPSettings(max_iter=MOST_ITERATIONS)
    )

    @property
    def n_x(self) -> int:
        """Number of states."""
        return self.problem.n_x0

    @property
    def n_u(self) -> int:
        """Number of inputs."""
        rows = self.problem.u_rows
        return 0 if rows is None else rows.shape[1]

    @property
    def params(self) -> dict[str, np.ndarray]:
        """Default of each named parameter; what `MPCSolver.solve(x0, params)` may change."""
        return {name: self.problem.defaults[at] for name, at in self.problem.param_names.items()}


def symbolic(formula: Formula, *columns: ca.SX) -> ca.SX:
    """A formula as a CasADi column."""
    return ca.vertcat(*formula(ca, *(ca.vertsplit(column) for column in columns)))


def batched(formula: Formula, *arrays: jax.Array) -> jax.Array:
    """A formula as a JAX function on the last axes of arrays."""
    split = ([array[..., i] for i in range(array.shape[-1])] for array in arrays)
    return jnp.stack(formula(jnp, *split), axis=-1)


def euler_step(formula: Formula, x: jax.Array, u: jax.Array, dt: float) -> jax.Array:
    """One explicit Euler step."""
    return x + dt * batched(formula, x, u)


def rk4_step(formula: Formula, x: jax.Array, u: jax.Array, dt: float) -> jax.Array:
    """One step of the classical Runge-Kutta method."""
    k1 = batched(formula, x, u)
    k2 = batched(formula, x + dt / 2 * k1, u)
    k3 = batched(formula, x + dt / 2 * k2, u)
    k4 = batched(formula, x + dt * k3, u)
    return x + dt / 6 * (k1 + 2 * k2 + 2 * k3 + k4)


def benchmark_settings(
    sqp_iter: int,
    admm_iter: int,
    *,
    step_min: float = 0.1,
    rho_equality: float = 1.0,
    line_search: Literal["filter", "full"] = "filter",
) -> SQPSettings:
    """Fixed numbers of iterations without any test in between, as published.

    Args:
        sqp_iter: SQP iterations per solve.
        admm_iter: ADMM iterations per QP.
        step_min: Smallest step length of the line search.
        rho_equality: Factor on rho for equality rows; 1: all rows have the same rho.
        line_search: Kind of the line search.
    """
    # Defaults are written out: a better one must not change what is compared with others.
    return SQPSettings(
        mode="fixed",
        max_iter=sqp_iter,
        hessian="gauss_newton",
        line_search=LineSearchSettings(
            kind=line_search,
            decay=0.5,
            step_min=step_min,
            scale=0.1,
            theta_max=1e-1,
            theta_min=1e-3,
            gamma=1e-3,
            armijo=1e-4,
            rounding=0.0,
            fallback="smallest",
        ),
        qp=ADMMSettings(
            rho=0.1,
            rho_equality=rho_equality,
            sigma=1e-6,
            relaxation=1.6,
            max_iter=admm_iter,
            check_every=0,
            adaptive_rho_every=0,
            scaling=0,
        ),
        qp_start="last",
    )


def generator(batch: int, seed: int) -> np.random.Generator:
    """The random numbers of a sampler."""
    if batch < 1:
        raise ProblemError(f"A batch needs at least one instance, got {batch}.")
    return np.random.default_rng(seed)


def closed_loop(x: Any, u: Any, n_x: int, n_u: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Closed-loop trajectories on the host, in float64, and which of them are finite.

    Args:
        x: States ``[batch, steps + 1, n_x]``.
        u: Inputs ``[batch, steps, n_u]``.
        n_x: Number of states.
        n_u: Number of inputs.
    """
    x, u = np.asarray(x, dtype=np.float64), np.asarray(u, dtype=np.float64)
    wanted = x.ndim == 3 and x.shape[1] > 1 and x.shape[2] == n_x
    if not wanted or u.shape != (x.shape[0], x.shape[1] - 1, n_u):
        raise ProblemError(
            f"metrics needs x [batch, steps + 1, {n_x}] and u [batch, steps, {n_u}] with at least "
            f"one step, got {list(x.shape)} and {list(u.shape)}."
        )
    finite = np.isfinite(x).all(axis=(1, 2)) & np.isfinite(u).all(axis=(1, 2))
    return x, u, finite


def worst(excess: np.ndarray, finite: np.ndarray) -> np.ndarray:
    """Largest excess of each instance, at least 0; infinite for one that is not finite.

    Args:
        excess: By how much a limit is exceeded, ``[batch, ...]``; negative where it is kept.
        finite: Which instances are finite.
    """
    flat = excess.reshape(excess.shape[0], -1)
    return np.where(finite, np.maximum(flat.max(axis=1), 0), np.inf)
