"""SQP iterations per second over the batch size, and where the time goes, from JSONL files.

Reads: rows of `warpmpc_bench.mpc.bench`, of one system or several.  Produces: a PNG with two panels
per system.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from warpmpc.viz import style
from warpmpc_bench.common.plot import (
    COLORS,
    draw_roof,
    draw_variant,
    finish_axes,
    legend_beside,
    plot_rows,
    short_size,
    subtitle,
    variants_of,
)
from warpmpc_bench.common.record import Row
from warpmpc_bench.common.report import workload
from warpmpc_bench.mpc.phases import PHASES, REST
from warpmpc_bench.mpc.report import published_rates
from warpmpc_bench.mpc.variants import DEFAULT

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

WIDTH, PANEL_HEIGHT, TOP, GAP = 13.0, 4.2, 1.15, 1.0  # inches
LEFT, RATES_WIDTH, SHARES_LEFT, SHARES_WIDTH = 0.8, 6.0, 7.9, 3.1
IDLE = "idle"
PHASE_LABELS = {
    "admm": "ADMM",
    "linearize_factor": "linearise and factor",
    "line_search": "line search",
    REST: "rest (XLA, plant)",
    IDLE: "nothing runs",
}
PHASE_COLORS = dict(zip(PHASE_LABELS, (COLORS[0], COLORS[2], COLORS[3], style.MUTED, style.FAINT),
                        strict=True))  # fmt: skip


def plot_file(source: str | Path, target: str | Path) -> Path:
    """Draws the latest measurements of a file written by `warpmpc bench cartpole` and the like."""
    return plot_rows(source, target, "mpc", figure_of)


def figure_of(rows: Sequence[Row]) -> Figure:
    """The figure of rows of one device."""
    rows = [row for row in rows if row["kind"] == "variant"]  # baselines count solves
    loads = list(dict.fromkeys(workload(row) for row in rows))
    height = TOP + len(loads) * (PANEL_HEIGHT + GAP)
    figure = style.new_figure(WIDTH, height)
    style.headline(
        figure,
        "Closed-loop MPC: SQP iterations per second",
        subtitle(rows[-1], "all phases and the simulated plant included"),
    )
    for place, load in enumerate(loads):
        bottom = (height - TOP - (place + 1) * PANEL_HEIGHT - place * GAP) / height
        tall = PANEL_HEIGHT / height
        of_system = [row for row in rows if workload(row) == load]
        box = (LEFT / WIDTH, bottom, RATES_WIDTH / WIDTH, tall)
        _draw_rates(figure.add_axes(box), of_system)
        box = (SHARES_LEFT / WIDTH, bottom, SHARES_WIDTH / WIDTH, tall)
        _draw_shares(figure.add_axes(box), of_system)
    return figure


def _draw_rates(axes: Axes, rows: Sequence[Row]) -> None:
    """Variants, the published implementation, and what memory allows."""
    name, horizon, sqp_iterations, admm_iterations = workload(rows[-1])
    axes.set(xscale="log", yscale="log", xlabel="batch size")
    style.panel_title(
        axes,
        f"{name}, N = {horizon}, {sqp_iterations} SQP x {admm_iterations} ADMM",
    )
    place = 0
    for of_variant in variants_of(rows).values():
        for dtype in dict.fromkeys(row["dtype"] for row in of_variant):
            of_dtype = [row for row in of_variant if row["dtype"] == dtype]
            labelled = [{**row, "label": f"{row['label']}, {dtype}"} for row in of_dtype]
            draw_variant(axes, labelled, "sqp", place)
            place += 1
    published = published_rates(rows[-1])
    if published and rows[-1]["platform"] == "gpu":
        marks = {"color": style.INK, "marker": "X", "linestyle": ":", "linewidth": 1.2}
        label = "published implementation, H200"
        axes.plot(list(published), list(published.values()), label=label, **marks)
    streamed = [row for row in rows if row["settings"]["engine"] != "onchip"]
    if streamed:  # what stays on chip is not limited by memory
        draw_roof(axes, streamed[0], "sqp")
    finish_axes(axes, sorted({row["batch"] for row in rows}))
    axes.legend(loc="best", frameon=False, fontsize=9, labelcolor=style.INK)


def _draw_shares(axes: Axes, rows: Sequence[Row]) -> None:
    """Shares of the phases at each batch size, for what the library chooses."""
    known = [row for row in rows if row["phases"] and row["phases"]["reason"] is None]
    chosen = [row for row in known if row["solver"] == DEFAULT] or known
    bars = sorted({row["batch"]: row for row in chosen}.items())
    style.panel_title(axes, "share of the time")
    if not bars:
        axes.axis("off")
        axes.text(0.0, 0.5, "phases were not measured", color=style.MUTED, fontsize=10)
        return
    start = [0.0] * len(bars)
    for phase in (*PHASES, REST, IDLE):
        shares = [share_of(row, phase) for _, row in bars]
        if not any(shares):
            continue
        axes.bar(
            range(len(bars)),
            shares,
            bottom=start,
            color=PHASE_COLORS[phase],
            label=PHASE_LABELS[phase],
        )
        start = [a + b for a, b in zip(start, shares, strict=True)]
    axes.set_xticks(range(len(bars)), [short_size(size) for size, _ in bars], rotation=45)
    axes.set(xlabel="batch size", ylim=(0, max(1.0, *start)))
    axes.yaxis.set_major_formatter("{x:.0%}")
    style.tidy(axes)
    legend_beside(axes)


def share_of(row: Row, phase: str) -> float:
    """Share of a phase in the time of a row, 0 where it is not known."""
    phases = row["phases"]
    return phases["idle_share"] or 0.0 if phase == IDLE else phases["shares"][phase]
