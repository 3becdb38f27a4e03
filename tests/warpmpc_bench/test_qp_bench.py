"""`warpmpc bench qp`: true rows of the linear MPC, judged by an oracle that is right itself."""

from __future__ import annotations

import math
import os
import re
from dataclasses import replace

import jax
import numpy as np
import pytest
from qp_cases import OSQP_FIXED, QP, osqp_solve

from warpmpc._errors import SettingsError
from warpmpc.cli.main import main
from warpmpc_bench.common import plot, runner
from warpmpc_bench.common.record import read_rows
from warpmpc_bench.common.timing import use_cores
from warpmpc_bench.qp import baselines as qp_baselines
from warpmpc_bench.qp import bench as qp
from warpmpc_bench.qp import oracle as qp_oracle
from warpmpc_bench.qp import plot as qp_plot
from warpmpc_bench.qp import report as qp_report
from warpmpc_bench.qp import variants as qp_variants
from warpmpc_bench.qp.bench import QPBenchSettings, plan
from warpmpc_bench.qp.case import SETTINGS, QPCase

HORIZON = 2
TIMING_FIELDS = {
    "median_s", "best_s", "calls", "repeats", "first_call_s", "per_s", "bytes", "bytes_per_s",
    "floor_fraction", "speedup_over_osqp", "speedup_over_osqp_shared", "speedup_over_osqp_gradient",
}  # fmt: skip


@pytest.fixture(scope="module")
def bench(tmp_path_factory):
    """One small run of the command: its exit code, its rows, and the folder with its files."""
    folder = tmp_path_factory.mktemp("bench")
    arguments = ["--json", str(folder / "rows.jsonl"), "--plot", str(folder / "rates.png")]
    arguments += ["--horizon", str(HORIZON), "--batch", "2,5", "--dtype", "float64"]
    code = main(["bench", "qp", *arguments, "--engines", "sparse,dense", "--repeats", "1"])
    return code, read_rows(folder / "rows.jsonl"), folder


def measured(rows, solver):
    return [row for row in rows if row["solver"] == solver and not row["skipped"]]


def numbers(value):
    """All floats in a row, at any depth."""
    if isinstance(value, dict):
        return [number for part in value.values() for number in numbers(part)]
    return [value] if isinstance(value, float) else []


