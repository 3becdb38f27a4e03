"""Figures of the page "How it works": the pattern, the stage loop, the tiles.

    python docs/figures/how_it_works.py [FOLDER]

Writes SVG files; the same input gives the same bytes.
"""

from __future__ import annotations

import sys
from pathlib import Path

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch, FancyBboxPatch, Rectangle

from warpmpc.systems import patterns
from warpmpc.viz import PatternAnalysis, analyse, style

STAGES = 8  # intervals of the cartpole whose pattern is drawn
LANES = 32


def pattern() -> Figure:
    """K as assembled and sorted by stages, coloured by stage, with the fill of L."""
    analysis = analyse(patterns.cartpole(STAGES), ordering="stage")
    figure = style.new_figure(11, 5.4)
    grid = figure.add_gridspec(1, 2, left=0.03, right=0.98, bottom=0.06, top=0.88, wspace=0.08)
    n = analysis.elimination.n
    titles = ("as assembled: variables, then multipliers", "sorted by stages; fill of L in gray")
    for column, (order, title) in enumerate(
        zip((np.arange(n), analysis.elimination.perm), titles, strict=True)
    ):
        axes = figure.add_subplot(grid[column])
        _matrix(axes, analysis, order, fill=column == 1)
        style.panel_title(axes, title)
    return figure


def _matrix(axes: Axes, analysis: PatternAnalysis, order: np.ndarray, *, fill: bool) -> None:
    """Entries of K in one order; those that couple two stages have the colour of the first."""
    n, stages = order.size, analysis.structure.stages[order]
    K = analysis.structure.K
    full = (K + K.T).tocsr()[order][:, order].tocoo()
    dots = {"s": 7.5, "marker": "s", "linewidths": 0}
    if fill:
        L, new = analysis.elimination.L_pattern, analysis.elimination.K_to_L < 0
        axes.scatter(L.col_idx[new], L.row_idx[new], color=style.FILL, **dots)
        for k in np.flatnonzero(np.diff(stages)) + 0.5:
            axes.axhline(k, color=style.FAINT, linewidth=0.6, zorder=0)
            axes.axvline(k, color=style.FAINT, linewidth=0.6, zorder=0)
    colors = style.stage_colors(STAGES + 1)(np.minimum(stages[full.row], stages[full.col]))
    axes.scatter(full.col, full.row, c=colors, **dots)
    axes.set(xlim=(-1, n), ylim=(n, -1), aspect="equal", xticks=[], yticks=[])
    axes.spines[:].set_color(style.FAINT)


def stage_loop() -> Figure:
    """One ADMM iteration: L is streamed forward and backward, one stage's unknowns in registers."""
    figure = style.new_figure(11, 4.3)
    axes = _canvas(figure, (0, 11), (0, 4.3))
    names = ("stage 0", "stage 1", "stage 2", "…", "stage N-1", "stage N")
    colors = style.stage_colors(len(names))
    for k, name in enumerate(names):
        left = 0.5 + 1.75 * k
        _box(axes, (left, 1.75), (1.3, 0.9), name, colors(k))
        if name != "…":
            axes.text(left + 0.65, 0.62, f"L of {name}", ha="center", fontsize=9, color=style.MUTED)
            _cells(axes, (left + 0.2, 0.8), 6)
            _arrow(axes, (left + 0.65, 1.08), (left + 0.65, 1.7), style.MUTED)
        if k:
            _arrow(axes, (left - 0.45, 2.42), (left, 2.42), style.VARIABLE)
            _arrow(axes, (left, 1.98), (left - 0.45, 1.98), style.ACCENT)
    forward = "forward: solve with L; what the next stage needs is handed on"
    axes.text(0.5, 3.05, forward, fontsize=11, color=style.VARIABLE)
    back = "backward: substitute, relax, project onto the bounds, update the multipliers"
    axes.text(0.5, 2.78, back, fontsize=11, color=style.ACCENT)
    axes.text(0.5, 3.75, "One thread walks over the stages of one problem", fontsize=14,
              fontweight="bold", color=style.INK)  # fmt: skip
    note = "50 iterations are one launch; boxes: registers, below: memory, read as one stream"
    axes.text(0.5, 3.45, note, fontsize=10.5, color=style.MUTED)
    axes.text(0.5, 0.2, "Middle stages are all alike: code for one of them serves all.",
              fontsize=10.5, color=style.INK)  # fmt: skip
    return figure


