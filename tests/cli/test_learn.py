"""`warpmpc learn` on a task that takes seconds."""

from __future__ import annotations

import json
import sys

import pytest

from warpmpc.cli.main import main
from warpmpc.learn import Policy

TINY = ["--rollouts", "16", "--shards", "2", "--starts", "64"]
TINY += ["--hidden", "16", "--epochs", "60", "--minibatch", "64"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("learn")


@pytest.fixture(scope="module")
def report(folder):
    import contextlib
    import io

    text = io.StringIO()
    with contextlib.redirect_stdout(text):
        code = main(["learn", "learn_cases:task", "--out", str(folder), "--json", *TINY])
    assert code == 0
    return json.loads(text.getvalue())


def test_one_command_does_everything(report, folder):
    assert set(report["seconds"]) == {"data", "train", "evaluate", "export", "all"}
    assert 0 < report["data"]["pairs"] <= report["data"]["offered"] == 2 * 16 * 25
    rows = {(row["situation"], row["controller"]): row for row in report["evaluate"]["rows"]}
    assert rows["noise-free", "policy"]["success"] > 0.9
    assert report["export"]["agrees"]
    for name in ("policy.npz", "training.png", "evaluation.png", "evaluation.json"):
        assert (folder / name).stat().st_size > 0
    for name in ("policy.c", "policy.h", "contract.json", "int8/policy.c", "policy.onnx"):
        assert (folder / "firmware" / name).exists()
    assert Policy.load(folder / "policy.npz").network.sizes == (2, 16, 1)


def test_modules_of_the_current_folder_are_found(tmp_path, monkeypatch, capsys):
    (tmp_path / "my_robot_of_this_test.py").write_text("def task():\n    return 5\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.path", list(sys.path))
    assert main(["learn", "my_robot_of_this_test:task"]) == 2
    assert "must return a warpmpc.learn.Task, got int" in capsys.readouterr().err


def test_parts_take_up_what_is_there(report, folder, capsys):
    before = (folder / "data" / "round-00" / "shard-00000.parquet").stat().st_mtime_ns
    assert main(["learn", "data", "learn_cases:task", "--out", str(folder), *TINY]) == 0
    text = capsys.readouterr().out
    assert f"{report['data']['pairs']} pairs of 800, 0 pairs/s" in text
    assert (folder / "data" / "round-00" / "shard-00000.parquet").stat().st_mtime_ns == before
    assert main(["learn", "export", "learn_cases:task", "--out", str(folder)]) == 0
    assert "int8: changes outputs by" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["submarine"], "Unknown task 'submarine'"),
        (["data"], "Say a task"),
        (["fly", "quadrotor"], "Say a task"),
        (["learn_cases:task", "--hidden", "a,b"], "--hidden needs numbers with commas"),
        (["learn_cases:task", "--rounds", "0"], "--rounds must be from 1 to 10"),
        (["learn_cases:task", "--keep", "2"], "keep must be a share"),
        (["evaluate", "learn_cases:task"], "`warpmpc learn train integrator` makes it"),
    ],
)
def test_mistakes_are_one_line(arguments, message, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["learn", *arguments]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1
