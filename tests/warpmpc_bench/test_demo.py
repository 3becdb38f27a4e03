"""`warpmpc demo`: a summary that is true, a picture, and an exit code that tells."""

from __future__ import annotations

import numpy as np
import pytest
from matplotlib.image import imread
from terminals import Terminal

from warpmpc._conventions import FactorStatus
from warpmpc.cli.main import main
from warpmpc.cli.progress import Progress
from warpmpc_bench.common import baseline
from warpmpc_bench.demos import ldl as ldl_demo
from warpmpc_bench.demos import qp as qp_demo
from warpmpc_bench.demos import qp_summary as demo_qp
from warpmpc_bench.demos.ldl import run_demo
from warpmpc_bench.demos.ldl_summary import format_demo


@pytest.fixture(scope="module")
def result():
    return run_demo(40)


def test_demo_command(capsys, tmp_path):
    picture = tmp_path / "new" / "demo.png"
    assert main(["demo", "ldl", "--batch", "40", "--figure", str(picture)]) == 0
    text = capsys.readouterr().out
    for part in (
        "40 KKT systems", "dimension 1080, 3156 entries", "nnz(L) = 5732, of which 3656 fill",
        "1 NON_FINITE, 38 OK, 1 ZERO_PIVOT (planted: zero pivot in 13, not finite in 26)",
        "all other solutions are bit-identical", "as it should be", str(picture),
    ):  # fmt: skip
        assert part in text
    image = imread(picture)[..., :3]
    assert 0.02 < (image < 0.99).any(axis=2).mean() < 0.5
    edge = np.concatenate([image[0], image[-1], image[:, 0], image[:, -1]])
    assert (edge > 0.99).all()


def test_broken_instances_are_found(result):
    assert result.correct
    assert result.status[13] == FactorStatus.ZERO_PIVOT
    assert result.status[26] == FactorStatus.NON_FINITE
    assert (np.delete(result.status, [13, 26]) == FactorStatus.OK).all()
    assert result.residuals.size == 40
    assert 1e-8 < result.residuals.max() < 5e-6
    assert result.qdldl_per_s["factor"] > 0


@pytest.mark.parametrize(
    "change",
    [
        {"unharmed": False},
        {"residuals": np.array([1e-7, 1e-5])},
        {"status": np.zeros(40, dtype=int)},
    ],
)
def test_wrong_results_are_told(result, change):
    wrong = ldl_demo.DemoResult(**{**result.__dict__, **change})
    assert not wrong.correct
    assert "WRONG RESULT" in format_demo(wrong)


def test_wrong_result_is_the_exit_code(monkeypatch, tmp_path, result, capsys):
    wrong = ldl_demo.DemoResult(**{**result.__dict__, "unharmed": False, "qdldl_per_s": None})
    monkeypatch.setattr(ldl_demo, "run_demo", lambda batch: wrong)
    assert main(["demo", "ldl", "--figure", str(tmp_path / "demo.png")]) == 1
    text = capsys.readouterr().out
    assert "all other solutions are DIFFERENT FROM" in text
    assert "pip install qdldl" in text
    assert (tmp_path / "demo.png").exists()


def test_demo_without_qdldl(monkeypatch):
    monkeypatch.setattr(baseline, "find_spec", lambda name: None)
    assert ldl_demo._qdldl_rates(40) is None


def test_batch_too_small(capsys):
    assert main(["demo", "ldl", "--batch", "3"]) == 2
    assert "at least 4, got 3" in capsys.readouterr().err


def test_progress_is_for_terminals():
    for tty in (True, False):
        stream = Terminal(tty=tty)
        progress = Progress(4, stream)
        progress.show(1, "full, batch 32")
        progress.clear()
        assert ("[######..................] 1/4 full, batch 32" in stream.text) == tty
        assert bool(stream.text) == tty


@pytest.fixture(scope="module")
def qp_result():
    return qp_demo.run_demo(40)


class TestQPs:
    def test_command(self, qp_result, monkeypatch, capsys, tmp_path):
        monkeypatch.setattr(qp_demo, "run_demo", lambda batch: qp_result)
        picture = tmp_path / "qp.png"
        assert main(["demo", "qp", "--figure", str(picture)]) == 0
        text = capsys.readouterr().out
        for part in (
            "40 linear MPC problems", "staged", "1 INVALID_BOUNDS, 1 NON_FINITE, 38 SOLVED",
            "NON_FINITE in 13, INVALID_BOUNDS in 26", "bit-identical", "as it should be",
        ):  # fmt: skip
            assert part in text
        image = imread(picture)[..., :3]
        assert 0.01 < (image < 0.99).any(axis=2).mean() < 0.5

    @pytest.mark.parametrize(
        "change",
        [
            {"unharmed": False},
            {"excess": np.array([0.5, 2.1])},
            {"status": np.zeros(40, dtype=int)},
        ],
    )
    def test_wrong_results_are_told(self, qp_result, change):
        wrong = qp_demo.QPDemoResult(**{**qp_result.__dict__, **change})
        assert qp_result.correct
        assert not wrong.correct
        assert "WRONG RESULT" in demo_qp.format_demo(wrong)

    def test_batch_too_small(self, capsys):
        assert main(["demo", "qp", "--batch", "3"]) == 2
        assert "at least 4, got 3" in capsys.readouterr().err
