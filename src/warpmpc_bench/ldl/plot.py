"""Rates over the batch size as one picture, from the JSONL file alone.

Reads: rows of `warpmpc_bench.ldl.bench`.  Produces: a PNG with a pair of panels
(factorise, solve) per dtype.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from warpmpc.viz import style
from warpmpc_bench.common.plot import (
    curve,
    draw_level,
    draw_others,
    draw_roof,
    draw_variant,
    finish_axes,
    legend_beside,
    plot_rows,
    subtitle,
    variants_of,
)
from warpmpc_bench.common.record import Row

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

WIDTH, PANEL_HEIGHT, TOP, BOTTOM = 14.0, 4.6, 1.15, 0.95  # inches
LEFT, PANEL_WIDTH, GAP = 0.75, 4.75, 0.7
DASHES = (0, (4, 2))
PANELS = {"factor": "factorisations per second", "solve": "solves per second"}


def plot_file(source: str | Path, target: str | Path) -> Path:
    """Draws the latest measurements of a file written by `warpmpc bench ldl`."""
    return plot_rows(source, target, "ldl", figure_of)


def figure_of(rows: Sequence[Row]) -> Figure:
    """The figure of rows of one device."""
    variants = [row for row in rows if row["kind"] == "variant"]
    dtypes = list(dict.fromkeys(row["dtype"] for row in variants))
    height = TOP + len(dtypes) * (PANEL_HEIGHT + BOTTOM)
    figure = style.new_figure(WIDTH, height)
    last = variants[-1]
    style.headline(
        figure,
        f"Batched LDL' of one KKT pattern: dimension {last['system']['dimension']}, "
        f"nnz(L) = {variants[0]['settings']['nnz_L']}",
        subtitle(last, "every matrix different"),
    )
    for place, dtype in enumerate(dtypes):
        of_dtype = [row for row in rows if row["dtype"] == dtype or row["solver"] == "qdldl"]
        bottom = height - TOP - (place + 1) * PANEL_HEIGHT - place * BOTTOM
        for column, name in enumerate(PANELS):
            left = LEFT + column * (PANEL_WIDTH + GAP)
            box = (left / WIDTH, bottom / height, PANEL_WIDTH / WIDTH, PANEL_HEIGHT / height)
            _draw_panel(figure.add_axes(box), of_dtype, name, dtype)
        _draw_legend(figure.axes[-1])
    return figure


def _draw_panel(axes: Axes, rows: Sequence[Row], name: str, dtype: str) -> None:
    """One step over the batch size: variants, baselines, and what memory allows."""
    axes.set(xscale="log", yscale="log", xlabel="batch size")
    style.panel_title(axes, f"{PANELS[name]}, {dtype}")
    variants = variants_of(rows)
    for place, of_solver in enumerate(variants.values()):
        color = draw_variant(axes, of_solver, name, place)
        if name == "solve" and of_solver[0]["solve_tiles"]:
            batches, rates = curve(of_solver, "solve_tiles")
            axes.plot(batches, rates, color=color, linestyle=DASHES, linewidth=1.1, alpha=0.8)
    baselines = [row for row in rows if row["kind"] == "baseline"]
    for row in baselines:
        if row["solver"] == "qdldl":
            draw_level(axes, row, name, ":")
    draw_roof(axes, next(iter(variants.values()))[0], name)
    draw_others(axes, [row for row in baselines if row["solver"] != "qdldl"], name)
    finish_axes(axes, sorted({row["batch"] for row in rows if row["kind"] == "variant"}))


def _draw_legend(axes: Axes) -> None:
    """Draws the legend right of the solve panel; it also explains the dashed lines."""
    from matplotlib.lines import Line2D

    label = "dashed: vectors kept in tiles"
    dashed = Line2D([], [], color=style.MUTED, linestyle=DASHES, linewidth=1.1, label=label)
    legend_beside(axes, dashed)
