"""The README does what it says: its example is short, its commands and links exist."""

from __future__ import annotations

import re
from pathlib import Path

import yaml

from warpmpc.cli.main import build_parser

ROOT = Path(__file__).parents[1]
BLOCKS = re.findall(r"```(\w+)\n(.*?)```", (ROOT / "README.md").read_text(), flags=re.DOTALL)


def commands() -> list[str]:
    lines = [line for kind, text in BLOCKS if kind == "bash" for line in text.splitlines()]
    return [line.partition("#")[0].strip() for line in lines if line.strip()]


def test_example_is_short():
    """That it runs is tested with the pages of the documentation."""
    (example,) = [text for kind, text in BLOCKS if kind == "python"]
    assert sum(bool(line.strip()) for line in example.splitlines()) <= 15


def test_links_and_pictures_exist():
    text = (ROOT / "README.md").read_text()
    targets = [t for t in re.findall(r"\]\(([^)#]+)[^)]*\)", text) if not t.startswith("http")]
    assert len(targets) > 10
    assert [target for target in targets if not (ROOT / target).exists()] == []


def test_prose_has_no_commits_and_no_files():
    """Those are behind the links: a reader wants to know what a figure is of."""
    prose = re.sub(r"```.*?```", "", (ROOT / "README.md").read_text(), flags=re.DOTALL)
    prose = re.sub(r"\]\([^)]*\)", "]", prose)  # targets of links
    assert re.findall(r"\b[0-9a-f]{7,40}\b", prose) == []
    assert re.findall(r"[\w/]+\.(?:py|jsonl|json|sh)\b", prose) == []


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


def test_the_test_command_builds_the_documentation_strictly():
    makefile = (ROOT / "Makefile").read_text()
    for target, wanted in (("test", "docs"), ("all", "pages"), ("pages", "docs")):
        (needed,) = re.findall(rf"^{target}: ([^#]*)", makefile, flags=re.MULTILINE)
        assert wanted in needed.split()
    assert re.search(r"^docs:.*\n.*mkdocs build --strict", makefile, flags=re.MULTILINE)


def test_workflows_run_targets_of_the_makefile():
    """So that what runs on a server can be run anywhere by the same words."""
    targets = re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), flags=re.MULTILINE)
    found = []
    for path in sorted((ROOT / ".github" / "workflows").glob("*.yml")):
        jobs = yaml.safe_load(path.read_text())["jobs"]
        steps = [step for job in jobs.values() for step in job["steps"]]
        found += [step["run"] for step in steps if "run" in step]
    made = [line.split()[1] for line in found if line.startswith("make ")]
    assert {"test", "release", "pages", "deploy"} <= set(made) <= set(targets)
    assert [line for line in found if not line.startswith(("make ", "git config "))] == []
