"""Timing, records and baselines on their own."""

from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace

import jax.numpy as jnp
import numpy as np
import pytest

from warpmpc._errors import ProblemError
from warpmpc_bench.common import baseline, record, timing
from warpmpc_bench.ldl import baselines as ldl_baselines
from warpmpc_bench.ldl import variants as ldl_variants
from warpmpc_bench.ldl.case import Case


@pytest.fixture
def work(monkeypatch):
    """Makes calls that take the given seconds, one after the other, by a clock of their own."""
    clock = SimpleNamespace(now=0.0, calls=0)
    monkeypatch.setattr(timing, "time", SimpleNamespace(perf_counter=lambda: clock.now))

    def make(*seconds):
        def call():
            clock.now += seconds[min(clock.calls, len(seconds) - 1)]
            clock.calls += 1

        return call, clock

    return make


def test_short_calls_are_timed_together(work):
    call, clock = work(0.0021)
    result = timing.measure(call, repeats=3, first_call_s=7.0)
    assert (result.calls, result.repeats, clock.calls) == (10, 3, 31)
    assert result.median_s == pytest.approx(0.0021)
    assert result.first_call_s == 7.0


def test_median_and_best(work):
    call, _ = work(0.05, 0.03, 0.09, 0.05)
    result = timing.measure(call, repeats=3)
    assert (result.median_s, result.best_s) == (pytest.approx(0.05), pytest.approx(0.03))


@pytest.mark.parametrize(("seconds", "repeats"), [(0.25, 2), (0.5, 1), (3.0, 1)])
def test_slow_calls_are_repeated_less(work, seconds, repeats):
    call, clock = work(seconds)
    result = timing.measure(call, repeats=5)
    assert (result.calls, result.repeats, result.median_s) == (1, repeats, pytest.approx(seconds))
    assert clock.calls == (1 if seconds > timing.BUDGET_S else 1 + repeats)


def test_build_reports_compilation_and_memory():
    program, result = timing.build(lambda x: 2 * x, jnp.ones(1000, dtype="float32"))
    assert float(result.sum()) == 2000
    assert program.first_call_s > 0
    assert 8000 <= program.memory_bytes < 9000  # argument and result
    assert float(program.call(jnp.full(1000, 3.0, dtype="float32"))[0]) == 6


@pytest.mark.parametrize(
    ("before", "after", "known"), [(10, 30, 30), (30, 30, None), (None, None, None)]
)
def test_peak_of_the_first_run(monkeypatch, before, after, known):
    """The allocator's peak is that of a run only if the run raised it."""
    peaks = iter((before, after))
    monkeypatch.setattr(timing, "allocator_peak_bytes", lambda: next(peaks))
    assert timing.build(lambda x: 2 * x, jnp.ones(10))[0].peak_bytes == known


def test_copy_bandwidth_and_memory():
    assert 1e8 < timing.copy_bandwidth(1 << 22) < 1e13
    assert timing.device_memory_bytes() > 1 << 30


@pytest.mark.parametrize(("given", "dirty"), [("abc123", False), ("abc123-dirty", True)])
def test_commit_can_be_told(monkeypatch, given, dirty):
    monkeypatch.setenv(record.COMMIT_VARIABLE, given)
    assert record.source_state() == ("abc123", dirty)


def test_commit_without_git(monkeypatch):
    monkeypatch.delenv(record.COMMIT_VARIABLE, raising=False)
    monkeypatch.setattr(record, "_output", lambda command: None)
    assert record.source_state() == (None, None)


def test_missing_program_gives_no_output():
    assert record._output(["a-program-that-does-not-exist"]) is None
    assert record._output([sys.executable, "-c", "raise SystemExit(3)"]) is None
    assert record._output([sys.executable, "-c", "print(5)"]) == "5"


def test_rows_survive_the_file(tmp_path):
    path = tmp_path / "new" / "rows.jsonl"
    rows = [{"a": 1, "b": None}, {"a": 2.5, "b": "text"}]
    for row in rows:
        record.append_row(path, row)
    assert record.read_rows(path) == rows
    with pytest.raises(ValueError, match="JSON compliant"):
        record.append_row(path, {"a": float("nan")})
    path.write_text("{\n")
    with pytest.raises(ProblemError, match="line 1 is not JSON"):
        record.read_rows(path)
    with pytest.raises(ProblemError, match="There is no file"):
        record.read_rows(tmp_path / "missing.jsonl")


class FakeDirectSolver:
    """Stands for cuDSS: solves what a symmetric matrix given by its lower rows means."""

    def __init__(self, a, b, options):
        assert options.sparse_system_type == "symmetric"
        assert options.sparse_system_view == "lower"
        self.a, self.b, self.phases = a, b, []

    def __enter__(self):
        return self

    def __exit__(self, *error):
        assert self.phases[:3] == ["plan", "factorize", "solve"]

    def plan(self):
        self.phases.append("plan")

    def factorize(self):
        self.phases.append("factorize")
        lower = [matrix.toarray() for matrix in self.a]
        assert all((matrix == np.tril(matrix)).all() for matrix in lower)
        self.full = [matrix + np.tril(matrix, -1).T for matrix in lower]

    def solve(self):
        self.phases.append("solve")
        return [np.linalg.solve(K, b) for K, b in zip(self.full, self.b, strict=True)]


def test_cudss_gets_the_right_system(monkeypatch):
    advanced = SimpleNamespace(
        DirectSolver=FakeDirectSolver,
        DirectSolverOptions=SimpleNamespace,
        DirectSolverMatrixType=SimpleNamespace(SYMMETRIC="symmetric"),
        DirectSolverMatrixViewType=SimpleNamespace(LOWER="lower"),
    )
    sparse = ModuleType("nvmath.sparse")
    sparse.advanced = advanced
    monkeypatch.setitem(sys.modules, "nvmath", ModuleType("nvmath"))
    monkeypatch.setitem(sys.modules, "nvmath.sparse", sparse)
    measured = ldl_baselines.measure_cudss(Case(2, "float32"), 1)
    assert measured.accuracy.correct
    assert measured.settings == {"backend": "cudss", "operands": "host"}
    assert set(measured.times) == {"factor", "solve"}


def test_obstacles(monkeypatch):
    monkeypatch.setattr(baseline, "find_spec", lambda name: None)
    for name, package in (("qdldl", "qdldl"), ("cudss", "nvmath-python")):
        assert ldl_baselines.BASELINES[name].obstacle() == (
            f"package {package} is not installed (`pip install {package}`)"
        )
    monkeypatch.setattr(baseline, "find_spec", lambda name: name)
    assert ldl_baselines.BASELINES["qdldl"].obstacle() is None
    monkeypatch.setattr(baseline.jax, "default_backend", lambda: "cpu")
    assert ldl_baselines.BASELINES["cudss"].obstacle() == "needs a CUDA device"


@pytest.mark.parametrize(("factor", "solve", "peak"), [(100, 80, 105), (100, 90, 110)])
def test_memory_counts_what_lives_at_once(factor, solve, peak):
    case = SimpleNamespace(rhs=SimpleNamespace(nbytes=5), K_vals=SimpleNamespace(nbytes=20))
    programs = [timing.CompiledProgram(lambda: None, 0.0, size) for size in (factor, solve)]
    memory = ldl_variants._memory(*programs, case, storage_bytes=90)
    assert memory == {"peak_bytes": peak, "storage_bytes": 90}
