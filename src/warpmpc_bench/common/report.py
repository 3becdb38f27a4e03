"""What the tables of all benchmarks share: which rows count, and how a number is written."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from warpmpc_bench.common.record import Row


def usable(rows: Sequence[Row]) -> list[Row]:
    """Rows that were measured and are correct; summaries and plots show no others."""
    return [row for row in rows if not row["skipped"] and row["correct"]]


def left_out(rows: Sequence[Row]) -> list[str]:
    """One line for each reason why rows are not in a summary."""
    counts = {
        "skipped": sum(bool(row["skipped"]) for row in rows),
        "wrong (left out)": sum(row["correct"] is False for row in rows),
    }
    return [f"{number} of {len(rows)} rows {what}" for what, number in counts.items() if number]


def workload(row: Row) -> tuple[Any, ...]:
    """What a row measures: rows of other sizes or numbers of iterations are not compared."""
    system, settings = row["system"], row["settings"] or {}
    counts = (settings.get(name) for name in ("sqp_iterations", "admm_iterations"))
    return system["name"], system.get("horizon"), *counts


def facts(title: str, rows: Mapping[str, str]) -> str:
    """A headline and one line for each fact, as demos and `warpmpc solve` print them."""
    return "\n".join([title, *(f"  {name:<13}{text}" for name, text in rows.items())])


def status_note(names: Iterable[str], *, fixed: bool) -> str:
    """What MAX_ITER means, as the end of a list of statuses; empty if there is none.

    Args:
        names: Statuses that occur.
        fixed: Whether the settings fix the number of iterations.
    """
    if "MAX_ITER" not in names:
        return ""
    if fixed:
        return "; MAX_ITER: all iterations were done, as the settings fix their number"
    return "; MAX_ITER: not converged within the allowed iterations"


def rate(per_s: float) -> str:
    """A rate with three digits and a prefix."""
    for size, prefix in ((1e12, " T"), (1e9, " G"), (1e6, " M"), (1e3, " k")):
        if per_s >= size:
            return f"{per_s / size:.3g}{prefix}"
    return f"{per_s:.3g}  "


def percent(fraction: float | None) -> str:
    """A share with one decimal."""
    return "-" if fraction is None else f"{fraction:.1%}"


def times(ratio: float | None) -> str:
    """A ratio of rates."""
    return "-" if ratio is None else f"{ratio:.3g}x"


def roof_text(fraction: float) -> str:
    """The share of the memory roof in a sentence."""
    text = f"{fraction:.0%} of the memory roof"
    return text + " (the batch fits into a cache)" if fraction > 1 else text
