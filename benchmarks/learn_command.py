"""How long `warpmpc learn TASK` takes, part by part, and what its policy achieves.

    python benchmarks/learn_command.py quadrotor --out benchmarks/results/learn_command_cpu.jsonl

Reads: the report of the command, which runs in a process of its own and in an empty folder.
Produces: one row.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from warpmpc_bench.common.record import append_row, machine


def run(task: str, folder: str, options: list[str]) -> tuple[float, dict[str, Any]]:
    """Seconds of the whole process, and its report; JSON has no NaN."""
    command = [sys.executable, "-m", "warpmpc.cli.main", "learn", task, "--json", *options]
    command += ["--out", folder]
    start = time.perf_counter()
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    return time.perf_counter() - start, json.loads(done.stdout, parse_constant=lambda name: None)


def shares(report: dict[str, Any], wall: float) -> dict[str, float]:
    """Each part's share of the time; "start" is what no part took."""
    parts = {name: s / wall for name, s in report["seconds"].items() if name != "all"}
    rounded = {name: round(share, 3) for name, share in parts.items()}
    return {"start": round(1 - sum(parts.values()), 3), **rounded}


def main() -> None:
    """Runs the command once and writes."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("task", nargs="?", default="quadrotor", help="what to learn")
    parser.add_argument("--out", type=Path, help="file to add a row to")
    args, options = parser.parse_known_args()  # others go to the command
    with tempfile.TemporaryDirectory() as folder:
        wall, report = run(args.task, folder, options)
    row: dict[str, Any] = {
        "benchmark": "learn_command",
        "task": args.task,
        "options": options,
        **machine(),
        "wall_s": round(wall, 1),
        "seconds": report["seconds"],
        "shares": shares(report, wall),
        "data": report["data"],
        "train": report["train"],
        "evaluate": report["evaluate"]["rows"],
        "agrees": report["export"]["agrees"],
    }
    sys.stdout.write(json.dumps(row, indent=2) + "\n")
    if args.out is not None:
        append_row(args.out, row)


if __name__ == "__main__":
    main()
