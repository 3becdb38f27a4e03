"""Measured rows beside committed ones: which is compared with which, and what is said."""

from __future__ import annotations

import copy
import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from warpmpc_bench.common.record import read_rows

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "benchmarks" / "compare_rows.py"
COMMITTED = ROOT / "benchmarks" / "results" / "onchip_h200.jsonl"


def load() -> Any:
    spec = importlib.util.spec_from_file_location("compare_rows", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


compare_rows = load()


@pytest.fixture
def row() -> dict[str, Any]:
    """A committed row of the pendulum at batch 1000."""
    rows = read_rows(COMMITTED)
    return next(r for r in rows if r["system"]["name"] == "pendulum" and r["batch"] == 1000)


def scaled(row: dict[str, Any], factor: float, **changes: Any) -> dict[str, Any]:
    changed = {**copy.deepcopy(row), **changes}
    changed["sqp"]["per_s"] *= factor
    return changed


@pytest.mark.parametrize(
    ("factor", "said"),
    [
        (1.04, "confirms (+4.0%)"),
        (0.96, "confirms (-4.0%)"),
        (1.2, "contradicts: faster by 20.0%"),
        (0.8, "contradicts: slower by 20.0%"),
    ],
)
def test_a_rate_within_five_percent_confirms_the_committed_one(row, factor, said):
    measured = scaled(row, factor)
    assert compare_rows.verdict(measured, compare_rows.counterpart(measured, [row])) == said


def test_rows_of_other_work_are_not_compared(row):
    for changes in ({"batch": 999}, {"dtype": "float64"}, {"platform": "cpu"}):
        assert compare_rows.counterpart({**row, **changes}, [row]) is None
    other = copy.deepcopy(row)
    other["settings"]["admm_iterations"] += 1
    assert compare_rows.counterpart(other, [row]) is None


def test_the_row_with_as_many_steps_wins_over_a_newer_one(row):
    newer = scaled(row, 2.0, date="2099-01-01")
    newer["settings"]["steps"] += 1
    assert compare_rows.counterpart(row, [newer, row]) is row
    newest = scaled(row, 3.0, date="2098-01-01")
    assert compare_rows.counterpart(row, [newer, row, newest]) is newest


def test_wrong_and_skipped_rows_are_counted_apart(row):
    wrong = scaled(row, 1.0, correct=False)
    wrong["accuracy"]["failed"] = ["control"]
    skipped = {**row, "batch": 7, "skipped": "no memory", "settings": None, "correct": None}
    lines = compare_rows.summary([row, wrong, skipped], [row])
    assert "WRONG RESULT: control" in lines[0]  # the later of two equal measurements
    assert "skipped: no memory" in lines[1]
    assert lines[-1].startswith("0 confirm, 0 contradict")
    assert "1 are wrong, 1 were skipped" in lines[-1]


def test_the_script_prints_steps_and_verdicts(row, tmp_path):
    rows, stamps = tmp_path / "rows.jsonl", tmp_path / "stamps"
    rows.write_text(json.dumps(scaled(row, 1.5)) + "\n")
    stamps.write_text("gpu_tests done in 3 s\n")
    call = [sys.executable, str(SCRIPT), "--rows", str(rows), "--stamps", str(stamps)]
    found = subprocess.run(
        [*call, "--committed", str(COMMITTED)], capture_output=True, text=True, check=True
    )
    assert found.stdout.startswith("step gpu_tests done in 3 s\n")
    assert "contradicts: faster by 50.0%" in found.stdout
