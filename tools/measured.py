"""Write the tables of the page that says what is measured where, from the committed rows.

    python tools/measured.py           # renews docs/measured.md
    python tools/measured.py --check   # exits with 1 where the page differs from the rows

A test runs the check, so a figure on that page cannot differ from its row.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results"
PAGE = ROOT / "docs" / "measured.md"
BEGIN, END = "<!-- {}: written by tools/measured.py -->", "<!-- end of {} -->"
Row = dict[str, Any]

# File of rows: what was measured, and the page that publishes it.
FILES = {
    "onchip_h200": ("closed loops on chip", "performance.md#on-chip"),
    "sweep_h200": ("closed loops of the staged engine, 1 to 300 000", "performance.md#streaming"),
    "staged_h200": ("the same, measured once more", "performance.md#streaming"),
    "house_h200": ("all six systems after the engines had moved", "performance.md#on-chip"),
    "huge_h200": ("a million cartpoles in one call", "performance.md#on-chip"),
    "ablation_h200": ("other choices of the staged engine", "performance.md#sweep-and-ablation"),
    "ncu_h200": ("what limits each kernel", "performance.md#what-limits-each-kernel"),
    "compile_h200": ("time until the first result", "performance.md#until-the-first-result"),
    "rolled_h200": ("QPs of the panel engine", "performance.md#stages-too-large-to-unroll"),
    "humanoid_h200": (
        "SQP iterations of a problem of the humanoid's shape",
        "performance.md#stages-too-large-to-unroll",
    ),
    "ldl_h200": ("LDLᵀ factorisations and solves", "ldl.md"),
    "qp_h200": ("batched QPs on the GPU", "qp.md#measurements"),
    "qp_cpu": ("batched QPs on the CPU", "qp.md#measurements"),
    "learn_derivative_cpu": ("what derivatives are worth for learning", "learn.md#training"),
    "learn_command_cpu": ("one command from an MPC to C", "learn.md"),
    "learn_noise_cpu": ("expert and policy under the published noise", "learn.md"),
    "converge_cpu": ("converged solutions beside IPOPT and fatrop", "converged.md#what-it-costs"),
    "arm_compile": ("from import to the first solution of an arm", "robots.md"),
    "humanoid_cpu": ("the humanoid on a CPU", "humanoid.md"),
    "plan_cluster": ("shards of large data sets on a cluster", "planning.md"),
    "closed_loop_cpu": ("closed loops on the CPU, before launches were shared by cores", None),
    "closed_loop_h200": ("closed loops of an early version", None),
    "mpc_h200": ("closed loops of an early version", None),
    "accuracy_mpc": ("differences from float64, on the CPU", None),
    "translate_cpu": ("time to translate CasADi functions", None),
}
# A figure of the front page: its file, the row, and how the row says it.
HEADLINES: list[tuple[str, str, Callable[[Row], bool], Callable[[Row], str]]] = [
    (
        "100 000 cartpoles in closed loop, on chip",
        "onchip_h200",
        lambda row: row["system"]["name"] == "cartpole" and row["batch"] == 100_000,
        lambda row: f"{row['sqp']['per_s'] / 1e6:.1f} million SQP iterations/s",
    ),
    (
        "one cartpole, a step of the loop",
        "onchip_h200",
        lambda row: row["system"]["name"] == "cartpole" and row["batch"] == 1,
        lambda row: f"{row['latency']['step_ms']:.2f} ms",
    ),
    (
        "1000 cartpoles on a CPU with two cores",
        "closed_loop_cpu",
        lambda row: row["run"] == "cartpole_1000",
        lambda row: f"{row['sqp_iterations_per_s'] / 1e3:.0f} thousand SQP iterations/s",
    ),
]


def rows_of(name: str) -> list[Row]:
    """The rows of a file."""
    lines = (RESULTS / f"{name}.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines if line.strip()]


def headlines() -> list[tuple[str, str, Row]]:
    """Title, value and row of each figure of the front page."""
    found = []
    for title, name, chosen, said in HEADLINES:
        (row,) = [row for row in rows_of(name) if chosen(row)]
        found.append((title, said(row), row))
    return found


def _headline_table() -> str:
    lines = ["| figure | value | device | commit |", "|---|---|---|---|"]
    for title, value, row in headlines():
        device = row["device"] if row["platform"] == "gpu" else f"CPU, {row['cores']} cores"
        lines.append(f"| {title} | {value} | {device} | `{row['commit'][:7]}` |")
    return "\n".join(lines)


def _file_table(gpu: bool) -> str:
    lines = ["| figures | rows | commits | newest |", "|---|---|---|---|"]
    for name, (what, page) in FILES.items():
        rows = rows_of(name)
        if (rows[0]["device"] != "cpu") != gpu:
            continue
        commits = dict.fromkeys(str(row["commit"])[:7] for row in rows)
        shown = f"[{what}]({page})" if page else f"{what} (on no page)"
        newest = max(str(row["date"])[:10] for row in rows)
        listed = ", ".join(f"`{commit}`" for commit in commits)
        lines.append(f"| {shown} | `{name}.jsonl` ({len(rows)}) | {listed} | {newest} |")
    return "\n".join(lines)


def tables() -> dict[str, str]:
    """The tables of the page by name."""
    return {
        "front page": _headline_table(),
        "GPU": _file_table(gpu=True),
        "CPU": _file_table(gpu=False),
    }


def renewed(text: str) -> str:
    """The text of the page with new tables."""
    for name, table in tables().items():
        begin, end = BEGIN.format(name), END.format(name)
        before, _, rest = text.partition(begin)
        _, found, after = rest.partition(end)
        if not found:
            raise SystemExit(f"{PAGE.name} has no place for the table {name!r}.")
        text = f"{before}{begin}\n\n{table}\n\n{end}{after}"
    return text


def main(arguments: list[str] | None = None) -> int:
    """Writes or checks the page."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--check", action="store_true", help="compare only")
    options = parser.parse_args(arguments)
    text = PAGE.read_text(encoding="utf-8")
    if options.check:
        if renewed(text) != text:
            sys.stderr.write("docs/measured.md differs from the rows: python tools/measured.py\n")
            return 1
        return 0
    PAGE.write_text(renewed(text), encoding="utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
