"""`warpmpc bench`: measurements of the solvers on this machine, as table, JSONL and plot.

A benchmark is a folder of `warpmpc_bench` with `bench.py` (`plan`, `run`), `report.py` (`HEADER`,
`line`, `summary`), `plot.py` (`plot_file`) and `baselines.py` (`BASELINES`); add it to `LAYERS`
with its own options.  Every system of `warpmpc.systems.SYSTEMS` is a benchmark, too.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Any, NamedTuple

from warpmpc import systems
from warpmpc._errors import SettingsError
from warpmpc.cli.arguments import WRONG_RESULT, epilog, full_name
from warpmpc.cli.progress import Progress
from warpmpc_bench.mpc.setup import MPCSetup

if TYPE_CHECKING:
    from warpmpc_bench.common.baseline import Baseline
    from warpmpc_bench.common.record import Row
    from warpmpc_bench.common.sweep import Sweep

HELP: str = "measure rates, accuracy and memory on this machine"
EPILOG: str = epilog("""\
  warpmpc bench cartpole                          closed loops at batch sizes that suit the device
  warpmpc bench cartpole --batch 1000,10000 --json rows.jsonl
  warpmpc bench pendulum --batch 1 --sqp-iter 5 --admm-iter 25    how long one solve takes
  warpmpc bench cartpole --variants onchip,staged                 one launch per solve, or three
  warpmpc bench car --batch 32 --baselines ipopt                  IPOPT on the same closed loops
  warpmpc bench qp --dtype float32,float64 --no-baselines
  warpmpc bench cpu --json benchmarks/results/cpu.jsonl     threads of the CPU, interleaved
  warpmpc bench NAME --help                       options of one benchmark

Every row is one line of JSON with machine, commit, settings, times and accuracy, appended as a
whole when it is measured.  A row whose result is wrong is kept, but neither drawn nor summarised.
""")


ALL = "all"  # baselines


class Benchmark(NamedTuple):
    """One benchmark.

    Attributes:
        help: One line for the help.
        add_arguments: Declares the options that only this benchmark has.
        settings: Builds its settings from all options.
        module: Folder of `warpmpc_bench`.
        all_baselines: Whether other solvers are measured unless asked otherwise.
        alias: Second, shorter name on the command line.
    """

    help: str
    add_arguments: Callable[[argparse.ArgumentParser], None]
    settings: Callable[[argparse.Namespace], Sweep]
    module: str
    all_baselines: bool = True
    alias: str | None = None

    @property
    def baselines(self) -> Mapping[str, Baseline]:
        """Other solvers that the benchmark knows."""
        return import_module(f"warpmpc_bench.{self.module}.baselines").BASELINES


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the options."""
    names = parser.add_subparsers(dest="name", required=True, metavar="NAME")
    for name, benchmark in benchmarks().items():
        short = () if benchmark.alias is None else (benchmark.alias,)
        one = names.add_parser(
            name, aliases=short, help=benchmark.help, description=benchmark.help, epilog=EPILOG
        )
        _add_shared(one, name, benchmark)
        benchmark.add_arguments(one)


def _add_shared(parser: argparse.ArgumentParser, name: str, benchmark: Benchmark) -> None:
    json_file, plot_file = f"{name}_bench.jsonl", f"{name}_bench.png"
    parser.add_argument("--batch", metavar="N,N,...", help="batch sizes (default: by device)")
    parser.add_argument(
        "--dtype", metavar="NAME,...", default="float32", help="float32 (default), float64"
    )
    parser.add_argument(
        "--repeats", metavar="N", type=int, default=5, help="timings per median (default 5)"
    )
    parser.add_argument("--cores", metavar="N", type=int, help="CPU cores to use (default: all)")
    known, usual = ", ".join(benchmark.baselines), "all" if benchmark.all_baselines else "none"
    parser.add_argument(
        "--baselines",
        metavar="NAME,...",
        nargs="?",
        const=ALL,
        default=ALL if benchmark.all_baselines else None,
        help=f"other solvers to measure where they are installed: {known} (default: {usual}; "
        "without a name: all)",
    )
    parser.add_argument(
        "--no-baselines",
        dest="baselines",
        action="store_const",
        const=None,
        help="measure no other solvers",
    )
    parser.add_argument(
        "--json",
        metavar="FILE",
        default=json_file,
        help=f"append rows to this file (default {json_file})",
    )
    parser.add_argument("--plot", metavar="FILE", help=f"PNG to write (default {plot_file})")


