"""How long one solve takes, as a step of a closed loop, as a call from Python, and on the device.

Reads: timings and phases of a row, a solver.  Produces: the field "latency" of a row.
"""

from __future__ import annotations

import jax

from warpmpc_bench.common.record import Row
from warpmpc_bench.common.timing import measure
from warpmpc_bench.mpc.phases import PHASES
from warpmpc_bench.mpc.variants import Built

# Batches that a real-time loop on the host might have; larger ones are about rates.
LARGEST = 1000


class HostLoop:
    """Solves from Python, one call after the other, each from the solution before."""

    def __init__(self, built: Built, x0: jax.Array):
        """Compiles the solve.

        Args:
            built: The solver.
            x0: Initial states ``[batch, n_x]``.
        """
        self._solver, self._x0 = built.solver, x0
        self._params = built.system.params_at(0, x0)
        self._start = built.solver.solve(x0, self._params).warm_start

    def __call__(self) -> None:
        """One solve."""
        solution = self._solver.solve(self._x0, self._params, self._start, donate=True)
        # The next call of a real loop needs the result of this one.
        self._start = jax.block_until_ready(solution).warm_start


def latency(built: Built, x0: jax.Array, step_s: float, phases: Row | None) -> Row:
    """Milliseconds of one solve of the batch.

    Args:
        built: The solver.
        x0: Initial states ``[batch, n_x]``.
        step_s: Seconds of one step of the measured loop.
        phases: Phases of the row, if they were measured.

    Returns:
        "step_ms" (a step of the measured loop, plant included, without the host in between),
        "call_ms" (one call of `MPCSolver.solve` from Python, waited for; None above a batch of
        `LARGEST`) and "kernels_ms" (our kernels alone, on the device; None if not known).
    """
    call_s = measure(HostLoop(built, x0)).median_s if x0.shape[0] <= LARGEST else None
    return {
        "step_ms": 1e3 * step_s,
        "call_ms": None if call_s is None else 1e3 * call_s,
        "kernels_ms": _kernels_ms(phases, built.solver.settings.max_iter),
    }


def _kernels_ms(phases: Row | None, sqp_iterations: int) -> float | None:
    if phases is None or phases["reason"] is not None:
        return None
    solves = phases["iterations"] / sqp_iterations
    return 1e3 * sum(phases["seconds"][phase] for phase in PHASES) / solves
