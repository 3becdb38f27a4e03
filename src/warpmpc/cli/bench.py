"""`warpmpc bench`: measurements of the solver on this machine, as table, JSONL and plot."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from warpmpc._errors import SettingsError
from warpmpc.cli.progress import Progress

if TYPE_CHECKING:
    from warpmpc.bench.ldl import BenchSettings
    from warpmpc.bench.record import Row

HELP: str = "measure rates, accuracy and memory on this machine"
JSON_FILE, PLOT_FILE = "ldl_bench.jsonl", "ldl_bench.png"
WRONG_RESULT = 1


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the options."""
    parser.add_argument("name", choices=["ldl"], help="ldl: batched factorisations and solves")
    parser.add_argument("--batch", metavar="N,N,...", help="batch sizes (default: by device)")
    parser.add_argument("--dtype", metavar="NAME,...", default="float32", help="float32, float64")
    parser.add_argument("--variants", metavar="NAME,...", help="of the engine (default: all)")
    parser.add_argument("--repeats", metavar="N", type=int, default=5, help="timings per median")
    parser.add_argument(
        "--baselines",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="also measure QDLDL on one core, dense JAX, and cuDSS where installed",
    )
    parser.add_argument(
        "--json", metavar="FILE", default=JSON_FILE, help="append rows to this file"
    )
    parser.add_argument("--plot", metavar="FILE", help=f"PNG to write (default {PLOT_FILE})")


def run(args: argparse.Namespace) -> int:
    """Measures, printing and storing each row as it comes; exits 1 if a result was wrong."""
    import jax

    if "float64" in args.dtype:
        jax.config.update("jax_enable_x64", True)
    plot = _plot_file(args.plot)
    rows = _measure(_settings(args), args.json)
    print(f"rows appended to {args.json}")
    wrong = any(row["correct"] is False for row in rows)
    if plot and any(row["correct"] and row["kind"] == "variant" for row in rows):
        from warpmpc.bench.ldl_plot import plot_file

        print(f"plot written to {plot_file(args.json, plot)}")
    return WRONG_RESULT if wrong else 0


def _measure(settings: BenchSettings, json_file: str) -> list[Row]:
    from warpmpc.bench import ldl, ldl_report
    from warpmpc.bench.record import append_row

    steps, rows = ldl.plan(settings), []
    progress = Progress(len(steps))
    print(ldl_report.HEADER, flush=True)
    measured = ldl.run(settings)
    for done, step in enumerate(steps):
        progress.show(done, f"{step.solver}, batch {step.batch}, {step.dtype}")
        row = next(measured)
        append_row(json_file, row)
        rows.append(row)
        progress.clear()
        print(ldl_report.line(row), flush=True)
    print(f"\n{ldl_report.summary(rows)}")
    return rows


def _settings(args: argparse.Namespace) -> BenchSettings:
    from warpmpc.bench.ldl import BenchSettings
    from warpmpc.bench.ldl_variants import VARIANTS

    return BenchSettings(
        batches=_numbers(args.batch) if args.batch is not None else None,
        dtypes=_names(args.dtype),
        variants=tuple(VARIANTS) if args.variants is None else _names(args.variants),
        repeats=args.repeats,
        baselines=args.baselines,
    )


def _plot_file(wanted: str | None) -> str | None:
    """Where the plot goes; a missing matplotlib matters only to who asked for a plot."""
    from importlib.util import find_spec

    from warpmpc.viz import style

    if wanted is not None:
        style.require_matplotlib()
    elif find_spec("matplotlib") is None:
        print("no plot: matplotlib is not installed (`pip install 'warpmpc[viz]'`)")
        return None
    return wanted or PLOT_FILE


def _names(text: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))


def _numbers(text: str) -> tuple[int, ...]:
    try:
        return tuple(int(name) for name in _names(text))
    except ValueError:
        raise SettingsError(f"--batch takes whole numbers like 512,2048, got {text!r}.") from None
