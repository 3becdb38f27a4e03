"""`System`: an optimal control problem with all that a closed loop around it needs.

Produces: the dataclass, and the parts that systems share: formulas for CasADi and JAX alike,
integrators of plants, settings of benchmarks, sizes of closed-loop trajectories.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeAlias

import casadi as ca
import jax
import jax.numpy as jnp
import numpy as np

from warpmpc._errors import ProblemError
from warpmpc.mpc.settings import LineSearchSettings, SQPSettings
from warpmpc.mpc.solver import MPCSolver
from warpmpc.problem.mpc_problem import MPCProblem
from warpmpc.qp.types import ADMMSettings

MOST_ITERATIONS = 300  # for accurate solutions; the benchmarks' guesses are far from them
SATISFIED = 1e-6  # violations of state constraints up to it count as none
# What closed loops of every system are judged by.
REQUIRED_METRICS = ("success", "satisfied", "violation", "input_excess", "final_error")
Metrics: TypeAlias = dict[str, np.ndarray]
# A formula gets a module with sin, cos, ... (casadi or jax.numpy) and lists of scalars.
Formula: TypeAlias = Callable[..., Sequence[Any]]
Plant: TypeAlias = Callable[..., jax.Array]
References: TypeAlias = Callable[[Any, jax.Array], dict[str, jax.Array]]


class Sampler(Protocol):
    """Draws initial states."""

    def __call__(self, batch: int, seed: int | None = None) -> np.ndarray:
        """Initial states ``[batch, n_x]`` in float64; None is the seed of the benchmark."""
        ...


@dataclass(frozen=True, eq=False)
class System:
    """A problem, its plant, and how it is benchmarked.

    Attributes:
        name: A key of `warpmpc.systems.SYSTEMS`.
        problem: The optimal control problem, which `MPCSolver` solves.
        sample: ``sample(batch, seed=None)``: initial states ``[batch, n_x]``.
        simulate: ``simulate(x, u)``: states ``[..., n_x]`` one control step later, a JAX function
            in the dtype of x; the plant clips inputs where the real one would.  One that takes
            ``t`` as well gets the number of the step.
        metrics: ``metrics(x, u)`` of closed loops, one value per instance: x
            ``[batch, steps + 1, n_x]``, u ``[batch, steps, n_u]`` as commanded.  All systems have
            "success", "satisfied" (state constraints hold), "violation" (of state constraints),
            "input_excess" and "final_error".
        settings: Settings of the benchmark, with fixed numbers of iterations.
        control_dt: Time between two solves.
        steps: Solves in a closed loop.
        converged_settings: Settings for accurate solutions.
        references: ``references(t, x)``: parameters of the solve in step t, by name, a JAX
            function; t is a number, or one per instance.  None: the defaults of the problem.
        nominal: The point (z, params) at which QPs are scaled; None: each where it is.
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
    references: References | None = None
    nominal: tuple[np.ndarray, np.ndarray] | None = None

    def solver(self, settings: SQPSettings | None = None, **options: Any) -> MPCSolver:
        """An `MPCSolver` of the problem.

        Args:
            settings: None: those of the benchmark.
            **options: Further arguments of `MPCSolver`.
        """
        chosen = self.settings if settings is None else settings
        is_scaled = chosen.qp is not None and chosen.qp.scaling > 0
        point = self.nominal if is_scaled else None
        return MPCSolver(self.problem, chosen, nominal=point, **options)

    def params_at(self, t: Any, x: jax.Array) -> dict[str, jax.Array] | None:
        """What a solve in step t gets as parameters; t is a number, or one per instance."""
        return None if self.references is None else self.references(t, x)

    def judged(self, x: np.ndarray, u: np.ndarray) -> Metrics:
        """The metrics of closed loops; refuses those that lack one of `REQUIRED_METRICS`."""
        found = self.metrics(x, u)
        missing = [name for name in REQUIRED_METRICS if name not in found]
        if missing:
            raise ProblemError(
                f"The metrics of system {self.name!r} lack {', '.join(missing)}; closed loops are "
                f"judged by {', '.join(REQUIRED_METRICS)}, one value per instance each."
            )
        return found

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
    def state_names(self) -> list[str]:
        """Names of the states in their order; those without a name are numbered."""
        rows = self.problem.x_rows
        if rows is None:
            return [f"x[{i}]" for i in range(self.n_x)]
        if rows.shape[1] != self.n_x:  # the state holds more than variables of a node
            return [f"x[{i}]" for i in range(self.n_x)]
        own = {found[0, 0]: name for name, found in self.problem.names.items()
               if found.shape[1] == 1}  # fmt: skip
        return [own.get(row, f"x[{i}]") for i, row in enumerate(rows[0].tolist())]

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
    line_search: str = "filter",
) -> SQPSettings:
    """Fixed numbers of iterations without any test in between, as published.

    Args:
        sqp_iter: SQP iterations per solve.
        admm_iter: ADMM iterations per QP.
        step_min: Smallest step length of the line search.
        rho_equality: Factor on rho for equality rows; 1: all rows have the same rho.
        line_search: Name in `LINE_SEARCHES`.
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


def generator(batch: int, seed: int | None = None) -> np.random.Generator:
    """The random generator of a sampler.

    Args:
        batch: Number of instances, at least 1.
        seed: None: the batch size, as in the published benchmarks.
    """
    if batch < 1:
        raise ProblemError(f"A batch needs at least one instance, got {batch}.")
    return np.random.default_rng(batch if seed is None else seed)


def physical_constants(
    values: Mapping[str, float], *, free: bool
) -> tuple[ca.SX, dict[str, ca.SX], dict[str, list[float]]]:
    """Physical constants of a model: fixed in its expressions, or a parameter "physics".

    Args:
        values: The constants by name.
        free: Whether they are a parameter, at the price of more operations per stage.

    Returns:
        The column of constants, the parameters to declare, and their defaults.
    """
    fixed = list(values.values())
    if not free:
        return ca.SX(fixed), {}, {}
    symbols = ca.SX.sym("physics", len(fixed))
    return symbols, {"physics": symbols}, {"physics": fixed}


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


def closed_loop_metrics(
    finite: np.ndarray,
    *,
    success: np.ndarray,
    input_excess: np.ndarray,
    final_error: np.ndarray,
    state_excess: np.ndarray | None = None,
) -> Metrics:
    """The metrics that all systems have; see `System`.

    Args:
        finite: Which instances are finite.
        success: Which instances reach the goal.
        input_excess: By how much limits of inputs are exceeded, ``[batch, ...]``; negative where
            they are kept.
        final_error: Distance to the goal at the end.
        state_excess: The same for state constraints; None: there are none.
    """
    if state_excess is None:
        state_excess = np.zeros((len(finite), 1))
    violation = worst(state_excess, finite)
    return {
        "success": finite & success,
        "satisfied": violation <= SATISFIED,
        "violation": violation,
        "input_excess": worst(input_excess, finite),
        "final_error": final_error,
    }


def worst(excess: np.ndarray, finite: np.ndarray) -> np.ndarray:
    """Largest excess of each instance, at least 0; infinite for one that is not finite.

    Args:
        excess: By how much a limit is exceeded, ``[batch, ...]``; negative where it is kept.
        finite: Which instances are finite.
    """
    flat = excess.reshape(excess.shape[0], -1)
    return np.where(finite, np.maximum(flat.max(axis=1), 0), np.inf)
