"""The main job of the QP layer in small: a batch of linear MPC problems, two of them hopeless.

Reads: a batch size.  Produces: `QPDemoResult`, which the command line prints and
`warpmpc_bench.demos.qp_figure` draws.
"""

from __future__ import annotations

from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np

from warpmpc._errors import SettingsError
from warpmpc.qp.qp_solver import QPSolver
from warpmpc.qp.types import ADMMSettings, QPSolution, Status
from warpmpc.systems import linear_mpc
from warpmpc_bench.common.timing import Timing, build, measure

DTYPE = "float32"
SMALLEST_BATCH = 4  # two hopeless instances with others beside them
# Inside the bounds on the angles, so that all other instances can be solved.
SPREAD = np.array([0.1, 0.1, 0.3, 1, 1, 0.3, 0.1, 0.1, 0.1, 0.3, 0.3, 0.3])
SLACK = 2.0  # residuals are checked in float64, the solver stopped in float32


@dataclass(frozen=True, eq=False)
class QPDemoResult:
    """What the demo found.

    Attributes:
        batch: Number of QPs.
        device: Name of the device.
        engine: Name of the chosen engine.
        status: `Status` per instance, two of them hopeless on purpose.
        planted: These instances and what they should be reported as.
        unharmed: Whether all other solutions are bit for bit those of the intact batch.
        iterations: Iterations of the intact batch.
        excess: Largest of both residuals over its tolerance, in float64; at most 1 if met exactly.
        x: Solutions of the intact batch.
        time: Timing of the intact batch.
    """

    batch: int
    device: str
    engine: str
    status: np.ndarray
    planted: dict[int, Status]
    unharmed: bool
    iterations: np.ndarray
    excess: np.ndarray
    x: np.ndarray
    time: Timing

    @property
    def correct(self) -> bool:
        """Whether exactly the planted instances failed, as planned, and all others are solved."""
        wanted = np.full(self.batch, Status.SOLVED)
        wanted[list(self.planted)] = list(self.planted.values())
        as_planned = np.array_equal(self.status, wanted)
        return as_planned and self.unharmed and bool(self.excess.max() <= SLACK)

    @property
    def per_s(self) -> float:
        """QPs per second."""
        return self.batch / self.time.median_s


def run_demo(batch: int) -> QPDemoResult:
    """Solves a batch of linear MPC problems to the default tolerances on the default device."""
    if batch < SMALLEST_BATCH:
        raise SettingsError(f"The demo needs a batch of at least {SMALLEST_BATCH}, got {batch}.")
    problem, rng = linear_mpc.build(), np.random.default_rng(0)
    x_init = np.clip(SPREAD * rng.standard_normal((batch, linear_mpc.N_X)), -0.5, 0.5)
    lower, upper = problem.bounds(x_init)
    data = [np.tile(v, (batch, 1)) for v in (problem.P.data, problem.q, problem.A.data)]
    args = [jnp.asarray(array, dtype=DTYPE) for array in (*data, lower, upper)]
    solver = QPSolver(problem.P, problem.A, dtype=DTYPE, stages=problem.stages)
    program, solution = build(solver.solve, *args)

    planted = {batch // 3: Status.NON_FINITE, 2 * batch // 3: Status.INVALID_BOUNDS}
    spoilt = program.call(*_spoil(args, *planted))
    others = np.setdiff1d(np.arange(batch), list(planted))
    return QPDemoResult(
        batch=batch,
        device=jax.devices()[0].device_kind,
        engine=solver.engine,
        status=np.asarray(spoilt.status),
        planted=planted,
        unharmed=np.array_equal(np.asarray(solution.x)[others], np.asarray(spoilt.x)[others]),
        iterations=np.asarray(solution.iterations),
        excess=_excess(problem, lower, upper, solution, solver.settings),
        x=np.asarray(solution.x),
        time=measure(program.call, *args),
    )


def _spoil(args: list[jax.Array], nan: int, crossed: int) -> list[jax.Array]:
    """A NaN in the cost of one instance, crossed bounds in another."""
    P, q, A, lower, upper = args
    return [P, q.at[nan, 0].set(jnp.nan), A, lower.at[crossed, -1].set(9), upper]


def _excess(
    problem: linear_mpc.LinearMPC,
    lower: np.ndarray,
    upper: np.ndarray,
    solution: QPSolution,
    settings: ADMMSettings,
) -> np.ndarray:
    """Residuals over their tolerances, from the values on the device, in float64."""
    x, y = (np.asarray(array, dtype=np.float64).T for array in (solution.x, solution.y))
    A, P, q = problem.A, problem.P, problem.q[:, None]
    Ax, Px, ATy = A @ x, P @ x, A.T @ y
    violation = np.maximum(lower.T - Ax, Ax - upper.T).max(axis=0)
    dual = np.abs(Px + q + ATy).max(axis=0)
    size = [np.abs(part).max(axis=0) for part in (Ax, Px, ATy)]
    eps_abs, eps_rel = settings.absolute_tolerance, settings.relative_tolerance
    primal_limit = eps_abs + eps_rel * size[0]
    largest = np.maximum(np.maximum(size[1], size[2]), np.abs(q).max())
    return np.maximum(violation / primal_limit, dual / (eps_abs + eps_rel * largest))
