"""What a converged solution costs: interior point, SQP, IPOPT and fatrop on the same instances.

    taskset -c 0 python benchmarks/converge_mpc.py --systems quadrotor,cartpole --batch 64

All methods solve the same random instances of a system from the same guesses in float64, to the
same tolerance.  Their runs alternate, so that a busy machine slows all of them alike.  Solutions of
all methods are tested with the independent optimality conditions of the tests (`optimal`).  Pin the
process to one core for times per core.  Appends one row per system and seed to the file that --json
names.

CasADi evaluates the functions of IPOPT and fatrop in its virtual machine; `--compiled` adds both of
them with functions compiled by gcc.
"""

from __future__ import annotations

import argparse
import logging
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import casadi as ca
import jax
import numpy as np

from warpmpc import MPCSolver, MPCStatus, SQPSettings, systems
from warpmpc_bench.common.record import append_row, machine
from warpmpc_bench.mpc.ipopt import WholeProgram

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests" / "support"))  # the oracles live with the tests

from mpc_cases import WholeProblem  # noqa: E402
from nlp_oracle import NonlinearProgram  # noqa: E402

RESULTS = ROOT / "benchmarks" / "results" / "converge_cpu.jsonl"
TOLERANCE = 1e-6
KKT_TOLERANCE = 1.1e-6  # that of the solvers, and rounding
MOST_ITERATIONS = 500
_LOG = logging.getLogger("converge_mpc")


@dataclass(frozen=True, eq=False)
class Found:
    """Solutions of a batch; y is None where a method's multipliers belong to other rows."""

    z: np.ndarray
    y: np.ndarray | None
    solved: np.ndarray
    iterations: np.ndarray


@dataclass(frozen=True, eq=False)
class Instances:
    """A problem with starts: initial states, parameter vectors, guesses."""

    name: str
    system: systems.System
    x0: np.ndarray
    params: np.ndarray
    guesses: np.ndarray


Method = Callable[[], Found]


def drawn(name: str, batch: int, seed: int) -> Instances:
    """Random instances of a system."""
    system = systems.make(name)
    x0 = system.sample(batch, seed)
    solver = MPCSolver(system.problem, dtype="float64")
    params, guesses = (np.asarray(a) for a in (solver.pack(x0), solver.z_guess(x0)))
    return Instances(name, system, x0, params, guesses)


def ours(given: Instances, settings: SQPSettings) -> Method:
    """A method of this package, compiled."""
    solver = MPCSolver(given.system.problem, settings, dtype="float64")

    def run() -> Found:
        found = jax.block_until_ready(solver.solve(given.x0))
        solved = np.asarray(found.status) == MPCStatus.CONVERGED
        return Found(*(np.asarray(a) for a in (found.z, found.y)), solved,
                     np.asarray(found.iterations))  # fmt: skip

    run()
    return run


def peer(given: Instances, plugin: str, *, compiled: bool) -> Method:
    """A solver of CasADi, one instance after the other."""
    program = NonlinearProgram(WholeProblem(given.system.problem))
    bounds = [program.numeric_bounds(p) for p in given.params]
    equal = np.logical_and.reduce([lower == upper for lower, upper in bounds])
    options: dict[str, Any] = {"print_time": False, "expand": True, f"{plugin}.tol": TOLERANCE}
    options[f"{plugin}.max_iter"] = MOST_ITERATIONS
    if plugin == "ipopt":
        options |= {"ipopt.print_level": 0, "ipopt.sb": "yes"}
    else:
        options |= {"fatrop.print_level": 0, "structure_detection": "auto"}
        options["equality"] = equal.tolist()
    if compiled:
        options |= {"jit": True, "compiler": "shell", "jit_options": {"flags": ["-O2"]}}
    solver = ca.nlpsol("solver", plugin, program.nlp, options)

    def run() -> Found:
        z, y, solved, iterations = [], [], [], []
        for guess, p, (lower, upper) in zip(given.guesses, given.params, bounds, strict=True):
            found = solver(x0=guess, p=p, lbg=lower, ubg=upper)
            stats = solver.stats()
            z.append(np.array(found["x"]).ravel())
            y.append(np.array(found["lam_g"]).ravel())
            solved.append(bool(stats["success"]))
            iterations.append(int(stats.get("iter_count", -1)))
        return Found(*(np.array(a) for a in (z, y, solved, iterations)))

    return run


def soft_ipopt(given: Instances) -> Method:
    """IPOPT for a problem with soft rows, which get slacks."""
    program = WholeProgram(given.system.problem)

    def run() -> Found:
        pairs = zip(given.guesses, given.params, strict=True)
        z, solved, iterations, _ = zip(*(program.solve(*pair) for pair in pairs), strict=True)
        return Found(np.array(z), None, np.array(solved), np.array(iterations))

    return run


