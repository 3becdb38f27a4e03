"""The script for a day with a GPU: it can be resumed, keeps its budget, and says what failed.

Programs that do nothing take the place of Python, so that only the script itself is run.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "gpu_day.sh"


def run(folder: Path, python: str, **settings: str) -> subprocess.CompletedProcess[str]:
    program = shutil.which(python)
    assert program is not None
    given = {"GPU_DAY_DRY": "1", "GPU_DAY": str(folder), "PYTHON": program, **settings}
    environment = {name: value for name, value in os.environ.items() if name != "OUT"} | given
    command = ["bash", str(SCRIPT)]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)


def steps(text: str) -> list[str]:
    return re.findall(r"^(\w+): at most \d+ s$", text, flags=re.MULTILINE)


@pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")
def test_a_second_run_repeats_what_failed_and_a_third_nothing(tmp_path):
    failing = run(tmp_path, "false")
    assert failing.returncode == 1
    begun = steps(failing.stdout)
    assert {"bench_pendulum", "converge"} <= set(begun)
    assert f"not finished: {' '.join(begun)}" in failing.stdout
    assert "bench_pendulum failed with exit code 1" in failing.stdout

    second = run(tmp_path, "true")
    assert second.returncode == 0, second.stdout
    assert steps(second.stdout) == begun
    assert second.stdout.endswith("gpu_day: all steps finished\n")

    third = run(tmp_path, "false")
    assert third.returncode == 0
    assert steps(third.stdout) == []
    assert third.stdout.count("finished in an earlier run") == len(begun)


@pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")
def test_nothing_begins_beyond_the_budget(tmp_path):
    late = run(tmp_path, "true", BUDGET_S="10")
    assert late.returncode == 1
    assert steps(late.stdout) == []
    assert "bench_pendulum: no time left in this run; run again" in late.stdout


@pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")
def test_a_fresh_machine_goes_on_from_the_results_that_came_back(tmp_path):
    (tmp_path / "out").mkdir()
    first = run(tmp_path / "one", "true", OUT=str(tmp_path / "out"))
    assert (tmp_path / "out" / "stamps").exists()
    again = run(tmp_path / "two", "false", OUT=str(tmp_path / "out"))
    assert again.returncode == 0
    assert again.stdout.count("finished in an earlier run") == len(steps(first.stdout))