class TestRows:
    def test_one_row_per_step(self, bench):
        code, rows, _ = bench
        assert code == 0
        settings = QPBenchSettings((2, 5), ("float64",), ("sparse", "dense"), horizon=HORIZON)
        assert [(row["solver"], row["batch"], row["dtype"]) for row in rows] == plan(settings)
        assert [row["batch"] for row in measured(rows, "sparse")] == [2, 5]
        assert [row["batch"] for row in measured(rows, "sparse_kkt")] == [5]
        assert {"osqp", "osqp_setup", "osqp_shared", "osqp_gradient"} < {r["solver"] for r in rows}

    def test_rows_are_complete_finite_and_correct(self, bench):
        _, rows, _ = bench
        assert len({frozenset(row) for row in rows}) == 1  # the same fields in all of them
        assert all(math.isfinite(number) for row in rows for number in numbers(row))
        for row in (row for row in rows if not row["skipped"]):
            assert row["correct"] is True, row
            timing = qp_report.timing_of(row)
            assert set(timing) == TIMING_FIELDS
            assert timing["per_s"] == pytest.approx(row["batch"] / timing["median_s"])
            assert row["cores"] == len(os.sched_getaffinity(0))
            for field in ("date", "commit", "device", "versions", "copy_bytes_per_s", "generator"):
                assert row[field]
            assert row["system"]["horizon"] == HORIZON
        assert rows[0]["versions"]["osqp"]

    def test_numbers_of_a_row(self, bench):
        _, rows, _ = bench
        row = measured(rows, "sparse")[1]
        assert row["generator"] == "numpy.random.default_rng(6)"
        assert row["accuracy"]["checked"] == 5
        assert set(row["accuracy"]["limits"].values()) == {1e-9}
        assert row["solve"]["bytes"] == 5 * qp_variants.counted_bytes(HORIZON, 8)["total"]
        settings = row["settings"]
        assert (settings["max_iter"], settings["scaling"], settings["check_every"]) == (25, 0, 0)
        for solver in ("osqp", "osqp_shared"):
            (reference,) = measured(rows, solver)
            ratio = row["solve"]["per_s"] / reference["solve"]["per_s"]
            assert row["solve"][f"speedup_over_{solver}"] == pytest.approx(ratio)

    def test_numbers_of_a_gradient(self, bench):
        _, rows, _ = bench
        for method in ("kkt", "lsq"):
            (row,) = measured(rows, f"sparse_{method}")
            assert row["generator"] == "numpy.random.default_rng(16)"
            assert row["settings"]["sensitivity"] == method
            assert row["solve"] is None
            assert row["accuracy"]["differences"]["gradient"] < 1e-6
            assert row["gradient"]["speedup_over_osqp_gradient"] > 0
            assert row["gradient"]["speedup_over_osqp"] is None

    def test_missing_package_is_a_row(self, bench):
        _, rows, _ = bench
        for name in ("jaxopt", "mpax", "qpax"):
            if qp_baselines.BASELINES[name].obstacle():
                (row,) = [row for row in rows if row["solver"] == name]
                assert row["skipped"] == (f"package {name} is not installed (`pip install {name}`)")
                assert f"skipped: package {name}" in qp_report.line(row)

    def test_figure_draws_every_solver(self, bench):
        _, rows, folder = bench
        assert (folder / "rates.png").stat().st_size > 10_000
        (axes,) = qp_plot.figure_of(plot.latest(rows)).axes
        labels = [line.get_label() for line in axes.get_lines()]
        for name in ("sparse", "dense", "sparse_kkt", "sparse_lsq"):
            assert sum(label.startswith(f"{name}:") for label in labels) == 1
        assert sum("OSQP" in label for label in labels) == 4
        assert any("memory roof" in text.get_text() for text in axes.texts)

    def test_summary_names_the_best(self, bench):
        _, rows, _ = bench
        text = qp_report.summary(rows)
        assert re.search(r"QPs/s \((sparse|dense), batch", text)
        assert "times one core of OSQP with a shared factor" in text
        assert re.search(r"QPs with gradient/s \(sparse_(kkt|lsq), batch 5", text)