def methods(given: Instances, wanted: list[str], *, compiled: bool) -> dict[str, Method]:
    """The methods that a system can be solved with; what a peer refuses is logged."""
    interior = SQPSettings(method="interior_point")
    makers: dict[str, Callable[[], Method]] = {
        "interior_point": lambda: ours(given, interior),
        "sqp": lambda: ours(given, given.system.converged_settings),
    }
    soft = any(stage.soft_rows.size for stage in given.system.problem.stages)
    if soft:
        makers["ipopt"] = lambda: soft_ipopt(given)
    for plugin in ("ipopt", "fatrop"):
        if soft or not ca.has_nlpsol(plugin):
            continue
        makers[plugin] = lambda plugin=plugin: peer(given, plugin, compiled=False)
        if compiled:
            makers[f"{plugin}_compiled"] = lambda p=plugin: peer(given, p, compiled=True)
    found = {}
    for name, maker in makers.items():
        if name in wanted or name.removesuffix("_compiled") in wanted:
            try:
                found[name] = maker()
            except RuntimeError as error:
                _LOG.warning("%s: no %s, because %s", given.name, name, str(error).splitlines()[-1])
    return found


def checked(given: Instances, found: Found, program: NonlinearProgram) -> np.ndarray:
    """Which solutions satisfy the optimality conditions; with soft rows what the solver says."""
    if found.y is None or any(s.soft_rows.size for s in given.system.problem.stages):
        return found.solved
    points = zip(found.z, found.y, given.params, found.solved, strict=True)
    return np.array([ok and program.optimality(z, y, p).holds(KKT_TOLERANCE)
                     for z, y, p, ok in points])  # fmt: skip


def measured(given: Instances, runs: dict[str, Method], rounds: int) -> dict[str, Any]:
    """Times of all methods, in turns, and what became of the instances."""
    program = NonlinearProgram(WholeProblem(given.system.problem))
    wall: dict[str, list[float]] = {name: [] for name in runs}
    busy: dict[str, list[float]] = {name: [] for name in runs}
    last: dict[str, Found] = {}
    for _ in range(rounds):
        for name, run in runs.items():
            begin = time.perf_counter(), time.process_time()
            last[name] = run()
            wall[name].append(time.perf_counter() - begin[0])
            busy[name].append(time.process_time() - begin[1])
    batch, row = len(given.x0), {}
    for name, found in last.items():
        holds = checked(given, found, program)
        row[name] = {
            "ms_wall": 1e3 * float(np.median(wall[name])) / batch,
            "ms_cpu": 1e3 * float(np.median(busy[name])) / batch,
            "solved": float(found.solved.mean()),
            "optimal": float(holds.mean()),
            "iterations_mean": float(found.iterations.mean()),
            "iterations_most": int(found.iterations.max()),
        }
    base = row.get("interior_point")
    if base is not None:
        for entry in row.values():
            entry["ratio_cpu"] = entry["ms_cpu"] / base["ms_cpu"]
    return row


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description="Times of converged solutions.")
    names = "quadrotor,cartpole,pendulum,car,quadrotor_obstacles"
    parser.add_argument("--systems", default=names, help="names, by commas")
    parser.add_argument(
        "--methods", default="interior_point,sqp,ipopt,fatrop", help="names, by commas"
    )
    parser.add_argument("--compiled", action="store_true", help="peers with compiled functions too")
    parser.add_argument("--batch", type=int, default=64, help="instances at once")
    parser.add_argument("--seeds", default="1", help="of the instances, by commas")
    parser.add_argument("--rounds", type=int, default=5, help="runs of each method")
    parser.add_argument("--json", type=Path, default=RESULTS, help="file that gets the rows")
    return parser.parse_args()


def main() -> int:
    """Measures all systems; fails if an interior-point solution is wrong or missing."""
    logging.basicConfig(format="%(message)s")
    _LOG.setLevel(logging.INFO)
    jax.config.update("jax_enable_x64", True)
    wanted, fine = arguments(), True
    environment = machine()
    for name in wanted.systems.split(","):
        for seed in (int(s) for s in wanted.seeds.split(",")):
            given = drawn(name, wanted.batch, seed)
            runs = methods(given, wanted.methods.split(","), compiled=wanted.compiled)
            found = measured(given, runs, wanted.rounds)
            row = {
                "benchmark": "converge_mpc",
                "system": name,
                "batch": wanted.batch,
                "seed": seed,
                "dtype": "float64",
                "tolerance": TOLERANCE,
                "methods": found,
            }
            append_row(wanted.json, {**environment, **row})
            if "interior_point" in found:
                fine &= found["interior_point"]["optimal"] == 1.0
            for method, entry in found.items():
                _LOG.info("%s seed %d %s: %s", name, seed, method, entry)
    return 0 if fine else 1


if __name__ == "__main__":
    sys.exit(main())
