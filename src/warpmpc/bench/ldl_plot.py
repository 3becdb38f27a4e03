"""Rates over the batch size as one picture, from the JSONL file alone.

Reads: rows of `bench.ldl`.  Produces: a PNG with a pair of panels (factorise, solve) per dtype.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from warpmpc._errors import ProblemError
from warpmpc.bench.ldl_report import rate, usable
from warpmpc.bench.record import Row, read_rows
from warpmpc.viz import style

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

WIDTH, PANEL_HEIGHT, TOP, BOTTOM = 14.0, 4.6, 1.15, 0.95  # inches
LEFT, PANEL_WIDTH, GAP = 0.75, 4.75, 0.7
COLORS = ("#14457a", "#3f8fd2", "#2a9d6f", "#d9a514", "#e0701e", "#b3263f", "#7a3e9d")
BASELINE_MARKERS = {"dense": "D", "cudss": "P"}
DASHES = (0, (4, 2))
PANELS = {"factor": "factorisations per second", "solve": "solves per second"}


def plot_file(source: str | Path, target: str | Path) -> Path:
    """Draws the latest measurements of a JSONL file.

    Args:
        source: File written by `warpmpc bench ldl`.
        target: PNG file to write.
    """
    style.require_matplotlib()
    rows = latest([row for row in read_rows(source) if row.get("benchmark") == "ldl"])
    if not any(row["kind"] == "variant" for row in rows):
        raise ProblemError(f"{source} holds no correct measurement of a variant; nothing to draw.")
    target = Path(target)
    target.parent.mkdir(parents=True, exist_ok=True)
    return style.save(figure_of(rows), target)


def latest(rows: Sequence[Row]) -> list[Row]:
    """Usable rows of the device measured last; of equal cases the last one counts."""
    good = usable(rows)
    newest = {
        (row["solver"], row["dtype"], row["batch"]): row
        for row in good
        if row["device"] == good[-1]["device"]
    }
    return list(newest.values())


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
        f"{last['device']}, every matrix different; roof from a measured copy bandwidth of "
        f"{rate(last['copy_bytes_per_s'])}B/s; warpmpc {str(last['commit'])[:10]}, "
        f"{last['date'][:10]}",
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
    axes.set_title(f"{PANELS[name]}, {dtype}", loc="left", fontsize=11.5, color=style.INK)
    variants = [row for row in rows if row["kind"] == "variant"]
    for place, solver in enumerate(dict.fromkeys(row["solver"] for row in variants)):
        of_solver = [row for row in variants if row["solver"] == solver]
        color = COLORS[place % len(COLORS)]
        label = f"{solver}: {of_solver[0]['label']}"
        marks = {"color": color, "marker": "o", "markersize": 4.5, "linewidth": 1.8}
        axes.plot(*_curve(of_solver, name), label=label, zorder=10 - place, **marks)
        if name == "solve" and of_solver[0]["solve_tiles"]:
            batches, rates = _curve(of_solver, "solve_tiles")
            axes.plot(batches, rates, color=color, linestyle=DASHES, linewidth=1.1, alpha=0.8)
    _draw_qdldl(axes, rows, name)
    _draw_roof(axes, variants, name)
    _draw_others(axes, rows, name)
    sizes = sorted({row["batch"] for row in variants})
    axes.set_xticks(sizes, [_short(size) for size in sizes])
    _label_rates(axes)
    axes.grid(visible=True, which="major", color=style.FAINT, linewidth=0.7)
    style.tidy(axes)


def _curve(rows: Sequence[Row], name: str) -> tuple[list[int], list[float]]:
    ordered = sorted((row for row in rows if row[name]), key=lambda row: row["batch"])
    return [row["batch"] for row in ordered], [row[name]["per_s"] for row in ordered]


def _label_rates(axes: Axes) -> None:
    """Enough labelled rates whatever the range of the axis."""
    from matplotlib.ticker import EngFormatter, LogLocator

    low, high = axes.get_ylim()
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5) if high < 300 * low else (1,)))
    axes.yaxis.set_major_formatter(EngFormatter())
    axes.minorticks_off()


def _short(size: int) -> str:
    return f"{size // 1000}k" if size >= 10_000 and size % 1000 == 0 else str(size)


def _draw_qdldl(axes: Axes, rows: Sequence[Row], name: str) -> None:
    """A level, since the cost per instance does not depend on the batch."""
    for row in rows:
        if row["solver"] == "qdldl":
            level = {"color": style.INK, "linestyle": ":", "linewidth": 1.5}
            axes.axhline(row[name]["per_s"], label=row["label"], **level)


def _draw_roof(axes: Axes, variants: Sequence[Row], name: str) -> None:
    """The rate at which the counted bytes would pass at copy speed, for the first ordering."""
    row = variants[0]
    roof = row["copy_bytes_per_s"] * row["batch"] / row[name]["bytes"]
    axes.axhline(roof, color=style.ACCENT, linestyle="--", linewidth=1.3)
    low, high = axes.get_ylim()
    axes.set_ylim(low / 1.5, max(high, 2.2 * roof))
    axes.annotate(
        f"memory roof {rate(roof).strip()}/s",
        (0.01, roof),
        xycoords=axes.get_yaxis_transform(),
        xytext=(0, 4),
        textcoords="offset points",
        fontsize=9,
        color=style.ACCENT,
    )


def _draw_others(axes: Axes, rows: Sequence[Row], name: str) -> None:
    """Baselines at the batches they were measured; one far below is told at the lower edge."""
    low = axes.get_ylim()[0]
    others = [row for row in rows if row["kind"] == "baseline" and row["solver"] != "qdldl"]
    for solver in dict.fromkeys(row["solver"] for row in others):
        of_solver = [row for row in others if row["solver"] == solver]
        batches, rates = _curve(of_solver, name)
        marks = {"color": style.MUTED, "linewidth": 1.2, "label": of_solver[0]["label"]}
        if max(rates) >= low:
            axes.plot(batches, rates, marker=BASELINE_MARKERS.get(solver, "s"), **marks)
            continue
        axes.plot(batches[-1], low * 1.15, marker="v", linestyle="none", **marks)
        axes.annotate(
            f"{rate(rates[-1]).strip()}/s at batch {batches[-1]}",
            (batches[-1], low * 1.15),
            xytext=(7, -2),
            textcoords="offset points",
            fontsize=9,
            color=style.MUTED,
        )
    axes.set_ylim(bottom=low)


def _draw_legend(axes: Axes) -> None:
    """Right of the solve panel; it also explains the dashed lines."""
    from matplotlib.lines import Line2D

    handles, labels = axes.get_legend_handles_labels()
    dashed = Line2D([], [], color=style.MUTED, linestyle=DASHES, linewidth=1.1)
    axes.legend(
        [*handles, dashed],
        [*labels, "dashed: vectors kept in tiles"],
        loc="upper left",
        bbox_to_anchor=(1.02, 1.0),
        frameon=False,
        fontsize=9,
        labelcolor=style.INK,
    )
