"""Every example runs as a user runs it, with few instances, and finds what it promises."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"
MAX_LINES = 150


def swing_up(text: str) -> None:
    assert number(r"([\d.]+)% upright", text) == 100
    assert number(r"exceeded by at most ([\d.e+-]+) m", text) < 1e-3


def double_pendulum_cart(text: str) -> None:
    assert number(r"([\d.]+)% upright", text) == 100
    assert number(r"exceeded by at most ([\d.e+-]+) m", text) < 1e-3


def tracking(text: str) -> None:
    assert number(r"([\d.]+) m before the change", text) < 0.1
    assert number(r"([\d.]+) m at the end", text) < 0.1
    assert number(r"after one second: ([\d.]+) m", text) < 0.3


def learn_weights(text: str) -> None:
    losses = [float(loss) for loss in re.findall(r"loss (\d\S+)  weights", text)]
    assert losses[-1] < 0.1 * losses[0]
    assert number(r"error of a weight: ([\d.]+)%", text) < 30


def neural_dynamics(text: str) -> None:
    assert number(r"before, ([\d.]+) after", text) < 0.1
    assert number(r"\nwith network: .* ([\d.]+) rad", text) < 0.02
    assert number(r"without network: .* ([\d.]+) rad", text) > 0.1


def distil(text: str) -> None:
    assert number(r"policy: ([\d.]+)% at the origin", text) >= 95
    assert number(r"cost ([\d.]+) of the expert's", text) < 1.15
    assert "WRONG" not in text


# Name of the script: what its output has to say, and further arguments.
CASES: dict[str, tuple[Callable[[str], None], list[str]]] = {
    "swing_up": (swing_up, []),
    "double_pendulum_cart": (double_pendulum_cart, []),
    "tracking": (tracking, []),
    "learn_weights": (learn_weights, ["--epochs", "30"]),
    "neural_dynamics": (neural_dynamics, []),
    "distil": (distil, []),
}
SLOW = {"double_pendulum_cart", "tracking", "learn_weights", "distil"}


def number(pattern: str, text: str) -> float:
    found = re.search(pattern, text)
    assert found, f"{pattern} is not in {text}"
    return float(found[1])


def test_every_script_has_a_case():
    assert {path.stem for path in EXAMPLES.glob("*.py")} == set(CASES)


@pytest.mark.parametrize("name", sorted(CASES))
def test_script_is_short_and_says_what_one_learns(name):
    text = (EXAMPLES / f"{name}.py").read_text()
    assert len(text.splitlines()) < MAX_LINES
    explanation = ast.get_docstring(ast.parse(text))
    assert explanation
    assert "What one learns:" in explanation
    assert f"python examples/{name}.py --batch" in explanation


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=[pytest.mark.slow] * (n in SLOW)) for n in sorted(CASES)]
)
def test_script_runs(name, tmp_path):
    check, arguments = CASES[name]
    picture = tmp_path / "picture.png"
    command = [sys.executable, str(EXAMPLES / f"{name}.py"), "--batch", "4", *arguments]
    result = subprocess.run(
        [*command, "--out", str(picture)], capture_output=True, text=True, timeout=200
    )
    assert result.returncode == 0, result.stderr
    check(result.stdout)
    assert picture.read_bytes().startswith(b"\x89PNG")
