"""Export, compile and run times over the length as one picture, from the JSONL file alone.

Reads: rows of `warpmpc_bench.translate.bench`.  Produces: a PNG with three panels per dtype.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from warpmpc._errors import ProblemError
from warpmpc.viz import style
from warpmpc_bench.common.plot import COLORS, MARKERS, legend_beside
from warpmpc_bench.common.record import Row, read_rows
from warpmpc_bench.common.report import usable

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

WIDTH, PANEL_HEIGHT, TOP, BOTTOM = 14.0, 3.8, 1.15, 0.95  # inches
LEFT, PANEL_WIDTH, GAP = 0.75, 3.2, 0.6
PANELS: dict[str, Callable[[Row], float | None]] = {
    "export, seconds": lambda row: row["export_s"],
    "compile, seconds": lambda row: row["compile_s"],
    "run, seconds per instance": lambda row: 1 / row["run"]["per_s"],
}


def plot_file(source: str | Path, target: str | Path) -> Path:
    """Draws the latest measurements of a file written by `warpmpc bench translate`."""
    style.require_matplotlib()
    rows = latest([row for row in read_rows(source) if row.get("benchmark") == "translate"])
    if not any(row["kind"] == "variant" for row in rows):
        raise ProblemError(f"{source} holds no correct measurement of an emitter; nothing to draw.")
    return style.save(figure_of(rows), Path(target))


def latest(rows: Sequence[Row]) -> list[Row]:
    """Usable rows of the device measured last, the last ones of equal cases.

    The largest of several batches counts, where emitters differ in more than overhead.
    """
    good = usable(rows)
    newest = {
        (row["solver"], row["dtype"], row["system"]["length"], row["batch"]): row
        for row in good
        if row["device"] == good[-1]["device"]
    }
    largest: dict[tuple[str, str, int], Row] = {}
    for (solver, dtype, length, _), row in newest.items():
        kept = largest.setdefault((solver, dtype, length), row)
        if row["batch"] > kept["batch"]:
            largest[solver, dtype, length] = row
    return list(largest.values())


def figure_of(rows: Sequence[Row]) -> Figure:
    """The figure of rows of one device."""
    variants = [row for row in rows if row["kind"] == "variant"]
    dtypes = list(dict.fromkeys(row["dtype"] for row in variants))
    solvers = list(dict.fromkeys(row["solver"] for row in [*variants, *rows]))
    height = TOP + len(dtypes) * (PANEL_HEIGHT + BOTTOM)
    figure = style.new_figure(WIDTH, height)
    last = variants[-1]
    style.headline(
        figure,
        "CasADi functions as JAX functions and Warp kernels, over their length",
        f"{last['device']}, batch {last['batch']}; nothing cached; "
        f"warpmpc {str(last['commit'])[:10]}, {last['date'][:10]}",
    )
    for place, dtype in enumerate(dtypes):
        # CasADi itself works in float64 whatever the others do.
        shown = [row for row in rows if row["dtype"] == dtype or row["solver"] == "casadi"]
        bottom = height - TOP - (place + 1) * PANEL_HEIGHT - place * BOTTOM
        for column, title in enumerate(PANELS):
            left = LEFT + column * (PANEL_WIDTH + GAP)
            box = (left / WIDTH, bottom / height, PANEL_WIDTH / WIDTH, PANEL_HEIGHT / height)
            _draw_panel(figure.add_axes(box), shown, solvers, f"{title}, {dtype}", PANELS[title])
        legend_beside(figure.axes[-1])
    return figure


def _draw_panel(
    axes: Axes,
    rows: Sequence[Row],
    solvers: Sequence[str],
    title: str,
    value: Callable[[Row], float | None],
) -> None:
    """One phase over the length, one line per solver."""
    axes.set(xscale="log", yscale="log", xlabel="instructions")
    style.panel_title(axes, title)
    for place, solver in enumerate(solvers):
        of_solver = [row for row in rows if row["solver"] == solver]
        points = [(row["system"]["instructions"], value(row)) for row in of_solver]
        drawn = sorted((length, number) for length, number in points if number is not None)
        if not drawn:
            continue
        ours = of_solver[0]["kind"] == "variant"
        axes.plot(
            [length for length, _ in drawn],
            [number for _, number in drawn],
            color=COLORS[place] if ours else style.MUTED,
            marker="o" if ours else MARKERS[place % len(MARKERS)],
            markersize=4.5,
            linewidth=1.8 if ours else 1.2,
            label=of_solver[0]["label"],
        )
    axes.grid(visible=True, which="major", color=style.FAINT, linewidth=0.7)
    style.tidy(axes)
