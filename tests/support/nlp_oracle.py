"""Optimality conditions and minimisers of nonlinear programs, without any code of the solver.

Reads: CasADi expressions of cost and rows.  Produces: residuals of the optimality conditions, and
minimisers by IPOPT.  Imports CasADi and NumPy alone, so that many processes of it
(``python nlp_oracle.py JOB.npz RESULT.npz``) can run beside one that holds a GPU.
"""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import casadi as ca
import numpy as np

OPTIONS = {
    "print_time": False,
    "ipopt.print_level": 0,
    "ipopt.sb": "yes",
    "ipopt.tol": 1e-9,
    "ipopt.max_iter": 1000,
}
# For a start at a solution: the barrier must not push it away from its active bounds.
_SMALL = 1e-9
NEARBY = {
    "ipopt.warm_start_init_point": "yes",
    "ipopt.mu_init": _SMALL,
    **{
        f"ipopt.{name}": _SMALL
        for name in (
            "bound_push",
            "bound_frac",
            "slack_bound_push",
            "slack_bound_frac",
            "warm_start_bound_push",
            "warm_start_bound_frac",
            "warm_start_slack_bound_push",
            "warm_start_slack_bound_frac",
            "warm_start_mult_bound_push",
        )
    },
}


@dataclass(frozen=True)
class Optimality:
    """How far a point is from the first-order conditions.

    Attributes:
        stationarity: Largest entry of the Lagrangian's gradient, over that of the cost's (at least
            1).
        violation: Largest violation of a row.
        complementarity: Largest product of a multiplier and the distance to the bound that its
            sign belongs to (positive: upper), over the same scale; infinite if there is no such
            bound.
    """

    stationarity: float
    violation: float
    complementarity: float

    def holds(self, tolerance: float) -> bool:
        """Whether all conditions hold."""
        return max(self.stationarity, self.violation, self.complementarity) <= tolerance


@dataclass(frozen=True, eq=False)
class Minima:
    """What IPOPT found, one row per instance."""

    z: np.ndarray
    cost: np.ndarray
    solved: np.ndarray
    iterations: np.ndarray


