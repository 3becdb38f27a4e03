"""`warpmpc solve`: solves one batch of a benchmark system and reports on every instance."""

from __future__ import annotations

import argparse
import json
import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

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
from warpmpc.systems import SYSTEMS, describe

if TYPE_CHECKING:
    from warpmpc_bench.common.solve_once import SolvedBatch

HELP: str = "solve one batch of a benchmark system, open loop"
EPILOG: str = epilog("""\
  warpmpc solve pendulum                          32 random starts, until they converge
  warpmpc solve cartpole --mode fixed --batch 1000 --out plans.npz
  warpmpc solve pendulum --x0=-3.14,0 --history --out swing.png    one start, and how it converged
  warpmpc solve quadrotor --dtype float64 --out result.json

files: .npz has x0, x, u, z, y, status, iterations, cost, violation and names of rows; .json has
a summary and one entry per instance; .png, .pdf and .svg are drawn by `warpmpc.plot`.
Exit code 1 if an instance failed, or did not converge with --mode converge.
""")
FIGURES = (".png", ".pdf", ".svg")
SUFFIXES = (".npz", ".json", *FIGURES)
SCALARS = ("iterations", "cost", "violation", "kkt_residual")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the options."""
    listed = "\n".join(
        f"  {short:<11}{describe(name).title}" for short, name in short_names().items()
    )
    parser.epilog = f"systems:\n{listed}\n\n{EPILOG}"
    parser.add_argument("name", metavar="NAME", help="a system, see below")
    parser.add_argument("--batch", metavar="N", type=int, help="instances (default 32)")
    parser.add_argument(
        "--seed",
        metavar="N",
        type=int,
        help="seed of the initial states (default: that of the benchmark)",
    )
    parser.add_argument("--x0", metavar="A,B,...", help="one initial state instead of a batch")
    parser.add_argument(
        "--mode",
        choices=("converge", "fixed"),
        default="converge",
        help="until the optimality conditions hold (default), or as many iterations as benchmarked",
    )
    parser.add_argument("--horizon", metavar="N", type=int, help="intervals (default: published)")
    parser.add_argument(
        "--dtype", choices=("float32", "float64"), default="float32", help="(default float32)"
    )
    parser.add_argument(
        "--engine",
        metavar="NAME",
        default="auto",
        help="onchip (with --mode fixed), staged, sparse or dense (default auto)",
    )
    add_device(parser)
    parser.add_argument(
        "--history",
        action="store_true",
        help="record all iterations, for figures and what is said about failures (slower)",
    )
    parser.add_argument("--out", metavar="FILE", help=f"write {', '.join(SUFFIXES)}")


def run(args: argparse.Namespace) -> int:
    """Solves, prints, writes; exits 1 if an instance failed."""
    name = full_name(args.name)
    check_name(name, SYSTEMS, "system")
    path = None if args.out is None else _checked(Path(args.out))
    if args.dtype == "float64":
        import jax

        jax.config.update("jax_enable_x64", True)
    from warpmpc.cli.progress import Activity
    from warpmpc_bench.common.solve_once import SolveOptions, solve_once

    options = SolveOptions(
        name=name,
        seed=args.seed,
        mode=args.mode,
        horizon=args.horizon,
        dtype=args.dtype,
        engine=args.engine,
        device=device_of(args.device),
        record=args.history,
        **_starts(args),
    )
    with Activity() as activity:
        result = solve_once(options, activity)
    print(format_result(result))
    if path is not None:
        write(result, path)
        print(f"  wrote        {path}")
    return DONE if result.ok else WRONG_RESULT


def _starts(args: argparse.Namespace) -> dict[str, Any]:
    """One initial state, or how many to draw."""
    if args.x0 is None:
        return {} if args.batch is None else {"batch": args.batch}
    for option in ("batch", "seed"):
        if getattr(args, option) is not None:
            raise SettingsError(f"--x0 is one instance; leave --{option} out.")
    try:
        return {"x0": tuple(float(part) for part in args.x0.split(",")), "batch": 1}
    except ValueError:
        raise SettingsError(f"--x0 takes numbers like 0.5,-1, got {args.x0!r}.") from None


def _checked(path: Path) -> Path:
    from warpmpc.viz.files import check_writable

    if path.suffix.lower() not in SUFFIXES:
        raise SettingsError(f"--out {path} must end in one of {', '.join(SUFFIXES)}.")
    if path.suffix.lower() in FIGURES:
        from warpmpc.viz import style

        style.require_matplotlib()
    check_writable(path)
    return path


def format_result(result: SolvedBatch) -> str:
    """Formats the result; failures are explained."""
    import numpy as np

    from warpmpc_bench.common.report import facts, rate, status_note

    options, problem, found = result.options, result.system.problem, result.diagnosis
    columns = {name: np.asarray(getattr(result.solution, name)) for name in SCALARS}
    iterations = columns["iterations"]
    batch = len(result.x0)
    rows = {
        "problem": f"{problem.n_vars} variables, {problem.n_cons} rows, horizon {problem.horizon}",
        "solver": f"mode {options.mode}, {options.dtype}, engine {result.engine}",
        "status": ", ".join(f"{count} {name}" for name, count in found.counts.items())
        + status_note(found.counts, fixed=options.mode == "fixed"),
        "iterations": f"median {np.median(iterations):.0f}, most {iterations.max()}",
        "cost": f"median {_median(columns['cost']):.6g}",
        "violation": f"largest {_largest(columns['violation']):.2g} of a row",
        "KKT residual": f"largest {_largest(columns['kkt_residual']):.2g} before the last step",
        "time": f"{_duration(result.run_s)} for the batch, "
        f"{rate(batch / result.run_s).strip()} per second; {result.compile_s:.1f} s to compile",
        "result": _in_words(result),
    }
    title = f"{batch} x {options.name} on {result.device}"
    text = facts(title, rows)
    return text if result.ok else f"{text}\n\n{found}"


def _in_words(result: SolvedBatch) -> str:
    if not result.ok:
        return "NOT ALL SOLVED; what is known about the others follows"
    return "all solved" if result.options.mode == "converge" else "no instance failed"


def _duration(seconds: float) -> str:
    return f"{seconds:.3g} s" if seconds >= 1 else f"{seconds * 1e3:.3g} ms"


def _median(values: Any) -> float:
    import numpy as np

    finite = values[np.isfinite(values)]
    return float(np.median(finite)) if finite.size else math.nan


def _largest(values: Any) -> float:
    import numpy as np

    finite = values[np.isfinite(values)]
    return float(finite.max()) if finite.size else math.nan


def write(result: SolvedBatch, path: Path) -> None:
    """Writes the solutions; the suffix decides how.  A file is there as a whole or not at all."""
    from warpmpc.viz.files import replaced

    suffix = path.suffix.lower()
    if suffix in FIGURES:
        from warpmpc.viz import style
        from warpmpc.viz.solution_figure import plot

        style.save(plot(result.solution, result.x0), path)
        return
    with replaced(path) as partial:
        if suffix == ".json":
            partial.write_text(json.dumps(as_json(result), indent=2, allow_nan=False) + "\n")
        else:
            _write_arrays(result, partial)


def _write_arrays(result: SolvedBatch, path: Path) -> None:
    import numpy as np

    names = ("x", "u", "z", "y", "status", *SCALARS)
    arrays = {name: np.asarray(getattr(result.solution, name)) for name in names}
    rows = np.array(result.system.problem.row_names)
    np.savez_compressed(path, x0=result.x0, row_names=rows, allow_pickle=False, **arrays)


def as_json(result: SolvedBatch) -> dict[str, Any]:
    """A summary and one entry per instance; values that are not finite are null."""
    import numpy as np

    from warpmpc.mpc.types import MPCStatus

    solution, options = result.solution, result.options
    columns = {name: np.asarray(getattr(solution, name)).tolist() for name in SCALARS}
    status = [MPCStatus(code).name for code in np.asarray(solution.status).tolist()]
    first = np.asarray(solution.u)[:, 0].tolist()
    instances = [
        {
            "status": status[b],
            **{name: _number(column[b]) for name, column in columns.items()},
            "x0": [_number(value) for value in x0],
            "u0": [_number(value) for value in first[b]],
        }
        for b, x0 in enumerate(result.x0.tolist())
    ]
    return {
        "system": options.name,
        "batch": len(instances),
        "mode": options.mode,
        "dtype": options.dtype,
        "engine": result.engine,
        "device": result.device,
        "horizon": result.system.problem.horizon,
        "ok": result.ok,
        "counts": result.diagnosis.counts,
        "compile_s": result.compile_s,
        "run_s": result.run_s,
        "instances": instances,
    }


def _number(value: float) -> float | None:
    return value if math.isfinite(value) else None
