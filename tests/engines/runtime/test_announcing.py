"""What a caller sees while kernels are compiled: a line on a terminal, one in the log elsewhere."""

from __future__ import annotations

import logging
import os
import pty
import subprocess
import sys
import time

import pytest
from terminals import Terminal

from warpmpc.engines.runtime.announcing import CLEAR_LINE, QUIET_VARIABLE, Announcer
from warpmpc.engines.runtime.announcing import __name__ as LOGGER

SHORT = 0.01


@pytest.fixture(autouse=True)
def loud(monkeypatch, caplog):
    monkeypatch.delenv(QUIET_VARIABLE, raising=False)
    caplog.set_level(logging.INFO, logger=LOGGER)


def first_call(announcer, *, is_new, seconds=0.2):
    """A call with two kernels, and something afterwards."""
    with announcer.call():
        for name in ("linearize", "solve"):
            with announcer.kernel(name, is_new=is_new):
                time.sleep(seconds / 3)
        time.sleep(seconds / 3)


def announcing(*, tty, delay_s=SHORT):
    terminal = Terminal(tty=tty)
    return Announcer(terminal, delay_s, SHORT), terminal


class TestTerminal:
    def test_line(self):
        announcer, terminal = announcing(tty=True)
        first_call(announcer, is_new=True)
        lines = terminal.text.split(CLEAR_LINE)
        assert any(line.startswith("warpmpc: compiling kernel 1: linearize (") for line in lines)
        assert any(line.startswith("warpmpc: compiling kernel 2: solve (") for line in lines)
        assert any("2 kernels are ready, preparing the first call" in line for line in lines)
        assert lines[-1] == ""  # nothing stays
        assert "\n" not in terminal.text

    def test_nothing_is_shown_for_what_is_quick(self):
        announcer, terminal = announcing(tty=True, delay_s=5.0)
        first_call(announcer, is_new=True)
        assert terminal.text == ""

    def test_later_calls(self):
        announcer, terminal = announcing(tty=True)
        with announcer.call():
            time.sleep(5 * SHORT)
        assert terminal.text == ""

    def test_commands_have_their_own_display(self, caplog):
        announcer, terminal = announcing(tty=True)
        with announcer.muted():
            first_call(announcer, is_new=True)
        assert terminal.text == ""
        assert "compiled 2 of 2 kernels" in caplog.text

    def test_failures_leave_no_line(self):
        announcer, terminal = announcing(tty=True)

        def fails():
            with announcer.call(), announcer.kernel("f", is_new=True):
                time.sleep(5 * SHORT)
                raise RuntimeError

        with pytest.raises(RuntimeError):
            fails()
        assert terminal.text.endswith(CLEAR_LINE)
        assert announcer.built == 0
        terminal.text = ""
        time.sleep(5 * SHORT)
        assert terminal.text == ""

    def test_a_terminal_that_goes_away(self):
        """A display must not end a solve."""
        announcer, terminal = announcing(tty=True)
        terminal.write = lambda text: (_ for _ in ()).throw(OSError("gone"))
        first_call(announcer, is_new=True)
        assert announcer.built == 2


class TestElsewhere:
    def test_one_line_in_the_log(self, caplog):
        announcer, terminal = announcing(tty=False)
        first_call(announcer, is_new=True)
        assert terminal.text == ""
        (record,) = caplog.records
        assert record.message.startswith("compiled 2 of 2 kernels for the first call in 0.")
        assert record.message.endswith("in the cache: linearize, solve")

    def test_caches_say_nothing(self, caplog):
        announcer, _ = announcing(tty=False)
        first_call(announcer, is_new=False)
        assert not caplog.records
        assert announcer.built == 0

    @pytest.mark.parametrize("tty", [True, False])
    def test_quiet(self, caplog, monkeypatch, tty):
        monkeypatch.setenv(QUIET_VARIABLE, "1")
        announcer, terminal = announcing(tty=tty)
        first_call(announcer, is_new=True)
        assert terminal.text == ""
        assert not caplog.records


SCRIPT = """
import numpy as np
import warpmpc as wm
from warpmpc.systems import pendulum
solver = wm.MPCSolver(pendulum.build(5), wm.SQPSettings.real_time(), engine="sparse")
solver.solve(np.zeros((2, 2), "float32"))
"""


@pytest.mark.slow
def test_a_script_on_a_terminal(tmp_path):
    """It shows what it compiles, and nothing with empty hands or when it should be quiet."""
    shown = {}
    for name, quiet in (("first", ""), ("again", ""), ("quiet", "1")):
        folder = tmp_path / ("quiet" if quiet else "loud")
        folder.mkdir(exist_ok=True, mode=0o700)
        places = {"WARPMPC_CACHE_DIR": str(folder), "WARP_CACHE_PATH": str(folder / "warp")}
        outer, inner = pty.openpty()
        process = subprocess.run(
            [sys.executable, "-W", "error", "-c", SCRIPT],
            env={**os.environ, **places, QUIET_VARIABLE: quiet},
            stdout=subprocess.PIPE,
            stderr=inner,
            timeout=400,
            check=False,
        )
        os.close(inner)
        try:
            shown[name] = os.read(outer, 2**20).decode()
        except OSError:  # nothing was written
            shown[name] = ""
        os.close(outer)
        assert process.returncode == 0, shown[name]
        assert process.stdout == b""
    assert "warpmpc: compiling kernel" in shown["first"]
    assert "compiling kernel" not in shown["again"]
    assert shown["quiet"] == ""
