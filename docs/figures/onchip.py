"""Figures of the page "On-chip engine": lanes with their separators, and the reduction.

    python docs/figures/onchip.py [FOLDER]

Writes SVG files; the same input gives the same bytes.
"""

from __future__ import annotations

import sys
from pathlib import Path

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import FancyBboxPatch

from warpmpc import MPCSolver
from warpmpc._conventions import EQUALITY_TOLERANCE
from warpmpc.engines.onchip.lanes import LaneLayout, Node, eliminate_lane
from warpmpc.engines.onchip.memory import LaneMemory
from warpmpc.symbolic.derivatives.stage_model import row_kinds
from warpmpc.systems import cartpole
from warpmpc.viz import style

DRAWN = 4  # lanes of the small layout


def layout_of(horizon: int, n_lanes: int) -> LaneLayout:
    """Lanes of a cartpole."""
    made = cartpole.make(horizon=horizon)
    programs = MPCSolver(made.problem, made.settings, engine="staged").programs
    return LaneLayout(programs.assembly, row_kinds(made.problem, EQUALITY_TOLERANCE), n_lanes)


def lanes() -> Figure:
    """Nodes of the lanes of a short cartpole, and its K with the separators last."""
    layout = layout_of(4 * DRAWN - 1, DRAWN)
    figure = style.new_figure(11, 5.6)
    nodes = figure.add_axes((0.03, 0.05, 0.46, 0.86))
    _nodes(nodes, layout)
    style.panel_title(nodes, "16 stages on 4 lanes: separators in red")
    matrix = figure.add_axes((0.53, 0.05, 0.45, 0.86))
    _matrix(matrix, layout)
    style.panel_title(matrix, "K: the lanes' interiors, then the separators")
    return figure


def _nodes(axes: Axes, layout: LaneLayout) -> None:
    """Each lane is a box, each stage a column: variables above, rows below."""
    tallest = max(map(len, layout.rows))
    for lane in range(layout.n_lanes):
        bottom = -2.9 * lane
        box = FancyBboxPatch(
            (0, bottom), 4.1, 2.4, boxstyle="round,pad=0,rounding_size=0.1",
            color=_lane_color(lane), alpha=0.15,
        )  # fmt: skip
        axes.add_patch(box)
        axes.text(-0.12, bottom + 1.2, f"lane {lane}", ha="right", va="center", color=style.INK)
    for lane, node in (*layout.var_nodes, *layout.row_nodes):
        look = {"marker": "s", "markersize": 4} if node.is_row else {"marker": "o", "markersize": 7}
        axes.plot(*_place(lane, node, tallest), **look, color=_color(layout, lane, node))
    for k in range(layout.problem.horizon + 1):
        lane, stage = layout.place(k)
        place = (stage + 0.55, -2.9 * lane + 2.1)
        axes.text(*place, f"stage {k}", ha="center", va="center", fontsize=8, color=style.MUTED)
    for lane in range(1, layout.n_lanes):
        arrow = {"arrowstyle": "-|>", "color": style.ACCENT, "linewidth": 1.2}
        begin, end = (3.9, -2.9 * (lane - 1)), (0.5, -2.9 * lane + 2.4)
        axes.annotate("", end, begin, arrowprops=arrow)
    note = "circles: variables, squares: rows; arrows: coupling with the next lane"
    axes.text(0, -2.9 * layout.n_lanes + 2.0, note, fontsize=9, color=style.MUTED)
    axes.set(xlim=(-0.95, 4.2), ylim=(-2.9 * layout.n_lanes + 1.7, 2.6))
    axes.axis("off")


def _place(lane: int, node: Node, tallest: int) -> tuple[float, float]:
    x = node.stage + 0.2 + 0.16 * node.index
    if node.is_row:
        return node.stage + 0.2 + 0.7 * node.index / max(tallest - 1, 1), -2.9 * lane + 0.6
    return x, -2.9 * lane + 1.35


def _lane_color(lane: int) -> object:
    return style.stage_colors(DRAWN)(lane)


def _color(layout: LaneLayout, lane: int, node: Node) -> object:
    return style.ACCENT if node in layout.separators else _lane_color(lane)


