"""Columns per dependency level of the two triangular solves.

Reads: a `PatternAnalysis`.  Produces: a matplotlib figure.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from warpmpc.viz import style
from warpmpc.viz.analysis import NARROW, Levels, PatternAnalysis

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

ENLARGED = 10  # levels drawn a second time when all others are fused


def level_figure(analysis: PatternAnalysis) -> Figure:
    """How many columns can be solved side by side, level by level, forward and transposed."""
    figure = style.new_figure(15, 7.4)
    style.headline(
        figure,
        f"{analysis.structure.name}: columns per level, "
        f"{style.ordering_title(analysis.ordering)} order",
        f"the columns of a level are independent; runs of levels with at most {NARROW} columns "
        "(shaded) are fused into one sequential step",
    )
    grid = figure.add_gridspec(2, 1, left=0.06, right=0.98, top=0.84, bottom=0.08, hspace=0.4)
    solves = (("forward solve", analysis.forward), ("transposed solve", analysis.backward))
    for row, (name, levels) in enumerate(solves):
        axes = figure.add_subplot(grid[row])
        _draw_levels(axes, levels)
        counts = levels.counts
        text = (
            f":  {counts.size} levels in {len(levels.phases)} steps, widest {counts.max()}; "
            f"{counts[levels.fused].sum()} of {counts.sum()} columns in fused steps"
        )
        axes.set_title(name + text, loc="left", fontsize=11, color=style.INK)
    return figure


def _draw_levels(axes: Axes, levels: Levels) -> None:
    """Bars on a logarithmic scale, because the first level can hold half of all columns."""
    counts, fused = levels.counts, levels.fused
    for first, last in style.ranges(fused):
        axes.axvspan(first, last, color=style.TAIL, linewidth=0)
        if last - first > counts.size // 4:
            text = f"fused: {last - first} levels"
            axes.text((first + last) / 2, 1.6, text, ha="center", fontsize=10, color=style.ACCENT)
    axes.stairs(counts, np.arange(counts.size + 1), fill=True, color=style.VARIABLE, baseline=0.5)
    axes.set_yscale("log", base=2)
    powers = 2 ** np.arange(int(counts.max()).bit_length() + 1)
    axes.set_yticks(powers[:: max(1, powers.size // 5)])
    axes.yaxis.set_major_formatter("{x:.0f}")
    axes.set(xlabel="level", ylabel="columns", xlim=(0, counts.size), ylim=(0.5, powers[-1]))
    style.tidy(axes)
    for window in (slice(0, ENLARGED), slice(counts.size - ENLARGED, counts.size)):
        if counts.size > 8 * ENLARGED and np.delete(fused, window).all():
            _enlarge(axes, np.arange(counts.size)[window], counts[window], fused[window])


def _enlarge(axes: Axes, levels: np.ndarray, counts: np.ndarray, fused: np.ndarray) -> None:
    """A few levels again, wide enough to read, in the empty part above the fused run."""
    inset = axes.inset_axes((0.08 if levels[0] == 0 else 0.6, 0.42, 0.32, 0.46))
    colors = np.where(fused, style.TAIL_BAR, style.VARIABLE)
    bars = inset.bar(levels, counts, width=0.8, color=colors.tolist())
    inset.bar_label(bars, fontsize=8.5, color=style.INK, padding=1)
    inset.set(yscale="log", yticks=[], ylim=(0.5, 5 * counts.max()), xticks=levels)
    inset.set_title("enlarged", fontsize=9, color=style.MUTED, pad=2)
    inset.minorticks_off()
    style.tidy(inset)
