"""Where the time goes from import to the first solution of an arm with seven joints.

    python benchmarks/arm_compile.py --out benchmarks/results/arm_compile.jsonl

Each run is a process of its own: one with empty caches, then one that finds them, and each solves
three batch sizes.  Where a name says cpu, the time of all cores is meant, which a busy machine
changes less than wall time.  With --stages two more processes run under a profiler, which makes
Python slower, for a table of stages: derivatives and translation (CasADi), analysis (orderings,
hints, symbolic elimination), source (generated code), compiler (of Warp), XLA.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

FILE = Path(__file__).parents[1] / "examples" / "reaching_arm.xml"
FORMULATIONS = ("forward-rk4", "forward-euler", "inverse")
# Functions whose time, with all that they call, is that of a stage.
STAGES = {
    "derivatives": ("stage_model.py", ("linearize", "host_values", "evaluate", "_function")),
    "translation": ("from_casadi.py", ("translate",)),
    "analysis": ("registry.py", ("build_loop",)),
    "source": ("kernel_source.py", ("_kernel",)),
    "compiler": ("build.py", ("build_cpu", "build_cuda")),
    "xla": ("compiler.py", ("backend_compile_and_load",)),
}


def build(formulation: str) -> Any:
    """The optimal control problem: the hand reaches a goal; 20 intervals."""
    import casadi as ca

    import warpmpc as wm

    robot = wm.robots.load(FILE)
    (q, v), goal = robot.symbols(), ca.SX.sym("goal", 3)
    tau, a = ca.SX.sym("tau", 7), ca.SX.sym("a", 7)
    inputs = {"a": a, "tau": tau} if formulation == "inverse" else {"tau": tau}
    ocp = wm.OCP({"q": q, "v": v}, inputs, {"goal": goal}, horizon=20, dt=0.05)
    if formulation == "inverse":
        ocp.set_dynamics(ca.vertcat(v, a), integrator="rk4")
        ocp.subject_to(0, wm.robots.inverse_dynamics_rows(robot, q, v, a, tau=tau), 0)
    else:
        ocp.set_dynamics(robot.xdot(q, v, tau), integrator=formulation.removeprefix("forward-"))
    ocp.add_residual(robot.pose("hand", q).position - goal, weight=20.0, at="all")
    ocp.add_residual(v, weight=0.2, at="all")
    ocp.add_residual(tau - robot.bias(q, v), weight=1e-3)
    robot.limits(ocp, tau=tau)
    return ocp


def one_process(formulation: str, *, stages: bool) -> dict[str, Any]:
    """What a process measures of itself, from its start.

    Args:
        formulation: One of `FORMULATIONS`.
        stages: Whether a profiler runs, whose table is returned beside the times.
    """
    import cProfile
    import time

    began = time.perf_counter()
    import jax
    import numpy as np

    import warpmpc as wm

    found: dict[str, Any] = {"import_s": round(time.perf_counter() - began, 2)}
    profile = cProfile.Profile(time.process_time)
    if stages:
        profile.enable()
    qp = wm.ADMMSettings(rho=10.0, max_iter=100, check_every=0, adaptive_rho_every=0, scaling=0)
    solver = wm.MPCSolver(build(formulation), wm.SQPSettings(mode="fixed", max_iter=4, qp=qp))
    x0, goal = np.zeros((256, 14), "float32"), np.full((256, 3), 0.3, "float32")
    for batch, name in ((32, "first"), (64, "second"), (256, "third")):
        before = (time.perf_counter(), time.process_time())
        jax.block_until_ready(solver.solve(x0[:batch], {"goal": goal[:batch]}).u)
        spent = (time.perf_counter() - before[0], time.process_time() - before[1])
        if name == "first":
            profile.disable()
            found["import_to_first_s"] = round(time.perf_counter() - began, 2)
            found["import_to_first_cpu_s"] = round(time.process_time(), 2)
            continue
        found |= {f"{name}_batch_s": round(spent[0], 2), f"{name}_batch_cpu_s": round(spent[1], 2)}
    found["engine"] = solver.engine
    return {**found, "stages_cpu_s": _table(profile)} if stages else found


def _table(profile: Any) -> dict[str, float]:
    """Seconds of the stages in a profile."""
    import pstats

    stats: Any = pstats.Stats(profile).stats  # pyright: ignore[reportAttributeAccessIssue]
    stages = dict.fromkeys(STAGES, 0.0)
    for (file, _, function), (_, _, _, total, callers) in stats.items():
        for stage, (name, functions) in STAGES.items():
            if Path(file).name != name or function not in functions:
                continue
            inside = sum(c[3] for (f, _, g), c in callers.items() if _is(stage, f, g))
            stages[stage] += total - inside
    return {stage: round(seconds, 2) for stage, seconds in stages.items()}


def _is(stage: str, file: str, function: str) -> bool:
    """Whether a function counts for a stage; what it calls is in its time already."""
    name, functions = STAGES[stage]
    return Path(file).name == name and function in functions


def main() -> None:
    """Runs both processes."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--formulation", choices=FORMULATIONS, default="forward-rk4")
    parser.add_argument("--out", type=Path, help="file to add rows to")
    parser.add_argument("--stages", action="store_true", help="profile, too")
    parser.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.inside:
        sys.stdout.write(json.dumps(one_process(args.formulation, stages=args.stages)) + "\n")
        return
    from warpmpc_bench.common.record import append_row, machine

    command = [sys.executable, __file__, "--inside", "--formulation", args.formulation]
    for more in [[], ["--stages"]] if args.stages else [[]]:
        with tempfile.TemporaryDirectory() as folder:
            places = {"WARPMPC_CACHE_DIR": f"{folder}/code", "WARP_CACHE_PATH": f"{folder}/kernels"}
            for path in places.values():
                Path(path).mkdir(mode=0o700)
            for caches in ("empty", "full"):
                done = subprocess.run(
                    [*command, *more],
                    env={**os.environ, **places},
                    capture_output=True,
                    text=True,
                    check=True,
                )
                found = json.loads(done.stdout.splitlines()[-1])
                row = {"benchmark": "arm_compile", **machine(), "formulation": args.formulation}
                row |= {"caches": caches, "load": round(os.getloadavg()[0], 1), **found}
                sys.stdout.write(json.dumps({"caches": caches, **found}) + "\n")
                sys.stdout.flush()
                if args.out:
                    append_row(args.out, row)


if __name__ == "__main__":
    main()
