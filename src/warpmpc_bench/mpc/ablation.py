"""What each choice of the solver is worth: rates of variants over that of the default.

Reads: rows of `warpmpc_bench.mpc.bench` with several variants, and of `warpmpc_bench.ldl.bench` for
the layout of arrays.  Produces: a PNG with one group of bars per system, and one for the layout.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from warpmpc._errors import ProblemError
from warpmpc.viz import style
from warpmpc_bench.common.plot import COLORS, latest, legend_beside, short_size, subtitle
from warpmpc_bench.common.record import Row, read_rows
from warpmpc_bench.common.report import workload
from warpmpc_bench.mpc.variants import DEFAULT, VARIANTS

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

WIDTH, PANEL_HEIGHT, TOP, GAP, LEFT, RIGHT = 11.0, 3.6, 1.15, 1.0, 2.9, 1.4  # inches
# Layouts are compared on factorisations: the QP engines have tiles only.
LAYOUTS = {"no_segments": "tiles of 32 problems", "batch_first": "batch-first arrays"}
Bars = dict[str, dict[int, float]]  # name of a bar, batch size, rate over the default's


def plot_ablation(source: str | Path, target: str | Path, ldl: str | Path | None = None) -> Path:
    """Draws the latest measurements of a file.

    Args:
        source: File with rows of `warpmpc bench cartpole --variants ...` and the like.
        target: PNG file to write.
        ldl: File written by `warpmpc bench ldl`, for the layout of arrays.
    """
    style.require_matplotlib()
    rows = latest([row for row in read_rows(source) if row.get("benchmark") == "mpc"])
    others = [] if ldl is None else latest(
        [row for row in read_rows(ldl) if row.get("benchmark") == "ldl"]
    )  # fmt: skip
    panels = mpc_bars(rows) | layout_bars(others)
    if not panels:
        raise ProblemError(
            f"{source} holds no correct rows of {DEFAULT!r} and another variant at one batch size; "
            "measure them with --variants."
        )
    return style.save(figure_of(panels, rows[-1]), Path(target))


def mpc_bars(rows: Sequence[Row]) -> dict[str, Bars]:
    """Rates of the variants over the default's, by system; float32 only."""
    rates: dict[str, Bars] = {}
    for row in rows:
        if row["dtype"] == "float32":
            of_system = rates.setdefault(_title(row), {})
            of_system.setdefault(row["solver"], {})[row["batch"]] = row["sqp"]["per_s"]
    panels = {}
    for name, of_system in rates.items():
        bars = ratios(of_system, DEFAULT)
        if bars:
            panels[name] = {VARIANTS[solver].label: bars[solver] for solver in bars}
    return panels


def _title(row: Row) -> str:
    name, horizon, sqp_iterations, admm_iterations = workload(row)
    return f"{name}, N = {horizon}, {sqp_iterations} SQP x {admm_iterations} ADMM"


def layout_bars(rows: Sequence[Row]) -> dict[str, Bars]:
    """Rates of factorisations by layout, over tiles; float32 only."""
    rates: Bars = {}
    for row in rows:
        if row["solver"] in LAYOUTS and row["dtype"] == "float32":
            rates.setdefault(row["solver"], {})[row["batch"]] = row["factor"]["per_s"]
    tiled, _ = LAYOUTS
    bars = ratios(rates, tiled)
    named = {f"{LAYOUTS[solver]}, over {LAYOUTS[tiled]}": bars[solver] for solver in bars}
    title = "layout (factorisations of `bench ldl`"
    return {f"{title}, {rows[-1]['device']})": named} if named else {}


def ratios(rates: Bars, base: str) -> Bars:
    """Rates over those of `base` at the batch sizes that both have."""
    known = rates.get(base, {})
    found = {
        name: {batch: rate / known[batch] for batch, rate in of_name.items() if batch in known}
        for name, of_name in rates.items()
        if name != base
    }
    return {name: of_name for name, of_name in found.items() if of_name}


def figure_of(panels: dict[str, Bars], last: Row) -> Figure:
    """The figure; `last` says where the rows were measured."""
    height = TOP + len(panels) * (PANEL_HEIGHT + GAP)
    figure = style.new_figure(WIDTH, height)
    style.headline(
        figure, "What each choice is worth", subtitle(last, "rates over those of the default")
    )
    for place, (title, bars) in enumerate(panels.items()):
        bottom = (height - TOP - (place + 1) * PANEL_HEIGHT - place * GAP) / height
        box = (LEFT / WIDTH, bottom, (WIDTH - LEFT - RIGHT) / WIDTH, PANEL_HEIGHT / height)
        _draw_bars(figure.add_axes(box), title, bars)
    return figure


def _draw_bars(axes: Axes, title: str, bars: Bars) -> None:
    """Groups of horizontal bars, one colour per batch size, and a line where the default is."""
    style.panel_title(axes, title)
    sizes = sorted({batch for of_name in bars.values() for batch in of_name})
    thick = 0.8 / len(sizes)
    for number, batch in enumerate(sizes):
        places = [i + number * thick for i, of_name in enumerate(bars.values()) if batch in of_name]
        values = [of_name[batch] for of_name in bars.values() if batch in of_name]
        color = COLORS[number % len(COLORS)]
        drawn = axes.barh(
            places, values, thick, color=color, label=f"batch {short_size(batch)}", align="edge"
        )
        axes.bar_label(drawn, fmt="{:.2f}", padding=2, fontsize=8, color=style.MUTED)
    axes.axvline(1.0, color=style.INK, linewidth=1.0, linestyle="--")
    axes.set_yticks([i + 0.4 for i in range(len(bars))], list(bars))
    axes.invert_yaxis()
    axes.set_xlabel("rate over the default's")
    style.tidy(axes)
    legend_beside(axes)