class TestWrongResults:
    def test_wrong_solution_is_noticed(self, monkeypatch, tmp_path, capsys):
        right = qp_variants.QPSolver.solve

        def wrong(*args):
            solution = right(*args)
            return replace(solution, x=solution.x * (1 + 1e-7))

        monkeypatch.setattr(qp_variants.QPSolver, "solve", wrong)
        arguments = ["--batch", "2", "--engines", "sparse", "--horizon", str(HORIZON)]
        arguments += ["--no-baselines", "--no-gradients", "--dtype", "float64", "--repeats", "1"]
        arguments += ["--json", str(tmp_path / "rows.jsonl"), "--plot", str(tmp_path / "plot.png")]
        assert main(["bench", "qp", *arguments]) == 1
        (row,) = read_rows(tmp_path / "rows.jsonl")
        assert row["correct"] is False
        text = capsys.readouterr().out
        assert "WRONG" in text
        assert "1 of 1 rows wrong" in text
        assert "best float64" not in text
        assert not (tmp_path / "plot.png").exists()

    @pytest.mark.parametrize("spoil", [None, "x", "y", "nan", "status"])
    def test_iterates_are_judged(self, spoil):
        case = QPCase(3, "float64", HORIZON)
        x, y = map(np.stack, zip(*case._reference, strict=True))
        status = np.ones(3, dtype=int)
        if spoil == "x":
            x[1, 5] += 1e-6
        if spoil == "y":
            y[2, 0] *= 1 + 1e-6
        if spoil == "nan":
            x[1] = np.nan
        if spoil == "status":
            status[0] = 4
        accuracy = case.iterates(x, y, status)
        assert accuracy.correct == (spoil is None)
        assert (accuracy.differences["x"] is None) == (spoil == "nan")
        assert accuracy.failed == (spoil == "status")

    @pytest.mark.parametrize("method", ["kkt", "lsq"])
    @pytest.mark.parametrize("spoiled", [None, 0, 1, 2, 3, 4])
    def test_gradients_are_judged(self, method, spoiled):
        case = QPCase(2, "float64", HORIZON, gradient=True)
        x, y = map(np.stack, zip(*case._reference, strict=True))
        bars = [np.asarray(bar) for bar in case.cotangents]
        found = [
            qp_oracle.gradient(one, (x[b], y[b]), (bars[0][b], bars[1][b]), method)
            for b, one in enumerate(case.instances)
        ]
        arrays = [np.stack(array) for array in zip(*found, strict=True)]
        if spoiled is not None:
            worst = np.abs(arrays[spoiled][1]).argmax()
            arrays[spoiled][1, worst] *= 1.1
        accuracy = case.gradients(case.iterates(x, y), x, y, arrays, method)
        assert accuracy.correct == (spoiled is None)

    def test_solutions_to_a_tolerance_are_judged(self):
        case = QPCase(3, "float64", HORIZON)
        x = np.stack([qp_oracle.optimum(one) for one in case.instances])
        assert case.optimality(x, 1e-2).correct
        assert not case.optimality(x * 1.1, 1e-2).correct
        assert not case.optimality(np.full_like(x, np.nan), 1e-2).correct

    def test_a_broken_baseline_does_not_end_the_run(self, monkeypatch):
        def fail(case, repeats):
            raise RuntimeError("library is broken")

        broken = replace(qp_baselines.BASELINES["osqp"], measure=fail)
        monkeypatch.setitem(qp_baselines.BASELINES, "osqp", broken)
        alone = {"variants": (), "gradients": False, "baselines": ("osqp",)}
        (row,) = qp.run(QPBenchSettings((2,), **alone, horizon=HORIZON))
        assert row["skipped"] == "failed: RuntimeError: library is broken"


class TestOracle:
    @pytest.mark.oracle
    def test_iterates_are_those_of_osqp(self):
        for one in QPCase(3, "float64", 4).instances:
            given = QP(one.P, one.q, one.A, one.lower, one.upper)
            wanted = osqp_solve(given, max_iter=25, **OSQP_FIXED)
            x, y = qp_oracle.iterates(one, SETTINGS)
            np.testing.assert_allclose(x, wanted.x, rtol=0, atol=1e-9)
            np.testing.assert_allclose(y, wanted.y, rtol=0, atol=1e-9)

    @pytest.mark.parametrize("method", ["kkt", "lsq"])
    def test_gradients_are_derivatives(self, method):
        """Central differences of the exact solution, in a random direction of all data."""
        (one,) = QPCase(1, "float64", HORIZON).instances
        rng = np.random.default_rng(0)
        bars = rng.normal(size=one.q.size), rng.normal(size=one.lower.size)
        converged = replace(SETTINGS, max_iter=3000)
        found = qp_oracle.gradient(one, qp_oracle.iterates(one, converged), bars, method)
        equal = one.lower == one.upper
        along = [rng.normal(size=array.size) for array in found]
        along[4] = np.where(equal, along[3], along[4])  # an equality stays one

        def value(step):
            P, A = one.P.copy(), one.A.copy()
            P.data, A.data = P.data + step * along[0], A.data + step * along[2]
            moved = (one.lower + step * along[3], one.upper + step * along[4])
            x, y = qp_oracle.iterates(
                qp_oracle.Instance(P, one.q + step * along[1], A, *moved), converged
            )
            return x @ bars[0] + y @ bars[1]

        step = 1e-6
        wanted = (value(step) - value(-step)) / (2 * step)
        assert sum(map(np.dot, found, along)) == pytest.approx(wanted, rel=1e-4)