def _add_ldl(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--variants", metavar="NAME,...", help="variants of the engine (default: all)"
    )


def _add_qp(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--engines", metavar="NAME,...", help="engines of QPSolver (default: all)")
    parser.add_argument(
        "--horizon", metavar="N", type=int, default=40, help="horizon of the MPC (default 40)"
    )
    parser.add_argument(
        "--gradients",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="also measure gradients by both methods",
    )


def _add_translate(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--emitters", metavar="NAME,...", help="native, jax (default: both)")
    parser.add_argument(
        "--lengths",
        metavar="N,N,...",
        default="100,1000,10000,100000",
        help="instructions of the CasADi functions (default 100,1000,10000,100000)",
    )
    parser.add_argument(
        "--patience",
        metavar="S",
        type=float,
        default=300,
        help="longest compilation in seconds (default 300)",
    )


def _add_mpc(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--steps", metavar="N", type=int, help="steps of the timed closed loop (default: all)"
    )
    parser.add_argument(
        "--variants",
        metavar="NAME,...",
        help="ways to run the solver: default (as the library chooses), onchip, staged, sparse, "
        "and ablations of them (default: default)",
    )
    parser.add_argument(
        "--horizon", metavar="N", type=int, help="horizon of the MPC (default: see above)"
    )
    parser.add_argument(
        "--sqp-iter", metavar="N", type=int, help="SQP iterations per solve (default: see above)"
    )
    parser.add_argument(
        "--admm-iter", metavar="N", type=int, help="ADMM iterations per QP (default: see above)"
    )
    parser.add_argument(
        "--sample",
        metavar="N",
        type=int,
        default=256,
        help="instances that are checked in float64 (default 256)",
    )
    parser.add_argument(
        "--cold", action="store_true", help="build kernels as on a new machine, without any cache"
    )
    parser.add_argument(
        "--profile",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="also measure the phases of an iteration",
    )
    parser.add_argument(
        "--full-loops",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="also compare full-length loops of a sample with float64",
    )


def run(args: argparse.Namespace) -> int:
    """Measures, printing and storing each row as it comes; exits 1 if our result was wrong."""
    import jax

    if args.cores is not None:
        from warpmpc_bench.common.timing import use_cores

        use_cores(args.cores)
    if "float64" in args.dtype:
        jax.config.update("jax_enable_x64", True)
    from warpmpc.engines.runtime.loading import keep_programs

    keep_programs()
    args.name = full_name(args.name)
    plot = _plot_file(args.plot, f"{args.name}_bench.png")
    ours = [row for row in _measure(args) if row["kind"] == "variant"]
    print(f"rows appended to {args.json}")
    if plot and any(row["correct"] for row in ours):
        drawing: Any = import_module(f"warpmpc_bench.{benchmarks()[args.name].module}.plot")
        print(f"plot written to {drawing.plot_file(args.json, plot)}")
    return WRONG_RESULT if any(row["correct"] is False for row in ours) else 0


def _measure(args: argparse.Namespace) -> list[Row]:
    from warpmpc_bench.common.record import append_row

    benchmark = benchmarks()[args.name]
    bench: Any = import_module(f"warpmpc_bench.{benchmark.module}.bench")
    report: Any = import_module(f"warpmpc_bench.{benchmark.module}.report")
    settings = benchmark.settings(args)
    steps, rows = bench.plan(settings), []
    progress = Progress(len(steps))
    print(report.HEADER, flush=True)
    measured = bench.run(settings)
    for done, step in enumerate(steps):
        progress.show(done, f"{step.solver}, batch {step.batch}, {step.dtype}")
        row = next(measured)
        append_row(args.json, row)
        rows.append(row)
        progress.clear()
        print(report.line(row), flush=True)
    print(f"\n{report.summary(rows)}")
    return rows


def _ldl_settings(args: argparse.Namespace) -> Sweep:
    from warpmpc_bench.ldl.bench import BenchSettings

    return BenchSettings(**_shared_settings(args, args.variants))


def _qp_settings(args: argparse.Namespace) -> Sweep:
    from warpmpc_bench.qp.bench import QPBenchSettings

    shared = _shared_settings(args, args.engines)
    return QPBenchSettings(**shared, gradients=args.gradients, horizon=args.horizon)


def _translate_settings(args: argparse.Namespace) -> Sweep:
    from warpmpc_bench.translate.bench import TranslateSettings

    lengths = _numbers(args.lengths, "--lengths")
    shared = _shared_settings(args, args.emitters)
    return TranslateSettings(**shared, lengths=lengths, patience_s=args.patience)


def _mpc_settings(args: argparse.Namespace) -> Sweep:
    from warpmpc_bench.mpc.bench import MPCBenchSettings

    return MPCBenchSettings(
        **_shared_settings(args, args.variants),
        system=args.name,
        steps=args.steps,
        horizon=args.horizon,
        sqp_iter=args.sqp_iter,
        admm_iter=args.admm_iter,
        sample=args.sample,
        cold=args.cold,
        profile=args.profile,
        full_loops=args.full_loops,
    )


def _shared_settings(args: argparse.Namespace, variants: str | None) -> dict[str, Any]:
    return {
        "batches": _numbers(args.batch) if args.batch is not None else None,
        "dtypes": _names(args.dtype),
        "variants": None if variants is None else _names(variants),
        "repeats": args.repeats,
        "baselines": args.baselines == ALL or _names(args.baselines or ""),
    }


def _plot_file(wanted: str | None, default: str) -> str | None:
    """File of the plot; a missing matplotlib is an error only if a plot was asked for."""
    from importlib.util import find_spec

    from warpmpc.viz import style

    if wanted is not None:
        style.require_matplotlib()
    elif find_spec("matplotlib") is None:
        print("no plot: matplotlib is not installed (`pip install 'warpmpc[viz]'`)")
        return None
    return wanted or default


def _names(text: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))


def _numbers(text: str, option: str = "--batch") -> tuple[int, ...]:
    try:
        return tuple(int(name) for name in _names(text))
    except ValueError:
        raise SettingsError(f"{option} takes whole numbers like 512,2048, got {text!r}.") from None


def _add_cpu(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--systems",
        metavar="NAME,...",
        help="systems to solve (default: quadrotor,cartpole,linear)",
    )
    parser.add_argument(
        "--engine", metavar="NAME", default="auto", help="engine of the solvers (default auto)"
    )
    parser.add_argument(
        "--engines", metavar="NAME,...", default="", help="further engines, in one thread"
    )
    parser.add_argument(
        "--lanes", action="store_true", help="also every number of lanes of a tile, in one thread"
    )


def _cpu_settings(args: argparse.Namespace) -> Sweep:
    from warpmpc_bench.cpu.bench import CPUSettings

    about = {"engine": args.engine, "engines": _names(args.engines), "lanes": args.lanes}
    return CPUSettings(**_shared_settings(args, args.systems), **about)


LAYERS: dict[str, Benchmark] = {
    "ldl": Benchmark("batched factorisations and solves", _add_ldl, _ldl_settings, "ldl"),
    "qp": Benchmark(
        "batched QPs of a linear MPC, and their gradients", _add_qp, _qp_settings, "qp"
    ),
    "cpu": Benchmark(
        "one and all threads of the CPU, and OSQP, interleaved in one process",
        _add_cpu,
        _cpu_settings,
        "cpu",
    ),
    "translate": Benchmark(
        "CasADi functions of any length as kernels and JAX functions",
        _add_translate,
        _translate_settings,
        "translate",
    ),
}


def benchmarks() -> dict[str, Benchmark]:
    """All benchmarks: those of the layers, and closed loops of every system."""
    return {**LAYERS, **{name: _closed_loops(name) for name in systems.SYSTEMS}}


def _closed_loops(name: str) -> Benchmark:
    about = systems.describe(name)
    sizes = MPCSetup(name).sizes
    return Benchmark(
        f"closed loops: {about.title} ({sizes}); SQP iterations/s, phases, correctness",
        _add_mpc,
        _mpc_settings,
        "mpc",
        all_baselines=False,
        alias=about.alias,
    )
