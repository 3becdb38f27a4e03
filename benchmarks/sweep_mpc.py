"""The sweep over batch sizes and the ablation of the MPC benchmark: rows, and two plots.

    python benchmarks/sweep_mpc.py sweep --json rows.jsonl [--part small|large] [--systems NAME,...]
    python benchmarks/sweep_mpc.py ablation --json rows.jsonl [--systems NAME,...] [--batch N,N,...]
    python benchmarks/sweep_mpc.py plot --json rows.jsonl --sweep-plot sweep.png
        [--ablation-plot ablation.png] [--ldl ldl_rows.jsonl]

Both run `warpmpc bench NAME` in this process, one system after the other, and append to the file.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from warpmpc.cli.main import main as command
from warpmpc_bench.mpc import plot as mpc_plot
from warpmpc_bench.mpc.ablation import plot_ablation
from warpmpc_bench.mpc.variants import VARIANTS

# Batch sizes and steps of the timed loops: enough for a stable rate, few enough for one session.
SMALL, LARGE = "1,10,100,1000,4000,10000", "32000,100000,300000"
STEPS = {
    "pendulum": {"small": 100, "large": 50},
    "car": {"small": 120, "large": 60},
    "cartpole": {"small": 20, "large": 10},
    "quadrotor": {"small": 100, "large": 50},
    "quadrotor_obstacles": {"small": 50, "large": 20},
    "linear": {"small": 50, "large": 50},
}
ABLATION_BATCHES = "1000,10000,100000"


def measure(name: str, file: Path, batches: str, steps: int, variants: str | None) -> int:
    """One call of the command line."""
    arguments = ["bench", name, "--json", str(file), "--batch", batches, "--steps", str(steps)]
    arguments += ["--plot", str(file.with_suffix(".png"))]
    if variants is not None:
        # Kernels of variants are compared solve by solve; their closed loops would take too long.
        arguments += ["--variants", variants, "--no-full-loops"]
    sys.stdout.write(f"\nwarpmpc {' '.join(arguments)}\n")
    return command(arguments)


def sweep(options: argparse.Namespace) -> int:
    """All batch sizes of the chosen parts, as the library chooses."""
    parts = {"small": SMALL, "large": LARGE}
    chosen = parts if options.part is None else {options.part: parts[options.part]}
    codes = [
        measure(name, options.json, batches, STEPS[name][part], None)
        for name in options.systems.split(",")
        for part, batches in chosen.items()
    ]
    return max(codes)


def ablation(options: argparse.Namespace) -> int:
    """All variants at a few batch sizes."""
    variants = options.variants or ",".join(VARIANTS)
    codes = [
        measure(name, options.json, options.batch, STEPS[name]["large"], variants)
        for name in options.systems.split(",")
    ]
    return max(codes)


def plot(options: argparse.Namespace) -> int:
    """Figures of a file."""
    if options.sweep_plot is not None:
        mpc_plot.plot_file(options.json, options.sweep_plot)
    if options.ablation_plot is not None:
        plot_ablation(options.json, options.ablation_plot, options.ldl)
    return 0


def main() -> int:
    """Runs the requested commands; the exit code is that of the worst one."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("what", choices=("sweep", "ablation", "plot"))
    parser.add_argument("--json", type=Path, required=True)
    parser.add_argument("--systems", default="cartpole,quadrotor")
    parser.add_argument("--part", choices=("small", "large"))
    parser.add_argument("--batch", default=ABLATION_BATCHES)
    parser.add_argument("--variants", help="of the ablation (default: all)")
    parser.add_argument("--sweep-plot", type=Path)
    parser.add_argument("--ablation-plot", type=Path)
    parser.add_argument("--ldl", type=Path, help="rows of `bench ldl`, for the layout")
    options = parser.parse_args()
    return {"sweep": sweep, "ablation": ablation, "plot": plot}[options.what](options)


if __name__ == "__main__":
    raise SystemExit(main())
