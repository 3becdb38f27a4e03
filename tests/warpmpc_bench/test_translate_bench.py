"""`warpmpc bench translate`: every phase timed, every row checked against CasADi, a plot."""

from __future__ import annotations

import math
import os
import sys
from types import ModuleType

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from matplotlib.image import imread

from warpmpc._errors import ProblemError, SettingsError
from warpmpc.cli.main import main
from warpmpc.codegen.emit_jax import jax_function
from warpmpc.codegen.from_casadi import translate as translate_function
from warpmpc.engines.runtime.loading import empty_caches
from warpmpc_bench.common.record import append_row, read_rows
from warpmpc_bench.translate import bench as translate
from warpmpc_bench.translate import plot as translate_plot
from warpmpc_bench.translate import report as translate_report
from warpmpc_bench.translate import variants as translate_variants
from warpmpc_bench.translate.baselines import BASELINES, measure_jaxadi
from warpmpc_bench.translate.bench import TranslateSettings, expected_seconds, plan
from warpmpc_bench.translate.case import Case

LENGTHS = (50, 200)


@pytest.fixture(scope="module")
def bench(tmp_path_factory):
    """One small run of the command: its rows, and the folder with its files."""
    folder = tmp_path_factory.mktemp("bench")
    arguments = ["--batch", "3,40", "--repeats", "2", "--lengths", ",".join(map(str, LENGTHS))]
    files = ["--json", str(folder / "rows.jsonl"), "--plot", str(folder / "times.png")]
    code = main(["bench", "translate", *arguments, *files])
    return code, read_rows(folder / "rows.jsonl"), folder


def measured(rows, kind="variant"):
    return [row for row in rows if row["kind"] == kind and not row["skipped"]]


def test_one_row_per_step(bench):
    code, rows, _ = bench
    assert code == 0
    steps = plan(TranslateSettings(batches=(3, 40), lengths=LENGTHS))
    assert [(row["solver"], row["batch"], row["dtype"]) for row in rows] == steps
    found = {(row["solver"], row["batch"], row["system"]["length"]) for row in measured(rows)}
    assert found == {(name, b, n) for name in ("native", "jax") for b in (3, 40) for n in LENGTHS}
    lengths = [row["system"]["length"] for row in rows]
    assert lengths == sorted(lengths)


def test_rows_are_complete(bench):
    _, rows, _ = bench
    assert len({frozenset(row) for row in rows}) == 1
    for row in measured(rows):
        assert row["correct"] is True
        assert row["export_s"] > 0
        assert row["compile_s"] > 0
        assert row["system"]["instructions"] >= row["system"]["length"]
        assert "export_s" not in row["settings"]
        assert row["settings"]["result_dtype"] == row["dtype"]
        timing = row["run"]
        assert timing["per_s"] == pytest.approx(row["batch"] / timing["median_s"])
        assert timing["first_call_s"] == pytest.approx(row["export_s"] + row["compile_s"])
        assert math.isfinite(timing["speedup_over_casadi"])
        assert row["versions"]["casadi"]
        assert "jaxadi" in row["versions"]


def test_accuracy_is_measured(bench):
    _, rows, _ = bench
    for row in measured(rows):
        assert 1e-9 < row["accuracy"]["difference"] < 5e-6
        assert row["accuracy"]["checked"] == row["batch"]
    assert all(row["accuracy"]["difference"] == 0 for row in measured(rows, "baseline")
               if row["solver"] == "casadi")  # fmt: skip


def test_rates_refer_to_casadi_at_the_same_length(bench):
    _, rows, _ = bench
    for length in LENGTHS:
        of_length = [row for row in rows if row["system"]["length"] == length]
        (casadi,) = (row for row in of_length if row["solver"] == "casadi")
        for row in measured(of_length):
            ratio = row["run"]["per_s"] / casadi["run"]["per_s"]
            assert row["run"]["speedup_over_casadi"] == pytest.approx(ratio)


def test_missing_package_is_one_row(bench):
    _, rows, _ = bench
    if BASELINES["jaxadi"].obstacle() is None:
        pytest.skip("jaxadi is installed")
    (row,) = [row for row in rows if row["solver"] == "jaxadi"]
    assert row["skipped"] == "package jaxadi is not installed (`pip install jaxadi`)"