class NonlinearProgram:
    """Minimise cost(z, p) with lower(p) <= g(z, p) <= upper(p)."""

    def __init__(self, whole: Any):
        """Differentiates.

        Args:
            whole: A `WholeProblem`, or whatever has its expressions z, p, cost, g, lower, upper.
        """
        z, p, cost, g = whole.z, whole.p, whole.cost, whole.g
        self.nlp = ca.Function("nlp", [z, p], [cost, g], ["x", "p"], ["f", "g"])
        self.bounds = ca.Function("bounds", [p], [whole.lower, whole.upper])
        derivatives = [ca.gradient(cost, z), ca.jacobian(g, z), g]
        self._derivatives = ca.Function("derivatives", [z, p], derivatives)

    def optimality(self, z: np.ndarray, y: np.ndarray, p: np.ndarray) -> Optimality:
        """Residuals at one point with its multipliers."""
        gradient, jacobian, g = self._derivatives(z, p)
        gradient, g = np.array(gradient).ravel(), np.array(g).ravel()
        lower, upper = self.numeric_bounds(p)
        scale = max(1.0, float(np.abs(gradient).max()))
        slope = gradient + jacobian.sparse().T @ y
        # Infinity times nothing is nothing: rows without multiplier are as if at their bound.
        distance = np.select([y > 0, y < 0], [upper - g, g - lower], 0.0)
        beyond = np.maximum(lower - g, g - upper)
        return Optimality(
            stationarity=float(np.abs(slope).max()) / scale,
            violation=max(0.0, float(beyond.max())),
            complementarity=float(np.abs(y * distance).max()) / scale,
        )

    def violations(self, z: np.ndarray, p: np.ndarray) -> np.ndarray:
        """How far each row is beyond its bounds."""
        g = np.array(self.nlp(z, p)[1]).ravel()
        lower, upper = self.numeric_bounds(p)
        return np.maximum(np.maximum(lower - g, g - upper), 0)

    def numeric_bounds(self, p: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Bounds of one instance."""
        lower, upper = (np.array(bound).ravel() for bound in self.bounds(p))
        return lower, upper

    def minima(self, starts: np.ndarray, params: np.ndarray, y: np.ndarray | None = None) -> Minima:
        """IPOPT's solutions, one after the other.

        Args:
            starts: Guesses ``[batch, n_vars]``.
            params: Parameters ``[batch, n_params]``.
            y: Multipliers ``[batch, n_cons]`` if the guesses are solutions.
        """
        return _minima(self.nlp, self._job(starts, params, y))

    def minima_in_processes(
        self,
        starts: np.ndarray,
        params: np.ndarray,
        y: np.ndarray | None = None,
        *,
        workers: int,
        timeout: float,
    ) -> Minima:
        """Solves a batch in `workers` processes; instances that take too long count as unsolved.

        Args:
            starts: Guesses.
            params: Parameters.
            y: Multipliers if the guesses are solutions.
            workers: Number of processes.
            timeout: Seconds that IPOPT may spend on one instance.
        """
        job = self._job(starts, params, y)
        batch = len(starts)
        parts = [np.arange(first, batch, workers) for first in range(min(workers, batch))]
        z, (cost, solved, iterations) = np.zeros_like(starts), np.zeros((3, batch))
        with TemporaryDirectory() as folder:
            running = []
            for number, part in enumerate(parts):
                files = [str(Path(folder, f"{what}_{number}.npz")) for what in ("job", "result")]
                own = {name: array[part] for name, array in job.items()}
                np.savez(files[0], function=self.nlp.serialize(), timeout=timeout, **own)
                command = [sys.executable, str(Path(__file__).resolve()), *files]
                running.append((part, subprocess.Popen(command), files[1]))
            failed = [process.wait() for _, process, _ in running]
            if any(failed):
                raise RuntimeError(f"IPOPT processes ended with the exit codes {failed}.")
            for part, _, file in running:
                with np.load(file) as found:
                    z[part], cost[part] = found["z"], found["cost"]
                    solved[part], iterations[part] = found["solved"], found["iterations"]
        return Minima(z, cost, solved.astype(bool), iterations.astype(int))

    def _job(
        self, starts: np.ndarray, params: np.ndarray, y: np.ndarray | None
    ) -> dict[str, np.ndarray]:
        bounds = np.array([self.numeric_bounds(p) for p in params])
        job = {"z": starts, "p": params, "lower": bounds[:, 0], "upper": bounds[:, 1]}
        return job if y is None else {**job, "y": y}


def _minima(nlp: ca.Function, job: dict[str, Any], timeout: float = 1e6) -> Minima:
    """Solves all instances of a job."""
    options = OPTIONS | (NEARBY if "y" in job else {}) | {"ipopt.max_wall_time": timeout}
    solver = ca.nlpsol("solver", "ipopt", nlp, options)
    rows: list[tuple[np.ndarray, float, bool, int]] = []
    for i, (z, p, lower, upper) in enumerate(
        zip(job["z"], job["p"], job["lower"], job["upper"], strict=True)
    ):
        start = {"lam_g0": job["y"][i]} if "y" in job else {}
        found = solver(x0=z, p=p, lbg=lower, ubg=upper, **start)
        stats = solver.stats()
        minimum = np.array(found["x"]).ravel()
        rows.append((minimum, float(found["f"]), stats["success"], stats["iter_count"]))
    z, cost, solved, iterations = zip(*rows, strict=True)
    return Minima(np.array(z), np.array(cost), np.array(solved), np.array(iterations))


def main(job_file: str, result_file: str) -> None:
    """One process of `minima_in_processes`."""
    with np.load(job_file) as stored:
        job = dict(stored)
    nlp, timeout = ca.Function.deserialize(str(job.pop("function"))), float(job.pop("timeout"))
    found = _minima(nlp, job, timeout)
    np.savez(
        result_file,
        z=found.z,
        cost=found.cost,
        solved=found.solved,
        iterations=found.iterations,
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
