"""Rates of one thread, all threads and OSQP as bars, from the JSONL file alone."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from warpmpc.viz import style
from warpmpc_bench.common.plot import plot_rows
from warpmpc_bench.common.record import Row
from warpmpc_bench.cpu.bench import LABELS

if TYPE_CHECKING:
    from matplotlib.figure import Figure

WIDTH, HEIGHT = 11.0, 5.0  # inches


def plot_file(source: str | Path, target: str | Path) -> Path:
    """Draws the latest measurements of a file written by `warpmpc bench cpu`."""
    return plot_rows(source, target, "cpu", figure_of)


def figure_of(rows: Sequence[Row]) -> Figure:
    """The figure of rows of one machine."""
    figure = style.new_figure(WIDTH, HEIGHT)
    axes = figure.add_axes((0.08, 0.12, 0.9, 0.68))
    style.headline(
        figure,
        "SQP iterations per second on the CPU",
        f"{rows[-1]['settings']['threads']} threads; OSQP: QPs per second of as many iterations",
    )
    places = np.arange(len(rows))
    for offset, (name, label) in zip((-0.27, 0.0, 0.27), LABELS.items(), strict=True):
        found = [row["per_s"].get(name, {}).get("median", np.nan) for row in rows]
        axes.bar(places + offset, found, width=0.25, label=label)
    axes.set_yscale("log")
    axes.set_xticks(places, [f"{row['solver']}\nbatch {row['batch']}" for row in rows])
    axes.legend(frameon=False)
    return figure
