"""`plot` draws what a solution holds: trajectories, bounds, failures, the worst node."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from diagnosis_cases import BATCH, TROUBLES, corridor, troubled
from matplotlib.colors import to_rgba
from matplotlib.figure import Figure

import warpmpc as wm
from warpmpc.mpc.diagnosis.host_batch import HostBatch
from warpmpc.mpc.types import History, MPCWarmStart, QPState, TrajectoryLayout
from warpmpc.viz import style
from warpmpc.viz.solution_figure import COLORS, panels_of


@pytest.fixture(scope="module")
def solution():
    """What a solver might return for the troubled batch; none is needed to draw it."""
    problem = corridor().problem()
    rng = np.random.default_rng(1)
    z = rng.uniform(-1, 1, (BATCH, problem.n_vars)).astype("float32")
    z[4] = np.nan
    status = np.zeros(BATCH, dtype=np.int32)
    for b, (_, name, _) in TROUBLES.items():
        status[b] = wm.MPCStatus[name]
    number = np.full(BATCH, 0.1, dtype="float32")
    rows = np.zeros((BATCH, problem.n_cons), dtype="float32")
    residuals = 10.0 ** -np.arange(6)[None].repeat(BATCH, axis=0)
    return wm.Solution(
        z=z, y=rows, cost=number, status=status, iterations=np.full(BATCH, 6), history=None,
        qp_iterations=np.full(BATCH, 60), primal_residual=number, dual_residual=number,
        kkt_residual=number, step_length=number, accepted=status == 0, violation=number,
        theta=number, warm_start=MPCWarmStart(z, QPState(np.zeros_like(z), rows, rows)),
        layout=TrajectoryLayout(problem),
    ), History(*[residuals] * 5)  # fmt: skip


def test_panels_and_bounds(solution):
    x0, params = troubled()
    panels = panels_of(HostBatch.of(solution[0], x0, params))
    assert [panel.name for panel in panels] == ["place", "speed", "force"]
    place, speed, force = panels
    assert (place.lower == -2).all()
    assert (place.upper == 2).all()
    assert np.isnan(speed.lower).all()
    assert (force.upper == 2).all()
    assert force.nodes.tolist() == [0, 1, 2, 3]
    assert (place.held, force.held) == (False, True)


def test_figure_shows_the_numbers(solution):
    x0, params = troubled()
    figure = wm.plot(solution[0], x0, params)
    assert isinstance(figure, Figure)
    place, _, force, counts = figure.axes
    lines = [line for line in place.lines if len(line.get_xdata()) == 5]
    drawn = np.array([line.get_ydata() for line in lines[:BATCH]])
    order = [b for b in range(BATCH) if b not in TROUBLES] + sorted(TROUBLES)
    np.testing.assert_array_equal(drawn, np.asarray(solution[0]["place"])[order, :, 0])
    colors = [to_rgba(line.get_color()) for line in lines[:BATCH]]
    wanted = [to_rgba(COLORS[wm.MPCStatus(int(solution[0].status[b]))]) for b in order]
    assert colors == wanted
    bounds = np.array([line.get_ydata() for line in lines[BATCH:]])
    np.testing.assert_array_equal(bounds, np.array([[-2] * 5, [2] * 5]))
    assert force.lines[0].get_drawstyle() == "steps-post"
    assert force.lines[0].get_xdata().tolist() == [0, 1, 2, 3, 4]  # held until the last node
    assert force.lines[0].get_ydata()[-1] == force.lines[0].get_ydata()[-2]
    assert [bar.get_width() for bar in counts.patches] == [3, 2, 2, 3]
    (mark,) = place.texts
    assert "instance" in mark.get_text()


def test_history_has_a_panel(solution):
    x0, params = troubled()
    recorded = replace(solution[0], history=solution[1])
    axes = wm.plot(recorded, x0, params).axes
    assert [panel.get_title("left") for panel in axes][3] == "KKT residual"
    assert axes[3].get_yscale() == "log"
    assert axes[3].get_ylim() == (1e-5, 1)


def test_residuals_within_a_decade_have_labels_that_fit(solution):
    history = History(*[np.full((BATCH, 6), 3e5)] * 5)
    figure = wm.plot(replace(solution[0], history=history))
    figure.canvas.draw()
    axis = figure.axes[3].yaxis
    assert figure.axes[3].get_ylim() == (1e5, 1e6)
    assert not any(label.get_text() for label in axis.get_ticklabels(minor=True))


@pytest.mark.parametrize("node", [0, 4])
def test_the_mark_lies_inside_its_panel(solution, node):
    x0, params = troubled()
    problem = solution[0].layout.problem
    z = np.zeros_like(solution[0].z)
    z[1, problem.names["place"][node]] = 5.0  # instance 1, far outside of the walls
    figure = wm.plot(replace(solution[0], z=z), x0, params)
    figure.canvas.draw()
    for axes in figure.axes[:3]:
        (mark,) = axes.texts
        assert "instance" in mark.get_text()
        panel, text = axes.get_window_extent(), mark.get_window_extent()
        assert panel.x0 <= text.x0
        assert text.x1 <= panel.x1


def test_few_instances_and_all_good(solution):
    good = replace(solution[0], status=np.zeros(BATCH, dtype=np.int32))
    figure = wm.plot(good, instances=3)
    assert len(figure.axes[0].lines) == 3 + 2
    assert figure.texts[0].get_text() == f"{BATCH} instances, converged"
    with pytest.raises(wm.ProblemError, match="at least 1, got 0"):
        wm.plot(good, instances=0)


def test_picture_is_written(solution, tmp_path):
    x0, params = troubled()
    wm.plot(replace(solution[0], history=solution[1]), x0, params).savefig(tmp_path / "a.png")
    assert (tmp_path / "a.png").stat().st_size > 10_000


def test_without_matplotlib(solution, monkeypatch):
    monkeypatch.setattr(style, "find_spec", lambda name: None)
    with pytest.raises(wm.WarpMPCError, match=r"pip install matplotlib"):
        wm.plot(solution[0])