class TestCounts:
    def test_bytes_of_one_qp(self):
        counts = qp_variants.counted_bytes(40, 4)
        n, m, L = 652, 1144, 10644
        assert counts["data"] == 4 * (447 + 4104 + n + 2 * m + n + m)
        assert counts["factor"] == 4 * (L + n + m)
        assert counts["iterations"] == 4 * 25 * (2 * L + (n + m) + (n + 2 * m) + 2 * (n + m))
        assert counts["total"] == sum(counts[part] for part in ("data", "factor", "iterations"))

    def test_too_little_memory_is_a_row(self, monkeypatch):
        monkeypatch.setattr(runner, "device_memory_bytes", lambda: 10_000_000)
        settings = QPBenchSettings((100_000,), variants=("sparse",), baselines=False)
        for row in qp.run(replace(settings, gradients=False)):
            assert "more than 80% of the 0.0 GB of this device" in row["skipped"]

    def test_every_instance_has_its_own_matrices(self):
        case = QPCase(3, "float32", HORIZON)
        P, q, A, lower, upper = case.args
        sizes = (case.problem.P.nnz, case.problem.q.size, case.problem.A.nnz)
        assert tuple(array.shape for array in (P, q, A)) == tuple((3, size) for size in sizes)
        assert len({row.tobytes() for row in np.asarray(lower)}) == 3
        assert {str(array.dtype) for array in case.args} == {"float32"}
        assert upper.shape == lower.shape


class TestSettings:
    def test_sizes_follow_the_variant(self, monkeypatch):
        monkeypatch.setattr(qp, "platform", lambda: "gpu")
        settings = QPBenchSettings((512, 10_000, 100_000), baselines=False)
        steps = plan(settings)
        sizes = {name: [s.batch for s in steps if s.solver == name] for name, *_ in steps}
        assert sizes["staged"] == sizes["sparse"] == [512, 10_000, 100_000]
        assert sizes["pcg"] == [512, 10_000]
        assert sizes["dense"] == [128]
        assert sizes["sparse_kkt"] == sizes["staged_kkt"] == [10_000]
        assert "staged_lsq" not in sizes  # float64 only

    def test_cores(self):
        before = os.sched_getaffinity(0)
        try:
            use_cores(1)
            assert len(os.sched_getaffinity(0)) == 1
        finally:
            for thread in os.listdir("/proc/self/task"):
                os.sched_setaffinity(int(thread), before)
        message = re.escape(f"may use 1 to {len(before)} CPU cores, not 0")
        with pytest.raises(SettingsError, match=message):
            use_cores(0)

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            (["--engines", "sparse,magic"], "Unknown engine 'magic'; choose from ['staged', "),
            (["--batch", "12,many"], "whole numbers like 512,2048, got '12,many'"),
            (["--batch", "0"], "at least 1, got 0"),
            (["--dtype", "float16"], "got 'float16'"),
            (["--repeats", "0"], "repeats must be at least 1"),
            (["--horizon", "0"], "The horizon must be at least 1, got 0."),
            (["--cores", "0"], "CPU cores, not 0"),
            (["--engines", "", "--no-baselines"], "give a batch size, a dtype and an engine"),
        ],
    )
    def test_mistakes_are_one_line(self, capsys, tmp_path, arguments, message):
        assert main(["bench", "qp", "--json", str(tmp_path / "rows.jsonl"), *arguments]) == 2
        captured = capsys.readouterr()
        assert message in captured.err
        assert captured.err.count("\n") == 1
        assert not (tmp_path / "rows.jsonl").exists()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # their packages warn
@pytest.mark.parametrize("name", ["jaxopt", "mpax", "qpax"])
def test_other_solvers(name):
    baseline = qp_baselines.BASELINES[name]
    if reason := baseline.obstacle():
        pytest.skip(reason)
    with jax.numpy_rank_promotion("allow"):
        found = baseline.measure(QPCase(2, "float64", HORIZON), 1)
    assert found.accuracy.correct
    assert found.settings["engine"].startswith(name)
