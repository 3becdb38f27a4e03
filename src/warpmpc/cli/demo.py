"""`warpmpc demo`: the main job on this machine, with a readable summary and a picture."""

from __future__ import annotations

import argparse
from importlib import import_module
from importlib.util import find_spec
from typing import Any

HELP: str = "run the main job on this machine and draw a picture"
WRONG_RESULT = 1
# A demo `name` is `bench.name_demo` (run_demo), `bench.name_demo_figure` (draw_demo) and
# `cli.demo_name` (format_demo).
DEMOS = {"ldl": "solve a batch of KKT systems", "qp": "solve a batch of linear MPC problems"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the options."""
    listed = "; ".join(f"{name}: {what}" for name, what in DEMOS.items())
    parser.add_argument("name", choices=list(DEMOS), help=listed)
    parser.add_argument("--batch", metavar="N", type=int, default=1024, help="instances (1024)")
    parser.add_argument("--figure", metavar="FILE", help="PNG to write (default NAME_demo.png)")


def run(args: argparse.Namespace) -> int:
    """Solves, prints what happened, draws it; exits 1 if a result is wrong."""
    from warpmpc.viz import style

    if args.figure is not None:
        style.require_matplotlib()
    demo: Any = import_module(f"warpmpc.bench.{args.name}_demo")
    text: Any = import_module(f"warpmpc.cli.demo_{args.name}")
    result = demo.run_demo(args.batch)
    print(text.format_demo(result))
    if find_spec("matplotlib") is None:
        print("  no picture   matplotlib is not installed: `pip install 'warpmpc[viz]'`")
    else:
        figure: Any = import_module(f"warpmpc.bench.{args.name}_demo_figure")
        print(f"  wrote        {figure.draw_demo(result, args.figure or f'{args.name}_demo.png')}")
    return 0 if result.correct else WRONG_RESULT
