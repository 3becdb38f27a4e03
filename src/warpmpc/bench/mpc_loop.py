"""The closed loop that is measured, and what is kept of it.

Reads: a solver with its system, initial states.  Produces: `Rollout`s that also hold where some
instances started each step, so that single steps can be repeated in float64.
"""

from __future__ import annotations

from typing import Any

import jax
import numpy as np

from warpmpc.bench.mpc_variants import Built
from warpmpc.sim.rollout import rollout
from warpmpc.sim.types import Rollout
from warpmpc.sqp.solver import MPCSolver
from warpmpc.sqp.types import MPCWarmStart, QPState

RESIDUALS = ("primal_residual", "dual_residual")
STARTS = ("start_x", "start_z", "start_d", "start_s", "start_y")


def closed_loop(built: Built, steps: int, instances: np.ndarray, x0: jax.Array) -> Rollout:
    """The closed loop of a benchmark: plant of the system, warm starts as they are.

    Args:
        built: The solver.
        steps: Solves.
        instances: Those whose starts are recorded.
        x0: Initial states ``[batch, n_x]``.
    """
    # The published loops do not move warm starts along the horizon.
    return rollout(
        _Recorder(built.solver, instances),
        built.system.simulate,
        x0,
        steps,
        shift=False,
        record=(*RESIDUALS, *STARTS),
    )


def continued(built: Built, steps: int, x: jax.Array, warm_start: MPCWarmStart) -> Any:
    """More steps of a closed loop; returns its end."""
    loop = rollout(
        built.solver, built.system.simulate, x, steps, shift=False, warm_start=warm_start
    )
    return loop.x[:, -1], loop.warm_start


def start_of(recorded: dict[str, Any], steps: np.ndarray) -> tuple[np.ndarray, MPCWarmStart]:
    """States and warm starts of the recorded instances before some steps, in float64 on the host.

    Returns:
        Arrays ``[instances, steps, ...]``.
    """
    x, z, d, s, y = (np.asarray(recorded[name], dtype=np.float64)[:, steps] for name in STARTS)
    return x, MPCWarmStart(z, QPState(d, s, y))  # pyright: ignore[reportArgumentType]


class _Recorder:
    """A solver whose solutions say where some instances started: a `Controller`."""

    def __init__(self, solver: MPCSolver, instances: np.ndarray):
        """Takes over what a closed loop needs."""
        self._solver, self._instances = solver, instances
        self.dtype = solver.dtype
        self.step, self.z_guess = solver.step, solver.z_guess
        self.cold_start, self.shift = solver.cold_start, solver.shift

    def solve(self, x0: jax.Array, params: Any, warm_start: MPCWarmStart) -> Any:
        """The solution, and the starts of the recorded instances."""
        solution = self._solver.solve(x0, params, warm_start)
        qp = warm_start.qp
        arrays = (x0, warm_start.z, qp.d, qp.s, qp.y)
        starts = [array[self._instances] for array in arrays]
        return _Seen(solution, dict(zip(STARTS, starts, strict=True)))


class _Seen:
    """A solution with more attributes."""

    def __init__(self, solution: Any, more: dict[str, jax.Array]):
        """Attributes in `more` come first."""
        self._solution, self._more = solution, more

    def __getattr__(self, name: str) -> Any:
        return self._more[name] if name in self._more else getattr(self._solution, name)
