"""The demo as a picture: the matrix that all systems share, how well and how fast they were solved.

Reads: a `DemoResult`.  Produces: a PNG.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from warpmpc.systems.patterns import ldl_benchmark
from warpmpc.viz import style
from warpmpc_bench.common.report import rate
from warpmpc_bench.demos.ldl import DemoResult
from warpmpc_bench.demos.panel_row import panel_row, unharmed_text

if TYPE_CHECKING:
    from matplotlib.axes import Axes

LEFT, PANEL_HEIGHT = (0.7, 6.0, 11.3), 4.2  # inches


def draw_demo(result: DemoResult, path: str | Path) -> Path:
    """Writes the picture."""
    figure, (pattern, residuals, rates) = panel_row(
        f"{result.batch} KKT systems, one pattern, solved side by side",
        f"{result.device}, float32; two matrices are broken on purpose: "
        f"{unharmed_text(unharmed=result.unharmed)}",
        LEFT,
        PANEL_HEIGHT,
    )
    _draw_pattern(pattern, result)
    _draw_residuals(residuals, result)
    _draw_rates(rates, result)
    return style.save(figure, Path(path))


def _draw_pattern(axes: Axes, result: DemoResult) -> None:
    """Both triangles of K, a colour per stage."""
    K_pattern, stages = result.solver.elimination.K_pattern, ldl_benchmark().stages
    off = K_pattern.row_idx != K_pattern.col_idx
    rows = np.concatenate([K_pattern.row_idx, K_pattern.col_idx[off]])
    cols = np.concatenate([K_pattern.col_idx, K_pattern.row_idx[off]])
    colors = style.stage_colors(int(stages.max()) + 1)
    stage = np.minimum(stages[rows], stages[cols])
    axes.scatter(cols, rows, c=colors(stage), s=1.2, marker="s", linewidths=0)
    n = result.solver.n
    axes.set(xlim=(-0.5, n - 0.5), ylim=(n - 0.5, -0.5), aspect="equal")
    axes.set_xlabel("coloured by stage of the horizon, first dark")
    style.panel_title(axes, f"KKT matrix, {n} x {n}, {rows.size} nonzeros")
    style.tidy(axes)


def _draw_residuals(axes: Axes, result: DemoResult) -> None:
    """Histogram over the instances, with the limit."""
    low = np.floor(4 * np.log10(max(result.residuals.min(), 1e-12))) / 4
    high = np.log10(2 * max(result.limit, result.residuals.max()))
    axes.hist(result.residuals, bins=np.logspace(low, high, 50).tolist(), color=style.VARIABLE)
    axes.axvline(result.limit, color=style.ACCENT, linestyle="--", linewidth=1.3)
    axes.set(xscale="log", xlabel="relative residual |K x - b| / |b|", ylabel="systems")
    place = {"ha": "right", "va": "top", "rotation": 90, "fontsize": 9, "color": style.ACCENT}
    axes.text(result.limit / 1.04, 0.98, "limit", transform=axes.get_xaxis_transform(), **place)
    style.panel_title(axes, f"residuals, checked in float64; largest {result.residuals.max():.1e}")
    style.tidy(axes)


def _draw_rates(axes: Axes, result: DemoResult) -> None:
    """Bars of both steps, with QDLDL beside them where it is installed."""
    bars = [("factorise", "factor"), ("solve", "solve")]
    groups = [("warpmpc", style.VARIABLE, {name: result.per_s(name) for _, name in bars})]
    if result.qdldl_per_s:
        groups += [("QDLDL, one core", style.FILL, result.qdldl_per_s)]
    height = 0.8 / len(groups)
    for row, (_, name) in enumerate(bars):
        for place, (label, color, rates) in enumerate(groups):
            y = row + (place - (len(groups) - 1) / 2) * height
            axes.barh(y, rates[name], height * 0.92, color=color, label=None if row else label)
            value = f" {rate(rates[name]).strip()}/s"
            axes.text(rates[name], y, value, va="center", fontsize=9.5, color=style.INK)
    axes.set(yticks=range(len(bars)), yticklabels=[text for text, _ in bars], xticks=[])
    axes.set_xlim(0, 1.3 * max(max(rates.values()) for _, _, rates in groups))
    axes.set_ylim(len(bars) - 0.5, -0.5)
    axes.legend(loc="upper right", frameon=False, fontsize=9, labelcolor=style.INK)
    style.panel_title(axes, "systems per second")
    style.tidy(axes)
    axes.spines[["bottom"]].set_visible(False)
    axes.tick_params(axis="y", length=0, labelsize=10.5, labelcolor=style.INK)
