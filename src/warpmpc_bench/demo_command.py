"""`warpmpc demo`: the main job on this machine, with a readable summary and a picture."""

from __future__ import annotations

import argparse
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from warpmpc import systems
from warpmpc._errors import SettingsError
from warpmpc.cli.arguments import (
    DONE,
    WRONG_RESULT,
    add_device,
    check_name,
    device_of,
    epilog,
    full_name,
    short_names,
)
from warpmpc.cli.progress import Activity

HELP: str = "run the main job on this machine and draw it"
# A demo `name` of a layer is `demos.name` (run_demo), `demos.name_figure` (draw_demo) and
# `demos.name_summary` (format_demo).
BATCHES = {
    "qp": "solve a batch of linear MPC problems, two of them hopeless",
    "ldl": "solve a batch of KKT systems, two of them broken",
}
BATCH = 1024  # layers take about half a minute on two CPU cores, compilation included
EPILOG: str = epilog("""\
  warpmpc demo                          list the demos
  warpmpc demo cartpole                 write cartpole_demo.gif (half a minute on two CPU cores)
  warpmpc demo car --out car.png        one figure instead of an animation
  warpmpc demo quadrotor --batch 4096 --device cuda --show
""")


def demos() -> dict[str, str]:
    """All demos and what they show: closed loops of every system, then the layers below."""
    titles = {short: systems.describe(name).title for short, name in short_names().items()}
    return {**titles, **BATCHES}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the options."""
    parser.epilog = f"{list_demos()}\n\n{EPILOG}"
    parser.add_argument("name", nargs="?", metavar="NAME", help="which one; none: list them")
    sizes = ", ".join(f"{short}: {batch_of(name)}" for short, name in short_names().items())
    parser.add_argument(
        "--batch",
        metavar="N",
        type=int,
        help=f"instances (default: {sizes}, {' and '.join(BATCHES)}: {BATCH})",
    )
    parser.add_argument(
        "--out",
        "--figure",
        metavar="FILE",
        help="picture to write; .gif is an animation, .png, .pdf and .svg are figures (default "
        "NAME_demo.gif; qp and ldl: NAME_demo.png)",
    )
    parser.add_argument("--show", action="store_true", help="open the picture when it is written")
    loops = parser.add_argument_group(f"closed loops ({', '.join(short_names())})")
    loops.add_argument(
        "--steps", metavar="N", type=int, help="solves per instance (default: those of the system)"
    )
    loops.add_argument(
        "--seed",
        metavar="N",
        type=int,
        help="seed of the initial states (default: that of the benchmark)",
    )
    add_device(loops)  # pyright: ignore[reportArgumentType]


def run(args: argparse.Namespace) -> int:
    """Solves, prints what happened, draws it; exits 1 if a result is wrong."""
    if args.name is None:
        print(list_demos())
        return DONE
    name = full_name(args.name)
    check_name(name, [*systems.SYSTEMS, *BATCHES], "demo")
    path = _picture_file(args)
    if name not in BATCHES:
        return _run_loop(name, args, path)
    for option in ("steps", "seed", "device"):
        if getattr(args, option) is not None:
            raise SettingsError(f"--{option} is for closed loops: {', '.join(short_names())}.")
    demo: Any = import_module(f"warpmpc_bench.demos.{args.name}")
    text: Any = import_module(f"warpmpc_bench.demos.{args.name}_summary")
    with Activity() as activity:
        activity.phase("compiling and solving")
        result = demo.run_demo(BATCH if args.batch is None else args.batch)
    print(text.format_demo(result))
    if path is not None:
        figure: Any = import_module(f"warpmpc_bench.demos.{args.name}_figure")
        _written(figure.draw_demo(result, path), show=args.show)
    return DONE if result.correct else WRONG_RESULT


def list_demos() -> str:
    """Names of the demos and what they show."""
    lines = [f"  {name:<11}{what}" for name, what in demos().items()]
    return "\n".join(["warpmpc demo NAME, with NAME one of", *lines])


def batch_of(name: str) -> int:
    """Instances of the demo of a system, unless given."""
    return systems.describe(name).demo_batch


def _run_loop(name: str, args: argparse.Namespace, path: Path | None) -> int:
    from warpmpc_bench.demos.loop import LoopOptions, run_demo
    from warpmpc_bench.demos.loop_summary import format_demo

    batch = batch_of(name) if args.batch is None else args.batch
    options = LoopOptions(name, batch, args.steps, args.seed, device_of(args.device))
    with Activity() as activity:
        loop = run_demo(options, activity)
    print(format_demo(loop), flush=True)
    if path is not None:
        from warpmpc.viz.scene import write_scene
        from warpmpc_bench.demos.scenes import scene_of

        with Activity() as activity:
            activity.phase("drawing")
            scene = scene_of(loop)
            write_scene(scene, loop.steps, loop.system.control_dt, path, activity.report)
        _written(path, show=args.show)
    return DONE if loop.correct else WRONG_RESULT


def _picture_file(args: argparse.Namespace) -> Path | None:
    """File of the picture; a missing matplotlib is an error only if one was asked for."""
    from warpmpc.viz import style
    from warpmpc.viz.files import check_writable
    from warpmpc.viz.scene import check_suffix

    if args.out is not None or args.show:
        style.require_matplotlib()
    elif find_spec("matplotlib") is None:
        print("no picture: matplotlib is not installed (`pip install matplotlib`)")
        return None
    default = f"{args.name}_demo.{'png' if args.name in BATCHES else 'gif'}"
    path = check_suffix(args.out or default)
    if args.name in BATCHES and path.suffix.lower() == ".gif":
        raise SettingsError(f"demo {args.name} does not move: --out must be a .png, .pdf or .svg.")
    check_writable(path)
    return path


def _written(path: Path, *, show: bool) -> None:
    print(f"  wrote        {path}")
    if show:
        import webbrowser

        if not webbrowser.open(path.resolve().as_uri()):
            print("  no viewer    nothing on this machine shows pictures; open the file yourself")
