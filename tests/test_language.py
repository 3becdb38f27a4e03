"""Docstrings and comments keep to the rules of CONTRIBUTING that a program can check."""

from __future__ import annotations

import io
import re
import tokenize
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FOLDERS = ("src", "tests", "benchmarks", "tools", "examples", "docs/figures")
FILES = sorted(path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py"))

# What is wrong, and a pattern that finds it in a docstring or a comment.
RULES = {
    "a docstring that is a fragment": (
        r'\A"""(?:(?:Of|Likewise|By|To|Those of)\b|(?:With|Without|As) [^,;:]{,45}\Z)'
    ),
    "a docstring that points at another": r'\A"""(?:The same|Both)(?:[.,:;]| (?:for|with|on|as)\b)',
    "a definition that is a fragment": r"^\s+\w+: (?:Of|Likewise)\b",
    "a comment that is a fragment": r"\A(?:# Of (?:the|a|an)|code # of)\b",
    "a person where there is only code": r"\b(?i:nobody|somebody|someone)\b",
    '"text" for source': r"\b(?i:native|generated|kernel|C\+\+) texts?\b",
}


def faults(source: str) -> list[str]:
    """Lines of a Python file that break a rule, each with the rule."""
    found = []
    previous = tokenize.NEWLINE
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        opens = previous in (tokenize.NEWLINE, tokenize.INDENT, tokenize.NL, tokenize.COMMENT)
        is_prose = token.type == tokenize.COMMENT or (
            token.type == tokenize.STRING and opens and token.string.startswith('"""')
        )
        if token.type not in (tokenize.NL, tokenize.COMMENT):
            previous = token.type
        if not is_prose:
            continue
        # A comment that follows code must not be its continuation.
        follows = token.type == tokenize.COMMENT and token.line[: token.start[1]].strip()
        prose = f"code {token.string}" if follows else token.string
        for rule, pattern in RULES.items():
            match = re.search(pattern, prose, re.MULTILINE)
            if match:
                line = token.start[0] + prose[: match.start()].count("\n")
                found.append(f"line {line}: {rule}: {match[0].strip()!r}")
    return found


def test_files_are_found():
    assert len(FILES) > 400


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_prose_keeps_to_the_rules(path):
    if path != Path(__file__):
        assert faults(path.read_text()) == []


@pytest.mark.parametrize(
    "source",
    [
        'def f():\n    """Of the step length."""\n',
        'class A:\n    """A thing.\n\n    Attributes:\n        x: Of the iteration.\n    """\n',
        "x = 1  # nobody reads it\n",
        '"""Native text of a loop."""\n',
        "# Of the solutions\n",
        "STEPS = 3  # of a loop\n",
        'def f():\n    """The same for rows."""\n',
        'def f():\n    """Without the rows."""\n',
    ],
)
def test_faults_are_found(source):
    assert len(faults(source)) == 1


def test_other_strings_do_not_count():
    assert faults('x = """Of the loop"""\ncall("nobody")\n') == []
