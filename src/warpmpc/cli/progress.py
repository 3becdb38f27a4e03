"""A progress bar for people: on a terminal only, on stderr, gone when the work is done."""

from __future__ import annotations

import sys
from typing import TextIO

from warpmpc.sim.progress import CLEAR_LINE, bar


class Progress:
    """Shows how far a list of steps has come."""

    def __init__(self, total: int, stream: TextIO | None = None):
        """Counts to `total`; silent unless the stream is a terminal."""
        self._total, self._stream = total, stream or sys.stderr
        self._active = self._stream.isatty()

    def show(self, done: int, doing: str) -> None:
        """Draws the bar with the name of the step under way."""
        self._write(f"{CLEAR_LINE}{bar(done, self._total)} {doing}")

    def clear(self) -> None:
        """Removes the bar, so that a line can be printed in its place."""
        self._write(CLEAR_LINE)

    def _write(self, text: str) -> None:
        if self._active:
            self._stream.write(text)
            self._stream.flush()
