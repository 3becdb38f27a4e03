"""Tables of the QP benchmark: one line per row, and a summary.

Reads: rows of `warpmpc_bench.qp.bench`.  Produces: strings; the command line prints them.
"""

from __future__ import annotations

from collections.abc import Sequence

from warpmpc_bench.common.record import Row
from warpmpc_bench.common.report import left_out, percent, rate, roof_text, times, usable

VERBS = {"solve": "QPs", "gradient": "QPs with gradient"}
HEADER = (
    f"{'solver':<14}{'dtype':<9}{'batch':>7}  {'per s':>9}{'of roof':>8}{'OSQP':>9}{'shared':>9}"
    f"{'memory':>8}{'first s':>8}  largest deviations"
)


def timing_of(row: Row) -> Row:
    """The one timing of a measured row."""
    return row["solve"] or row["gradient"]


def line(row: Row) -> str:
    """One row of the table."""
    start = f"{row['solver']:<14}{row['dtype']:<9}{row['batch']:>7}"
    if row["skipped"]:
        return f"{start}  skipped: {row['skipped']}"
    timing, memory = timing_of(row), row["memory"]
    ratio = timing["speedup_over_osqp_gradient" if row["gradient"] else "speedup_over_osqp"]
    found = row["accuracy"]["differences"].items()
    deviations = ", ".join(f"{name} {'NaN' if d is None else f'{d:.1e}'}" for name, d in found)
    return (
        f"{start}  {rate(timing['per_s']):>9}{percent(timing['floor_fraction']):>8}"
        f"{times(ratio):>9}{times(timing['speedup_over_osqp_shared']):>9}"
        f"{format(memory['ratio'], '.2f') if memory else '-':>8}{timing['first_call_s']:>8.1f}"
        f"  {deviations}{'' if row['correct'] else '  WRONG'}"
    )


def summary(rows: Sequence[Row]) -> str:
    """What a run showed, in a few lines."""
    lines: list[str] = []
    good = [row for row in usable(rows) if row["kind"] == "variant"]
    for dtype in dict.fromkeys(row["dtype"] for row in good):
        for name, verb in VERBS.items():
            lines += _best([row for row in good if row["dtype"] == dtype and row[name]], name, verb)
    return "\n".join(lines + left_out(rows))


def _best(rows: Sequence[Row], name: str, verb: str) -> list[str]:
    if not rows:
        return []
    row = max(rows, key=lambda row: row[name]["per_s"])
    timing, text = row[name], f"best {row['dtype']}: "
    text += f"{rate(row[name]['per_s'])} {verb}/s ({row['solver']}, batch {row['batch']}"
    text += f", {row['cores']} cores)" if row["platform"] == "cpu" else ")"
    if timing["floor_fraction"] is not None:
        text += f", {roof_text(timing['floor_fraction'])}"
    names = {"speedup_over_osqp": "OSQP", "speedup_over_osqp_shared": "OSQP with a shared factor",
             "speedup_over_osqp_gradient": "OSQP with gradients"}  # fmt: skip
    ratios = [f"{timing[field]:.3g} times one core of {who}"
              for field, who in names.items() if timing[field] is not None]  # fmt: skip
    return [", ".join([text, *ratios])]
