"""Tables of the factorisation benchmark: one line per row, and a summary.

Reads: rows of `warpmpc_bench.ldl.bench`.  Produces: strings; the command line prints them.
"""

from __future__ import annotations

from collections.abc import Sequence

from warpmpc_bench.common.record import Row
from warpmpc_bench.common.report import left_out, percent, rate, roof_text, times, usable

PAPER_SPEEDUP = {"factor": 167, "solve": 270}  # over one CPU core running QDLDL, as published

HEADER = (
    f"{'':<29}  {'------- factorise -------':>26}  {'--------- solve ---------':>26}\n"
    f"{'solver':<13}{'dtype':<9}{'batch':>7}"
    f"  {'per s':>9}{'of roof':>8}{'QDLDL':>9}  {'per s':>9}{'of roof':>8}{'QDLDL':>9}"
    f"{'in tiles':>10}{'memory':>8}{'residual':>10}{'first s':>8}"
)


def line(row: Row) -> str:
    """One row of the table."""
    start = f"{row['solver']:<13}{row['dtype']:<9}{row['batch']:>7}"
    if row["skipped"]:
        return f"{start}  skipped: {row['skipped']}"
    tiles, memory = row["solve_tiles"], row["memory"]
    residual = row["accuracy"]["residual"]
    first = row["factor"]["first_call_s"] + row["solve"]["first_call_s"]
    return (
        f"{start}  {_timing(row['factor'])}  {_timing(row['solve'])}"
        f"{rate(tiles['per_s']) if tiles else '-':>10}"
        f"{format(memory['ratio'], '.2f') if memory else '-':>8}"
        f"{format(residual, '.1e') if residual is not None else 'NaN':>10}"
        f"{first:>8.1f}{'' if row['correct'] else '  WRONG'}"
    )


def summary(rows: Sequence[Row]) -> str:
    """What a run showed, in a few lines."""
    lines: list[str] = []
    good = usable(rows)
    for dtype in dict.fromkeys(row["dtype"] for row in good if row["kind"] == "variant"):
        ours = [row for row in good if row["kind"] == "variant" and row["dtype"] == dtype]
        lines += [_best(ours, name, verb) for name, verb in _VERBS.items()]
    return "\n".join(lines + left_out(rows))


_VERBS = {"factor": "factorisations", "solve": "solves", "solve_tiles": "solves in tiles"}


def _best(rows: Sequence[Row], name: str, verb: str) -> str:
    measured = [row for row in rows if row[name]]
    if not measured:
        return f"no {verb} measured"
    row = max(measured, key=lambda row: row[name]["per_s"])
    timing = row[name]
    text = f"best {row['dtype']}: {rate(timing['per_s'])} {verb}/s ({row['solver']}, batch "
    text += f"{row['batch']}), {roof_text(timing['floor_fraction'])}"
    if timing["speedup_over_qdldl"] is not None:
        paper = PAPER_SPEEDUP[name.removesuffix("_tiles")]
        text += f", {timing['speedup_over_qdldl']:.3g} times one core of QDLDL (paper: {paper})"
    return text


def _timing(timing: Row) -> str:
    floor, speedup = timing["floor_fraction"], timing["speedup_over_qdldl"]
    return f"{rate(timing['per_s']):>9}{percent(floor):>8}{times(speedup):>9}"
