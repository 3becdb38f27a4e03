"""`warpmpc bench cartpole` and the like: complete rows, phases, and a judge that can say no."""

from __future__ import annotations

import math
from dataclasses import asdict, replace

import jax
import numpy as np
import pytest

from warpmpc import systems
from warpmpc._errors import ProblemError, SettingsError
from warpmpc.cli.main import main
from warpmpc.sim.rollout import rollout
from warpmpc_bench.common import plot, runner
from warpmpc_bench.common.record import read_rows
from warpmpc_bench.mpc import ablation as mpc_ablation
from warpmpc_bench.mpc import accuracy as mpc_accuracy
from warpmpc_bench.mpc import bench as mpc
from warpmpc_bench.mpc import bytes as mpc_bytes
from warpmpc_bench.mpc import loop as mpc_loop
from warpmpc_bench.mpc import measure as mpc_measure
from warpmpc_bench.mpc import phases as mpc_phases
from warpmpc_bench.mpc import plot as mpc_plot
from warpmpc_bench.mpc import report as mpc_report
from warpmpc_bench.mpc.bench import MPCBenchSettings, plan
from warpmpc_bench.mpc.phases import Event
from warpmpc_bench.mpc.setup import MPCSetup
from warpmpc_bench.mpc.variants import VARIANTS, build_solver

HORIZON, STEPS, SAMPLE = 3, 2, 2
SMALL = ["--horizon", str(HORIZON), "--steps", str(STEPS), "--sample", str(SAMPLE)]
SMALL += ["--repeats", "1", "--sqp-iter", "4", "--admm-iter", "30"]
SETUP = MPCSetup("pendulum", HORIZON, 4, 30)
KEY = ("default", SETUP, "float32")
TIMING_FIELDS = {
    "median_s", "best_s", "calls", "repeats", "first_call_s", "per_s", "bytes", "bytes_per_s",
    "floor_fraction",
}  # fmt: skip
LOOP_FIELDS = {
    "steps", "finite", "theta", "plan_violation", "primal_residual", "dual_residual",
    "state_violation", "input_excess", "final_error", "step_length", "accepted", "satisfied",
    "success",
}  # fmt: skip


@pytest.fixture(scope="module")
def bench(tmp_path_factory):
    """One small run of the command: exit code, rows, folder, programs and loops by batch."""
    folder, kept = tmp_path_factory.mktemp("bench"), {}
    real = mpc_measure.build

    def build(function, *args):
        kept[args[0].shape[0]] = real(function, *args)
        return kept[args[0].shape[0]]

    arguments = ["--json", str(folder / "rows.jsonl"), "--plot", str(folder / "rates.png")]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(mpc_measure, "build", build)
        code = main(["bench", "pendulum", "--batch", "2,33", *arguments, *SMALL])
    return code, read_rows(folder / "rows.jsonl"), folder, kept


def numbers(value):
    """All floats in a row, at any depth."""
    if isinstance(value, dict):
        return [number for part in value.values() for number in numbers(part)]
    if isinstance(value, list):
        return [number for part in value for number in numbers(part)]
    return [value] if isinstance(value, float) else []


