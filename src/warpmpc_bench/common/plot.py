"""What the plots of all benchmarks share: rates over the batch size on logarithmic axes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from warpmpc._errors import ProblemError
from warpmpc.viz import style
from warpmpc_bench.common.record import Row, read_rows
from warpmpc_bench.common.report import rate, usable, workload

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLORS = ("#14457a", "#3f8fd2", "#2a9d6f", "#d9a514", "#e0701e", "#b3263f", "#7a3e9d")
MARKERS = ("s", "D", "P", "X", "^")


def plot_rows(
    source: str | Path,
    target: str | Path,
    benchmark: str,
    figure_of: Callable[[Sequence[Row]], Figure],
) -> Path:
    """Draws the latest measurements of a JSONL file.

    Args:
        source: File written by `warpmpc bench`.
        target: PNG file to write.
        benchmark: Benchmark whose rows to draw.
        figure_of: The figure of rows of one device.
    """
    style.require_matplotlib()
    rows = latest([row for row in read_rows(source) if row.get("benchmark") == benchmark])
    if not any(row["kind"] == "variant" for row in rows):
        raise ProblemError(f"{source} holds no correct measurement of a variant; nothing to draw.")
    return style.save(figure_of(rows), Path(target))


def latest(rows: Sequence[Row]) -> list[Row]:
    """Usable rows of the device measured last; of equal cases the last one counts."""
    good = usable(rows)
    newest = {
        (workload(row), row["solver"], row["dtype"], row["batch"]): row
        for row in good
        if row["device"] == good[-1]["device"]
    }
    return list(newest.values())


def variants_of(rows: Sequence[Row]) -> dict[str, list[Row]]:
    """Rows of each variant, in the order of the file."""
    variants = [row for row in rows if row["kind"] == "variant"]
    names = dict.fromkeys(row["solver"] for row in variants)
    return {name: [row for row in variants if row["solver"] == name] for name in names}


def subtitle(row: Row, what: str) -> str:
    """Device, roof, version and date of a measurement."""
    return (
        f"{row['device']}, {what}; roof from a measured copy bandwidth of "
        f"{rate(row['copy_bytes_per_s'])}B/s; warpmpc {str(row['commit'])[:10]}, "
        f"{row['date'][:10]}"
    )


def curve(rows: Sequence[Row], name: str) -> tuple[list[int], list[float]]:
    """Batch sizes and rates of a timing."""
    ordered = sorted((row for row in rows if row[name]), key=lambda row: row["batch"])
    return [row["batch"] for row in ordered], [row[name]["per_s"] for row in ordered]


def draw_variant(axes: Axes, rows: Sequence[Row], name: str, place: int) -> str:
    """The curve of one variant; returns its colour."""
    color = COLORS[place % len(COLORS)]
    label = f"{rows[0]['solver']}: {rows[0]['label']}"
    marks = {"color": color, "marker": "o", "markersize": 4.5, "linewidth": 1.8}
    axes.plot(*curve(rows, name), label=label, zorder=10 - place, **marks)
    return color


def draw_level(axes: Axes, row: Row, name: str, line: Any) -> None:
    """A level, for a solver whose cost per instance does not depend on the batch."""
    level = {"color": style.INK, "linestyle": line, "linewidth": 1.5}
    axes.axhline(row[name]["per_s"], label=row["label"], **level)


def draw_roof(axes: Axes, row: Row, name: str) -> None:
    """The rate at which the counted bytes of a row would pass at copy speed."""
    roof = row[name]["per_s"] / row[name]["floor_fraction"]
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


def draw_others(axes: Axes, rows: Sequence[Row], name: str) -> None:
    """Baselines at the batches they were measured; one far below is told at the lower edge."""
    low = axes.get_ylim()[0]
    for place, solver in enumerate(dict.fromkeys(row["solver"] for row in rows)):
        of_solver = [row for row in rows if row["solver"] == solver]
        batches, rates = curve(of_solver, name)
        marks = {"color": style.MUTED, "linewidth": 1.2, "label": of_solver[0]["label"]}
        if max(rates) >= low:
            axes.plot(batches, rates, marker=MARKERS[place % len(MARKERS)], **marks)
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


def finish_axes(axes: Axes, sizes: Sequence[int]) -> None:
    """Ticks at the measured batch sizes, enough labelled rates whatever the range, a grid."""
    from matplotlib.ticker import EngFormatter, LogLocator

    axes.set_xticks(sizes, [short_size(size) for size in sizes])
    low, high = axes.get_ylim()
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5) if high < 300 * low else (1,)))
    axes.yaxis.set_major_formatter(EngFormatter())
    axes.minorticks_off()
    axes.grid(visible=True, which="major", color=style.FAINT, linewidth=0.7)
    style.tidy(axes)


def legend_beside(axes: Axes, *extra: Any) -> None:
    """Draws a legend to the right of a panel.

    Args:
        axes: The panel.
        extra: Further entries, artists with labels.
    """
    handles, _ = axes.get_legend_handles_labels()
    axes.legend(
        handles=[*handles, *extra],
        loc="upper left",
        bbox_to_anchor=(1.02, 1.0),
        frameon=False,
        fontsize=9,
        labelcolor=style.INK,
    )


def short_size(size: int) -> str:
    """A batch size as the label of a tick."""
    return f"{size // 1000}k" if size >= 10_000 and size % 1000 == 0 else str(size)
