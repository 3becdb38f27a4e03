"""How far a long closed loop has come: a bar on a terminal, or a function of the caller."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TextIO

Report = Callable[[int, int], None]
_WIDTH = 24


class ProgressBar:
    """Draws a bar on a terminal, and takes it away when the work is done; silent elsewhere."""

    def __init__(self, stream: TextIO | None = None):
        """Writes to stderr unless told otherwise."""
        self._stream = stream or sys.stderr

    def __call__(self, done: int, total: int) -> None:
        """Shows that `done` of `total` steps are simulated."""
        if not self._stream.isatty():
            return
        filled = _WIDTH * done // total
        bar = "#" * filled + "." * (_WIDTH - filled)
        self._stream.write("\r\033[K" if done == total else f"\r\033[K[{bar}] {done}/{total} steps")
        self._stream.flush()


def chunk_length(steps: int, reports: int = 20) -> int:
    """Steps between two reports: the same for all, so that one program serves them all."""
    most = max(steps // reports, 1)
    return max(length for length in range(1, most + 1) if steps % length == 0)
