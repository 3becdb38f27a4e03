"""Tables of the translation benchmark: one line per row, and a summary.

Reads: rows of `warpmpc_bench.translate.bench`.  Produces: strings; the command line prints them.
"""

from __future__ import annotations

from collections.abc import Sequence

from warpmpc_bench.common.record import Row
from warpmpc_bench.common.report import left_out, rate, times, usable

HEADER = (
    f"{'emitter':<9}{'dtype':<9}{'batch':>7}{'length':>9}{'export s':>10}{'compile s':>11}"
    f"{'run ms':>10}{'per s':>10}{'CasADi':>9}{'difference':>12}"
)


def line(row: Row) -> str:
    """One row of the table."""
    start = f"{row['solver']:<9}{row['dtype']:<9}{row['batch']:>7}{row['system']['length']:>9}"
    if row["skipped"]:
        return f"{start}  skipped: {row['skipped']}"
    difference = row["accuracy"]["difference"]
    return (
        f"{start}{_seconds(row['export_s']):>10}{_seconds(row['compile_s']):>11}"
        f"{1e3 * row['run']['median_s']:>10.3g}{rate(row['run']['per_s']):>10}"
        f"{times(row['run']['speedup_over_casadi']):>9}"
        f"{format(difference, '.1e') if difference is not None else 'NaN':>12}"
        f"{'' if row['correct'] else '  WRONG'}"
    )


def summary(rows: Sequence[Row]) -> str:
    """What a run showed, in a few lines: the longest function of each emitter."""
    lines: list[str] = []
    compiled = [row for row in usable(rows) if row["compile_s"] is not None]
    for solver, dtype in dict.fromkeys((row["solver"], row["dtype"]) for row in compiled):
        of_solver = [row for row in compiled if (row["solver"], row["dtype"]) == (solver, dtype)]
        row = max(of_solver, key=lambda row: (row["system"]["length"], row["batch"]))
        lines.append(_longest(row))
    return "\n".join(lines + left_out(rows))


def _longest(row: Row) -> str:
    seconds = row["export_s"] + row["compile_s"]
    operations = row["run"]["per_s"] * row["system"]["instructions"]
    return (
        f"{row['solver']}, {row['dtype']}: {row['system']['instructions']} instructions run after "
        f"{seconds:.1f} s, at {rate(operations)}instructions/s (batch {row['batch']})"
    )


def _seconds(seconds: float | None) -> str:
    return "-" if seconds is None else f"{seconds:.2f}"