def test_plot(bench):
    _, rows, folder = bench
    image = imread(folder / "times.png")[..., :3]
    assert 0.01 < (image < 0.99).any(axis=2).mean() < 0.5
    figure = translate_plot.figure_of(translate_plot.latest(rows))
    export, compiled, run = figure.axes
    assert {line.get_label() for line in export.get_lines()} >= {
        "native Warp kernel",
        "JAX function",
    }
    assert len(run.get_lines()) == len(compiled.get_lines()) + 1  # CasADi needs no compilation
    shown = [row for row in measured(rows) if row["solver"] == "jax" and row["batch"] == 40]
    (line,) = (line for line in compiled.get_lines() if line.get_label() == "JAX function")
    np.testing.assert_allclose(line.get_ydata(), [row["compile_s"] for row in shown])


def test_nothing_to_draw(bench, tmp_path):
    _, rows, _ = bench
    append_row(tmp_path / "rows.jsonl", {**rows[-1], "correct": False})
    with pytest.raises(ProblemError, match="no correct measurement of an emitter"):
        translate_plot.plot_file(tmp_path / "rows.jsonl", tmp_path / "plot.png")


def test_wrong_results_are_noticed(monkeypatch, tmp_path, capsys):
    def wrong(program):
        right = jax_function(program)
        return lambda *arrays: (right(*arrays)[0] * (1 + 1e-3),)

    monkeypatch.setattr(translate_variants, "jax_function", wrong)
    arguments = ["--batch", "2", "--emitters", "jax", "--lengths", "30", "--no-baselines"]
    arguments += ["--json", str(tmp_path / "rows.jsonl"), "--plot", str(tmp_path / "plot.png")]
    assert main(["bench", "translate", *arguments]) == 1
    text = capsys.readouterr().out
    assert "WRONG" in text
    assert "1 of 1 rows wrong" in text


def test_float64():
    settings = TranslateSettings((2,), ("float64",), ("jax",), 1, baselines=False, lengths=(60,))
    (row,) = translate.run(settings)
    assert row["correct"]
    assert row["accuracy"]["difference"] < 1e-14


def test_impatience_is_a_row():
    settings = TranslateSettings(
        (2,), variants=("jax",), repeats=1, baselines=False, lengths=(30, 60), patience_s=1e-6
    )
    first, second = translate.run(settings)
    assert first["correct"]
    assert "s to compile, more than 1e-06 s" in second["skipped"]
    assert "skipped: would take" in translate_report.line(second)


@pytest.mark.parametrize(
    ("needed", "seconds"),
    [
        ([], 0),
        ([(100, 3.0)], 3),
        ([(100, 3.0), (200, 5.0)], 21),
        ([(100, 3.0), (200, 2.0)], 2),
        ([(100, 3.0), (200, 5.0), (200, 6.0)], 30),
    ],
)
def test_expected_seconds(needed, seconds):
    assert expected_seconds(needed, 1000) == pytest.approx(seconds)


def test_jaxadi_is_called_as_documented(monkeypatch):
    """A stand-in with its interface: columns in, a list of columns out."""

    def convert(function):
        one = jax_function(translate_function(function))

        def of_columns(x: jax.Array, u: jax.Array) -> list[jax.Array]:
            assert x.shape == u.shape == (8, 1)
            return [one(x[:, 0], u[:, 0])[0][:, None]]

        return of_columns

    stand_in = ModuleType("jaxadi")
    stand_in.convert = convert
    monkeypatch.setitem(sys.modules, "jaxadi", stand_in)
    found = measure_jaxadi(Case(40, 5, "float64"), 1)
    assert found.accuracy.correct
    assert found.settings["compile_s"] > 0


def test_caches_are_empty_and_come_back(monkeypatch):
    for before in ("somewhere", None):
        if before is None:
            monkeypatch.delenv("WARPMPC_CACHE_DIR", raising=False)
        else:
            monkeypatch.setenv("WARPMPC_CACHE_DIR", before)
        with empty_caches():
            inside = os.environ["WARPMPC_CACHE_DIR"]
            assert os.listdir(inside) == []
        assert os.environ.get("WARPMPC_CACHE_DIR") == before
        assert not os.path.exists(inside)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--emitters", "fortran"], "Unknown emitter 'fortran'"),
        (["--lengths", "many"], "--lengths takes whole numbers"),
        (["--lengths", "0"], "Lengths must be at least 1"),
        (["--patience", "0"], "patience must be positive"),
    ],
)
def test_mistakes_are_one_line(capsys, tmp_path, arguments, message):
    assert main(["bench", "translate", "--json", str(tmp_path / "rows.jsonl"), *arguments]) == 2
    assert message in capsys.readouterr().err


def test_settings():
    assert TranslateSettings().sizes in TranslateSettings.default_batches.values()
    with pytest.raises(SettingsError, match="Lengths"):
        TranslateSettings(lengths=())


def test_not_a_number_is_not_correct():
    case = Case(40, 3, "float64")
    assert not case.accuracy(jnp.full((3, 8), jnp.nan)).correct
