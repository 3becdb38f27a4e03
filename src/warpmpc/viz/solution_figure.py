"""`plot`: trajectories of a batch with their bounds, and what became of every instance.

Reads: a `Solution`, and x0 and parameters if the caller has them.  Produces: a matplotlib figure.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from textwrap import shorten
from typing import TYPE_CHECKING

import numpy as np

from warpmpc._checks import ArrayLike
from warpmpc._errors import ProblemError
from warpmpc.mpc.diagnosis.causes import variable_name
from warpmpc.mpc.diagnosis.diagnose import diagnose
from warpmpc.mpc.diagnosis.host_batch import HostBatch
from warpmpc.mpc.diagnosis.report import Diagnosis
from warpmpc.mpc.parameters import Params
from warpmpc.mpc.types import MPCStatus, Solution
from warpmpc.problem.evaluation import evaluate
from warpmpc.viz import style

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MOST_PANELS = 20  # the first variables are drawn
WORST = 10  # instances among which one is sought that violates a row
LETTERS = 12  # so many fit into an inch of a subtitle
PANEL_WIDTH, PANEL_HEIGHT, TOP = 4.6, 2.7, 1.0  # inches
COLORS = {
    MPCStatus.CONVERGED: style.VARIABLE,
    MPCStatus.MAX_ITER: "#8fb3dd",
    MPCStatus.QP_INFEASIBLE: style.ACCENT,
    MPCStatus.LINE_SEARCH_FAILED: style.MULTIPLIER,
    MPCStatus.NON_FINITE: style.INK,
}


@dataclass(frozen=True, eq=False)
class Panel:
    """One variable over the horizon.

    Attributes:
        name: Name of the variable.
        rows: Rows of the variable in z, one per node.
        nodes: These nodes.
        lower: Its bounds at these nodes; NaN where there is none or none is known.
        upper: Upper bounds in the same form.
        held: Whether its value holds until the next node.
    """

    name: str
    rows: np.ndarray
    nodes: np.ndarray
    lower: np.ndarray
    upper: np.ndarray
    held: bool

    def over_time(self, values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Nodes and values to draw; what is held is drawn until the node at which it ends."""
        if not self.held:
            return self.nodes, values
        return np.append(self.nodes, self.nodes[-1] + 1), np.append(values, values[-1])


def plot(
    solution: Solution,
    x0: ArrayLike | None = None,
    params: Params = None,
    *,
    instances: int = 60,
) -> Figure:
    """Draws states and inputs of a batch with their bounds; instances that failed stand out.

    ```python
    wm.plot(solver.solve(x0), x0).savefig("solution.png")
    ```

    The node at which the worst instance violates a row most is marked.  Solutions with a history
    (`SQPSettings(record=True)`) have a panel for it.  Nothing is shown on a screen: the figure does
    not belong to pyplot.

    Args:
        solution: Result of `MPCSolver.solve` or `step`.
        x0: Initial states that were given to the solver, as in `diagnose`.
        params: Parameters that were given to the solver.
        instances: Number of instances to draw; those that failed come first.
    """
    style.require_matplotlib()
    if instances < 1:
        raise ProblemError(f"instances must be at least 1, got {instances}.")
    diagnosis = diagnose(solution, x0, params, worst=WORST)
    batch = HostBatch.of(solution, x0, params)
    panels = panels_of(batch)
    shown = _shown(batch, diagnosis, instances)
    extra = 1 if batch.solution.history is None else 2
    count = len(panels) + extra
    columns = 2 if count <= 4 else 3 if count <= 6 else 4
    rows = math.ceil(count / columns)
    height = PANEL_HEIGHT * rows + TOP
    figure = style.new_figure(PANEL_WIDTH * columns, height)
    title, subtitle = _titles(diagnosis, shown)
    style.headline(figure, title, shorten(subtitle, int(PANEL_WIDTH * columns * LETTERS)))
    margin = 0.62 / (PANEL_WIDTH * columns)
    grid = figure.add_gridspec(
        rows,
        columns,
        left=margin,
        right=1 - margin / 2,
        bottom=0.5 / height,
        top=1 - (TOP + 0.2) / height,
        wspace=0.24,
        hspace=0.5,
    )
    places = iter(figure.add_subplot(grid[i]) for i in range(count))
    for panel in panels:
        _draw_panel(next(places), batch, panel, shown, diagnosis)
    if batch.solution.history is not None:
        _draw_history(next(places), batch, shown)
    _draw_counts(next(places), diagnosis)
    return figure


