"""Compares measured rows of the MPC benchmark with committed ones: confirmed or contradicted.

    python benchmarks/compare_rows.py --rows rows.jsonl --committed benchmarks/results/*_h200.jsonl

A committed row is comparable if it has the same system, horizon, engine, dtype, batch size and
numbers of iterations.  Among several, rows with the same number of steps come first, then the
newest.  `benchmarks/gpu_day.sh` writes this as its summary.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from warpmpc_bench.common.record import Row, read_rows
from warpmpc_bench.common.report import rate, workload

TOLERANCE = 0.05  # relative difference of two rates that confirm each other
_Key = tuple[Any, ...]


def comparable(row: Row) -> bool:
    """Whether a row is a correct measurement of the MPC solver."""
    return row.get("benchmark") == "mpc" and row.get("kind") == "variant" and bool(row["correct"])


def key_of(row: Row) -> _Key:
    """What two rows must share to be compared."""
    return (*workload(row), row["settings"]["engine"], row["dtype"], row["batch"], row["platform"])


def counterpart(row: Row, committed: Iterable[Row]) -> Row | None:
    """The committed row that a measured one is compared with; None if there is none."""
    key, steps = key_of(row), row["settings"]["steps"]
    alike = [old for old in committed if key_of(old) == key]
    return max(
        alike,
        key=lambda old: (old["settings"]["steps"] == steps, old["date"]),
        default=None,
    )


def verdict(row: Row, old: Row | None) -> str:
    """How the rate of a row relates to that of the committed one."""
    if old is None:
        return "no committed row"
    change = row["sqp"]["per_s"] / old["sqp"]["per_s"] - 1
    if abs(change) <= TOLERANCE:
        return f"confirms ({change:+.1%})"
    return f"contradicts: {'faster' if change > 0 else 'slower'} by {abs(change):.1%}"


def latest(rows: Sequence[Row]) -> list[Row]:
    """The last row of each measurement, in the order of the file."""
    return list({_identity(row): row for row in rows}.values())


def _identity(row: Row) -> _Key:
    return (*workload(row)[:2], row["solver"], row["dtype"], row["batch"])


def summary(measured: Sequence[Row], committed: Sequence[Row]) -> list[str]:
    """One line per measured row, and a count of the verdicts."""
    known = [row for row in committed if comparable(row)]
    lines, counts = [], dict.fromkeys(("confirms", "contradicts", "no", "wrong", "skipped"), 0)
    for row in latest([row for row in measured if row.get("benchmark") == "mpc"]):
        start = f"{row['system']['name']:<20}{row['solver']:<9}{row['dtype']:<9}{row['batch']:>7}"
        if row["skipped"]:
            counts["skipped"] += 1
            lines.append(f"{start}  skipped: {row['skipped']}")
            continue
        old = counterpart(row, known) if comparable(row) else None
        before = "-" if old is None else rate(old["sqp"]["per_s"]).strip()
        text = verdict(row, old)
        if not row["correct"]:
            text = f"WRONG RESULT: {', '.join(row['accuracy']['failed'])}"
        counts["wrong" if not row["correct"] else text.split()[0].rstrip(":")] += 1
        now = rate(row["sqp"]["per_s"]).strip()
        lines.append(f"{start}  {now:>8} SQP it/s, committed {before:>8}  {text}")
    total = (
        f"{counts['confirms']} confirm, {counts['contradicts']} contradict by more than "
        f"{TOLERANCE:.0%}, {counts['no']} have no committed row, {counts['wrong']} are wrong, "
        f"{counts['skipped']} were skipped"
    )
    return [*lines, total]


def main() -> int:
    """Prints the comparison."""
    parser = argparse.ArgumentParser(description="Measured rows beside committed ones.")
    parser.add_argument("--rows", type=Path, required=True, help="file with measured rows")
    parser.add_argument("--committed", type=Path, nargs="+", required=True, help="committed rows")
    parser.add_argument("--stamps", type=Path, help="steps of gpu_day.sh, printed first")
    given = parser.parse_args()
    lines = given.stamps.read_text().splitlines() if given.stamps else []
    measured = read_rows(given.rows) if given.rows.is_file() else []
    committed = [row for file in given.committed for row in read_rows(file)]
    text = [*(f"step {line}" for line in lines), *summary(measured, committed)]
    sys.stdout.write("\n".join(text) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
