"""Ctrl-C: exit code 130, one line, no traceback, and no half-written file."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from warpmpc._errors import SettingsError
from warpmpc.cli import info
from warpmpc.cli.main import main
from warpmpc.viz import style
from warpmpc.viz.files import check_writable, replaced
from warpmpc_bench.common import record

# A command that takes for ever, as a program of its own.
ENDLESS = """
import sys, time
from warpmpc.cli import info, main
def run(args):
    print("ready", flush=True)
    time.sleep(60)
info.run = run
sys.argv = ["warpmpc", "info"]
sys.exit(main.main())
"""


def test_signal_ends_a_program():
    command = [sys.executable, "-W", "error", "-c", ENDLESS]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, **pipes) as program:
        assert program.stdout.readline() == "ready\n"
        program.send_signal(signal.SIGINT)
        _, error = program.communicate(timeout=60)
    assert program.returncode == 130
    assert error.strip() == "warpmpc info: interrupted"


def test_interrupt_is_a_line(monkeypatch, capsys):
    def run(args):
        raise KeyboardInterrupt

    monkeypatch.setattr(info, "run", run)
    assert main(["info"]) == 130
    assert capsys.readouterr().err.strip() == "warpmpc info: interrupted"


def test_interrupt_inside_of_a_callback(monkeypatch, capsys):
    """XLA turns an exception of a function that it calls into one of its own."""

    def run(args):
        try:
            os.kill(os.getpid(), signal.SIGINT)
            signal.pause()
        except KeyboardInterrupt:
            raise RuntimeError("XlaRuntimeError: INTERNAL: custom call failed") from None

    before = signal.getsignal(signal.SIGINT)
    monkeypatch.setattr(info, "run", run)
    assert main(["info"]) == 130
    assert "Traceback" not in capsys.readouterr().err
    assert signal.getsignal(signal.SIGINT) is before


def test_other_errors_are_not_hidden(monkeypatch):
    def run(args):
        raise RuntimeError("a bug")

    monkeypatch.setattr(info, "run", run)
    with pytest.raises(RuntimeError, match="a bug"):
        main(["info"])


@pytest.mark.parametrize("error", [KeyboardInterrupt, OSError])
def test_files_are_whole_or_absent(tmp_path, error):
    path = tmp_path / "new" / "rows.json"

    def write(text, *, fail):
        with replaced(path) as partial:
            partial.write_text(text)
            assert partial.suffix == ".json"
            if fail:
                raise error

    with pytest.raises(error):
        write("half", fail=True)
    assert list(path.parent.iterdir()) == []
    write("first", fail=False)
    with pytest.raises(error):
        write("half", fail=True)
    assert path.read_text() == "first"
    assert list(path.parent.iterdir()) == [path]


def test_figures_are_whole_or_absent(tmp_path):
    class Interrupted:
        def savefig(self, path, dpi):
            Path(path).write_bytes(b"half of a picture")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        style.save(Interrupted(), tmp_path / "a.png")
    assert list(tmp_path.iterdir()) == []


def test_rows_are_appended_as_a_whole(tmp_path, monkeypatch):
    path, calls = tmp_path / "rows.jsonl", []
    row = {"text": "x" * 100_000}  # more than any buffer
    write = os.write
    monkeypatch.setattr(record.os, "write", lambda *a: calls.append(a) or write(*a))
    record.append_row(path, row)
    record.append_row(path, row)
    assert len(calls) == 2
    assert [json.loads(line) for line in path.read_text().splitlines()] == [row, row]

    def interrupted(*args):
        raise KeyboardInterrupt

    monkeypatch.setattr(record.os, "write", interrupted)
    with pytest.raises(KeyboardInterrupt):
        record.append_row(path, row)
    assert record.read_rows(path) == [row, row]


def test_a_file_is_tried_before_the_work(tmp_path):
    check_writable(tmp_path / "new" / "a.png")
    assert list((tmp_path / "new").iterdir()) == []
    (tmp_path / "a.png").mkdir()
    with pytest.raises(SettingsError, match="is a folder; name a file"):
        check_writable(tmp_path / "a.png")
