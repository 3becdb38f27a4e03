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


# What a status means, for people who see it for the first time.
MEANINGS = {
    "QP_INFEASIBLE": "the last QP has no solution",
    "LINE_SEARCH_FAILED": "no step length was acceptable",
    "NON_FINITE": "data or iterates are not finite",
    "PRIMAL_INFEASIBLE": "no point satisfies the rows",
    "DUAL_INFEASIBLE": "the cost falls without end",
    "INVALID_BOUNDS": "a lower bound is above its upper one",
    "NON_CONVEX": "the cost falls in both directions of a line",
    "ZERO_PIVOT": "a pivot of the factorisation is zero",
}


def status_note(names: Iterable[str], *, fixed: bool = False) -> str:
    """What the statuses mean that do not speak for themselves, as the end of a list of them.

    Args:
        names: Statuses that occur.
        fixed: Whether the settings fix the number of iterations.
    """
    not_converged = "not converged within the allowed iterations"
    all_done = "all iterations were done, as the settings fix their number"
    meanings = {**MEANINGS, "MAX_ITER": all_done if fixed else not_converged}
    return "".join(f"; {name}: {meanings[name]}" for name in names if name in meanings)


def demo_result(*, correct: bool) -> str:
    """What came out of a demo, in plain words."""
    if correct:
        return "as it should be: all checks of this demo hold"
    return "WRONG RESULT: a check of this demo fails, please report it"


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
