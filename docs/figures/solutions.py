"""Figures by `wm.plot`: the pendulums of the quick start, and the failing ones of "Debugging".

    python docs/figures/solutions.py [FOLDER]

Runs the Python blocks of the two pages, so that pictures and text cannot differ.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

DOCS = Path(__file__).parents[1]
# Picture: the page, the first blocks of it that are run, and what is drawn.
PICTURES = {
    "pendulums": ("quickstart.md", 2, "wm.plot(solution, x0, params)"),
    "failed": ("debugging.md", 1, "wm.plot(solution, x0)"),
}


def main(folder: Path) -> None:
    """Writes the pictures."""
    for name, (page, count, expression) in PICTURES.items():
        blocks = re.findall(r"```python\n(.*?)```", (DOCS / page).read_text(), flags=re.DOTALL)
        names: dict[str, Any] = {}
        for text in blocks[:count]:
            exec(compile(text, page, "exec"), names)
        figure = eval(expression, names)
        figure.savefig(folder / f"{name}.png", dpi=120, metadata={"Software": None})


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent)
