"""Colours and small habits shared by all figures; the only place that looks for matplotlib."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from warpmpc._errors import WarpMPCError
from warpmpc.viz.files import replaced

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.colors import ListedColormap
    from matplotlib.figure import Figure

INK = "#1f2933"
MUTED = "#7b8794"
FAINT = "#d9dee3"
VARIABLE = "#3b6fb6"
MULTIPLIER = "#e08a1e"
FILL = "#b4bdc6"
ACCENT = "#c2385a"
PADDING = "#fbe3d0"
TAIL = "#fdf0e6"
TAIL_BAR = "#efb58d"
DPI = 160


def require_matplotlib() -> None:
    """Raises unless matplotlib can be imported."""
    if find_spec("matplotlib") is None:
        raise WarpMPCError(
            "Figures need matplotlib, which is not installed; run `pip install matplotlib`."
        )


def new_figure(width: float, height: float) -> Figure:
    """An empty figure outside pyplot: no global state, no window, no backend to choose."""
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), facecolor="white")


def instance_colors(count: int) -> np.ndarray:
    """One colour per instance, from blue over violet to red, ``[count, 4]``."""
    from matplotlib.colors import LinearSegmentedColormap

    ends = ("#2b6cb8", "#6a55c4", "#b0479f", "#d9485f", "#ef8a3c")
    colors = LinearSegmentedColormap.from_list("instances", ends)
    return colors(np.linspace(0.0, 1.0, max(count, 1)))


def stage_colors(n_stages: int) -> ListedColormap:
    """One colour per stage, dark to light along the horizon, readable on white."""
    from matplotlib import colormaps
    from matplotlib.colors import ListedColormap

    return ListedColormap(colormaps["viridis"](np.linspace(0.0, 0.85, max(n_stages, 1))))


def ordering_title(ordering: str) -> str:
    """How an ordering is written in a title."""
    return {"amd": "AMD", "stage": "stage-wise"}.get(ordering, ordering)


def ranges(mask: np.ndarray) -> list[tuple[int, int]]:
    """Half-open ranges where a mask holds."""
    change = np.flatnonzero(np.diff(np.concatenate([[0], mask.astype(int), [0]])))
    return list(zip(change[::2].tolist(), change[1::2].tolist(), strict=True))


def tidy(axes: Axes) -> None:
    """Quiet frame and ticks."""
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color(MUTED)
    axes.tick_params(colors=MUTED, labelsize=9)
    axes.xaxis.label.set_color(INK)
    axes.yaxis.label.set_color(INK)


def headline(figure: Figure, title: str, subtitle: str) -> None:
    """Title and one line of explanation, top left."""
    inch = 1 / figure.get_size_inches()[1]
    figure.text(0.02, 1 - 0.38 * inch, title, fontsize=16, fontweight="bold", color=INK)
    figure.text(0.02, 1 - 0.66 * inch, subtitle, fontsize=10.5, color=MUTED)


def panel_title(axes: Axes, text: str) -> None:
    """Title of one panel, top left."""
    axes.set_title(text, loc="left", fontsize=11.5, color=INK)


def save(figure: Figure, path: Path) -> Path:
    """Writes a picture as a whole, and its folder if need be, and returns its path."""
    with replaced(path) as partial:
        figure.savefig(partial, dpi=DPI)
    return path
