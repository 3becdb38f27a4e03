"""The page on solving runs, and its comments `# = value` say what comes out."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

PAGE = Path(__file__).parents[2] / "docs" / "mpc.md"


def test_python_blocks_run():
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(), flags=re.DOTALL)
    assert len(blocks) == 6
    names: dict[str, Any] = {"__name__": "page"}
    compared = 0
    for number, text in enumerate(blocks):
        exec(compile(text, f"mpc.md block {number}", "exec"), names)
        for expression, value in re.findall(r"^(\S.*?)  # = (.*)$", text, flags=re.MULTILINE):
            assert repr(eval(expression, names)) == value, expression
            compared += 1
    assert compared == 4
