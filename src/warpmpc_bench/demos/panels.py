"""What the scenes of all closed-loop demos share: the frame, and values over time.

Reads: a `LoopDemo`.  Produces: figures with headline and counter, panels that grow with time.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from warpmpc import systems
from warpmpc.viz import style
from warpmpc_bench.common.report import rate
from warpmpc_bench.demos.loop import LoopDemo

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Box = tuple[float, float, float, float]  # left, bottom, width, height, as shares of the figure
WIDTH, HEIGHT = 11.0, 5.9  # inches
MAIN: Box = (0.035, 0.075, 0.555, 0.745)
SIDES: tuple[Box, Box] = ((0.665, 0.515, 0.315, 0.285), (0.665, 0.095, 0.315, 0.285))
MOST_DRAWN = 150  # instances; more would hide each other


class LoopScene(ABC):
    """Figure, headline, a counter of instances that are where they should be, and traces.

    Attributes:
        figure: Figure of the scene.
        axes: Axes of the picture.
        loop: The closed loops that are shown.
        drawn: Instances that are drawn.
        colors: One for each of them.
    """

    counted: ClassVar[str]  # what the counter counts
    still_at: ClassVar[float] = 1.0  # when a figure shows the picture, as a share of all steps
    main: ClassVar[Box] = MAIN
    sides: ClassVar[tuple[Box, Box]] = SIDES
    most_drawn: ClassVar[int] = MOST_DRAWN

    def __init__(self, loop: LoopDemo):
        """Lays out the figure."""
        self.loop, self.drawn = loop, chosen(loop, self.most_drawn)
        self.colors = style.instance_colors(self.drawn.size)
        self.figure: Figure = style.new_figure(WIDTH, HEIGHT)
        settings, problem = loop.system.settings, loop.system.problem
        admm = settings.qp_settings("float32").max_iter
        style.headline(
            self.figure,
            f"{loop.options.batch} {systems.describe(loop.options.name).title}",
            f"{rate(loop.solves_per_s).strip()} MPC problems per second on {loop.device}, horizon "
            f"{problem.horizon}, {settings.max_iter} SQP x {admm} ADMM iterations each",
        )
        where = (0.98, 1 - 0.66 / HEIGHT)
        self._counter = self.figure.text(*where, "", fontsize=11, color=style.INK, ha="right")
        self._traces: list[Traces] = []

    @abstractmethod
    def move(self, step: int) -> None:
        """Moves the picture to a step."""

    def draw_paths(self, step: int) -> None:
        """Draws where everything was until a step; nothing unless a scene has paths."""
        return

    @abstractmethod
    def there(self, step: int) -> np.ndarray:
        """Which instances are where they should be."""

    def add_trace(self, values: np.ndarray, title: str, bounds: Sequence[float] = ()) -> None:
        """Adds a panel beside the picture: values of the drawn instances over time.

        Args:
            values: ``[instances, times]``.
            title: Name and unit.
            bounds: Drawn as well.
        """
        axes = self.figure.add_axes(self.sides[len(self._traces)])
        dt = self.loop.system.control_dt
        trace = Traces(axes, values, dt, self.colors, title)
        if bounds:
            trace.limits(bounds)
        self._traces.append(trace)

    def show(self, step: int) -> None:
        """Moves everything to a step; what was before stays visible."""
        self.move(step)
        self.draw_paths(step)
        for trace in self._traces:
            trace.show(step)
        there, seconds = self.there(step), step * self.loop.system.control_dt
        self._counter.set_text(
            f"t = {seconds:.2f} s    {self.counted}: {int(there.sum())} of {there.size}"
        )

    def show_still(self) -> None:
        """All times at once: the picture at its most telling one, the rest until the end."""
        step = round(self.still_at * self.loop.steps)
        self.show(step)
        self.draw_paths(self.loop.steps)
        for trace in self._traces:
            trace.show(self.loop.steps)
            if step < self.loop.steps:
                trace.mark(step)


class Traces:
    """One value of every instance over time, up to now."""

    def __init__(self, axes: Axes, values: np.ndarray, dt: float, colors: np.ndarray, title: str):
        """Draws nothing yet.

        Args:
            axes: Axes to draw into.
            values: ``[instances, times]``.
            dt: Time between two values.
            colors: One per instance.
            title: Name and unit.
        """
        from matplotlib.collections import LineCollection

        self._values, self._times = values, dt * np.arange(values.shape[1])
        self._lines = LineCollection([], colors=colors.tolist(), linewidths=0.9, alpha=0.55)
        axes.add_collection(self._lines)
        low, high = value_range(values)
        axes.set(xlim=(0, self._times[-1] or 1.0), ylim=(low, high))
        axes.set_xlabel("time [s]", labelpad=1, fontsize=9)
        style.panel_title(axes, title)
        style.tidy(axes)
        self.axes = axes

    def limits(self, bounds: Sequence[float]) -> None:
        """Draws bounds."""
        low, high = self.axes.get_ylim()
        size = max(high, *bounds) - min(low, *bounds)
        self.axes.set_ylim(
            min(low, min(bounds) - 0.06 * size), max(high, max(bounds) + 0.06 * size)
        )
        for bound in bounds:
            self.axes.axhline(bound, color=style.INK, linestyle=(0, (5, 3)), linewidth=1)

    def mark(self, step: int) -> None:
        """Marks a time."""
        self.axes.axvline(self._times[step], color=style.MUTED, linewidth=1, linestyle=(0, (1, 2)))

    def show(self, step: int) -> None:
        """All values until a step."""
        end = min(step + 1, self._times.size)
        self._lines.set_segments(
            [np.column_stack([self._times[:end], row[:end]]) for row in self._values]
        )


def chosen(loop: LoopDemo, most: int = MOST_DRAWN) -> np.ndarray:
    """Instances to draw, evenly from the batch."""
    batch = loop.options.batch
    return np.unique(np.linspace(0, batch - 1, min(batch, most)).astype(int))


def bare(axes: Axes) -> None:
    """A picture without frame and ticks."""
    axes.set_aspect("equal")
    axes.set(xticks=[], yticks=[])
    for spine in axes.spines.values():
        spine.set_visible(False)


def value_range(values: np.ndarray) -> tuple[float, float]:
    """Limits of an axis that shows all finite values, with a margin."""
    finite = values[np.isfinite(values)]
    if not finite.size:
        return -1.0, 1.0
    low, high = float(finite.min()), float(finite.max())
    margin = 0.06 * max(high - low, 1e-3)
    return low - margin, high + margin