def _matrix(axes: Axes, layout: LaneLayout) -> None:
    """Entries of K, lane by lane; entries of separators are red."""
    elimination = eliminate_lane(layout)
    rank = {node: i for i, node in enumerate([*elimination.order, *layout.separators])}
    owners = [*layout.var_nodes, *layout.row_nodes]
    parting = np.array([node in layout.separators for _, node in owners])
    lane_of = np.array([lane for lane, _ in owners])
    order = np.lexsort((np.array([rank[node] for _, node in owners]), lane_of, parting))
    place = np.empty(order.size, dtype=int)
    place[order] = np.arange(order.size)
    at, n_vars = layout.assembly, layout.problem.n_vars
    diagonal = np.arange(order.size)
    rows = np.concatenate([at.P_pattern.row_idx, at.A_pattern.row_idx + n_vars, diagonal])
    cols = np.concatenate([at.P_pattern.col_idx, at.A_pattern.col_idx, diagonal])
    colors = [
        style.ACCENT if parting[i] or parting[j] else _lane_color(int(lane_of[i]))
        for i, j in zip(rows, cols, strict=True)
    ]
    for x, y in ((cols, rows), (rows, cols)):
        axes.scatter(place[x], place[y], c=colors, s=3.2, marker="s", linewidths=0)
    axes.axhline(order.size - parting.sum() - 0.5, color=style.FAINT, linewidth=0.8, zorder=0)
    axes.axvline(order.size - parting.sum() - 0.5, color=style.FAINT, linewidth=0.8, zorder=0)
    axes.set(xlim=(-1, order.size), ylim=(order.size, -1), aspect="equal", xticks=[], yticks=[])
    axes.spines[:].set_color(style.FAINT)


def reduction() -> Figure:
    """Which lanes exchange values in the reduction of a cartpole with 100 intervals."""
    layout = layout_of(100, 32)
    memory = LaneMemory(layout, eliminate_lane(layout))
    figure = style.new_figure(11, 4.4)
    axes = figure.add_axes((0, 0, 1, 1))
    for level in range(memory.levels + 1):
        y = 3.0 - 0.5 * level
        for lane in range(layout.n_lanes):
            axes.plot(_x(lane), y, "o", markersize=6, color=style.ACCENT)
            for other in (lane - (1 << level), lane + (1 << level)):
                if level < memory.levels and 0 <= other < layout.n_lanes:
                    ends = [_x(other), _x(lane)], [y - 0.07, y - 0.43]
                    axes.plot(*ends, color=style.VARIABLE, linewidth=0.7, alpha=0.6)
        distance = f"distance {1 << level}" if level < memory.levels else "solved"
        axes.text(0.25, y, distance, va="center", fontsize=10, color=style.MUTED)
    for lane in range(layout.n_lanes):
        axes.text(_x(lane), 3.2, str(lane), ha="center", fontsize=8, color=style.MUTED)
    n, s = memory.n_interior, memory.n_separators
    title = f"Cartpole, {layout.problem.horizon} intervals: {layout.n_lanes} lanes"
    title += f" of {layout.per_lane} stages, {n} interior nodes and {s} separators each"
    axes.text(0.25, 3.95, title, fontsize=13, fontweight="bold", color=style.INK)
    note = f"In each step a lane takes {s} numbers from two others: {memory.levels} steps reach all"
    axes.text(0.25, 3.6, note, fontsize=10.5, color=style.MUTED)
    axes.set(xlim=(0, 11), ylim=(0.2, 4.4))
    axes.axis("off")
    return figure


def _x(lane: int) -> float:
    return 1.5 + 0.365 * lane


FIGURES = {"onchip_lanes": lanes, "onchip_reduction": reduction}


def main(folder: Path) -> None:
    """Writes all figures."""
    with mpl.rc_context({"svg.hashsalt": "warpmpc", "svg.fonttype": "path"}):
        for name, draw in FIGURES.items():
            draw().savefig(folder / f"{name}.svg", metadata={"Date": None, "Creator": None})


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent)
