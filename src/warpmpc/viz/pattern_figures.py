"""Writes all figures of one pattern.  Add a figure to `FIGURES`; it is then drawn everywhere."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from warpmpc._errors import SettingsError
from warpmpc.systems.patterns import KKTStructure
from warpmpc.viz.analysis import PatternAnalysis, analyse
from warpmpc.viz.columns import column_figure
from warpmpc.viz.levels import level_figure
from warpmpc.viz.sparsity import sparsity_figure
from warpmpc.viz.style import require_matplotlib, save

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FIGURES: dict[str, Callable[[PatternAnalysis], Figure]] = {
    "kkt": sparsity_figure,
    "columns": column_figure,
    "levels": level_figure,
}


def plot_pattern(
    pattern: str | KKTStructure | PatternAnalysis,
    path: str | Path,
    ordering: str = "amd",
    segments: int = 16,
) -> list[Path]:
    """Draws the symbolic analysis of a KKT pattern as PNG files.

    Args:
        pattern: A name from `warpmpc.systems.patterns`, a structure, or a finished analysis
            (whose ordering and segments then count).
        path: Folder for the files, created if needed.
        ordering: A name from `warpmpc.symbolic.ordering`.
        segments: Budget of segments.

    Returns:
        The files written, ``<name>_<ordering>_<figure>.png`` for each entry of `FIGURES`.
    """
    require_matplotlib()
    done = isinstance(pattern, PatternAnalysis)
    analysis = pattern if done else analyse(pattern, ordering, segments)
    folder = Path(path)
    if folder.exists() and not folder.is_dir():
        raise SettingsError(f"{folder} is not a folder; figures need one to be written into.")
    folder.mkdir(parents=True, exist_ok=True)
    stem = f"{analysis.structure.name}_{analysis.ordering}"
    return [
        save(draw(analysis), folder / f"{stem}_{figure}.png") for figure, draw in FIGURES.items()
    ]
