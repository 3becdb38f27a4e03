"""Figures of pages whose code makes them: solutions by `wm.plot`, and the drones around discs.

    python docs/figures/solutions.py [FOLDER]

Runs the Python blocks of the pages, so that pictures and text cannot differ.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.patches import Circle

from warpmpc.viz import style

DOCS = Path(__file__).parents[1]
# Picture: the page, the first blocks of it that are run, and what is drawn.
PICTURES = {
    "pendulums": ("quickstart.md", 2, "wm.plot(solution, x0, params)"),
    "failed": ("debugging.md", 1, "wm.plot(solution, x0)"),
    "own_problem": ("own_problem.md", 4, "fleets(timid[0], firm[0], params['disc'])"),
}
RADIUS = 0.4  # discs have it [m]


def fleets(timid: np.ndarray, firm: np.ndarray, discs: np.ndarray) -> Figure:
    """Ways of two fleets, ``[drones, steps, 2]``, each drone seen from the centre of its disc."""
    figure = style.new_figure(11, 3.9)
    style.headline(figure, f"{discs.shape[0]} drones fly around a disc", "each seen from its disc")
    grid = figure.add_gridspec(1, 2, left=0.06, right=0.98, bottom=0.13, top=0.76, wspace=0.12)
    for column, (ways, rho) in enumerate(((timid, "0.1"), (firm, "10"))):
        axes = figure.add_subplot(grid[column])
        relative = ways - discs[:, None]
        inside = np.linalg.norm(relative, axis=2).min(axis=1) < 0.99 * RADIUS
        axes.add_patch(Circle((0, 0), RADIUS, facecolor=style.FAINT, edgecolor=style.MUTED))
        for way, cuts in zip(relative, inside, strict=True):
            axes.plot(*way.T, color=style.ACCENT if cuts else style.VARIABLE, linewidth=0.9)
        axes.set(aspect="equal", xlim=(-2.1, 2.0), ylim=(-0.85, 0.85), xlabel="m")
        cut = f"{inside.sum()} cut into it (red)" if inside.any() else "none cuts into it"
        style.panel_title(axes, f"rho = {rho}: {cut}")
        style.tidy(axes)
    return figure


def main(folder: Path) -> None:
    """Writes the pictures."""
    for name, (page, count, expression) in PICTURES.items():
        blocks = re.findall(r"```python\n(.*?)```", (DOCS / page).read_text(), flags=re.DOTALL)
        names: dict[str, Any] = {"fleets": fleets}
        for text in blocks[:count]:
            exec(compile(text, page, "exec"), names)
        figure = eval(expression, names)
        figure.savefig(folder / f"{name}.png", dpi=120, metadata={"Software": None})


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent)