def panels_of(batch: HostBatch) -> list[Panel]:
    """States, then inputs; of problems without such names, all named variables."""
    layout, problem = batch.solution.layout, batch.problem
    tables = {"x": layout.x_rows, "u": layout.u_rows}
    known = {name: rows for name, rows in tables.items() if rows is not None} or layout.names
    lower, upper = _simple_bounds(batch)
    panels: list[Panel] = []
    for name, rows in known.items():
        for column in rows.T:
            at = problem.var_stage[column]
            label = variable_name(problem, int(column[0]))
            bounds = (lower[column], upper[column])
            panels.append(Panel(label, column, at, *bounds, held=name == "u"))
    if not panels:
        raise ProblemError(
            "Nothing in this problem has a name: give its stages `n_x`, or MPCProblem `names`."
        )
    return panels[:MOST_PANELS]


def _simple_bounds(batch: HostBatch) -> tuple[np.ndarray, np.ndarray]:
    """Bounds of variables that rows state directly, for the first instance; NaN: none.

    Such a row has the value of one variable wherever it is evaluated.
    """
    problem = batch.problem
    lower, upper = np.full((2, problem.n_vars), np.nan)
    if batch.params is None:
        return lower, upper
    z = np.random.default_rng(0).uniform(0.1, 1.0, problem.n_vars)
    point = evaluate(problem, z, batch.params[0])
    variable = {value: i for i, value in enumerate(z.tolist())}
    for row, value in enumerate(point.g.tolist()):
        i = variable.get(value)
        if i is not None and point.lower[row] < point.upper[row]:
            lower[i] = np.fmax(lower[i], point.lower[row])
            upper[i] = np.fmin(upper[i], point.upper[row])
    return lower, upper


def _shown(batch: HostBatch, diagnosis: Diagnosis, instances: int) -> np.ndarray:
    """Instances to draw, those that failed last so that they lie on top."""
    rest = np.setdiff1d(np.arange(diagnosis.batch), diagnosis.failed)
    failed = diagnosis.failed[np.isin(diagnosis.failed, batch.worst_first()[:instances])]
    spread = np.linspace(0, rest.size - 1, min(rest.size, max(instances - failed.size, 0)))
    return np.concatenate([rest[np.unique(spread.astype(int))], failed]).astype(int)


def _titles(diagnosis: Diagnosis, shown: np.ndarray) -> tuple[str, str]:
    count = "one instance" if diagnosis.batch == 1 else f"{diagnosis.batch} instances"
    if not diagnosis.ok:
        worst = diagnosis.worst[0]
        return (
            f"{count}, {diagnosis.failed.size} failed",
            f"{shown.size} drawn, bounds dashed; the worst is {worst.index}: {worst.cause}",
        )
    rest = diagnosis.unfinished.size
    verdict = f"{rest} at the last iteration" if rest else "converged"
    return f"{count}, {verdict}", f"{shown.size} drawn, bounds dashed"


def _draw_panel(
    axes: Axes, batch: HostBatch, panel: Panel, shown: np.ndarray, diagnosis: Diagnosis
) -> None:
    values = np.asarray(batch.solution.z)[:, panel.rows]
    alpha = float(np.clip(8 / max(shown.size, 1), 0.25, 0.9))
    how = "steps-post" if panel.held else "default"
    for b in shown.tolist():
        status = MPCStatus(int(batch.status[b]))
        failed = status > MPCStatus.MAX_ITER
        (line,) = axes.plot(*panel.over_time(values[b]), color=COLORS[status], drawstyle=how)
        line.set(linewidth=1.4 if failed else 0.9, alpha=0.9 if failed else alpha)
    for bound in (panel.lower, panel.upper):
        (line,) = axes.plot(*panel.over_time(_finite(bound)), color=style.INK, drawstyle=how)
        line.set(linewidth=1, linestyle=(0, (5, 3)))
    low, high = _limits(values[shown], batch.status[shown], panel)
    horizon = max(batch.problem.horizon, 1)
    axes.set(ylim=(low, high), xlim=(0, horizon))
    _mark_worst(axes, diagnosis, horizon)
    style.panel_title(axes, panel.name)
    axes.set_xlabel("node", labelpad=1)
    _whole_numbers(axes)
    style.tidy(axes)


