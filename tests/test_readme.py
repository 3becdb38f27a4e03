"""The README does what it says: its Python runs, its commands exist."""

from __future__ import annotations

import re
from pathlib import Path

from warpmpc.cli.main import build_parser

ROOT = Path(__file__).parents[1]
BLOCKS = re.findall(r"```(\w+)\n(.*?)```", (ROOT / "README.md").read_text(), flags=re.DOTALL)


def commands() -> list[str]:
    lines = [line for kind, text in BLOCKS if kind == "bash" for line in text.splitlines()]
    return [line.partition("#")[0].strip() for line in lines if line.strip()]


def test_python_blocks_run(capsys):
    blocks = [text for kind, text in BLOCKS if kind == "python"]
    assert blocks
    for number, text in enumerate(blocks):
        exec(compile(text, f"README.md block {number}", "exec"), {"__name__": "readme"})
    printed = capsys.readouterr().out.splitlines()
    assert printed == ["(200, 20, 1) 200 converged", "(1000, 1111) 0 failed"]


def test_make_targets_exist():
    targets = re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), flags=re.MULTILINE)
    wanted = [command.split()[1] for command in commands() if command.startswith("make ")]
    assert wanted == ["demo", "test"]
    assert set(wanted) <= set(targets)


def test_warpmpc_commands_parse():
    wanted = [command.split()[1:] for command in commands() if command.startswith("warpmpc ")]
    assert wanted
    for arguments in wanted:
        build_parser().parse_args(arguments)


def test_ci_runs_the_test_command():
    script = (ROOT / ".ci" / "run").read_text()
    assert script.splitlines()[-1] == "exec make test"
