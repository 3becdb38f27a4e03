"""Success over the number of pairs, with and without the expert's derivative in the loss.

    python benchmarks/learn_derivative.py --out success.jsonl --figure success.png

Reads: the task "quadrotor".  Produces: one row per number of pairs, weight of the derivative and
seed, and a figure.  Subsets of one data set are used, whole rollouts each.  All trainings take the
same number of optimiser steps, so that only the data differ.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

import warpmpc as wm
from warpmpc.learn.dataset import MANIFEST, Dataset, write_shard
from warpmpc.learn.files import write_json
from warpmpc.learn.parquet import encode
from warpmpc_bench.common.record import append_row, machine

PER_ROLLOUT = 200
MINIBATCH = 256
Row = dict[str, Any]


def subset(data: Dataset, rollouts: int, folder: Path) -> Dataset:
    """The pairs of the first rollouts of a data set of one shard, as a data set."""
    records = data.shards[0].read()
    records = records[records["rollout"] < rollouts]
    counts = {"pairs": len(records), "offered": rollouts * PER_ROLLOUT}
    manifest = {**data.manifests[0], "shards": 1}
    write_shard(folder, 0, encode(records, manifest["names"]), counts)
    write_json(folder / MANIFEST, manifest)
    return Dataset.open(folder)


def trained(data: Dataset, task: wm.learn.Task, steps: int, sobolev: float, seed: int) -> Row:
    """A policy's success, loss and time."""
    epochs = max(1, round(steps * MINIBATCH / (0.8 * data.pairs)))
    settings = wm.learn.TrainSettings(
        epochs=epochs, minibatch=MINIBATCH, sobolev=sobolev, seed=seed, patience=0
    )
    began = time.process_time()
    policy = wm.learn.train(data, settings, task=task)
    seconds = time.process_time() - began
    found = wm.learn.evaluate(
        task, policy, starts=1000, expert_starts=1, situations=("noise-free",)
    )
    row = found.row("noise-free", "policy")
    return {
        "pairs": data.pairs,
        "sobolev": sobolev,
        "seed": seed,
        "epochs": epochs,
        "success": row.success,
        "validation_loss": min(policy.history["validation"]),
        "train_cpu_s": round(seconds, 1),
    }


def draw(rows: list[Row], path: Path) -> None:
    """Median and range over seeds."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6, 3.6), layout="constrained")
    axes = figure.subplots()
    for sobolev in sorted({row["sobolev"] for row in rows}):
        mine = [row for row in rows if row["sobolev"] == sobolev]
        sizes = sorted({row["pairs"] for row in mine})
        found = [[100 * row["success"] for row in mine if row["pairs"] == n] for n in sizes]
        label = f"weight of the derivative {sobolev:g}" if sobolev else "labels only"
        axes.plot(sizes, [np.median(some) for some in found], marker="o", label=label)
        axes.fill_between(sizes, [min(f) for f in found], [max(f) for f in found], alpha=0.2)
    axes.set(xscale="log", xlabel="pairs", ylabel="success from 1 000 starts [%]")
    sizes = sorted({row["pairs"] for row in rows})
    axes.set_xticks(sizes, [str(size) for size in sizes])
    axes.minorticks_off()
    axes.grid(alpha=0.3)
    axes.legend(frameon=False)
    figure.savefig(path, dpi=150)


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def main() -> None:
    """Makes data, trains and writes."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--folder", type=Path, help="data (default: a temporary folder)")
    parser.add_argument("--rollouts", default="8,16,32,64,128,256", help="sizes to try")
    parser.add_argument("--keep", type=float, default=0.1, help="share of the pairs to keep")
    parser.add_argument("--weights", default="0,0.1,1", help="weights of the derivative")
    parser.add_argument("--seeds", type=int, default=3, help="trainings per size")
    parser.add_argument("--steps", type=int, default=3000, help="steps of the optimiser")
    parser.add_argument("--out", type=Path, default=Path("learn_derivative.jsonl"))
    parser.add_argument("--figure", type=Path, default=Path("learn_derivative.png"))
    args = parser.parse_args()
    task = wm.learn.make_task("quadrotor")
    sizes = [int(text) for text in args.rollouts.split(",")]
    about = {"benchmark": "learn_derivative", "task": task.name, **machine()}
    rows = []
    with tempfile.TemporaryDirectory() as temporary:
        settings = wm.learn.DataSettings(
            rollouts=max(sizes), shards=1, derivatives=True, seed=7, keep=args.keep
        )
        began = time.process_time()
        data = wm.learn.synthesize(task, folder=args.folder or temporary, settings=settings)
        _say(f"{data.pairs} pairs in {time.process_time() - began:.0f} s of CPU time")
        for rollouts in sizes:
            part = subset(data, rollouts, Path(temporary) / f"first-{rollouts}")
            for sobolev in map(float, args.weights.split(",")):
                for seed in range(args.seeds):
                    row: Row = {
                        **about,
                        "rollouts": rollouts,
                        "keep": args.keep,
                        "steps": args.steps,
                    }
                    row |= trained(part, task, args.steps, sobolev, seed)
                    rows.append(row)
                    _say(str({k: row[k] for k in ("pairs", "sobolev", "seed", "success")}))
                    append_row(args.out, row)
    draw(rows, args.figure)


if __name__ == "__main__":
    main()
