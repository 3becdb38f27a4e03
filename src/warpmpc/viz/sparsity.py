"""The KKT matrix with its stages called out: as assembled, as eliminated, one stage enlarged.

Reads: a `PatternAnalysis`.  Produces: a matplotlib figure.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from warpmpc.symbolic.pattern import IntArray
from warpmpc.viz import style
from warpmpc.viz.analysis import PatternAnalysis

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

WIDTH, HEIGHT, PANEL = 20.0, 7.5, 5.2  # inches
LEFT = (0.8, 7.2, 13.6)  # left edges of the three panels
BOTTOM = 0.95
RUG = 0.028  # width of the strips of node kinds, in panels
CALLOUT = 0.04  # distance between stage call-outs, in panels


def sparsity_figure(analysis: PatternAnalysis) -> Figure:
    """Sparsity of K: caller's order, elimination order with fill, and one stage enlarged."""
    figure = style.new_figure(WIDTH, HEIGHT)
    elimination, n_stages = analysis.elimination, analysis.blocks.labels.size
    style.headline(
        figure,
        f"{analysis.structure.name}: KKT matrix",
        f"{elimination.n} x {elimination.n}, {analysis.nnz_K_full} nonzeros; "
        f"{analysis.n_vars} variables, {analysis.n_cons} multipliers, {n_stages} stages",
    )
    assembled, permuted, enlarged = (_panel(figure, left) for left in LEFT)
    _draw_matrix(assembled, analysis, np.arange(elimination.n), fill=False)
    _title(assembled, "as assembled")
    _draw_matrix(permuted, analysis, elimination.perm, fill=True)
    _title(
        permuted, f"{style.ordering_title(analysis.ordering)} order, nnz(L) = {elimination.nnz_L}"
    )
    _draw_stage(enlarged, permuted, analysis, n_stages // 2)
    _stage_scale(figure, analysis)
    return figure


def _panel(figure: Figure, left: float) -> Axes:
    axes = figure.add_axes((left / WIDTH, BOTTOM / HEIGHT, PANEL / WIDTH, PANEL / HEIGHT))
    axes.spines[:].set_color(style.FAINT)
    axes.tick_params(colors=style.MUTED, labelsize=8.5, length=3)
    axes.tick_params(axis="y", pad=14)  # room for the strip of node kinds
    return axes


def _title(axes: Axes, text: str) -> None:
    axes.set_title(text, loc="left", fontsize=11.5, color=style.INK, pad=30)


def _full_entries(analysis: PatternAnalysis, perm: IntArray) -> tuple[IntArray, IntArray]:
    """Rows and columns of both triangles of the permuted K."""
    upper, _ = analysis.elimination.K_pattern.permute_symmetric(perm)
    off = upper.row_idx != upper.col_idx
    rows = np.concatenate([upper.row_idx, upper.col_idx[off]])
    return rows, np.concatenate([upper.col_idx, upper.row_idx[off]])


def _stage_positions(analysis: PatternAnalysis, perm: IntArray) -> IntArray:
    """Position of each node's stage among the stage labels."""
    return np.searchsorted(analysis.blocks.labels, analysis.structure.stages[perm])


def _draw_matrix(axes: Axes, analysis: PatternAnalysis, perm: IntArray, *, fill: bool) -> None:
    """Dots coloured by stage; node kinds along the edges; a few stages called out on the right."""
    n, n_stages = perm.size, analysis.blocks.labels.size
    stage, colors = _stage_positions(analysis, perm), style.stage_colors(n_stages)
    # A dot smaller than about two pixels would vanish.
    dots = {"s": max(72 * PANEL / n, 0.95) ** 2, "marker": "s", "linewidths": 0}
    if fill:
        L, is_fill = analysis.elimination.L_pattern, analysis.elimination.K_to_L < 0
        axes.scatter(L.col_idx[is_fill], L.row_idx[is_fill], color=style.FILL, **dots)
    rows, cols = _full_entries(analysis, perm)
    axes.scatter(cols, rows, c=colors(np.minimum(stage[rows], stage[cols])), **dots)
    axes.set(xlim=(-0.5, n - 0.5), ylim=(n - 0.5, -0.5), aspect="equal")
    _draw_kinds(axes, perm < analysis.n_vars)
    for place, k in enumerate(_called_out(n_stages)):
        for first, last in style.ranges(stage == k):
            axes.axhspan(first - 0.5, last - 0.5, color=colors(k), alpha=0.1, linewidth=0)
        _bracket(axes, stage == k, place, colors(k), f"k = {analysis.blocks.labels[k]}")


def _called_out(n_stages: int) -> list[int]:
    """First, a middle and last stage."""
    return sorted({0, n_stages // 2, n_stages - 1})


def _draw_kinds(axes: Axes, is_variable: IntArray) -> None:
    """Two lanes above and left of the matrix: where the variables are, where the multipliers."""
    n, edges = is_variable.size, np.arange(is_variable.size + 1) - 0.5
    top = axes.inset_axes((0, 1 + 0.3 * RUG, 1, RUG), xlim=(-0.5, n - 0.5), ylim=(-1, 1))
    left = axes.inset_axes((-1.3 * RUG, 0, RUG, 1), xlim=(1, -1), ylim=(n - 0.5, -0.5))
    for strip, orientation in ((top, "vertical"), (left, "horizontal")):
        lane = {"edges": edges, "fill": True, "orientation": orientation}
        strip.stairs(is_variable.astype(float), color=style.VARIABLE, **lane)
        strip.stairs(is_variable.astype(float) - 1, color=style.MULTIPLIER, **lane)
        strip.set(xticks=[], yticks=[])
        strip.spines[:].set_color(style.FAINT)
    names = {"variables": (0.0, style.VARIABLE), "multipliers": (0.15, style.MULTIPLIER)}
    for name, (x, color) in names.items():
        place = {"transform": axes.transAxes, "fontsize": 8.5}
        axes.text(x, 1 + 1.6 * RUG, name, color=color, **place)


def _bracket(axes: Axes, mask: IntArray, place: int, color: object, label: str) -> None:
    """Marks the rows where the mask holds, in the given lane right of the matrix."""
    x = 1 + CALLOUT * (place + 0.6)
    for first, last in style.ranges(mask):
        axes.plot(
            [x, x],
            [first - 0.5, last - 0.5],
            transform=axes.get_yaxis_transform(),
            clip_on=False,
            color=color,
            linewidth=5,
            solid_capstyle="butt",
        )
    text = {"rotation": 90, "ha": "center", "va": "bottom", "fontsize": 8.5, "color": color}
    axes.text(x, 1.012, label, transform=axes.transAxes, **text)


def _draw_stage(axes: Axes, source: Axes, analysis: PatternAnalysis, k: int) -> None:
    """One stage and its neighbours in K, in elimination order, with the fill between them."""
    elimination = analysis.elimination
    stage, is_var = _stage_positions(analysis, elimination.perm), elimination.perm < analysis.n_vars
    rows, cols = _full_entries(analysis, elimination.perm)
    nodes = np.unique(rows[stage[cols] == k])
    L, is_fill = elimination.L_pattern, elimination.K_to_L < 0
    diagonal, in_P = rows == cols, is_var[rows] & is_var[cols]
    entries = [
        (L.row_idx[is_fill], L.col_idx[is_fill], style.FILL, "fill of L"),
        (rows[~diagonal & ~in_P], cols[~diagonal & ~in_P], style.INK, "A"),
        (rows[in_P], cols[in_P], style.VARIABLE, "P + sigma I"),
        (rows[diagonal & ~in_P], cols[diagonal & ~in_P], style.MULTIPLIER, "-1/rho"),
    ]
    for i, j, color, _ in entries:
        inside = np.isin(i, nodes) & np.isin(j, nodes)
        axes.scatter(
            np.searchsorted(nodes, j[inside]),
            np.searchsorted(nodes, i[inside]),
            s=(0.84 * 72 * PANEL / nodes.size) ** 2,
            marker="s",
            linewidths=0,
            color=color,
        )
    axes.set(xticks=[], yticks=[], aspect="equal")
    axes.set(xlim=(-0.5, nodes.size - 0.5), ylim=(nodes.size - 0.5, -0.5))
    _draw_kinds(axes, is_var[nodes])
    _title(axes, f"stage {analysis.blocks.labels[k]} and its neighbours, enlarged")
    for place, label in enumerate(("k - 1", "k", "k + 1")):
        ahead = place - 1
        _bracket(axes, stage[nodes] == k + ahead, place, style.MUTED if ahead else style.INK, label)
    _stage_legend(axes, {label: color for _, _, color, label in entries})
    if nodes[-1] - nodes[0] < elimination.n // 4:  # a block of the matrix, not scattered nodes
        _connect(source, axes, int(nodes[0]), int(nodes[-1]))


def _stage_legend(axes: Axes, colors: dict[str, str]) -> None:
    """What the colours of the enlarged entries mean, below the panel."""
    from matplotlib.patches import Patch

    axes.legend(
        handles=[Patch(color=color, label=label) for label, color in colors.items()],
        loc="upper center",
        bbox_to_anchor=(0.5, -0.01),
        ncols=len(colors),
        frameon=False,
        fontsize=9,
        labelcolor=style.INK,
        handlelength=0.8,
        handleheight=0.8,
    )


def _connect(source: Axes, target: Axes, first: int, last: int) -> None:
    """Frames the enlarged block where it comes from and leads the eye to the enlargement."""
    from matplotlib.patches import ConnectionPatch, Rectangle

    size = last - first + 1
    corner = (first - 0.5, first - 0.5)
    source.add_patch(Rectangle(corner, size, size, fill=False, color=style.ACCENT, linewidth=1.2))
    for row, height in ((first - 0.5, 1), (last + 0.5, 0)):
        line = ConnectionPatch(
            (last + 0.5, row),
            (0, height),
            source.transData,
            target.transAxes,
            color=style.ACCENT,
            linewidth=0.8,
            alpha=0.6,
        )
        source.figure.add_artist(line)


def _stage_scale(figure: Figure, analysis: PatternAnalysis) -> None:
    """The colour of every stage, as a strip under the first two panels."""
    labels = analysis.blocks.labels
    span = LEFT[1] + PANEL - LEFT[0]
    strip = figure.add_axes((LEFT[0] / WIDTH, 0.42 / HEIGHT, span / WIDTH, 0.13 / HEIGHT))
    strip.imshow(
        np.arange(labels.size)[None, :], cmap=style.stage_colors(labels.size), aspect="auto"
    )
    at = _called_out(labels.size)
    strip.set(yticks=[], xticks=at, xticklabels=[f"stage {labels[k]}" for k in at])
    strip.tick_params(colors=style.INK, labelsize=8.5, length=0)
    strip.spines[:].set_visible(False)
