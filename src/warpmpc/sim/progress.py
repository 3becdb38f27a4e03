"""Progress of a long closed loop, shown as a bar on a terminal or by a function of the caller."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TextIO

from warpmpc.engines.runtime.announcing import CLEAR_LINE as CLEAR_LINE

Report = Callable[[int, int], None]
_WIDTH = 24


def bar(done: int, total: int) -> str:
    """A bar, and the numbers of steps that it stands for."""
    filled = _WIDTH * done // max(total, 1)
    return f"[{'#' * filled}{'.' * (_WIDTH - filled)}] {done}/{total}"


class ProgressBar:
    """Draws a bar on a terminal and removes it at the end; it writes nothing elsewhere."""

    def __init__(self, stream: TextIO | None = None):
        """Writes to stderr unless told otherwise."""
        self._stream = stream or sys.stderr

    def __call__(self, done: int, total: int) -> None:
        """Shows that `done` of `total` steps are simulated."""
        if not self._stream.isatty():
            return
        text = "" if done == total else f"{bar(done, total)} steps"
        self._stream.write(f"{CLEAR_LINE}{text}")
        self._stream.flush()


def chunk_length(steps: int, reports: int = 20) -> int:
    """Number of steps between two reports, which is constant so that one program serves all."""
    most = max(steps // reports, 1)
    return max(length for length in range(1, most + 1) if steps % length == 0)