class TestRows:
    def test_one_correct_row_per_step(self, bench):
        code, rows, _, _ = bench
        assert code == 0
        settings = MPCBenchSettings((2, 33), system="pendulum")
        assert [(row["solver"], row["batch"], row["dtype"]) for row in rows] == plan(settings)
        assert all(row["correct"] is True for row in rows)
        assert len({frozenset(row) for row in rows}) == 1  # the same fields in all of them
        assert all(math.isfinite(number) for row in rows for number in numbers(row))
        for row in rows:
            for field in ("date", "commit", "device", "versions", "copy_bytes_per_s", "generator"):
                assert row[field]

    def test_rate_counts_iterations_of_all_steps(self, bench):
        _, rows, _, _ = bench
        for row in rows:
            timing, settings = row["sqp"], row["settings"]
            assert set(timing) == TIMING_FIELDS
            assert settings["steps"] == STEPS
            assert (settings["sqp_iterations"], settings["admm_iterations"]) == (4, 30)
            assert row["system"]["horizon"] == HORIZON
            assert settings["engine"] in ("onchip", "staged")
            assert row["latency"]["step_ms"] == pytest.approx(1e3 * timing["median_s"] / STEPS)
            assert row["latency"]["call_ms"] > 0
            assert set(settings["shape"]) == {"registers", "block", "prefetch", "sides"}
            done = row["batch"] * STEPS * settings["sqp_iterations"]
            assert timing["per_s"] == pytest.approx(done / timing["median_s"])
            assert timing["bytes"] == done * row["counted"]["total"]
            assert timing["floor_fraction"] == pytest.approx(
                timing["bytes"] / timing["median_s"] / row["copy_bytes_per_s"]
            )
            assert row["memory"]["peak_bytes"] > row["memory"]["storage_bytes"] > 0
            assert "run_peak_bytes" in row["memory"]
            made = f"make('pendulum', horizon={HORIZON}, sqp_iter=4, admm_iter=30)"
            assert made in row["generator"]

    def test_compilation_is_told_apart(self, bench):
        _, (first, second), _, _ = bench
        for row in (first, second):
            times = row["compile"]
            assert times["total_s"] == pytest.approx(times["solver_s"] + times["program_s"])
            total = times["program_s"] + times["first_run_s"]
            assert row["sqp"]["first_call_s"] == pytest.approx(total)
            assert times["cold"] is False
        assert first["compile"]["first"]
        assert first["compile"]["solver_s"] > 0
        assert not second["compile"]["first"]

    def test_correctness_figures(self, bench):
        _, rows, _, kept = bench
        row, (_, loop) = rows[1], kept[33]
        found = row["accuracy"]
        for figures in (found["loop"], found["sample"]["here"], found["sample"]["float64"]):
            assert set(figures) == LOOP_FIELDS
        theta = np.asarray(loop.rollout.theta, dtype=np.float64)
        assert found["loop"]["theta"] == pytest.approx([theta.mean(), theta.max()])
        assert found["loop"]["success"] is None  # two steps do not tell
        assert found["sample"]["steps"] == row["system"]["full_steps"] > STEPS
        assert found["sample"]["here"]["success"] is not None
        assert found["control"]["instances"] == SAMPLE
        assert found["control"]["steps"] == [0, 1]
        assert 0 < found["control"]["relative"]["max"] < 1e-4
        assert found["repeatable"] is True

    def test_starts_are_those_of_the_loop(self, bench):
        *_, kept = bench
        loop, where, built = kept[33][1].rollout, np.array([0, 32]), build_solver(*KEY)
        x, start = kept[33][1].starts
        np.testing.assert_array_equal(x, loop.x[where, :STEPS])
        np.testing.assert_array_equal(start.z[:, 0], built.solver.z_guess(x[:, 0]))
        assert not np.any(start.qp.y[:, 0])
        assert np.any(start.qp.y[:, 1])

    def test_half_of_a_loop(self, bench):
        """Phases are measured from there."""
        *_, kept = bench
        loop, built = kept[2][1].rollout, build_solver(*KEY)
        x, start = mpc_loop.halfway(built, STEPS, loop.x[:, 0])
        np.testing.assert_array_equal(x, loop.x[:, STEPS // 2])
        assert np.any(start.qp.y)

    @pytest.mark.parametrize(
        ("steps", "step_s", "profiled"),
        [(120, 1.0, 3), (120, 0.005, 10), (120, 1e-5, 15), (12, 1e-5, 3), (4, 1e-5, 3)],
    )
    def test_short_steps_are_profiled_more_often(self, steps, step_s, profiled):
        """Twice as many of them, one run unseen, end before a loop of 12 steps or more does."""
        assert mpc_measure.profiled_steps(steps, step_s) == profiled
        assert steps < 12 or steps // 2 + 2 * profiled <= steps

    @pytest.mark.slow
    def test_loop_is_that_of_rollout(self, bench):
        *_, kept = bench
        loop, built = kept[2][1].rollout, build_solver(*KEY)
        same = rollout(built.solver, built.system.simulate, loop.x[:, 0], STEPS, shift=False)
        for name in ("x", "u", "theta", "cost", "status"):
            np.testing.assert_array_equal(getattr(loop, name), getattr(same, name))
        for mine, other in zip(
            jax.tree.leaves(loop.warm_start), jax.tree.leaves(same.warm_start), strict=True
        ):
            np.testing.assert_array_equal(mine, other)

    @pytest.mark.parametrize(
        ("steps", "checked"),
        [(1, [0]), (2, [0, 1]), (20, [0, 4, 8, 12, 16]), (8, [0, 2, 4, 6]), (7, [0])],
    )
    def test_checked_steps(self, steps, checked):
        assert mpc_loop.checked_steps(steps).tolist() == checked

    def test_table_and_summary(self, bench):
        _, rows, _, _ = bench
        text = mpc_report.line(rows[0])
        assert len(text) == len(mpc_report.HEADER)
        assert "WRONG" not in text
        engine = rows[0]["settings"]["engine"]
        assert text.startswith(f"default        {engine:<8}float32")
        summary = mpc_report.summary(rows)
        assert "SQP iterations/s of pendulum (N = 3, 4 x 30, default, engine" in summary
        (latency,) = [line for line in summary.splitlines() if "in the loop" in line]
        assert latency.startswith("a solve of batch 2 takes ")
        large = {**rows[0], "latency": {**rows[0]["latency"], "call_ms": None}}
        assert "in the loop" not in mpc_report.summary([large])


class TestWrongResults:
    @pytest.mark.parametrize(
        ("spoil", "failed"),
        [
            (lambda loop: loop, []),
            (lambda loop: replace(loop, u=loop.u * 1.005), ["control"]),
            (lambda loop: replace(loop, u=loop.u * 1.02), ["control", "control_p95"]),
            (lambda loop: replace(loop, u=loop.u.at[-1, -1].add(0.5)), ["control_p95"]),
            (
                lambda loop: replace(loop, u=loop.u.at[-1].set(np.nan)),
                ["control", "control_p95", "finite"],
            ),
            (lambda loop: replace(loop, x=loop.x.at[3].set(np.inf)), ["finite"]),
        ],
    )
    def test_loops_are_judged(self, bench, spoil, failed):
        *_, kept = bench
        loop = replace(kept[33][1], rollout=spoil(kept[33][1].rollout))
        found = mpc_accuracy.judge(loop, np.array([0, 32]), KEY, SAMPLE)
        assert found.failed == failed
        assert found.correct == (not failed)

    @pytest.mark.parametrize("worse", ["success", "satisfied", "theta"])
    def test_worse_closed_loops_are_noticed(self, bench, monkeypatch, worse):
        *_, kept = bench
        real = mpc_accuracy._sample_here(*KEY, SAMPLE)
        wrong = {"success": 0.9, "satisfied": 0.9, "theta": [1.0, 1.0]}[worse]
        exact = {**real, "success": 1.0, "satisfied": 1.0}
        monkeypatch.setattr(mpc_accuracy, "_sample_exact", lambda *args: exact)
        monkeypatch.setattr(mpc_accuracy, "_sample_here", lambda *args: {**exact, worse: wrong})
        found = mpc_accuracy.judge(kept[2][1], np.array([0, 1]), KEY, SAMPLE)
        assert found.failed == [worse]

    def test_without_full_loops(self, bench, monkeypatch):
        *_, kept = bench
        monkeypatch.delattr(mpc_accuracy, "_sample_here")
        found = mpc_accuracy.judge(kept[2][1], np.array([0, 1]), KEY, SAMPLE, full_loops=False)
        assert found.correct
        assert found.sample is None
        assert set(found.limits) == {"control", "control_p95"}
        row = {**bench[1][0], "accuracy": asdict(found)}
        assert mpc_report.success_of(row) is None
        assert len(mpc_report.line(row)) == len(mpc_report.HEADER)

    def test_wrong_control_is_not_shown(self, bench, monkeypatch, tmp_path, capsys):
        *_, kept = bench
        program, loop = kept[2]
        wrong = replace(loop, rollout=replace(loop.rollout, u=loop.rollout.u + 0.1))
        monkeypatch.setattr(mpc_measure, "build", lambda *args: (program, wrong))
        arguments = ["--json", str(tmp_path / "rows.jsonl"), "--plot", str(tmp_path / "plot.png")]
        assert main(["bench", "pendulum", "--batch", "2", "--no-profile", *arguments, *SMALL]) == 1
        (row,) = read_rows(tmp_path / "rows.jsonl")
        assert row["correct"] is False
        assert row["accuracy"]["repeatable"] is False  # the timed program is right
        assert row["phases"] is None
        text = capsys.readouterr().out
        assert "WRONG: control, control_p95, repeatable" in text
        assert "1 of 1 rows wrong" in text
        assert not (tmp_path / "plot.png").exists()
        with pytest.raises(ProblemError, match="holds no correct measurement"):
            mpc_plot.plot_file(tmp_path / "rows.jsonl", tmp_path / "plot.png")


TRACE = """
planes {
  name: "/device:GPU:0"
  lines {
    name: "Stream #118(Compute,MemcpyD2D)"
    timestamp_ns: 1000
    events { metadata_id: 1 offset_ps: 0 duration_ps: 6000000 }
    events { metadata_id: 2 offset_ps: 7000000 duration_ps: 2000000 }
  }
  lines {
    name: "XLA Ops"
    timestamp_ns: 1000
    events { metadata_id: 1 offset_ps: 0 duration_ps: 6000000 }
  }
  event_metadata { key: 1 value { id: 1 name: "staged_admm_1a2b3c4d_cuda_kernel_forward" } }
  event_metadata { key: 2 value { id: 2 name: "loop_add_fusion" } }
}
planes {
  name: "/host:CPU"
  lines { name: "Stream" events { metadata_id: 1 offset_ps: 0 duration_ps: 6000000 } }
  event_metadata { key: 1 value { id: 1 name: "cuLaunchKernel" } }
}
"""


class TestPhases:
    @pytest.mark.parametrize(
        ("kernel", "phase"),
        [
            ("staged_admm_1a2b3c4d_cuda_kernel_forward", "admm"),
            ("rolled_admm_kernel__locals__rolled_admm_0", "admm"),
            ("staged_factor_kernel__locals__staged_factor_0", "linearize_factor"),
            ("linearize_stages_0", "linearize_factor"),
            ("fused_linearize_factor_1a2b3c4d_cuda_kernel_forward", "linearize_factor"),
            ("evaluate_stages_0", "line_search"),
            ("fused_line_search_1a2b3c4d_cuda_kernel_forward", "line_search"),
            ("loop_select_fusion_3", "rest"),
            ("MemcpyD2D", "rest"),
        ],
    )
    def test_kernels_have_a_phase(self, kernel, phase):
        assert mpc_phases.phase_of(kernel) == phase

    def test_kernels_are_seen(self, bench):
        """Every kernel of ours runs once per SQP iteration."""
        _, rows, _, _ = bench
        for row in rows:
            phases = row["phases"]
            assert phases["reason"] is None
            assert phases["iterations"] == STEPS * row["settings"]["sqp_iterations"]
            covered = sum(phases["shares"].values()) + (phases["idle_share"] or 0)
            assert covered == pytest.approx(1) or (phases["idle_share"] and covered > 1)
            assert phases["other_share"] == pytest.approx(1 - phases["shares"]["admm"])
            assert all(phases["seconds"][phase] > 0 for phase in mpc_phases.PHASES)
            ours = {
                name: calls
                for name, (calls, _) in phases["kernels"].items()
                if mpc_phases.phase_of(name) != mpc_phases.REST
            }
            assert {mpc_phases.phase_of(name) for name in ours} == set(mpc_phases.PHASES)
            assert set(ours.values()) == {phases["iterations"]}
            device = jax.default_backend() == "gpu"
            assert phases["source"] == ("device events" if device else "host events")

    def test_only_streams_of_the_device_count(self):
        data = jax.profiler.ProfileData
        profile = data.from_serialized_xspace(data.text_proto_to_serialized_xspace(TRACE))
        events = mpc_phases._device_events(profile)
        assert [event.duration for event in events] == [6000, 2000]
        phases = mpc_phases.device_phases(events, 5)
        assert phases["span_s"] == pytest.approx(9e-6)
        assert phases["seconds"]["admm"] == pytest.approx(6e-6)
        assert phases["shares"]["rest"] == pytest.approx(2 / 9)
        assert phases["idle_share"] == pytest.approx(1 / 9)
        assert phases["launches"] == 2
        assert phases["other_share"] == pytest.approx(1 / 3)
        assert phases["kernels"]["staged_admm"] == [1, pytest.approx(6e-6)]

    def test_what_runs_at_the_same_time_is_covered_once(self):
        events = [Event("a", 0, 10), Event("b", 2, 3), Event("c", 8, 4), Event("d", 20, 1)]
        assert mpc_phases.covered(events) == 13

    def test_missing_phases_have_a_reason(self, monkeypatch):
        def fail(*args):
            raise RuntimeError("only one profiler at a time")

        assert "no event of a device" in mpc_phases.device_phases([], 1)["reason"]
        assert "does not show kernels" in mpc_phases.host_phases([], 1.0, 1)["reason"]
        monkeypatch.setattr(mpc_phases, "_trace", fail)
        found = mpc_phases.measure_phases(None, (), 1)
        assert "RuntimeError: only one profiler" in found["reason"]
        assert found["shares"] is None


class TestCounts:
    def test_bytes_of_an_iteration(self):
        solver = build_solver("default", MPCSetup("quadrotor", 4), "float32").solver
        program, n, m = mpc_bytes.program_of(solver), 5 * 16, 28 + 3 * 16 + 4
        dense = np.zeros((n + m, n + m), dtype=bool)
        pattern = program.elimination.L_pattern
        columns = np.repeat(np.arange(n + m), np.diff(pattern.col_ptr))
        dense[pattern.row_idx, columns] = True
        is_row = np.asarray(program.elimination.perm) >= n
        leaves = int((is_row & ~dense.any(axis=1)).sum())
        assert 0 < leaves < m
        assert mpc_bytes.n_leaves(program, n) == leaves
        L, kept = program.n_L, n + m - leaves
        found = mpc_bytes.counted_bytes(solver)
        assert found["linearize_factor"] == 4 * (n + 12 + L + kept + n + 2 * m)
        assert mpc_bytes.n_bounds(solver) == m + 4 * 4  # motors at 4 nodes have two bounds
        vectors = 3 * kept + 2 * n + 2 * (n + m) + 3 * m + 16
        assert found["admm"] == 4 * 25 * (2 * L + vectors)
        assert found["line_search"] == 4 * (3 * n + 12)
        assert found["total"] == sum(found[name] for name in mpc_phases.PHASES)

    def test_too_little_memory_is_a_row(self, monkeypatch):
        monkeypatch.setattr(runner, "device_memory_bytes", lambda: 10_000_000)
        (row,) = mpc.run(MPCBenchSettings((100_000,), system="pendulum", horizon=HORIZON))
        assert "more than 80% of the 0.0 GB" in row["skipped"]
        assert "skipped: needs about" in mpc_report.line(row)


def test_a_variant_that_cannot_be_is_a_row(monkeypatch):
    def refuse(name, *args):
        if name == "two_sides":
            raise SettingsError("Two sides would share too much.")
        return build_solver(name, *args)

    monkeypatch.setattr(mpc, "build_solver", refuse)
    settings = MPCBenchSettings((2,), variants=("two_sides",), system="pendulum", horizon=HORIZON)
    (row,) = mpc.run(settings)
    assert row["skipped"] == "SettingsError: Two sides would share too much."


def on_gpu(row, *, admm_iterations=50, **changes):
    """A row as a GPU might have written it."""
    system = {**row["system"], "name": "cartpole", "horizon": 100}
    counts = {"sqp_iterations": 10, "admm_iterations": admm_iterations}
    settings = {**row["settings"], **counts}
    return {**row, "platform": "gpu", "system": system, "settings": settings, **changes}


class TestPlots:
    def test_figure_has_rates_and_shares(self, bench):
        _, rows, folder, _ = bench
        assert (folder / "rates.png").stat().st_size > 10_000
        rates, shares = mpc_plot.figure_of(plot.latest(rows)).axes
        labels = [line.get_label() for line in rates.get_lines()]
        assert sum(label.startswith("default:") for label in labels) == 1
        assert not any("published" in label for label in labels)
        heights = [patch.get_height() for patch in shares.patches]
        assert sum(heights) == pytest.approx(len(rows))

    def test_published_figures_are_marked(self, bench):
        _, rows, _, _ = bench
        fake = [on_gpu(rows[0], batch=1000), on_gpu(rows[1], batch=10_000)]
        assert len(plot.latest([*rows, *fake])) == 4  # systems do not hide each other
        rates, _ = mpc_plot.figure_of(fake).axes
        (marks,) = [line for line in rates.get_lines() if "published" in str(line.get_label())]
        published = mpc_report.PUBLISHED["cartpole", 100, 10, 50]
        assert list(marks.get_ydata()) == list(published.values())
        expected = fake[0]["sqp"]["per_s"] / 7.8e3
        assert mpc_report.speedup(fake[0]) == pytest.approx(expected)
        assert mpc_report.speedup(rows[0]) is None
        assert "the published implementation" in mpc_report.summary(fake[:1])

    def test_other_iterations_are_another_benchmark(self, bench):
        """They hide no rows, share no panel, and are not compared with the published rates."""
        _, rows, _, _ = bench
        both = [on_gpu(rows[0], batch=1000), on_gpu(rows[0], batch=1000, admm_iterations=25)]
        assert mpc_report.speedup(both[0]) is not None
        assert mpc_report.speedup(both[1]) is None
        assert plot.latest(both) == both
        assert len(mpc_plot.figure_of(both).axes) == 4
        other = {**both[1], "solver": "sparse"}
        assert mpc_ablation.mpc_bars([both[0], other]) == {}

    def test_no_roof_for_what_stays_on_chip(self, bench):
        _, rows, _, _ = bench
        staged = {**rows[0], "settings": {**rows[0]["settings"], "engine": "staged"}}
        onchip = {**rows[0], "settings": {**rows[0]["settings"], "engine": "onchip"}}
        for row, drawn in ((staged, True), (onchip, False)):
            rates, _ = mpc_plot.figure_of([row]).axes
            texts = [text.get_text() for text in rates.texts]
            assert any("memory roof" in text for text in texts) is drawn
            assert ("memory roof" in mpc_report.summary([row])) is drawn
            assert len(mpc_report.line(row)) == len(mpc_report.HEADER)

    def test_missing_phases_are_said(self, bench):
        _, rows, _, _ = bench
        _, shares = mpc_plot.figure_of([{**rows[0], "phases": None}]).axes
        assert "not measured" in shares.texts[0].get_text()

    def test_ablation_compares_with_the_default(self, bench, tmp_path):
        _, rows, folder, _ = bench
        slow = {**rows[1]["sqp"], "per_s": rows[1]["sqp"]["per_s"] / 4}
        other = {**rows[1], "solver": "sparse", "sqp": slow}
        bars = mpc_ablation.mpc_bars([*rows, other])
        title = f"pendulum, N = {HORIZON}, 4 SQP x 30 ADMM"
        assert bars == {title: {VARIANTS["sparse"].label: {33: pytest.approx(0.25)}}}
        layout = [
            {
                "solver": name,
                "dtype": "float32",
                "batch": 8,
                "device": "H200",
                "factor": {"per_s": per_s},
            }
            for name, per_s in (("no_segments", 10.0), ("batch_first", 5.0))
        ]
        (named,) = mpc_ablation.layout_bars(layout).values()
        assert list(named.values()) == [{8: 0.5}]
        figure = mpc_ablation.figure_of(bars | mpc_ablation.layout_bars(layout), rows[0])
        assert len(figure.axes) == 2
        with pytest.raises(ProblemError, match="no correct rows of 'default' and another variant"):
            mpc_ablation.plot_ablation(folder / "rows.jsonl", tmp_path / "plot.png")


class TestSettings:
    def test_defaults(self):
        settings = MPCBenchSettings(system="cartpole")
        assert settings.names == ("default",)
        assert settings.baselines is False
        every = MPCBenchSettings((5, 3), variants=tuple(VARIANTS))
        assert [step.batch for step in plan(every)] == [3] * len(VARIANTS) + [5] * len(VARIANTS)
        with pytest.raises(SettingsError, match="Unknown system 'boat'; choose from"):
            MPCBenchSettings(system="boat")

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            (["--variants", "magic"], "Unknown variant 'magic'; choose from ['default', "),
            (["--variants", ""], "give a batch size, a dtype and a variant"),
            (["--batch", "12,many"], "whole numbers like 512,2048, got '12,many'"),
            (["--batch", "0"], "at least 1, got 0"),
            (["--dtype", "float16"], "got 'float16'"),
            (["--repeats", "0"], "repeats must be at least 1"),
            (["--steps", "0"], "steps must be at least 1, got 0."),
            (["--horizon", "-1"], "horizon must be at least 1, got -1."),
            (["--sample", "0"], "sample must be at least 1, got 0."),
            (["--sqp-iter", "0"], "sqp_iter must be at least 1, got 0."),
            (["--admm-iter", "-5"], "admm_iter must be at least 1, got -5."),
        ],
    )
    def test_mistakes_are_one_line(self, capsys, tmp_path, arguments, message):
        assert main(["bench", "cartpole", "--json", str(tmp_path / "rows"), *arguments]) == 2
        captured = capsys.readouterr()
        assert message in captured.err
        assert captured.err.count("\n") == 1
        assert not (tmp_path / "rows").exists()

    @pytest.mark.parametrize("name", list(systems.SYSTEMS))
    def test_help(self, capsys, name):
        with pytest.raises(SystemExit, match="0"):
            main(["bench", name, "--help"])
        text = capsys.readouterr().out
        for option in ("--batch", "--steps", "--variants", "--sample", "--cold", "--no-profile"):
            assert option in text
        assert "--sqp-iter" in text
        assert "--admm-iter" in text
        assert "--baselines [NAME,...]" in text
        assert "ipopt (default: none" in " ".join(text.split())


@pytest.mark.slow
@pytest.mark.parametrize("name", ["sparse", "panels", "registers_64"])
def test_other_variants_are_right(name):
    settings = MPCBenchSettings((33,), variants=(name,), system="linear", horizon=4, sample=8)
    (row,) = mpc.run(replace(settings, cold=name == "panels", repeats=1))
    assert row["correct"] is True
    assert row["compile"]["cold"] is (name == "panels")
    assert row["accuracy"]["loop"]["success"] is not None  # all steps
