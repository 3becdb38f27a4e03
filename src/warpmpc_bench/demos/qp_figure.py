"""The QP demo as a picture: trajectories, iterations, and how well the tolerances are met.

Reads: a `QPDemoResult`.  Produces: a PNG.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from warpmpc.systems import linear_mpc
from warpmpc.viz import style
from warpmpc_bench.common.report import rate
from warpmpc_bench.demos.panel_row import panel_row, unharmed_text
from warpmpc_bench.demos.qp import SLACK, QPDemoResult

if TYPE_CHECKING:
    from matplotlib.axes import Axes

LEFT, PANEL_HEIGHT = (0.8, 6.1, 11.4), 3.6  # inches
SHOWN = 60
HEIGHT_STATE = 2  # the state that has a reference


def draw_demo(result: QPDemoResult, path: str | Path) -> Path:
    """Writes the picture."""
    figure, (states, iterations, excess) = panel_row(
        f"{result.batch} linear MPC problems, {rate(result.per_s).strip()} per second",
        f"{result.device}, float32, engine {result.engine}; two instances are hopeless on purpose: "
        f"{unharmed_text(unharmed=result.unharmed)}",
        LEFT,
        PANEL_HEIGHT,
    )
    _draw_states(states, result)
    _draw_iterations(iterations, result)
    _draw_excess(excess, result)
    return style.save(figure, Path(path))


def _draw_states(axes: Axes, result: QPDemoResult) -> None:
    """The state that has a reference, for some instances."""
    steps = linear_mpc.HORIZON + 1
    x = result.x[:, : linear_mpc.N_X * steps].reshape(result.batch, steps, linear_mpc.N_X)
    axes.plot(x[:SHOWN, :, HEIGHT_STATE].T, color=style.VARIABLE, linewidth=0.8, alpha=0.5)
    axes.axhline(1.0, color=style.ACCENT, linestyle="--", linewidth=1.3)
    axes.set(xlabel="step of the horizon", ylabel="third state")
    shown = min(SHOWN, result.batch)
    _finish(axes, f"predictions of {shown} instances, reference dashed")


def _draw_iterations(axes: Axes, result: QPDemoResult) -> None:
    """How many instances took how many iterations."""
    counts, number = np.unique(result.iterations, return_counts=True)
    axes.bar(np.arange(counts.size), number, color=style.VARIABLE)
    axes.set_xticks(np.arange(counts.size), counts.tolist())
    axes.set(xlabel="iterations until both residuals are within tolerance", ylabel="instances")
    _finish(axes, f"iterations, median {np.median(result.iterations):.0f}")


def _draw_excess(axes: Axes, result: QPDemoResult) -> None:
    """Residuals over their tolerances."""
    axes.hist(result.excess, bins=40, color=style.VARIABLE)
    axes.axvline(1.0, color=style.ACCENT, linestyle="--", linewidth=1.3)
    axes.set(xlabel="larger of both residuals / its tolerance", ylabel="instances")
    _finish(axes, f"checked in float64; largest {result.excess.max():.2f} (limit {SLACK:.0f})")


def _finish(axes: Axes, title: str) -> None:
    style.panel_title(axes, title)
    style.tidy(axes)
