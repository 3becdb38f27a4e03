"""The humanoid without a GPU: compile times, rate of one core, memory, and compilation for CUDA.

    WARPMPC_THREADS=1 python benchmarks/humanoid_cpu.py --out benchmarks/results/humanoid_cpu.jsonl
    python benchmarks/humanoid_cpu.py --cuda --out benchmarks/results/humanoid_cpu.jsonl

Each run is a process of its own: one with empty caches, and one that finds them and then runs the
loop of the benchmark for some steps.  With `--cuda` the kernels of a solve are compiled for sm_90
instead, on all cores, which needs no device.  Where a name says cpu, the time of all cores is
meant, which a busy machine changes less than wall time.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

BATCH, STEPS = 256, 20


def one_process(steps: int, batch: int) -> dict[str, Any]:
    """What a process measures of itself, from its start."""
    began = time.perf_counter()
    import jax

    from warpmpc import systems

    system = systems.make("humanoid")
    solver = system.solver()
    x = jax.numpy.asarray(system.sample(batch), dtype="float32")
    params = jax.jit(system.params_at)
    now = solver.solve(x, params(0, x))
    jax.block_until_ready(now.u)
    found = {
        "import_to_first_s": round(time.perf_counter() - began, 2),
        "import_to_first_cpu_s": round(time.process_time(), 2),
        "bytes_per_instance": solver.bytes_per_instance,
    }
    before, cpu = time.perf_counter(), time.process_time()
    for t in range(1, steps + 1):
        x = system.simulate(x, now.u[:, 0])
        now = solver.solve(x, params(t, x), now.warm_start)
    jax.block_until_ready(now.u)
    if steps:
        seconds = (time.perf_counter() - before, time.process_time() - cpu)
        found["iterations_per_s"] = round(steps * batch / seconds[0], 1)
        found["iterations_per_cpu_s"] = round(steps * batch / seconds[1], 1)
        found["largest_theta"] = float(now.theta.max())
    return found


def for_cuda() -> dict[str, Any]:
    """Compiles the kernels of a solve for sm_90, as many at a time as there are cores."""
    import warp as wp

    from warpmpc import systems

    solver = systems.make("humanoid").solver()
    kernels = [*solver.programs.to_load(), *solver.qp.loop.to_load(128)]  # pyright: ignore[reportAttributeAccessIssue]
    spent: dict[str, float] = {}
    cpu, began = time.process_time(), time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:

        def build(number: int) -> None:
            source, block = kernels[number]
            place = f"{folder}/{number}"
            begin = time.perf_counter()
            module = source.kernel().module
            module.options["block_dim"] = block
            wp.compile_aot_module(module, arch=90, module_dir=place, use_ptx=False)
            spent[source.name] = round(time.perf_counter() - begin, 1)

        with ThreadPoolExecutor(os.cpu_count()) as threads:
            list(threads.map(build, range(len(kernels))))
    return {
        "cuda_wall_s": round(time.perf_counter() - began, 1),
        "cuda_cpu_s": round(time.process_time() - cpu, 1),
        "kernels_s": spent,
    }


def main() -> None:
    """Runs the processes."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, help="file to add rows to")
    parser.add_argument("--cuda", action="store_true", help="compile for sm_90 only")
    parser.add_argument("--batch", type=int, default=BATCH, help=f"instances (default {BATCH})")
    parser.add_argument("--inside", type=int, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.inside is not None:
        sys.stdout.write(json.dumps(one_process(args.inside, args.batch)) + "\n")
        return
    from warpmpc_bench.common.record import append_row, machine

    def report(found: dict[str, Any]) -> None:
        row = {"benchmark": "humanoid_cpu", **machine(), "batch": args.batch}
        row |= {"threads": os.environ.get("WARPMPC_THREADS"), **found}
        sys.stdout.write(json.dumps(found) + "\n")
        sys.stdout.flush()
        if args.out:
            append_row(args.out, {**row, "load": round(os.getloadavg()[0], 1)})

    if args.cuda:
        report(for_cuda())
        return
    with tempfile.TemporaryDirectory() as folder:
        places = {"WARPMPC_CACHE_DIR": f"{folder}/code", "WARP_CACHE_PATH": f"{folder}/kernels"}
        for path in places.values():
            Path(path).mkdir(mode=0o700)
        for caches, steps in (("empty", 0), ("full", STEPS)):
            command = [sys.executable, __file__, "--inside", str(steps), "--batch", str(args.batch)]
            environment = {**os.environ, **places}
            done = subprocess.run(
                command, env=environment, capture_output=True, text=True, check=True
            )
            report({"caches": caches, **json.loads(done.stdout.splitlines()[-1])})


if __name__ == "__main__":
    main()
