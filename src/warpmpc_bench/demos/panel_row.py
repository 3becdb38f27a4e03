"""The figures of the demos without motion: a headline above a row of panels."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from warpmpc.viz import style

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

WIDTH, BOTTOM, TOP, PANEL_WIDTH = 16.0, 0.75, 1.25, 4.2  # inches


def panel_row(
    title: str, subtitle: str, left: Sequence[float], panel_height: float
) -> tuple[Figure, list[Axes]]:
    """A figure with its panels.

    Args:
        title: First line of the headline.
        subtitle: Second line of the headline.
        left: Left edge of each panel in inches.
        panel_height: Height of the panels in inches.
    """
    style.require_matplotlib()
    height = BOTTOM + panel_height + TOP
    figure = style.new_figure(WIDTH, height)
    style.headline(figure, title, subtitle)
    size = PANEL_WIDTH / WIDTH, panel_height / height
    return figure, [figure.add_axes((x / WIDTH, BOTTOM / height, *size)) for x in left]


def unharmed_text(*, unharmed: bool) -> str:
    """Whether the broken instances of a demo left the others alone, for its headline."""
    return "no other solution changed" if unharmed else "OTHER SOLUTIONS CHANGED"
