"""Solves of this tree against those of another commit, on one core and in turns.

    git worktree add --detach /tmp/other COMMIT
    python benchmarks/against_commit.py /tmp/other/src --json benchmarks/results/cpu_commits.jsonl

Each tree has a process of its own on the same core.  In every round both solve the same instances,
one after the other, and a row has the medians and the quartiles of the ratios within rounds.
Accuracy is the largest difference of the trajectories.  One SQP iteration per solve, float32.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

OURS = Path(__file__).resolve().parents[1] / "src"
WORKER = """
import sys, time
from dataclasses import replace
import jax, jax.numpy as jnp, numpy as np
import warpmpc as wm
for line in sys.stdin:
    words = line.split()
    if words[0] == "make":
        name, batch, engine, file = words[1], int(words[2]), words[3], words[4]
        system = wm.systems.make(name)
        settings = replace(system.settings, max_iter=1)
        solver = wm.MPCSolver(system.problem, settings, "float32", engine)
        x0 = jnp.asarray(system.sample(batch, 0), dtype="float32")
        x0 = x0[0] if batch == 1 else x0
        guess = jnp.asarray(solver.z_guess(x0))
        np.save(file, np.asarray(solver.solve(x0, warm_start=guess).z))
        begin = time.perf_counter()
        jax.block_until_ready(solver.solve(x0, warm_start=guess))
        times = max(1, min(50, int(0.05 / (time.perf_counter() - begin))))
        print("made", flush=True)
    else:
        begin = time.perf_counter()
        for _ in range(times):
            jax.block_until_ready(solver.solve(x0, warm_start=guess))
        print((time.perf_counter() - begin) / times, flush=True)
"""


class Tree:
    """The process of one tree."""

    def __init__(self, source: Path, core: int):
        """Starts it on a core."""
        env = {**os.environ, "PYTHONPATH": str(source), "WARPMPC_THREADS": "1"}
        env |= {"JAX_PLATFORMS": "cpu", "WARPMPC_QUIET": "1"}
        self._file = tempfile.NamedTemporaryFile(suffix=".npy")  # noqa: SIM115
        self._process = subprocess.Popen(
            [sys.executable, "-W", "ignore", "-c", WORKER],
            env=env, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            preexec_fn=lambda: os.sched_setaffinity(0, {core}),
        )  # fmt: skip

    def _asked(self, line: str) -> str:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(line + "\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline().strip()
        if not answer:
            raise SystemExit(f"A process has ended at {line!r}.")
        return answer

    def make(self, system: str, batch: int, engine: str) -> np.ndarray:
        """Builds a solver; returns its trajectories."""
        self._asked(f"make {system} {batch} {engine} {self._file.name}")
        return np.load(self._file.name)

    def seconds(self) -> float:
        """Time of a solve."""
        return float(self._asked("run"))


def measured(trees: list[Tree], system: str, batch: int, args: Any) -> dict[str, Any]:
    """One row, without what is about the machine."""
    ours, theirs = (tree.make(system, batch, args.engine) for tree in trees)
    rounds = np.array([[tree.seconds() for tree in trees] for _ in range(args.rounds)])
    low, ratio, high = np.quantile(rounds[:, 1] / rounds[:, 0], [0.25, 0.5, 0.75])
    difference = float(np.abs(ours - theirs).max() / np.abs(theirs).max())
    return {
        "benchmark": "against_commit",
        "system": {"name": system},
        "solver": system,
        "batch": batch,
        "dtype": "float32",
        "settings": {"engine": args.engine, "threads": 1, "sqp_iterations": 1},
        "other_commit": args.commit,
        "correct": difference < args.tolerance,
        "accuracy": {"relative_difference": difference},
        "seconds": {
            "ours": float(np.median(rounds[:, 0])),
            "other": float(np.median(rounds[:, 1])),
        },
        "ratio": {"median": float(ratio), "low": float(low), "high": float(high)},
    }


def main() -> None:
    """Measures and appends rows."""
    parser = argparse.ArgumentParser(
        description="Solves of this tree against those of another commit."
    )
    parser.add_argument("other", type=Path, help="folder src of the other tree")
    parser.add_argument("--systems", default="quadrotor,cartpole,linear")
    parser.add_argument("--batch", default="1,64,1024")
    parser.add_argument("--engine", default="auto")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--core", type=int, default=max(os.sched_getaffinity(0)))
    parser.add_argument("--tolerance", type=float, default=1e-3)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    where = ["git", "-C", str(args.other), "rev-parse", "--short", "HEAD"]
    args.commit = subprocess.run(where, capture_output=True, text=True, check=True).stdout.strip()
    trees = [Tree(OURS, args.core), Tree(args.other.resolve(), args.core)]
    # JAX has threads, and a process with threads should not be forked.
    from warpmpc_bench.common.record import append_row, machine

    about = machine()
    for system in args.systems.split(","):
        for batch in map(int, args.batch.split(",")):
            row = {**about, **measured(trees, system, batch, args)}
            ratio = row["ratio"]
            sys.stdout.write(
                f"{system:<12}{batch:>6}  {row['seconds']['other'] * 1e3:9.3f} -> "
                f"{row['seconds']['ours'] * 1e3:9.3f} ms  {ratio['median']:.2f} "
                f"[{ratio['low']:.2f}, {ratio['high']:.2f}]"
                f"{'' if row['correct'] else '  WRONG'}\n"
            )
            sys.stdout.flush()
            if args.json:
                append_row(args.json, row)


if __name__ == "__main__":
    main()
