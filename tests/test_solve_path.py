"""The tool that counts the modules on the path of a solve."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from warpmpc.systems import base

SCRIPT = Path(__file__).parents[1] / "tools" / "solve_path.py"


@pytest.fixture(scope="module")
def tool() -> Any:
    spec = importlib.util.spec_from_file_location("solve_path", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    yield module
    del sys.modules[spec.name]


def test_calls_and_switches_are_counted(tool):
    def call():
        base.generator(1, 0)
        base.generator(2, 0)
        len("not ours")
        base.worst(base.np.zeros((1, 1)), base.np.ones(1, dtype=bool))

    before = sys.getprofile()
    path = tool.traced(call)
    assert sys.getprofile() is before
    assert path.calls == {"warpmpc.systems.base": 3}
    assert path.switches == 1
    assert "warpmpc.systems.base" in tool.report("any", path, modules=True)
    assert tool.report("any", path, modules=False) == "any: 1 modules, 1 switches between them"


def test_switches_are_changes_of_the_module(tool):
    path = tool.Path()
    for module in ("a", "b", "b", "a"):
        path.note(module)
    assert path.switches == 3
    assert path.calls == {"a": 2, "b": 2}


# Modules that a reader of a default solve, or of one on chip, has to open.
MOST_MODULES = 50


def test_solves_pass_through_few_modules():
    # A process of its own: what other tests have cached is not on the path any more.
    command = [sys.executable, str(SCRIPT), "staged", "onchip", "--modules"]
    found = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    counts = re.findall(r"^(\w+): (\d+) modules", found, flags=re.MULTILINE)
    assert [engine for engine, _ in counts] == ["staged", "onchip"]
    assert all(0 < int(count) <= MOST_MODULES for _, count in counts), found


def test_unknown_engines_are_refused():
    found = subprocess.run(
        [sys.executable, str(SCRIPT), "fast"], capture_output=True, text=True, check=False
    )
    assert found.returncode == 2
    assert "unknown engine 'fast'; choose from staged, onchip" in found.stderr
