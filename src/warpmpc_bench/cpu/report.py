"""Rows of `warpmpc bench cpu` as lines of a table."""

from __future__ import annotations

from collections.abc import Sequence

from warpmpc_bench.common.record import Row
from warpmpc_bench.common.report import left_out, rate, usable

HEADER = (
    f"{'system':<12}{'batch':>6}{'engine':>9}{'one /s':>9}{'all /s':>9}{'all/one':>19}"
    f"{'one/OSQP':>21}{'free cores':>12}"
)


def line(row: Row) -> str:
    """One row of the table."""
    rates = {name: f"{rate(found['median'])}" for name, found in row["per_s"].items()}
    return (
        f"{row['solver']:<12}{row['batch']:>6}{row['settings']['engine']:>9}"
        f"{rates['one']:>9}{rates['all']:>9}{_ratio(row, 'all_over_one'):>19}"
        f"{_ratio(row, 'one_over_osqp'):>21}{row['free_cores']['median']:>12.2f}"
        f"{'' if row['correct'] else '  WRONG'}"
    )


def summary(rows: Sequence[Row]) -> str:
    """The smallest gain by threads, and what the control says about it."""
    good = [row for row in usable(rows) if row["batch"] > 1]
    notes = left_out(rows)
    if good:
        worst = min(good, key=lambda row: row["ratios"]["all_over_one"]["median"])
        free = min(row["free_cores"]["median"] for row in good)
        notes.append(
            f"least gain by {worst['settings']['threads']} threads: "
            f"{_ratio(worst, 'all_over_one')} ({worst['solver']}, batch {worst['batch']}); "
            f"the control had {free:.2f} cores or more"
        )
    return "\n".join(notes)


def _ratio(row: Row, name: str) -> str:
    """A median with its quartiles."""
    found = row["ratios"].get(name)
    if found is None:
        return "-"
    return f"{found['median']:.2f} [{found['low']:.2f}, {found['high']:.2f}]"
