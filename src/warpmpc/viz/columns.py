"""Column counts of L and the segments that cut them.

Reads: a `PatternAnalysis`.  Produces: a matplotlib figure.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from warpmpc.symbolic.segments import padded_work
from warpmpc.viz import style
from warpmpc.viz.analysis import PatternAnalysis

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def column_figure(analysis: PatternAnalysis) -> Figure:
    """Histogram of the column counts beside the counts in elimination order with their segments."""
    figure = style.new_figure(15, 5.6)
    counts = analysis.elimination.L_pattern.col_counts
    n_segments = analysis.segment_bounds.size - 1
    whole = padded_work(counts, np.array([0, counts.size]))
    cut = padded_work(counts, analysis.segment_bounds)
    style.headline(
        figure,
        f"{analysis.structure.name}: columns of L, {style.ordering_title(analysis.ordering)} order",
        f"{counts.size} columns, {analysis.elimination.nnz_L} entries below the diagonal; "
        f"{n_segments} segments pad to {cut} slots, one segment would need {whole}",
    )
    grid = figure.add_gridspec(
        1, 2, width_ratios=(1, 3.4), left=0.06, right=0.98, top=0.80, bottom=0.12, wspace=0.14
    )
    _draw_histogram(figure.add_subplot(grid[0]), counts)
    _draw_segments(figure.add_subplot(grid[1]), analysis)
    return figure


def _draw_histogram(axes: Axes, counts: np.ndarray) -> None:
    """How many columns have how many entries."""
    from matplotlib.ticker import MaxNLocator

    frequency = np.bincount(counts)
    axes.bar(np.arange(frequency.size), frequency, width=0.84, color=style.VARIABLE)
    mean = counts.mean()
    axes.axvline(mean, color=style.INK, linewidth=1, linestyle=(0, (4, 3)))
    axes.annotate(
        f"mean {mean:.1f}",
        (mean, 1),
        xycoords=("data", "axes fraction"),
        xytext=(5, -11),
        textcoords="offset points",
        fontsize=9,
        color=style.INK,
    )
    axes.set(xlabel="entries in the column", ylabel="number of columns")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.yaxis.grid(True, color=style.FAINT, linewidth=0.7)
    axes.set_axisbelow(True)
    style.tidy(axes)


def _draw_segments(axes: Axes, analysis: PatternAnalysis) -> None:
    """Work of every column and the width its segment pads it to."""
    counts, bounds = analysis.elimination.L_pattern.col_counts, analysis.segment_bounds
    widths = np.maximum.reduceat(counts, bounds[:-1])
    edges = np.arange(counts.size + 1)
    axes.stairs(
        np.repeat(widths, np.diff(bounds)),
        edges,
        fill=True,
        color=style.PADDING,
        label=f"padding ({100 * analysis.segment_padding:.0f} % of the slots)",
    )
    axes.stairs(counts, edges, fill=True, color=style.VARIABLE, label="entries of the column")
    axes.stairs(
        widths,
        bounds,
        baseline=None,
        color=style.ACCENT,
        linewidth=1.6,
        label=f"{widths.size} optimal segments",
    )
    axes.vlines(
        bounds[1:-1],
        0,
        np.maximum(widths[:-1], widths[1:]),
        color=style.ACCENT,
        linewidth=0.6,
        alpha=0.7,
    )
    axes.set(
        xlabel="column in elimination order",
        ylabel="entries",
        xlim=(0, counts.size),
        ylim=(0, 1.2 * widths.max()),
    )
    axes.legend(loc="upper left", ncols=3, frameon=False, fontsize=9.5, labelcolor=style.INK)
    style.tidy(axes)
