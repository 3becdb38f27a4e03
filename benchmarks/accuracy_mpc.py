"""How accurate converged solutions are: random instances of every system against IPOPT.

    python benchmarks/accuracy_mpc.py --systems cartpole,car --count 200 --workers 16

Solves all instances at once in float64, checks the optimality conditions with CasADi's derivatives,
and has IPOPT solve the same instances from the same guesses, and once more from our solutions.
Appends one row per system to the file that --json names.
"""

from __future__ import annotations

import argparse
import logging
import os
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import jax
import numpy as np

from warpmpc import systems
from warpmpc.mpc.solver import MPCSolver
from warpmpc.mpc.types import MPCStatus, Solution
from warpmpc.systems import System
from warpmpc_bench.common.record import append_row, machine

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests" / "support"))  # the oracles live with the tests

from mpc_cases import WholeProblem  # noqa: E402
from nlp_oracle import Minima, NonlinearProgram  # noqa: E402

RESULTS = ROOT / "benchmarks" / "results" / "accuracy_mpc.jsonl"
KKT_TOLERANCE = 2e-6  # for our solutions: twice the tolerance of the solver
SAME_POINT = 1e-3  # largest difference of two equal minimisers, over the largest variable
SAME_COST = 1e-4  # relative
WANTED = 0.95  # share of the instances
_LOG = logging.getLogger("accuracy_mpc")


@dataclass(frozen=True, eq=False)
class Case:
    """Instances of a system, our solutions of them, and the problem as one expression."""

    system: System
    program: NonlinearProgram
    params: np.ndarray
    guesses: np.ndarray
    solution: Solution
    seconds: float

    @property
    def z(self) -> np.ndarray:
        """Our trajectories."""
        return np.asarray(self.solution.z)

    @property
    def cost(self) -> np.ndarray:
        """What they cost."""
        return np.asarray(self.solution.cost)


def solved_case(name: str, count: int, seed: int | None) -> Case:
    """Draws and solves the instances of one system."""
    system = systems.make(name)
    program = NonlinearProgram(WholeProblem(system.problem))
    solver = MPCSolver(system.problem, system.converged_settings, dtype="float64")
    x0 = system.sample(count, seed)
    params, guesses = (np.asarray(a) for a in (solver.pack(x0), solver.z_guess(x0)))
    begin = time.perf_counter()
    solution = jax.block_until_ready(solver.solve(x0))
    return Case(system, program, params, guesses, solution, time.perf_counter() - begin)


def optimality(case: Case) -> dict[str, Any]:
    """Which solutions satisfy the optimality conditions, and how well."""
    y = np.asarray(case.solution.y)
    found = [case.program.optimality(*point) for point in zip(case.z, y, case.params, strict=True)]
    converged = np.asarray(case.solution.status) == MPCStatus.CONVERGED
    optimal = converged & np.array([point.holds(KKT_TOLERANCE) for point in found])
    names = ("stationarity", "violation", "complementarity")
    values = np.array([[getattr(point, name) for name in names] for point in found])
    worst = {name: _largest(values[optimal, i]) for i, name in enumerate(names)}
    return {"converged": converged, "optimal": optimal, "worst": worst}


def same_points(case: Case, other: Minima) -> np.ndarray:
    """Where IPOPT found our minimiser."""
    scale = np.maximum(1.0, np.abs(case.z).max(axis=1))
    return other.solved & (np.abs(case.z - other.z).max(axis=1) <= SAME_POINT * scale)


def cost_differences(case: Case, other: Minima) -> np.ndarray:
    """Relative; positive where ours is higher."""
    return (case.cost - other.cost) / np.maximum(np.abs(other.cost), 1e-6)


def measured(case: Case, workers: int, timeout: float) -> dict[str, Any]:
    """Everything a row says about the instances."""
    conditions = optimality(case)
    optimal = conditions["optimal"]
    begin = time.perf_counter()
    options = {"workers": workers, "timeout": timeout}
    from_guess = case.program.minima_in_processes(case.guesses, case.params, **options)
    y = np.asarray(case.solution.y)
    from_ours = case.program.minima_in_processes(case.z, case.params, y, **options)
    seconds = time.perf_counter() - begin
    same, difference = same_points(case, from_guess), cost_differences(case, from_guess)
    agrees = optimal & (~same | (np.abs(difference) <= SAME_COST))
    stays = np.abs(cost_differences(case, from_ours)) <= SAME_COST
    other = optimal & from_guess.solved & ~same
    iterations = np.asarray(case.solution.iterations)
    statuses = np.bincount(np.asarray(case.solution.status), minlength=len(MPCStatus))
    return {
        "status": {s.name: int(n) for s, n in zip(MPCStatus, statuses, strict=True)},
        "converged": share(conditions["converged"]),
        "optimal": share(optimal),
        "agrees": share(agrees),
        "worst": conditions["worst"],
        "sqp_iterations": [float(np.median(iterations)), int(iterations.max())],
        "qp_iterations": float(np.median(np.asarray(case.solution.qp_iterations))),
        "ipopt_solved": share(from_guess.solved),
        "ipopt_same": share(optimal & same),
        "ipopt_same_cost": _largest(np.abs(difference[optimal & same])),
        "ipopt_other_lower": int((difference[other] > SAME_COST).sum()),
        "ipopt_other_equal": int((np.abs(difference[other]) <= SAME_COST).sum()),
        "ipopt_other_higher": int((difference[other] < -SAME_COST).sum()),
        "ipopt_confirms": share((from_ours.solved & stays)[optimal]),
        "failed_instances": np.flatnonzero(~agrees).tolist(),
        "seconds": round(case.seconds, 2),
        "ipopt_seconds": round(seconds, 2),
    }


def share(flags: np.ndarray) -> float:
    """Share of the instances."""
    return float(flags.mean()) if flags.size else 0.0


def _largest(values: np.ndarray) -> float | None:
    return float(values.max()) if values.size else None


def passes(row: dict[str, Any]) -> bool:
    """The criterion that this benchmark checks."""
    return row["optimal"] >= WANTED and row["agrees"] >= WANTED


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description="Converged solutions against IPOPT.")
    parser.add_argument("--systems", default=",".join(systems.SYSTEMS), help="names, by commas")
    parser.add_argument("--count", type=int, default=200, help="instances per system")
    parser.add_argument("--seed", type=int, default=None, help="of the instances")
    parser.add_argument("--workers", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--timeout", type=float, default=60.0, help="IPOPT, per instance [s]")
    parser.add_argument("--json", type=Path, default=RESULTS, help="file that gets the rows")
    return parser.parse_args()


def main() -> int:
    """Measures all systems; fails if one of them does not reach the required share."""
    logging.basicConfig(format="%(message)s")
    _LOG.setLevel(logging.INFO)
    jax.config.update("jax_enable_x64", True)
    given, fine = arguments(), True
    environment = machine()
    for name in given.systems.split(","):
        case = solved_case(name, given.count, given.seed)
        row = {
            "benchmark": "accuracy_mpc",
            "system": name,
            "count": given.count,
            "seed": given.seed,
            "dtype": "float64",
            "settings": asdict(case.system.converged_settings),
            **measured(case, given.workers, given.timeout),
        }
        row["passes"] = passes(row)
        fine &= row["passes"]
        append_row(given.json, {**environment, **row})
        _LOG.info("%s", {key: value for key, value in row.items() if key != "settings"})
    return 0 if fine else 1


if __name__ == "__main__":
    sys.exit(main())
