"""`warpmpc bench ldl`: complete and true rows, nothing silent, a plot from the file alone."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
from matplotlib.image import imread

from warpmpc._errors import ProblemError, SettingsError
from warpmpc.cli.main import main
from warpmpc_bench.common import plot, runner, sweep
from warpmpc_bench.common.record import append_row, read_rows
from warpmpc_bench.ldl import bench as ldl
from warpmpc_bench.ldl import plot as ldl_plot
from warpmpc_bench.ldl import report as ldl_report
from warpmpc_bench.ldl import variants as ldl_variants
from warpmpc_bench.ldl.baselines import BASELINES
from warpmpc_bench.ldl.bench import BenchSettings, plan
from warpmpc_bench.ldl.case import Case

TIMING_FIELDS = {
    "median_s", "best_s", "calls", "repeats", "first_call_s", "per_s", "bytes", "bytes_per_s",
    "floor_fraction", "speedup_over_qdldl",
}  # fmt: skip
TILED = {"full", "stage_order", "no_window", "no_levels", "no_segments"}


@pytest.fixture(scope="module")
def bench(tmp_path_factory):
    """One small run of the command: its rows, and the folder with its files."""
    folder = tmp_path_factory.mktemp("bench")
    files = ["--json", str(folder / "rows.jsonl"), "--plot", str(folder / "rates.png")]
    code = main(["bench", "ldl", "--batch", "3,40", "--repeats", "2", *files])
    return code, read_rows(folder / "rows.jsonl"), folder


def measured(rows, kind="variant"):
    return [row for row in rows if row["kind"] == kind and not row["skipped"]]


def numbers(value):
    """All floats in a row, at any depth."""
    if isinstance(value, dict):
        return [number for part in value.values() for number in numbers(part)]
    return [value] if isinstance(value, float) else []


def test_one_row_per_step(bench):
    code, rows, _ = bench
    assert code == 0
    steps = plan(BenchSettings(batches=(3, 40)))
    assert [(row["solver"], row["batch"], row["dtype"]) for row in rows] == steps
    assert rows[0]["solver"] == "qdldl"
    variants = {(row["solver"], row["batch"]) for row in measured(rows)}
    assert variants == {(name, size) for name in ldl_variants.VARIANTS for size in (3, 40)}
    assert {row["solver"] for row in rows if row["kind"] == "baseline"} == set(BASELINES)


def test_rows_are_complete_and_finite(bench):
    _, rows, _ = bench
    assert len({frozenset(row) for row in rows}) == 1  # the same fields in all of them
    assert all(math.isfinite(number) for row in rows for number in numbers(row))
    for row in measured(rows):
        assert row["correct"] is True
        assert row["generator"] == f"numpy.random.default_rng({1 + row['batch']})"
        for name in ("factor", "solve"):
            timing = row[name]
            assert set(timing) == TIMING_FIELDS
            assert None not in timing.values()
            assert timing["per_s"] == pytest.approx(row["batch"] / timing["median_s"])
            assert 0 < timing["best_s"] <= timing["median_s"] < timing["first_call_s"]
        assert bool(row["solve_tiles"]) == (row["solver"] in TILED)
        assert row["settings"]["nnz_L"] >= 5732
        for field in ("date", "commit", "device", "platform", "versions", "copy_bytes_per_s"):
            assert row[field]


def test_numbers_of_a_row(bench):
    _, rows, _ = bench
    row = next(row for row in measured(rows) if row["solver"] == "full" and row["batch"] == 40)
    assert row["factor"]["bytes"] == 40 * 4 * (3156 + 5732 + 1080)
    assert row["solve"]["bytes"] == 40 * 4 * (2 * 5732 + 5 * 1080)
    assert row["memory"]["storage_bytes"] == 40 * 48512
    # 40 systems fill 64 lanes: K and the right-hand sides, their padded copies, the factor.
    assert 1 < row["memory"]["ratio"] < 2
    reference = next(row for row in rows if row["solver"] == "qdldl")
    expected = row["solve"]["per_s"] / reference["solve"]["per_s"]
    assert row["solve"]["speedup_over_qdldl"] == pytest.approx(expected)
    assert reference["batch"] == 512
    naive = next(row for row in measured(rows) if row["solver"] == "batch_first")
    assert naive["settings"]["layout"] == "batch_first"
    assert naive["memory"]["ratio"] == pytest.approx(1, abs=0.01)


def test_accuracy_is_measured(bench):
    _, rows, _ = bench
    for row in measured(rows):
        accuracy = row["accuracy"]
        assert 1e-8 < accuracy["residual"] < 5e-6
        assert 1e-8 < accuracy["difference"] < 1e-5
        assert (accuracy["checked"], accuracy["failed"]) == (row["batch"], 0)


def test_missing_package_is_a_row(bench):
    _, rows, _ = bench
    if BASELINES["cudss"].obstacle() is None:
        pytest.skip("nvmath-python is installed")
    (row,) = [row for row in rows if row["solver"] == "cudss"]
    assert row["skipped"] == BASELINES["cudss"].obstacle()
    assert row["correct"] is row["factor"] is row["accuracy"] is None


def test_plot_has_ink_and_a_free_border(bench):
    _, _, folder = bench
    image = imread(folder / "rates.png")[..., :3]
    assert 0.01 < (image < 0.99).any(axis=2).mean() < 0.5
    edge = np.concatenate([image[0], image[-1], image[:, 0], image[:, -1]])
    assert (edge > 0.99).all()


def test_figure_draws_every_variant_and_the_roof(bench):
    _, rows, _ = bench
    factor, solve = ldl_plot.figure_of(plot.latest(rows)).axes
    names = list(ldl_variants.VARIANTS)
    for axes, name in ((factor, "factor"), (solve, "solve")):
        labels = [line.get_label().partition(":")[0] for line in axes.get_lines()]
        assert [label for label in labels if label in names] == names
        full = axes.get_lines()[0]
        drawn = [row for row in measured(rows) if row["solver"] == "full"]
        np.testing.assert_allclose(full.get_ydata(), [row[name]["per_s"] for row in drawn])
        assert any("memory roof" in text.get_text() for text in axes.texts)
    assert len(solve.get_lines()) == len(factor.get_lines()) + len(TILED)


def test_plot_shows_the_latest_correct_rows(bench, tmp_path):
    _, rows, _ = bench
    newer = json.loads(json.dumps(rows[-1]))
    newer["factor"]["per_s"] = 1234.0
    wrong = {**newer, "correct": False, "batch": 99}
    other = {**newer, "device": "something else", "batch": 77}
    shown = plot.latest([other, *rows, newer, wrong])
    assert newer in shown
    assert not {77, 99} & {row["batch"] for row in shown}
    append_row(tmp_path / "wrong.jsonl", wrong)
    with pytest.raises(ProblemError, match="no correct measurement"):
        ldl_plot.plot_file(tmp_path / "wrong.jsonl", tmp_path / "plot.png")


def test_wrong_solution_is_noticed(monkeypatch, tmp_path, capsys):
    right = ldl_variants.LDLSolver.solve
    monkeypatch.setattr(ldl_variants.LDLSolver, "solve", lambda *a: right(*a) * (1 + 1e-4))
    arguments = ["--batch", "2", "--variants", "full", "--repeats", "1", "--no-baselines"]
    arguments += ["--json", str(tmp_path / "rows.jsonl"), "--plot", str(tmp_path / "plot.png")]
    assert main(["bench", "ldl", *arguments]) == 1
    (row,) = read_rows(tmp_path / "rows.jsonl")
    assert row["correct"] is False
    assert row["accuracy"]["residual"] > 5e-6
    text = capsys.readouterr().out
    assert "WRONG" in text
    assert "1 of 1 rows wrong" in text
    assert "best float32" not in text
    assert not (tmp_path / "plot.png").exists()


@pytest.mark.parametrize("spoil", ["nan", "status"])
def test_failures_are_not_correct(spoil):
    case = Case(3, "float64")
    x = np.stack(
        [np.linalg.solve(dense(K), b) for K, b in zip(case.matrices, case.rhs, strict=True)]
    )
    assert case.accuracy(x, np.zeros(3, dtype=int)).correct
    status = np.array([0, 1, 0]) if spoil == "status" else np.zeros(3, dtype=int)
    if spoil == "nan":
        x[1] = np.nan
    accuracy = case.accuracy(x, status)
    assert not accuracy.correct
    assert (accuracy.residual is None) == (spoil == "nan")
    assert accuracy.failed == status.sum()


def dense(upper):
    return upper.toarray() + np.triu(upper.toarray(), 1).T


def test_float64():
    (row,) = ldl.run(BenchSettings((33,), ("float64",), ("full",), 1, baselines=False))
    assert row["correct"]
    assert row["accuracy"]["residual"] < 1e-12
    assert row["factor"]["bytes"] == 33 * 8 * (3156 + 5732 + 1080)
    assert row["factor"]["speedup_over_qdldl"] is None


def test_too_little_memory_is_a_row(monkeypatch):
    monkeypatch.setattr(runner, "device_memory_bytes", lambda: 10_000_000)
    settings = BenchSettings((2, 100_000), variants=("full",), repeats=1, baselines=False)
    small, large = ldl.run(settings)
    assert small["correct"]
    assert "more than 80% of the 0.0 GB of this device" in large["skipped"]
    assert large["factor"] is None
    assert "skipped: needs about" in ldl_report.line(large)


def test_broken_baseline_does_not_end_the_run(monkeypatch):
    def fail(case, repeats):
        raise RuntimeError("library is broken")

    broken = {name: object.__new__(type(entry)) for name, entry in BASELINES.items()}
    for name, entry in BASELINES.items():
        broken[name].__dict__.update(entry.__dict__, measure=fail)
    monkeypatch.setattr(ldl, "BASELINES", broken)
    rows = list(ldl.run(BenchSettings((2,), variants=("full",), repeats=1)))
    assert [row["solver"] for row in rows] == ["qdldl", "full", "dense", "cudss"]
    assert rows[0]["skipped"] == rows[2]["skipped"] == "failed: RuntimeError: library is broken"
    assert rows[1]["correct"]
    assert rows[1]["factor"]["speedup_over_qdldl"] is None


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--variants", "full,fastest"], "Unknown variant 'fastest'"),
        (["--batch", "12,many"], "whole numbers like 512,2048, got '12,many'"),
        (["--batch", "0"], "at least 1, got 0"),
        (["--dtype", "float16"], "got 'float16'"),
        (["--repeats", "0"], "repeats must be at least 1"),
        (["--batch", ","], "Nothing to measure"),
    ],
)
def test_mistakes_are_one_line(capsys, tmp_path, arguments, message):
    assert main(["bench", "ldl", "--json", str(tmp_path / "rows.jsonl"), *arguments]) == 2
    captured = capsys.readouterr()
    assert message in captured.err
    assert captured.err.count("\n") == 1
    assert not (tmp_path / "rows.jsonl").exists()


def test_settings_choose_batches_by_device():
    assert BenchSettings().sizes in BenchSettings.default_batches.values()
    assert BenchSettings((40, 3, 40)).sizes == (3, 40)
    with pytest.raises(SettingsError, match="Nothing to measure"):
        BenchSettings(variants=(), baselines=False)
    # Small batches only for slow baselines, but at least one measurement of each.
    large = plan(BenchSettings((100_000,), variants=("full",)))
    assert [step.batch for step in large if step.solver == "dense"] == [
        BASELINES["dense"].largest[sweep.platform()]
    ]
