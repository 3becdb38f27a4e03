"""Figures are drawn, and drawn from the right numbers."""

from __future__ import annotations

import numpy as np
import pytest
from matplotlib.image import imread

from warpmpc._errors import ProblemError, SettingsError, WarpMPCError
from warpmpc.symbolic.segments import padded_work
from warpmpc.systems.patterns import cartpole, linear_adjoint
from warpmpc.viz import FIGURES, analyse, plot_pattern, style
from warpmpc.viz.columns import column_figure
from warpmpc.viz.levels import level_figure
from warpmpc.viz.sparsity import sparsity_figure


@pytest.mark.parametrize("ordering", ["amd", "stage", "natural"])
@pytest.mark.parametrize("build", [cartpole, linear_adjoint])
def test_every_figure_is_a_picture(tmp_path, build, ordering):
    files = plot_pattern(build(5), tmp_path / "new", ordering, segments=6)
    assert [path.name for path in files] == [
        f"{build.__name__}_{ordering}_{figure}.png" for figure in FIGURES
    ]
    for path in files:
        image = imread(path)[..., :3]
        height, width, _ = image.shape
        assert 800 <= height <= 1600
        assert 2000 <= width <= 4000
        assert 0.005 < (image < 0.99).any(axis=2).mean() < 0.6  # ink: neither blank nor flooded
        # The border is free: nothing was cut off.
        edge = np.concatenate([image[0], image[-1], image[:, 0], image[:, -1]])
        assert (edge > 0.99).all()


def test_sparsity_figure_shows_every_entry():
    analysis = analyse(cartpole(6), "stage")
    assembled, permuted = sparsity_figure(analysis).axes[:2]
    dots = [points.get_offsets().shape[0] for points in assembled.collections]
    assert dots == [analysis.nnz_K_full]
    dots = [points.get_offsets().shape[0] for points in permuted.collections]
    assert dots == [analysis.fill, analysis.nnz_K_full]
    assert analysis.elimination.nnz_L - analysis.fill == (
        analysis.elimination.K_pattern.nnz - analysis.elimination.n
    )


def test_column_figure_shows_counts_and_segments():
    analysis = analyse("ldl_benchmark")
    histogram, columns = column_figure(analysis).axes
    heights = np.array([bar.get_height() for bar in histogram.patches])
    assert heights.sum() == 1080
    assert heights @ np.arange(heights.size) == 5732
    padded, counts, segments = (stairs.get_data() for stairs in columns.patches)
    assert counts.values.sum() == 5732
    assert len(segments.values) == 16
    work = padded_work(analysis.elimination.L_pattern.col_counts, analysis.segment_bounds)
    assert padded.values.sum() == work
    assert analysis.segment_padding == pytest.approx(1 - 5732 / work)


def test_level_figure_shades_the_fused_levels():
    analysis = analyse("ldl_benchmark")
    forward = level_figure(analysis).axes[0]
    *shaded, bars = forward.patches
    assert bars.get_data().values.sum() == 1080
    assert len(bars.get_data().values) == 287
    assert sum(span.get_width() for span in shaded) == analysis.forward.fused.sum()
    assert analysis.forward.counts[analysis.forward.fused].max() <= 2
    assert analysis.forward.counts[~analysis.forward.fused].min() > 2


def test_ranges():
    mask = np.array([1, 1, 0, 1, 0, 0, 1], dtype=bool)
    assert style.ranges(mask) == [(0, 2), (3, 4), (6, 7)]
    assert style.ranges(np.zeros(3, dtype=bool)) == []


def test_analysis_is_reused(tmp_path):
    files = plot_pattern(analyse(cartpole(4), "stage", 4), tmp_path)
    assert files[0].name == "cartpole_stage_kkt.png"


def test_errors(tmp_path, monkeypatch):
    with pytest.raises(ProblemError, match="Unknown pattern 'nothing'"):
        plot_pattern("nothing", tmp_path)
    with pytest.raises(SettingsError, match="Unknown ordering 'best'"):
        plot_pattern("cartpole", tmp_path, "best")
    with pytest.raises(SettingsError, match="at least 1, got 0"):
        plot_pattern("cartpole", tmp_path, segments=0)
    occupied = tmp_path / "file"
    occupied.touch()
    with pytest.raises(SettingsError, match="is not a folder"):
        plot_pattern(cartpole(3), occupied)
    monkeypatch.setattr(style, "find_spec", lambda name: None)
    with pytest.raises(WarpMPCError, match=r"pip install matplotlib"):
        plot_pattern("cartpole", tmp_path)