def tiles() -> Figure:
    """A batch-first array, and the same values in tiles."""
    figure = style.new_figure(11, 4.6)
    axes = _canvas(figure, (0, 11), (0, 4.6))
    colors = style.stage_colors(6)
    axes.text(0.4, 4.15, "Arrays of the caller: [batch, rows]", fontsize=12, fontweight="bold",
              color=style.INK)  # fmt: skip
    for problem in range(6):
        axes.text(0.4, 3.55 - 0.42 * problem, f"problem {problem}", fontsize=9, color=style.MUTED)
        for row in range(6):
            corner = (1.45 + 0.42 * row, 3.48 - 0.42 * problem)
            axes.add_patch(
                Rectangle(corner, 0.36, 0.3, color=colors(problem), alpha=0.35 + 0.1 * row)
            )
    axes.text(1.45, 0.95, "… row 0, row 1, row 2, …", fontsize=9, color=style.MUTED)
    _arrow(axes, (4.3, 2.4), (5.1, 2.4), style.INK)
    axes.text(5.4, 4.15, "On the device: [tiles, rows, 32]", fontsize=12, fontweight="bold",
              color=style.INK)  # fmt: skip
    for row in range(6):
        axes.text(5.4, 3.55 - 0.42 * row, f"row {row}", fontsize=9, color=style.MUTED)
        for lane in range(LANES):
            corner = (6.05 + 0.138 * lane, 3.48 - 0.42 * row)
            shade = colors(lane) if lane < 6 else style.FAINT
            axes.add_patch(Rectangle(corner, 0.115, 0.3, color=shade, alpha=0.35 + 0.1 * row))
    axes.text(6.05, 0.95, "lane 0 … 31: one line of 128 bytes in float32, one thread each",
              fontsize=9, color=style.MUTED)  # fmt: skip
    note = (
        "A warp reads line after line: one stream per tile. "
        "The last tile is filled up with copies of a real problem."
    )
    axes.text(0.4, 0.35, note, fontsize=10.5, color=style.INK)
    return figure


def _canvas(figure: Figure, x: tuple[float, float], y: tuple[float, float]) -> Axes:
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set(xlim=x, ylim=y)
    axes.axis("off")
    return axes


def _box(
    axes: Axes, corner: tuple[float, float], size: tuple[float, float], text: str, color: object
) -> None:
    shape = FancyBboxPatch(
        corner, *size, boxstyle="round,pad=0,rounding_size=0.1", color=color, alpha=0.25
    )
    axes.add_patch(shape)
    middle = (corner[0] + size[0] / 2, corner[1] + size[1] / 2)
    axes.text(*middle, text, ha="center", va="center", fontsize=11, color=style.INK)


def _cells(axes: Axes, corner: tuple[float, float], count: int) -> None:
    for i in range(count):
        place = (corner[0] + 0.15 * i, corner[1])
        axes.add_patch(Rectangle(place, 0.12, 0.22, color=style.FILL))


def _arrow(axes: Axes, begin: tuple[float, float], end: tuple[float, float], color: str) -> None:
    arrow = FancyArrowPatch(
        begin, end, arrowstyle="-|>", mutation_scale=11, color=color, shrinkA=0, shrinkB=0
    )
    axes.add_patch(arrow)


FIGURES = {"pattern": pattern, "stage_loop": stage_loop, "tiles": tiles}


def main(folder: Path) -> None:
    """Writes all figures."""
    with mpl.rc_context({"svg.hashsalt": "warpmpc", "svg.fonttype": "path"}):
        for name, draw in FIGURES.items():
            draw().savefig(folder / f"{name}.svg", metadata={"Date": None, "Creator": None})


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent)
