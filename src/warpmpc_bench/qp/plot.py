"""QPs per second over the batch size as one picture, from the JSONL file alone.

Reads: rows of `warpmpc_bench.qp.bench`.  Produces: a PNG with a panel per dtype.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from warpmpc.viz import style
from warpmpc_bench.common.plot import (
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
from warpmpc_bench.qp.report import timing_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

WIDTH, PANEL_HEIGHT, TOP, BOTTOM = 11.5, 5.0, 1.15, 0.95  # inches
LEFT, PANEL_WIDTH = 0.8, 6.6
LEVELS = {"osqp": ":", "osqp_shared": "-.", "osqp_setup": (0, (1, 4)), "osqp_gradient": (0, (5, 5))}


def plot_file(source: str | Path, target: str | Path) -> Path:
    """Draws the latest measurements of a file written by `warpmpc bench qp`."""
    return plot_rows(source, target, "qp", figure_of)


def figure_of(rows: Sequence[Row]) -> Figure:
    """The figure of rows of one device."""
    variants = [row for row in rows if row["kind"] == "variant"]
    dtypes = list(dict.fromkeys(row["dtype"] for row in variants))
    height = TOP + len(dtypes) * (PANEL_HEIGHT + BOTTOM)
    figure, last = style.new_figure(WIDTH, height), variants[-1]
    system, settings = last["system"], last["settings"]
    style.headline(
        figure,
        f"Linear MPC, n = {system['n']}, m = {system['m']}: {settings['max_iter']} ADMM iterations",
        subtitle(last, "every instance factorises its own matrix"),
    )
    for place, dtype in enumerate(dtypes):
        bottom = height - TOP - (place + 1) * PANEL_HEIGHT - place * BOTTOM
        box = (LEFT / WIDTH, bottom / height, PANEL_WIDTH / WIDTH, PANEL_HEIGHT / height)
        of_dtype = [row for row in rows if row["dtype"] == dtype or row["solver"] in LEVELS]
        _draw_panel(figure.add_axes(box), of_dtype, dtype)
    return figure


def _draw_panel(axes: Axes, rows: Sequence[Row], dtype: str) -> None:
    """Engines, gradients, baselines, and what memory allows."""
    # Solutions and gradients share the axis: one curve per solver, whatever it computes.
    rows = [{**row, "rate": timing_of(row)} for row in rows]
    axes.set(xscale="log", yscale="log", xlabel="batch size")
    style.panel_title(axes, f"QPs per second, {dtype}")
    for place, of_solver in enumerate(variants_of(rows).values()):
        draw_variant(axes, of_solver, "rate", place)
    for row in rows:
        if row["solver"] in LEVELS:
            draw_level(axes, row, "rate", LEVELS[row["solver"]])
    counted = [row for row in rows if row["rate"]["bytes"] is not None]
    if counted:
        draw_roof(axes, counted[0], "rate")
    others = [row for row in rows if row["kind"] == "baseline" and row["solver"] not in LEVELS]
    draw_others(axes, others, "rate")
    finish_axes(axes, sorted({row["batch"] for row in rows if row["kind"] == "variant"}))
    legend_beside(axes)
