"""`warpmpc info`: this machine, a benchmark system, or the symbolic analysis of one pattern."""

from __future__ import annotations

import argparse
import json
from typing import TYPE_CHECKING, Any

from warpmpc._errors import SettingsError
from warpmpc.cli.arguments import epilog
from warpmpc.cli.environment import describe
from warpmpc.cli.system_info import describe_system, format_system
from warpmpc.codegen.cache import CACHE_VARIABLE

if TYPE_CHECKING:
    from warpmpc.viz import PatternAnalysis

HELP: str = "versions, devices and what works; sizes of a system; or the analysis of one pattern"
EPILOG: str = epilog("""\
  warpmpc info                                    versions, devices, what works and what does not
  warpmpc info --json                             the same for a script
  warpmpc info humanoid                           sizes, fill, engine and memory of a system
  warpmpc info --pattern cartpole --ordering stage --figures figures
                                                  sizes, fill and levels of a KKT matrix, drawn
""")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the options."""
    parser.add_argument("name", metavar="NAME", nargs="?", help="a system, for example humanoid")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    pattern = parser.add_argument_group("analysis of a pattern")
    pattern.add_argument("--pattern", metavar="NAME", help="a KKT pattern, for example cartpole")
    pattern.add_argument("--ordering", metavar="NAME", help="amd (default), stage or natural")
    pattern.add_argument("--segments", metavar="N", type=int, help="segment budget (default 16)")
    pattern.add_argument("--figures", metavar="DIR", help="write PNG files into this folder")


def run(args: argparse.Namespace) -> int:
    """Prints the report."""
    if args.pattern is not None:
        if args.name is not None:
            raise SettingsError("NAME and --pattern are different reports; give one of the two.")
        return _run_pattern(args)
    for option in ("ordering", "segments", "figures"):
        if getattr(args, option) is not None:
            raise SettingsError(f"--{option} needs --pattern NAME.")
    if args.name is not None:
        found = describe_system(args.name)
        print(json.dumps(found, indent=2) if args.json else format_system(found))
        return 0
    report = describe()
    print(json.dumps(report, indent=2) if args.json else format_environment(report))
    return 0


def _run_pattern(args: argparse.Namespace) -> int:
    from warpmpc.viz import analyse, plot_pattern

    segments = 16 if args.segments is None else args.segments
    analysis = analyse(args.pattern, args.ordering or "amd", segments)
    files = [str(path) for path in plot_pattern(analysis, args.figures)] if args.figures else []
    if args.json:
        print(json.dumps({**analysis.summary(), "figures": files}, indent=2))
        return 0
    print(format_pattern(analysis))
    for path in files:
        print(f"  wrote        {path}")
    return 0


def format_environment(report: dict[str, Any]) -> str:
    """The machine as text."""
    lines = [f"Python {report['python']} on {report['platform']}", "", "Packages"]
    lines += [f"  {name:<19}{found or 'missing'}" for name, found in report["versions"].items()]
    lines += ["", "Optional packages"]
    lines += [f"  {name:<19}{found or '-'}" for name, found in report["optional"].items()]
    lines += ["", "Devices"]
    lines += [f"  {d['platform']}:{d['id']:<15} {d['kind']}" for d in report["devices"]]
    if report["device_error"]:
        lines += [f"  none: {report['device_error']}"]
    lines += ["", "What works"]
    for feature in report["features"]:
        mark = "yes" if feature["works"] else "no"
        lines += [f"  {mark:<4} {feature['name']:<16}{feature['detail']}"]
    lines += ["", "Where kernels are kept"]
    lines += [f"  compiled   {report['kernel_cache']}  (WARP_CACHE_PATH moves it)"]
    lines += [f"  generated  {report['source_cache']}  ({CACHE_VARIABLE} moves it)"]
    return "\n".join(lines)


def format_pattern(analysis: PatternAnalysis) -> str:
    """The analysis as text."""
    s: dict[str, Any] = analysis.summary()
    rows = {
        "problem": f"n = {s['n']}, m = {s['m']}, nnz(P) = {s['nnz_P']}, nnz(A) = {s['nnz_A']}",
        "K": f"{s['dimension']} x {s['dimension']}, nnz(K) = {s['nnz_K_upper']} upper, "
        f"{s['nnz_K_full']} full",
        "L": f"nnz(L) = {s['nnz_L']}, of which {s['fill']} fill",
        "factor": f"{s['factor_flops']} flops, {s['factor_bytes']} bytes (float32)",
        "solve": f"{s['solve_flops']} flops, {s['solve_bytes']} bytes",
        "storage": f"{s['storage_bytes']} bytes for K, L, D and two vectors",
        "levels": f"{s['levels']}; forward solve in {s['phases_forward']} steps, "
        f"transposed in {s['phases_backward']}",
        "segments": f"{s['segments']} for the columns of L, {s['segments_padded_share']:.1%} "
        f"padding; {s['schedule_padded_share']:.1%} over the whole schedule",
        "stages": _stage_source(s),
    }
    title = f"{s['pattern']}, {s['ordering']} ordering"
    return "\n".join([title, *(f"  {name:<13}{text}" for name, text in rows.items())])


def _stage_source(s: dict[str, Any]) -> str:
    if s["repeating_from"] is None:
        return f"{s['stages']}, not eliminated one after the other: nothing repeats"
    last = s["repeating_from"] + s["repeating_stages"] - 1
    sizes = " or ".join(str(size) for size in s["frontiers"])
    return (
        f"{s['stages']}, of which {s['repeating_stages']} repeat "
        f"({s['repeating_from']} to {last}); frontier of {sizes} nodes between stages"
    )
