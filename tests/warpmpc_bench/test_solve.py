"""`warpmpc solve`: what it prints and writes, and its exit codes."""

from __future__ import annotations

import json
import re
from dataclasses import replace

import numpy as np
import pytest

from warpmpc import MPCStatus, SettingsError, diagnose
from warpmpc.cli.main import main
from warpmpc_bench.common import solve_once as module
from warpmpc_bench.common.solve_once import SolveOptions, solve_once
from warpmpc_bench.solve_command import format_result

SMALL = SolveOptions("pendulum", batch=3, mode="fixed", horizon=4, engine="sparse")


class Silent:
    """Hears about phases."""

    def __init__(self):
        self.phases = []

    def phase(self, text):
        self.phases.append(text)

    def report(self, done, total):
        raise AssertionError("nothing is counted here")


@pytest.fixture(scope="module")
def result():
    watcher = Silent()
    found = solve_once(SMALL, watcher)
    assert len(watcher.phases) == 2
    return found


@pytest.fixture
def solved(monkeypatch, result):
    """The command line with a solver that has done its work; the options it got."""
    seen = []
    monkeypatch.setattr(module, "solve_once", lambda options, _: seen.append(options) or result)
    return seen


def test_result(result):
    assert result.ok
    assert result.x0.shape == (3, 2)
    np.testing.assert_array_equal(result.x0, result.system.sample(3).astype("float32"))
    np.testing.assert_allclose(result.solution.x[:, 0], result.x0, atol=1e-2)
    assert result.compile_s > 0
    assert result.run_s > 0


def test_command(solved, capsys, tmp_path):
    arguments = ["--batch", "3", "--seed", "7", "--mode", "fixed", "--horizon", "4"]
    assert main(["solve", "obstacles", *arguments, "--engine", "sparse"]) == 0
    (options,) = solved
    assert options.name == "quadrotor_obstacles"
    assert (options.batch, options.seed, options.mode, options.horizon) == (3, 7, "fixed", 4)
    text = capsys.readouterr().out
    for part in ("3 x pendulum", "engine sparse", "iterations", "no instance failed", "per second"):
        assert part in text


def test_max_iter_is_explained(result):
    solution = replace(result.solution, status=np.full(3, MPCStatus.MAX_ITER))
    found = replace(result, solution=solution, diagnosis=diagnose(solution, result.x0))
    assert "MAX_ITER: all iterations were done" in format_result(found)
    converging = replace(found, options=replace(SMALL, mode="converge"))
    assert "MAX_ITER: not converged within the allowed iterations" in format_result(converging)
    assert "MAX_ITER:" not in format_result(
        replace(
            found, diagnosis=diagnose(replace(solution, status=np.zeros(3, dtype=int)), result.x0)
        )
    )


def test_one_start(solved):
    assert main(["solve", "pendulum", "--x0=-3,0.5"]) == 0
    assert solved[0].x0 == (-3.0, 0.5)
    assert solved[0].mode == "converge"


def test_failure_is_the_exit_code(result, monkeypatch, capsys):
    status = np.array([MPCStatus.CONVERGED, MPCStatus.QP_INFEASIBLE, MPCStatus.CONVERGED])
    solution = replace(result.solution, status=status)
    failed = replace(result, solution=solution, diagnosis=diagnose(solution, result.x0))
    monkeypatch.setattr(module, "solve_once", lambda *_: failed)
    assert main(["solve", "pendulum"]) == 1
    text = capsys.readouterr().out
    assert "NOT ALL SOLVED" in text
    assert "failed: 1" in text
    assert "1 QP_INFEASIBLE" in text


def test_unfinished_is_a_failure_only_when_converging(result):
    solution = replace(result.solution, status=np.full(3, MPCStatus.MAX_ITER))
    unfinished = replace(result, solution=solution, diagnosis=diagnose(solution, result.x0))
    assert unfinished.ok
    assert not replace(unfinished, options=replace(SMALL, mode="converge")).ok


def test_json(solved, result, tmp_path, capsys):
    path = tmp_path / "new" / "result.json"
    assert main(["solve", "pendulum", "--out", str(path)]) == 0
    assert str(path) in capsys.readouterr().out
    written = json.loads(path.read_text())
    assert written["batch"] == len(written["instances"]) == 3
    assert written["ok"]
    assert sum(written["counts"].values()) == 3
    for b, instance in enumerate(written["instances"]):
        assert instance["x0"] == result.x0[b].tolist()
        assert instance["u0"] == np.asarray(result.solution.u)[b, 0].tolist()
        assert MPCStatus[instance["status"]] == int(result.solution.status[b])


def test_json_has_no_nan(result, monkeypatch, tmp_path):
    cost = np.array([np.nan, 1.0, np.inf])
    broken = replace(result, solution=replace(result.solution, cost=cost))
    monkeypatch.setattr(module, "solve_once", lambda *_: broken)
    path = tmp_path / "result.json"
    assert main(["solve", "pendulum", "--out", str(path)]) == 0
    costs = [one["cost"] for one in json.loads(path.read_text())["instances"]]
    assert costs == [None, 1.0, None]


def test_arrays(solved, result, tmp_path):
    path = tmp_path / "result.npz"
    assert main(["solve", "pendulum", "--out", str(path)]) == 0
    with np.load(path) as written:
        np.testing.assert_array_equal(written["x"], result.solution.x)
        np.testing.assert_array_equal(written["x0"], result.x0)
        np.testing.assert_array_equal(written["status"], result.solution.status)
        assert written["row_names"].tolist() == list(result.system.problem.row_names)
    assert list(tmp_path.iterdir()) == [path]


def test_figure(solved, tmp_path):
    path = tmp_path / "result.png"
    assert main(["solve", "pendulum", "--history", "--out", str(path)]) == 0
    assert path.stat().st_size > 10_000
    assert solved[0].record


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["pendulm"], "there are pendulum, car, .* Did you mean 'pendulum'"),
        (["pendulum", "--x0", "1,a"], "numbers like 0.5,-1, got '1,a'"),
        (["pendulum", "--x0", "1,2", "--batch", "3"], "leave --batch out"),
        (["pendulum", "--x0", "1,2,3"], "has 3 numbers, pendulum has 2 states: angle, rate"),
        (["pendulum", "--batch", "0"], "--batch must be at least 1, got 0"),
        (["pendulum", "--seed", "-1"], "--seed must be at least 0, got -1"),
        (["pendulum", "--out", "a.txt"], "must end in one of .npz, .json, .png"),
        (["pendulum", "--out", "/dev/null/a.npz"], "a.npz cannot be written: Not a directory"),
        (["pendulum", "--engine", "fast"], "Unknown engine 'fast'"),
    ],
)
def test_mistakes(capsys, arguments, message):
    assert main(["solve", *arguments]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.count("\n") == 1
    assert re.search(message, captured.err)


def test_modes_are_checked():
    with pytest.raises(SettingsError, match="mode must be one of"):
        SolveOptions("pendulum", mode="quick")