def _mark_worst(axes: Axes, diagnosis: Diagnosis, horizon: int) -> None:
    """The node at which the worst instance violates a row most; its name lies inside the panel."""
    failed = (one for one in diagnosis.worst if one.status > MPCStatus.MAX_ITER)
    worst = next((one for one in failed if one.row is not None), None)
    if worst is None or worst.node is None:
        return
    axes.axvline(worst.node, color=style.ACCENT, linewidth=1, linestyle=(0, (1, 2)))
    late = worst.node > horizon / 2
    axes.annotate(
        f"{worst.row}, instance {worst.index}",
        (worst.node, 0),
        xycoords=("data", "axes fraction"),
        xytext=(-4 if late else 4, 4),
        ha="right" if late else "left",
        textcoords="offset points",
        fontsize=8,
        color=style.ACCENT,
    )


def _limits(values: np.ndarray, status: np.ndarray, panel: Panel) -> tuple[float, float]:
    """What good instances and bounds need, and some of what failed ones do."""
    good = status <= MPCStatus.MAX_ITER
    usual = values[good] if good.any() else values
    usual = usual[np.isfinite(usual)]
    bounds = np.concatenate([panel.lower, panel.upper])
    usual = np.concatenate([usual, bounds[np.isfinite(bounds)]])
    if not usual.size:
        return -1.0, 1.0
    low, high = float(usual.min()), float(usual.max())
    size = max(high - low, 1e-3)
    everything = values[np.isfinite(values)]
    low = max(min(low, everything.min(initial=low)), low - size)
    high = min(max(high, everything.max(initial=high)), high + size)
    return low - 0.16 * size, high + 0.08 * size  # room for a mark below


def _draw_history(axes: Axes, batch: HostBatch, shown: np.ndarray) -> None:
    """Residuals of the optimality conditions over the iterations."""
    assert batch.solution.history is not None
    residuals = np.asarray(batch.solution.history.kkt_residual)
    iterations = np.arange(1, residuals.shape[1] + 1)
    for b in shown.tolist():
        color = COLORS[MPCStatus(int(batch.status[b]))]
        line = np.where(residuals[b] > 0, residuals[b], np.nan)
        axes.plot(iterations, line, color=color, linewidth=0.9, alpha=0.6, marker=".", markersize=3)
    _decades(axes, residuals[shown])
    axes.set_xlabel("iteration", labelpad=1)
    _whole_numbers(axes)
    style.panel_title(axes, "KKT residual")
    style.tidy(axes)


def _draw_counts(axes: Axes, diagnosis: Diagnosis) -> None:
    """Instances per status, the name above its bar."""
    counts = diagnosis.counts
    for place, (name, count) in enumerate(counts.items()):
        axes.barh(-place, count, color=COLORS[MPCStatus[name]], height=0.34)
        axes.text(0, 0.24 - place, f"{count}  {name}", fontsize=9, color=style.INK)
    axes.set(xlim=(0, 1.05 * max(counts.values())), ylim=(-max(len(counts), 3) + 0.6, 0.6))
    style.panel_title(axes, "instances per status")
    style.tidy(axes)
    axes.spines["bottom"].set_visible(False)
    axes.set(xticks=[], yticks=[])


def _decades(axes: Axes, values: np.ndarray) -> None:
    """A logarithmic axis over whole decades: labels between them would not fit."""
    from matplotlib.ticker import NullFormatter

    usable = values[np.isfinite(values) & (values > 0)]
    decades = np.log10(usable) if usable.size else np.zeros(1)
    low = np.floor(decades.min())
    axes.set_yscale("log")
    axes.set_ylim(10.0**low, 10.0 ** max(np.ceil(decades.max()), low + 1))
    axes.yaxis.set_minor_formatter(NullFormatter())


def _whole_numbers(axes: Axes) -> None:
    from matplotlib.ticker import MaxNLocator

    axes.xaxis.set_major_locator(MaxNLocator(integer=True))


def _finite(values: np.ndarray) -> np.ndarray:
    return np.where(np.isfinite(values), values, np.nan)
